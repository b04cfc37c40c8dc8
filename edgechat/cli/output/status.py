"""A line of status on a terminal, overwritten as things go on and gone before anything else is printed."""

from __future__ import annotations

import time
from typing import Self, TextIO

from edgechat.base.text import one_line

_INTERVAL = 0.1
_CLEAR = "\r\x1b[K"


class StatusLine:
    """Writes to a terminal only. As a context manager, it clears the line in the end."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._on = stream.isatty()
        self._shown = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def show(self, text: str) -> None:
        """Show `text`, unless the last one was shown just now."""
        if self._on and time.monotonic() - self._shown > _INTERVAL:
            self._stream.write(f"{_CLEAR}{one_line(text, 78)}")
            self._stream.flush()
            self._shown = time.monotonic()

    def say(self, sentence: str) -> None:
        """Do nothing: only a screen reader needs what the line shows said once more."""

    def heard(self) -> None:
        """Note that something else was written or typed, which matters only to a screen reader."""

    def clear(self) -> None:
        """Clear the line."""
        if self._shown:
            self._stream.write(_CLEAR)
            self._stream.flush()
            self._shown = 0.0
