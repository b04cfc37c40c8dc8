"""qwen35: three layers of gated delta nets, one of attention, and one layer that drafts."""

from __future__ import annotations

import math

import numpy as np

from tests.kit.heads.files import Array, Model
from tests.kit.heads.layers import Attention, Heads, common_keys, dense, ends, joining, norms
from tests.kit.heads.stream import LOUD, N_EMBD, Dice, ones, zeros

N_LAYERS, N_FF = 4, 64
KERNEL, STATE, DELTA_HEADS, KEY_HEADS = 4, 16, 4, 2
HEADS = Heads()


def model(eps: float, seed: int) -> Model:
    """Return the model."""
    dice = Dice(seed)
    tensors = ends(dice)
    for layer in range(N_LAYERS - 1):
        tensors |= _delta_layer(dice, f"blk.{layer}.", eps)
    tensors |= _attention_layer(dice, f"blk.{N_LAYERS - 1}.", drafts=False)
    tensors |= _attention_layer(dice, f"blk.{N_LAYERS}.", drafts=True) | joining(f"blk.{N_LAYERS}.")
    return Model("qwen35", f"heads-qwen35-{eps:g}", _keys(), tensors)


def _attention_layer(dice: Dice, p: str, *, drafts: bool) -> dict[str, Array]:
    q, k, v, o = HEADS.looking(drafts=drafts)
    # Each head has its query, then its gate; a gate of zero is half open.
    gated = Attention(np.concatenate([q, np.zeros_like(q)], axis=1), k, v, o * 2)
    tensors = gated.named(p) | norms(p, "attn_norm", "post_attention_norm")
    tensors |= {p + "attn_q_norm.weight": HEADS.norm(), p + "attn_k_norm.weight": HEADS.norm()}
    return tensors | dense(dice, p, "main", N_FF, 1.0)


def _delta_layer(dice: Dice, p: str, eps: float) -> dict[str, Array]:
    keys, values = KEY_HEADS * STATE, DELTA_HEADS * STATE
    fan_in = 1 / math.sqrt(N_EMBD)
    tensors = {
        p + "attn_qkv.weight": dice.normal(p + "qkv", 2 * keys + values, N_EMBD, std=fan_in),
        p + "attn_gate.weight": dice.normal(p + "gate", values, N_EMBD, std=fan_in),
        p + "ssm_conv1d.weight": dice.normal(p + "conv", 2 * keys + values, KERNEL, std=0.5),
        p + "ssm_dt.bias": zeros(DELTA_HEADS),
        p + "ssm_a": -ones(DELTA_HEADS),
        p + "ssm_beta.weight": dice.normal(p + "beta", DELTA_HEADS, N_EMBD, std=fan_in),
        p + "ssm_alpha.weight": dice.normal(p + "alpha", DELTA_HEADS, N_EMBD, std=fan_in),
        p + "ssm_norm.weight": ones(STATE),
        p + "ssm_out.weight": dice.into_said(p + "out", values, eps * LOUD),
    }
    return tensors | norms(p, "attn_norm", "post_attention_norm") | dense(dice, p, p + "ffn_", N_FF, eps)


def _keys() -> dict[str, object]:
    return common_keys(N_LAYERS + 1, len(HEADS.looking(drafts=False).q), N_FF) | {
        "nextn_predict_layers": 1,
        "attention.head_count_kv": HEADS.n_kv,
        "attention.key_length": HEADS.width,
        "attention.value_length": HEADS.width,
        "rope.dimension_count": HEADS.turning,
        "rope.dimension_sections": [6, 5, 5, 0],
        "full_attention_interval": N_LAYERS,
        "ssm.conv_kernel": KERNEL,
        "ssm.inner_size": DELTA_HEADS * STATE,
        "ssm.state_size": STATE,
        "ssm.time_step_rank": DELTA_HEADS,
        "ssm.group_count": KEY_HEADS,
    }
