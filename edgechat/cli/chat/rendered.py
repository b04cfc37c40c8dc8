"""Rendered answers: Markdown shown in a terminal, part by part, as soon as the kind of each part is known."""

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
"""Maximum width in columns, the same as in the app. Longer lines are hard to read."""
_INTERVAL = 0.08
"""Minimum time between two renderings, in seconds."""
_SHARE = 10
"""Minimum wait after a rendering, as a multiple of its duration; rendering takes at most 10% of the time."""
_WAITING = {"table": "writing a table", "maths": "writing a formula"}


class RenderedAnswer(AnswerPrinter):
    """Renders an answer from top to bottom without redrawing any of it, so resizing and Ctrl+C do no harm."""

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
            text = text.lstrip("\n")  # models often start their answers with blank lines
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
    """Return the width to use for text. It excludes the last column, because some terminals wrap there."""
    try:
        columns = os.get_terminal_size(sys.stdout.fileno()).columns
    except OSError:
        columns = 0
    return max(1, min(_WIDEST, (columns or 80) - 1))
