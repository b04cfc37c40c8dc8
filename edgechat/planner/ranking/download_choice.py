"""What to download: the model of one or several repositories that suits this machine best.

The choice is made before the download. For the catalogue it uses the headers that are shipped with edgechat;
only the chosen file's own header is read, and if it differs the file is planned again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec

from edgechat.base.errors import DoesNotFit, HubError, ModelFileError, NotADraft
from edgechat.models.choices import ModelChoice, RemoteFile
from edgechat.models.formats.header import Format, Modality, ModelHeader
from edgechat.models.formats.mtp import can_draft
from edgechat.models.formats.quants import canonical
from edgechat.models.hub.listing import RemoteModel
from edgechat.models.request import ModelRequest
from edgechat.models.shipped import mlx_header_of, shipped_header
from edgechat.planner.draft_plan import check_head, drafted, without_draft
from edgechat.planner.drafting import MTP, asks_for_drafts
from edgechat.planner.estimate.dry_run import DryRun
from edgechat.planner.estimate.kernel_probe import COMMON
from edgechat.planner.machine import LARGE, Machine, MachineDescription, in_words, machine_for
from edgechat.planner.placement.backends import runnable
from edgechat.planner.plan import LoadPlan
from edgechat.planner.plan_model import DraftCandidate
from edgechat.planner.ranking.candidates import Variant, of_choices, remote_head, remote_projector
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
    projector: RemoteFile | None = None
    """What makes pictures or sound readable for the model."""
    head: RemoteFile | None = None
    """The model's drafting layers in a file of their own, if they draft for it."""
    modalities: tuple[Modality, ...] = ()
    """Which of them it is for."""
    no_vision: str = ""
    """Why there is none although the repository has one."""


def pick(
    sources: Sequence[RepoSource],
    begun: Callable[[RepoSource, ModelChoice], int],
    projector_of: Callable[[RepoSource, ModelChoice], RemoteFile | None],
    draft_of: Callable[[Format], tuple[RepoSource | None, str]],
    request: PlanRequest,
    *,
    insists: bool = False,
) -> DownloadChoice:
    """Choose among the models of repositories.

    begun: how far an earlier download of a model came; of those with the best verdict the one that came
    furthest is taken. projector_of: which projector a model would get. draft_of: where the draft model for a
    format is, or why there is none; it is taken if it fits in addition, and, unless it was requested, is much
    smaller and the model does not draft by itself (MTP). insists: see `draft_plan.with_draft`.
    Raises NotADraft, DoesNotFit, HubError, ModelFileError, BackendMissing, SettingsError.
    """
    with DryRun() as dry:
        large = any(choice.total_bytes >= LARGE for source in sources for choice in source.choices)
        machine = machine_for(MachineDescription(), dry, request.workers or (), COMMON if large else ())
        variants: list[Variant] = []
        origins: dict[int, tuple[RepoSource, ModelChoice]] = {}
        for source in sources:
            for variant, choice in _variants(source):
                variants.append(variant)
                origins[id(variant)] = source, choice
        options = rated(runnable(variants, machine.profile, request), machine, request)
        described = in_words(machine.profile)
        chosen = _chosen(options, request, lambda option: begun(*origins[id(option.variant)]))
        if chosen is None:
            smallest = min(options, key=lambda option: option.variant.size)
            fitting = first_that_fits(machine, request)
            instead = fitting.variant.model if fitting else None
            source, choice = origins[id(smallest.variant)]
            return DownloadChoice(source, choice, described, why_not=smallest.why_not, instead=instead)
        source, choice = origins[id(chosen.variant)]
        header = source.remote.header(choice)
        variant = replace(chosen.variant, header=lambda: header)
        file = projector_of(source, choice) if request.vision else None
        projector, no_vision = remote_projector(source.remote, file, header) if file else (None, "")
        if choice.format == "mlx" and request.vision:
            projector, no_vision = variant.projector()
        variant = replace(variant, projector=lambda: (projector, no_vision))
        drafting = choice.heads[0] if choice.heads and not can_draft(header) else None
        head = remote_head(source.remote, drafting, header) if drafting is not None else (None, "")
        variant = replace(variant, head=lambda: head)
        changed = projector is not None or head[0] is not None
        if changed or not _makes_same_plan(header, chosen.variant.header()):
            chosen = _replanned(chosen, rate(variant, machine, request))
        picked = DownloadChoice(source, choice, described, chosen.plan, chosen.why_not, no_vision=no_vision)
        if projector is not None:
            picked = replace(picked, projector=file, modalities=projector.header.modalities)
        if picked.plan is not None and request.draft == MTP and insists:
            check_head(picked.plan, variant)
        if picked.plan is not None and picked.plan.head is not None:
            return replace(picked, head=drafting if picked.plan.draft is not None else None)
        small, no_draft = draft_of(choice.format)
        if small is None:
            without_head = picked.plan.no_draft if picked.plan and request.draft == MTP else ""
            return replace(picked, no_draft=no_draft or without_head)
        return _drafted(picked, variant, machine, request, small)


def _replanned(chosen: RankedFile, again: RankedFile) -> RankedFile:
    """Return the choice with the plan by the file's own header, and the reasons for choosing it."""
    plan, before = again.plan, chosen.plan
    if plan is not None and before is not None:
        n = max(0, len(before.reasons) - len(plan.reasons))
        reasons = (*before.reasons[:n], *plan.reasons)
        plan = msgspec.structs.replace(plan, reasons=reasons, alternatives=before.alternatives)
    return replace(chosen, plan=plan, why_not=again.why_not)


def _variants(source: RepoSource) -> list[tuple[Variant, ModelChoice]]:
    """Return the models whose headers are shipped with edgechat, or else all."""
    shipped = [pair for choice in source.choices if (pair := _shipped(source, choice)) is not None]
    return shipped or of_choices(source.remote, source.choices, source.want.name)


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
    partial = [option for option in options if option.verdict is best.verdict and begun(option)]
    first = max(partial, key=lambda option: (begun(option), option.rank), default=best)
    if first.variant is best.variant or first.plan is None:
        return best
    how = "is already on this machine" if begun(first) > 1 else "is partly downloaded"
    reason = f"{first.variant.quant or 'This one'} {how}, and is just as suitable. To choose another: --quant"
    return replace(first, plan=msgspec.structs.replace(first.plan, reasons=(reason, *first.plan.reasons)))


def _makes_same_plan(header: ModelHeader, other: ModelHeader) -> bool:
    if header is other:
        return True
    shapes = [[(tensor.name, tensor.shape, tensor.type) for tensor in h.tensors] for h in (header, other)]
    return header.architecture == other.architecture and sorted(shapes[0]) == sorted(shapes[1])


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
    choice, requested = _draft_of(source), asks_for_drafts(request.draft)
    try:
        header = source.remote.header(choice)
        candidate = DraftCandidate(source.want.name, header, machine.measuring(header), requested=requested)
        plan = drafted(picked.plan, variant, machine, request, candidate)
    except (DoesNotFit, HubError, ModelFileError, NotADraft) as error:
        if requested and isinstance(error, HubError | ModelFileError):
            raise
        return replace(picked, no_draft=error.message, plan=without_draft(picked.plan, error.message))
    draft = (source, choice) if plan.draft else None
    return replace(picked, draft=draft, no_draft=plan.no_draft, plan=plan)


def _draft_of(source: RepoSource) -> ModelChoice:
    entry = source.want.entry
    recommended = canonical(entry.quant) if entry and entry.quant else ""
    by_quant = {canonical(choice.quant or ""): choice for choice in source.choices}
    preferred = (by_quant[quant] for quant in (recommended, *_DRAFT_QUANTS) if quant in by_quant)
    return next(preferred, min(source.choices, key=lambda choice: choice.total_bytes))
