"""Pulling: chooses which model to download for a given name, and downloads it.

    decided = decide(parse_request("qwen3-8b"))  # asks the hub, reads a header, examines this machine
    bring(decided, observer)  # downloads what is missing

The choice is made before the download, among the files in one or more repositories. Catalogue models are
planned with the headers that ship with edgechat. Besides these, only the chosen file's own header is
read; if it differs from the shipped one, the file is planned again.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from edgechat import settings
from edgechat.base import paths
from edgechat.base.errors import (
    DoesNotFit,
    EdgechatError,
    HubError,
    HubUnreachable,
    ModelFileError,
    ModelNotFound,
    NotADraft,
    OfflineMode,
    RateLimited,
)
from edgechat.models.choices import ModelChoice, RemoteFile
from edgechat.models.formats.header import Format, Modality, ModelHeader, ModelKind
from edgechat.models.formats.mtp import can_draft
from edgechat.models.formats.quants import canonical
from edgechat.models.hub.cache import HubStore, check_space
from edgechat.models.hub.download import DownloadObserver, FetchedFile, download
from edgechat.models.hub.listing import RemoteModel, resolve_remote
from edgechat.models.local.resolve import local_files, resolve
from edgechat.models.request import ModelRequest, matching_choices, parse_request
from edgechat.models.shipped import mlx_header_of, shipped_header
from edgechat.planner.candidates import (
    Variant,
    of_choices,
    remote_head,
    remote_projector,
    runnable,
    weighs_mlx,
)
from edgechat.planner.estimate.dry_run import DryRun
from edgechat.planner.estimate.rates import COMMON
from edgechat.planner.machine import (
    LARGE,
    Machine,
    current_profile,
    in_words,
    machine_for,
)
from edgechat.planner.placement.drafting import AUTO, MTP, NGRAM, NONE, asks_for_drafts
from edgechat.planner.placement.plan_model import check_head, drafted, without_draft
from edgechat.planner.plan import LoadPlan
from edgechat.planner.ranking.ranking import RankedFile, choose, first_that_fits, rate, rated
from edgechat.planner.request import PlanRequest, with_settings
from edgechat.settings import Backend

_DRAFT_QUANTS = ("Q8_0", "Q4_K_M", "Q4_0")
"""Preferred quantizations for a draft model without a recommended one."""


@dataclass(frozen=True, slots=True)
class RepoSource:
    """A hub repository, and the models requested from it."""

    want: ModelRequest
    remote: RemoteModel
    choices: tuple[ModelChoice, ...]


@dataclass(frozen=True, slots=True)
class PullPart:
    """A model to download: the requested one, or its draft model."""

    source: RepoSource
    choice: ModelChoice
    projector: RemoteFile | None = None
    """The model's projector, which is downloaded as well."""
    head: RemoteFile | None = None
    """The model's separate drafting layers (MTP), which are downloaded as well."""

    @property
    def files(self) -> tuple[RemoteFile, ...]:
        """The model's files, then its companions' files, even though companions are linked first."""
        return (*self.choice.files, *filter(None, (self.projector, self.head)))

    @property
    def model_path(self) -> Path:
        """The path of the model once it is downloaded: its first file, or the folder of an MLX model."""
        first = self.path(self.choice.files[0])
        return first.parent if self.choice.format == "mlx" else first

    @property
    def store(self) -> HubStore:
        """The repository's folder in the cache."""
        return HubStore(self.source.remote.listing)

    def path(self, file: RemoteFile) -> Path:
        """Return the path of a file once it is downloaded."""
        return _own_copy(self.source.want, file) or self.store.path(file)

    def missing(self) -> tuple[RemoteFile, ...]:
        """Return the files that are missing from this machine."""
        own = [file for file in self.files if _own_copy(self.source.want, file)]
        return tuple(file for file in self.files if file not in own and not self.store.is_here(file))

    def needed(self) -> int:
        """Return how many bytes are left to download."""
        left = (file for file in self.missing() if not self.store.has_bytes(file))
        return sum(file.size - self.store.n_kept(file) for file in left)

    @property
    def name(self) -> str:
        """The model's name after the download, from the catalogue or the hub, or else its path."""
        path, want, quant = self.model_path, self.source.want, self.choice.quant
        for name in (want.name, f"{want.name}:{quant}", f"{want.hub.repo}:{quant}", want.hub.repo):
            with contextlib.suppress(EdgechatError, OSError):
                if resolve(name).path.samefile(path):
                    return name
        return str(path)


@dataclass(frozen=True, slots=True)
class DownloadChoice:
    """The model chosen for download."""

    part: PullPart
    machine: str
    """The machine in words."""
    plan: LoadPlan | None = None
    """The plan for the model; None if it does not fit."""
    why_not: str = ""
    """Why the model does not fit."""
    instead: str | None = None
    """The name of a catalogue model that would fit instead."""
    draft: PullPart | None = None
    no_draft: str = ""
    """Why there is no draft model, even though the user asked for one."""
    modalities: tuple[Modality, ...] = ()
    """The kinds of input that the projector can read."""
    no_vision: str = ""
    """Why the projector in the repository is not used."""


@dataclass(frozen=True, slots=True)
class PullDecision:
    """What to download, as returned by `decide`."""

    parts: tuple[PullPart, ...]
    """The model, followed by its draft model if there is one."""
    missing: tuple[tuple[RemoteFile, ...], ...]
    """The files that are missing from each part."""
    picked: DownloadChoice | None = None
    """The choice and its plan; None if the hub could not be reached but everything is on this machine."""

    @property
    def no_draft(self) -> str:
        """Why there is no draft model, even though the user asked for one."""
        return self.picked.no_draft if self.picked is not None else ""

    @property
    def no_vision(self) -> str:
        """Why the projector in the repository is not used."""
        return self.picked.no_vision if self.picked is not None else ""

    @property
    def fits(self) -> bool:
        """Whether the model fits on this machine, as far as is known."""
        return self.picked is None or self.picked.plan is not None

    @property
    def kind(self) -> ModelKind:
        """The kind of model, as far as is known."""
        entry, plan = self.parts[0].source.want.entry, self.picked.plan if self.picked is not None else None
        return plan.kind if plan is not None else entry.kind if entry is not None else "chat"

    @property
    def total(self) -> int:
        """Total size of the missing files in bytes."""
        return sum(file.size for files in self.missing for file in files)


@dataclass(frozen=True, slots=True)
class LocalModelEntry:
    """A catalogue model on this machine whose repository could not be listed."""

    want: ModelRequest
    quant: str
    path: Path


def decide(
    want: ModelRequest,
    *,
    draft: str | None = None,
    backend: Backend | None = None,
    vision: bool = True,
    tell: Callable[[str], None] = lambda _what: None,
) -> PullDecision | LocalModelEntry:
    """Decide what to download. `tell` is called with progress messages.

    draft: 'auto', 'none', 'mtp', 'ngram' or a model's name; None for the value in settings.toml, or 'auto'.
    backend: must match `want`; None for the best one on this machine. vision: include the model's projector.
    Raises HubError, ModelNotFound, ModelFileError, BackendMissing or SettingsError; also NotADraft or
    DoesNotFit if 'mtp' was requested and the model cannot draft with its own layers.
    """
    config = settings.load()
    wish = draft or (config.draft if config.draft in (NONE, NGRAM, MTP) else AUTO)
    request = with_settings(PlanRequest(draft=wish, backend=backend, vision=vision), config)
    wants = _wants(want, request)
    try:
        sources = _sources(wants, config.offline, tell)
    except (HubUnreachable, OfflineMode, RateLimited) as error:
        return _without_hub(wants, error)
    if sources[0].remote.unasked is not None:
        return _from_memory(sources, sources[0].remote.unasked, vision=vision)
    tell("inspecting this machine and the model's header")
    picked = _pick(sources, want, request, insists=draft is not None, offline=config.offline)
    parts = (picked.part,) if picked.draft is None else (picked.part, picked.draft)
    return PullDecision(parts, tuple(part.missing() for part in parts), picked)


def _wants(want: ModelRequest, request: PlanRequest) -> list[ModelRequest]:
    """Return the repositories to consider, of which a catalogue model may have several."""
    entry = want.entry
    if entry is None or want.quant is not None or want.hub.revision is not None or not entry.mlx:
        return [want]
    for_mlx = [parse_request(entry.name, label, format="mlx") for label in entry.mlx]
    if not weighs_mlx(current_profile(), request):
        return [want]
    alone = want.format == "mlx" or request.prefers == "mlx"
    return for_mlx if alone else [want, *for_mlx]


def bring(
    decided: PullDecision, observer: DownloadObserver, stop: threading.Event | None = None
) -> tuple[tuple[FetchedFile, ...], ...]:
    """Download the missing files, and return the files of each part. `stop`: see `download`.

    Raises DiskError if there is not enough disk space; also HubError and DownloadStopped.
    """
    check_space(sum(part.needed() for part in decided.parts))
    return tuple(
        tuple(download(part.source.remote.listing, files, part.source.want.revision, observer, stop))
        if files
        else ()
        for part, files in zip(decided.parts, decided.missing, strict=True)
    )


def _sources(wants: Sequence[ModelRequest], offline: bool, tell: Callable[[str], None]) -> list[RepoSource]:
    """List repositories on the hub. If none can be listed, raises the first error."""
    sources: list[RepoSource] = []
    failure: HubError | ModelNotFound | None = None
    for want in wants:
        tell(f"asking the hub for {want.hub.repo}")
        try:
            sources.append(_source(want, offline))
        except (HubError, ModelNotFound) as error:
            failure = failure or error
    if failure is not None and not sources:
        raise failure
    return sources


def _source(want: ModelRequest, offline: bool) -> RepoSource:
    remote = resolve_remote(want.hub, offline=offline)
    return RepoSource(want, remote, matching_choices(want, remote))


def _draft(wish: str, want: ModelRequest, format: Format, offline: bool) -> tuple[RepoSource | None, str]:
    """Return the repository of a draft model in the given format, or None and the reason, which may be ''."""
    if wish in (NONE, NGRAM, MTP):
        return None, ""
    if wish != AUTO:
        return _source(parse_request(wish, format=format), offline), ""
    if want.entry is None or want.entry.draft is None:
        return None, (want.entry.no_draft if want.entry else None) or ""
    try:
        return _source(parse_request(want.entry.draft, format=format), offline), ""
    except (HubError, ModelNotFound) as error:
        return None, f"Its draft model, {want.entry.draft}, is not available. {error.message}"


def _begun(source: RepoSource, choice: ModelChoice) -> int:
    """Return 2 for a model on this machine, 1 for a partially downloaded one, and 0 otherwise."""
    part = PullPart(source, choice)
    if any(file.digest is None for file in choice.files):
        return 0
    # Small files such as tokenizers may belong to another model.
    small = sum(file.size for file in choice.files if file.sha256 is None)
    return 2 if not part.needed() else 1 if part.needed() < choice.total_bytes - small else 0


def _projector(source: RepoSource, choice: ModelChoice) -> RemoteFile | None:
    """Return the projector with the most bytes already downloaded, or else the best one.

    Returns None for a model in edgechat's own folder, as its projector would have to be there too.
    """
    if any(_own_copy(source.want, file) for file in choice.files):
        return None
    store = PullPart(source, choice).store
    usable = [file for file in choice.projectors if file.digest is not None]
    return max(
        usable, key=lambda file: file.size if store.has_bytes(file) else store.n_kept(file), default=None
    )


def _without_hub(wants: Sequence[ModelRequest], why: HubError) -> LocalModelEntry:
    """Return the catalogue model that is on this machine. Raises `why` if there is none."""
    by_format = {want.format: want for want in wants}
    files = local_files(wants[0].entry) if wants[0].entry else {}
    for quant, path in files.items():
        want = by_format.get("mlx" if path.is_dir() else "gguf")
        if want is not None and want.quant in (None, quant):
            return LocalModelEntry(want, quant, path)
    raise why


def _from_memory(sources: Sequence[RepoSource], why: HubError, *, vision: bool) -> PullDecision:
    """Return a complete local model whose repository cannot be reached. Raises `why` if there is none."""
    for source in sources:
        for choice in source.choices:
            part = PullPart(source, choice)
            if not part.missing():
                seeing = PullPart(source, choice, _projector(source, choice) if vision else None)
                return PullDecision((part if seeing.missing() else seeing,), missing=((),))
    raise why


def _own_copy(want: ModelRequest, file: RemoteFile) -> Path | None:
    """Return the path of a catalogue file that the user copied into edgechat's own folder, or None."""
    if want.entry is None or want.format == "mlx":
        return None
    path = paths.data_dir() / "models" / file.name.rpartition("/")[2]
    return path if path.is_file() and path.stat().st_size == file.size else None


def _pick(
    sources: Sequence[RepoSource], want: ModelRequest, request: PlanRequest, *, insists: bool, offline: bool
) -> DownloadChoice:
    """Choose a model from the repositories.

    Of the models with the best verdict, the one with the most bytes from an earlier download wins. The draft
    model is added if it fits as well. Unless requested, it must also be much smaller, and the model must not
    have its own drafting layers (MTP). insists: see `with_draft`. Raises NotADraft, DoesNotFit, HubError,
    ModelFileError, BackendMissing or SettingsError.
    """
    with DryRun() as dry:
        large = any(choice.total_bytes >= LARGE for source in sources for choice in source.choices)
        machine = machine_for(dry, workers=request.workers or (), types=COMMON if large else ())
        variants: list[Variant] = []
        origins: dict[int, tuple[RepoSource, ModelChoice]] = {}
        for source in sources:
            for variant, choice in _variants(source):
                variants.append(variant)
                origins[id(variant)] = source, choice
        options = rated(runnable(variants, machine.profile, request), machine, request)
        described = in_words(machine.profile)
        chosen = _chosen(options, request, lambda option: _begun(*origins[id(option.variant)]))
        if chosen is None:
            smallest = min(options, key=lambda option: option.variant.size)
            fitting = first_that_fits(machine, request)
            instead = fitting.variant.model if fitting else None
            source, choice = origins[id(smallest.variant)]
            part = PullPart(source, choice)
            return DownloadChoice(part, described, why_not=smallest.why_not, instead=instead)
        source, choice = origins[id(chosen.variant)]
        header = source.remote.header(choice)
        variant = replace(chosen.variant, header=lambda: header)
        file = _projector(source, choice) if request.vision else None
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
        part = PullPart(source, choice, file if projector is not None else None)
        picked = DownloadChoice(part, described, chosen.plan, chosen.why_not, no_vision=no_vision)
        if projector is not None:
            picked = replace(picked, modalities=projector.header.modalities)
        if picked.plan is not None and request.draft == MTP and insists:
            check_head(picked.plan, variant)
        if picked.plan is not None and picked.plan.head is not None:
            return replace(picked, part=replace(part, head=drafting)) if picked.plan.draft else picked
        small, no_draft = _draft(request.draft or AUTO, want, choice.format, offline)
        if small is None:
            without_head = picked.plan.no_draft if picked.plan and request.draft == MTP else ""
            return replace(picked, no_draft=no_draft or without_head)
        return _drafted(picked, variant, machine, request, small)


def _replanned(chosen: RankedFile, again: RankedFile) -> RankedFile:
    """Return the choice with the plan based on the file's own header, keeping the earlier reasons."""
    plan, before = again.plan, chosen.plan
    if plan is not None and before is not None:
        n = max(0, len(before.reasons) - len(plan.reasons))
        reasons = (*before.reasons[:n], *plan.reasons)
        plan = msgspec.structs.replace(plan, reasons=reasons, alternatives=before.alternatives)
    return replace(chosen, plan=plan, why_not=again.why_not)


def _variants(source: RepoSource) -> list[tuple[Variant, ModelChoice]]:
    """Return the models whose headers ship with edgechat, or all models if there are none."""
    shipped = [pair for choice in source.choices if (pair := _shipped(source, choice)) is not None]
    return shipped or of_choices(source.remote, source.choices, source.want.name)


def _shipped(source: RepoSource, choice: ModelChoice) -> tuple[Variant, ModelChoice] | None:
    """Return a catalogue model whose header ships with edgechat, or None."""
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
    """Return the choice with the draft model added, if it fits as well."""
    if picked.plan is None or not picked.plan.ngrams:
        return replace(picked, no_draft=picked.plan.no_draft if picked.plan else "")
    choice, requested = _draft_of(source), asks_for_drafts(request.draft)
    try:
        header = source.remote.header(choice)
        small = Variant(source.want.name, choice.quant, choice.total_bytes, lambda: header)
        plan = drafted(picked.plan, variant, machine, request, small, requested=requested)
    except (DoesNotFit, HubError, ModelFileError, NotADraft) as error:
        if requested and isinstance(error, HubError | ModelFileError):
            raise
        return replace(picked, no_draft=error.message, plan=without_draft(picked.plan, error.message))
    draft = PullPart(source, choice) if plan.draft else None
    return replace(picked, draft=draft, no_draft=plan.no_draft, plan=plan)


def _draft_of(source: RepoSource) -> ModelChoice:
    entry = source.want.entry
    recommended = canonical(entry.quant) if entry and entry.quant else ""
    by_quant = {canonical(choice.quant or ""): choice for choice in source.choices}
    preferred = (by_quant[quant] for quant in (recommended, *_DRAFT_QUANTS) if quant in by_quant)
    return next(preferred, min(source.choices, key=lambda choice: choice.total_bytes))
