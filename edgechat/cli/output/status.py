"""A line of status on a terminal, overwritten as things go on and gone before anything else is printed."""

from __future__ import annotations

import time
from typing import TextIO

from edgechat.base.text import one_line

_EVERY = 0.1
_CLEAR = "\r\x1b[K"


class StatusLine:
    """Writes nothing at all where there is no terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._on = stream.isatty()
        self._shown = 0.0

    def show(self, text: str) -> None:
        """Show `text`, unless the last one was shown just now."""
        if self._on and time.monotonic() - self._shown > _EVERY:
            self._stream.write(f"{_CLEAR}{one_line(text, 78)}")
            self._stream.flush()
            self._shown = time.monotonic()

    def say(self, sentence: str) -> None:
        """Nothing here: what is said once for a screen reader is seen in the line."""

    def heard(self) -> None:
        """Note that something else was written or typed, which matters to a screen reader alone."""

    def clear(self) -> None:
        """Take the line away."""
        if self._shown:
            self._stream.write(_CLEAR)
            self._stream.flush()
            self._shown = 0.0
