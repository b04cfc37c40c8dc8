"""Removal of models from our own folder or from the hub's cache, with the projector that only they use.

There huggingface_hub removes it, so that the cache stays one: first the file's names in all revisions, then
its bytes, if no other file of the repository shares them. A repository with nothing else in it goes whole.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from edgechat.base.errors import NotRemovable
from edgechat.base.text import one_line
from edgechat.models.local import locations
from edgechat.models.local.inventory import LocalModel, inventory
from edgechat.models.local.locations import Place
from edgechat.models.local.resolve import find_models
from edgechat.models.local.scan import ModelPartFile
from edgechat.models.local.usage import use_of


@dataclass(frozen=True, slots=True)
class Removal:
    """A prepared removal."""

    files: tuple[Path, ...]
    frees: int
    """Bytes that become free; a file with another hard link frees none."""
    run: Callable[[], None]
    """Removes it. Raises NotRemovable."""


def single_model(name: str) -> LocalModel:
    """Return the one model that a name or a path means.

    Raises NotRemovable where it means several; ModelNotFound, ModelFileError.
    """
    models = find_models(name)
    if len(models) > 1:
        names = ", ".join(one_line(model.name) for model in models)
        raise NotRemovable(f"{one_line(name)} matches several models: {names}.", hint="Choose one of them.")
    return models[0]


def removal(model: LocalModel, derived: Sequence[Path] = ()) -> Removal:
    """Prepare the removal of a model; nothing is removed yet. Raises NotRemovable.

    derived: files of ours that were made of it, which go with it.
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
    """Return the projector and the drafting layers of a model, unless another model uses them."""
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
            message = f"{one_line(model.name)} is part of edgechat, and is removed with it."
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
            with contextlib.suppress(OSError):  # something of another kind may lie there
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
    if model.found.format == "gguf":  # an MLX model's small files are the same in many revisions and models
        blobs = {file.blob_path for file in chosen}
        chosen = [file for file in everything if file.blob_path in blobs]
    # What would be removed must lie in the repository: a link could name any file.
    inside = (repo.repo_path / "blobs", *(revision.snapshot_path for revision in repo.revisions))
    for file in chosen:
        if not any(folder in file.blob_path.parents for folder in inside):
            raise _invalid_cache(model, f"{file.file_path} is a link to a place outside it")
    # A repository that was renamed is there twice, with the same commits: only this one is meant.
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
