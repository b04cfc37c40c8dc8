"""How a download goes: one line that is overwritten on a terminal, a plain line now and then without one."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from typing import TextIO

from edgechat.cli.status import StatusLine
from edgechat.models.choices import RemoteFile
from edgechat.text import mebibytes, one_line, printable

EVERY = 10.0
"""Seconds between two lines where there is no terminal."""
_OFTEN = 0.2
_WINDOW = 8.0
"""Seconds whose mean is the rate."""


class Progress:
    """Of several files together; what models/download.py tells is an Observer's."""

    def __init__(self, total: int, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._on = self._stream.isatty()
        self._status = StatusLine(self._stream)
        self._total = total
        self._here: dict[RemoteFile, int] = {}
        self._received = 0
        self._marks: deque[tuple[float, int]] = deque()
        self._shown = time.monotonic()

    def has(self, file: RemoteFile, n: int) -> None:
        """Note that the first n bytes of the file are here."""
        before = self._here.get(file)
        self._here[file] = n
        if not self._marks:
            self._marks.append((time.monotonic(), 0))
        if before is not None:
            self._received += max(0, n - before)
            self._show(lambda: self.line(file.name))

    def checked(self, file: RemoteFile, n: int) -> None:
        """Note that the first n of the bytes that were kept have been hashed again."""
        self._show(lambda: f"checking what is here of {_base(file.name)}: {mebibytes(n)}")

    def says(self, text: str) -> None:
        """Print a sentence."""
        self._status.clear()
        print(printable(text), file=self._stream, flush=True)

    def clear(self) -> None:
        """Take the line away."""
        self._status.clear()

    def line(self, name: str) -> str:
        """Return how things stand: '45% 2.1 of 4.4 GiB, 23 MiB/s, 1:45 left, model-Q4_K_M.gguf'."""
        here = sum(self._here.values())
        share = 100 * here // self._total if self._total else 100
        text = f"{share:.0f}% {mebibytes(here)} of {mebibytes(self._total)}"
        rate = self._rate()
        if rate > 0:
            text += f", {_speed(rate)}, {_duration((self._total - here) / rate)} left"
        return f"{text}, {_base(name)}"

    def _rate(self) -> float:
        """Return bytes a second, of the last seconds; 0 where nothing is known yet."""
        now = time.monotonic()
        self._marks.append((now, self._received))
        while len(self._marks) > 2 and self._marks[0][0] < now - _WINDOW:
            self._marks.popleft()
        seconds = now - self._marks[0][0]
        return (self._received - self._marks[0][1]) / seconds if seconds > 0.2 else 0.0

    def _show(self, text: Callable[[], str]) -> None:
        """Show a line, unless one was shown just now."""
        now = time.monotonic()
        if now - self._shown < (_OFTEN if self._on else EVERY):
            return
        self._shown = now
        if self._on:
            self._status.show(text())
        else:
            print(text(), file=self._stream, flush=True)


def _base(name: str) -> str:
    return one_line(name.rpartition("/")[2], 40)


def _speed(rate: float) -> str:
    return f"{rate / 2**20:.1f} MiB/s" if rate >= 2**20 / 10 else f"{rate / 1024:.0f} KiB/s"


def _duration(seconds: float) -> str:
    whole = int(min(seconds, 359_999))
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
