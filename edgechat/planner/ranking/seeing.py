"""A model to go on with: one that sees images, where the present one does not, or one that is here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edgechat.base.text import one_line
from edgechat.models.local.locations import Place
from edgechat.planner.listing import ModelRow
from edgechat.planner.ranking.ranked_file import Verdict
from edgechat.planner.ranking.survey import SurveyOverview


@dataclass(frozen=True, slots=True)
class StandIn:
    """A model that fits, and can answer instead."""

    name: str
    is_here: bool
    """Whether it is on this machine; if not, it would be downloaded."""
    what: str = "sees images"
    """What speaks for it."""

    @property
    def sentence(self) -> str:
        """What to tell about it."""
        where = "and is on this machine" if self.is_here else "and can be downloaded"
        return f"{one_line(self.name, 60)} {self.what}, {where}."


def seeing_model(
    inventory: Callable[[], Sequence[ModelRow]], overview: Callable[[Sequence[ModelRow]], SurveyOverview]
) -> StandIn | None:
    """Return the local model that was used last, or else the best of the catalogue; None if none fits.

    inventory, overview: see `edgechat.tui.models.library`; the second one, which may take seconds, is called
    only where the first one is not enough.
    """
    rows = inventory()
    seeing = [row for row in rows if "vision" in row.glance.modalities and not row.glance.damage]
    for row in seeing:
        if row.fits:
            return StandIn(row.model.chat_name, is_here=True)
    rated = overview(rows)
    for row in seeing:  # perhaps it fits on a GPU
        option = rated.local.get(row.model.path)
        if option is not None and option.verdict is not Verdict.TOO_LARGE:
            return StandIn(row.model.chat_name, is_here=True)
    for option in rated.found.options:
        entry = option.variant.entry
        if entry is not None and entry.vision and option.verdict is not Verdict.TOO_LARGE:
            return StandIn(entry.name, is_here=False)
    return None


def local_model(rows: Sequence[ModelRow]) -> StandIn | None:
    """Return the local model that was used last and fits, the guide only where there is no other; or None.

    rows: of this machine, most recently used first.
    """
    fitting = [row.model for row in rows if row.fits and not row.glance.damage and row.glance.kind == "chat"]
    fitting.sort(key=lambda model: model.place is Place.SHIPPED)
    return StandIn(fitting[0].chat_name, is_here=True, what="fits") if fitting else None
