"""Adapter repositories on the hub, and the files to download from them."""

from __future__ import annotations

from dataclasses import dataclass

from edgechat.models.adapters.reading import CONFIG, WEIGHTS, is_adapter
from edgechat.models.choices import RemoteFile, RepoListing, quant_label
from edgechat.models.formats.header import Format
from edgechat.models.formats.quants import canonical
from edgechat.models.hub.cache import HubStore
from edgechat.models.hub.listing import RemoteModel, list_repo
from edgechat.models.hub.names import HubName
from edgechat.models.local.files import ModelPartFile
from edgechat.models.local.locations import Place
from edgechat.models.local.stores import FoundModel

_BEST = ("F16", "BF16", "Q8_0", "F32")
"""Quantizations in order of preference: adapters are small, and F32 is seldom more accurate."""


@dataclass(frozen=True, slots=True)
class RemoteAdapter:
    """An adapter on the hub."""

    listing: RepoListing
    files: tuple[RemoteFile, ...]

    @property
    def store(self) -> HubStore:
        """The repository's folder in the cache."""
        return HubStore(self.listing)

    @property
    def missing(self) -> tuple[RemoteFile, ...]:
        """Files that are not yet on this machine."""
        return tuple(file for file in self.files if not self.store.is_here(file))

    @property
    def found(self) -> FoundModel:
        """The adapter's files as they will be after the download."""
        files = tuple(ModelPartFile(self.store.path(file), file.size, 0) for file in self.files)
        repo = self.listing.repo
        format: Format = "gguf" if len(files) == 1 else "peft"
        return FoundModel(Place.HUB, repo, files, repo=repo, format=format)


def remote_adapter(name: HubName, quant: str | None = None) -> RemoteAdapter | None:
    """Ask the hub for the adapter in a repository. Returns None if it has none. Raises HubError.

    quant: the desired quantization, as it appears in the GGUF file's name.
    """
    listing = list_repo(name.repo, name.revision)
    by_name = {file.name: file for file in listing.files}
    ggufs = [file for file in listing.files if file.name.lower().endswith(".gguf") and file.size > 0]
    if name.file is not None:
        ggufs = [file for file in ggufs if file.name == name.file]
    if quant is not None:
        ggufs = [file for file in ggufs if quant_label(file.name) == canonical(quant)]
    if ggufs:
        best = min(ggufs, key=lambda file: (_rank(file), file.name))
        header = RemoteModel(listing, ()).companion(best)
        return RemoteAdapter(listing, (best,)) if is_adapter(header) else None
    if CONFIG in by_name and WEIGHTS in by_name:
        return RemoteAdapter(listing, (by_name[CONFIG], by_name[WEIGHTS]))
    return None


def _rank(file: RemoteFile) -> int:
    label = quant_label(file.name)
    return _BEST.index(label) if label in _BEST else len(_BEST)
