"""gemma4, and gemma4_assistant: a drafter without a cache, whose queries read its target's.

EARLIER is the mean of the tokens in the window. It changes little from token to token, as it must, since all
tokens of a draft are made at one position. The output of each block is normalized before it is added to the
stream, so the weights of those norms, not the matrices, determine how loud it is.
"""

from __future__ import annotations

import math

import numpy as np

from tests.kit.heads.files import Array, Model
from tests.kit.heads.layers import Attention, Heads, common_keys, norms
from tests.kit.heads.stream import (
    BACK,
    CURRENT,
    EARLIER,
    FAINT,
    LOUD,
    N_EMBD,
    N_PART,
    N_SAID,
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

N_LAYERS, N_FF, WINDOW = 4, 64, 32
WINDOWED = [True, True, True, False]
WIDTH = 80
"""Number of channels in the drafter, which must differ from the target's."""
NARROWER = math.sqrt(N_EMBD / WIDTH)
"""Corrects norms over the drafter's channels, some of which are always empty."""
HEADS = Heads()

MEANT = FAINT * math.sqrt(3)
"""Standard deviation of EARLIER."""
PREVIOUS_LOUD, EARLIER_LOUD, SAID_LOUD = (
    deviation * math.sqrt(n / N_EMBD) for deviation, n in ((1.0, N_PART), (MEANT, N_PART), (LOUD, N_SAID))
)
"""Root mean squares of streams that contain only this part."""


def target(eps: float, seed: int) -> Model:
    """Return the target."""
    dice = Dice(seed)
    tensors = {
        "token_embd.weight": dice.embeddings() / math.sqrt(N_EMBD),  # gemma4 multiplies them again
        "output.weight": dice.logits(),
        "rope_freqs.weight": ones(HEADS.width // 2),
    } | norms("", "output_norm")
    for layer in range(N_LAYERS):
        p, noise = f"blk.{layer}.", eps * SAID_LOUD
        if layer == N_LAYERS - 1:
            tensors |= _layer(dice, p, _looking(), PREVIOUS_LOUD, "main", SAID_LOUD)
        elif layer == N_LAYERS - 2:
            tensors |= _layer(dice, p, _averaging(), EARLIER_LOUD, p + "ffn_", noise)
        else:
            tensors |= _layer(dice, p, HEADS.noise(dice, p, 1.0), noise, p + "ffn_", noise)
    keys = common_keys(N_LAYERS, len(BACK), N_FF) | _keys(WINDOWED) | {"embedding_length_per_layer_input": 0}
    return Model("gemma4", f"heads-gemma4-target-{eps:g}", keys, tensors)


def drafter(seed: int) -> Model:
    """Return the drafter: a windowed layer that makes EARLIER, and a full one that makes SAID."""
    dice = Dice(seed)
    before, behind = zeros(WIDTH, 2 * N_EMBD), zeros(N_EMBD, WIDTH)
    token, hidden = before[:, :N_EMBD], before[:, N_EMBD:]
    token[CURRENT, CURRENT] = hidden[PREVIOUS, CURRENT] = np.eye(N_PART)
    hidden *= WHOLE
    token[EARLIER, CURRENT] = np.eye(N_PART) * (MEANT / math.sqrt(WINDOW))  # the target has not read it yet
    token[ONE, ONE] = 1.0
    behind[:, :N_EMBD] = np.eye(N_EMBD)
    tensors = {
        "token_embd.weight": _wide(dice.logits(), axis=1),
        "output_norm.weight": ones(WIDTH) * np.float32(NARROWER),
        "rope_freqs.weight": ones(HEADS.width // 2),
        "nextn.pre_projection.weight": before,
        "nextn.post_projection.weight": behind,
    }
    for layer, loud, said in ((0, EARLIER_LOUD, 0.0), (1, 0.0, SAID_LOUD)):
        tensors |= _drafting_layer(dice, f"blk.{layer}.", loud, said)
    keys = (
        common_keys(2, len(BACK), N_FF)
        | _keys([True, False])
        | {
            "nextn_predict_layers": 2,
            "embedding_length": WIDTH,
            "embedding_length_out": N_EMBD,
        }
    )
    return Model("gemma4-assistant", "heads-gemma4-drafter", keys, tensors)


def _layer(dice: Dice, p: str, attention: Attention, loud: float, name: str, said: float) -> dict[str, Array]:
    """Return a layer. loud, said: root mean squares of what its attention and its feed-forward add."""
    gate, up, down = dice.feed_forward(name, N_FF, 1.0)
    sharp = ones(HEADS.width) * np.float32(math.sqrt(SHARPNESS / 2))  # gemma4 does not scale scores down
    return (
        attention.named(p)
        | norms(p, "attn_norm", "ffn_norm")
        | {
            p + "attn_q_norm.weight": sharp,
            p + "attn_k_norm.weight": sharp,
            p + "post_attention_norm.weight": ones(N_EMBD) * np.float32(loud),
            p + "ffn_gate.weight": gate,
            p + "ffn_up.weight": up,
            p + "ffn_down.weight": down,
            p + "post_ffw_norm.weight": ones(N_EMBD) * np.float32(said),
        }
    )


def _drafting_layer(dice: Dice, p: str, loud: float, said: float) -> dict[str, Array]:
    made = _layer(dice, p, _averaging(), loud, "main", said)
    for name in ("attn_k", "attn_k_norm", "attn_v"):
        del made[f"{p}{name}.weight"]
    for name in ("attn_q", "ffn_gate", "ffn_up"):
        made[f"{p}{name}.weight"] = _wide(made[f"{p}{name}.weight"], axis=1)
    for name in ("attn_output", "ffn_down"):
        made[f"{p}{name}.weight"] = _wide(made[f"{p}{name}.weight"], axis=0)
    for name in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
        weights = made[f"{p}{name}.weight"]
        made[f"{p}{name}.weight"] = np.full(WIDTH, weights[0] * np.float32(NARROWER))
    return made | {p + "layer_output_scale.weight": ones(1)}


def _looking() -> Attention:
    """Return the attention that provides PREVIOUS."""
    q, k, v, o = _averaging()
    q[0, :, ONE], k[:, :, ONE] = Gaze(1, HEADS.width).query(), Gaze(0, HEADS.width).key()
    o[:] = 0
    o[PREVIOUS, 0, :N_PART] = np.eye(N_PART)
    return Attention(q, k, v, o)


def _averaging() -> Attention:
    """Return the attention that provides EARLIER; without a query, it weights all it sees equally."""
    _, k, v, o = HEADS.looking(drafts=False)
    o[:] = 0
    o[EARLIER, 0, :N_PART] = np.eye(N_PART)
    return Attention(zeros(len(BACK), HEADS.width, N_EMBD), k, v, o)


def _wide(matrix: Array, *, axis: int) -> Array:
    """Return a matrix padded to the drafter's width."""
    room = [(0, 0), (0, 0)]
    room[axis] = (0, WIDTH - N_EMBD)
    return np.pad(matrix, room)


def _keys(windowed: list[bool]) -> dict[str, object]:
    return {
        "attention.head_count_kv": HEADS.n_kv,
        "attention.key_length": HEADS.width,
        "attention.value_length": HEADS.width,
        "attention.key_length_swa": HEADS.width,
        "attention.value_length_swa": HEADS.width,
        "attention.sliding_window": WINDOW,
        "attention.sliding_window_pattern": windowed,
        "rope.dimension_count": HEADS.turning,
        "rope.dimension_count_swa": HEADS.turning,
        "rope.freq_base_swa": ROPE_BASE,
    }
