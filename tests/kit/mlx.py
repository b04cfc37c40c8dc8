"""The kit's models for MLX: folders written by mlx-lm itself.

A Spec has the same weights here as in a GGUF, so that llama.cpp and MLX compute the same thing.

    folder = mlx_build(Spec(shape=MOE, weights="4bit"))
    folder = mlx_tiny("windowed")
    target, draft = mlx_pair(eps=0.05)
"""

from __future__ import annotations

import contextlib
import importlib
import io
import re
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from gguf import GGMLQuantizationType as Type

from tests.kit import mlx_tokenizer
from tests.kit.build import MODELS_DIR, Spec, data_of, fingerprint, made, table_of
from tests.kit.pairs import PAIR, pair_of
from tests.kit.shapes import KINDS, Shape, Tensor

FLOATS = {"F32": mx.float32, "F16": mx.float16, "BF16": mx.bfloat16}
QUANTS: dict[str, dict[str, Any]] = {
    "4bit": {"group_size": 64, "bits": 4},
    "6bit": {"group_size": 64, "bits": 6},
    "8bit": {"group_size": 64, "bits": 8},
    "mxfp4": {"group_size": 32, "bits": 4, "mode": "mxfp4"},
}
"""Arguments for mlx-lm's quantize_model, which quantizes from F16."""

MODULES = {
    "llama": "llama",
    "qwen3": "qwen3",
    "gemma3": "gemma3_text",
    "lfm2": "lfm2",
    "qwen3moe": "qwen3_moe",
}
"""mlx-lm's module (and model_type), by llama.cpp's name of the architecture."""
CLASSES = {
    "llama": "LlamaForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
    "lfm2": "Lfm2ForCausalLM",
    "qwen3moe": "Qwen3MoeForCausalLM",
}

NAMES = {
    "token_embd": "model.embed_tokens",
    "token_embd_norm": "model.embedding_norm",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.switch_mlp.gate_proj",
    "ffn_up_exps": "mlp.switch_mlp.up_proj",
    "ffn_down_exps": "mlp.switch_mlp.down_proj",
}
OTHER_NAMES = {
    "gemma3": {
        "ffn_norm": "pre_feedforward_layernorm",
        "post_attention_norm": "post_attention_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    },
    "lfm2": {
        "attn_norm": "operator_norm",
        "attn_output": "self_attn.out_proj",
        "attn_q_norm": "self_attn.q_layernorm",
        "attn_k_norm": "self_attn.k_layernorm",
        "ffn_norm": "ffn_norm",
        "ffn_gate": "feed_forward.w1",
        "ffn_up": "feed_forward.w3",
        "ffn_down": "feed_forward.w2",
        "shortconv.conv": "conv.conv",
        "shortconv.in_proj": "conv.in_proj",
        "shortconv.out_proj": "conv.out_proj",
    },
}


def mlx_tiny(kind: str = "dense", *, folder: Path = MODELS_DIR, **changes: Any) -> Path:
    """Return the folder of a tiny model, of a kind known to `tiny`; `changes` apply to its Spec."""
    return mlx_build(Spec(shape=KINDS[kind], name=f"tiny-{kind}", **changes), folder=folder)


def mlx_pair(eps: float, *, folder: Path = MODELS_DIR, **changes: Any) -> tuple[Path, Path]:
    """Return the folders of (target, draft); see tests/kit/pairs.py."""
    target, draft = pair_of(eps, shape=PAIR, **changes)
    return mlx_build(target, folder=folder), mlx_build(draft, folder=folder)


def mlx_build(spec: Spec, *, folder: Path = MODELS_DIR) -> Path:
    """Return the folder of the model that `spec` describes, writing it first if necessary."""
    name = f"{spec.name}-{spec.weights}-{fingerprint(spec)}-mlx"
    return made(folder / name, lambda path: write(spec, path))


def write(spec: Spec, folder: Path) -> None:
    """Write the model as mlx-lm writes models that it converts."""
    if spec.tokenizer or spec.types:
        raise ValueError("the kit's MLX models have a tokenizer of their own, and one type of weights")
    from mlx_lm.utils import quantize_model, save_config, save_model  # takes 0.7 s, with transformers

    table = table_of(spec)
    config = config_of(spec, n_vocab=table[0].shape[1])
    module = importlib.import_module(f"mlx_lm.models.{config['model_type']}")
    model = module.Model(module.ModelArgs.from_dict(config))
    kind = FLOATS.get(spec.weights, mx.float16)
    arrays = {name_of(spec.shape, one): mx.array(array_of(spec, one)).astype(kind) for one in table}
    model.load_weights(list(arrays.items()))
    if spec.weights in QUANTS:
        with contextlib.redirect_stdout(io.StringIO()):
            model, config = quantize_model(model, config, **QUANTS[spec.weights])
    save_model(folder, model)
    save_config(config | dict(spec.overrides), folder / "config.json")
    mlx_tokenizer.write(
        folder, pieces=spec.pieces, n_vocab=table[0].shape[1], chat_template=spec.chat_template
    )


def config_of(spec: Spec, *, n_vocab: int) -> dict[str, Any]:
    """Return the contents of config.json."""
    shape = spec.shape
    config = {
        "architectures": [CLASSES[shape.arch]],
        "model_type": MODULES[shape.arch],
        "vocab_size": n_vocab,
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
        "torch_dtype": {"F32": "float32", "BF16": "bfloat16"}.get(spec.weights, "float16"),
    }
    return config | mlx_tokenizer.special_ids(pieces=spec.pieces) | _own_keys(shape)


def _own_keys(shape: Shape) -> dict[str, Any]:
    if shape.arch == "gemma3":
        return {
            "query_pre_attn_scalar": shape.head,
            "sliding_window": shape.window,
            "sliding_window_pattern": shape.window_period,
            "rope_local_base_freq": 10000.0,
        }
    if shape.arch == "lfm2":
        return {
            "norm_eps": 1e-5,
            "conv_bias": False,
            "conv_L_cache": shape.conv_kernel,
            "block_dim": shape.n_embd,
            "block_ff_dim": shape.n_ff,
            "block_multiple_of": 1,
            "block_ffn_dim_multiplier": 1.0,
            "block_auto_adjust_ff_dim": False,
            "layer_types": [
                "conv" if i in shape.conv_layers else "full_attention" for i in range(shape.n_layers)
            ],
        }
    if shape.n_experts:
        return {
            "num_experts": shape.n_experts,
            "num_experts_per_tok": shape.n_experts_used,
            "moe_intermediate_size": shape.n_ff,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "norm_topk_prob": True,
        }
    return {}


def name_of(shape: Shape, tensor: Tensor) -> str:
    """Return the tensor's name in mlx-lm's model."""
    found = re.fullmatch(r"(?:blk\.(\d+)\.)?(.+)\.weight", tensor.name)
    assert found is not None
    layer, name = found.groups()
    name = (NAMES | OTHER_NAMES.get(shape.arch, {}))[name]
    return f"model.layers.{layer}.{name}.weight" if layer else f"{name}.weight"


def array_of(spec: Spec, tensor: Tensor) -> np.ndarray:
    """Return a GGUF tensor in the form of mlx-lm's model, float32."""
    values = data_of(spec, tensor, Type.F32).view(np.float32).reshape(tensor.shape[::-1])
    return as_mlx(spec.shape, tensor.name, values)


def as_mlx(shape: Shape, name: str, values: np.ndarray) -> np.ndarray:
    """Return a GGUF tensor's values in the form of mlx-lm's model."""
    if shape.arch == "llama" and "attn_q" in name:
        return _halves(values, shape.n_heads)
    if shape.arch == "llama" and "attn_k" in name:
        return _halves(values, shape.n_kv_heads)
    if shape.arch == "gemma3" and "norm" in name:  # a GGUF has 1 added already
        return values - 1
    return values[..., None] if "shortconv.conv" in name else values


def _halves(values: np.ndarray, n_heads: int) -> np.ndarray:
    # llama.cpp rotates pairs of neighbors; the others pair a channel in the first half with one in the
    # second.
    pairs = values.reshape(n_heads, -1, 2, values.shape[-1])
    return pairs.swapaxes(1, 2).reshape(values.shape)
