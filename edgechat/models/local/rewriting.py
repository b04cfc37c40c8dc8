"""Files that an import writes anew: parts of a model that are joined, and a text model taken out of a file.

See `formats/byte_parts.py` and `formats/vision_inside.py`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from edgechat.base.errors import NotImported
from edgechat.models.formats.byte_parts import ByteParts, part_error
from edgechat.models.formats.gguf import aligned, one_model, read_growing, read_header
from edgechat.models.formats.header import ModelHeader, ModelTensor
from edgechat.models.formats.skeleton import tensor_info
from edgechat.models.formats.vision_inside import VisionInside, is_for_text

_START = struct.Struct("<4sIQQ")
"""Magic, version, and how many tensors and entries follow."""
_CHUNK = 4 << 20


def text_bytes(header: ModelHeader) -> int:
    """Return about how many bytes the copy takes."""
    return header.data_offset + sum(
        aligned(tensor.n_bytes, header.alignment) for tensor in header.tensors if is_for_text(tensor)
    )


def write_text_part(source: Path, target: Path, on_progress: Callable[[int], None]) -> None:
    """Write the copy to a new file; the metadata stays as it is.

    on_progress: called with the bytes written. Raises ModelFileError, OSError, and NotImported if the source
    changes meanwhile.
    """
    header = read_header(source)
    kept = [tensor for tensor in header.tensors if is_for_text(tensor)]
    with source.open("rb") as old, target.open("xb") as new:
        _, version, _, n_entries = _START.unpack(old.read(_START.size))
        new.write(_START.pack(b"GGUF", version, len(kept), n_entries))
        _copy(old, new, header.table_offset - _START.size)
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
    _copy(old, new, tensor.n_bytes)
    _pad(new, header.alignment)


def _copy(old: BinaryIO, new: BinaryIO, n: int) -> None:
    while n:
        chunk = old.read(min(n, _CHUNK))
        if not chunk:
            raise NotImported("The file was changed while it was copied.", hint="Try again.")
        new.write(chunk)
        n -= len(chunk)


def _pad(new: BinaryIO, alignment: int) -> None:
    new.write(bytes(-new.tell() % alignment))


def check_parts(path: Path, parts: ByteParts) -> int:
    """Return the bytes of all parts together, which must be a model. Raises ModelFileError."""
    if parts.missing:
        raise part_error(path, parts)
    size = sum(part.stat().st_size for part in parts.paths)

    def read_first(n: int) -> bytes:
        found = b""
        for part in parts.paths:
            with part.open("rb") as file:
                found += file.read(n - len(found))
        return found

    with contextlib.suppress(VisionInside):  # whoever runs it is told
        one_model([read_growing(read_first, size, parts.whole)])
    return size


def join(parts: ByteParts, target: Path, size: int, on_progress: Callable[[int], None]) -> None:
    """Write all parts into a new file of `size` bytes.

    on_progress: called with the bytes written. Raises OSError, and NotImported if they change meanwhile.
    """
    with target.open("xb") as new:
        for part in parts.paths:
            with part.open("rb") as old:
                while chunk := old.read(_CHUNK):
                    new.write(chunk)
                    on_progress(new.tell())
        if new.tell() != size:
            raise NotImported(
                f"The parts of {parts.whole} were changed while they were joined.", hint="Try again."
            )
        new.flush()
        os.fsync(new.fileno())
