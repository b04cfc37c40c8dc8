"""How often drafted tokens stand, learnt from those that were verified, by their confidence and position.

Confidence comes in classes: of what computes its draft by the probability of its token, of an n-gram
by the length of the match that it continues. Counts fade, so that a conversation that turns from prose to
code is followed; what is seldom tried becomes unknown again, and is tried once more.
"""

from __future__ import annotations

import math
from bisect import bisect

import msgspec

from edgechat.engine.scheduling.draft import MOST, Source

_PROBABILITIES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97)
_MATCH_LENGTHS = (2, 3, 4, 6, 8, 12, 16, 24)
CLASSES: dict[Source, int] = dict.fromkeys(MOST, len(_PROBABILITIES) + 1) | {"ngram": len(_MATCH_LENGTHS) + 1}

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
        self.by_position = _no_counts(MOST[source])

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
        return _rate(self.by_position, min(position, MOST[self.source] - 1), self._overall, optimistic)

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
