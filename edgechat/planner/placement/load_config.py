"""One way of loading a model: its parameters, where the layers lie, what that takes and how fast it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from edgechat.native.params import Breakdown, Buffer, LoadParams
from edgechat.planner.estimate.speed import Forecast
from edgechat.planner.placement.budget import RAM, Needs, together
from edgechat.planner.placement.layout import Layout
from edgechat.planner.placement.projector import ProjectorPlan

EXACT = "exact, by llama.cpp's own allocator"
Measure = Callable[[LoadParams], Breakdown]
"""What a load takes by llama.cpp's own account, or DryRunFailed: `DryRun.ask`."""


@dataclass(frozen=True, slots=True)
class LoadConfig:
    """One way of loading the model."""

    params: LoadParams
    layout: Layout
    needs: Mapping[str, Needs]
    """Of each memory: 'RAM' and the cards by name."""
    forecast: Forecast
    source: str
    """How we know what it takes, in words."""
    buffers: tuple[Buffer, ...] = ()
    """By type of buffer; empty where it is estimated."""
    draft: LoadConfig | None = None
    """Of the model that drafts for it; what that takes is in `needs` too."""
    projector: ProjectorPlan | None = None
    """Of the file that makes pictures or sound readable for it; what that takes is in `needs` too."""
    why_there: str = ""
    """Why that is where it is, as the end of a sentence."""

    @property
    def context(self) -> int:
        """Tokens, as llama.cpp rounds them."""
        return self.params.context

    @property
    def drafts(self) -> bool:
        """Whether there is room for drafts to verify."""
        return self.params.n_outputs_max > self.params.n_seq_max

    @property
    def total(self) -> int:
        """Bytes altogether."""
        return sum(needs.total for needs in self.needs.values())

    def keeping(self, n_bytes: int) -> LoadConfig:
        """Return this load with so many bytes of checkpoints, which lie in RAM wherever the cache does."""
        return replace(self, needs=together(self.needs, {RAM: Needs(checkpoints=n_bytes)}))

    def seeing(self, projector: ProjectorPlan, why_there: str = "") -> LoadConfig:
        """Return this load with a projector."""
        needs = together(self.needs, projector.needs)
        return replace(self, needs=needs, projector=projector, why_there=why_there)

    def beside(self, draft: LoadConfig) -> LoadConfig:
        """Return this load with that of a model that drafts for it."""
        return replace(self, needs=together(self.needs, draft.needs), draft=draft)
