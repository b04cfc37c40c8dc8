"""Cost model of decode calls, learned from the calls themselves, to size the next chunk of a prompt."""

from __future__ import annotations

CALL_LIMIT = 0.25
"""Maximum seconds for a call that cannot be interrupted or that streams wait for; see also STEPS."""
STEPS = 3
"""A call may also take as long as this many calls with only the streams, if that is longer. So during
prefill, streams keep at least a third of their speed, and the prompt gets the other two thirds.
"""
LONE_LIMIT = 10.0
"""Maximum seconds for an interruptible call without streams, which are wasted if it is interrupted. The call
ends after the current operation, one of several hundred.
"""

_AIM = 0.9
"""Share of the limit to aim for, since calls sometimes take longer than predicted."""
_ALIKE = 1.5
"""Ratio of sizes within which the previous size is kept, if changing it costs time."""
_FIRST_CHUNK = 16
_GROWTH = 4
_LEAST_CHUNK = 4
"""Tokens in the smallest chunk alongside streams, and in the smallest from which to learn the slope."""
_TILE = 64
"""Tokens that attention computes at once; fewer tokens cost just as much."""
_FULL = 4 * _TILE
"""Tokens in a chunk computed at full speed: each thread's share of the heads is then in whole tiles."""
_LEAST_LONE = 2 * _TILE
"""Smaller chunks reach only 0.9 of full speed, or 0.7 deep in a prompt."""


class CallCost:
    """Affine model of the seconds that a call takes: a(streams) + slope * (prompt tokens).

    Each call reads the weights once, and each row costs more if there are few, so a(streams) is recorded for
    each number of streams, separately from the slope. Every call is observed, so both follow the depth of the
    cache.
    """

    def __init__(self) -> None:
        self._streams: dict[int, float] = {}
        self._slope: float | None = None
        self._expected: float | None = None
        self._graph = 0.0
        self._size = self._before = 0
        self._largest = _FIRST_CHUNK // _GROWTH
        self._owed = 0.0

    def expect(self, seconds: float, graph: float = 0.0) -> None:
        """Set the predicted seconds per prompt token, to size the first interruptible call.

        graph: additional seconds for a call whose number of tokens differs from the previous call's.
        """
        self._expected, self._graph = seconds, graph

    def observe(self, n_streams: int, n_prompt: int, seconds: float) -> None:
        """Learn from a call with one token for each of `n_streams` streams and `n_prompt` prompt tokens."""
        self._owed = max(self._owed - seconds, 0.0)
        before, self._before = self._before, n_streams + n_prompt
        if not n_prompt:
            self._streams[n_streams] = _follow(self._streams.get(n_streams), seconds)
        elif n_prompt >= _LEAST_CHUNK:
            self._largest = max(self._largest, n_prompt)
            alone = self.stream_seconds(max(n_streams, 1))
            base = alone + (self._graph if n_streams + n_prompt != before else 0.0)
            counted = n_prompt - (bool(alone) and not n_streams)
            self._slope = _follow(self._slope, max(seconds - base, 1e-7) / counted)

    def note_interruption(self, seconds: float) -> None:
        """Record that a call was interrupted after `seconds`.

        The same amount of time is then spent in uninterruptible calls, so that interruptions slow prompts
        down but never stop them.
        """
        self._owed += seconds

    @property
    def may_interrupt(self) -> bool:
        """Whether the next call may be interruptible."""
        return not self._owed

    def lone_tokens(self) -> int:
        """Return the maximum tokens for an interruptible call without streams."""
        seconds = self._expected if self._slope is None else self._slope
        if not seconds:
            return _LEAST_LONE
        n_tokens = int(LONE_LIMIT / seconds)
        return max(n_tokens - n_tokens % (_FULL if n_tokens >= _FULL else _TILE), _LEAST_LONE)

    def prompt_tokens(self, n_streams: int = 0) -> int:
        """Return the maximum prompt tokens for the next call, in addition to one token per stream."""
        most = self._largest * _GROWTH
        if self._slope is None:
            return most
        base = self.stream_seconds(max(n_streams, 1)) + self._graph
        left = _AIM * max(CALL_LIMIT, STEPS * base) - base
        rows = n_streams + int(left / self._slope)
        size = min(max(_even(rows) - n_streams, _LEAST_CHUNK), most)
        if not (self._graph and self._size / _ALIKE < size < self._size * _ALIKE):
            self._size = size
        return self._size

    def stream_seconds(self, n_streams: int = 1) -> float:
        """Return the seconds for `n_streams`, or the nearest number seen; 0 before the first call."""
        if not self._streams:
            return 0.0
        return self._streams[min(self._streams, key=lambda number: abs(number - n_streams))]

    @property
    def token_seconds(self) -> float:
        """Seconds per prompt token, predicted until measured; 0 while unknown."""
        return self._slope or self._expected or 0.0


def _even(n_tokens: int) -> int:
    """Round down to a number of rows that kernels compute efficiently: a multiple of 16 or 4."""
    for rows in (16, 4):
        if n_tokens >= 2 * rows:
            return n_tokens - n_tokens % rows
    return n_tokens


def _follow(old: float | None, new: float) -> float:
    """Return a moving average that adapts faster to slower calls, and when a stall ends."""
    if old is None:
        return new
    weight = 0.5 if new > old or new < old / 2 else 0.2
    return old + weight * (new - old)
