"""The towers from `tower.py`, under the names used by mlx-vlm's models."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from tests.kit.vision import text, tower
from tests.kit.vision.tower import Floats, Tower

_SIGLIP = {
    "ln1": "layer_norm1",
    "ln2": "layer_norm2",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_out": "self_attn.out_proj",
    "ffn_up": "mlp.fc1",
    "ffn_down": "mlp.fc2",
}
_QWEN = {
    "ln1": "norm1",
    "ln2": "norm2",
    "attn_qkv": "attn.qkv",
    "attn_out": "attn.proj",
    "ffn_up": "mlp.linear_fc1",
    "ffn_down": "mlp.linear_fc2",
}


def tower_arrays(model_type: str, eyes: Tower) -> Iterator[tuple[str, Floats]]:
    """Yield the names and values of the tower's tensors, including zero biases that a GGUF may omit."""
    values = dict(tower.tensors(eyes))
    if model_type.startswith("qwen3"):
        named = _qwen_names(values, eyes, deeper=model_type == "qwen3_vl")
    else:
        named = _siglip_names(model_type, values)
    arrays = dict(named)
    for name in [name for name in arrays if re.search(r"(fc1|fc2|out_proj|attn\.proj)\.weight", name)]:
        arrays.setdefault(name.replace(".weight", ".bias"), np.zeros(len(arrays[name]), np.float32))
    yield from arrays.items()


def _siglip_names(model_type: str, values: dict[str, Floats]) -> Iterator[tuple[str, Floats]]:
    base = "vision_tower.vision_model" if model_type == "gemma3" else "vision_model"
    outer = {
        "v.patch_embd": f"{base}.embeddings.patch_embedding",
        "v.position_embd": f"{base}.embeddings.position_embedding",
        "v.post_ln": f"{base}.post_layernorm",
        "mm.model.fc": "connector.modality_projection.proj",
    }
    for name, array in values.items():
        stem, _, last = name.rpartition(".")
        if name == "mm.input_projection.weight":
            yield "multi_modal_projector.mm_input_projection_weight", array
        elif name == "mm.soft_emb_norm.weight":
            yield "multi_modal_projector.mm_soft_emb_norm.weight", array - 1
        elif stem.startswith("v.blk."):
            _, _, layer, part = stem.split(".")
            yield f"{base}.encoder.layers.{layer}.{_SIGLIP[part]}.{last}", array
        else:
            yield f"{outer[stem]}.{last}", array.transpose(0, 2, 3, 1) if array.ndim == 4 else array


def _qwen_names(values: dict[str, Floats], eyes: Tower, *, deeper: bool) -> Iterator[tuple[str, Floats]]:
    outer = {
        "v.position_embd": "pos_embed",
        "v.post_ln": "merger.norm",
        "mm.0": "merger.linear_fc1",
        "mm.2": "merger.linear_fc2",
    }
    # For both moments: [outputs, moment, row, column, color].
    patches = np.stack([values.pop("v.patch_embd.weight"), values.pop("v.patch_embd.weight.1")], axis=2)
    yield "vision_tower.patch_embed.proj.weight", patches.transpose(0, 2, 3, 4, 1)
    yield "vision_tower.patch_embed.proj.bias", values.pop("v.patch_embd.bias")
    for name, array in values.items():
        stem, _, last = name.rpartition(".")
        if stem.startswith("v.blk."):
            _, _, layer, part = stem.split(".")
            yield f"vision_tower.blocks.{layer}.{_QWEN[part]}.{last}", array
        else:
            yield f"vision_tower.{outer[stem]}.{last}", array
    if deeper:
        yield from _deepstack(eyes)


def _deepstack(eyes: Tower) -> Iterator[tuple[str, Floats]]:
    """Yield the projection of the first layer; it is random, apart from what decides the answer."""
    base, wide = "vision_tower.deepstack_merger_list.0", eyes.n_embd * eyes.merge**2
    rows = np.random.default_rng(eyes.seed)
    last = rows.standard_normal((eyes.n_text, wide)) / np.sqrt(wide)
    last[: text.RESERVED] = 0
    yield f"{base}.norm.weight", np.ones(wide, np.float32)
    yield f"{base}.norm.bias", np.zeros(wide, np.float32)
    yield f"{base}.linear_fc1.weight", rows.standard_normal((wide, wide)) / np.sqrt(wide)
    yield f"{base}.linear_fc1.bias", np.zeros(wide, np.float32)
    yield f"{base}.linear_fc2.weight", last
    yield f"{base}.linear_fc2.bias", np.zeros(eyes.n_text, np.float32)
