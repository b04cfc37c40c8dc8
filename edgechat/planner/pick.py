"""What to download of a repository: the model that suits this machine best, judged before a byte of it comes.

For the catalogue the headers that come with edgechat tell; the real header is read of the one that is chosen,
and where it says otherwise that one is planned again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import msgspec

from edgechat import settings
from edgechat.errors import DoesNotFit, HubError, ModelFileError, NotADraft
from edgechat.models.choices import ModelChoice
from edgechat.models.header import ModelHeader
from edgechat.models.hub import RemoteModel
from edgechat.models.quants import canonical
from edgechat.models.shipped import shipped_header
from edgechat.models.wanted import Wanted
from edgechat.planner.beside import drafted, without
from edgechat.planner.choose import Draft
from edgechat.planner.drafting import asks_for_drafts
from edgechat.planner.dryrun import DryRun
from edgechat.planner.learned import Learned
from edgechat.planner.machine import Described, Machine, look
from edgechat.planner.option import Option
from edgechat.planner.plan import LoadPlan
from edgechat.planner.prepare import settled
from edgechat.planner.select import choose, rate
from edgechat.planner.survey import first_that_fits, in_words, measured, rated
from edgechat.planner.variants import Variant
from edgechat.planner.wishes import Wishes

_DRAFT_QUANTS = ("Q8_0", "Q4_K_M", "Q4_0")
"""Of a draft that no catalogue recommends one for, the first that there is."""


@dataclass(frozen=True, slots=True)
class Source:
    """A repository as the hub listed it, and the models in it that are meant."""

    want: Wanted
    remote: RemoteModel
    choices: tuple[ModelChoice, ...]


@dataclass(frozen=True, slots=True)
class Picked:
    """The model to download."""

    choice: ModelChoice
    machine: str
    """What it is planned for, in words."""
    plan: LoadPlan | None = None
    """None where it does not fit."""
    why_not: str = ""
    """Why it does not."""
    instead: str | None = None
    """Name of a model of the catalogue that does."""
    draft: ModelChoice | None = None
    no_draft: str = ""
    """Why there is none although one was wanted."""


def pick(
    source: Source, begun: Callable[[ModelChoice], int], draft: Source | None = None, wish: str | None = None
) -> Picked:
    """Choose among the models of a repository.

    begun: how far an earlier download of one came; of two with the same verdict the one that came further is
    taken. draft: where the model that drafts for it is; it is taken where it fits beside, and unless the wish
    names it only where it is much smaller. Raises HubError, ModelFileError, SettingsError.
    """
    wishes = settled(Wishes(draft=wish), settings.load())
    with (
        DryRun() as dry,
        Machine(measured(look(dry), Described()), history=Learned.read(), dry=dry) as machine,
    ):
        files = {id(one): (one, choice) for one, choice in _variants(source)}
        options = rated([one for one, _ in files.values()], machine, wishes)
        words = in_words(machine.profile)
        chosen = _chosen(options, wishes, lambda one: begun(files[id(one.variant)][1]))
        if chosen is None:
            least = min(options, key=lambda one: one.variant.size)
            found = first_that_fits(machine, wishes)
            instead = found.variant.model if found else None
            return Picked(files[id(least.variant)][1], words, why_not=least.why_not, instead=instead)
        choice = files[id(chosen.variant)][1]
        header = source.remote.header(choice)
        if not _alike(header, chosen.variant.header()):
            again = rate(chosen.variant, machine, wishes, header)
            chosen = replace(chosen, plan=again.plan, why_not=again.why_not)
        picked = Picked(choice, words, chosen.plan, chosen.why_not)
        return _drafted(picked, chosen.variant, header, machine, wishes, draft) if draft else picked


def _variants(source: Source) -> list[tuple[Variant, ModelChoice]]:
    """Return what the planner may choose from: what headers are shipped of, or else all."""
    entry = source.want.entry
    shipped: list[tuple[Variant, ModelChoice]] = []
    for choice in source.choices if entry else ():
        assert entry is not None
        quant = canonical(choice.quant or "")
        header = shipped_header(entry, quant)
        if header is not None:
            known = replace(header, file_size=choice.total_bytes)
            one = Variant(entry.name, quant, choice.total_bytes, partial(_itself, known), entry=entry)
            shipped.append((one, choice))
    if shipped:
        return shipped
    several = len({one.quant for one in source.choices}) < len(source.choices)
    return [
        (
            Variant(
                choice.name if several else source.want.name,
                choice.quant,
                choice.total_bytes,
                partial(source.remote.header, choice),
            ),
            choice,
        )
        for choice in sorted(source.choices, key=lambda one: one.total_bytes)
    ]


def _itself(header: ModelHeader) -> ModelHeader:
    return header


def _chosen(options: Sequence[Option], wishes: Wishes, begun: Callable[[Option], int]) -> Option | None:
    best = choose(options, wishes)
    if best is None or best.plan is None:
        return None
    before = [one for one in options if one.verdict is best.verdict and begun(one)]
    if not before:
        return best
    first = max(before, key=lambda one: (begun(one), one.rank))
    if first.variant is best.variant or first.plan is None:
        return best
    how = "is here already" if begun(first) > 1 else "was begun before"
    reason = f"{first.variant.quant or 'This one'} {how}, and is as fit; --quant takes another one."
    return replace(first, plan=msgspec.structs.replace(first.plan, reasons=(reason, *first.plan.reasons)))


def _alike(one: ModelHeader, other: ModelHeader) -> bool:
    """Say whether two headers make the same plan."""
    if one is other:
        return True
    shapes = [[(tensor.name, tensor.shape, tensor.type) for tensor in h.tensors] for h in (one, other)]
    return one.architecture == other.architecture and sorted(shapes[0]) == sorted(shapes[1])


def _drafted(
    picked: Picked, variant: Variant, header: ModelHeader, machine: Machine, wishes: Wishes, source: Source
) -> Picked:
    """Return the same with the draft, where it fits beside."""
    if picked.plan is None or not picked.plan.ngrams:
        return replace(picked, no_draft=picked.plan.no_draft if picked.plan else "")
    choice, asked = _draft_of(source), asks_for_drafts(wishes.draft)
    try:
        its = source.remote.header(choice)
        beside = Draft(source.want.name, its, machine.measuring(its), asked=asked)
        made = drafted(picked.plan, variant, header, machine, wishes, beside)
    except (DoesNotFit, HubError, ModelFileError, NotADraft) as error:
        if asked and isinstance(error, HubError | ModelFileError):
            raise
        return replace(picked, no_draft=error.message, plan=without(picked.plan, error.message))
    return replace(picked, draft=choice if made.draft else None, no_draft=made.no_draft, plan=made)


def _draft_of(source: Source) -> ModelChoice:
    entry = source.want.entry
    recommended = canonical(entry.quant) if entry and entry.quant else ""
    by_quant = {canonical(one.quant or ""): one for one in source.choices}
    found = (by_quant[one] for one in (recommended, *_DRAFT_QUANTS) if one in by_quant)
    return next(found, min(source.choices, key=lambda one: one.total_bytes))
