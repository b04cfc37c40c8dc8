"""What a decode call costs, learnt from the calls themselves, to size the next chunk of a prompt."""

from __future__ import annotations

CALL_LIMIT = 0.25
"""Seconds that a call should take at most if it cannot be interrupted, or if streams wait for it ..."""
STEPS = 3
"""... or the time of so many calls of the streams alone, if that is longer: while a prompt is read, streams
keep at least a third of their speed, and the prompt gets the other two thirds."""
LONE_LIMIT = 10.0
"""Seconds of an interruptible call that no stream waits for: what an interruption may waste. The call ends
with the operation that runs, one of some hundred."""

_AIM = 0.9
"""Of the limit, as calls sometimes take longer than predicted."""
_ALIKE = 1.5
"""Ratio of sizes between which the one before is kept if another takes time."""
_FIRST_CHUNK = 16
_GROWTH = 4
_LEAST_CHUNK = 4
"""Tokens of the smallest chunk beside streams, and of the smallest that the slope is learnt from."""
_TILE = 64
"""Tokens that attention computes together, at the cost of so many also where there are fewer."""
_FULL = 4 * _TILE
"""Tokens of a chunk from which on the threads' shares of all heads are whole tiles: it has full speed."""
_LEAST_LONE = 2 * _TILE
"""Smaller chunks are read at 0.9 of full speed, and deep in a prompt at 0.7."""


class CallCost:
    """An affine model of the seconds of a call: a(streams) + slope * (tokens of prompts).

    Each call reads the weights once, and few rows cost more each than many, so the cost of streams alone is
    kept by their number, apart from the slope. As every call is observed, both follow the depth of the cache.
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
        """Size the first interruptible call by what a prompt's token is predicted to take.

        graph: seconds that a call takes besides if it has another number of tokens than the one before.
        """
        self._expected, self._graph = seconds, graph

    def observe(self, n_streams: int, n_prompt: int, seconds: float) -> None:
        """Learn from a call with one token of each of `n_streams` streams and `n_prompt` of prompts."""
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
        """Note that a call was interrupted after so long.

        As much time is then spent in uninterruptible calls, so that interruptions slow prompts down but never
        stop them.
        """
        self._owed += seconds

    @property
    def may_interrupt(self) -> bool:
        """Whether the next call may be interruptible."""
        return not self._owed

    def lone_tokens(self) -> int:
        """Return how many tokens an interruptible call may hold that no stream waits for."""
        seconds = self._expected if self._slope is None else self._slope
        if not seconds:
            return _LEAST_LONE
        n_tokens = int(LONE_LIMIT / seconds)
        return max(n_tokens - n_tokens % (_FULL if n_tokens >= _FULL else _TILE), _LEAST_LONE)

    def prompt_tokens(self, n_streams: int = 0) -> int:
        """Return how many tokens of prompts the next call may hold beside one of each stream."""
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
        """Return the seconds of a call of so many streams, or of the nearest number seen; 0 if none was."""
        if not self._streams:
            return 0.0
        return self._streams[min(self._streams, key=lambda number: abs(number - n_streams))]

    @property
    def token_seconds(self) -> float:
        """Seconds of a prompt's token in a batch, as expected until it is measured; 0 while unknown."""
        return self._slope or self._expected or 0.0


def _even(n_tokens: int) -> int:
    """Round down to a number of rows that kernels compute well, a multiple of 16 or 4."""
    for rows in (16, 4):
        if n_tokens >= 2 * rows:
            return n_tokens - n_tokens % rows
    return n_tokens


def _follow(old: float | None, new: float) -> float:
    """Return a moving average that follows slower calls, and the end of a stall, faster than quicker ones."""
    if old is None:
        return new
    weight = 0.5 if new > old or new < old / 2 else 0.2
    return old + weight * (new - old)
