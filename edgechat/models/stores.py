"""The model files that are on this machine, whoever keeps them: found by name and size, without opening them.

Nothing in these folders is believed. Names are checked, depth and number are bounded, folders that are links
are not entered, and what may not be read is skipped and noted. The hub's cache:

    models--owner--name/refs/main                         the commit of a branch
    models--owner--name/snapshots/<commit>/folder/a.gguf  a link to a blob, or the file itself
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from edgechat import paths
from edgechat.errors import FolderError
from edgechat.models import ollama, places
from edgechat.models.choices import ModelChoice, RemoteFile, gguf_choices, safe_path
from edgechat.models.gguf import MAX_PARTS
from edgechat.models.header import Format
from edgechat.models.hubname import valid_repo
from edgechat.models.places import Place

MAX_FILES = 4096
"""Of one place."""
MAX_FOLDERS = 4096

_GUIDE, _GUIDE_DRAFT = "guide.gguf", "guide-draft.gguf"
_COMMIT = re.compile(r"[A-Za-z0-9]{1,64}", re.ASCII)
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)
_REPO = "models--"
_PART = re.compile(r"(?P<stem>.+)-\d{5}-of-(?P<count>\d{5})\.gguf", re.DOTALL | re.ASCII)


@dataclass(frozen=True, slots=True)
class File:
    """One file of a model: a part of it, or all."""

    path: Path
    size: int
    changed: int
    """When, in nanoseconds since 1970."""
    sha256: str | None = None
    """As whoever keeps it says; None where nobody does."""


@dataclass(frozen=True, slots=True)
class FoundModel:
    """A model: one file, or the parts of a split one in their order."""

    place: Place
    label: str
    """Its name without ending and number, with its folder in that place: 'owner/name/BF16/model'."""
    files: tuple[File, ...]
    quant: str | None = None
    """The label in its name."""
    repo: str | None = None
    """'owner/name' in the hub's cache."""
    revision: str | None = None
    """The commit there, of a file that a newer revision has in another version."""
    tags: tuple[str, ...] = ()
    """Ollama's names of it."""
    format: Format = "gguf"

    @property
    def path(self) -> Path:
        """What the backend is given: a file, or the folder of an MLX model."""
        return self.files[0].path.parent if self.format == "mlx" else self.files[0].path

    @property
    def size(self) -> int:
        """Bytes of all parts."""
        return sum(file.size for file in self.files)


@dataclass(slots=True)
class Skipped:
    """The folders and files that could not be read, with the reason."""

    found: dict[Path, str] = field(default_factory=dict)

    def note(self, error: OSError, path: Path) -> None:
        """Keep why; that there is nothing at all is no reason to say so."""
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            self.found[path] = error.strerror or str(error)


def all_models(skipped: Skipped) -> Iterator[FoundModel]:
    """Yield every model on this machine; who keeps it: ours first, then those that are easily shared."""
    yield from _shipped()
    yield from _own(skipped)
    yield from _hub(places.hub_cache(), skipped)
    for folder in _each_once(places.lm_studio_folders()):
        yield from _plain(Place.LM_STUDIO, folder, 4, skipped)
    yield from _plain(Place.LLAMA_CPP, places.llama_cpp_folder(), 1, skipped)
    for folder in _each_once(places.ollama_folders()):
        for one in ollama.models(folder, skipped.note):
            file = File(one.path, one.size, one.changed, one.sha256)
            yield FoundModel(Place.OLLAMA, one.tags[0], (file,), tags=one.tags)


def found_at(path: Path) -> FoundModel | None:
    """Return the model of which this is the only file or a part, wherever it is; None: no such file."""
    file = _file(path)
    if file is None:
        return None
    files = {name: one for name in _beside(path) if (one := _file(path.parent / name))}
    ours = path in map(paths.shipped, (_GUIDE, _GUIDE_DRAFT))
    place = Place.SHIPPED if ours else Place.ELSEWHERE
    for choice in _choices(files):
        if path.name in choice.file_names:
            parts = tuple(files[name] for name in choice.file_names)
            return FoundModel(place, str(path.parent / choice.name), parts, choice.quant)
    return FoundModel(place, str(path), (file,))


def _beside(path: Path) -> list[str]:
    """Return the names of the parts of a split model, of which `path` is one."""
    match = _PART.fullmatch(path.name)
    if match is None:
        return [path.name]
    count = min(int(match["count"]), MAX_PARTS)
    return [f"{match['stem']}-{i + 1:05}-of-{match['count']}.gguf" for i in range(count)]


def _shipped() -> Iterator[FoundModel]:
    """Yield the guide. Its draft is a part of it and no model to choose: only found_at() knows that."""
    path = paths.shipped(_GUIDE)
    file = _file(path)
    if file is not None:
        yield FoundModel(Place.SHIPPED, "guide", (file,))


def _own(skipped: Skipped) -> Iterator[FoundModel]:
    try:
        folder = places.own_folder()
    except FolderError:
        return  # said by whoever needs it
    yield from _plain(Place.OWN, folder, 2, skipped)


def _plain(place: Place, root: Path, depth: int, skipped: Skipped) -> Iterator[FoundModel]:
    """Yield the models of a folder whose files have their own names."""
    files = {name: file for name in _names(root, depth, skipped) if (file := _file(root / name))}
    for choice in _choices(files):
        parts = tuple(files[name] for name in choice.file_names)
        yield FoundModel(place, choice.name, parts, choice.quant)


def _hub(root: Path, skipped: Skipped) -> Iterator[FoundModel]:
    """Yield the models of the hub's cache, each once however many revisions have it."""
    for name in _listed(root, skipped)[:MAX_FOLDERS]:
        repo = name.removeprefix(_REPO).replace("--", "/", 1)
        if name.startswith(_REPO) and valid_repo(repo):
            yield from _repository(root / name, repo, skipped)


def _repository(folder: Path, repo: str, skipped: Skipped) -> Iterator[FoundModel]:
    blobs = os.path.normpath(os.path.join(folder, "blobs"))
    seen: set[str] = set()
    named: set[str] = set()
    for snapshot in _snapshots(folder, skipped):
        files: dict[str, File] = {}
        for name in _names(snapshot, 4, skipped):
            file = _linked(snapshot / name, blobs)
            if file is not None:
                files[name] = file
        for choice in _choices(files):
            parts = tuple(files[name] for name in choice.file_names)
            bytes_of = "\0".join(part.sha256 or str(part.path) for part in parts)
            if bytes_of in seen:
                continue
            older = snapshot.name if choice.name in named else None
            seen.add(bytes_of)
            named.add(choice.name)
            yield FoundModel(
                Place.HUB, f"{repo}/{choice.name}", parts, choice.quant, repo=repo, revision=older
            )


def _snapshots(folder: Path, skipped: Skipped) -> Iterator[Path]:
    """Yield the folders of a repository's revisions: main first, then from new to old."""
    main = _main(folder)
    if main is not None:
        yield folder / "snapshots" / main
    dated: list[tuple[float, Path]] = []
    for name in _listed(folder / "snapshots", skipped):
        path = folder / "snapshots" / name
        try:
            if name != main and _COMMIT.fullmatch(name):
                dated.append((path.stat().st_mtime, path))
        except OSError as error:
            skipped.note(error, path)
    for _, path in sorted(dated, reverse=True):
        yield path


def _main(folder: Path) -> str | None:
    try:
        with open(folder / "refs" / "main", "rb") as file:
            found = file.read(256).decode("ascii").strip()
    except (OSError, ValueError):
        return None
    return found if _COMMIT.fullmatch(found) else None


def _linked(path: Path, blobs: str) -> File | None:
    """Return a file of a snapshot: one that lies there itself, or a link into the repository's own blobs."""
    try:
        target = os.readlink(path)
    except OSError:
        return _file(path)
    blob = os.path.normpath(os.path.join(path.parent, target))
    if os.path.dirname(blob) != blobs:
        return None
    name = os.path.basename(blob)
    return _file(path, name if _SHA256.fullmatch(name) else None)


def _choices(files: dict[str, File]) -> tuple[ModelChoice, ...]:
    """Return the language models among the files of a folder: what a repository on the hub would offer."""
    return gguf_choices(RemoteFile(name, file.size) for name, file in files.items())


def _names(root: Path, depth: int, skipped: Skipped) -> list[str]:
    """Return the .gguf files below a folder, with their folders and '/' between, `depth` levels deep."""
    found: list[str] = []
    ahead = [""]
    for n_folders, folder in enumerate(ahead):
        if n_folders >= MAX_FOLDERS or len(found) >= MAX_FILES:
            break
        below, names = _content(root / folder, skipped)
        prefix = f"{folder}/" if folder else ""
        found += [prefix + name for name in names if safe_path(prefix + name)]
        if prefix.count("/") + 1 < depth:
            ahead += [prefix + name for name in below if safe_path(prefix + name)]
    return sorted(found)[:MAX_FILES]


def _content(folder: Path, skipped: Skipped) -> tuple[list[str], list[str]]:
    """Return the folders and the .gguf files of a folder; those that are hidden are someone's drafts."""
    below: list[str] = []
    names: list[str] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    below.append(entry.name)
                elif entry.name.lower().endswith(".gguf"):
                    names.append(entry.name)
    except OSError as error:
        skipped.note(error, folder)
    return sorted(below), names


def _listed(folder: Path, skipped: Skipped) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError as error:
        skipped.note(error, folder)
        return []


def _file(path: Path, sha256: str | None = None) -> File | None:
    """Return a file, or None for what is no regular one or leads nowhere."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return File(path, found.st_size, found.st_mtime_ns, sha256)


def _each_once(folders: list[Path]) -> list[Path]:
    """Return the folders without those that are another one's by way of a link."""
    key: Callable[[Path], str] = os.path.realpath
    return list({key(folder): folder for folder in reversed(folders)}.values())[::-1]
