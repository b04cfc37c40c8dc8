"""A bounded reader of safetensors headers: the table of a file's tensors, without their bytes.

    uint64 n, n bytes of JSON: {"name": {"dtype": "U32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}

The format: https://github.com/huggingface/safetensors. Where MLX believes a table, this does not: tensors lie
one after the other without holes, as the format wants it, and end where the file does.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta

from edgechat.base.errors import ModelFileError
from edgechat.models.formats.limits import MAX_NUMBER, show, unsound

PREFIX = 8
"""Bytes before the table: its length."""
MAX_TABLE = 32 << 20
"""Bytes of a file's table; a tensor takes about a hundred."""
MAX_TENSORS = 65_536
MAX_NAME = 512
"""Bytes of a tensor's name."""
MAX_DIMS = 8

_BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64"), 8),
}

_Count = Annotated[int, Meta(ge=0, le=MAX_NUMBER)]
_Offset = Annotated[int, Meta(ge=0, le=2**62)]


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of the table."""

    name: str
    dtype: str
    """In the format's spelling: 'BF16', 'U32'."""
    shape: tuple[int, ...]
    """The contiguous dimension last, unlike in GGUF."""
    offset: int
    """Bytes from the start of its file's data."""
    n_bytes: int


class _Entry(msgspec.Struct):
    dtype: str
    shape: Annotated[list[_Count], Meta(max_length=MAX_DIMS)]
    data_offsets: tuple[_Offset, _Offset]


def table_length(prefix: bytes | bytearray, file_size: int, name: str) -> int:
    """Return the bytes of the table that the first PREFIX bytes of a file announce. Raises ModelFileError."""
    if file_size < PREFIX or len(prefix) < PREFIX:
        raise unsound(name, "it is too short to be a safetensors file")
    (n,) = struct.unpack_from("<Q", prefix)
    if prefix[:7] == b"version":
        raise ModelFileError(
            f"{name} is a Git LFS pointer: the file itself was not downloaded.",
            hint="Download the model again, with Git LFS or with edgechat pull.",
        )
    if not 2 <= n <= min(MAX_TABLE, file_size - PREFIX):
        raise unsound(name, f"it is not a safetensors file, or its table of {n} bytes is incomplete")
    return int(n)


def parse_table(table: bytes | bytearray, file_size: int, name: str) -> tuple[StoredTensor, ...]:
    """Return the tensors of a file of `file_size` bytes from its table, by their place in it.

    Raises ModelFileError for everything that makes the file unfit, one that is cut short among it.
    """
    try:
        raw = msgspec.json.decode(table, type=dict[str, msgspec.Raw])
        raw.pop("__metadata__", None)
        if len(raw) > MAX_TENSORS:
            raise unsound(name, f"it lists {len(raw)} tensors")
        tensors = [
            _stored(key, msgspec.json.decode(tensor, type=_Entry), name) for key, tensor in raw.items()
        ]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise unsound(name, f"its table of tensors is not valid ({error})") from error
    tensors.sort(key=lambda tensor: tensor.offset)
    at, n_data = 0, file_size - PREFIX - len(table)
    for tensor in tensors:
        if tensor.offset != at:
            raise unsound(name, f"the tensor {show(tensor.name)} does not begin where the one before it ends")
        at += tensor.n_bytes
    if at != n_data:
        what = "is truncated" if at > n_data else "has bytes that belong to no tensor"
        raise unsound(name, f"it {what}: its tensors take {at} bytes")
    return tuple(tensors)


def _stored(key: str, entry: _Entry, name: str) -> StoredTensor:
    size = _BYTES.get(entry.dtype)
    if size is None or not key or len(key.encode("utf-8", "replace")) > MAX_NAME:
        raise unsound(name, f"its tensor {show(key)} has the unknown type {show(entry.dtype)}")
    first, end = entry.data_offsets
    n_bytes = size * math.prod(entry.shape)
    if end - first != n_bytes:
        raise unsound(name, f"the tensor {show(key)} takes {end - first} bytes, not {n_bytes}")
    return StoredTensor(key, entry.dtype, tuple(entry.shape), first, n_bytes)
