"""A pull: the decision what to download for a model name, and the download.

decided = decide(parse_request("qwen3-8b"))     asks the hub, reads a header, examines this machine
bring(decided, observer)                 downloads what is missing
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgechat import settings
from edgechat.base import paths
from edgechat.base.errors import (
    EdgechatError,
    HubError,
    HubUnreachable,
    ModelNotFound,
    OfflineMode,
    RateLimited,
)
from edgechat.models.choices import ModelChoice, RemoteFile
from edgechat.models.formats.header import Format, ModelKind
from edgechat.models.hub.cache import HubStore, check_space
from edgechat.models.hub.download import DownloadObserver, FetchedFile, download
from edgechat.models.hub.listing import resolve_remote
from edgechat.models.local.resolve import local_files, resolve
from edgechat.models.request import ModelRequest, matching_choices, parse_request
from edgechat.planner.drafting import AUTO, MTP, NGRAM, NONE
from edgechat.planner.machine import current_profile
from edgechat.planner.placement.backends import weighs_mlx
from edgechat.planner.ranking.download_choice import DownloadChoice, RepoSource, pick
from edgechat.planner.request import PlanRequest, with_settings
from edgechat.settings import Backend


@dataclass(frozen=True, slots=True)
class PullPart:
    """A model to download: the requested one, or its draft model."""

    source: RepoSource
    choice: ModelChoice
    projector: RemoteFile | None = None
    """What comes with it, to make pictures or sound readable for it."""
    head: RemoteFile | None = None
    """Its drafting layers in a file of their own (MTP), which come with it too."""

    @property
    def files(self) -> tuple[RemoteFile, ...]:
        """Its files, and what comes with it: last, and so is linked into the cache first."""
        return (*self.choice.files, *filter(None, (self.projector, self.head)))

    @property
    def model_path(self) -> Path:
        """Where the model is, or will be: its first file, or the folder of one for MLX."""
        first = self.path(self.choice.files[0])
        return first.parent if self.choice.format == "mlx" else first

    @property
    def store(self) -> HubStore:
        """The folder of its repository in the cache."""
        return HubStore(self.source.remote.listing)

    def path(self, file: RemoteFile) -> Path:
        """Return where a file is, or will be."""
        return _own_copy(self.source.want, file) or self.store.path(file)

    def missing(self) -> tuple[RemoteFile, ...]:
        """Return the files that are not in their places now."""
        own = [file for file in self.files if _own_copy(self.source.want, file)]
        return tuple(file for file in self.files if file not in own and not self.store.is_here(file))

    def needed(self) -> int:
        """Return the bytes that have to come."""
        left = (file for file in self.missing() if not self.store.has_bytes(file))
        return sum(file.size - self.store.n_kept(file) for file in left)

    @property
    def name(self) -> str:
        """How to refer to it once it is here: its name in the catalogue or on the hub, else its path."""
        path, want, quant = self.model_path, self.source.want, self.choice.quant
        for name in (want.name, f"{want.name}:{quant}", f"{want.hub.repo}:{quant}", want.hub.repo):
            with contextlib.suppress(EdgechatError, OSError):
                if resolve(name).path.samefile(path):
                    return name
        return str(path)


@dataclass(frozen=True, slots=True)
class PullDecision:
    """What a pull brings."""

    parts: tuple[PullPart, ...]
    """The model, and its draft where one comes too."""
    missing: tuple[tuple[RemoteFile, ...], ...]
    """The files of each part that were not here."""
    picked: DownloadChoice | None = None
    """The choice with its plan; None where the hub could not be asked, and all is here."""
    no_draft: str = ""
    """Why no draft comes although one was wanted."""

    @property
    def no_vision(self) -> str:
        """Why no projector comes although there is one."""
        return self.picked.no_vision if self.picked is not None else ""

    @property
    def fits(self) -> bool:
        """Whether this machine carries it, as far as anyone knows."""
        return self.picked is None or self.picked.plan is not None

    @property
    def kind(self) -> ModelKind:
        """What the model is made for, as far as anyone knows."""
        entry, plan = self.parts[0].source.want.entry, self.picked.plan if self.picked is not None else None
        return plan.kind if plan is not None else entry.kind if entry is not None else "chat"

    @property
    def total(self) -> int:
        """Bytes of the files that were not here."""
        return sum(file.size for files in self.missing for file in files)


@dataclass(frozen=True, slots=True)
class LocalModelEntry:
    """A model of the catalogue that is on this machine, while nothing is known of its repository."""

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
    """Return what a pull would download; `tell` is called with the progress.

    draft: 'auto', 'none', 'mtp', 'ngram' or the name of a model; None: as settings.toml says, else auto.
    backend: must match `want`; None: the one that suits this machine best. vision: the model's projector
    too, if it has one.
    Raises HubError, ModelNotFound, ModelFileError, BackendMissing, SettingsError; NotADraft or DoesNotFit
    where 'mtp' was requested and the model does not draft with layers of its own.
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
    picked = pick(
        sources,
        _begun,
        _projector,
        lambda format: _draft(wish, want, format, config.offline),
        request,
        insists=draft is not None,
    )
    parts = [PullPart(picked.source, picked.choice, picked.projector, picked.head)]
    if picked.draft is not None:
        parts.append(PullPart(*picked.draft))
    return PullDecision(tuple(parts), tuple(part.missing() for part in parts), picked, picked.no_draft)


def _wants(want: ModelRequest, request: PlanRequest) -> list[ModelRequest]:
    """Return the repositories to consider: a model of the catalogue may have several."""
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
    """Download what is missing; return the files of each part. `stop`: see `download`.

    Raises DiskError if there is not enough disk space; HubError, DownloadStopped.
    """
    check_space(sum(part.needed() for part in decided.parts))
    return tuple(
        tuple(download(part.source.remote.listing, files, part.source.want.revision, observer, stop))
        if files
        else ()
        for part, files in zip(decided.parts, decided.missing, strict=True)
    )


def _sources(wants: Sequence[ModelRequest], offline: bool, tell: Callable[[str], None]) -> list[RepoSource]:
    """Ask the hub for repositories. Raises the first error if none of them can be listed."""
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
    """Return the repository of the draft model, in the model's own format, or why there is none."""
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
    """Return 2 for a model that is on this machine, 1 for one that is partly downloaded, or 0."""
    part = PullPart(source, choice)
    if any(file.digest is None for file in choice.files):
        return 0
    # A tokenizer may be another model's as well.
    small = sum(file.size for file in choice.files if file.sha256 is None)
    return 2 if not part.needed() else 1 if part.needed() < choice.total_bytes - small else 0


def _projector(source: RepoSource, choice: ModelChoice) -> RemoteFile | None:
    """Return the projector to take: the best one, or that of which most is here already.

    None for a model in edgechat's own folder: it is found only if it lies there too.
    """
    if any(_own_copy(source.want, file) for file in choice.files):
        return None
    store = PullPart(source, choice).store
    usable = [file for file in choice.projectors if file.digest is not None]
    return max(
        usable, key=lambda file: file.size if store.has_bytes(file) else store.n_kept(file), default=None
    )


def _without_hub(wants: Sequence[ModelRequest], why: HubError) -> LocalModelEntry:
    """Return what is here of a model of the catalogue. Raises `why` where nothing is."""
    by_format = {want.format: want for want in wants}
    files = local_files(wants[0].entry) if wants[0].entry else {}
    for quant, path in files.items():
        want = by_format.get("mlx" if path.is_dir() else "gguf")
        if want is not None and want.quant in (None, quant):
            return LocalModelEntry(want, quant, path)
    raise why


def _from_memory(sources: Sequence[RepoSource], why: HubError, *, vision: bool) -> PullDecision:
    """Return what is here of repositories that cannot be asked now. Raises `why` where none is all here."""
    for source in sources:
        for choice in source.choices:
            part = PullPart(source, choice)
            if not part.missing():
                seeing = PullPart(source, choice, _projector(source, choice) if vision else None)
                return PullDecision((part if seeing.missing() else seeing,), missing=((),))
    raise why


def _own_copy(want: ModelRequest, file: RemoteFile) -> Path | None:
    """Return the file in edgechat's own folder, where a model of the catalogue may have been put by hand."""
    if want.entry is None or want.format == "mlx":
        return None
    path = paths.data_dir() / "models" / file.name.rpartition("/")[2]
    return path if path.is_file() and path.stat().st_size == file.size else None
