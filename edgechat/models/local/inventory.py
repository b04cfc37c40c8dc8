"""All models on this machine, with the names that users can type for them.

A model from the catalogue has its catalogue name. If there are several quantizations of it, a colon and the
quantization are added. Other models are named after their file, without the extension. If that name is taken,
the full name is used, which includes the location: 'owner/name:Q4_K_M' in the hub's cache, 'edgechat/...' in
our own folder, 'lmstudio/...', 'llama.cpp/...'. Ollama's models have one name per tag, such as
'ollama/llama3.2:3b', and 'ollama/' can be omitted unless the shorter name is taken. An MLX model is named
after its folder or, in the hub's cache, after its repository. The full name and the path always work.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from edgechat.base.text import one_line
from edgechat.models.catalogue import CatalogueEntry, catalogue
from edgechat.models.choices import mlx_label
from edgechat.models.formats.header import Modality
from edgechat.models.formats.quants import canonical
from edgechat.models.hub.names import HubName, parse_model_name
from edgechat.models.local.files import Skipped
from edgechat.models.local.locations import Place, downloads_folder
from edgechat.models.local.stores import FoundModel, all_models, models_in

_PREFIXES = {
    Place.OWN: "edgechat/",
    Place.LM_STUDIO: "lmstudio/",
    Place.LLAMA_CPP: "llama.cpp/",
    Place.OLLAMA: "ollama/",
}


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model on this machine and its names."""

    name: str
    """The shortest unambiguous name."""
    full_name: str
    found: FoundModel
    entry: CatalogueEntry | None = None
    quant: str | None = None
    """The quantization according to the file's name or, for an MLX model, its config."""

    @property
    def path(self) -> Path:
        """Path for the backend: a file, or the folder of an MLX model."""
        return self.found.path

    @property
    def chat_name(self) -> str:
        """Name to use for a chat. If the model is outside the known locations, this is its path."""
        return self.full_name if self.place is Place.ELSEWHERE else self.name

    @property
    def other_tags(self) -> tuple[str, ...]:
        """Other tags that Ollama has for the same file."""
        return self.found.tags[1:]

    @property
    def place(self) -> Place:
        """Where the model is stored."""
        return self.found.place

    @property
    def where(self) -> str:
        """The location, as shown to users. Outside the known locations, this is the folder: '~/Downloads'."""
        if self.place is not Place.ELSEWHERE:
            return str(self.place.value)
        folder, home = self.path.parent, Path(os.path.expanduser("~"))
        if folder.is_relative_to(home):
            folder = Path("~", folder.relative_to(home))
        return one_line(str(folder))

    @property
    def size(self) -> int:
        """Total size of the model's files, in bytes."""
        return self.found.size

    @property
    def missing_modalities(self) -> tuple[Modality, ...]:
        """The modalities that pulling the model again would add, since that also downloads the projector."""
        is_pulled = self.place is Place.HUB and self.found.format == "gguf"
        if self.entry is None or self.found.projector is not None or not is_pulled:
            return ()
        return self.entry.modalities


@dataclass(frozen=True)
class Inventory:
    """A snapshot of the models on this machine: ours first, then the hub's cache, then other tools'."""

    models: tuple[LocalModel, ...]
    skipped: dict[Path, str] = field(default_factory=dict)
    """Folders and files that could not be read, with the reasons."""

    def of(self, entry: CatalogueEntry) -> list[LocalModel]:
        """Return the models that belong to a catalogue entry."""
        return [model for model in self.models if model.entry is not None and model.entry.name == entry.name]

    def find(self, name: str) -> list[LocalModel]:
        """Return the models that a name refers to: one, several quantizations of a model, or none."""
        wanted = name.strip().casefold().removesuffix(".gguf")
        exact = self._by_name.get(wanted)
        if exact is not None:
            return [exact]
        with_entry = ((model, model.entry) for model in self.models if model.entry is not None)
        several = [model for model, entry in with_entry if wanted in map(str.casefold, entry.names)]
        remote = parse_model_name(name)
        if not several and remote is not None:
            several = [model for model in self.models if _matches_hub_name(model, remote)]
        if several or any(wanted in map(str.casefold, entry.names) for entry in catalogue()):
            return several
        by_tag = self._by_name.get(f"ollama/{wanted}")
        return [by_tag] if by_tag is not None else []

    @cached_property
    def _by_name(self) -> dict[str, LocalModel]:
        by_name: dict[str, LocalModel] = {}
        for model in self.models:
            for name in (model.name, model.full_name, *_other_names(model)):
                by_name.setdefault(name.casefold(), model)
        return by_name


def inventory() -> Inventory:
    """Find the models in all locations. Raises SettingsError.

    This takes tens of milliseconds for hundreds of models.
    """
    skipped = Skipped()
    found = list(all_models(skipped))
    return Inventory(tuple(_named(found, catalogue())), skipped.found)


def _named(found: Sequence[FoundModel], entries: Sequence[CatalogueEntry]) -> Iterator[LocalModel]:
    beginnings = [entry.file.partition("{")[0].lower() for entry in entries]
    matches = [_entry_of(model, entries, beginnings) for model in found]
    n_files = Counter(entry.name for entry, _ in matches if entry is not None)
    used_names = {name.casefold() for entry in entries for name in entry.names}
    full_names = _numbered(map(_full_name, found))
    for model, (entry, quant), full_name in zip(found, matches, full_names, strict=True):
        if entry is not None and n_files[entry.name] == 1:
            yield LocalModel(entry.name, full_name, model, entry, quant)
            continue
        short = f"{entry.name}:{quant}" if entry and quant else model.label.rpartition("/")[2]
        if model.place is Place.OLLAMA:
            short = full_name
        name = full_name if short.casefold() in used_names else short
        used_names |= {name.casefold(), full_name.casefold()}
        yield LocalModel(name, full_name, model, entry, quant)


def _entry_of(
    model: FoundModel, entries: Sequence[CatalogueEntry], beginnings: Sequence[str]
) -> tuple[CatalogueEntry | None, str | None]:
    """Return a model's catalogue entry and its quantization.

    The file's name must match and, in the hub's cache, so must the repository. beginnings: for each entry,
    the part of the file name that all quantizations share.
    """
    if model.place is Place.OLLAMA:
        return None, None
    if model.format == "mlx":
        return _mlx_entry_of(model, entries), model.quant
    repo, name, is_shipped = (model.repo or "").lower(), model.path.name, model.place is Place.SHIPPED
    lower_name = name.lower()
    for entry, beginning in zip(entries, beginnings, strict=True):
        if (entry.repo is None) != is_shipped or (repo and repo != (entry.repo or "").lower()):
            continue
        file, lower = name, lower_name
        if model.place is Place.LLAMA_CPP:
            file = _without_repo(name, entry)
            lower = file.lower()
        if not lower.startswith(beginning):
            continue
        if entry.quant is None:
            if lower == entry.file.lower():
                return entry, None
        else:
            quant = entry.quant_of(file)
            if quant is not None:
                return entry, quant
    return None, model.quant and canonical(model.quant)


def _mlx_entry_of(model: FoundModel, entries: Sequence[CatalogueEntry]) -> CatalogueEntry | None:
    """Return an MLX model's catalogue entry, judging by the name of its repository."""
    repo_or_folder = (model.repo or model.label).lower()
    for entry in entries:
        for repo in map(str.lower, entry.mlx.values()):
            ends = (repo,) if model.repo else (repo, repo.partition("/")[2])
            if repo_or_folder.endswith(tuple(f"/{end}" for end in ends)) or repo_or_folder in ends:
                return entry
    return None


def _without_repo(file: str, entry: CatalogueEntry) -> str:
    """Return a file's name without the repository that llama.cpp prepends to it."""
    if entry.repo is not None:
        prefix = entry.repo.replace("/", "_") + "_"
        if file.lower().startswith(prefix.lower()):
            return file[len(prefix) :]
    return file


def _full_name(model: FoundModel) -> str:
    if model.repo is None:
        return _PREFIXES.get(model.place, "") + model.label
    revision = f"@{model.revision[:8]}" if model.revision else ""
    if model.format == "mlx" and mlx_label(model.label) == model.quant:
        return model.label + revision
    if model.quant is not None:
        return f"{model.repo}{revision}:{model.quant}"
    return f"{model.repo}{revision}/{model.label.removeprefix(model.repo + '/')}"


def _numbered(names: Iterable[str]) -> Iterator[str]:
    """Yield the names, adding a number to those that occur more than once."""
    seen: Counter[str] = Counter()
    for name in names:
        key = name.casefold()
        seen[key] += 1
        yield name if seen[key] == 1 else f"{name}~{seen[key]}"


def _other_names(model: LocalModel) -> Iterator[str]:
    if model.place is Place.OLLAMA:
        for tag in model.found.tags:
            yield f"ollama/{tag}"
            yield f"ollama/{tag.removesuffix(':latest')}"
        return
    if model.entry is not None and model.quant is not None:
        for name in model.entry.names:
            yield f"{name}:{model.quant}"
    if model.found.revision is None:
        yield model.found.label.rpartition("/")[2]
        if model.found.format == "gguf":
            yield model.path.name.removesuffix(".gguf")


def _matches_hub_name(model: LocalModel, remote: HubName) -> bool:
    """Return whether a model in the hub's cache matches a repository, quantization and file."""
    found = model.found
    if found.repo is None or found.revision is not None or found.repo.lower() != remote.repo.lower():
        return False
    if remote.file is not None and found.format == "mlx":
        return any(f"{found.repo}/{remote.file}" == f"{found.label}/{file.path.name}" for file in found.files)
    if remote.file is not None:
        return f"{found.repo}/{remote.file}".startswith(found.label)
    return remote.quant is None or canonical(remote.quant) == canonical(found.quant or "")


NEARBY_DEPTH = 2
NEARBY_SECONDS = 1.0
MOST_NEARBY = 32
"""Maximum number of models to return. It is low because the headers of all of them are read."""


def models_nearby(known: Iterable[Path]) -> list[LocalModel]:
    """Return the GGUF models in the downloads and working folders, newest first, leaving out known files.

    Both folders may contain anything, so the search is limited to two levels, one second, and the newest
    models. Links to known files are also left out.
    """
    until = time.monotonic() + NEARBY_SECONDS
    seen = set(map(os.path.realpath, known))
    found: list[FoundModel] = []
    for folder in _folders():
        for model in models_in(folder, NEARBY_DEPTH, until):
            path = os.path.realpath(model.path)
            if path not in seen:
                seen.add(path)
                found.append(model)
    found.sort(key=lambda model: model.files[0].changed, reverse=True)
    return [
        LocalModel(model.label.rpartition("/")[2], str(model.path), model, quant=model.quant)
        for model in found[:MOST_NEARBY]
    ]


def _folders() -> Iterator[Path]:
    """Yield the downloads folder and the working folder.

    A folder is left out if its path is not valid Unicode, which llama.cpp and the worker's pipe require.
    """
    for find in (downloads_folder, Path.cwd):
        with contextlib.suppress(OSError, UnicodeEncodeError):  # the working folder may have been removed
            folder = find()
            str(folder).encode()
            yield folder
