"""Speed: the last minute as a sparkline, and the timings of the last replies."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from statistics import median
from typing import ClassVar

from textual.content import Content

from edgechat.engine.kv.snapshot import SchedulerState, Snapshot
from edgechat.engine.types import Finished, Timings
from edgechat.tui.engine_room.section import LABEL, Section, row, table

_LEVELS = "▁▂▃▄▅▆▇█"
_MINUTE = 60
_FRESH = 2.0
"""Seconds for which a measured speed is shown as the present one."""
_REPLIES = 20


class SpeedSection(Section):
    """Tokens per second, and the time to the first token."""

    TITLE: ClassVar[str] = "Speed"
    MEANING: ClassVar[str] = (
        "Prefill: reading the prompt, a chunk with each step. Decoding: generating text, a token with each "
        "step. First token: from the question to the first word."
    )

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._seconds: deque[tuple[int, float]] = deque(maxlen=_MINUTE)
        """The last speed of each second in which one was measured."""
        self._last = (-_FRESH, 0.0)
        self._replies: deque[Timings] = deque(maxlen=_REPLIES)
        self._work: SchedulerState | None = None

    def note(self, tokens_per_second: float) -> None:
        """Take the present speed."""
        now = self._clock()
        self._last = (now, tokens_per_second)
        if self._seconds and self._seconds[-1][0] == int(now):
            self._seconds.pop()
        self._seconds.append((int(now), tokens_per_second))

    def take(self, reply: Finished) -> None:
        """Take the timings of a reply, unless it never began."""
        if reply.timings.ttft_ms > 0:
            self._replies.append(reply.timings)

    def show(self, snapshot: Snapshot | None) -> None:
        """Show what the scheduler does."""
        self._work = snapshot.work if snapshot else None
        self.changed()

    def aside(self) -> str:
        n = len(self._replies)
        return "" if not n else "the last reply" if n == 1 else f"the last {n} replies"

    def body(self, width: int) -> list[Content]:
        at, speed = self._last
        is_now = speed > 0 and self._clock() - at < _FRESH
        now = f"{_figure(speed)} tok/s" if is_now else ("idle", ".faint")
        lines = [row("now", now), row("last minute", self._sparkline(width - LABEL))]
        rows = [
            ("decoding", _summary([reply.decode_tps for reply in self._replies if reply.decode_tps], _rate)),
            ("prefill", _summary([reply.prompt_tps for reply in self._replies if reply.prompt_tps], _rate)),
            ("first token", _summary([reply.ttft_ms / 1000 for reply in self._replies], _time)),
        ]
        lines += table(("last", "median", "min"), rows, width)
        return [*lines, *self._engine()]

    def _sparkline(self, width: int) -> Content:
        """Return the last minute, newest at the right, scaled to the highest speed."""
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
        return Content("".join(_LEVELS[round(top * speed / highest)] for speed in columns)).stylize(".spark")

    def _engine(self) -> list[Content]:
        work = self._work
        if work is None:
            return []
        prewarming = ", preparing the next turn" if work.settling else ""
        requests = f"{work.running} running, {work.waiting} waiting"
        lines = [row("requests", requests, (prewarming, ".faint"))]
        if work.step_seconds > 0:
            lines.append(row("step", _time(work.step_seconds), (" per token", ".faint")))
            lines.append(row("chunk", f"{work.chunk_tokens:,} tokens", (" per step", ".faint")))
        return lines


def _summary(values: Sequence[float], format: Callable[[float], str]) -> tuple[str, str, str]:
    """Return the last value, the median and the least."""
    if not values:
        return ("–", "–", "–")
    return format(values[-1]), format(median(values)), format(min(values))


def _rate(value: float) -> str:
    return f"{_figure(value)} t/s" if value < 9_999.5 else f"{value / 1000:.1f}k t/s"


def _time(seconds: float) -> str:
    return f"{_figure(1000 * seconds)} ms" if seconds < 0.9995 else f"{_figure(seconds)} s"


def _figure(value: float) -> str:
    """Return a number with a fixed count of decimals, so that it does not jitter."""
    return f"{value:.1f}" if value < 99.95 else f"{value:,.0f}"
