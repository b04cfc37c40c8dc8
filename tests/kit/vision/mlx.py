"""MLX folders of models that see, as mlx-vlm writes models that it converts.

    folder = mlx_seeing("windowed")     the answer to PROMPT with a picture is its color

The text model and tower have the weights from `models.py` and `tower.py`, under other names.

| kind | mlx-vlm's model | peculiar |
|---|---|---|
| windowed | gemma3 | a picture's tokens see each other: no causal mask |
| dense | idefics3 | large pictures are cut into tiles; with several pictures, any one is named |
| hybrid | qwen3_5 | like mrope, with a recurrent state in three of four layers |
| mrope | qwen3_vl | positions in time, row and column; any size; the tower's first layer is shown too |
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from gguf import GGMLQuantizationType as Type

from tests.kit.build import MODELS_DIR, Spec, data_of, fingerprint, made, table_of
from tests.kit.mlx import as_mlx, name_of
from tests.kit.mlx_tokenizer import special_ids, write_bytes
from tests.kit.shapes import (
    DELTA_HEADS,
    DELTA_KERNEL,
    DELTA_KEY_HEADS,
    DELTA_STATE,
    QWEN3VL,
    QWEN35,
    WINDOWED,
    Shape,
    Tensor,
)
from tests.kit.tokenizers import KeyValue, n_tokens
from tests.kit.vision import text
from tests.kit.vision.mlx_tower import tower_arrays
from tests.kit.vision.models import MARKS
from tests.kit.vision.tower import N_FF, N_HEADS, N_LAYERS, PATCH, Floats, Tower

FORMAT = 2
"""Part of every folder's name: raise it when the same kind would give different bytes."""
_IMAGE, _SOFT, _PAD, _VIDEO = "<image>", "<image_soft_token>", "<|image_pad|>", "<|video_pad|>"
CELLS = (_IMAGE, _SOFT, _PAD, _VIDEO)
"""Tokens that stand for a picture's cells; a GGUF's vocabulary does not need them."""


@dataclass(frozen=True, slots=True)
class _Kind:
    shape: Shape
    tower: Tower
    model_type: str
    class_name: str
    cell: str


MLX_KINDS: dict[str, _Kind] = {
    "windowed": _Kind(
        WINDOWED.sized(tied=True),
        Tower("gemma3", image_size=128, merge=4),
        "gemma3",
        "Gemma3ForConditionalGeneration",
        _SOFT,
    ),
    "dense": _Kind(
        Shape(n_heads=2, n_kv_heads=2),
        Tower("idefics3", image_size=64, merge=2, longest_edge=128),
        "idefics3",
        "Idefics3ForConditionalGeneration",
        _IMAGE,
    ),
    "hybrid": _Kind(
        QWEN35,
        Tower("qwen3vl_merger", image_size=128, merge=2),
        "qwen3_5",
        "Qwen3_5ForConditionalGeneration",
        _PAD,
    ),
    "mrope": _Kind(
        QWEN3VL,
        Tower("qwen3vl_merger", image_size=128, merge=2),
        "qwen3_vl",
        "Qwen3VLForConditionalGeneration",
        _PAD,
    ),
}


def mlx_seeing(kind: str, *, folder: Path = MODELS_DIR, size: int = 1) -> Path:
    """Return the folder of a kind, writing it first if necessary. size: factor for the tower's channels."""
    one = MLX_KINDS[kind]
    eyes = Tower(**{name: getattr(one.tower, name) for name in one.tower.__slots__} | {"size": size})
    spec = Spec(shape=one.shape, name=f"seeing-{kind}", logit_scale=1.0 if one.shape.tied else 2.0)
    name = f"{spec.name}-{FORMAT}-{size}-{fingerprint(spec)}-mlx"
    return made(folder / name, lambda path: _write(one, spec, eyes, path))


def _write(kind: _Kind, spec: Spec, eyes: Tower, folder: Path) -> None:
    folder.mkdir()
    entries = _tokenizer()
    arrays = dict(_text_arrays(spec, n_tokens(entries))) | dict(tower_arrays(kind.model_type, eyes))
    mx.save_safetensors(
        str(folder / "model.safetensors"),
        {name: mx.array(np.ascontiguousarray(values, np.float32)) for name, values in arrays.items()},
        {"format": "mlx"},
    )
    ids = {token: at for at, token in enumerate(_tokens(entries))}
    _save(folder / "config.json", _config(kind, spec.shape, eyes, ids))
    for name, content in _processors(kind, eyes).items():
        _save(folder / name, content)
    named = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": kind.cell}
    write_bytes(folder, entries, chat_template=spec.chat_template, pad_token="<|endoftext|>", **named)


def _save(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content))


def _tokenizer() -> list[KeyValue]:
    """Return the tokens of the kit's models that see, plus those for cells."""
    return text.tokenizer((*MARKS, *CELLS))


def _tokens(entries: list[KeyValue]) -> list[str]:
    return next(value for key, value, *_ in entries if key == "tokenizer.ggml.tokens")


def _config(kind: _Kind, shape: Shape, eyes: Tower, ids: dict[str, int]) -> dict[str, Any]:
    """Return the contents of config.json."""
    text_config: dict[str, Any] = {
        "model_type": "llama" if kind.model_type == "idefics3" else f"{kind.model_type}_text",
        "vocab_size": len(ids),
        "hidden_size": shape.n_embd,
        "intermediate_size": shape.n_ff,
        "num_hidden_layers": shape.n_layers,
        "num_attention_heads": shape.n_heads,
        "num_key_value_heads": shape.n_kv_heads,
        "head_dim": shape.head,
        "rms_norm_eps": 1e-5,
        "rope_theta": shape.rope_base,
        "max_position_embeddings": shape.context_length,
        "tie_word_embeddings": shape.tied,
    }
    vision: dict[str, Any] = {
        "model_type": "siglip_vision_model",
        "hidden_size": eyes.n_embd,
        "intermediate_size": N_FF * eyes.size,
        "num_attention_heads": N_HEADS,
        "num_hidden_layers": N_LAYERS,
        "image_size": eyes.image_size,
        "patch_size": PATCH,
    }
    whole: dict[str, Any] = {
        "image_token_index": ids[kind.cell],
        "image_token_id": ids[kind.cell],
        "vocab_size": len(ids),
    }
    if kind.model_type == "gemma3":
        cells = (eyes.image_size // PATCH // eyes.merge) ** 2
        whole["mm_tokens_per_image"] = text_config["mm_tokens_per_image"] = cells
        text_config |= {
            "query_pre_attn_scalar": shape.head,
            "sliding_window": shape.window,
            "sliding_window_pattern": shape.window_period,
            "rope_global_base_freq": shape.rope_base,
            "rope_local_base_freq": 10000.0,
        }
    elif kind.model_type == "idefics3":
        vision["model_type"] = "idefics3_vision"
        whole["scale_factor"] = eyes.merge
    else:
        text_config |= _qwen_text(kind.model_type, shape)
        whole |= {
            "video_token_id": ids[_VIDEO],
            "vision_start_token_id": ids["<|vision_start|>"],
            "vision_end_token_id": ids["<|vision_end|>"],
        }
        vision |= {
            "model_type": kind.model_type,
            "depth": N_LAYERS,
            "num_heads": N_HEADS,
            "out_hidden_size": shape.n_embd,
            "spatial_merge_size": eyes.merge,
            "temporal_patch_size": 2,
            "in_channels": 3,
            "num_position_embeddings": (eyes.image_size // PATCH) ** 2,
            "deepstack_visual_indexes": [0] * (kind.model_type == "qwen3_vl"),
        }
    return {
        "architectures": [kind.class_name],
        "model_type": kind.model_type,
        "torch_dtype": "float32",
        "text_config": text_config,
        "vision_config": vision,
        **whole,
        **special_ids(pieces=False),
    }


def _qwen_text(model_type: str, shape: Shape) -> dict[str, Any]:
    """Return the settings of Qwen's models for positions and recurrent states."""
    turns = {"type": "default", "mrope_section": list(shape.rope_sections[:3])}
    if model_type == "qwen3_vl":
        return {"rope_scaling": turns}
    return {
        "rope_parameters": turns | {"rope_theta": shape.rope_base, "partial_rotary_factor": 1.0},
        "full_attention_interval": shape.n_layers,
        "linear_num_value_heads": DELTA_HEADS,
        "linear_num_key_heads": DELTA_KEY_HEADS,
        "linear_key_head_dim": DELTA_STATE,
        "linear_value_head_dim": DELTA_STATE,
        "linear_conv_kernel_dim": DELTA_KERNEL,
    }


def _processors(kind: _Kind, eyes: Tower) -> dict[str, dict[str, Any]]:
    """Return the preprocessing settings: preprocessor_config.json and processor_config.json."""
    half = [0.5, 0.5, 0.5]
    shared = {"image_mean": half, "image_std": half, "do_normalize": True, "do_rescale": True}
    if kind.model_type == "gemma3":
        size = {"height": eyes.image_size, "width": eyes.image_size}
        own = {"image_processor_type": "Gemma3ImageProcessor", "size": size}
        cells = (eyes.image_size // PATCH // eyes.merge) ** 2
        more = {"processor_class": "Gemma3Processor", "image_seq_length": cells}
    elif kind.model_type == "idefics3":
        own = {
            "image_processor_type": "Idefics3ImageProcessor",
            "size": {"longest_edge": eyes.longest_edge},
            "max_image_size": {"longest_edge": eyes.image_size},
            "do_image_splitting": True,
        }
        cells = (eyes.image_size // PATCH // eyes.merge) ** 2
        more = {"processor_class": "Idefics3Processor", "image_seq_len": cells}
    else:
        own = {
            "image_processor_type": "Qwen2VLImageProcessorFast",
            "patch_size": PATCH,
            "temporal_patch_size": 2,
            "merge_size": eyes.merge,
            "min_pixels": 16 * 16,
            "max_pixels": 512 * 512,
        }
        more = {"processor_class": "Qwen3VLProcessor"}
    return {"preprocessor_config.json": shared | own, "processor_config.json": more}


def _text_arrays(spec: Spec, n_vocab: int) -> Iterator[tuple[str, Floats]]:
    """Yield the names and values of the language model's tensors."""
    shape = spec.shape
    for tensor in table_of(spec, n_vocab):
        values = data_of(spec, tensor, Type.F32).view(np.float32).reshape(tensor.shape[::-1]).copy()
        if shape.arch == "llama":  # a GGUF orders its heads differently, so weights are set afterwards
            values = as_mlx(shape, tensor.name, values).copy()
            text.set_by_hand(shape, tensor.name, values)
        else:
            text.set_by_hand(shape, tensor.name, values)
            values = as_mlx(shape, tensor.name, values)
        if "ssm_" in tensor.name or shape.delta_layers:
            yield _hybrid(tensor.name, values)
            continue
        name = name_of(shape, tensor)
        if shape.arch == "llama" and name.startswith("model."):
            name = name.removeprefix("model.")
        yield f"language_model.{name}", values


_DELTA = {
    "attn_qkv.weight": "in_proj_qkv.weight",
    "attn_gate.weight": "in_proj_z.weight",
    "ssm_conv1d.weight": "conv1d.weight",
    "ssm_dt.bias": "dt_bias",
    "ssm_a": "A_log",
    "ssm_beta.weight": "in_proj_b.weight",
    "ssm_alpha.weight": "in_proj_a.weight",
    "ssm_norm.weight": "norm.weight",
    "ssm_out.weight": "out_proj.weight",
}


def _hybrid(name: str, values: Floats) -> tuple[str, Floats]:
    """Return a qwen35 tensor under its name in mlx-vlm."""
    if not name.startswith("blk."):
        return f"language_model.{name_of(QWEN35, Tensor(name, (), None))}", values
    _, layer, part = name.split(".", 2)
    base = f"language_model.model.layers.{layer}"
    if part == "ssm_a":
        values = np.log(-values)
    if part == "ssm_conv1d.weight":
        values = values[..., None]
    if part in _DELTA:
        return f"{base}.linear_attn.{_DELTA[part]}", values
    if part == "post_attention_norm.weight":
        return f"{base}.post_attention_layernorm.weight", values
    return f"language_model.{name_of(QWEN35, Tensor(name, (), None))}", values
