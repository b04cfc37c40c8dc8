"""The tensors of safetensors files as a GGUF file would have them: named, shaped, and with what they take.

A quantized matrix lies there as three tensors, the packed numbers (`weight`), their `scales` and their
`biases`; here it is one, with the shape that it stands for and the bytes of all three. What sees is apart.
Left out is what mlx-lm drops: what hears, what only predicts further tokens, an output that the input's
matrix is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from edgechat.models.formats.header import ModelTensor
from edgechat.models.formats.limits import show, unsound
from edgechat.models.formats.mlx.config import Config
from edgechat.models.formats.mlx.safetensors import StoredTensor
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
"""By bits and group of those whose scales are bytes."""
_GROUPS = (64, 32, 128, 16)


def tensors_of(
    stored: Iterable[StoredTensor], config: Config
) -> tuple[tuple[ModelTensor, ...], tuple[ModelTensor, ...]]:
    """Return the tensors of all files of a model: of its language model, and of its vision tower.

    Raises ModelFileError where two have one name, or where the parts of a quantized one do not go together.
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


def rows_of_embedding(tensors: Iterable[ModelTensor]) -> int | None:
    """Return the vocabulary size by the embedding's rows, or None without one."""
    return next((tensor.shape[-1] for tensor in tensors if tensor.name == "token_embd.weight"), None)


def _is_dropped(name: str, n_layers: int, tied: bool) -> bool:
    parts = name.split(".")
    if not _DROPPED.isdisjoint(parts) or (tied and "lm_head" in parts):
        return True
    match = _LAYER.search(name)
    return match is not None and int(match[1]) >= n_layers


def _is_quantization_part(name: str, table: Mapping[str, StoredTensor]) -> bool:
    """Return whether this is a part of a quantized tensor: its scales or biases."""
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
    if tensor.name.endswith("_blocks"):  # gpt-oss as its makers released it: two numbers to a byte
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
    """Return the unpacked shape of a quantized matrix, and the most similar type."""
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
    """Yield possible bits and group sizes of a matrix, those of the config first.

    Shapes give the product of the two only, and mlx-lm too tells layers of other bits apart by it.
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
    """Return the name of a tower's tensor, as far as plans need it: whether it is a layer's."""
    match = _LAYER.search(name)
    return f"v.{name}" if match is None else f"v.blk.{int(match[1])}.{match[2]}"


def _gguf_name(name: str) -> str:
    """Return the name in a GGUF file, as far as plans need it: layer and whether it is an expert."""
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
