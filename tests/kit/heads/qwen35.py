"""qwen35: three layers of gated delta nets, one of attention, and one layer that drafts."""

from __future__ import annotations

import math

import numpy as np

from tests.kit.heads.files import Array, Model
from tests.kit.heads.stream import (
    BACK,
    CURRENT,
    EMBEDDED,
    JOINED,
    LOUD,
    N_EMBD,
    N_PART,
    ONE,
    PREVIOUS,
    ROPE_BASE,
    SHARPNESS,
    WHOLE,
    Dice,
    Gaze,
    ones,
    zeros,
)

N_LAYERS, N_HEADS, N_KV_HEADS, HEAD, N_FF = 4, 4, 2, 32, 64
KERNEL, STATE, DELTA_HEADS, KEY_HEADS = 4, 16, 4, 2


def model(eps: float, seed: int) -> Model:
    """Return the model."""
    dice = Dice(seed)
    tensors = {
        "token_embd.weight": dice.embeddings(),
        "output_norm.weight": ones(N_EMBD),
        "output.weight": dice.logits(),
    }
    main = N_LAYERS - 1
    for layer in range(main):
        tensors |= _delta_layer(dice, f"blk.{layer}.", eps)
    tensors |= _attention_layer(dice, f"blk.{main}.", drafts=False)
    tensors |= _attention_layer(dice, f"blk.{N_LAYERS}.", drafts=True) | joining(f"blk.{N_LAYERS}.")
    return Model("qwen35", f"heads-qwen35-{eps:g}", _keys(), tensors)


def joining(p: str) -> dict[str, Array]:
    """Return what makes a head's stream of a token and a hidden state."""
    join = zeros(N_EMBD, 2 * N_EMBD)
    token, hidden = join[:, :N_EMBD], join[:, N_EMBD:]
    token[CURRENT, CURRENT] = np.eye(N_PART) * EMBEDDED
    token[ONE, ONE] = EMBEDDED
    hidden[PREVIOUS, CURRENT] = np.eye(N_PART) * WHOLE
    norms = ("enorm", "hnorm", "shared_head_norm")
    return {f"{p}nextn.eh_proj.weight": join} | {f"{p}nextn.{norm}.weight": ones(N_EMBD) for norm in norms}


def _attention_layer(dice: Dice, p: str, *, drafts: bool) -> dict[str, Array]:
    """drafts: the layer gets PREVIOUS with its hidden state, and looks back for EARLIER alone."""
    before = JOINED if drafts else EMBEDDED
    query, key = zeros(N_HEADS, 2 * HEAD, N_EMBD), zeros(N_KV_HEADS, HEAD, N_EMBD)
    value, out = zeros(N_KV_HEADS, HEAD, N_EMBD), zeros(N_EMBD, N_HEADS, HEAD)
    for head, (distance, part, much) in enumerate(BACK):
        query[head, :HEAD, ONE] = Gaze(distance, HEAD).query()
        if not (drafts and part is PREVIOUS):
            shuffled = np.roll(np.eye(N_PART), head, axis=0)  # so that the order of the tokens matters
            out[part, head, :N_PART] = shuffled * much * before * 2  # the gate is half open
    key[:, :, ONE] = Gaze(0, HEAD).key()
    value[:, :N_PART, CURRENT] = np.eye(N_PART)
    sharp = np.float32(math.sqrt(SHARPNESS * math.sqrt(HEAD) / 2))
    gate, up, down = dice.feed_forward("main", N_FF, 1.0)
    return {
        p + "attn_norm.weight": ones(N_EMBD),
        p + "attn_q.weight": query.reshape(-1, N_EMBD),
        p + "attn_k.weight": key.reshape(-1, N_EMBD),
        p + "attn_v.weight": value.reshape(-1, N_EMBD),
        p + "attn_output.weight": out.reshape(N_EMBD, -1),
        p + "attn_q_norm.weight": ones(HEAD) * sharp,
        p + "attn_k_norm.weight": ones(HEAD) * sharp,
        p + "post_attention_norm.weight": ones(N_EMBD),
        p + "ffn_gate.weight": gate,
        p + "ffn_up.weight": up,
        p + "ffn_down.weight": down,
    }


def _delta_layer(dice: Dice, p: str, eps: float) -> dict[str, Array]:
    keys, values = KEY_HEADS * STATE, DELTA_HEADS * STATE
    fan_in = 1 / math.sqrt(N_EMBD)
    gate, up, down = dice.feed_forward(p, N_FF, eps, whole=EMBEDDED)
    return {
        p + "attn_norm.weight": ones(N_EMBD),
        p + "attn_qkv.weight": dice.normal(p + "qkv", 2 * keys + values, N_EMBD, std=fan_in),
        p + "attn_gate.weight": dice.normal(p + "gate", values, N_EMBD, std=fan_in),
        p + "ssm_conv1d.weight": dice.normal(p + "conv", 2 * keys + values, KERNEL, std=0.5),
        p + "ssm_dt.bias": zeros(DELTA_HEADS),
        p + "ssm_a": -ones(DELTA_HEADS),
        p + "ssm_beta.weight": dice.normal(p + "beta", DELTA_HEADS, N_EMBD, std=fan_in),
        p + "ssm_alpha.weight": dice.normal(p + "alpha", DELTA_HEADS, N_EMBD, std=fan_in),
        p + "ssm_norm.weight": ones(STATE),
        p + "ssm_out.weight": dice.into_said(p + "out", values, eps * LOUD),
        p + "post_attention_norm.weight": ones(N_EMBD),
        p + "ffn_gate.weight": gate,
        p + "ffn_up.weight": up,
        p + "ffn_down.weight": down,
    }


def _keys() -> dict[str, object]:
    return {
        "block_count": N_LAYERS + 1,
        "nextn_predict_layers": 1,
        "context_length": 4096,
        "embedding_length": N_EMBD,
        "feed_forward_length": N_FF,
        "attention.head_count": N_HEADS,
        "attention.head_count_kv": N_KV_HEADS,
        "attention.key_length": HEAD,
        "attention.value_length": HEAD,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": ROPE_BASE,
        "rope.dimension_count": HEAD,
        "rope.dimension_sections": [6, 5, 5, 0],
        "full_attention_interval": N_LAYERS,
        "ssm.conv_kernel": KERNEL,
        "ssm.inner_size": DELTA_HEADS * STATE,
        "ssm.state_size": STATE,
        "ssm.time_step_rank": DELTA_HEADS,
        "ssm.group_count": KEY_HEADS,
    }
