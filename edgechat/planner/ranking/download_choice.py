"""What to download: of one repository, or of several, the model that suits this machine best.

It is judged before a byte of it comes. For the catalogue the headers that come with edgechat tell; the real
header is read of the one that is chosen, and where it says otherwise that one is planned again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import msgspec

from edgechat.base.errors import DoesNotFit, HubError, ModelFileError, NotADraft
from edgechat.models.choices import ModelChoice
from edgechat.models.formats.header import Format, ModelHeader
from edgechat.models.formats.quants import canonical
from edgechat.models.hub.listing import RemoteModel
from edgechat.models.request import ModelRequest
from edgechat.models.shipped import shipped_header
from edgechat.models.shipped_mlx import mlx_header_of
from edgechat.planner.draft_plan import drafted, without
from edgechat.planner.drafting import asks_for_drafts
from edgechat.planner.estimate.dry_run import DryRun
from edgechat.planner.machine import Machine, MachineDescription, in_words, machine_for
from edgechat.planner.placement.backends import runnable
from edgechat.planner.plan import LoadPlan
from edgechat.planner.plan_model import DraftCandidate
from edgechat.planner.ranking.candidates import Variant, of_choices
from edgechat.planner.ranking.ranked_file import RankedFile
from edgechat.planner.ranking.ranking import choose, first_that_fits, rate, rated
from edgechat.planner.request import PlanRequest

_DRAFT_QUANTS = ("Q8_0", "Q4_K_M", "Q4_0")
"""Of a draft that no catalogue recommends one for, the first that there is."""


@dataclass(frozen=True, slots=True)
class RepoSource:
    """A repository as the hub listed it, and the models in it that are meant."""

    want: ModelRequest
    remote: RemoteModel
    choices: tuple[ModelChoice, ...]


@dataclass(frozen=True, slots=True)
class DownloadChoice:
    """The model to download."""

    source: RepoSource
    """Where it is."""
    choice: ModelChoice
    machine: str
    """What it is planned for, in words."""
    plan: LoadPlan | None = None
    """None where it does not fit."""
    why_not: str = ""
    """Why it does not."""
    instead: str | None = None
    """Name of a model of the catalogue that does."""
    draft: tuple[RepoSource, ModelChoice] | None = None
    no_draft: str = ""
    """Why there is none although one was wanted."""


def pick(
    sources: Sequence[RepoSource],
    begun: Callable[[RepoSource, ModelChoice], int],
    draft_of: Callable[[Format], tuple[RepoSource | None, str]],
    request: PlanRequest,
) -> DownloadChoice:
    """Choose among the models of repositories.

    begun: how far an earlier download of one came; of two with the same verdict the one that came further is
    taken. draft_of: where the model is that drafts for one of a format, or why there is none; it is taken
    where it fits beside, and unless the wish names it only where it is much smaller. Raises HubError,
    ModelFileError, BackendMissing, SettingsError.
    """
    with DryRun() as dry:
        machine = machine_for(MachineDescription(), dry)
        files = {id(one): (one, source, choice) for source in sources for one, choice in _variants(source)}
        known = runnable([one for one, _, _ in files.values()], machine.profile, request)
        options = rated(known, machine, request)
        words = in_words(machine.profile)
        chosen = _chosen(options, request, lambda one: begun(*files[id(one.variant)][1:]))
        if chosen is None:
            least = min(options, key=lambda one: one.variant.size)
            found = first_that_fits(machine, request)
            instead = found.variant.model if found else None
            _, source, choice = files[id(least.variant)]
            return DownloadChoice(source, choice, words, why_not=least.why_not, instead=instead)
        _, source, choice = files[id(chosen.variant)]
        header = source.remote.header(choice)
        variant = replace(chosen.variant, header=lambda: header)
        if not _alike(header, chosen.variant.header()):
            chosen = _again(chosen, rate(variant, machine, request))
        picked = DownloadChoice(source, choice, words, chosen.plan, chosen.why_not)
        small, no_draft = draft_of(choice.format)
        if small is None:
            return replace(picked, no_draft=no_draft)
        return _drafted(picked, variant, machine, request, small)


def _again(chosen: RankedFile, again: RankedFile) -> RankedFile:
    """Return a choice as it is by the header of the file itself, with the reasons why it was made."""
    made, before = again.plan, chosen.plan
    if made is not None and before is not None:
        n = max(0, len(before.reasons) - len(made.reasons))
        reasons = (*before.reasons[:n], *made.reasons)
        made = msgspec.structs.replace(made, reasons=reasons, alternatives=before.alternatives)
    return replace(chosen, plan=made, why_not=again.why_not)


def _variants(source: RepoSource) -> list[tuple[Variant, ModelChoice]]:
    """Return what the planner may choose from: what headers are shipped of, or else all."""
    shipped = [one for one in map(partial(_shipped, source), source.choices) if one is not None]
    if shipped:
        return shipped
    return of_choices(source.remote, source.choices, source.want.name)


def _shipped(source: RepoSource, choice: ModelChoice) -> tuple[Variant, ModelChoice] | None:
    """Return a model of the catalogue whose header comes with edgechat, or about that; else None."""
    entry, size = source.want.entry, choice.total_bytes
    if entry is None:
        return None
    if choice.format == "mlx":
        labels = [label for label, repo in entry.mlx.items() if repo == source.want.hub.repo]
        quant = labels[0] if labels else choice.quant or ""
        header = mlx_header_of(entry, quant)
    else:
        quant = canonical(choice.quant or "")
        header = shipped_header(entry, quant)
    if header is None:
        return None
    known = replace(header, file_size=size)
    return Variant(entry.name, quant, size, lambda: known, entry=entry, format=choice.format), choice


def _chosen(
    options: Sequence[RankedFile], request: PlanRequest, begun: Callable[[RankedFile], int]
) -> RankedFile | None:
    best = choose(options, request)
    if best is None or best.plan is None:
        return None
    before = [one for one in options if one.verdict is best.verdict and begun(one)]
    if not before:
        return best
    first = max(before, key=lambda one: (begun(one), one.rank))
    if first.variant is best.variant or first.plan is None:
        return best
    how = "is already on this machine" if begun(first) > 1 else "is partly downloaded"
    reason = f"{first.variant.quant or 'This one'} {how}, and is just as suitable. To choose another: --quant"
    return replace(first, plan=msgspec.structs.replace(first.plan, reasons=(reason, *first.plan.reasons)))


def _alike(one: ModelHeader, other: ModelHeader) -> bool:
    """Say whether two headers make the same plan."""
    if one is other:
        return True
    shapes = [[(tensor.name, tensor.shape, tensor.type) for tensor in h.tensors] for h in (one, other)]
    return one.architecture == other.architecture and sorted(shapes[0]) == sorted(shapes[1])


def _drafted(
    picked: DownloadChoice,
    variant: Variant,
    machine: Machine,
    request: PlanRequest,
    source: RepoSource,
) -> DownloadChoice:
    """Return the same with the draft, where it fits beside."""
    if picked.plan is None or not picked.plan.ngrams:
        return replace(picked, no_draft=picked.plan.no_draft if picked.plan else "")
    choice, asked = _draft_of(source), asks_for_drafts(request.draft)
    try:
        its = source.remote.header(choice)
        beside = DraftCandidate(source.want.name, its, machine.measuring(its), asked=asked)
        made = drafted(picked.plan, variant, machine, request, beside)
    except (DoesNotFit, HubError, ModelFileError, NotADraft) as error:
        if asked and isinstance(error, HubError | ModelFileError):
            raise
        return replace(picked, no_draft=error.message, plan=without(picked.plan, error.message))
    draft = (source, choice) if made.draft else None
    return replace(picked, draft=draft, no_draft=made.no_draft, plan=made)


def _draft_of(source: RepoSource) -> ModelChoice:
    entry = source.want.entry
    recommended = canonical(entry.quant) if entry and entry.quant else ""
    by_quant = {canonical(one.quant or ""): one for one in source.choices}
    found = (by_quant[one] for one in (recommended, *_DRAFT_QUANTS) if one in by_quant)
    return next(found, min(source.choices, key=lambda one: one.total_bytes))
