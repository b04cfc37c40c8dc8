"""A draft of a sequence's next tokens, and the counts of a request's drafts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from edgechat.engine.backends.base import Distribution
from edgechat.engine.types import SpeculationStats


@dataclass(slots=True)
class Draft:
    """Drafted tokens, and the drafter's confidence in each."""

    source: Source
    tokens: list[int] = field(default_factory=list)
    confidence: list[int] = field(default_factory=list)
    """The confidence class of each (see `acceptance.py`)."""
    distributions: list[Distribution] | None = None
    """What each was drawn from; None where they are guesses of what the target's sampler will choose."""

    def cut(self, length: int) -> None:
        """Keep the first tokens only."""
        del self.tokens[length:]
        del self.confidence[length:]
        if self.distributions is not None:
            del self.distributions[length:]


@dataclass(slots=True)
class Tally:
    """Counts of verified drafts and their tokens, and seconds of the steps that could draft."""

    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    seconds: float = 0.0
    plain_seconds: float = 0.0
    """What the same tokens would have taken one by one, at the present cost of steps."""
    won: dict[Source, float] = field(default_factory=dict)
    """What drafts have made less what they took, in steps of one token at their cost."""

    def stats(self) -> SpeculationStats | None:
        """Return what is reported with the reply; None if nothing was drafted."""
        if not self.drafts:
            return None
        return SpeculationStats(
            drafted_tokens=self.drafted,
            accepted_tokens=self.accepted,
            mean_length=self.drafted / self.drafts,
            speedup=self.plain_seconds / self.seconds if self.seconds > 0 else 1.0,
        )


Source = Literal["model", "mtp", "eagle3", "ngram"]

MOST: dict[Source, int] = {"model": 8, "mtp": 8, "eagle3": 8, "ngram": 15}
"""Tokens of the longest draft: copied text may match for long, what computes its draft diverges sooner."""
