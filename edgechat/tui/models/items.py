"""The lines of the models screen: what is here, what is on its way, and what can be pulled, as one list."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from edgechat.base.errors import ModelFileError
from edgechat.base.text import figure
from edgechat.models.hub.names import parse_model_name
from edgechat.models.shipped import shipped_size
from edgechat.planner.ranking.scoring import Verdict

if TYPE_CHECKING:
    from edgechat.models.catalogue import CatalogueEntry
    from edgechat.planner.listing import ModelRow
    from edgechat.planner.plan import LoadPlan
    from edgechat.planner.ranking.ranked_file import RankedFile
    from edgechat.planner.ranking.survey import SurveyFindings, SurveyOverview
    from edgechat.tui.models.pull import Pull


BEST = "★"
"""Marks what is recommended."""


class ModelGroup(Enum):
    """Where a model is, as the headings say it."""

    DOWNLOADING = "Downloading"
    HERE = "On this machine"
    REMOTE = "For download"
    HUB = "On the hub"


@dataclass(frozen=True, slots=True)
class ModelItem:
    """A line: what is known of a model by now."""

    key: str
    group: ModelGroup
    name: str
    """What to chat with or to pull, as a person types it."""
    quant: str | None = None
    size: int = 0
    """Bytes; 0 where nobody knows yet."""
    entry: CatalogueEntry | None = None
    row: ModelRow | None = None
    """Of a model that is here."""
    option: RankedFile | None = None
    """None until it was held against this machine."""
    is_measured: bool = False
    """Whether its speed is what earlier loads had, and not a prediction."""
    is_loaded: bool = False
    """Whether an edgechat has it in memory now, which its verdict would count as taken by others."""
    is_best: bool = False
    """Whether it is the one that is recommended."""
    pull: Pull | None = None

    @property
    def damage(self) -> str:
        """Why its file cannot be loaded; empty where nothing is wrong."""
        return self.row.glance.damage if self.row is not None else ""

    @property
    def verdict(self) -> str:
        """A word on how it fits; empty where that is not known yet."""
        if self.damage:
            return "damaged"
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
        large = self.option is not None and self.option.verdict is Verdict.TOO_LARGE
        return large and not self.is_loaded

    @property
    def plan(self) -> LoadPlan | None:
        """How it would be loaded; None where that is not known, or it does not fit."""
        return self.option.plan if self.option is not None else None

    @property
    def speed(self) -> float | None:
        """Tokens a second."""
        made = self.plan
        return made.predicted.decode_tps if made is not None and made.predicted is not None else None

    @property
    def asks(self) -> str:
        """The name by which all its quantizations are held against this machine."""
        if self.entry is not None:
            return self.entry.name
        return self.row.model.full_name if self.row is not None else self.name


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the screen was told so far."""

    rows: Sequence[ModelRow] = ()
    entries: Sequence[CatalogueEntry] = ()
    overview: SurveyOverview | None = None
    pulls: Sequence[Pull] = ()
    """Those of models that are not among the rows."""


def items(known: ModelFacts, wanted: str = "") -> list[ModelItem]:
    """Return the lines in their order, only those in which every word of `wanted` is found."""
    coming = {one.name for one in known.pulls}
    found = [*map(_coming, known.pulls), *_here(known), *_remote(known, coming)]
    words = wanted.casefold().split()
    matching = [one for one in found if all(word in _text(one) for word in words)]
    asked = parse_model_name(wanted.strip()) if not matching and "/" in wanted else None
    if asked is not None:
        return [ModelItem(f"hub:{wanted.strip()}", ModelGroup.HUB, wanted.strip())]
    return matching


def with_plan(item: ModelItem, survey: SurveyFindings | None) -> ModelItem:
    """Return the same with what a closer look at its model has found of this quantization."""
    if survey is None:
        return item
    size = item.row.model.size if item.row is not None else item.size
    chosen = survey.chosen
    near = [one for one in (chosen, *survey.options) if one is not None and one.quant == item.quant]
    same = [one for one in near if one.variant.size == size] or near
    return replace(item, option=same[0]) if same else item


def _coming(pull: Pull) -> ModelItem:
    return ModelItem(
        f"pull:{pull.name}:{pull.quant}", ModelGroup.DOWNLOADING, pull.name, pull.quant, pull=pull
    )


def _here(known: ModelFacts) -> Iterator[ModelItem]:
    held = known.overview
    for row in known.rows:
        model = row.model
        option = held.local.get(model.path) if held is not None else None
        yield ModelItem(
            key=f"here:{model.full_name}",
            group=ModelGroup.HERE,
            name=model.name,
            quant=row.quant,
            size=model.size,
            entry=model.entry,
            row=row,
            option=option,
            is_loaded=row.use is not None and row.use.is_loaded,
            is_measured=bool(held and option and row.use and held.has_measured(option)),
            is_best=bool(held and option and _is_best(held, option)),
        )


def _remote(known: ModelFacts, coming: set[str]) -> Iterator[ModelItem]:
    """Yield the models of the catalogue that are not here: best first, those that are too large last."""
    here = {row.model.entry.name for row in known.rows if row.model.entry is not None} | coming
    entries = {one.name: one for one in known.entries if one.quality is not None and one.name not in here}
    if known.overview is None:
        for entry in entries.values():
            yield ModelItem(
                f"hub:{entry.name}", ModelGroup.REMOTE, entry.name, entry.quant, _size(entry), entry
            )
        return
    for option in known.overview.found.options:
        one = entries.get(option.variant.model)
        if one is not None:
            yield ModelItem(
                key=f"hub:{one.name}",
                group=ModelGroup.REMOTE,
                name=one.name,
                quant=option.quant,
                size=option.variant.size,
                entry=one,
                option=option,
                is_best=_is_best(known.overview, option),
            )


def _size(entry: CatalogueEntry) -> int:
    with contextlib.suppress(ModelFileError):  # said by whoever holds it against the machine
        return shipped_size(entry, entry.quant or "") or 0
    return 0


def _is_best(held: SurveyOverview, option: RankedFile) -> bool:
    chosen = held.found.chosen
    if chosen is None or chosen.verdict is not Verdict.FITS:
        return False
    return (chosen.variant.model, chosen.quant) == (option.variant.model, option.quant)


def _text(item: ModelItem) -> str:
    parts = [item.name, item.quant or "", item.verdict]
    if item.entry is not None:
        parts += [*item.entry.names, item.entry.description, item.entry.licence]
    if item.row is not None:
        parts.append(item.row.model.place.value)
    return " ".join(parts).casefold()


def speed(tps: float | None, *, is_measured: bool = False) -> str:
    """Return tokens a second: '~8.4' where it is predicted, '8.4' where it was measured."""
    if tps is None:
        return ""
    return figure(tps) if is_measured else f"~{figure(tps)}"
