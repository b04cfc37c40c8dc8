"""The models on this machine: from what a person typed to a file. Never touches the network."""

from __future__ import annotations

import contextlib
import difflib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from edgechat import paths
from edgechat.errors import ModelFileError, ModelNotFound
from edgechat.models.catalogue import CatalogueEntry, catalogue
from edgechat.models.quants import canonical
from edgechat.text import one_line

_LISTED = 6


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A model that is here."""

    path: Path
    name: str
    """What to call it: its name in the catalogue, or the file's without the ending."""
    entry: CatalogueEntry | None = None


def resolve(name: str) -> ResolvedModel:
    """Return the model that `name` means: a path, or a name or an alias of the catalogue.

    A name of the catalogue wins over a file that happens to be called so; './guide' is always a path.
    Raises ModelNotFound; ModelFileError where there is something of that name that cannot be a model.
    """
    entry = entry_of(name)
    if entry is not None:
        path = local_file(entry)
        if path is None:
            raise _not_here(entry)
        return ResolvedModel(path, entry.name, entry)
    if not name.strip() or "\0" in name:
        raise _unknown(name)
    path = Path(os.path.abspath(os.path.expanduser(name)))
    if os.path.isdir(path):
        raise _folder(name, path)
    if os.path.isfile(path):
        path = _first_part(_text_path(path))
        return ResolvedModel(path, _shown(path.name.removesuffix(".gguf")))
    if os.path.lexists(path):
        raise ModelFileError(f"{_shown(name)} is not a file that can be read.", hint="Name a .gguf file.")
    if os.path.isdir(path.parent) and not os.access(path.parent, os.X_OK):
        raise ModelFileError(
            f"The folder of {_shown(name)} may not be read.", hint="Allow it: chmod u+rx FOLDER"
        )
    raise _unknown(name)


def local_file(entry: CatalogueEntry) -> Path | None:
    """Return where this model's file is on this machine, or None.

    Of several quantizations the recommended one is taken, else the first of local_files().
    """
    if entry.repo is None:
        shipped = paths.shipped(entry.file)
        return shipped if shipped.is_file() else None
    if entry.quant is None:
        return next((path for path in _places(entry, entry.file) if path.is_file()), None)
    files = local_files(entry)
    return files.get(canonical(entry.quant)) or next(iter(files.values()), None)


def local_files(entry: CatalogueEntry) -> dict[str, Path]:
    """Return the files of this model on this machine by quantization ('Q4_K_M'), read from their names.

    Our own folder comes before the hub's cache, the hub's main revision before older ones; in one folder they
    are ordered by name. A split model is its first part. Empty for a model that is of one quantization only.
    """
    found: dict[str, Path] = {}
    for folder in _places(entry):
        for name in _ggufs(folder):
            quant = entry.quant_of(name)
            path = folder / name
            if quant is not None and quant not in found and _first_part(path) == path and path.is_file():
                found[quant] = path
    return found


def _places(entry: CatalogueEntry, file: str = "") -> Iterator[Path]:
    """Yield the folders in which files of this model may lie, or the paths of one file in them."""
    yield paths.data_dir() / "models" / file
    if entry.repo is not None:
        for folder in _snapshots(entry.repo):
            yield folder / file


def hub_cache() -> Path:
    """Return the folder in which huggingface_hub keeps what it downloads, found as that library does.

    It is not asked itself: importing it takes a quarter of a second.
    """
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or os.path.join(home, "huggingface")
    found = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    return Path(os.path.expandvars(os.path.expanduser(found or os.path.join(home, "hub"))))


def _snapshots(repo: str) -> Iterator[Path]:
    """Yield the folders of a repository's revisions in the cache: main first, then from new to old."""
    folder = hub_cache() / f"models--{repo.replace('/', '--')}"
    with contextlib.suppress(OSError, ValueError):
        yield folder / "snapshots" / (folder / "refs" / "main").read_text(encoding="ascii").strip()
    try:
        revisions = [(entry.stat().st_mtime, entry.path) for entry in os.scandir(folder / "snapshots")]
    except OSError:
        return
    for _, path in sorted(revisions, reverse=True):
        yield Path(path)


def entry_of(name: str) -> CatalogueEntry | None:
    """Return the model of the catalogue that has this name or alias."""
    wanted = name.strip().lower()
    return next((entry for entry in catalogue() if wanted in entry.names), None)


def _shown(name: str) -> str:
    """Return a file's name for a message: one line, and printable even where it is no valid text."""
    return one_line(name.encode("utf-8", "replace").decode("utf-8"))


def _text_path(path: Path) -> Path:
    """Return `path`, which llama.cpp and the worker's pipe take as UTF-8 only."""
    try:
        str(path).encode("utf-8")
    except UnicodeEncodeError:
        raise ModelFileError(
            f"The path {_shown(str(path))} is not valid Unicode text.", hint="Rename the file or its folder."
        ) from None
    return path


def _first_part(path: Path) -> Path:
    """Return the first file of a model that is split into several: the one llama.cpp wants to be given."""
    return path.with_name(re.sub(r"-[0-9]{5}(-of-[0-9]{5}\.gguf)$", r"-00001\1", path.name))


def _not_here(entry: CatalogueEntry) -> ModelNotFound:
    if entry.repo is None:
        return ModelNotFound(
            f"{entry.name} should come with edgechat, but {entry.file} is missing from this copy.",
            hint="Install edgechat again, or give the path of a GGUF file.",
        )
    return ModelNotFound(
        f"{entry.name} is in the catalogue, but its file is not on this machine yet. {entry.description}",
        hint=f"Download it: edgechat pull {entry.name}",
    )


def _folder(name: str, path: Path) -> ModelNotFound:
    files = _ggufs(path)
    if not files:
        return ModelNotFound(
            f"{_shown(name)} is a folder, and no .gguf file is in it.", hint="Name a .gguf file."
        )
    more = f" and {len(files) - _LISTED} more" if len(files) > _LISTED else ""
    return ModelNotFound(
        f"{_shown(name)} is a folder, not a model. It holds {', '.join(map(_shown, files[:_LISTED]))}{more}.",
        hint=f"Name the file: {_shown(os.path.join(name, files[0]))}",
    )


def _unknown(name: str) -> ModelNotFound:
    folder, base = os.path.split(name)
    known = {one: one for entry in catalogue() for one in entry.names}
    if "\0" not in folder:
        # Compared without the ending, which would make all files look alike.
        files = _ggufs(Path(os.path.expanduser(folder)))
        known |= {file.removesuffix(".gguf").lower(): os.path.join(folder, file) for file in files}
    near = difflib.get_close_matches(base.removesuffix(".gguf").lower(), known, n=3)
    message = f"There is no file {_shown(name)!r}, and no model of that name in the catalogue."
    if near:
        return ModelNotFound(message, hint=f"Did you mean {' or '.join(_shown(known[one]) for one in near)}?")
    names = ", ".join(entry.name for entry in catalogue())
    return ModelNotFound(message, hint=f"Give the path of a GGUF file, or one of: {names}.")


def _ggufs(folder: Path) -> list[str]:
    try:
        return sorted(file for file in os.listdir(folder) if file.endswith(".gguf"))
    except OSError:
        return []
