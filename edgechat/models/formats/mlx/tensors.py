"""Tensors in safetensors files, converted to GGUF's names, shapes and types.

    uint64 n, n bytes of JSON: {"name": {"dtype": "U32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}

For the format, see https://github.com/huggingface/safetensors. Unlike MLX, this reader checks the table: the
tensors must follow one another without gaps up to the end of the file. A quantized matrix is stored as three
tensors: the packed weights (`weight`), `scales` and `biases`. They are merged into one tensor, which has the
unpacked shape and the total size of all three. Vision tensors are returned separately. As in mlx-lm, tensors
for audio and for multi-token prediction are skipped, and so is an output matrix that is shared with the
input.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from edgechat.base.errors import ModelFileError
from edgechat.models.formats.header import MAX_NUMBER, ModelTensor, show, unsound
from edgechat.models.formats.mlx.config import Config
from edgechat.models.formats.quants import MLX_TYPES, GgmlType

_SEES = {
    "connector",
    "embed_vision",
    "mm_projector",
    "multi_modal_projector",
    "vision_embedder",
    "vision_model",
    "vision_tower",
    "visual",
}
_DROPPED = {"audio_tower", "embed_audio", "mtp", "inv_freq"}
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d{1,4})\.(.+)", re.DOTALL)
_EXPERTS = {"experts", "switch_mlp", "switch_glu"}
_OUTER_NAMES = {
    "embed_tokens": "token_embd",
    "wte": "token_embd",
    "embeddings": "token_embd",
    "embed_tokens_per_layer": "per_layer_token_embd",
    "lm_head": "output",
    "norm": "output_norm",
    "ln_f": "output_norm",
    "embedding_norm": "output_norm",
}
_LAYER_NAMES = {
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "o_proj": "attn_output",
    "qkv_proj": "attn_qkv",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "gate_proj": "ffn_gate",
    "up_proj": "ffn_up",
    "down_proj": "ffn_down",
    "gate_up_proj": "ffn_gate_up",
    "input_layernorm": "attn_norm",
    "operator_norm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
}
_PLAIN_TYPES = {"F32": GgmlType.F32, "F16": GgmlType.F16, "BF16": GgmlType.BF16, "F8_E4M3": GgmlType.Q8_0}
_BYTE_SCALES = {(4, 32): GgmlType.MXFP4, (4, 16): GgmlType.NVFP4, (8, 32): GgmlType.Q8_0}
"""Types keyed by bits and group size, for scales stored as bytes."""
_GROUPS = (64, 32, 128, 16)


def tensors_of(
    stored: Iterable[StoredTensor], config: Config
) -> tuple[tuple[ModelTensor, ...], tuple[ModelTensor, ...]]:
    """Return the tensors of the language model and of the vision tower, from all files of a model.

    Raises ModelFileError for duplicate names, and if the parts of a quantized tensor do not match.
    """
    table: dict[str, StoredTensor] = {}
    for tensor in stored:
        if tensor.name in table:
            raise unsound(config.name, f"two of its files contain the tensor {show(tensor.name)}")
        table[tensor.name] = tensor
    n_layers, tied = config.n_layers, config.get("tie_word_embeddings") is True
    quantization = config.quantization
    language: list[ModelTensor] = []
    vision: list[ModelTensor] = []
    for tensor in table.values():
        if _is_quantization_part(tensor.name, table):
            continue
        sees = not _SEES.isdisjoint(tensor.name.split("."))
        if not sees and _is_dropped(tensor.name, n_layers, tied):
            continue
        name = _tower_name(tensor.name) if sees else _gguf_name(tensor.name)
        (vision if sees else language).append(_gguf_tensor(tensor, name, table, quantization, config.name))
    return tuple(language), tuple(vision)


def _is_dropped(name: str, n_layers: int, tied: bool) -> bool:
    parts = name.split(".")
    if not _DROPPED.isdisjoint(parts) or (tied and "lm_head" in parts):
        return True
    match = _LAYER.search(name)
    return match is not None and int(match[1]) >= n_layers


def _is_quantization_part(name: str, table: Mapping[str, StoredTensor]) -> bool:
    """Return whether this is a quantized tensor's scales or biases."""
    base, _, last = name.rpartition(".")
    if last in ("scales", "biases"):
        return f"{base}.weight" in table
    return name.endswith("_scales") and name.removesuffix("_scales") + "_blocks" in table


def _gguf_tensor(
    tensor: StoredTensor,
    gguf_name: str,
    table: Mapping[str, StoredTensor],
    quantization: Mapping[str, Any] | None,
    name: str,
) -> ModelTensor:
    base = tensor.name.removesuffix(".weight")
    parts = [table[key] for key in (f"{base}.scales", f"{base}.biases") if key in table]
    if tensor.name.endswith("_blocks"):  # the original gpt-oss files: two numbers per byte
        parts = [table[key] for key in (f"{tensor.name.removesuffix('_blocks')}_scales",) if key in table]
        shape, kind = (*tensor.shape[:-2], 2 * math.prod(tensor.shape[-2:])), GgmlType.MXFP4
    elif tensor.name.endswith(".weight") and parts and tensor.dtype == "U32":
        shape, kind = _unpacked(tensor, parts[0], quantization, name)
    else:
        parts = []
        shape, kind = tensor.shape, _PLAIN_TYPES.get(tensor.dtype, GgmlType.I32)
    n_bytes = tensor.n_bytes + sum(part.n_bytes for part in parts)
    return ModelTensor(gguf_name, tuple(reversed(shape)), kind, tensor.offset, n_bytes)


def _unpacked(
    packed: StoredTensor, scales: StoredTensor, quantization: Mapping[str, Any] | None, name: str
) -> tuple[tuple[int, ...], GgmlType]:
    """Return the unpacked shape of a quantized matrix, and the GGUF type most similar to it."""
    wrong = unsound(name, f"the parts of the quantized tensor {show(packed.name)} do not match")
    if not packed.shape or not scales.shape or packed.shape[:-1] != scales.shape[:-1] or not scales.shape[-1]:
        raise wrong
    product, rest = divmod(32 * packed.shape[-1], scales.shape[-1])
    bytes_as_scales = scales.dtype == "U8"
    for bits, group in _bits_and_groups(packed.name.removesuffix(".weight"), quantization, bytes_as_scales):
        if not rest and bits * group == product:
            shape = (*packed.shape[:-1], group * scales.shape[-1])
            return shape, _BYTE_SCALES[bits, group] if bytes_as_scales else MLX_TYPES[bits]
    raise wrong


def _bits_and_groups(
    base: str, quantization: Mapping[str, Any] | None, bytes_as_scales: bool
) -> Iterator[tuple[int, int]]:
    """Yield possible bit widths and group sizes for a matrix, starting with those in the config.

    The shapes determine only the product of the two. mlx-lm also uses the product to recognize layers with
    other bit widths.
    """
    default = quantization or {}
    own_settings = default.get(base)
    stated = [
        (settings.get("bits"), settings.get("group_size"))
        for settings in (own_settings, default)
        if isinstance(settings, dict)
    ]
    possible = (
        list(_BYTE_SCALES) if bytes_as_scales else [(bits, group) for group in _GROUPS for bits in MLX_TYPES]
    )
    yield from (pair for pair in stated if pair in possible)
    groups = [group for _, group in stated]
    yield from sorted(possible, key=lambda pair: pair[1] not in groups)


def _tower_name(name: str) -> str:
    """Return a simplified name for a tower's tensor. Plans need to know only its layer, if it has one."""
    match = _LAYER.search(name)
    return f"v.{name}" if match is None else f"v.blk.{int(match[1])}.{match[2]}"


def _gguf_name(name: str) -> str:
    """Return a simplified GGUF name. Plans need to know only the layer, and whether it is an expert."""
    match = _LAYER.search(name)
    if match is None:
        base, _, last = name.rpartition(".")
        end = _OUTER_NAMES.get(base.rpartition(".")[2])
        return f"{end}.{last}" if end else name
    inside = match[2].split(".")
    last = inside[-1]
    gguf_name = next((_LAYER_NAMES[part] for part in inside if part in _LAYER_NAMES), None)
    if not _EXPERTS.isdisjoint(inside):
        numbers = [part for part in inside if part.isdigit()]
        return ".".join([f"blk.{int(match[1])}.{gguf_name or 'ffn'}_exps", *numbers, last])
    shared = any(part.startswith("shared_expert") for part in inside)
    if gguf_name is None or (shared and not gguf_name.startswith("ffn")):
        return f"blk.{int(match[1])}.{match[2]}"
    return f"blk.{int(match[1])}.{gguf_name}{'_shexp' if shared else ''}.{last}"


PREFIX = 8
"""Number of bytes before the table. They hold its length."""
MAX_TABLE = 32 << 20
"""Maximum size of the table in one file, in bytes. Each tensor takes about a hundred bytes."""
MAX_TENSORS = 65_536
MAX_NAME = 512
"""Maximum length of a tensor's name, in bytes."""
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
    """A tensor in a safetensors table."""

    name: str
    dtype: str
    """Data type, as spelled in the format: 'BF16', 'U32'."""
    shape: tuple[int, ...]
    """Dimensions with the contiguous one last, unlike in GGUF."""
    offset: int
    """Offset in bytes from the start of the file's tensor data."""
    n_bytes: int


class _Entry(msgspec.Struct):
    dtype: str
    shape: Annotated[list[_Count], Meta(max_length=MAX_DIMS)]
    data_offsets: tuple[_Offset, _Offset]


def table_length(prefix: bytes | bytearray, file_size: int, name: str) -> int:
    """Return the size of the table, given the first PREFIX bytes of a file. Raises ModelFileError."""
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
    """Parse the table of a file of `file_size` bytes and return its tensors, in the order of their data.

    Raises ModelFileError if the file is unusable, for example truncated.
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
