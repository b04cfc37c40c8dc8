"""Rendered answers: Markdown in a terminal, each piece as soon as its type is certain."""

from __future__ import annotations

import os
import sys
import time

from edgechat.base.errors import EdgechatError
from edgechat.base.text import printable
from edgechat.cli.chat.answers import AnswerPrinter
from edgechat.cli.terminal_io import StatusLine
from edgechat.tui.markdown.stream import MarkdownStream, as_escapes

_WIDEST = 100
"""Columns; longer lines are hard to read. The app uses the same limit."""
_INTERVAL = 0.08
"""Seconds between renderings."""
_SHARE = 10
"""Minimum ratio of waiting to rendering, so that rendering takes at most a tenth of the time."""
_WAITING = {"table": "writing a table", "maths": "writing a formula"}


class RenderedAnswer(AnswerPrinter):
    """Renders an answer from top to bottom without rewriting, so that resizing and Ctrl+C are harmless."""

    def __init__(self, status: StatusLine, *, dropped: int, has_system: bool) -> None:
        super().__init__(status, as_json=False, dropped=dropped, has_system=has_system)
        self._stream = MarkdownStream()
        self._unread = ""
        self._begun = False
        self._next_look = 0.0

    def _break_text(self) -> None:
        self.flush()
        self._stream, self._begun = MarkdownStream(), False

    def flush(self) -> None:
        """See `AnswerPrinter.flush`."""
        self._read()
        self._write(as_escapes(self._stream.finish(_width())))

    def _print(self, text: str) -> None:
        text = printable(text)
        if not self._begun:
            text = text.lstrip("\n")  # models often start with blank lines
            self._begun = bool(text)
        self._unread += text
        began = time.monotonic()
        if self._begun and began >= self._next_look:
            self._look()
            self._next_look = began + max(_INTERVAL, _SHARE * (time.monotonic() - began))

    def _look(self) -> None:
        self._read()
        self._write(as_escapes(self._stream.take(_width())))
        if self._stream.waits_for and self._stream.at_line_start:
            self._status.show(_WAITING[self._stream.waits_for])

    def _read(self) -> None:
        if self._unread:
            self._stream.append(self._unread)
            self._unread = ""

    def _write(self, text: str) -> None:
        if text:
            self._status.clear()
            sys.stdout.write(text)
            sys.stdout.flush()

    def _finish_text(self, error: EdgechatError | None) -> None:
        self.flush()


def _width() -> int:
    """Return the width for text, leaving out the last column, at which some terminals wrap."""
    try:
        columns = os.get_terminal_size(sys.stdout.fileno()).columns
    except OSError:
        columns = 0
    return max(1, min(_WIDEST, (columns or 80) - 1))
