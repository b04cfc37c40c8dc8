"""Shapes of the kit's models: which tensors an architecture has, and its metadata.

One frozen `Shape` describes everything; `tensors()` and `metadata()` interpret it as llama.cpp would.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True)
class Shape:
    """The numbers of an architecture: counts of layers, heads, channels and tokens."""

    arch: str = "llama"
    n_layers: int = 2
    n_embd: int = 64
    n_ff: int = 128
    n_heads: int = 4
    n_kv_heads: int = 2
    head_dim: int = 0
    """0 means n_embd // n_heads."""
    context_length: int = 4096
    rope_base: float = 10000.0
    window: int = 0
    """How many tokens a windowed layer sees; gemma3 only."""
    window_period: int = 6
    """One in this many layers sees everything: the last of each group."""
    n_experts: int = 0
    n_experts_used: int = 0
    conv_layers: tuple[int, ...] = ()
    """Layers with a recurrent short convolution instead of attention; lfm2 only."""
    conv_kernel: int = 3
    delta_layers: tuple[int, ...] = ()
    """Layers with a recurrent gated delta net instead of attention; qwen35 only."""
    rope_sections: tuple[int, ...] = ()
    """How many pairs of a head's channels rotate with the time, the row, the column and nothing (M-RoPE)."""
    pooling: int = 0
    """llama.cpp's number for what is made from a text's tokens: 1 their mean, 3 the last one; 0: nothing.

    4: a head scores the first token, or the last one, for ranking documents.
    """
    token_types: int = 2
    """Number of segments that an encoder distinguishes; XLM-RoBERTa has one."""
    tied: bool = False
    """The embeddings also produce the logits: there is no output.weight."""

    @property
    def head(self) -> int:
        """Channels of one attention head."""
        return self.head_dim or self.n_embd // self.n_heads

    @property
    def logits_of(self) -> str:
        """Name of the tensor that has a row for each token's logit."""
        return "token_embd.weight" if self.tied else "output.weight"

    def sized(self, **changes: Any) -> Shape:
        """Return this shape with some numbers changed."""
        return replace(self, **changes)


class Tensor(NamedTuple):
    """A tensor to create. `gain` is the standard deviation times sqrt(fan-in); None means all ones."""

    name: str
    shape: tuple[int, ...]
    """In ggml's order: the contiguous dimension (the fan-in) comes first."""
    gain: float | None
    plain: bool = False
    """Keep in F32 whatever the weights' type, as llama.cpp requires."""
    fill: float = 1.0
    """The number to fill it with if it has no gain."""


DENSE = Shape()
QWEN3 = Shape(arch="qwen3", head_dim=32)
WINDOWED = Shape(arch="gemma3", n_layers=6, head_dim=32, window=128)
"""Five windowed layers, then a full one: the pattern of Gemma 3."""
HYBRID = Shape(arch="lfm2", n_layers=4, conv_layers=(0, 1, 3), tied=True)
"""Tied, like all LFM2 models: mlx-lm supports no others."""
QWEN3VL = Shape(arch="qwen3vl", head_dim=32, rope_sections=(6, 5, 5, 0))
QWEN35 = Shape(arch="qwen35", n_layers=4, head_dim=32, delta_layers=(0, 1, 2), rope_sections=(6, 5, 5, 0))
"""Three recurrent layers, then one of attention: the pattern of Qwen 3.5."""
MOE = Shape(arch="qwen3moe", head_dim=32, n_ff=64, n_experts=8, n_experts_used=2)

RANKED = 4
"""llama.cpp's number for the pooling type of rerankers."""
BERT = Shape(arch="bert", n_kv_heads=4, context_length=512, pooling=1)
QWEN3_EMBEDDING = QWEN3.sized(pooling=3)

EMBEDDERS: dict[str, Shape] = {"bert": BERT, "qwen3-embedding": QWEN3_EMBEDDING}

RERANKERS: dict[str, Shape] = {
    "bert-reranker": BERT.sized(pooling=RANKED),
    "qwen3-reranker": QWEN3.sized(pooling=RANKED),
}

KINDS: dict[str, Shape] = {
    "dense": DENSE,
    "qwen3": QWEN3,
    "windowed": WINDOWED,
    "hybrid": HYBRID,
    "moe": MOE,
}

DELTA_KERNEL, DELTA_STATE, DELTA_HEADS, DELTA_KEY_HEADS = 4, 16, 4, 2
"""For every gated delta net: length of the convolution, channels per head, heads, and key heads."""

TINYLLAMA = Shape(n_layers=22, n_embd=2048, n_ff=5632, n_heads=32, n_kv_heads=4, context_length=2048)
"""TinyLlama 1.1B, with a vocabulary of 32000."""
DRAFT_68M = Shape(n_layers=2, n_embd=768, n_ff=3072, n_heads=12, n_kv_heads=12, context_length=2048)
"""A draft for TinyLlama: 68M, with a vocabulary of 32000."""
LLAMA_1B = Shape(
    n_layers=16, n_embd=2048, n_ff=8192, n_heads=32, n_kv_heads=8, context_length=131072, rope_base=500000.0
)
"""Llama 3.2 1B, with a vocabulary of 128256."""


def _attention(shape: Shape, p: str, gain: float) -> Iterator[Tensor]:
    q, kv = shape.n_heads * shape.head, shape.n_kv_heads * shape.head
    gated = 2 if shape.arch == "qwen35" else 1  # each head's query, then its gate
    yield Tensor(p + "attn_q.weight", (shape.n_embd, gated * q), 1.0)
    yield Tensor(p + "attn_k.weight", (shape.n_embd, kv), 1.0)
    yield Tensor(p + "attn_v.weight", (shape.n_embd, kv), 1.0)
    yield Tensor(p + "attn_output.weight", (q, shape.n_embd), gain)
    if shape.arch != "llama":
        yield Tensor(p + "attn_q_norm.weight", (shape.head,), None)
        yield Tensor(p + "attn_k_norm.weight", (shape.head,), None)
    if shape.arch == "gemma3":
        yield Tensor(p + "post_attention_norm.weight", (shape.n_embd,), None)


def _short_convolution(shape: Shape, p: str, gain: float) -> Iterator[Tensor]:
    yield Tensor(p + "shortconv.conv.weight", (shape.conv_kernel, shape.n_embd), 1.0, plain=True)
    yield Tensor(p + "shortconv.in_proj.weight", (shape.n_embd, 3 * shape.n_embd), 1.0)
    yield Tensor(p + "shortconv.out_proj.weight", (shape.n_embd, shape.n_embd), gain)


def _delta_net(shape: Shape, p: str, gain: float) -> Iterator[Tensor]:
    keys, values, heads = DELTA_KEY_HEADS * DELTA_STATE, DELTA_HEADS * DELTA_STATE, DELTA_HEADS
    yield Tensor(p + "attn_qkv.weight", (shape.n_embd, 2 * keys + values), 1.0)
    yield Tensor(p + "attn_gate.weight", (shape.n_embd, values), 1.0)
    yield Tensor(p + "ssm_conv1d.weight", (DELTA_KERNEL, 2 * keys + values), 1.0, plain=True)
    yield Tensor(p + "ssm_dt.bias", (heads,), 0.1, plain=True)
    yield Tensor(p + "ssm_a", (heads,), None, fill=-1.0)  # how fast the state fades
    yield Tensor(p + "ssm_beta.weight", (shape.n_embd, heads), 1.0)
    yield Tensor(p + "ssm_alpha.weight", (shape.n_embd, heads), 1.0)
    yield Tensor(p + "ssm_norm.weight", (DELTA_STATE,), None)
    yield Tensor(p + "ssm_out.weight", (values, shape.n_embd), gain)


def _feed_forward(shape: Shape, p: str, gain: float) -> Iterator[Tensor]:
    e, f, x = shape.n_embd, shape.n_ff, shape.n_experts
    if x:
        yield Tensor(p + "ffn_gate_inp.weight", (e, x), 1.0, plain=True)
        yield Tensor(p + "ffn_gate_exps.weight", (e, f, x), 1.0)
        yield Tensor(p + "ffn_up_exps.weight", (e, f, x), 1.0)
        yield Tensor(p + "ffn_down_exps.weight", (f, e, x), gain)
        return
    yield Tensor(p + "ffn_gate.weight", (e, f), 1.0)
    yield Tensor(p + "ffn_up.weight", (e, f), 1.0)
    yield Tensor(p + "ffn_down.weight", (f, e), gain)
    if shape.arch == "gemma3":
        yield Tensor(p + "post_ffw_norm.weight", (e,), None)


def _encoder(shape: Shape, n_vocab: int) -> Iterator[Tensor]:
    """Yield the tensors of a BERT."""
    e, f = shape.n_embd, shape.n_ff
    yield Tensor("token_embd.weight", (e, n_vocab), math.sqrt(e))
    yield Tensor("token_types.weight", (e, shape.token_types), 1.0, plain=True)
    yield Tensor("position_embd.weight", (e, shape.context_length), math.sqrt(e) / 2, plain=True)
    for name in ["token_embd_norm", *_norms_of_encoder(shape)]:
        yield Tensor(f"{name}.weight", (e,), None)
        yield Tensor(f"{name}.bias", (e,), 0.1 * math.sqrt(e), plain=True)
    for p in (f"blk.{layer}." for layer in range(shape.n_layers)):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            yield Tensor(f"{p}{name}.weight", (e, e), 1.0)
        yield Tensor(p + "ffn_up.weight", (e, f), 1.0)
        yield Tensor(p + "ffn_down.weight", (f, e), 1.0)


def _norms_of_encoder(shape: Shape) -> Iterator[str]:
    for layer in range(shape.n_layers):
        yield from (f"blk.{layer}.attn_output_norm", f"blk.{layer}.layer_output_norm")


def _head_of_reranker(shape: Shape) -> Iterator[Tensor]:
    """Yield the classification head: two layers for BERT; for Qwen3, the rows of 'yes' and 'no'."""
    e, n_labels = shape.n_embd, 1
    if shape.arch == "bert":
        yield Tensor("cls.weight", (e, e), 1.0)
        yield Tensor("cls.bias", (e,), 0.1 * math.sqrt(e), plain=True)
        yield Tensor("cls.output.bias", (n_labels,), 0.1, plain=True)
    else:
        n_labels = 2
    yield Tensor("cls.output.weight", (e, n_labels), 1.0, plain=True)


def tensors(shape: Shape, n_vocab: int, *, logit_scale: float, damped: dict[int, float]) -> Iterator[Tensor]:
    """Yield every tensor of a model, in file order.

    logit_scale: standard deviation of the logits. damped: factors for the two output projections of layers;
    at 0, a layer adds nothing.
    """
    if shape.pooling == RANKED:
        yield from _head_of_reranker(shape)
    if shape.arch == "bert":
        yield from _encoder(shape, n_vocab)
        return
    # Gemma multiplies embeddings by sqrt(n_embd) itself; here, the others get a deviation of 1.
    embedding = 1.0 if shape.arch == "gemma3" else math.sqrt(shape.n_embd)
    # With tied embeddings, a token's own logit stands out unless the layers outweigh it.
    embedding, added = (logit_scale, 4.0) if shape.tied else (embedding, 1.0)
    yield Tensor("token_embd.weight", (shape.n_embd, n_vocab), embedding)
    last_norm = "token_embd_norm.weight" if shape.arch == "lfm2" else "output_norm.weight"
    yield Tensor(last_norm, (shape.n_embd,), None)
    if not shape.tied:
        yield Tensor("output.weight", (shape.n_embd, n_vocab), logit_scale)
    for layer in range(shape.n_layers):
        p, gain = f"blk.{layer}.", added * damped.get(layer, 1.0)
        yield Tensor(p + "attn_norm.weight", (shape.n_embd,), None)
        recurrent = _delta_net if layer in shape.delta_layers else None
        mixer = _short_convolution if layer in shape.conv_layers else recurrent or _attention
        yield from mixer(shape, p, gain)
        norm = "post_attention_norm" if shape.arch == "qwen35" else "ffn_norm"
        yield Tensor(f"{p}{norm}.weight", (shape.n_embd,), None)
        yield from _feed_forward(shape, p, gain)


def metadata(shape: Shape) -> dict[str, Any]:
    """Return the architecture's metadata, without its prefix."""
    kv: dict[str, Any] = {
        "block_count": shape.n_layers,
        "context_length": shape.context_length,
        "embedding_length": shape.n_embd,
        "feed_forward_length": shape.n_ff,
        "attention.head_count": shape.n_heads,
        "attention.head_count_kv": shape.n_kv_heads,
        "attention.key_length": shape.head,
        "attention.value_length": shape.head,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": shape.rope_base,
        "rope.dimension_count": shape.head,
    }
    if shape.pooling:
        kv["pooling_type"] = shape.pooling
    if shape.pooling == RANKED and shape.arch != "bert":
        kv["classifier.output_labels"] = ["yes", "no"]
    if shape.arch == "bert":
        kv["attention.causal"] = False
        kv["attention.layer_norm_epsilon"] = 1e-5
    if shape.window:
        kv["attention.sliding_window"] = shape.window
        if shape.window_period != 6:
            kv["attention.sliding_window_pattern"] = shape.window_period
    if shape.conv_layers:
        layers = range(shape.n_layers)
        kv["attention.head_count_kv"] = [0 if i in shape.conv_layers else shape.n_kv_heads for i in layers]
        kv["shortconv.l_cache"] = shape.conv_kernel
    if shape.rope_sections:
        kv["rope.dimension_sections"] = list(shape.rope_sections)
    if shape.delta_layers:
        kv["full_attention_interval"] = shape.n_layers
        kv["ssm.conv_kernel"] = DELTA_KERNEL
        kv["ssm.inner_size"] = DELTA_HEADS * DELTA_STATE
        kv["ssm.state_size"] = DELTA_STATE
        kv["ssm.time_step_rank"] = DELTA_HEADS
        kv["ssm.group_count"] = DELTA_KEY_HEADS
    if shape.n_experts:
        kv["expert_count"] = shape.n_experts
        kv["expert_used_count"] = shape.n_experts_used
        kv["expert_feed_forward_length"] = shape.n_ff
    return kv
