"""Estimates for deciding what to draft: how often drafted tokens are accepted, and what a step costs.

Acceptance is tracked by confidence and by position. Confidence is divided into classes: by the token's
probability for drafters that run a model, and by the length of the match for n-grams. Old counts fade, so
that the estimates can follow a conversation that changes from prose to code. Options that are seldom tried
become uncertain, and are then tried again.

C(n) is the cost of a decode call with n rows: one for each stream and one for each drafted token. The curve
is jagged (kernels change at 4 and 8 rows), depends on the quantization and is nearly flat on a GPU. Decisions
depend on its shape, C(n) / C(1), which stays the same when the machine gets faster or slower. Level and shape
are therefore two unknowns, but each step reveals only the sum of their logarithms. A Kalman filter (Kalman
1960) estimates which of the two caused an unexpected result. Before anything has been observed, the shape is
modeled as a Brownian motion in log n around the prediction from the planner's kernel probe, so that observing
one n also provides information about its neighbors.
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

_FADING = 0.993  # factor applied to a count at each new observation, so that about the last 140 matter
_PRIOR = {"model": 0.6, "mtp": 0.7, "eagle3": 0.7, "ngram": 0.5}
_MATCH_PRIORS = (0.3, 0.3, 0.4, 0.5, 0.6, 0.75, 0.85, 0.9, 0.95)
"""Indexed by the match's class. After a long match, text is usually being copied."""
_PRIOR_N = 4.0  # weight of the prior, in observations


def class_of_probability(probability: float) -> int:
    """Return the class of a token to which a drafter assigns this probability."""
    return bisect(_PROBABILITIES, probability)


def class_of_match(length: int) -> int:
    """Return the class of a token that follows a match of `length` tokens."""
    return bisect(_MATCH_LENGTHS, length)


class AcceptanceCounts(msgspec.Struct):
    """Counts of verified and accepted tokens, by class or by position."""

    tried: list[float]
    stood: list[float]


class Acceptance:
    """Acceptance rates for drafts from one source."""

    def __init__(self, source: Source) -> None:
        self.source: Source = source
        self.by_class = _no_counts(CLASSES[source])
        self.by_position = _no_counts(LONGEST_DRAFT[source])

    def start_with(self, by_class: AcceptanceCounts, by_position: AcceptanceCounts) -> None:
        """Start with saved counts, at reduced weight."""
        for counts, stored in ((self.by_class, by_class), (self.by_position, by_position)):
            if len(stored.tried) != len(counts.tried) or len(stored.stood) != len(counts.stood):
                continue
            for index, (tried, stood) in enumerate(zip(stored.tried, stored.stood, strict=True)):
                if 0 < tried < math.inf and 0 <= stood <= tried:
                    weight = min(tried, 8.0) / tried
                    counts.tried[index], counts.stood[index] = weight * tried, weight * stood

    def of_class(self, index: int, *, optimistic: bool = False) -> float:
        """Return the probability that a token of this class is accepted, given that all before it are.

        optimistic: return an upper estimate. The fewer observations there are, the higher it is.
        """
        prior = _MATCH_PRIORS[index] if self.source == "ngram" else self._overall
        return _rate(self.by_class, index, prior, optimistic)

    def at_position(self, position: int, *, optimistic: bool = False) -> float:
        """Return the acceptance probability of a token not drafted yet at this position; see `of_class`."""
        return _rate(
            self.by_position, min(position, LONGEST_DRAFT[self.source] - 1), self._overall, optimistic
        )

    @property
    def _overall(self) -> float:
        counts = self.by_position
        return (sum(counts.stood) + _PRIOR_N * _PRIOR[self.source]) / (sum(counts.tried) + _PRIOR_N)

    def observe(self, classes: list[int], n_stood: int) -> None:
        """Learn from a verified draft whose first `n_stood` tokens were accepted."""
        for position, number in enumerate(classes[: n_stood + 1]):
            _count(self.by_class, number, position < n_stood)
            _count(self.by_position, position, position < n_stood)

    def fade(self, factor: float) -> None:
        """Reduce the weight of earlier observations."""
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
"""Largest number of rows to learn from. The cost of larger calls is extrapolated."""

# Standard deviations of logarithms, where 0.1 is about ten percent.
_NOISE = 0.08  # for the measured time of a step
_DRIFT = 0.04  # for the level, per step
_CHANGE = 0.002  # for the shape, per step, since the cache grows
_SHAPE_DEVIATION, _ROW_DEVIATION = 0.4, 0.2  # for the first guess: of C(e n) / C(n), and of each C(n) alone
_REMEMBERED = 0.05  # for a shape learned in another session
_UNKNOWN_LEVEL = 10.0
_OUTLIER = 4.0  # standard deviations beyond which a surprise is attributed to the level (a busy machine)

_FIRST_DEPTH = 512
_DEPTHS = 8  # ranges of the cache's depth: up to 512 tokens, up to 1024, up to 2048 ...

_GUESSED_SLOPE = 0.5  # cost of each additional row relative to C(1), while unknown
_LEAST_SLOPE = 0.01

Vector = npt.NDArray[np.float64]


Ratios = tuple[float, ...]
"""C(n) / C(1), for n from 1 to `LARGEST`."""


def expected_shapes(forecast: Forecast | None) -> tuple[Ratios, ...]:
    """Return a first guess of the curve for each depth of the cache."""
    rows = np.arange(1, LARGEST + 1)
    if forecast is None or not forecast.calls or forecast.calls[0] <= 0:
        return (tuple((1 + _GUESSED_SLOPE * (rows - 1)).tolist()),) * _DEPTHS
    least = 1 + _LEAST_SLOPE * (rows - 1)
    depths = [0, *(3 * _FIRST_DEPTH * 2**number // 4 for number in range(1, _DEPTHS))]
    calls = np.array([[forecast.call(n, depth) for n in rows.tolist()] for depth in depths])
    return tuple(tuple(np.maximum(one / one[0], least).tolist()) for one in calls)


class Shape(msgspec.Struct, frozen=True):
    """Estimate of the curve at one depth of the cache."""

    ratio: Ratios
    doubt: tuple[float, ...]
    """Standard deviation of the logarithm of each ratio."""


class StepCost:
    """Estimates how long steps take, in seconds."""

    def __init__(self, expected: Sequence[Ratios] = expected_shapes(None)) -> None:
        """expected: a first guess of the curve for each depth."""
        self._expected = expected
        self._filters: dict[int, _Filter] = {}
        self._depth = 0
        self._filter = self._filters[0] = _Filter.guessed(expected[0])

    @property
    def level(self) -> float:
        """Seconds that a step with one row currently takes; 0 before the first step."""
        return self._filter.level

    @property
    def shapes(self) -> dict[int, Shape]:
        """The learned estimates, keyed by depth."""
        return {depth: filter_.shape() for depth, filter_ in self._filters.items() if filter_.level}

    def start_with(self, shapes: dict[int, Shape]) -> None:
        """Start with saved estimates, at reduced confidence."""
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
        """Return how long a step with n rows takes, in seconds."""
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
        """Learn from a step with n rows."""
        if 0 < n <= LARGEST and seconds > 0:
            self._filter.observe(n, seconds)


class _Filter:
    """Logarithms of the level (index 0) and of the shape (index n), with their covariance."""

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
        """Return a first estimate for another depth. change: the expected change in the logarithms."""
        filter_ = _Filter(self.mean + np.concatenate([[0.0], change]), self.spread.copy())
        filter_.level = self.level
        filter_.spread[2:, 2:] += np.diag(np.full(LARGEST - 1, _REMEMBERED**2))
        return filter_

    def restart(self, level: float) -> None:
        """Use the level measured at another depth."""
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
    """Return whether a shape read from a file is plausible."""
    if len(shape.ratio) != LARGEST or len(shape.doubt) != LARGEST or shape.ratio[0] != 1.0:
        return False
    return all(0.1 < ratio < 1000 for ratio in shape.ratio) and all(0 <= ratio < 10 for ratio in shape.doubt)
