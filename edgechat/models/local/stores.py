"""Model files on this machine, from all tools, found by name and size without opening them.

Only the config.json next to safetensors files is read, to find out whether they hold a language model.
Folders are untrusted: see files.py. The hub's cache:

    models--owner--name/refs/main                         the commit of a branch
    models--owner--name/snapshots/<commit>/folder/a.gguf  a symlink to a blob, or the file itself
    models--owner--name/snapshots/<commit>/config.json    likewise for each file of an MLX model
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from edgechat.base import paths
from edgechat.base.errors import FolderError, ModelFileError
from edgechat.models.adapters.reading import CONFIG, WEIGHTS
from edgechat.models.choices import ModelChoice, RemoteFile, model_choices
from edgechat.models.formats.header import MAX_PARTS, Format
from edgechat.models.formats.mlx.config import is_language_model, read_config
from edgechat.models.hub.names import valid_repo
from edgechat.models.local import locations
from edgechat.models.local import ollama_store as ollama
from edgechat.models.local.files import (
    MAX_FOLDERS,
    ModelPartFile,
    Skipped,
    file_at,
    is_digest,
    list_names,
    names,
)
from edgechat.models.local.locations import Place
from edgechat.models.local.ollama_store import OllamaLayers

_GUIDE, _GUIDE_DRAFT = "guide.gguf", "guide-draft.gguf"
_COMMIT = re.compile(r"[A-Za-z0-9]{1,64}", re.ASCII)
_REPO = "models--"
_PART = re.compile(r"(?P<stem>.+)-\d{5}-of-(?P<count>\d{5})\.gguf", re.DOTALL | re.ASCII)


@dataclass(frozen=True, slots=True)
class FoundModel:
    """A model: one file, the shards of a split model in order, or the files of an MLX model.

    It can also be a LoRA adapter saved by PEFT, which has two files.
    """

    place: Place
    label: str
    """Path within the location, without extension and shard number: 'owner/name/BF16/model'. For an MLX
    model, this is its folder: 'owner/name'.
    """
    files: tuple[ModelPartFile, ...]
    quant: str | None = None
    """The quantization in the name or, for an MLX model, in its config."""
    repo: str | None = None
    """'owner/name' for a model in the hub's cache."""
    revision: str | None = None
    """The commit in the hub's cache, if a newer revision has a different version of the file."""
    tags: tuple[str, ...] = ()
    """The model's names in Ollama."""
    layers: OllamaLayers | None = None
    """The model's other layers in Ollama's store."""
    format: Format = "gguf"
    projector: ModelPartFile | None = None
    """Projector that encodes images or audio for the model. Several models can share it."""
    head: ModelPartFile | None = None
    """File that contains only the model's drafting layers (MTP). Several quantizations can share it."""

    @property
    def path(self) -> Path:
        """Path for the backend: a file, or the folder of an MLX model or a PEFT adapter."""
        return self.files[0].path if self.format == "gguf" else self.files[0].path.parent

    @property
    def size(self) -> int:
        """Total size of the files in bytes, not counting the projector and the drafting layers."""
        return sum(file.size for file in self.files)

    @property
    def all_files(self) -> tuple[ModelPartFile, ...]:
        """The model's files, including its projector and its drafting layers."""
        return (*self.files, *filter(None, (self.projector, self.head)))


def all_models(skipped: Skipped) -> Iterator[FoundModel]:
    """Yield all models on this machine: ours first, then the hub's cache, then those of other tools."""
    guide = file_at(paths.shipped(_GUIDE))
    if guide is not None:  # its draft is part of it, so it is not listed; only found_at() returns it
        yield FoundModel(Place.SHIPPED, "guide", (guide,))
    with contextlib.suppress(FolderError):  # reported when our folder is needed
        yield from _named_files(Place.OWN, locations.own_folder(), 2, skipped)
    yield from _hub(locations.hub_cache(), skipped)
    for folder in _unique_folders(locations.lm_studio_folders()):
        yield from _named_files(Place.LM_STUDIO, folder, 4, skipped)
    yield from _named_files(Place.LLAMA_CPP, locations.llama_cpp_folder(), 1, skipped)
    for folder in _unique_folders(locations.ollama_folders()):
        for model in ollama.models(folder, skipped.note):
            yield FoundModel(
                Place.OLLAMA,
                model.tags[0],
                (model.file,),
                tags=model.tags,
                projector=model.projector,
                layers=model.layers,
            )


def found_at(path: Path) -> FoundModel | None:
    """Return the model at a path, or None. The path can be a file, shard or MLX folder anywhere on disk."""
    if os.path.isdir(path):
        return _in_folder(path)
    file = file_at(path)
    if file is None:
        return None
    beside = {*_sibling_shards(path), *names(path.parent, 1, Skipped())}
    files = {name: part for name in sorted(beside) if (part := file_at(path.parent / name))}
    ours = path in map(paths.shipped, (_GUIDE, _GUIDE_DRAFT))
    place = Place.SHIPPED if ours else Place.ELSEWHERE
    for choice in _choices(files, mixed=True):
        if path.name in choice.file_names:
            parts, label = tuple(files[name] for name in choice.file_names), str(path.parent / choice.name)
            projector, head = _first(choice.projectors, files), _first(choice.heads, files)
            return FoundModel(place, label, parts, choice.quant, projector=projector, head=head)
    return FoundModel(place, str(path), (file,))


def models_in(folder: Path, depth: int = 1, until: float = math.inf) -> list[FoundModel]:
    """Return the GGUF models in any folder, up to `depth` levels deep. until: see `files.names`."""
    found = _named_files(Place.ELSEWHERE, folder, depth, Skipped(), until)
    return [model for model in found if model.format == "gguf"]


def is_model_folder(path: Path) -> bool:
    """Return whether a folder holds the files of an MLX model: a config, all weights and a tokenizer."""
    return os.path.isdir(path) and _in_folder(path) is not None


def _in_folder(path: Path) -> FoundModel | None:
    """Return the MLX model in a folder, or None. Its config need not be valid."""
    files = {name: file for name in names(path, 1, Skipped()) if (file := file_at(path / name))}
    for choice in _choices(files):
        if choice.format == "mlx":
            parts = tuple(files[name] for name in choice.file_names)
            return FoundModel(Place.ELSEWHERE, str(path), parts, _mlx_quant(parts[0].path), format="mlx")
    return None


def _sibling_shards(path: Path) -> list[str]:
    """Return the names of all shard files of the model that `path` belongs to."""
    match = _PART.fullmatch(path.name)
    if match is None:
        return [path.name]
    count = min(int(match["count"]), MAX_PARTS)
    return [f"{match['stem']}-{i + 1:05}-of-{match['count']}.gguf" for i in range(count)]


def _named_files(
    place: Place, root: Path, depth: int, skipped: Skipped, until: float = math.inf
) -> Iterator[FoundModel]:
    """Yield the models in a folder where files are named after models rather than by hash."""
    files = {name: file for name in names(root, depth, skipped, until) if (file := file_at(root / name))}
    for choice, parts in _usable_choices(files, mixed=True):
        yield FoundModel(
            place,
            choice.name or root.name,
            parts,
            choice.quant,
            format=choice.format,
            projector=_first(choice.projectors, files),
            head=_first(choice.heads, files),
        )


def _hub(root: Path, skipped: Skipped) -> Iterator[FoundModel]:
    """Yield the models in the hub's cache. A model shared by several revisions is yielded only once."""
    for name in list_names(root, skipped)[:MAX_FOLDERS]:
        repo = name.removeprefix(_REPO).replace("--", "/", 1)
        if name.startswith(_REPO) and valid_repo(repo):
            yield from _repository(root / name, repo, skipped)


def _repository(folder: Path, repo: str, skipped: Skipped) -> Iterator[FoundModel]:
    blobs = os.path.normpath(os.path.join(folder, "blobs"))
    seen: set[str] = set()
    named: set[tuple[str, str]] = set()
    for snapshot in _snapshots(folder, skipped):
        files: dict[str, ModelPartFile] = {}
        for name in names(snapshot, 4, skipped):
            file = _snapshot_file(snapshot / name, blobs)
            if file is not None:
                files[name] = file
        for choice, parts in _usable_choices(files):
            bytes_of = "\0".join(part.digest or str(part.path) for part in parts)
            if bytes_of in seen:
                continue
            key = (choice.format, choice.name)
            older = snapshot.name if key in named else None
            seen.add(bytes_of)
            named.add(key)
            label = f"{repo}/{choice.name}".rstrip("/")
            yield FoundModel(
                Place.HUB,
                label,
                parts,
                choice.quant,
                repo=repo,
                revision=older,
                format=choice.format,
                projector=_first(choice.projectors, files),
                head=_first(choice.heads, files),
            )


def _snapshots(folder: Path, skipped: Skipped) -> Iterator[Path]:
    """Yield the folders of a repository's revisions: the main one first, then from newest to oldest."""
    main = _main_commit(folder)
    if main is not None:
        yield folder / "snapshots" / main
    dated: list[tuple[float, Path]] = []
    for name in list_names(folder / "snapshots", skipped):
        path = folder / "snapshots" / name
        try:
            if name != main and _COMMIT.fullmatch(name):
                dated.append((path.stat().st_mtime, path))
        except OSError as error:
            skipped.note(error, path)
    for _, path in sorted(dated, reverse=True):
        yield path


def peft_folders(skipped: Skipped) -> Iterator[FoundModel]:
    """Yield the adapters saved by PEFT."""
    with contextlib.suppress(FolderError):
        own = locations.own_folder()
        for name in list_names(own, skipped)[:MAX_FOLDERS]:
            if found := _peft(Place.OWN, name, [file_at(own / name / file) for file in (CONFIG, WEIGHTS)]):
                yield found
    root = locations.hub_cache()
    for name in list_names(root, skipped)[:MAX_FOLDERS]:
        repo, blobs = name.removeprefix(_REPO).replace("--", "/", 1), str(root / name / "blobs")
        snapshot = next(_snapshots(root / name, skipped), None) if valid_repo(repo) else None
        if snapshot is not None and name.startswith(_REPO):
            files = [_snapshot_file(snapshot / file, os.path.normpath(blobs)) for file in (CONFIG, WEIGHTS)]
            if found := _peft(Place.HUB, repo, files):
                yield replace(found, repo=repo)


def _peft(place: Place, label: str, files: Sequence[ModelPartFile | None]) -> FoundModel | None:
    """Return the adapter in a PEFT folder, or None if a file is missing."""
    return FoundModel(place, label, tuple(filter(None, files)), format="peft") if all(files) else None


def _main_commit(folder: Path) -> str | None:
    try:
        with open(folder / "refs" / "main", "rb") as file:
            commit = file.read(256).decode("ascii").strip()
    except (OSError, ValueError):
        return None
    return commit if _COMMIT.fullmatch(commit) else None


def _snapshot_file(path: Path, blobs: str) -> ModelPartFile | None:
    """Return a file in a snapshot: a regular file, or a symlink into the blobs of the same repository."""
    try:
        target = os.readlink(path)
    except OSError:
        return file_at(path)
    blob = os.path.normpath(os.path.join(path.parent, target))
    if os.path.dirname(blob) != blobs:
        return None
    name = os.path.basename(blob)
    return file_at(path, name if is_digest(name) else None)


def _choices(files: dict[str, ModelPartFile], *, mixed: bool = False) -> tuple[ModelChoice, ...]:
    """Return the language models among a folder's files, as `model_choices` does for a repository."""
    return model_choices((RemoteFile(name, file.size) for name, file in files.items()), mixed=mixed)


def _first(companions: Sequence[RemoteFile], files: dict[str, ModelPartFile]) -> ModelPartFile | None:
    """Return the first of a model's projectors or files with drafting layers, or None if there are none."""
    return files[companions[0].name] if companions else None


def _usable_choices(
    files: dict[str, ModelPartFile], *, mixed: bool = False
) -> Iterator[tuple[ModelChoice, tuple[ModelPartFile, ...]]]:
    """Yield the choices with their files, leaving out safetensors that are not an MLX language model."""
    for choice in _choices(files, mixed=mixed):
        parts = tuple(files[name] for name in choice.file_names)
        if choice.format == "mlx":
            quant = _mlx_quant(parts[0].path)
            if quant is None:
                continue
            choice = replace(choice, quant=quant)
        yield choice, parts


def _mlx_quant(path: Path) -> str | None:
    """Return the quantization in a config.json, or None if it does not describe an MLX language model."""
    try:
        config = read_config(path)
        return config.quant if is_language_model(config) else None
    except (ModelFileError, OSError):
        return None


def _unique_folders(folders: list[Path]) -> list[Path]:
    """Return the folders, leaving out symlinks to other folders in the list."""
    return list({os.path.realpath(folder): folder for folder in reversed(folders)}.values())[::-1]


_END = 1 << 20
"""Number of bytes read at the start of a file (names, shapes and vocabulary), and at its end."""
_SAMPLES, _SAMPLE = 64, 4096
"""Number of samples taken in between, and number of bytes in each."""


def fingerprint_of(model_path: str | os.PathLike[str], extra: str) -> bytes:
    """Return a 32-byte fingerprint of `extra` and of a model's content, including all shards.

    This takes a few milliseconds. The file's name, location and timestamp do not matter. A fine-tune has a
    different fingerprint unless it changed so few weights that none of them is in a sample. Raises OSError.
    """
    from hashlib import blake2b  # takes 2 ms, and listing models does not need it

    model = found_at(Path(model_path))
    if model is None:
        raise FileNotFoundError(2, "there is no such file", str(model_path))
    digest = blake2b(digest_size=32)
    digest.update(len(model.files).to_bytes(8, "little") + extra.encode())
    for part in model.files:
        with open(part.path, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            digest.update(size.to_bytes(8, "little"))
            for start, length in _places(size):
                file.seek(start)
                digest.update(file.read(length))
    return digest.digest()


def _places(size: int) -> Iterator[tuple[int, int]]:
    yield 0, _END
    last = max(size - _SAMPLE, 0)
    for i in range(_SAMPLES):
        yield last * i // (_SAMPLES - 1), _SAMPLE
    yield max(size - _END, 0), _END
