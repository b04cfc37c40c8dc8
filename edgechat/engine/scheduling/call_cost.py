"""Cost model for decode calls, learned from the calls themselves and used to size the next prompt chunk."""

from __future__ import annotations

CALL_LIMIT = 0.25
"""Maximum seconds for a call that cannot be interrupted or that streams have to wait for; see also STEPS."""
STEPS = 3
"""A call may also take as long as this many calls that only compute the streams, if that is longer. During
prefill, streams thus keep at least a third of their speed on average, and the prompt gets the rest of the
time.
"""
LONE_LIMIT = 10.0
"""Maximum seconds for an interruptible call without streams, since interrupting it wastes the time spent so
far. An interrupted call stops after its current operation, which is one of several hundred.
"""

_AIM = 0.9
"""Fraction of the limit to aim for, since calls sometimes take longer than predicted."""
_ALIKE = 1.5
"""If changing the chunk size costs time, the previous size is kept unless the sizes differ by this factor."""
_FIRST_CHUNK = 16
_GROWTH = 4
_LEAST_CHUNK = 4
"""Size of the smallest chunk computed alongside streams, and of the smallest used to learn the slope."""
TILE = 64
"""Minimum number of rows for which flash attention on a CPU uses tiles (llama.cpp's GGML_FA_TILE_Q).

Deep in a cache, a call with 64 rows then takes a third of the time of a call with 63.
"""
_STRETCH = 3
"""Maximum time for a call with a tile that pays, as a multiple of the limit. Afterwards, streams are computed
alone until they have caught up.
"""
_PAYS = 1.5
"""A tile pays if it computes this many times as many prompt tokens per second as a smaller chunk."""
_FULL = 4 * TILE
"""Minimum chunk size at which prompts run at full speed: each thread then gets a whole number of tiles."""
_LEAST_LONE = 2 * TILE
"""Minimum chunk size without streams. Smaller chunks run at 0.9 of full speed, or 0.7 deep in a prompt."""


class CallCost:
    """Two affine models of how long a call takes, in seconds: one for fewer rows than a tile, one for more.

    With fewer rows, a call takes a(streams) + slope * (prompt tokens). Each call reads the weights once, and
    each row costs more when there are few rows, so a(streams) is recorded for each number of streams. With a
    tile or more, all rows cost the same: a(1) + slope * (rows - 1), with another slope. Every call is
    observed, so all values track the depth of the cache.
    """

    def __init__(self) -> None:
        self._streams: dict[int, float] = {}
        self._few: float | None = None
        """The slope for fewer rows than a tile."""
        self._many: float | None = None
        """The slope for a tile or more."""
        self._expected: float | None = None
        self._graph = 0.0
        self._size = self._before = 0
        self._largest = _FIRST_CHUNK // _GROWTH
        self._owed = 0.0
        self._late = 0.0
        """Seconds by which calls with streams exceeded the limit, minus what shorter calls made up."""

    def expect(self, seconds: float, graph: float = 0.0) -> None:
        """Set the predicted seconds per prompt token, used to size the first interruptible call.

        graph: extra seconds for a call whose number of tokens differs from the previous call's.
        """
        self._expected, self._graph = seconds, graph

    def observe(self, n_streams: int, n_prompt: int, seconds: float) -> None:
        """Learn from a call that computed one token for each stream and `n_prompt` prompt tokens."""
        self._owed = max(self._owed - seconds, 0.0)
        before, self._before = self._before, n_streams + n_prompt
        if n_streams:
            limit = self._limit(n_streams)
            self._late = min(max(self._late + seconds - limit, 0.0), _STRETCH * limit)
        if not n_prompt:
            self._streams[n_streams] = _follow(self._streams.get(n_streams), seconds)
        elif n_prompt >= _LEAST_CHUNK:
            self._largest = max(self._largest, n_prompt)
            n_rows = n_streams + n_prompt
            n_alone = max(n_streams, 1) if n_rows < TILE else 1
            alone = self.stream_seconds(n_alone)
            base = alone + (self._graph if n_rows != before else 0.0)
            slope = max(seconds - base, 1e-7) / (n_rows - (n_alone if alone else n_streams))
            if n_rows < TILE:
                self._few = _follow(self._few, slope)
            else:
                self._many = _follow(self._many, slope)

    def note_interruption(self, seconds: float) -> None:
        """Record that a call was interrupted after `seconds`.

        The same amount of time must then be spent in uninterruptible calls, so that interruptions can slow
        prompts down but never stop them.
        """
        self._owed += seconds

    @property
    def may_interrupt(self) -> bool:
        """Whether the next call may be interruptible."""
        return not self._owed

    def lone_tokens(self) -> int:
        """Return the maximum number of tokens for an interruptible call without streams."""
        seconds = self._expected if self._many is None else self._many
        if not seconds:
            return _LEAST_LONE
        n_tokens = int(LONE_LIMIT / seconds)
        return max(n_tokens - n_tokens % (_FULL if n_tokens >= _FULL else TILE), _LEAST_LONE)

    def is_late(self, n_streams: int) -> bool:
        """Return True if the next call should compute only the streams, so that they catch up."""
        return self._late > self._limit(n_streams) - self.stream_seconds(n_streams)

    def prompt_tokens(self, n_streams: int = 0, n_left: int = TILE) -> int:
        """Return the maximum number of prompt tokens for the next call, besides one token for each stream.

        n_left: number of prompt tokens that are left to compute.
        """
        most = self._largest * _GROWTH
        if self._few is None and self._many is None:
            return most
        size = min(max(self._rows(n_streams, n_left) - n_streams, _LEAST_CHUNK), most)
        if not (self._graph and self._size / _ALIKE < size < self._size * _ALIKE):
            self._size = size
        return self._size

    def _rows(self, n_streams: int, n_left: int) -> int:
        """Return how many rows to compute: as many as the limit allows, or else a tile if that pays."""
        few, many = self._few or self._many or 0.0, self._many or self._few or 0.0
        first = self.stream_seconds() + self._graph
        base = self.stream_seconds(max(n_streams, 1)) + self._graph
        limit = _AIM * self._limit(n_streams)
        has_tile = n_streams + n_left >= TILE
        n_many = 1 + int((limit - first) / many)
        if has_tile and n_many >= TILE:
            return _even(n_many)
        n_few = max(_even(n_streams + int((limit - base) / few)) - n_streams, _LEAST_CHUNK)
        seconds, tile_seconds = base + few * n_few, first + many * (TILE - 1)
        pays = (TILE - n_streams) / tile_seconds >= _PAYS * n_few / seconds
        if has_tile and pays and tile_seconds <= _STRETCH * limit:
            return TILE
        return min(n_streams + n_few, TILE - 1)

    def _limit(self, n_streams: int) -> float:
        """Return how many seconds a call for `n_streams` streams may take."""
        return max(CALL_LIMIT, STEPS * (self.stream_seconds(max(n_streams, 1)) + self._graph))

    def stream_seconds(self, n_streams: int = 1) -> float:
        """Return the seconds per call for `n_streams` or the nearest number observed; 0 if there is none."""
        if not self._streams:
            return 0.0
        return self._streams[min(self._streams, key=lambda number: abs(number - n_streams))]

    @property
    def token_seconds(self) -> float:
        """Seconds per prompt token, as measured or else as predicted; 0 if unknown."""
        return self._many or self._expected or self._few or 0.0


def _even(n_tokens: int) -> int:
    """Round down to a number of rows that kernels compute efficiently: a multiple of 16 or 4."""
    for rows in (16, 4):
        if n_tokens >= 2 * rows:
            return n_tokens - n_tokens % rows
    return n_tokens


def _follow(old: float | None, new: float) -> float:
    """Return a moving average that adapts faster when calls get slower or when a stall ends."""
    if old is None:
        return new
    weight = 0.5 if new > old or new < old / 2 else 0.2
    return old + weight * (new - old)
