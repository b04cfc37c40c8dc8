"""A line of the models screen: a local model, one that is being downloaded, or one that could be."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from edgechat.base.text import figure, rough
from edgechat.models.formats.header import senses
from edgechat.planner.ranking.ranking import Verdict

if TYPE_CHECKING:
    from edgechat.models.catalogue import CatalogueEntry
    from edgechat.models.remote.listing import RemoteRow
    from edgechat.planner.listing import ModelRow
    from edgechat.planner.plan import LoadPlan
    from edgechat.planner.ranking.ranking import RankedFile
    from edgechat.tui.models.pull import Pull


BEST = "★"
"""Marks what is recommended."""


class ModelGroup(Enum):
    """Where a model is; the values are the headings."""

    DOWNLOADING = "Downloading"
    NOT_DOWNLOADED = "Not downloaded"
    HERE = "On this machine"
    HOSTED = "On other servers"
    REMOTE = "For download"
    HUB = "On the hub"


@dataclass(frozen=True, slots=True)
class ModelItem:
    """What is known of a model so far."""

    key: str
    group: ModelGroup
    name: str
    """What to chat with or to pull, as users type it."""
    quant: str | None = None
    size: int = 0
    """Bytes; 0 while unknown."""
    entry: CatalogueEntry | None = None
    row: ModelRow | None = None
    """Of a local model."""
    option: RankedFile | None = None
    """None until it was compared with this machine."""
    is_measured: bool = False
    """Whether its speed was measured in earlier loads, and is not a prediction."""
    is_loaded: bool = False
    """Whether an edgechat has it in memory now, which its verdict would count as taken by others."""
    is_best: bool = False
    """Whether it is recommended."""
    pull: Pull | None = None
    hosted: RemoteRow | None = None
    """Of a model of another server."""
    gone: str = ""
    """Why a server, which the name then is, tells no models."""

    @property
    def damage(self) -> str:
        """Why its file cannot be loaded; empty if it can."""
        return self.row.glance.damage if self.row is not None else ""

    @property
    def verdict(self) -> str:
        """One or two words on how it fits; empty while unknown."""
        if self.damage:
            return "damaged"
        if self.group is ModelGroup.HOSTED:
            return "no answer" if self.gone else "ready"
        if self.is_loaded:
            return "in use"
        if self.option is not None:
            return self.option.verdict.label
        if self.row is not None:
            return "fits" if self.row.fits else "too large"
        return ""

    @property
    def is_too_large(self) -> bool:
        """Whether it would not fit now, as far as is known."""
        return self.option is not None and self.option.verdict is Verdict.TOO_LARGE and not self.is_loaded

    @property
    def plan(self) -> LoadPlan | None:
        """How it would be loaded; None while unknown, or if it does not fit."""
        return self.option.plan if self.option is not None else None

    @property
    def speed(self) -> float | None:
        """Tokens per second."""
        if self.hosted is not None:
            return self.hosted.speed.decode_tps if self.hosted.speed is not None else None
        plan = self.plan
        return plan.predicted.decode_tps if plan is not None and plan.predicted is not None else None

    @property
    def senses(self) -> str:
        """What it does besides reading text, 'sees and hears'; of a local one with what is beside it."""
        if self.hosted is not None:
            return "sees" if self.hosted.model.sees else ""
        if self.row is not None:
            return senses(self.row.glance.modalities)
        return senses(self.entry.modalities) if self.entry is not None else ""

    @property
    def missing_senses(self) -> str:
        """What it would do with its projector, which another pull would bring."""
        return senses(self.row.model.missing_modalities) if self.row is not None else ""

    @property
    def survey_name(self) -> str:
        """The name under which all quantizations of the model are compared with this machine."""
        if self.entry is not None:
            return self.entry.name
        return self.row.model.full_name if self.row is not None else self.name

    @property
    def searchable_text(self) -> str:
        """What the filter searches, case-folded."""
        parts = [self.name, self.quant or "", self.verdict, self.senses]
        if self.entry is not None:
            parts += [*self.entry.names, self.entry.description, self.entry.licence]
        if self.row is not None:
            parts.append(self.row.model.where)
        return " ".join(parts).casefold()


def speed(tps: float | None, *, is_measured: bool = False) -> str:
    """Return tokens per second as text: '~8' if predicted, '8.4' if measured."""
    if tps is None:
        return ""
    return figure(tps) if is_measured else rough(tps)
