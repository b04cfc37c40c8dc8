"""A controller that always drafts, with random lengths: the text must not depend on them."""

from __future__ import annotations

import random
from collections.abc import Sequence

from edgechat.engine.speculative.controller import Controller, DraftChoice, DraftOffer
from edgechat.engine.speculative.estimates import StepCost
from edgechat.engine.types import LONGEST_DRAFT, Source


class Always(Controller):
    """Drafts whether or not it pays."""

    def __init__(self, seed: int = 1, longest: int = 8) -> None:
        super().__init__(StepCost())
        self._random = random.Random(seed)
        self._longest = longest

    def begin(self, n_streams: int, depth: float) -> bool:
        """Return True."""
        super().begin(n_streams, depth)
        return True

    def may_lose(self, won: float, n_tokens: int) -> bool:
        """Return True."""
        return True

    def chances(self, classes: Sequence[int], source: Source) -> list[float]:
        """Return a value that is never used."""
        return [0.5] * len(classes)

    def prospects(self, source: Source, start: int = 0) -> list[float]:
        """Return the maximum length."""
        return [0.5] * (LONGEST_DRAFT[source] - start)

    def choose(self, offers: Sequence[Sequence[DraftOffer]], most: int) -> list[DraftChoice | None]:
        """Take a random one of each stream's offers, and a random part of it."""
        chosen: list[DraftChoice | None] = []
        for one in offers:
            offer = self._random.choice(one) if one else None
            longest = min(len(offer.chances), most, self._longest) if offer else 0
            length = self._random.randint(0, longest)
            most -= length
            chosen.append(DraftChoice(offer.source, length) if offer and length else None)
        return chosen

    def is_worth_drafting(
        self, source: Source, chances: Sequence[float], n_beside: int, longest: int
    ) -> bool:
        """Continue at random."""
        return self._random.random() < 0.8

    def is_worth_adding(self, source: Source, chances: Sequence[float], n_beside: int, longest: int) -> bool:
        """Accept every token."""
        return True

    def worth_verifying(self, chances: Sequence[float], n_beside: int) -> int:
        """Verify all tokens."""
        return len(chances)
