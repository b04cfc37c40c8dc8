"""Model headers shipped with edgechat, used to plan models in the catalogue before they are downloaded.

`skeletons.bin` contains each model's skeleton and, for each quantization, one byte per tensor that gives the
tensor's type. It is written by packaging/catalogue, using the types that llama.cpp's quantizer chooses.

    "ECSK", uint32 n, n bytes of index (msgpack: _Index); then for each model, compressed with zlib:
    uint32 s, s bytes of skeleton, and the types in each quantization, in the order of the skeleton's tensors
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from dataclasses import replace
from functools import cache, lru_cache

import msgspec

from edgechat.base import paths
from edgechat.base.errors import ModelFileError
from edgechat.models.catalogue import CatalogueEntry
from edgechat.models.formats.gguf import aligned, parse_header
from edgechat.models.formats.header import ModelHeader, ModelTensor
from edgechat.models.formats.quants import FILE_TYPES, MLX_TYPES, GgmlType, canonical, is_mlx_bits
from edgechat.models.formats.skeleton import skeleton

FILE = "skeletons.bin"

_MAGIC = b"ECSK"
_U32 = struct.Struct("<I")


class _Model(msgspec.Struct, frozen=True, array_like=True):
    """The location of a model's data, and its file size at each quantization, in the order of the types."""

    name: str
    repo: str
    file: str
    at: int
    length: int
    sizes: dict[str, int]


class _Index(msgspec.Struct, frozen=True, array_like=True):
    models: tuple[_Model, ...]


def shipped_quants(entry: CatalogueEntry) -> tuple[str, ...]:
    """Return the quantizations whose headers are shipped, smallest first. Raises ModelFileError."""
    model = _indexed_model(entry)
    return tuple(sorted(model.sizes, key=model.sizes.__getitem__)) if model else ()


def shipped_size(entry: CatalogueEntry, quant: str) -> int | None:
    """Return the size in bytes of this model's file at the given quantization.

    Returns None if the header is not shipped.
    """
    model = _indexed_model(entry)
    return model.sizes.get(canonical(quant)) if model else None


def shipped_header(entry: CatalogueEntry, quant: str) -> ModelHeader | None:
    """Return the header of this model's file at the given quantization, without the tokenizer.

    Returns None if the header is not shipped, or if the user's own catalogue specifies another repository.
    Raises ModelFileError if the shipped file is damaged.
    """
    model, label = _indexed_model(entry), canonical(quant)
    if model is None or label not in model.sizes:
        return None
    base, types = _base(model.name)
    number = list(model.sizes).index(label)
    n = len(base.tensors)
    file_type = next(number for number, name in FILE_TYPES.items() if name == label)
    tensors, offset = [], 0
    for tensor, kind in zip(base.tensors, map(GgmlType, types[number * n : (number + 1) * n]), strict=True):
        n_bytes = kind.row_bytes(tensor.n_elements)
        # replace() takes four times as long, and `edgechat plan` reads thirty thousand tensors.
        tensors.append(ModelTensor(tensor.name, tensor.shape, kind, offset, n_bytes))
        offset += aligned(n_bytes, base.alignment)
    return replace(
        base,
        path=entry.file_for(label),
        metadata=base.metadata | {"general.file_type": file_type},
        tensors=tuple(tensors),
        file_size=model.sizes[label],
    )


def pack_all(models: Iterable[tuple[CatalogueEntry, list[ModelHeader]]]) -> bytes:
    """Return skeletons.bin's contents. A model's headers must have the same tensors in the same order."""
    index: list[_Model] = []
    parts: list[bytes] = []
    at = 0
    for entry, headers in models:
        types = b"".join(bytes(tensor.type for tensor in header.tensors) for header in headers)
        packed_skeleton = skeleton(headers[0])
        part = zlib.compress(_U32.pack(len(packed_skeleton)) + packed_skeleton + types, 9)
        sizes = {header.quant or "": header.file_size for header in headers}
        index.append(_Model(entry.name, entry.repo or "", entry.file, at, len(part), sizes))
        parts.append(part)
        at += len(part)
    packed = msgspec.msgpack.encode(_Index(tuple(index)))
    return b"".join([_MAGIC, _U32.pack(len(packed)), packed, *parts])


def _indexed_model(entry: CatalogueEntry) -> _Model | None:
    model = _index()[0].get(entry.name)
    return model if model and (model.repo, model.file) == (entry.repo, entry.file) else None


@cache
def _index() -> tuple[dict[str, _Model], bytes]:
    """Return the models, keyed by name, and the bytes that follow the index."""
    path = paths.shipped(FILE)
    try:
        data = path.read_bytes()
        if data[:4] != _MAGIC:
            raise ValueError("its first bytes are wrong")
        start = 8 + _U32.unpack_from(data, 4)[0]
        index = msgspec.msgpack.decode(data[8:start], type=_Index)
    except (OSError, ValueError, struct.error, msgspec.DecodeError) as error:
        raise _damaged_installation(f"{path} cannot be read: {error}") from error
    return {model.name: model for model in index.models}, data[start:]


@lru_cache(maxsize=4)
def _base(name: str) -> tuple[ModelHeader, bytes]:
    """Return a model's header (useful only for its shapes), and its tensors' types at each quantization."""
    models, data = _index()
    model = models[name]
    try:
        part = zlib.decompress(data[model.at : model.at + model.length])
        end = 4 + _U32.unpack_from(part)[0]
    except (zlib.error, struct.error) as error:
        raise _damaged_installation(f"{FILE} is damaged at {name}: {error}") from error
    return parse_header(part[4:end], 2**62, name), part[end:]


def _damaged_installation(what: str) -> ModelFileError:
    return ModelFileError(f"{what}.", hint="Reinstall edgechat: this installation is damaged.")


GROUP = 64
"""Number of weights that share a scale and a bias."""
_SCALE_AND_BIAS = 4
"""Combined size of a scale and a bias, in bytes."""


def mlx_header_of(entry: CatalogueEntry, quant: str) -> ModelHeader | None:
    """Return the header of a model's MLX repository with this quantization. Sizes are estimated.

    quant: for example '4bit', 'mxfp4' or 'bf16'. Returns None if the catalogue has no such repository, or if
    the model's shapes are not shipped. Raises ModelFileError if the shipped file is damaged.
    """
    repo, quants = entry.mlx_repo(quant), shipped_quants(entry)
    base = shipped_header(entry, quants[0]) if repo and quants else None
    if base is None or repo is None:
        return None
    label = next(name for name in entry.mlx if canonical(name) == canonical(quant))
    tensors = tuple(_to_mlx(tensor, label) for tensor in base.tensors)
    metadata = {key: value for key, value in base.metadata.items() if key != "general.file_type"}
    metadata["mlx.quantization"] = label
    n_bytes = sum(tensor.n_bytes for tensor in tensors)
    return replace(base, path=repo, metadata=metadata, tensors=tensors, format="mlx", file_size=n_bytes)


def _to_mlx(tensor: ModelTensor, label: str) -> ModelTensor:
    n = tensor.n_elements
    kind = _mlx_type(tensor, label)
    if kind in (GgmlType.MXFP4, GgmlType.BF16):
        return replace(tensor, type=kind, n_bytes=kind.row_bytes(n))
    bits = next(bits for bits, mlx_type in MLX_TYPES.items() if mlx_type is kind)
    return replace(tensor, type=kind, n_bytes=n * bits // 8 + n // GROUP * _SCALE_AND_BIAS)


def _mlx_type(tensor: ModelTensor, label: str) -> GgmlType:
    # Like llama.cpp, MLX leaves norms, convolutions and small gates unquantized.
    unquantized = tensor.type in (GgmlType.F32, GgmlType.F16, GgmlType.BF16)
    if unquantized or len(tensor.shape) < 2 or tensor.shape[0] % GROUP:
        return GgmlType.BF16
    if is_mlx_bits(label):
        return MLX_TYPES[int(label[0])]
    if canonical(label) == "MXFP4":  # only for experts; the rest is at 8 bits
        return GgmlType.MXFP4 if "_exps." in tensor.name else GgmlType.Q8_0
    return GgmlType.BF16
