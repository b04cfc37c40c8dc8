"""Progress of a download: bytes so far, speed, and remaining time."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

from edgechat.base.text import mebibytes
from edgechat.models.choices import RemoteFile

_WINDOW = 8.0
"""Seconds over which the rate is averaged."""
_MIN_SECONDS = 0.2
"""Shortest time from which a rate is computed."""


@dataclass(frozen=True, slots=True)
class ProgressSample:
    """The progress at one moment."""

    here: int
    total: int
    """Both in bytes."""
    rate: float = 0.0
    """Bytes per second; 0 while unknown."""

    @property
    def share(self) -> float:
        """The completed fraction, from 0 to 1."""
        return self.here / self.total if self.total else 1.0

    @property
    def left(self) -> float | None:
        """Remaining seconds; None while unknown."""
        return (self.total - self.here) / self.rate if self.rate > 0 else None

    @property
    def size(self) -> str:
        """The share and the sizes: '45% 2.1 GiB of 4.4 GiB'."""
        share = 100 * self.here // self.total if self.total else 100
        return f"{share}% {mebibytes(self.here)} of {mebibytes(self.total)}"

    @property
    def line(self) -> str:
        """The same with rate and time: '45% 2.1 GiB of 4.4 GiB, 23.0 MiB/s, 1:45 left'."""
        left = self.left
        return self.size if left is None else f"{self.size}, {speed(self.rate)}, {duration(left)} left"


class DownloadPace:
    """The progress of several files, of `total` bytes together; for one thread."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._here: dict[RemoteFile, int] = {}
        self._received = 0
        self._samples: deque[tuple[float, int]] = deque()

    def has(self, file: RemoteFile, n: int) -> bool:
        """Record that the first n bytes of a file are here; return whether the file was known before."""
        before = self._here.get(file)
        self._here[file] = n
        if not self._samples:
            self._samples.append((time.monotonic(), 0))
        if before is not None:
            self._received += max(0, n - before)
        return before is not None

    def standing(self) -> ProgressSample:
        """Return the current progress."""
        return ProgressSample(sum(self._here.values()), self._total, self._rate())

    def _rate(self) -> float:
        now = time.monotonic()
        self._samples.append((now, self._received))
        while len(self._samples) > 2 and self._samples[0][0] < now - _WINDOW:
            self._samples.popleft()
        seconds = now - self._samples[0][0]
        return (self._received - self._samples[0][1]) / seconds if seconds > _MIN_SECONDS else 0.0


def speed(rate: float) -> str:
    """Return bytes per second for users: '23.0 MiB/s'."""
    return f"{rate / 2**20:.1f} MiB/s" if rate >= 2**20 / 10 else f"{rate / 1024:.0f} KiB/s"


def duration(seconds: float) -> str:
    """Return a duration for users: '1:45'."""
    whole = int(min(seconds, 359_999))
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
