"""C(n): what a call of n tokens costs, n being the rows of a decode step: one for each stream, and drafts.

The curve is jagged (kernels change at 4 and 8 rows), differs by quantization and is nearly flat on a GPU. Its
shape, C(n) over C(1), is what decides, and it stays while the machine is now faster, now slower. So level and
shape are two unknowns, of which every step shows the sum only (of their logarithms): a Kalman filter (Kalman
1960) knows which of them a surprise speaks of. Before anything is seen the shape is a Brownian motion in
log n around what the planner's probe of the kernels lets expect: what is seen of one n tells something of its
neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from edgechat.planner.estimate.speed import Forecast

LARGEST = 32
"""Rows; larger calls are read off the curve's end."""

# All of logarithms; 0.1 is about ten percent.
_NOISE = 0.08  # of a step
_DRIFT = 0.04  # of the level, from one step to the next
_CHANGE = 0.002  # of the shape, from one step to the next: the cache grows
_SHAPE_DEVIATION, _ROW_DEVIATION = 0.4, 0.2  # of the first guess: C(e n) over C(n), and each n by itself
_REMEMBERED = 0.05  # of a shape that was learnt in another session
_UNKNOWN_LEVEL = 10.0
_OUTLIER = 4.0  # standard deviations beyond which a surprise is the level's: the machine is busy

_FIRST_DEPTH = 512
_DEPTHS = 8  # depths of the cache apart by a factor of two: up to 512 tokens, 1024, 2048 ...

_GUESSED_SLOPE = 0.5  # how much a call grows with each row, over C(1), where nothing is known
_LEAST_SLOPE = 0.01

Vector = npt.NDArray[np.float64]


Ratios = tuple[float, ...]
"""C(n) over C(1), of n from 1 to `LARGEST`."""


def expected_shapes(forecast: Forecast | None) -> tuple[Ratios, ...]:
    """Return a first guess of the curve at each depth of the cache, for a load not yet seen."""
    rows = np.arange(1, LARGEST + 1)
    if forecast is None or not forecast.calls or forecast.calls[0] <= 0:
        return (tuple((1 + _GUESSED_SLOPE * (rows - 1)).tolist()),) * _DEPTHS
    least = 1 + _LEAST_SLOPE * (rows - 1)
    depths = [0, *(3 * _FIRST_DEPTH * 2**number // 4 for number in range(1, _DEPTHS))]
    calls = np.array([[forecast.call(n, depth) for n in rows.tolist()] for depth in depths])
    return tuple(tuple(np.maximum(one / one[0], least).tolist()) for one in calls)


class Shape(msgspec.Struct, frozen=True):
    """What is known of the curve at one depth of the cache."""

    ratio: Ratios
    doubt: tuple[float, ...]
    """The standard deviation of its logarithm."""


class StepCost:
    """What steps cost, in seconds."""

    def __init__(self, expected: Sequence[Ratios] = expected_shapes(None)) -> None:
        """expected: a first guess of the curve at each depth."""
        self._expected = expected
        self._filters: dict[int, _Filter] = {}
        self._depth = 0
        self._filter = self._filters[0] = _Filter.guessed(expected[0])

    @property
    def level(self) -> float:
        """Seconds of a step of one row now; 0 where nothing was seen."""
        return self._filter.level

    @property
    def shapes(self) -> dict[int, Shape]:
        """What was learnt, by depth."""
        return {depth: filter_.shape() for depth, filter_ in self._filters.items() if filter_.level}

    def start_with(self, shapes: dict[int, Shape]) -> None:
        """Start with what was learnt earlier, less sure of it."""
        for depth, shape in shapes.items():
            if 0 <= depth < _DEPTHS and _is_sound(shape):
                self._filters[depth] = _Filter.remembered(shape, self.level)
        self._filter = self._filters.get(self._depth, self._filter)

    def at_depth(self, tokens: float) -> None:
        """Set the number of tokens in the cache for the next steps."""
        depth = max(0, math.ceil(math.log2(max(tokens, 1) / _FIRST_DEPTH)))
        depth = min(depth, _DEPTHS - 1)
        if depth == self._depth:
            return
        if depth not in self._filters:
            change = np.log(self._expected[depth]) - np.log(self._expected[self._depth])
            self._filters[depth] = self._filter.nearby(change)
        level, self._depth, self._filter = self.level, depth, self._filters[depth]
        self._filter.restart(level)

    def seconds(self, n: int) -> float:
        """Return the seconds of a step of n rows."""
        return self.level * self.ratio(n)

    def ratio(self, n: int) -> float:
        """Return C(n) / C(1)."""
        ratio = self._filter.ratio
        if n <= LARGEST:
            return ratio[n]
        return ratio[LARGEST] + (n - LARGEST) * max(ratio[LARGEST] - ratio[LARGEST // 2], 0) / (LARGEST // 2)

    def least_ratio(self, n: int) -> float:
        """Return a lower estimate of C(n) / C(1)."""
        at = min(n, LARGEST)
        return self.ratio(n) * math.exp(-math.sqrt(max(self._filter.spread[at, at], 0.0)))

    def observe(self, n: int, seconds: float) -> None:
        """Learn from a step of n rows."""
        if 0 < n <= LARGEST and seconds > 0:
            self._filter.observe(n, seconds)


class _Filter:
    """The level, at index 0, and the shape, at index n: logarithms, and how they vary together."""

    def __init__(self, mean: Vector, spread: npt.NDArray[np.float64]) -> None:
        self.mean, self.spread = mean, spread
        self.level = 0.0
        self.ratio: list[float] = []
        self._update_ratio()

    @classmethod
    def guessed(cls, expected: Ratios) -> _Filter:
        rows = np.arange(1, LARGEST + 1)
        mean = np.concatenate([[0.0], np.log(expected)])
        spread = np.zeros((LARGEST + 1, LARGEST + 1))
        spread[1:, 1:] = _SHAPE_DEVIATION**2 * np.minimum.outer(np.log(rows), np.log(rows))
        spread[2:, 2:] += np.diag(np.full(LARGEST - 1, _ROW_DEVIATION**2))
        spread[0, 0] = _UNKNOWN_LEVEL**2
        return cls(mean, spread)

    @classmethod
    def remembered(cls, shape: Shape, level: float) -> _Filter:
        mean = np.concatenate([[0.0], np.log(shape.ratio)])
        doubt = np.array([_UNKNOWN_LEVEL, 0.0, *shape.doubt[1:]])
        doubt[2:] = np.sqrt(np.minimum(doubt[2:], 1.0) ** 2 + _REMEMBERED**2)
        filter_ = cls(mean, np.diag(doubt**2))
        filter_.restart(level)
        return filter_

    def nearby(self, change: Vector) -> _Filter:
        """Return a first estimate for another depth. change: of the logarithms, as expected."""
        filter_ = _Filter(self.mean + np.concatenate([[0.0], change]), self.spread.copy())
        filter_.level = self.level
        filter_.spread[2:, 2:] += np.diag(np.full(LARGEST - 1, _REMEMBERED**2))
        return filter_

    def restart(self, level: float) -> None:
        """Take over the level of another depth."""
        if level > 0:
            self.mean[0], self.level = math.log(level), level
            self.spread[0, :] = self.spread[:, 0] = 0.0
            self.spread[0, 0] = 1.0

    def observe(self, n: int, seconds: float) -> None:
        self.spread[0, 0] += _DRIFT**2
        self.spread.flat[2 * (LARGEST + 2) :: LARGEST + 2] += _CHANGE**2  # the diagonal from n = 2 on
        surprise = math.log(seconds) - float(self.mean[0] + self.mean[n])
        variance = float(self.spread[0, 0] + 2 * self.spread[0, n] + self.spread[n, n]) + _NOISE**2
        if surprise**2 > _OUTLIER**2 * variance:
            self.spread[0, 0] += surprise**2
            variance += surprise**2
        shown = self.spread[:, 0] + self.spread[:, n]
        gain = shown / variance
        self.mean += gain * surprise
        self.spread -= np.outer(gain, shown)
        self._update_ratio()
        self.level = math.exp(self.mean[0])

    def _update_ratio(self) -> None:
        self.ratio = [1.0, *np.exp(self.mean[1:]).tolist()]

    def shape(self) -> Shape:
        doubt = np.sqrt(np.maximum(self.spread.diagonal()[1:], 0.0))
        return Shape(tuple(self.ratio[1:]), tuple(doubt.tolist()))


def _is_sound(shape: Shape) -> bool:
    """Say whether a shape that was read from a file is plausible."""
    if len(shape.ratio) != LARGEST or len(shape.doubt) != LARGEST or shape.ratio[0] != 1.0:
        return False
    return all(0.1 < ratio < 1000 for ratio in shape.ratio) and all(0 <= ratio < 10 for ratio in shape.doubt)
