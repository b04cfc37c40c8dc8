"""GGUF header parser with strict limits, which checks files before native code sees them.

Files are untrusted: every length and count is checked against the file's size and a limit before anything is
allocated. The same parser handles local files and the first megabytes of remote ones. It is as strict as
llama.cpp's loader. For the format, see https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import re
import stat
import struct
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import chain
from pathlib import Path

from edgechat.base.errors import ModelFileError
from edgechat.base.text import mebibytes
from edgechat.models.formats.header import (
    AGAIN,
    MAX_PARTS,
    GgufArray,
    ModelHeader,
    ModelTensor,
    Scalar,
    Value,
    show,
)
from edgechat.models.formats.importable import byte_parts, check_text_only, part_error
from edgechat.models.formats.mtp import is_head_alone
from edgechat.models.formats.quants import REFUSED, GgmlType

FIRST_READ = 8 << 20
"""Number of bytes in the first read of a remote file. This is enough for most models."""
FIRST_LOCAL_READ = 32 << 20
"""Number of bytes in the first read of a local file, which is enough for all models. Reading less could mean
parsing a large vocabulary twice, which takes longer.
"""
MAX_TAIL = 1 << 20
"""Number of bytes allowed after the last tensor. Loaders map the whole file, which an attacker could make
arbitrarily large at no cost by adding a hole.
"""
TENSORS_BESIDE, TENSORS_OF_LAYER, MOST_LAYERED = 256, 64, 256
"""Maximum number of tensors in a model: 256, plus 64 per layer for up to 256 layers.

A layer with eight separate experts has 33 tensors. llama.cpp searches tensors linearly, which takes time
quadratic in their number.
"""
MAX_KEYS = 65_536
MAX_KEY = 65_535
MAX_TENSOR_NAME = 63
"""Maximum length in bytes, as in llama.cpp: one less than the size of its buffer."""
MAX_DIMS = 4
MAX_ALIGNMENT = 1 << 14
"""The size of the largest memory pages. This limit keeps the padding between tensors small."""
MAX_SIZE = 2**63 - 1

_SHORTEST_KEY, _SHORTEST_TENSOR = 13, 24
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)

_WEB_PAGE = "a web page: the download needs a different URL, or a login"
_GGML = "a GGML file, a format from 2023 that is no longer supported"
_KNOWN_MAGIC = {
    b"PK\x03\x04": "a zip or PyTorch file",
    b"ggml": _GGML,
    b"lmgg": _GGML,
    b"tjgg": "a GGJT file, a format from 2023 that is no longer supported",
    b"vers": "a Git LFS pointer: the file itself was not downloaded",
    b"<!do": _WEB_PAGE,
    b"<!DO": _WEB_PAGE,
    b"<htm": _WEB_PAGE,
}
_DRAFT_TO_TARGET = "d2t"
"""Table in an EAGLE-3 draft model that lists the target's tokens known to the draft model."""
_NOT_LANGUAGE_MODELS = {
    "adapter": "a LoRA adapter",
    "mmproj": "a vision projector",
    "imatrix": "an importance matrix",
}


def read_header(path: Path) -> ModelHeader:
    """Read the header of a local file. Raises ModelFileError if it is unusable or cannot be opened."""
    try:
        info = path.stat()
        if not stat.S_ISREG(info.st_mode):
            kind = "a folder" if stat.S_ISDIR(info.st_mode) else "not a regular file"
            raise ModelFileError(f"{path} is {kind}.", hint="Use a .gguf file.")
        if (parts := byte_parts(path)) is not None:
            raise part_error(path, parts)

        def read_first(n: int) -> bytes:
            with path.open("rb") as file:
                return file.read(n)

        return read_growing(read_first, info.st_size, path.name, start=FIRST_LOCAL_READ)
    except FileNotFoundError:
        raise ModelFileError(f"{path} does not exist.", hint="Check the name.") from None
    except PermissionError:
        raise ModelFileError(
            f"Permission denied: {path}.", hint=f"To allow reading it: chmod u+r {path}"
        ) from None
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{path} cannot be read: {error}.", hint="Check the disk.") from error


def read_growing(
    read_first: Callable[[int], Buffer], file_size: int, name: str, *, start: int = FIRST_READ
) -> ModelHeader:
    """Parse the header in a file's first `start` bytes, doubling that number until the header is complete.

    read_first: returns the first n bytes. Raises ModelFileError, including for excess data after the last
    tensor, and anything that `read_first` raises.
    """
    n = start
    while True:
        try:
            header = parse_header(read_first(min(n, file_size)), file_size, name)
            if header.file_size - header.end > MAX_TAIL:
                beyond = mebibytes(header.file_size - header.end)
                raise damaged(name, f"it has {beyond} of data after its last tensor")
            return header
        except NeedMoreBytes as need:
            if n >= min(file_size, MAX_HEADER):
                raise damaged(name, "its header is incomplete") from None
            n = min(max(2 * n, need.at_least), MAX_HEADER)


def read_model(path: Path) -> ModelHeader:
    """Read the header of the model that llama.cpp would load from `path`.

    For a split model, `path` can name any shard (see `one_model`). Raises ModelFileError, including for files
    that are not language models.
    """
    match = _SHARD.fullmatch(path.name)
    header = read_header(_shard_path(path, match, 1) if match else path)
    count = _n_parts(header)
    if count > 1 and (not match or int(match["count"]) != count):
        raise ModelFileError(
            f"{path.name} is one of {count} shards, but its name does not say so.",
            hint=f"Name the shards NAME-00001-of-{count:05}.gguf, all in one folder.",
        )
    others = (read_header(_shard_path(path, match, i + 1)) for i in range(1, count) if match)
    return one_model(chain([header], others))


def one_model(parts: Iterable[ModelHeader]) -> ModelHeader:
    """Merge the headers of a model's shards, given in order. Raises ModelFileError.

    The result has the first shard's metadata, the tensors of all shards, and the total size of the files.
    Reading stops as soon as there are too many tensors.
    """
    shards: list[ModelHeader] = []
    tensors: list[ModelTensor] = []
    for part in parts:
        shards.append(part)
        tensors += part.tensors
        _check_tensors(shards[0].path, len(tensors), shards[0].metadata)
    header = shards[0]
    if max(1, _n_parts(header)) != len(shards):
        raise damaged(header.path, f"it says that it is one of {_n_parts(header)} shards")
    if len(shards) > 1:
        for i, shard in enumerate(shards):
            if shard.metadata.get("split.no") != i:
                raise damaged(shard.path, f"it does not say that it is shard {i + 1}")
        if len({tensor.name for tensor in tensors}) != len(tensors):
            raise damaged(header.path, "two of its shards contain the same tensor")
        size = sum(shard.file_size for shard in shards)
        header = replace(header, tensors=tuple(tensors), file_size=size)
    _require_language_model(header)
    return header


def _n_parts(header: ModelHeader) -> int:
    count = header.metadata.get("split.count", 0)
    if not isinstance(count, int) or not 0 <= count <= MAX_PARTS:
        raise damaged(header.path, "its number of shards is not valid")
    return count


def _shard_path(path: Path, match: re.Match[str], number: int) -> Path:
    part = path.with_name(f"{match['stem']}-{number:05}-of-{match['count']}.gguf")
    if not part.exists():
        raise ModelFileError(
            f"{part.name} is missing: the model is split into {int(match['count'])} files.",
            hint="Download all shards into one folder.",
        )
    return part


def _require_language_model(header: ModelHeader) -> None:
    kind = header.text("general.type")
    if kind in _NOT_LANGUAGE_MODELS or header.architecture == "clip":
        what = _NOT_LANGUAGE_MODELS.get(kind or "", "a vision projector")
        hint = "Use the model that it belongs to"
        hint += ", with this file after --lora." if kind == "adapter" else "."
        raise ModelFileError(f"{header.path} is {what}, not a model.", hint=hint)
    if not header.tensors:
        raise ModelFileError(
            f"{header.path} contains no weights, only a tokenizer.", hint="Use a complete model."
        )
    if is_head_alone(header):
        raise ModelFileError(
            f"{header.path} contains only drafting layers, not a model.",
            hint="Use the model that it belongs to, with this file after --draft.",
        )
    check_text_only(header)


def parse_header(data: Buffer, file_size: int, name: str = "the file") -> ModelHeader:
    """Parse the header in `data`, which holds the first bytes of a file of `file_size` bytes.

    Raises NeedMoreBytes if the header extends beyond `data`, and ModelFileError if the file is unusable or
    truncated.
    """
    cursor = Cursor(data, file_size, name)
    version = _read_version(cursor)
    n_tensors, n_keys = cursor.u64(), cursor.u64()
    cursor.check_count("tensors", n_tensors, _most_tensors(MOST_LAYERED), _SHORTEST_TENSOR)
    cursor.check_count("metadata entries", n_keys, MAX_KEYS, _SHORTEST_KEY)
    metadata: dict[str, Value] = {}
    types: dict[str, str] = {}
    for _ in range(n_keys):
        key = cursor.key(MAX_KEY)
        if key in metadata:
            raise damaged(name, f"the metadata entry {show(key)} appears twice")
        types[key], metadata[key] = cursor.value(key)
    _check_tensors(name, n_tensors, metadata)
    alignment = _alignment(metadata, name)
    table_offset = cursor.at
    tensors = _read_tensors(cursor, n_tensors, alignment)
    data_offset = aligned(cursor.at, alignment) if tensors else cursor.at
    header = ModelHeader(
        name,
        version,
        metadata,
        tensors,
        data_offset,
        alignment,
        file_size,
        table_offset=table_offset,
        types=types,
    )
    if header.end > file_size:
        missing = header.end - file_size
        raise ModelFileError(
            f"{name} is truncated: {missing} of its {header.end} bytes are missing.", hint=AGAIN
        )
    return header


def _most_tensors(n_layers: int) -> int:
    return TENSORS_BESIDE + TENSORS_OF_LAYER * min(n_layers, MOST_LAYERED)


def _check_tensors(name: str, n: int, metadata: dict[str, Value]) -> None:
    """Raise ModelFileError if there are more tensors than the layers need.

    The number of layers comes from the metadata of the first shard, the only one that contains it.
    """
    layers = metadata.get(f"{metadata.get('general.architecture')}.block_count", MOST_LAYERED)
    if isinstance(layers, int) and n > _most_tensors(max(layers, 0)):
        raise damaged(name, f"{n} tensors are too many for {layers} layers")


def _read_version(cursor: Cursor) -> int:
    if not cursor.file_size:
        raise ModelFileError(f"{cursor.name} is empty.", hint=AGAIN)
    magic = bytes(cursor.data[:4])
    if magic != b"GGUF"[: len(magic)]:
        guess = _KNOWN_MAGIC.get(magic)
        what = f"it looks like {guess}" if guess else f"it begins with {magic!r}"
        raise ModelFileError(f"{cursor.name} is not a GGUF file: {what}.", hint="Use a .gguf file.")
    cursor.need(4)
    version = cursor.u32()
    if version in (2, 3):
        return version
    if version & 0xFFFF == 0:
        raise ModelFileError(
            f"{cursor.name} is a big-endian file.", hint="Use a little-endian copy of this model."
        )
    if version == 1:
        raise ModelFileError(
            f"{cursor.name} has GGUF version 1, which is no longer supported.",
            hint="Download a newer copy of this model.",
        )
    raise ModelFileError(
        f"{cursor.name} has GGUF version {version}; this version of edgechat supports versions 2 and 3.",
        hint="Update edgechat.",
    )


def _alignment(metadata: dict[str, Value], name: str) -> int:
    alignment = metadata.get("general.alignment", 32)
    if isinstance(alignment, bool) or not isinstance(alignment, int):
        raise damaged(name, "its alignment is not a number")
    if not 0 < alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise damaged(name, f"its alignment of {alignment} is not a power of two up to {MAX_ALIGNMENT}")
    return alignment


def _read_tensors(cursor: Cursor, n: int, alignment: int) -> tuple[ModelTensor, ...]:
    """Read the tensor table. Tensors must be contiguous, as in llama.cpp."""
    tensors: dict[str, ModelTensor] = {}
    expected = 0
    for _ in range(n):
        tensor = _read_tensor(cursor)
        if tensor.name in tensors:
            raise damaged(cursor.name, f"the tensor {show(tensor.name)} appears twice")
        if tensor.offset != expected:
            where = f"at {tensor.offset} instead of {expected}"
            raise damaged(cursor.name, f"the tensor {show(tensor.name)} is {where}")
        tensors[tensor.name] = tensor
        expected += aligned(tensor.n_bytes, alignment)
        if expected > MAX_SIZE:
            raise damaged(cursor.name, "its tensors are impossibly large")
    return tuple(tensors.values())


def _read_tensor(cursor: Cursor) -> ModelTensor:
    name = cursor.key(MAX_TENSOR_NAME)
    n_dims = cursor.u32()
    if n_dims > MAX_DIMS:
        raise damaged(cursor.name, f"the tensor {show(name)} has {n_dims} dimensions")
    shape = tuple(cursor.u64() for _ in range(n_dims))
    kind = _tensor_type(cursor.u32(), name, cursor.name)
    tensor = ModelTensor(name, shape, kind, cursor.u64(), 0)
    if not 0 < tensor.n_elements <= MAX_SIZE or (shape[0] if shape else 1) % kind.block[0]:
        raise damaged(cursor.name, f"the tensor {show(name)} cannot be {list(shape)} in {kind.name}")
    if not _is_computable(name, shape, kind):
        raise ModelFileError(
            f"{cursor.name} has the tensor {show(name)} in {kind.name}, which would crash llama.cpp.",
            hint="Use another copy of this model.",
        )
    return replace(tensor, n_bytes=kind.row_bytes(tensor.n_elements))


def _is_computable(name: str, shape: tuple[int, ...], kind: GgmlType) -> bool:
    """Return whether llama.cpp can compute with a tensor of this name, shape and type.

    Its loader does not check this. Norms, biases and scales are applied elementwise, which works only in F32.
    Integer tensors are indices.
    """
    if kind is GgmlType.I64 or name == _DRAFT_TO_TARGET:
        return kind is GgmlType.I64 and name == _DRAFT_TO_TARGET
    if kind is GgmlType.I32:
        return "tid2eid" in name
    return kind is GgmlType.F32 or (len(shape) > 1 and not name.endswith("norm.weight"))


def _tensor_type(number: int, tensor: str, name: str) -> GgmlType:
    try:
        return GgmlType(number)
    except ValueError:
        pass
    if number in REFUSED:
        raise ModelFileError(
            f"{name} has the tensor {show(tensor)} in {REFUSED[number]}, which is not valid in a model.",
            hint="Use another copy of this model.",
        )
    raise ModelFileError(
        f"{name} has the tensor {show(tensor)} in an unknown type ({number}).",
        hint="The model may be newer than this version of edgechat. Update edgechat, or use another "
        "quantization.",
    )


def aligned(n: int, alignment: int) -> int:
    """Round n up to a multiple of the alignment."""
    return (n + alignment - 1) // alignment * alignment


MAX_HEADER = 128 << 20
"""Maximum size of a header, in bytes. The largest known header, with 262,144 vocabulary entries, is 16 MB."""
MAX_KEPT = 32 << 20
"""Maximum number of bytes of text to store from one file."""
MAX_KEPT_VALUES = 1024
"""Maximum number of values to store from an array. The values of longer arrays are skipped."""
MAX_STRINGS = 2_000_000
"""Maximum number of strings in a file's arrays. The largest vocabulary and its merges have less than half as
many.
"""

Buffer = bytes | bytearray | memoryview

STRING, ARRAY = 8, 9
SCALARS = {
    "uint8": (0, "B"),
    "int8": (1, "b"),
    "uint16": (2, "H"),
    "int16": (3, "h"),
    "uint32": (4, "I"),
    "int32": (5, "i"),
    "float32": (6, "f"),
    "bool": (7, "?"),
    "uint64": (10, "Q"),
    "int64": (11, "q"),
    "float64": (12, "d"),
}
"""Metadata types, with their numbers in a file and their codes in `struct`."""
_LAYOUTS = {number: (name, struct.Struct("<" + code)) for name, (number, code) in SCALARS.items()}
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class NeedMoreBytes(Exception):
    """The header extends beyond the available bytes."""

    def __init__(self, at_least: int) -> None:
        super().__init__(f"the header needs at least {at_least} bytes")
        self.at_least = at_least


class Cursor:
    """A position in the available bytes. Every advance is checked first."""

    __slots__ = ("at", "data", "file_size", "kept", "name", "strings")

    def __init__(self, data: Buffer, file_size: int, name: str) -> None:
        self.data = data
        self.file_size = max(file_size, len(data))
        self.name = name
        self.at = 0
        self.kept = 0
        self.strings = 0

    def need(self, n: int) -> int:
        """Advance by n bytes and return the previous position."""
        end = self.at + n
        if end > self.file_size:
            raise cut_header(self.name, end - self.file_size)
        if end > MAX_HEADER:
            raise damaged(self.name, f"its header would be larger than {MAX_HEADER >> 20} MiB")
        if end > len(self.data):
            raise NeedMoreBytes(end)
        start, self.at = self.at, end
        return start

    def u32(self) -> int:
        """Return the next 4 bytes as an unsigned integer."""
        number: int = _U32.unpack_from(self.data, self.need(4))[0]
        return number

    def u64(self) -> int:
        """Return the next 8 bytes as an unsigned integer."""
        number: int = _U64.unpack_from(self.data, self.need(8))[0]
        return number

    def check_count(self, what: str, n: int, limit: int, least: int) -> None:
        """Raise ModelFileError if `n` exceeds the limit, or if `n` items of `least` bytes exceed the file."""
        if n > limit:
            raise damaged(self.name, f"it claims {n} {what}, more than {limit}")
        if n * least > self.file_size - self.at:
            raise cut_header(self.name, n * least - (self.file_size - self.at))

    def text(self, limit: int) -> bytes:
        """Return the bytes of a string. It may be at most `limit` bytes long."""
        n = self.u64()
        if n > limit:
            raise damaged(self.name, f"a string of {n} bytes exceeds the limit of {limit}")
        start = self.need(n)
        return bytes(self.data[start : start + n])

    def key(self, limit: int) -> str:
        """Return the name of a metadata entry or a tensor."""
        raw = self.text(limit)
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            raise damaged(self.name, f"the name {raw[:40]!r} is not UTF-8") from None
        if not text:
            raise damaged(self.name, "a metadata entry has no name")
        return text

    def string(self) -> str:
        """Return a string value. Invalid UTF-8 is replaced; only users and templates read these values."""
        raw = self.text(MAX_KEPT - self.kept)
        self.kept += len(raw)
        return raw.decode(errors="replace")

    def value(self, key: str) -> tuple[str, Value]:
        """Return the type ('uint32', 'string', 'array', ...) and the value of a metadata entry."""
        kind = self.u32()
        if kind == STRING:
            return "string", self.string()
        if kind == ARRAY:
            return "array", self.array(key)
        name, form = self.form(key, kind)
        scalar: Scalar = form.unpack_from(self.data, self.need(form.size))[0]
        return name, scalar

    def form(self, key: str, kind: int) -> tuple[str, struct.Struct]:
        """Return the name and layout of a scalar type."""
        if kind not in _LAYOUTS:
            raise damaged(self.name, f"the metadata entry {show(key)} has the unknown type {kind}")
        return _LAYOUTS[kind]

    def array(self, key: str) -> GgufArray:
        """Return an array. If it is long, its values are omitted."""
        kind, n = self.u32(), self.u64()
        keep = n <= MAX_KEPT_VALUES
        if kind == STRING:
            self.strings += n
            self.check_count(f"strings in {show(key)}", self.strings, MAX_STRINGS, 0)
            self.check_count(f"strings in {show(key)}", n, MAX_STRINGS, 8)
            if keep:
                return GgufArray("string", n, tuple(self.string() for _ in range(n)))
            self.skip_strings(n)
            return GgufArray("string", n, None)
        if kind == ARRAY:
            raise damaged(self.name, f"the metadata entry {show(key)} is an array of arrays")
        type_name, form = self.form(key, kind)
        start = self.need(n * form.size)
        if not keep:
            return GgufArray(type_name, n, None)
        values = struct.unpack_from(f"<{n}{form.format[-1]}", self.data, start)
        return GgufArray(type_name, n, values)

    def skip_strings(self, n: int) -> None:
        """Skip n strings, checking bounds in one tight loop because there are often hundreds of thousands."""
        data, at, length_at = self.data, self.at, _U64.unpack_from
        last = len(data) - 8
        for left in range(n, 0, -1):
            if at > last:
                self.at = min(at, len(data))
                self.need(at + 8 * left - self.at)
            at += 8 + length_at(data, at)[0]
        self.need(at - self.at)


def damaged(name: str, why: str) -> ModelFileError:
    """Return the error for a file that violates the format."""
    return ModelFileError(f"{name} is not a valid GGUF file: {why}.", hint=AGAIN)


def cut_header(name: str, missing: int) -> ModelFileError:
    """Return the error for a file that ends inside its header, at least `missing` bytes too early."""
    return ModelFileError(f"{name} is truncated: at least {missing} bytes are missing.", hint=AGAIN)
