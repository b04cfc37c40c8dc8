"""Repositories on the hub: their files, and model headers read without downloading the models.

    remote = resolve_remote(parse_model_name("unsloth/Qwen3-4B-Instruct-2507-GGUF"), offline=False)
    for choice in remote.choices:
        remote.header(choice)

Listings and headers are cached for offline use.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, NoReturn

import msgspec
from msgspec import Meta

from edgechat.base.errors import (
    HubAnswerError,
    HubError,
    HubUnreachable,
    ModelNotFound,
    OfflineMode,
    RateLimited,
    RepoNotFound,
)
from edgechat.base.text import one_line
from edgechat.models.choices import ModelChoice, RemoteFile, RepoListing, model_choices
from edgechat.models.formats.header import ModelHeader
from edgechat.models.formats.projector import ProjectorHeader, projector_of
from edgechat.models.formats.quants import canonical
from edgechat.models.hub import remote_headers
from edgechat.models.hub.client import ask_hub
from edgechat.models.hub.endpoint import Endpoint, endpoint, nonsense, require_network
from edgechat.models.hub.names import HubName, portable_path, safe_path, valid_repo, valid_revision
from edgechat.models.hub.remote_headers import read_remote_contents, read_remote_header, read_remote_start
from edgechat.models.local.files import is_git_sha1

LIST_TIME_LIMIT = 20.0
"""Seconds allowed for a listing, which usually takes well under one second."""
MAX_LISTING = 8 << 20
"""Maximum size of a listing, in bytes. Each file takes up about three hundred bytes."""
MAX_FILES = 10_000
MAX_FILE_SIZE = 1 << 50

_Size = Annotated[int, Meta(ge=0, le=MAX_FILE_SIZE)]
_Sha256 = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
_Commit = Annotated[str, Meta(pattern=r"\A[0-9a-f]{40}\Z")]


class _Lfs(msgspec.Struct):
    sha256: _Sha256
    size: _Size


class _Sibling(msgspec.Struct):
    rfilename: str
    size: _Size | None = None
    lfs: _Lfs | None = None
    blob_id: str | None = msgspec.field(default=None, name="blobId")
    """Git's hash of the file or of its LFS pointer."""


class _Info(msgspec.Struct):
    """The fields used from the hub's response."""

    sha: _Commit
    siblings: Annotated[list[_Sibling], Meta(max_length=MAX_FILES)]
    gated: bool | str = False
    tags: list[str] = []


class _CachedListing(msgspec.Struct):
    info: _Info
    listed: float


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """A repository of models on the hub."""

    listing: RepoListing
    choices: tuple[ModelChoice, ...]
    """The models in the repository that match the name. There is at least one."""
    unasked: HubError | None = None
    """Why the hub could not be queried, or None. If set, the listing comes from the cache and dates from
    `listing.listed`, and only cached headers are available.
    """

    @property
    def repo(self) -> str:
        """'owner/name'."""
        return self.listing.repo

    def header(self, choice: ModelChoice) -> ModelHeader:
        """Return the part of a model's header needed for planning, without the tokenizer and the template.

        The first time, it is read from the hub: 8 MiB or more of a GGUF file, or about 100 KB of an MLX
        model (its config and tensor tables). Raises HubError, ModelFileError.
        """
        cached = remote_headers.cached_header(self.listing, choice)
        if cached is not None:
            return cached
        self._require_network(choice.name)
        if choice.format == "mlx":
            name = remote_headers.mlx_name(self.listing, choice)
            contents, header = read_remote_contents(self.listing, choice, name)
            remote_headers.store_contents(self.listing, choice, contents)
            return header
        header = read_remote_header(self.listing, choice)
        return remote_headers.store_header(self.listing, choice, header)

    def projector(self, file: RemoteFile) -> ProjectorHeader:
        """Return a projector's header, reading it from the hub the first time.

        Raises HubError, ModelFileError.
        """
        return projector_of(self.companion(file))

    def companion(self, file: RemoteFile) -> ModelHeader:
        """Return the header of a GGUF file that accompanies a model, reading it from the hub the first time.

        Raises HubError, ModelFileError.
        """
        header = remote_headers.cached_start(self.listing, file)
        if header is None:
            self._require_network(file.name)
            data, header = read_remote_start(self.listing, file)
            remote_headers.store_start(self.listing, file, data)
        return header

    def _require_network(self, name: str) -> None:
        """Raise HubError, stating the reason, if a file cannot be examined now."""
        what = f"{one_line(name)} of {self.repo} has not been examined before"
        if self.unasked is not None:
            raise type(self.unasked)(f"{what}. {self.unasked.message}", hint=self.unasked.hint)
        require_network(False, what)


def resolve_remote(name: HubName, *, offline: bool) -> RemoteModel:
    """Return the models that a name refers to on the hub, or in the cached listing if the hub fails.

    offline: whether to stay off the network, as HF_HUB_OFFLINE and EDGECHAT_OFFLINE also require. Raises
    HubError, and ModelNotFound if no model in the repository matches the name.
    """
    hub = endpoint()
    cached = _cached_listing(hub, name)
    try:
        require_network(offline, f"{name.repo} cannot be examined")
        listing, unasked = list_repo(name.repo, name.revision), None
    except (HubUnreachable, RateLimited, OfflineMode) as error:
        if cached is None:
            raise
        listing, unasked = cached, error
    return RemoteModel(listing, _choices_named(listing, name), unasked)


def list_repo(repo: str, revision: str | None) -> RepoListing:
    """Ask the hub for the files in a repository, and cache the response. Raises HubError.

    revision: a branch, tag or commit. None means the main branch.
    """
    require_network(False, f"{one_line(repo)} cannot be examined")
    if not valid_repo(repo) or (revision is not None and not valid_revision(revision)):
        raise RepoNotFound(
            f"{one_line(repo)} is not the name of a repository.", hint="Names have the form owner/name."
        )
    hub = endpoint()
    url = hub.info(repo, revision)
    body = ask_hub(hub, repo, LIST_TIME_LIMIT, lambda client: client.read(url, MAX_LISTING))
    try:
        info = msgspec.json.decode(body, type=_Info)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise nonsense(hub.url, f"sent an invalid listing of {repo}") from error
    cached = _CachedListing(info, time.time())
    listing = _listing(hub, repo, cached)
    remote_headers.store_listing(hub.url, repo, revision, msgspec.json.encode(cached))
    return listing


def _cached_listing(hub: Endpoint, name: HubName) -> RepoListing | None:
    data = remote_headers.cached_listing(hub.url, name.repo, name.revision)
    if data is None:
        return None
    try:
        return _listing(hub, name.repo, msgspec.json.decode(data, type=_CachedListing))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, HubAnswerError):
        return None


def _listing(hub: Endpoint, repo: str, cached: _CachedListing) -> RepoListing:
    """Return the listing in a response, omitting files whose names are invalid on some platforms.

    Raises HubAnswerError for duplicate or unsafe names.
    """
    files: list[RemoteFile] = []
    names = {sibling.rfilename for sibling in cached.info.siblings}
    if len(names) < len(cached.info.siblings):
        raise nonsense(hub.url, f"lists a file in {repo} twice")
    for sibling in cached.info.siblings:
        if not safe_path(sibling.rfilename):
            raise nonsense(
                hub.url, f"lists a file in {repo} with an unsafe name: {one_line(sibling.rfilename, 80)!a}"
            )
        if not portable_path(sibling.rfilename):
            continue
        size = sibling.lfs.size if sibling.lfs else sibling.size
        if size is not None:
            small = sibling.blob_id if sibling.lfs is None and is_git_sha1(sibling.blob_id or "") else None
            files.append(
                RemoteFile(sibling.rfilename, size, sibling.lfs.sha256 if sibling.lfs else None, small)
            )
    licences = [tag.removeprefix("license:") for tag in cached.info.tags if tag.startswith("license:")]
    licence = one_line(licences[0], 80) if licences else None
    gated = cached.info.gated not in (False, "", "false")
    return RepoListing(hub.url, repo, cached.info.sha, gated, licence, tuple(files), cached.listed)


def _choices_named(listing: RepoListing, name: HubName) -> tuple[ModelChoice, ...]:
    """Return the models in a listing that match a name. Raises ModelNotFound if there are none."""
    choices = model_choices(listing.files, listing.repo)
    if not choices:
        raise ModelNotFound(
            f"{listing.repo} contains no model that edgechat can run: neither a GGUF file nor an MLX model.",
            hint="Look for a repository whose name ends in -GGUF or, for a Mac, in -4bit.",
        )
    if name.file is not None:
        matches = tuple(choice for choice in choices if name.file in choice.file_names)
        return matches or _raise_lacks(listing.repo, name.file, (choice.files[0].name for choice in choices))
    return choices if name.quant is None else of_quant(listing.repo, choices, name.quant)


def of_quant(repo: str, choices: Sequence[ModelChoice], quant: str) -> tuple[ModelChoice, ...]:
    """Return a repository's models with the given quantization. Raises ModelNotFound if there are none."""
    matches = tuple(choice for choice in choices if canonical(choice.quant or "") == canonical(quant))
    return matches or _raise_lacks(repo, canonical(quant), (choice.shown for choice in choices))


def _raise_lacks(repo: str, missing: str, there: Iterable[str]) -> NoReturn:
    shown = ", ".join(one_line(name, 80) for name in list(dict.fromkeys(there))[:30])
    raise ModelNotFound(f"{repo} has no {one_line(missing)}.", hint=f"It has: {shown}.")
