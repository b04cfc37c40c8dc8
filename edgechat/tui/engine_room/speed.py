"""Speed: the last minute as a line, and what the last replies took."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from statistics import median
from typing import ClassVar

from textual.content import Content

from edgechat.engine.snapshot import SchedulerState, Snapshot
from edgechat.engine.types import Finished, Timings
from edgechat.tui.engine_room.section import LABEL, Section, row, table

_LEVELS = "▁▂▃▄▅▆▇█"
_MINUTE = 60
_FRESH = 2.0
"""Seconds for which a speed is that of now."""
_REPLIES = 20


class SpeedSection(Section):
    """Tokens per second, and how long one waits for the first."""

    TITLE: ClassVar[str] = "Speed"
    MEANING: ClassVar[str] = (
        "Text is generated token by token, and prompts are read in chunks; the first token follows when "
        "the prompt is read."
    )

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._seconds: deque[tuple[int, float]] = deque(maxlen=_MINUTE)
        """The last speed of each second that had one."""
        self._last = (-_FRESH, 0.0)
        self._replies: deque[Timings] = deque(maxlen=_REPLIES)
        self._work: SchedulerState | None = None

    def note(self, tokens_per_second: float) -> None:
        """Take the speed of now."""
        now = self._clock()
        self._last = (now, tokens_per_second)
        if self._seconds and self._seconds[-1][0] == int(now):
            self._seconds.pop()
        self._seconds.append((int(now), tokens_per_second))

    def take(self, reply: Finished) -> None:
        """Take what a reply took; one that never began says nothing."""
        if reply.timings.ttft_ms > 0:
            self._replies.append(reply.timings)

    def show(self, snapshot: Snapshot | None) -> None:
        """Show what is computed now."""
        self._work = snapshot.work if snapshot else None
        self.changed()

    def aside(self) -> str:
        """See `Section`."""
        n = len(self._replies)
        return "" if not n else "the last reply" if n == 1 else f"the last {n} replies"

    def body(self, width: int) -> list[Content]:
        """See `Section`."""
        at, speed = self._last
        is_now = speed > 0 and self._clock() - at < _FRESH
        now = f"{_figure(speed)} tok/s" if is_now else ("idle", ".faint")
        lines = [row("now", now), row("last minute", self._sparkline(width - LABEL))]
        rows = [
            ("decoding", _three([one.decode_tps for one in self._replies if one.decode_tps], _rate)),
            ("prefill", _three([one.prompt_tps for one in self._replies if one.prompt_tps], _rate)),
            ("first token", _three([one.ttft_ms / 1000 for one in self._replies], _time)),
        ]
        lines += table(("last", "median", "min"), rows, width)
        return [*lines, *self._engine()]

    def _sparkline(self, width: int) -> Content:
        """Return the last minute, the newest at the right, the highest as high as the line goes."""
        width = min(width, _MINUTE)
        now = int(self._clock())
        columns = [0.0] * width
        for second, speed in self._seconds:
            age = now - second
            if age < _MINUTE:
                column = width - 1 - age * width // _MINUTE
                columns[column] = max(columns[column], speed)
        highest = max(columns, default=0.0)
        if highest <= 0:
            return Content(_LEVELS[0] * width).stylize(".faint")
        top = len(_LEVELS) - 1
        return Content("".join(_LEVELS[round(top * one / highest)] for one in columns)).stylize(".spark")

    def _engine(self) -> list[Content]:
        work = self._work
        if work is None:
            return []
        settling = ", preparing the next turn" if work.settling else ""
        requests = f"{work.running} running, {work.waiting} waiting"
        lines = [row("requests", requests, (settling, ".faint"))]
        if work.step_seconds > 0:
            lines.append(row("step", _time(work.step_seconds), (" for a token", ".faint")))
            lines.append(row("chunk", f"{work.chunk_tokens:,} tokens", (" of a prompt", ".faint")))
        return lines


def _three(values: Sequence[float], told: Callable[[float], str]) -> tuple[str, str, str]:
    if not values:
        return ("–", "–", "–")
    return told(values[-1]), told(median(values)), told(min(values))


def _rate(value: float) -> str:
    return f"{_figure(value)} t/s" if value < 9_999.5 else f"{value / 1000:.1f}k t/s"


def _time(seconds: float) -> str:
    return f"{_figure(1000 * seconds)} ms" if seconds < 0.9995 else f"{_figure(seconds)} s"


def _figure(value: float) -> str:
    """Return a number with as many digits behind the point from one moment to the next."""
    return f"{value:.1f}" if value < 99.95 else f"{value:,.0f}"
