"""What a decode call costs, learnt from the calls themselves, to size the next chunk of a prompt."""

from __future__ import annotations

CALL_LIMIT = 0.25
"""Seconds that no call should exceed that cannot be interrupted, or that streams wait for."""
STEPS = 3
"""Or so many calls of the streams alone, where those take longer: the floor to which streams slow down while
a prompt is read is a third of their pace. The prompt has the other two thirds, however many they are."""
LONE_LIMIT = 2.0
"""Seconds of a call that nobody waits for and that can be interrupted: what an interruption may waste."""

_AIM = 0.9
"""Of the limit: calls take longer than was thought now and then."""
_FIRST_CHUNK = 16
_GROWTH = 4
_LEAST_CHUNK = 4
"""The least share of a prompt beside streams, and the smallest that teaches what its tokens cost."""
_LEAST_LONE = 64
"""Fewer tokens are read at less than nine tenths of full speed."""


class CallCost:
    """An affine model of the seconds of a call: a(streams) + slope * (tokens of prompts).

    One token and many cost very differently (weights are read once either way), and few rows cost more each
    than many: what streams cost alone is therefore kept apart, by their number, and does not teach the slope.
    That follows the depth of the cache by itself, since every call is observed.
    """

    def __init__(self) -> None:
        self._streams: dict[int, float] = {}
        self._slope: float | None = None
        self._largest = _FIRST_CHUNK // _GROWTH
        self._owed = 0.0

    def observe(self, n_streams: int, n_prompt: int, seconds: float) -> None:
        """Learn from a call that held one token of each of `n_streams` streams and so many of prompts."""
        self._owed = max(self._owed - seconds, 0.0)
        if not n_prompt:
            self._streams[n_streams] = _follow(self._streams.get(n_streams), seconds)
        elif n_prompt >= _LEAST_CHUNK:
            self._largest = max(self._largest, n_prompt)
            base = self.stream_seconds(max(n_streams, 1))
            counted = n_prompt - (bool(base) and not n_streams)
            self._slope = _follow(self._slope, max(seconds - base, 1e-7) / counted)

    def wasted(self, seconds: float) -> None:
        """Note that a call was interrupted after so long.

        As much time is then spent in calls that cannot be: to interrupt again and again slows prompts down,
        but does not stop them.
        """
        self._owed += seconds

    @property
    def may_interrupt(self) -> bool:
        """Whether the next call may be one that an interruption wastes."""
        return not self._owed

    def lone_tokens(self) -> int:
        """Return how many tokens a call may hold that nobody waits for, and that can be interrupted."""
        known = max(self._largest * _GROWTH, _LEAST_LONE)
        if self._slope is None:
            return known
        return min(max(_even(int(LONE_LIMIT / self._slope)), _LEAST_LONE), known)

    def prompt_tokens(self, n_streams: int = 0) -> int:
        """Return how many tokens of prompts the next call may hold, beside one of each of so many streams."""
        known = self._largest * _GROWTH
        if self._slope is None:
            return known
        base = self.stream_seconds(max(n_streams, 1))
        left = _AIM * max(CALL_LIMIT, STEPS * base) - base
        rows = n_streams + int(left / self._slope)
        return min(max(_even(rows) - n_streams, _LEAST_CHUNK), known)

    def stream_seconds(self, n_streams: int = 1) -> float:
        """Return the seconds of a call of so many streams, or of the nearest number known; 0 for none."""
        if not self._streams:
            return 0.0
        return self._streams[min(self._streams, key=lambda known: abs(known - n_streams))]

    @property
    def token_seconds(self) -> float:
        """Seconds of a prompt's token in a batch; 0 where nothing is known yet."""
        return self._slope or 0.0


def even_share(n_tokens: int, most: int) -> int:
    """Return the size of the next of as few calls as can be, of `most` tokens at most, that read so many."""
    share = -(-n_tokens // -(-n_tokens // most))
    rounded = -(-share // 16) * 16
    return rounded if rounded <= most else share


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
