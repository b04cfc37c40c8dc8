"""What a decode call costs, learnt from the calls themselves, to size the next chunk of a prompt."""

from __future__ import annotations

CALL_LIMIT = 0.25
"""Seconds that no call should exceed: the longest anybody's stream, cancel or keypress waits."""
STEPS = 3
"""Or so many calls of one token, where those take longer: a stream that slow stutters no more for it, and the
weights are read once for many more tokens."""

_AIM_ALONE = 0.9
_AIM_BESIDE = 0.75
"""Less where a stream waits for the call to end: calls take longer than was thought now and then."""
_FIRST_CHUNK = 16
_GROWTH = 4
_LEAST_CHUNK = 2
"""The smallest call that teaches the slope: what is never chosen again could never be corrected."""


class CallCost:
    """An affine model of the seconds of a call: a(1 token) + slope * (tokens - 1).

    One token and many cost very differently (weights are read once either way), so a single rate would
    shrink the chunks without end on a machine that is bound by memory. The slope follows the depth of
    the cache by itself, since every call is observed.
    """

    def __init__(self) -> None:
        self._single: float | None = None
        self._slope: float | None = None
        self._largest = _FIRST_CHUNK // _GROWTH

    def observe(self, n_tokens: int, seconds: float) -> None:
        """Learn from a call."""
        if n_tokens < _LEAST_CHUNK:
            self._single = _follow(self._single, seconds)
            return
        self._largest = max(self._largest, n_tokens)
        slope = max(seconds - (self._single or 0.0), 1e-7) / (n_tokens - (self._single is not None))
        self._slope = _follow(self._slope, slope)

    def tokens_within_limit(self, *, beside: bool = False) -> int:
        """Return how many tokens the next call may hold. beside: streams wait for its end."""
        known = self._largest * _GROWTH
        if self._slope is None:
            return known
        single = self._single or 0.0
        aim = _AIM_BESIDE if beside else _AIM_ALONE
        left = aim * max(CALL_LIMIT, STEPS * single) - single
        return min(_even(max(1 + int(left / self._slope), _LEAST_CHUNK)), known)

    @property
    def single_seconds(self) -> float:
        """Seconds of a call of one token; 0 where nothing is known yet."""
        return self._single or 0.0

    @property
    def token_seconds(self) -> float:
        """Seconds of a prompt's token in a batch; 0 where nothing is known yet."""
        return self._slope or 0.0


def _even(n_tokens: int) -> int:
    """Return a number of rows, near below, that kernels compute well: they take them by 4, and by 16."""
    for rows in (16, 4):
        if n_tokens >= 2 * rows:
            return n_tokens - n_tokens % rows
    return n_tokens


def _follow(old: float | None, new: float) -> float:
    """Return an average that believes a slow call, or the end of a stall, sooner than a quick one."""
    if old is None:
        return new
    weight = 0.5 if new > old or new < old / 2 else 0.2
    return old + weight * (new - old)
