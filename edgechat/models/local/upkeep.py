"""Maintenance of models on this machine: records of when they were last used, verification, and removal.

The worker writes a small file in the data folder for each model it loads. Invalid files are ignored, and the
oldest ones are removed. Models in the hub's cache are removed by huggingface_hub: first their file names in
all revisions, then the bytes that no other file in the repository shares. If a repository has no other files,
all of it is removed.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from edgechat.base import paths
from edgechat.base.errors import FolderError, ModelFileError, NotAnAdapter, NotRemovable
from edgechat.base.process.owner import Owner, alive, this_process
from edgechat.base.text import one_line
from edgechat.models.formats.gguf import read_header
from edgechat.models.formats.mlx.contents import read_model
from edgechat.models.local import locations
from edgechat.models.local.files import ModelPartFile, hash_for
from edgechat.models.local.inventory import LocalModel, inventory
from edgechat.models.local.locations import Place
from edgechat.models.local.resolve import find_models

MOST_REMEMBERED = 512
_MAX_BYTES = 16_384
_MAX_PROCESSES = 64


class ModelUse(msgspec.Struct, frozen=True):
    """The most recent use of a model."""

    path: str
    """Path of the file, with all symlinks resolved."""
    when: float
    """Time of use, in seconds since 1970."""
    by: tuple[Owner, ...] = ()
    """Processes that had loaded the model and were still running at that time."""

    @property
    def is_loaded(self) -> bool:
        """Whether any process that loaded the model is still running."""
        return any(alive(process) for process in self.by)


def note_use(path: str) -> None:
    """Record that this process has loaded the model. Errors are ignored."""
    import hashlib  # takes 2 ms, and listing models does not need it

    real = os.path.realpath(path)
    with contextlib.suppress(OSError, FolderError, UnicodeEncodeError):
        file = _folder() / hashlib.sha256(real.encode()).hexdigest()[:40]
        previous = _read(file)
        still_running = [process for process in previous.by if alive(process)] if previous is not None else []
        use = ModelUse(real, time.time(), (*still_running[-_MAX_PROCESSES:], this_process()))
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        paths.replace(file, msgspec.json.encode(use))
        paths.keep_newest(file.parent, MOST_REMEMBERED)


def uses() -> dict[str, ModelUse]:
    """Return the most recent use of each model, keyed by the model's real path."""
    latest: dict[str, ModelUse] = {}
    with contextlib.suppress(OSError, FolderError):
        for entry in list(os.scandir(_folder()))[: 2 * MOST_REMEMBERED]:
            use = None if entry.name.startswith(".") else _read(Path(entry.path))
            if use is not None:
                latest[use.path] = use
    return latest


def use_of(path: Path) -> ModelUse | None:
    """Return the most recent use of one model, or None."""
    return uses().get(os.path.realpath(path))


def _folder() -> Path:
    return paths.data_dir() / "used"


def _read(file: Path) -> ModelUse | None:
    try:
        return msgspec.json.decode(paths.read_bytes(file, _MAX_BYTES), type=ModelUse)
    except (OSError, msgspec.MsgspecError, RecursionError, ValueError):
        return None


_CHUNK = 4 << 20


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of a verification."""

    hashed: bool
    """Whether all files were compared with known hashes. If False, only headers and sizes were checked."""
    damage: str = ""
    """What is wrong, or '' if the model is intact."""


def verify(
    model: LocalModel,
    on_progress: Callable[[int], None] = lambda _n: None,
    *,
    check: Callable[[Path], object] = read_model,
) -> Verification:
    """Verify a model by its hashes if they are known, or else by its format.

    on_progress: called with the number of bytes read. check: called with the model's path to check the
    format. Raises EdgechatError.
    """
    hashed = all(file.digest for file in model.found.all_files)
    try:
        check(model.path)  # first, because hashing a file that is mostly a hole would take hours
        for file in model.found.all_files[len(model.found.files) :]:
            read_header(file.path)
    except (ModelFileError, NotAnAdapter) as error:
        return Verification(hashed, error.message)
    n_read = 0
    for file in model.found.all_files:
        if file.digest is None:
            continue
        hasher = hash_for(file.digest, file.size)
        try:
            with file.path.open("rb") as stream:
                while chunk := stream.read(_CHUNK):
                    hasher.update(chunk)
                    n_read += len(chunk)
                    on_progress(n_read)
        except OSError as error:
            return Verification(hashed, f"{file.path.name} cannot be read: {error.strerror or error}.")
        if hasher.hexdigest() != file.digest:
            return Verification(hashed, f"The hash of {file.path.name} does not match.")
    return Verification(hashed)


@dataclass(frozen=True, slots=True)
class Removal:
    """A removal that has been prepared but not carried out."""

    files: tuple[Path, ...]
    frees: int
    """Number of bytes that the removal frees. A file with another hard link does not free any."""
    run: Callable[[], None]
    """Function that carries out the removal. It raises NotRemovable."""


def single_model(name: str) -> LocalModel:
    """Return the only model that a name or path refers to.

    Raises NotRemovable if there are several, and ModelNotFound or ModelFileError if there is none.
    """
    models = find_models(name)
    if len(models) > 1:
        names = ", ".join(one_line(model.name) for model in models)
        raise NotRemovable(f"{one_line(name)} matches several models: {names}.", hint="Choose one of them.")
    return models[0]


def removal(model: LocalModel, derived: Sequence[Path] = ()) -> Removal:
    """Prepare the removal of a model without removing anything yet. Raises NotRemovable.

    derived: files that edgechat created from the model, to be removed along with it.
    """
    if model.place not in (Place.OWN, Place.HUB):
        raise _not_ours(model)
    use = use_of(model.path)
    if use is not None and use.is_loaded:
        raise NotRemovable(f"{model.name} is loaded by a running edgechat.", hint="Close it, then try again.")
    files = tuple(file.path for file in (*model.found.files, *_own_companions(model)))
    if model.place is Place.OWN:
        return _of_own(model, (*files, *derived))
    ours, others = _of_hub(model, files), _of_own(model, tuple(derived))

    def run() -> None:
        ours.run()
        others.run()

    return Removal(ours.files + others.files, ours.frees + others.frees, run)


def _own_companions(model: LocalModel) -> tuple[ModelPartFile, ...]:
    """Return the model's projector and drafting layers, leaving out those that another model uses."""
    companions = model.found.all_files[len(model.found.files) :]
    if not companions:
        return ()
    others = (other.found for other in inventory().models if other.path != model.path)
    used = {os.path.realpath(file.path) for found in others for file in found.all_files[len(found.files) :]}
    return tuple(file for file in companions if os.path.realpath(file.path) not in used)


def _not_ours(model: LocalModel) -> NotRemovable:
    path = shlex.quote(one_line(str(model.path), 500))
    match model.place:
        case Place.SHIPPED:
            message = f"{one_line(model.name)} is part of edgechat; uninstalling edgechat removes it."
            return NotRemovable(message, hint="It takes only a few MiB.")
        case Place.OLLAMA:
            whose = "Ollama's"
            hint = "Remove it with Ollama: " + "; ".join(f"ollama rm {tag}" for tag in model.found.tags)
        case Place.LM_STUDIO:
            whose, hint = "LM Studio's", "Remove it in LM Studio, under My Models."
        case Place.LLAMA_CPP:
            whose, hint = "llama.cpp's", f"llama.cpp has no command for that; remove the file: rm {path}"
        case _:
            whose = "not in edgechat's folder"
            command = f"folder yourself: rm -r {path}"
            if model.found.format == "gguf":
                command = f"file yourself: rm {path}"
            hint = f"Remove the {command}"
    return NotRemovable(f"{model.name} is {whose}, so edgechat does not remove it.", hint=hint)


def _of_own(model: LocalModel, files: tuple[Path, ...]) -> Removal:
    def run() -> None:
        for path in files:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise _not_removable(path, error) from error
        if model.found.format != "gguf":
            with contextlib.suppress(OSError):  # other kinds of files may be there
                model.path.rmdir()

    return Removal(files, sum(_freed_bytes(path) for path in files), run)


def _freed_bytes(path: Path) -> int:
    info = os.lstat(path)
    return info.st_size if info.st_nlink == 1 and not path.is_symlink() else 0


def _of_hub(model: LocalModel, wanted: tuple[Path, ...]) -> Removal:
    from huggingface_hub import CacheNotFound, scan_cache_dir

    try:
        cache = scan_cache_dir(locations.hub_cache())
    except (CacheNotFound, OSError, ValueError) as error:
        raise _invalid_cache(model, str(error)) from error
    models = (repo for repo in cache.repos if repo.repo_type == "model")
    repo = next((repo for repo in models if repo.repo_id == model.found.repo), None)
    if repo is None:
        raise _invalid_cache(model, "; ".join(one_line(str(warning)) for warning in cache.warnings))
    everything = [file for revision in repo.revisions for file in revision.files]
    chosen = [file for file in everything if file.file_path in wanted]
    if model.found.format == "gguf":  # an MLX model's small files are the same in many revisions
        blobs = {file.blob_path for file in chosen}
        chosen = [file for file in everything if file.blob_path in blobs]
    # Files must be inside the repository: a symlink could point to any file.
    inside = (repo.repo_path / "blobs", *(revision.snapshot_path for revision in repo.revisions))
    for file in chosen:
        if not any(folder in file.blob_path.parents for folder in inside):
            raise _invalid_cache(model, f"{file.file_path} is a link to a place outside it")
    # A renamed repository is in the cache twice, with the same commits. Remove only this copy.
    cache = replace(cache, repos=frozenset({repo}))
    unfinished = any((repo.repo_path / "blobs").glob("*.incomplete"))
    if len(chosen) == len(everything) and not unfinished:
        strategy = cache.delete_revisions(*(revision.commit_hash for revision in repo.revisions))
    else:
        strategy = cache.delete_files(*chosen)

    def run() -> None:
        try:
            strategy.execute()
        except OSError as error:
            raise _not_removable(repo.repo_path, error) from error

    files = tuple(sorted(file.file_path for file in chosen))
    return Removal(files, strategy.expected_freed_size, run)


def _invalid_cache(model: LocalModel, why: str) -> NotRemovable:
    return NotRemovable(
        f"huggingface_hub finds no valid repository {model.found.repo} in its cache"
        + (f": {one_line(why, 300)}." if why else "."),
        hint="To see what it finds: hf cache list",
    )


def _not_removable(path: Path, error: OSError) -> NotRemovable:
    return NotRemovable(
        f"{one_line(str(path), 300)} cannot be removed: {error.strerror or error}.",
        hint="Check the permissions of its folder.",
    )
