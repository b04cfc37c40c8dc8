"""step35: all layers but one are windowed; three more draft, one for each step of a draft.

The first drafting layer drafts a token from the target's hidden state, the second one the next token from the
first one's state, and so on. Each writes a token's channels in a different order, and reads those of the
layer before in that layer's order: a layer that runs out of turn drafts nonsense.
"""

from __future__ import annotations

import numpy as np

from tests.kit.heads.files import Array, Model
from tests.kit.heads.layers import Attention, Experts, Heads, common_keys, dense, ends, joining, norms
from tests.kit.heads.stream import BACK, CURRENT, N_EMBD, N_PART, PREVIOUS, ROPE_BASE, Dice, zeros

N_LAYERS, N_HEADS, N_FF, WINDOW = 3, 3, 64, 64
WINDOWED, FULL = Heads(turning=32), Heads(turning=16)
EXPERTS = Experts()


def model(eps: float, seed: int) -> Model:
    """Return the model."""
    dice = Dice(seed)
    tensors = ends(dice)
    for layer in range(N_LAYERS - 1):
        p = f"blk.{layer}."
        tensors |= _layer(p, WINDOWED, WINDOWED.noise(dice, p, eps))
        tensors |= _experts(dice, p, eps) if layer else dense(dice, p, p + "ffn_", N_FF, eps)
    p = f"blk.{N_LAYERS - 1}."
    tensors |= _layer(p, FULL, FULL.looking(drafts=False)) | dense(dice, p, "main", N_FF, 1.0)
    for head in range(N_HEADS):
        tensors |= _drafting(dice, f"blk.{N_LAYERS + head}.", head)
    return Model("step35", f"heads-step35-{eps:g}", _keys(), tensors)


def _drafting(dice: Dice, p: str, head: int) -> dict[str, Array]:
    tensors = (
        _layer(p, WINDOWED, WINDOWED.looking(drafts=True)) | dense(dice, p, "main", N_FF, 1.0) | joining(p)
    )
    own, former = _order(head + 1), _order(head)
    # Matrices that write CURRENT use this layer's order, and those that read it expect that.
    join = tensors[p + "nextn.eh_proj.weight"]
    join[CURRENT] = own @ join[CURRENT]
    join[PREVIOUS, N_EMBD:][:, CURRENT] = join[PREVIOUS, N_EMBD:][:, CURRENT] @ former.T
    tensors[p + "nextn.shared_head_head.weight"] = dice.logits()
    for name in ("attn_v", "ffn_gate", "ffn_up", "nextn.shared_head_head"):
        matrix = tensors[f"{p}{name}.weight"]
        matrix[:, CURRENT] = matrix[:, CURRENT] @ own.T
    return tensors


def _order(head: int) -> Array:
    """Return the order of a token's channels after `head` drafting layers."""
    return np.roll(np.eye(N_PART, dtype=np.float32), 5 * head, axis=0)


def _layer(p: str, heads: Heads, attention: Attention) -> dict[str, Array]:
    # Each head has a gate; a gate of zero is half open.
    tensors = attention._replace(o=attention.o * 2).named(p) | norms(p, "attn_norm", "ffn_norm")
    tensors[p + "attn_gate.weight"] = zeros(len(BACK), N_EMBD)
    return tensors | {p + "attn_q_norm.weight": heads.norm(), p + "attn_k_norm.weight": heads.norm()}


def _experts(dice: Dice, p: str, eps: float) -> dict[str, Array]:
    return EXPERTS.named(dice, p, p + "ffn_", eps)


def _keys() -> dict[str, object]:
    return (
        common_keys(N_LAYERS + N_HEADS, len(BACK), N_FF)
        | EXPERTS.keys()
        | {
            "nextn_predict_layers": N_HEADS,
            "expert_shared_feed_forward_length": EXPERTS.n_ff,
            "attention.head_count_kv": WINDOWED.n_kv,
            "attention.key_length": WINDOWED.width,
            "attention.value_length": WINDOWED.width,
            "attention.sliding_window": WINDOW,
            "attention.sliding_window_pattern": [
                layer != N_LAYERS - 1 for layer in range(N_LAYERS + N_HEADS)
            ],
            "rope.dimension_count": WINDOWED.turning,  # full layers rotate half of these
            "rope.freq_base_swa": ROPE_BASE,
        }
    )
