"""A draft: tokens that are guessed to come next in a sequence."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from edgechat.engine.sampling.sampler import Distribution

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
