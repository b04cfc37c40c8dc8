"""A bounded reader of GGUF headers: what native code sees has passed here first.

Nothing in a file is believed: every length and count is held against the file's size and a limit before
anything is allocated. The same parser reads local files and the first megabytes of remote ones. The format:
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; where llama.cpp's loader is stricter, so is this.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from edgechat.base.errors import ModelFileError
from edgechat.base.text import mebibytes
from edgechat.models.formats.gguf_cursor import MAX_HEADER, Buffer, Cursor, NeedMoreBytes, cut_short, damaged
from edgechat.models.formats.header import ModelHeader, ModelTensor, Value
from edgechat.models.formats.limits import AGAIN, MAX_PARTS, show
from edgechat.models.formats.quants import REFUSED, GgmlType

FIRST_READ = 8 << 20
"""Enough for most models; a remote file is asked for more only where it has more."""
FIRST_LOCAL_READ = 32 << 20
"""Enough for all: a local read costs less than a second walk over a large vocabulary."""
MAX_TAIL = 1 << 20
"""Bytes that may follow the last tensor: loaders map a file whole, and a hole costs an attacker nothing."""
TENSORS_BESIDE, TENSORS_OF_LAYER, MOST_LAYERED = 256, 64, 256
"""Tensors that a model may have: so many, and so many for each of its layers, of which the first 256 count.

A layer whose eight experts lie apart has 33. llama.cpp looks tensors up one after the other, so that their
number costs time by its square.
"""
MAX_KEYS = 65_536
MAX_KEY = 65_535
MAX_TENSOR_NAME = 63
"""As in llama.cpp: one byte less than its buffer."""
MAX_DIMS = 4
MAX_ALIGNMENT = 1 << 14
"""The largest page of memory: what is lost between tensors stays small."""
MAX_SIZE = 2**63 - 1

_SHORTEST_KEY, _SHORTEST_TENSOR = 13, 24
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)

_KNOWN_MAGIC = {
    b"PK\x03\x04": "a zip or PyTorch file",
    b"ggml": "a GGML file, a format of 2023 that is no longer supported",
    b"lmgg": "a GGML file, a format of 2023 that is no longer supported",
    b"tjgg": "a GGJT file, a format of 2023 that is no longer supported",
    b"vers": "a Git LFS pointer: the file itself was not downloaded",
    b"<!do": "a web page: the download needs a different URL, or a login",
    b"<!DO": "a web page: the download needs a different URL, or a login",
    b"<htm": "a web page: the download needs a different URL, or a login",
}


_NOT_LANGUAGE_MODELS = {
    "adapter": "a LoRA adapter",
    "mmproj": "a vision projector",
    "imatrix": "an importance matrix",
}


def read_header(path: Path) -> ModelHeader:
    """Read the header of one local file. Raises ModelFileError, also where the file cannot be opened."""
    try:
        info = path.stat()
        if not stat.S_ISREG(info.st_mode):
            kind = "a folder" if stat.S_ISDIR(info.st_mode) else "not a regular file"
            raise ModelFileError(f"{path} is {kind}.", hint="Use a .gguf file.")

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
    """Parse a header from the file's first `start` bytes, or twice that, and so on until it is whole.

    first: returns the first n bytes. Raises ModelFileError, also for a file that goes on after its tensors;
    and whatever `first` raises.
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
    """Read the header of a model that llama.cpp would load from `path`.

    A split model comes back as one, whichever part is named: the first part's metadata, the tensors of all,
    the sum of the sizes. Raises ModelFileError, also for files that hold no language model.
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
    """Return the headers of a model's parts, in their order, as one. Raises ModelFileError.

    The first part's metadata, the tensors of all, the sum of the sizes. No more parts are taken than it needs
    to see that they are too much.
    """
    headers: list[ModelHeader] = []
    n_tensors = 0
    for part in parts:
        headers.append(part)
        n_tensors += len(part.tensors)
        _check_tensors(headers[0].path, n_tensors, headers[0].metadata)
    header = headers[0]
    if max(1, _n_parts(header)) != len(headers):
        raise damaged(header.path, f"it says that it is one of {_n_parts(header)} shards")
    if len(headers) > 1:
        header = _join_shards(headers)
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


def _join_shards(parts: Sequence[ModelHeader]) -> ModelHeader:
    for i, part in enumerate(parts):
        if part.metadata.get("split.no") != i:
            raise damaged(part.path, f"it does not say that it is shard {i + 1}")
    tensors = tuple(tensor for part in parts for tensor in part.tensors)
    if len({tensor.name for tensor in tensors}) != len(tensors):
        raise damaged(parts[0].path, "two of its shards contain the same tensor")
    return replace(parts[0], tensors=tensors, file_size=sum(part.file_size for part in parts))


def _require_language_model(header: ModelHeader) -> None:
    kind = header.text("general.type")
    if kind in _NOT_LANGUAGE_MODELS or header.architecture == "clip":
        what = _NOT_LANGUAGE_MODELS.get(kind or "", "a vision projector")
        raise ModelFileError(
            f"{header.path} is {what}, not a model.", hint="Use the model that it belongs to."
        )
    if not header.tensors:
        raise ModelFileError(
            f"{header.path} contains no weights, only a tokenizer.", hint="Use a complete model."
        )


def parse_header(data: Buffer, file_size: int, name: str = "the file") -> ModelHeader:
    """Parse the header at the start of `data`, the first bytes of a file of `file_size` bytes.

    Raises NeedMoreBytes where the header goes on beyond `data` and the file does too; ModelFileError for
    everything that makes the file unfit, a file cut short among it.
    """
    cursor = Cursor(data, file_size, name)
    version = _read_version(cursor)
    n_tensors, n_keys = cursor.u64(), cursor.u64()
    cursor.check_count("tensors", n_tensors, _most_tensors(MOST_LAYERED), _SHORTEST_TENSOR)
    cursor.check_count("metadata entries", n_keys, MAX_KEYS, _SHORTEST_KEY)
    metadata: dict[str, Value] = {}
    for _ in range(n_keys):
        key = cursor.key(MAX_KEY)
        if key in metadata:
            raise damaged(name, f"the metadata entry {show(key)} appears twice")
        metadata[key] = cursor.value(key)
    _check_tensors(name, n_tensors, metadata)
    alignment = _alignment(metadata, name)
    tensors = _read_tensors(cursor, n_tensors, alignment)
    data_offset = _aligned(cursor.at, alignment) if tensors else cursor.at
    header = ModelHeader(name, version, metadata, tensors, data_offset, alignment, file_size)
    if header.end > file_size:
        raise cut_short(name, header.end - file_size, file_size)
    return header


def _most_tensors(n_layers: int) -> int:
    return TENSORS_BESIDE + TENSORS_OF_LAYER * min(n_layers, MOST_LAYERED)


def _check_tensors(name: str, n: int, metadata: dict[str, Value]) -> None:
    """Refuse more tensors than layers need; parts of a model after the first do not say how many it has."""
    layers = metadata.get(f"{metadata.get('general.architecture')}.block_count", MOST_LAYERED)
    if isinstance(layers, int) and n > _most_tensors(max(layers, 0)):
        raise damaged(name, f"{n} tensors are too many for {layers} layers")


def _read_version(cursor: Cursor) -> int:
    """Read magic and version."""
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
        f"{cursor.name} has GGUF version {version}; this edgechat supports versions 2 and 3.",
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
    """Read the table of tensors. They follow each other without gap or overlap, as llama.cpp demands."""
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
        expected += _aligned(tensor.n_bytes, alignment)
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
    block, size = kind.block
    if not 0 < tensor.n_elements <= MAX_SIZE or (shape[0] if shape else 1) % block:
        raise damaged(cursor.name, f"the tensor {show(name)} cannot be {list(shape)} in {kind.name}")
    if not _is_computable(name, shape, kind):
        raise ModelFileError(
            f"{cursor.name} has the tensor {show(name)} in {kind.name}, which would crash llama.cpp.",
            hint="Use another copy of this model.",
        )
    return replace(tensor, n_bytes=tensor.n_elements // block * size)


def _is_computable(name: str, shape: tuple[int, ...], kind: GgmlType) -> bool:
    """Say whether llama.cpp can compute with a tensor of this type here; its loader does not ask.

    Norms, biases and scales meet activations one by one, which works in F32 only; whole numbers are indices.
    """
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
        hint="The model may be newer than this edgechat. Update edgechat, or use another quantization.",
    )


def _aligned(n: int, alignment: int) -> int:
    return (n + alignment - 1) // alignment * alignment
