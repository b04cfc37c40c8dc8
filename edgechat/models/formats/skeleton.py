"""Skeletons: generated GGUF headers that describe only a model's shape.

A dry run needs the architecture's parameters and the tensor table, but not the weights or the tokenizer
(which makes up most of a header). Native code therefore gets a file generated from checked data: a skeleton
of a few tens of kilobytes, followed by a hole as large as the weights. Compressed, a skeleton is only a few
kilobytes.
"""

from __future__ import annotations

import contextlib
import os
import struct
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from edgechat.base.errors import ModelFileError
from edgechat.models.formats.gguf import ARRAY, SCALARS, STRING, aligned, parse_header
from edgechat.models.formats.header import GgufArray, ModelHeader, ModelTensor, Scalar, Value

MAX_ENTRIES = 512
"""Maximum number of metadata entries for the architecture. The most seen so far is sixty."""
MAX_TEXT = 4096
"""Maximum length of a string, in bytes."""
MAX_BYTES = 16 << 20
"""Maximum size of a skeleton, in bytes. The largest tensor table is smaller."""

_GENERAL = ("general.architecture", "general.name", "general.license", "general.file_type")
_DROPPED = "vocab_size"  # derived from the tokenizer, and added back
_TYPES_OF_TOKENS = "tokenizer.ggml.token_type_count"
_VERSION = 3
_SIZE = struct.Struct("<Q")


def skeleton(header: ModelHeader) -> bytes:
    """Return a GGUF header that contains only a model's shape: the architecture's metadata and the tensors.

    The shards of a split model are merged. Raises ModelFileError for an implausible size.
    """
    tensors, _ = _tensor_table(header)
    data = encoded_header(dict(_shape_entries(header)), tensors, header.alignment, header.path)
    if len(data) > MAX_BYTES:
        raise _refused(header.path, f"its shape takes {len(data)} bytes")
    return data


def encoded_header(
    metadata: Mapping[str, Value], tensors: Sequence[ModelTensor], alignment: int, name: str
) -> bytes:
    """Return a GGUF header, up to the start of the tensor data. Raises ModelFileError."""
    entries = [_metadata_entry(key, value, name) for key, value in metadata.items()]
    data = b"GGUF" + struct.pack("<IQQ", _VERSION, len(tensors), len(entries))
    data += b"".join(entries) + b"".join(tensor_info(tensor) for tensor in tensors)
    return data + bytes(-len(data) % alignment)


def write_skeleton(header: ModelHeader, path: Path) -> None:
    """Write the skeleton, followed by a hole as large as the weights. Raises OSError, ModelFileError.

    The hole takes no space on file systems that support sparse files; FAT does not.
    """
    data = skeleton(header)
    with path.open("wb") as file:
        _make_sparse(file)
        file.write(data)
        file.truncate(len(data) + _tensor_table(header)[1])


def pack(header: ModelHeader) -> bytes:
    """Return the model's file size and its compressed skeleton, packed together."""
    return _SIZE.pack(header.file_size) + zlib.compress(skeleton(header), 9)


def unpack(data: bytes, name: str) -> ModelHeader:
    """Unpack a model's header from the result of `pack`. Raises ModelFileError.

    The header contains only a skeleton's metadata and tensors. name: the model's name, for use in messages.
    """
    stream = zlib.decompressobj()
    try:
        (file_size,) = _SIZE.unpack_from(data)
        header = stream.decompress(data[_SIZE.size :], MAX_BYTES)
    except (struct.error, zlib.error) as error:
        raise _refused(name, f"it is not a packed skeleton ({error})") from error
    if not stream.eof:
        raise _refused(name, f"it is truncated, or larger than {MAX_BYTES} bytes")
    return parse_header(header, file_size, name)


def _shape_entries(header: ModelHeader) -> Iterator[tuple[str, Value]]:
    for key in _GENERAL:
        if key in header.metadata:
            yield key, header.metadata[key]
    if header.alignment != 32:
        yield "general.alignment", header.alignment
    prefix = header.architecture + "."
    shape = {key: value for key, value in header.metadata.items() if key.startswith(prefix)}
    shape.pop(prefix + _DROPPED, None)
    if len(shape) > MAX_ENTRIES:
        raise _refused(header.path, f"it has {len(shape)} metadata entries about its shape")
    yield from shape.items()
    yield prefix + _DROPPED, header.vocab_size
    if isinstance(n_types := header.metadata.get(_TYPES_OF_TOKENS), int):  # size of a tensor in encoders
        yield _TYPES_OF_TOKENS, n_types
    yield "tokenizer.ggml.model", "none"


def _tensor_table(header: ModelHeader) -> tuple[list[ModelTensor], int]:
    """Return the tensors with their offsets in a single file, and their total size in bytes."""
    placed: list[ModelTensor] = []
    at = 0
    for tensor in header.tensors:
        placed.append(ModelTensor(tensor.name, tensor.shape, tensor.type, at, tensor.n_bytes))
        at += aligned(tensor.n_bytes, header.alignment)
    return placed, at


def tensor_info(tensor: ModelTensor) -> bytes:
    """Return a tensor's entry in a GGUF file's tensor table."""
    shape = struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape)
    return _string(tensor.name) + shape + struct.pack("<IQ", tensor.type, tensor.offset)


def _metadata_entry(key: str, value: Value, path: str) -> bytes:
    """Return an encoded metadata entry. Raises ModelFileError, naming `path`, if it is too large."""
    try:
        if isinstance(value, GgufArray):
            return _string(key) + struct.pack("<I", ARRAY) + _array(value)
        if isinstance(value, str):
            return _string(key) + struct.pack("<I", STRING) + _string(value)
        number, form = SCALARS[_type_of(value)]
        return _string(key) + struct.pack(f"<I{form}", number, value)
    except ValueError as error:
        raise _refused(path, f"its entry {key[:60]!a} is {error}") from error


def _array(array: GgufArray) -> bytes:
    if array.values is None:
        raise ValueError(f"a list of {array.count}")
    if array.type == "string":
        texts = b"".join(_string(str(value)) for value in array.values)
        return struct.pack("<IQ", STRING, array.count) + texts
    number, form = SCALARS[array.type]
    return struct.pack(f"<IQ{array.count}{form}", number, array.count, *array.values)


def _type_of(value: Scalar) -> str:
    """Return the usual type for a value. llama.cpp requires counts to be uint32."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, float):
        with contextlib.suppress(OverflowError):
            struct.pack("<f", value)
            return "float32"
        return "float64"
    if -(2**31) <= int(value) < 0:
        return "int32"
    return "uint32" if 0 <= int(value) < 2**32 else "uint64" if int(value) > 0 else "int64"


def _string(text: str) -> bytes:
    raw = text.encode("utf-8", "replace")
    if len(raw) > MAX_TEXT:
        raise ValueError(f"a string of {len(raw)} bytes")
    return _SIZE.pack(len(raw)) + raw


def _make_sparse(file: BinaryIO) -> None:
    """Make the file sparse on Windows. Other systems do this by default."""
    if sys.platform == "win32":
        import ctypes
        import msvcrt

        control = ctypes.windll.kernel32.DeviceIoControl
        control.argtypes = [ctypes.c_void_p, ctypes.c_uint32, *[ctypes.c_void_p, ctypes.c_uint32] * 2]
        control.argtypes += [ctypes.c_void_p] * 2
        done = ctypes.c_uint32()
        set_sparse = 0x000900C4
        if not control(
            msvcrt.get_osfhandle(file.fileno()), set_sparse, None, 0, None, 0, ctypes.byref(done), None
        ):
            raise OSError("this file system does not support sparse files")


def _refused(path: str, why: str) -> ModelFileError:
    return ModelFileError(
        f"The header of {os.path.basename(path)} cannot be copied for a dry run: {why}.",
        hint="The file may be damaged. Use another copy of this model.",
    )
