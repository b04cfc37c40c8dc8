"""What speculation did for one request."""

from __future__ import annotations

from dataclasses import dataclass

from edgechat.engine.types import SpeculationStats


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
