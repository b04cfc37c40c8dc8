"""A model that sees images, for a user whose model does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edgechat.base.text import one_line
from edgechat.planner.listing import ModelRow
from edgechat.planner.ranking.scoring import Verdict
from edgechat.planner.ranking.survey import SurveyOverview


@dataclass(frozen=True, slots=True)
class SeeingModel:
    """A model that sees and fits."""

    name: str
    is_here: bool
    """Whether it is on this machine; if not, it would be downloaded."""

    @property
    def sentence(self) -> str:
        """What to tell about it."""
        where = "and is on this machine" if self.is_here else "and can be downloaded"
        return f"{one_line(self.name, 60)} sees images, {where}."


def seeing_model(
    inventory: Callable[[], Sequence[ModelRow]], overview: Callable[[Sequence[ModelRow]], SurveyOverview]
) -> SeeingModel | None:
    """Return the local model that was used last, or else the best of the catalogue; None if none fits.

    inventory, overview: see `edgechat.tui.models.library`; the second one, which may take seconds, is called
    only where the first one is not enough.
    """
    rows = inventory()
    seeing = [row for row in rows if "vision" in row.glance.modalities and not row.glance.damage]
    for row in seeing:
        if row.fits:
            return SeeingModel(row.model.chat_name, is_here=True)
    rated = overview(rows)
    for row in seeing:  # perhaps it fits on a GPU
        option = rated.local.get(row.model.path)
        if option is not None and option.verdict is not Verdict.TOO_LARGE:
            return SeeingModel(row.model.chat_name, is_here=True)
    for option in rated.found.options:
        entry = option.variant.entry
        if entry is not None and entry.vision and option.verdict is not Verdict.TOO_LARGE:
            return SeeingModel(entry.name, is_here=False)
    return None
