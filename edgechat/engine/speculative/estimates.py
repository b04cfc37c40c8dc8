"""Estimates that decide about drafts: how often drafted tokens are accepted, and what a step costs.

Acceptance is learnt by confidence and position. Confidence comes in classes: for a drafter that computes, of
its token's probability; for n-grams, of the length of the match. Counts fade, so that a conversation that
turns from prose to code is followed, and what is seldom tried becomes unknown and is tried again.

C(n) is the cost of a decode call of n rows: one for each stream, and its drafts. The curve is jagged (kernels
change at 4 and 8 rows), differs by quantization and is nearly flat on a GPU. Its shape, C(n) over C(1),
decides, and stays while the machine is now faster, now slower. So level and shape are two unknowns, and each
step shows only the sum of their logarithms: a Kalman filter (Kalman 1960) tells which of them a surprise is
due to. Before anything is observed, the shape is a Brownian motion in log n around what the planner's probe
of the kernels predicts: an observation of one n says something about its neighbours.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from edgechat.engine.types import LONGEST_DRAFT, Source
from edgechat.planner.estimate.speed import Forecast

_PROBABILITIES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97)
_MATCH_LENGTHS = (2, 3, 4, 6, 8, 12, 16, 24)
CLASSES: dict[Source, int] = dict.fromkeys(LONGEST_DRAFT, len(_PROBABILITIES) + 1) | {
    "ngram": len(_MATCH_LENGTHS) + 1
}

_FADING = 0.993  # factor of a count with each new observation: about the last 140 matter
_PRIOR = {"model": 0.6, "mtp": 0.7, "eagle3": 0.7, "ngram": 0.5}
_MATCH_PRIORS = (0.3, 0.3, 0.4, 0.5, 0.6, 0.75, 0.85, 0.9, 0.95)
"""By class of a match: text that has matched for long is being copied."""
_PRIOR_N = 4.0  # observations that the prior counts as


def class_of_probability(probability: float) -> int:
    """Return the class of a token that a drafter gives this probability."""
    return bisect(_PROBABILITIES, probability)


def class_of_match(length: int) -> int:
    """Return the class of a token that continues a match of so many tokens."""
    return bisect(_MATCH_LENGTHS, length)


class AcceptanceCounts(msgspec.Struct):
    """What was tried and what stood, of each class and each position."""

    tried: list[float]
    stood: list[float]


class Acceptance:
    """How often the drafts of one source stand."""

    def __init__(self, source: Source) -> None:
        self.source: Source = source
        self.by_class = _no_counts(CLASSES[source])
        self.by_position = _no_counts(LONGEST_DRAFT[source])

    def start_with(self, by_class: AcceptanceCounts, by_position: AcceptanceCounts) -> None:
        """Start with what was learnt earlier, at less weight."""
        for counts, stored in ((self.by_class, by_class), (self.by_position, by_position)):
            if len(stored.tried) != len(counts.tried) or len(stored.stood) != len(counts.stood):
                continue
            for index, (tried, stood) in enumerate(zip(stored.tried, stored.stood, strict=True)):
                if 0 < tried < math.inf and 0 <= stood <= tried:
                    weight = min(tried, 8.0) / tried
                    counts.tried[index], counts.stood[index] = weight * tried, weight * stood

    def of_class(self, index: int, *, optimistic: bool = False) -> float:
        """Return how likely a token of this class stands if those before it do.

        optimistic: an upper estimate, the higher the less is known of it.
        """
        prior = _MATCH_PRIORS[index] if self.source == "ngram" else self._overall
        return _rate(self.by_class, index, prior, optimistic)

    def at_position(self, position: int, *, optimistic: bool = False) -> float:
        """Return the same for a token that is not drafted yet, `position` others before it."""
        return _rate(
            self.by_position, min(position, LONGEST_DRAFT[self.source] - 1), self._overall, optimistic
        )

    @property
    def _overall(self) -> float:
        counts = self.by_position
        return (sum(counts.stood) + _PRIOR_N * _PRIOR[self.source]) / (sum(counts.tried) + _PRIOR_N)

    def observe(self, classes: list[int], n_stood: int) -> None:
        """Learn from a verified draft, the first `n_stood` tokens of which stood."""
        for position, number in enumerate(classes[: n_stood + 1]):
            _count(self.by_class, number, position < n_stood)
            _count(self.by_position, position, position < n_stood)

    def fade(self, factor: float) -> None:
        """Reduce the weight of what was learnt, as time passes."""
        for counts in (self.by_class, self.by_position):
            counts.tried = [factor * n for n in counts.tried]
            counts.stood = [factor * n for n in counts.stood]


def _no_counts(n: int) -> AcceptanceCounts:
    return AcceptanceCounts([0.0] * n, [0.0] * n)


def _rate(counts: AcceptanceCounts, at: int, overall: float, optimistic: bool) -> float:
    n = counts.tried[at] + _PRIOR_N
    rate = (counts.stood[at] + _PRIOR_N * overall) / n
    if optimistic:
        rate += math.sqrt((rate * (1 - rate) + 0.02) / n)
    return min(rate, 0.995)


def _count(counts: AcceptanceCounts, at: int, stood: bool) -> None:
    counts.tried[at] = _FADING * counts.tried[at] + 1
    counts.stood[at] = _FADING * counts.stood[at] + stood


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
