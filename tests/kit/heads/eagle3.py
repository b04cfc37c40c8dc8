"""EAGLE-3: a qwen3, and a draft with one layer that gets the inputs of three of its target's layers.

A third of the last token's channels is read from each of those inputs; the token before is read from the
third one. The draft's layer has no residual stream for its own token: one of its heads, which looks at its
own position, turns the last token's stream into this one's.
"""

from __future__ import annotations

import math

import numpy as np

from tests.kit.heads.files import Array, Model
from tests.kit.heads.layers import Heads, common_keys, dense, ends, norms, shuffled
from tests.kit.heads.stream import (
    BACK,
    CONSTANT,
    CURRENT,
    EARLIER,
    EMBEDDED,
    FAINT,
    N_EMBD,
    N_PART,
    ONE,
    PREVIOUS,
    SHARPNESS,
    WHOLE,
    Dice,
    Gaze,
    zeros,
)
from tests.kit.tokenizers import N_BYTES_VOCAB, NOT_PRINTABLE

N_LAYERS, MAIN, N_FF = 4, 2, 64
TARGET_LAYERS = (1, 2, 3)
HEADS = Heads()
WIDTH, TURNING = N_EMBD, 32
"""Channels in each of the draft's heads, one of which carries a whole stream; how many rotate."""


def target(eps: float, seed: int) -> Model:
    """Return the target."""
    dice = Dice(seed)
    tensors = ends(dice)
    for layer in range(N_LAYERS):
        p, main = f"blk.{layer}.", layer == MAIN
        attention = HEADS.looking(drafts=False) if main else HEADS.noise(dice, p, eps)
        tensors |= attention.named(p) | norms(p, "attn_norm", "ffn_norm")
        tensors |= {p + "attn_q_norm.weight": HEADS.norm(), p + "attn_k_norm.weight": HEADS.norm()}
        tensors |= dense(dice, p, "main" if main else p + "ffn_", N_FF, 1.0 if main else eps)
    keys = common_keys(N_LAYERS, len(BACK), N_FF) | _widths(HEADS.width, HEADS.turning)
    return Model("qwen3", f"heads-eagle3-target-{eps:g}", keys, tensors)


def draft(seed: int) -> Model:
    """Return the draft. It only knows printable tokens, and uses the target's embeddings."""
    dice, p = Dice(seed), "blk.0."
    known = [token for token in range(N_BYTES_VOCAB) if token not in NOT_PRINTABLE]
    tensors = {
        "fc.weight": _fusing(),
        "d2t": np.array(known, np.int64),
        "output.weight": dice.logits()[known],
    }
    tensors |= norms("", "output_norm") | norms(p, "attn_norm", "attn_norm_2", "ffn_norm")
    tensors |= _attention(p) | dense(dice, p, "main", N_FF, 1.0)
    keys = (
        common_keys(1, len(BACK), N_FF)
        | _widths(WIDTH, TURNING)
        | {
            "target_layers": list(TARGET_LAYERS),
            "target_hidden_size": N_EMBD,
            "norm_before_residual": True,
        }
    )
    return Model("eagle3", "heads-eagle3-draft", keys, tensors)


def _fusing() -> Array:
    """Return the matrix that merges the inputs of the target's layers into one stream."""
    fuse = zeros(3, N_EMBD, N_EMBD)
    for i, channels in enumerate((range(6), range(6, 11), range(11, 16))):
        fuse[i, channels, channels] = 1.0
    rest = [*range(PREVIOUS.start, EARLIER.stop), ONE]
    fuse[2, rest, rest] = 1.0
    return np.concatenate(list(fuse), axis=1)


def _attention(p: str) -> dict[str, Array]:
    loud = math.sqrt(SHARPNESS * math.sqrt(WIDTH)) * EMBEDDED / CONSTANT
    q, o = zeros(len(BACK), WIDTH, 2 * N_EMBD), zeros(N_EMBD, len(BACK), WIDTH)
    k, v = zeros(2, WIDTH, 2 * N_EMBD), zeros(2, WIDTH, 2 * N_EMBD)
    k[:, :TURNING, ONE] = Gaze(0, TURNING, "neighbours").key() * loud
    v[0], v[1, CURRENT, CURRENT] = _renewal(), np.eye(N_PART) * EMBEDDED
    o[:, 0] = np.eye(N_EMBD)
    q[0, :TURNING, ONE] = Gaze(0, TURNING, "neighbours").query() * loud
    for head in (2, 3):
        distance, part, much = BACK[head]
        q[head, :TURNING, ONE] = Gaze(distance, TURNING, "neighbours").query() * loud
        o[part, head, CURRENT] = shuffled(head) * much
    return {
        p + "attn_q.weight": q.reshape(-1, 2 * N_EMBD),
        p + "attn_k.weight": k.reshape(-1, 2 * N_EMBD),
        p + "attn_v.weight": v.reshape(-1, 2 * N_EMBD),
        p + "attn_output.weight": o.reshape(N_EMBD, -1),
    }


def _renewal() -> Array:
    """Return the matrix from a token and the last stream to what the next stream needs added."""
    lack = zeros(N_EMBD, 2 * N_EMBD)
    token, stream = lack[:, :N_EMBD], lack[:, N_EMBD:]
    stream[:] = -np.eye(N_EMBD)
    token[CURRENT, CURRENT] = np.eye(N_PART) * EMBEDDED
    token[ONE, ONE] = EMBEDDED
    stream[PREVIOUS, CURRENT] += np.eye(N_PART, dtype=np.float32) * WHOLE
    stream[EARLIER, PREVIOUS] += shuffled(1) * (FAINT * WHOLE)
    return lack


def _widths(width: int, turning: int) -> dict[str, object]:
    return {
        "attention.head_count_kv": 2,
        "attention.key_length": width,
        "attention.value_length": width,
        "rope.dimension_count": turning,
    }
