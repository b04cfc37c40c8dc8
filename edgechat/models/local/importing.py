"""Import of users' models into edgechat's folder, sharing their bytes on disk if possible.

Files are cloned if the file system supports that, otherwise hard-linked, and copied as a last resort. A split
model or an MLX folder is imported completely or not at all, and nothing is ever overwritten. The model's
projector is imported with it. If a model was split at arbitrary byte offsets, the parts are joined. If a file
also contains a vision tower, only the text model is copied.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import struct
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

from edgechat.base.errors import NotImported
from edgechat.base.text import mebibytes, one_line
from edgechat.models.choices import quant_label, without_label
from edgechat.models.formats.gguf import aligned, one_model, read_growing, read_header
from edgechat.models.formats.header import ModelHeader, ModelTensor
from edgechat.models.formats.importable import ByteParts, VisionInside, byte_parts, is_for_text, part_error
from edgechat.models.formats.mlx.config import folder_name
from edgechat.models.formats.mlx.contents import read_model
from edgechat.models.formats.skeleton import tensor_info
from edgechat.models.hub.names import safe_path
from edgechat.models.local import locations
from edgechat.models.local.inventory import LocalModel
from edgechat.models.local.locations import Place
from edgechat.models.local.resolve import find_models
from edgechat.models.local.stores import models_in

How = Literal["cloned", "linked", "copied", "moved", "text", "joined"]
"""How a model was imported. 'text' means that the text model was copied without the vision tower, and
'joined' that the parts were joined.
"""

_CHUNK = 4 << 20
RESERVE = 1 << 26
"""Number of bytes to leave free on the disk."""
SHARD_NUMBER = re.compile(r"-\d{5}-of-\d{5}\.gguf$", re.ASCII)
_FICLONE = 0x40049409
DRAFT = ".part"
DRAFT_LOCK = "lock"
"""File in a draft's folder that is locked while the draft is being written."""
_STALE_AFTER = 3600.0
"""Age in seconds after which a draft is considered abandoned."""


@dataclass(frozen=True, slots=True)
class ImportedModel:
    """A model that has been imported."""

    path: Path
    how: How


def import_model(
    file: str, *, name: str | None = None, move: bool = False, on_progress: Callable[[int, int], None]
) -> ImportedModel:
    """Import a model under `name`, which defaults to the name of its file or folder.

    on_progress: called with the number of bytes copied and the total. Raises ModelNotFound, ModelFileError,
    NotImported.
    """
    path = Path(os.path.abspath(os.path.expanduser(file)))
    if os.path.isfile(path) and (parts := byte_parts(path)) is not None:
        return _import_parts(path, parts, name=name, move=move, on_progress=on_progress)
    model = find_models(file)[0]
    try:
        read_model(model.path)
        place_all = _place_all
    except VisionInside:
        if move:
            raise NotImported(
                f"Only part of {one_line(file)} is imported, so it cannot be moved.", hint="Omit --move."
            ) from None
        place_all = _place_text_part
    if model.place in (Place.OWN, Place.SHIPPED):
        raise NotImported(
            f"{model.name} is already in edgechat's folder.", hint=f"To use it: edgechat run {model.name}"
        )
    if move and model.place is not Place.ELSEWHERE:
        raise NotImported(
            f"{model.name} belongs to {model.place.value}, so it cannot be moved.", hint="Omit --move."
        )
    sources = [Path(os.path.realpath(part.path)) for part in model.found.files]
    if move and sources[0] != model.found.files[0].path:
        raise NotImported(f"{one_line(file)} is a link to {sources[0]}.", hint="Omit --move.")
    folder = locations.own_folder()
    targets = _targets(folder, model, name)
    kept: set[Path] = set()
    projector = _new_projector(model, folder, targets[0])
    if projector is not None:
        sources.append(projector.source)
        targets.append(projector.target)
        kept = {projector.source} if projector.is_shared else kept
    for target in targets:
        if os.path.lexists(target):
            raise name_in_use(target)
    try:
        targets[0].parent.mkdir(parents=True, exist_ok=True)
        remove_old_drafts(folder)
        pairs = list(zip(sources, targets, strict=True))
        how = place_all(pairs, move=move, kept=kept, on_progress=on_progress)
    except FileExistsError as error:
        raise name_in_use(Path(error.filename2 or error.filename)) from error
    except OSError as error:
        raise NotImported(
            f"{one_line(file)} cannot be imported into {folder}: {error.strerror or error}.",
            hint="Check the permissions of the folder and the free disk space.",
        ) from error
    finally:
        if targets[0].parent != folder:
            with contextlib.suppress(OSError):  # not empty if the import succeeded
                targets[0].parent.rmdir()
    return ImportedModel(targets[0].parent if model.found.format == "mlx" else targets[0], how)


def _import_parts(
    path: Path, parts: ByteParts, *, name: str | None, move: bool, on_progress: Callable[[int, int], None]
) -> ImportedModel:
    """Join the parts of a split model into one file. move: whether to remove the parts afterwards."""
    size = check_parts(path, parts)
    folder = locations.own_folder()
    target = folder / _file_name(Path(parts.whole), name)
    if os.path.lexists(target):
        raise name_in_use(target)
    draft = folder / f".{uuid.uuid4().hex[:12]}{DRAFT}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove_old_drafts(folder)
        check_free(folder, size)
        join(parts, draft, size, lambda n: on_progress(n, size))
        rename_new(draft, target)
        if move:
            for part in parts.paths:
                part.unlink()
    except FileExistsError as error:
        raise name_in_use(target) from error
    except OSError as error:
        raise NotImported(
            f"{one_line(str(path))} cannot be joined in {folder}: {error.strerror or error}.",
            hint="Check the permissions of the folder and the free disk space.",
        ) from error
    finally:
        draft.unlink(missing_ok=True)
    return ImportedModel(target, "joined")


def _targets(folder: Path, model: LocalModel, name: str | None) -> list[Path]:
    """Return the paths for the imported files. An MLX model gets a folder of its own."""
    if model.found.format == "gguf":
        if name is None and model.place is Place.OLLAMA:  # Ollama names files by hash
            name = model.found.tags[0].rpartition("/")[2].replace(":", "-")
        return [folder / _file_name(part.path, name) for part in model.found.files]
    model_folder = folder / check_name(folder_name(model.path).rpartition("/")[2] if name is None else name)
    if os.path.lexists(model_folder):
        raise name_in_use(model_folder)
    return [model_folder / part.path.name for part in model.found.files]


def _file_name(path: Path, name: str | None) -> str:
    """Return a file's name in our folder. Shards keep their shard numbers."""
    new_name = path.name if name is None else name.removesuffix(".gguf")
    if name is not None:
        number = SHARD_NUMBER.search(path.name)
        new_name += number[0] if number else ".gguf"
    elif not new_name.lower().endswith(".gguf"):
        new_name += ".gguf"
    return check_name(new_name)


class _NewProjector(NamedTuple):
    source: Path
    target: Path
    is_shared: bool
    """Whether other models also use the source."""


def _new_projector(model: LocalModel, folder: Path, imported: Path) -> _NewProjector | None:
    """Return a model's projector and its target, or None if it has none or the target already exists.

    The target is named after the model without its quantization, so that all quantizations can share it.
    """
    projector = model.found.projector
    if projector is None:
        return None
    label = quant_label(projector.path.stem)
    name = without_label(SHARD_NUMBER.sub("", imported.name).removesuffix(".gguf")).strip("-._ ")
    target = folder / check_name("-".join(filter(None, ("mmproj", name, label))) + ".gguf")
    if target.is_file() and target.stat().st_size == projector.size:
        return None
    users = [other for other in models_in(projector.path.parent) if other.projector == projector]
    return _NewProjector(Path(os.path.realpath(projector.path)), target, len(users) > 1)


def check_name(name: str) -> str:
    """Return `name` if it is a valid name for a model. Raises NotImported."""
    if "/" in name or not safe_path(name) or name.startswith("."):
        raise NotImported(
            f"{one_line(name)!r} is not a valid name for a model.",
            hint="Choose a name consisting of letters and digits: --name my-model",
        )
    return name


def _place_all(
    pairs: list[tuple[Path, Path]], *, move: bool, kept: set[Path], on_progress: Callable[[int, int], None]
) -> How:
    """Import all files or none. The first file comes last, because the others are not a model without it.

    kept: sources that are never moved.
    """
    placed: list[Path] = []
    how: How = "linked"
    sizes = [source.stat().st_size for source, _ in pairs]
    before = 0
    try:
        for (source, target), size in reversed(list(zip(pairs, sizes, strict=True))):
            progress = _offset(before, sum(sizes), on_progress)
            how = _place_one(source, target, clone=not move or source in kept, on_progress=progress)
            placed.append(target)
            before += size
    except BaseException:
        for target in placed:
            target.unlink()
        raise
    if move:
        for source, _ in pairs:
            if source not in kept:
                source.unlink()
    return "moved" if move else how


def _place_text_part(
    pairs: list[tuple[Path, Path]], *, move: bool, kept: set[Path], on_progress: Callable[[int, int], None]
) -> How:
    """Import only the text model, without a projector. The source file is never moved."""
    source, target = pairs[0]
    total = text_bytes(read_header(source))
    check_free(target.parent, total)
    draft = target.with_name(f".{uuid.uuid4().hex[:12]}{DRAFT}")
    try:
        write_text_part(source, draft, lambda n: on_progress(n, total))
        rename_new(draft, target)
    finally:
        draft.unlink(missing_ok=True)
    return "text"


def _offset(before: int, total: int, on_progress: Callable[[int, int], None]) -> Callable[[int], None]:
    return lambda n: on_progress(before + n, total)


def _place_one(source: Path, target: Path, *, clone: bool, on_progress: Callable[[int], None]) -> How:
    draft = target.with_name(f".{uuid.uuid4().hex[:12]}{DRAFT}")
    try:
        if clone and _cloned(source, draft):
            rename_new(draft, target)
            return "cloned"
        if _hard_linked(source, target):
            return "linked"
        _copy(source, draft, on_progress)
        rename_new(draft, target)
    finally:
        draft.unlink(missing_ok=True)
    return "copied"


def remove_old_drafts(folder: Path) -> None:
    """Remove drafts left behind by a killed import (files) or a killed `quantize` (folders)."""
    from filelock import FileLock

    for draft in folder.glob(f"**/.*{DRAFT}"):
        with contextlib.suppress(OSError):
            changed = max(path.stat().st_mtime for path in (draft, *draft.glob("*")))
            if time.time() - changed <= _STALE_AFTER:
                continue
            if draft.is_dir():
                # A draft in progress may not change for hours. In that case this raises Timeout, an OSError.
                with FileLock(draft / DRAFT_LOCK, timeout=0):
                    pass
                shutil.rmtree(draft)
            else:
                draft.unlink()


def _hard_linked(source: Path, target: Path) -> bool:
    try:
        os.link(source, target)
    except FileExistsError:
        raise
    except OSError:  # another disk, another user's file, or an unsupported file system
        return False
    return True


def _cloned(source: Path, target: Path) -> bool:
    """Clone a file copy-on-write (supported by btrfs, XFS and bcachefs). Return False if that fails."""
    if sys.platform != "linux":
        return False
    import fcntl

    try:
        with source.open("rb") as old, target.open("xb") as new:
            fcntl.ioctl(new.fileno(), _FICLONE, old.fileno())
        shutil.copystat(source, target)
    except OSError:
        target.unlink(missing_ok=True)
        return False
    return True


def check_free(folder: Path, size: int, hint: str = "Free some space.") -> None:
    """Raise NotImported unless there is enough free space for a copy of `size` bytes."""
    free = shutil.disk_usage(folder).free
    if size + RESERVE > free:
        raise NotImported(
            f"The copy needs {mebibytes(size)}, but the disk of {folder} has only {mebibytes(free)} free.",
            hint=hint,
        )


def _copy(source: Path, target: Path, on_progress: Callable[[int], None]) -> None:
    size = source.stat().st_size
    check_free(target.parent, size, "Free some space, or move the file instead: --move")
    done = 0
    with source.open("rb") as old, target.open("xb") as new:
        while chunk := old.read(_CHUNK):
            new.write(chunk)
            done += len(chunk)
            on_progress(done)
        new.flush()
        os.fsync(new.fileno())
    if done != size:
        raise NotImported(f"{source.name} was changed while it was being copied.", hint="Try again.")
    shutil.copystat(source, target)


def rename_new(draft: Path, target: Path) -> None:
    """Rename a finished file, never replacing an existing one."""
    if _hard_linked(draft, target):
        return
    if os.path.lexists(target):  # no hard links on this disk, so the check is not atomic
        raise FileExistsError(17, "the name is in use", str(target))
    os.rename(draft, target)


def name_in_use(target: Path) -> NotImported:
    """Return the error for a name that is already taken by another model."""
    return NotImported(
        f"A model with that name already exists: {one_line(str(target), 300)}.",
        hint="Choose another name (--name), or remove the existing model: edgechat rm "
        f"{one_line(target.stem)}",
    )


_START = struct.Struct("<4sIQQ")
"""Magic bytes, version, number of tensors, and number of metadata entries."""


def text_bytes(header: ModelHeader) -> int:
    """Return the approximate size of a copy of the text model, in bytes."""
    return header.data_offset + sum(
        aligned(tensor.n_bytes, header.alignment) for tensor in header.tensors if is_for_text(tensor)
    )


def write_text_part(source: Path, target: Path, on_progress: Callable[[int], None]) -> None:
    """Copy the text model to a new file without changing the metadata.

    on_progress: called with the number of bytes written. Raises ModelFileError and OSError, and NotImported
    if the source changes in the meantime.
    """
    header = read_header(source)
    kept = [tensor for tensor in header.tensors if is_for_text(tensor)]
    with source.open("rb") as old, target.open("xb") as new:
        _, version, _, n_entries = _START.unpack(old.read(_START.size))
        new.write(_START.pack(b"GGUF", version, len(kept), n_entries))
        _copy_bytes(old, new, header.table_offset - _START.size)
        at = 0
        for tensor in kept:
            new.write(tensor_info(replace(tensor, offset=at)))
            at += aligned(tensor.n_bytes, header.alignment)
        _pad(new, header.alignment)
        for tensor in kept:
            _copy_tensor(old, new, header, tensor)
            on_progress(new.tell())
        new.flush()
        os.fsync(new.fileno())
    shutil.copystat(source, target)


def _copy_tensor(old: BinaryIO, new: BinaryIO, header: ModelHeader, tensor: ModelTensor) -> None:
    old.seek(header.data_offset + tensor.offset)
    _copy_bytes(old, new, tensor.n_bytes)
    _pad(new, header.alignment)


def _copy_bytes(old: BinaryIO, new: BinaryIO, n: int) -> None:
    while n:
        chunk = old.read(min(n, _CHUNK))
        if not chunk:
            raise NotImported("The file was changed while it was being copied.", hint="Try again.")
        new.write(chunk)
        n -= len(chunk)


def _pad(new: BinaryIO, alignment: int) -> None:
    new.write(bytes(-new.tell() % alignment))


def check_parts(path: Path, parts: ByteParts) -> int:
    """Return the total size of the parts in bytes. Raises ModelFileError unless they form a model."""
    if parts.missing:
        raise part_error(path, parts)
    size = sum(part.stat().st_size for part in parts.paths)

    def read_first(n: int) -> bytes:
        found = b""
        for part in parts.paths:
            with part.open("rb") as file:
                found += file.read(n - len(found))
        return found

    with contextlib.suppress(VisionInside):  # reported when the model is run
        one_model([read_growing(read_first, size, parts.whole)])
    return size


def join(parts: ByteParts, target: Path, size: int, on_progress: Callable[[int], None]) -> None:
    """Join all parts into a new file of `size` bytes.

    on_progress: called with the number of bytes written. Raises OSError, and NotImported if the parts change
    in the meantime.
    """
    with target.open("xb") as new:
        for part in parts.paths:
            with part.open("rb") as old:
                while chunk := old.read(_CHUNK):
                    new.write(chunk)
                    on_progress(new.tell())
        if new.tell() != size:
            raise NotImported(
                f"The parts of {parts.whole} were changed while they were being joined.", hint="Try again."
            )
        new.flush()
        os.fsync(new.fileno())
