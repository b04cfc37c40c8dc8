"""glm4_moe: half of a head's channels rotate, all layers but the first have experts, and one layer drafts."""

from __future__ import annotations

from tests.kit.heads.files import Array, Model
from tests.kit.heads.layers import Experts, Heads, common_keys, dense, ends, joining, norms
from tests.kit.heads.stream import Dice

N_LAYERS, N_FF = 3, 64
HEADS = Heads(turning=16, normed=False)
EXPERTS = Experts()


def model(eps: float, seed: int) -> Model:
    """Return the model."""
    dice = Dice(seed)
    tensors = ends(dice)
    for layer in range(N_LAYERS - 1):
        p = f"blk.{layer}."
        tensors |= HEADS.noise(dice, p, eps).named(p) | norms(p, "attn_norm", "post_attention_norm")
        tensors |= EXPERTS.named(dice, p, p + "ffn_", eps) if layer else dense(dice, p, p + "ffn_", N_FF, eps)
    tensors |= _main_layer(dice, f"blk.{N_LAYERS - 1}.", drafts=False)
    tensors |= _main_layer(dice, f"blk.{N_LAYERS}.", drafts=True) | joining(f"blk.{N_LAYERS}.")
    return Model("glm4moe", f"heads-glm4_moe-{eps:g}", _keys(), tensors)


def _main_layer(dice: Dice, p: str, *, drafts: bool) -> dict[str, Array]:
    tensors = HEADS.looking(drafts=drafts).named(p) | EXPERTS.named(dice, p, "main", 1.0)
    return tensors | norms(p, "attn_norm", "post_attention_norm")


def _keys() -> dict[str, object]:
    return (
        common_keys(N_LAYERS + 1, len(HEADS.looking(drafts=False).q), N_FF)
        | EXPERTS.keys()
        | {
            "nextn_predict_layers": 1,
            "leading_dense_block_count": 1,
            "attention.head_count_kv": HEADS.n_kv,
            "attention.key_length": HEADS.width,
            "attention.value_length": HEADS.width,
            "rope.dimension_count": HEADS.turning,
        }
    )
