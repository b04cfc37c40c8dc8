"""A draft: tokens that are guessed to come next in a sequence; and what such guesses did for a request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from edgechat.engine.backends.base import Distribution
from edgechat.engine.types import SpeculationStats

Source = Literal["model", "ngram"]

MOST: dict[Source, int] = {"model": 8, "ngram": 15}
"""Tokens of the longest draft: a copy of text may go on for long, a small model is soon astray."""


@dataclass(slots=True)
class Draft:
    """Guessed tokens, and how sure whoever guessed them is of each."""

    source: Source
    tokens: list[int] = field(default_factory=list)
    confidence: list[int] = field(default_factory=list)
    """The class of each (see `acceptance.py`)."""
    distributions: list[Distribution] | None = None
    """What each was drawn from; None where they are plain guesses of what the target's sampler will take."""

    def cut(self, length: int) -> None:
        """Keep the first tokens only."""
        del self.tokens[length:]
        del self.confidence[length:]
        if self.distributions is not None:
            del self.distributions[length:]


@dataclass(slots=True)
class Tally:
    """Counts of tokens, and seconds of the steps that could draft."""

    drafts: int = 0
    """Drafts that were verified."""
    drafted: int = 0
    accepted: int = 0
    seconds: float = 0.0
    plain_seconds: float = 0.0
    """What the same tokens would have taken one by one, by what such steps cost now."""

    def stats(self) -> SpeculationStats | None:
        """Return what users see of it; None where nothing was drafted."""
        if not self.drafts:
            return None
        return SpeculationStats(
            drafted_tokens=self.drafted,
            accepted_tokens=self.accepted,
            mean_length=self.drafted / self.drafts,
            speedup=self.plain_seconds / self.seconds if self.seconds > 0 else 1.0,
        )
