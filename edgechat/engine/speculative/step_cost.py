"""C(n): what a call of n tokens costs, n being the rows of a decode step: one for each stream, and drafts.

The curve is jagged (kernels change at 4 and 8 rows), differs by quantization and nearly flat on a GPU. What
decides is its shape, C(n) over C(1), which stays while the machine is now faster, now slower; so the shape is
learnt apart from the level. The level follows every step. A point of the shape learns where one step follows
another of a different size, since only then does the difference tell more than that the machine has changed.
"""

from __future__ import annotations

import math
from itertools import pairwise

import msgspec

from edgechat.planner.speed import Forecast

LARGEST = 32
"""Rows; larger calls are read off the curve's end."""

_LEVEL = 0.2
_OUTLIER = 3.0
"""A step that took so many times longer than expected says something about the machine alone."""
_LEAST_WEIGHT = 0.05
_SURE = 12
"""Observations by which a prior counts for nothing any more."""
_FIRST_DEPTH = 512
_DEPTHS = 8
"""Depths of the cache apart by a factor of two: up to 512 tokens, 1024, 2048 ..."""
_FEW_ROWS = 3.5
"""A row of a small batch costs so many times more than one of a large batch, on processors."""
_LEAST_SLOPE, _MOST_SLOPE = 0.02, 0.8


def slope_of(forecast: Forecast | None) -> float:
    """Return a first guess of how much a call grows with each row, over C(1), for a load not yet seen."""
    if forecast is None or forecast.decode <= 0:
        return 0.5
    return min(max(_FEW_ROWS * forecast.prefill / forecast.decode, _LEAST_SLOPE), _MOST_SLOPE)


class Shape(msgspec.Struct):
    """The curve at one depth of the cache."""

    ratio: list[float]
    """C(n) / C(1), at index n."""
    seen: list[float]
    """Observations of each."""


class StepCost:
    """What steps cost, in seconds."""

    def __init__(self, slope: float = 0.5) -> None:
        """slope: a first guess of how much a call grows with each row, over C(1)."""
        self.level = 0.0
        """Seconds of a step of one row at the depth of the last one; 0 where none was seen."""
        self._slope = slope
        self._shapes: dict[int, Shape] = {}
        self._depth = 0
        self._last = 0

    @property
    def shapes(self) -> dict[int, Shape]:
        """What was learnt, by depth."""
        return self._shapes

    def start_with(self, shapes: dict[int, Shape]) -> None:
        """Take what was learnt before, less sure of it."""
        for depth, one in shapes.items():
            sound = len(one.ratio) == len(one.seen) == LARGEST + 1 and all(
                math.isfinite(r) and 0.1 < r < 1000 for r in one.ratio
            )
            if sound and 0 <= depth < _DEPTHS:
                seen = [min(max(n, 0.0), _SURE / 2) for n in one.seen]
                self._shapes[depth] = Shape(list(one.ratio), seen)

    def at_depth(self, tokens: float) -> None:
        """Say how many tokens of the cache the next steps look back on."""
        depth = max(0, math.ceil(math.log2(max(tokens, 1) / _FIRST_DEPTH)))
        self._depth = min(depth, _DEPTHS - 1)

    def seconds(self, n: int) -> float:
        """Return the seconds of a step of n rows."""
        return self.level * self.ratio(n)

    def ratio(self, n: int) -> float:
        """Return C(n) / C(1)."""
        ratio = self._shape().ratio
        if n <= LARGEST:
            return ratio[n]
        return ratio[LARGEST] + (n - LARGEST) * (ratio[LARGEST] - ratio[LARGEST // 2]) / (LARGEST // 2)

    def doubt(self, n: int) -> float:
        """Return from 1 (nobody has seen it) to 0 how little is known of C(n)."""
        return 1.0 - min(self._shape().seen[min(n, LARGEST)] / _SURE, 1.0)

    def observe(self, n: int, seconds: float) -> None:
        """Learn from a step of n rows."""
        if n > LARGEST or seconds <= 0:
            return
        shape = self._shape()
        if self.level <= 0:
            self.level = seconds / shape.ratio[n]
        error = math.log(seconds / (self.level * shape.ratio[n]))
        is_outlier = abs(error) > math.log(_OUTLIER)
        if n > 1 and n != self._last and not is_outlier:
            weight = max(1 / (1 + shape.seen[n]), _LEAST_WEIGHT) * (0.8 if shape.seen[n] else 1.0)
            shape.ratio[n] *= math.exp(weight * error)
            shape.seen[n] += 1
            self._spread(shape, n)
            error *= 1 - weight
        elif n == 1:
            shape.seen[1] += 1
        self.level *= math.exp(_LEVEL * max(min(error, 1.0), -1.0))
        self._last = n

    def _spread(self, shape: Shape, n: int) -> None:
        """Draw what nobody has seen through the points that somebody has."""
        known = [i for i in range(1, LARGEST + 1) if shape.seen[i] or i == 1]
        for low, high in pairwise(known):
            for i in range(low + 1, high):
                part = (i - low) / (high - low)
                shape.ratio[i] = shape.ratio[low] + part * (shape.ratio[high] - shape.ratio[low])
        last = known[-1]
        slope = max((shape.ratio[last] - 1) / (last - 1), 0.0) if last > 1 else self._slope
        for i in range(last + 1, LARGEST + 1):
            shape.ratio[i] = shape.ratio[last] + (i - last) * slope

    def _shape(self) -> Shape:
        found = self._shapes.get(self._depth)
        if found is None:
            nearest = min(self._shapes, key=lambda depth: abs(depth - self._depth), default=None)
            if nearest is None:
                ratio = [1.0, *(1 + self._slope * (n - 1) for n in range(1, LARGEST + 1))]
                found = Shape(ratio, [0.0] * (LARGEST + 1))
            else:
                near = self._shapes[nearest]
                found = Shape(list(near.ratio), [min(n, 2.0) for n in near.seen])
            self._shapes[self._depth] = found
        return found
