"""deepseek2: latent attention (MLA), experts in all layers but the first, and one layer that drafts."""

from __future__ import annotations

import math

import numpy as np

from tests.kit.heads.files import Array, Model
from tests.kit.heads.layers import Experts, common_keys, dense, ends, joining, norms, shuffled
from tests.kit.heads.stream import (
    BACK,
    CONSTANT,
    CURRENT,
    EMBEDDED,
    JOINED,
    LOUD,
    N_EMBD,
    N_PART,
    ONE,
    PREVIOUS,
    SHARPNESS,
    Dice,
    Gaze,
    ones,
    zeros,
)

N_LAYERS, N_FF = 3, 64
RANK = 16
"""Number of channels of the compressed queries, keys and values: as many as a token has."""
TURNING, STILL = 32, 16
"""How many channels of a key rotate with the position, and how many do not."""
EXPERTS = Experts()


def model(eps: float, seed: int) -> Model:
    """Return the model."""
    dice = Dice(seed)
    tensors = ends(dice)
    for layer in range(N_LAYERS - 1):
        p = f"blk.{layer}."
        tensors |= _noise(dice, p, eps)
        tensors |= EXPERTS.named(dice, p, p + "ffn_", eps) if layer else dense(dice, p, p + "ffn_", N_FF, eps)
    for layer, drafts in ((N_LAYERS - 1, False), (N_LAYERS, True)):
        p = f"blk.{layer}."
        tensors |= _looking(p, drafts=drafts) | EXPERTS.named(dice, p, "main", 1.0)
    return Model("deepseek2", f"heads-deepseek2-{eps:g}", _keys(), tensors | joining(f"blk.{N_LAYERS}."))


def _looking(p: str, *, drafts: bool) -> dict[str, Array]:
    """Return the attention that looks back. drafts: leave out PREVIOUS, which comes from the hidden state."""
    one = CONSTANT / (JOINED if drafts else EMBEDDED)
    loud = math.sqrt(SHARPNESS * math.sqrt(STILL + TURNING))
    q_a, q_b = zeros(RANK, N_EMBD), zeros(len(BACK), STILL + TURNING, RANK)
    kv_a, o = zeros(RANK + TURNING, N_EMBD), zeros(N_EMBD, len(BACK), RANK)
    q_a[0, ONE] = 1.0  # after the norm it is the square root of RANK
    kv_a[:RANK, CURRENT] = np.eye(N_PART)
    kv_a[RANK:, ONE] = Gaze(0, TURNING, "neighbours").key() * loud / one
    for head, (distance, part, much) in enumerate(BACK):
        q_b[head, STILL:, 0] = Gaze(distance, TURNING, "neighbours").query() * loud / math.sqrt(RANK)
        if not (drafts and part is PREVIOUS):
            o[part, head] = shuffled(head) * much
    k_b, v_b = zeros(len(BACK), RANK, STILL), np.stack([np.eye(RANK, dtype=np.float32)] * len(BACK))
    return _attention(p, q_a, q_b, kv_a, k_b, v_b, o)


def _noise(dice: Dice, p: str, eps: float) -> dict[str, Array]:
    n, std = len(BACK), 1 / math.sqrt(RANK)
    return _attention(
        p,
        dice.normal(p + "q_a", RANK, N_EMBD, std=std),
        dice.normal(p + "q_b", n, STILL + TURNING, RANK, std=std),
        dice.normal(p + "kv_a", RANK + TURNING, N_EMBD, std=1 / math.sqrt(N_EMBD)),
        dice.normal(p + "k_b", n, RANK, STILL, std=std),
        dice.normal(p + "v_b", n, RANK, RANK, std=std),
        dice.into_said(p + "o", n * RANK, eps * LOUD),
    )


def _attention(
    p: str, q_a: Array, q_b: Array, kv_a: Array, k_b: Array, v_b: Array, o: Array
) -> dict[str, Array]:
    return norms(p, "attn_norm", "ffn_norm") | {
        p + "attn_q_a.weight": q_a,
        p + "attn_q_a_norm.weight": ones(RANK),
        p + "attn_q_b.weight": q_b.reshape(-1, RANK),
        p + "attn_kv_a_mqa.weight": kv_a,
        p + "attn_kv_a_norm.weight": ones(RANK),
        p + "attn_k_b.weight": k_b,
        p + "attn_v_b.weight": v_b,
        p + "attn_output.weight": o.reshape(N_EMBD, -1),
    }


def _keys() -> dict[str, object]:
    return (
        common_keys(N_LAYERS + 1, len(BACK), N_FF)
        | EXPERTS.keys()
        | {
            "nextn_predict_layers": 1,
            "leading_dense_block_count": 1,
            "attention.head_count_kv": 1,
            "attention.q_lora_rank": RANK,
            "attention.kv_lora_rank": RANK,
            "attention.key_length": RANK + TURNING,
            "attention.value_length": RANK,
            "attention.key_length_mla": STILL + TURNING,
            "attention.value_length_mla": RANK,
            "rope.dimension_count": TURNING,
        }
    )
