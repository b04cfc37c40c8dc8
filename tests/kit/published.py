"""Headers of published models, made from their shapes: full size, but without any weights.

The mixture of types approximates Q4_K_M: which tensors are in Q6_K determines the size of the weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from edgechat.models.formats.header import ModelHeader, ModelTensor, Value
from edgechat.models.formats.quants import GgmlType

F32, Q4_K, Q6_K = GgmlType.F32, GgmlType.Q4_K, GgmlType.Q6_K
Row = tuple[str, tuple[int, ...], GgmlType]


def published(name: str) -> ModelHeader:
    """Return the header of llama-3.1-8b, gemma-3-12b, qwen3-30b-a3b or deepseek-v2-lite."""
    arch, numbers, rows = _MODELS[name]
    metadata: dict[str, Value] = {"general.architecture": arch, "general.name": name, "general.file_type": 15}
    metadata |= {f"{arch}.{key}": value for key, value in numbers.items()}
    tensors: list[ModelTensor] = []
    at = 0
    for tensor, shape, kind in rows(numbers):
        n_bytes = kind.row_bytes(shape[0])
        for n in shape[1:]:
            n_bytes *= n
        tensors.append(ModelTensor(tensor, shape, kind, at, n_bytes))
        at += -(-n_bytes // 32) * 32
    return ModelHeader(f"{name}.gguf", 3, metadata, tuple(tensors), 0, 32, at + 2**23)


def _more_bits(layer: int, n: int) -> GgmlType:
    """Return the type: Q4_K_M uses more bits in the first and last layers, and in every third one between."""
    more = layer < n // 8 or layer >= 7 * n // 8 or (layer - n // 8) % 3 == 2
    return Q6_K if more else Q4_K


def _ends(numbers: dict[str, Any], embedding: GgmlType = Q4_K, *, tied: bool = False) -> Iterator[Row]:
    e, v = numbers["embedding_length"], numbers["vocab_size"]
    yield "token_embd.weight", (e, v), embedding
    yield "output_norm.weight", (e,), F32
    if not tied:
        yield "output.weight", (e, v), Q6_K


def _attention(numbers: dict[str, Any], p: str, more: GgmlType, *, norms: bool) -> Iterator[Row]:
    e, heads = numbers["embedding_length"], numbers["attention.head_count"]
    d = numbers.get("attention.key_length", e // heads)
    kv = d * numbers["attention.head_count_kv"]
    yield p + "attn_norm.weight", (e,), F32
    if norms:
        yield p + "attn_q_norm.weight", (d,), F32
        yield p + "attn_k_norm.weight", (d,), F32
    yield p + "attn_q.weight", (e, heads * d), Q4_K
    yield p + "attn_k.weight", (e, kv), Q4_K
    yield p + "attn_v.weight", (e, kv), more
    yield p + "attn_output.weight", (heads * d, e), Q4_K


def _feed_forward(e: int, f: int, p: str, more: GgmlType, suffix: str = "") -> Iterator[Row]:
    yield f"{p}ffn_gate{suffix}.weight", (e, f), Q4_K
    yield f"{p}ffn_up{suffix}.weight", (e, f), Q4_K
    yield f"{p}ffn_down{suffix}.weight", (f, e), more


def _experts(numbers: dict[str, Any], p: str, more: GgmlType) -> Iterator[Row]:
    e, f, x = (numbers[k] for k in ("embedding_length", "expert_feed_forward_length", "expert_count"))
    yield p + "ffn_gate_inp.weight", (e, x), F32
    yield p + "ffn_gate_exps.weight", (e, f, x), Q4_K
    yield p + "ffn_up_exps.weight", (e, f, x), Q4_K
    yield p + "ffn_down_exps.weight", (f, e, x), more


def _llama(numbers: dict[str, Any]) -> Iterator[Row]:
    n, e = numbers["block_count"], numbers["embedding_length"]
    yield from _ends(numbers)
    yield "rope_freqs.weight", (64,), F32
    for layer in range(n):
        p, more = f"blk.{layer}.", _more_bits(layer, n)
        yield from _attention(numbers, p, more, norms=False)
        yield p + "ffn_norm.weight", (e,), F32
        yield from _feed_forward(e, numbers["feed_forward_length"], p, more)


def _gemma3(numbers: dict[str, Any]) -> Iterator[Row]:
    n, e = numbers["block_count"], numbers["embedding_length"]
    yield from _ends(numbers, Q6_K, tied=True)
    for layer in range(n):
        p, more = f"blk.{layer}.", _more_bits(layer, n)
        yield from _attention(numbers, p, more, norms=True)
        for norm in ("ffn_norm", "post_attention_norm", "post_ffw_norm"):
            yield f"{p}{norm}.weight", (e,), F32
        yield from _feed_forward(e, numbers["feed_forward_length"], p, more)


def _qwen3moe(numbers: dict[str, Any]) -> Iterator[Row]:
    n = numbers["block_count"]
    yield from _ends(numbers)
    for layer in range(n):
        p, more = f"blk.{layer}.", _more_bits(layer, n)
        yield from _attention(numbers, p, more, norms=True)
        yield p + "ffn_norm.weight", (numbers["embedding_length"],), F32
        yield from _experts(numbers, p, more)


def _deepseek2(numbers: dict[str, Any]) -> Iterator[Row]:
    n, e, heads = numbers["block_count"], numbers["embedding_length"], numbers["attention.head_count"]
    rank, rope = numbers["attention.kv_lora_rank"], numbers["rope.dimension_count"]
    k, v = numbers["attention.key_length_mla"], numbers["attention.value_length_mla"]
    yield from _ends(numbers)
    for layer in range(n):
        p, more = f"blk.{layer}.", _more_bits(layer, n)
        yield p + "attn_norm.weight", (e,), F32
        yield p + "attn_q.weight", (e, heads * k), Q4_K
        yield p + "attn_kv_a_mqa.weight", (e, rank + rope), Q4_K
        yield p + "attn_kv_a_norm.weight", (rank,), F32
        yield p + "attn_k_b.weight", (k - rope, rank, heads), GgmlType.Q8_0
        yield p + "attn_v_b.weight", (rank, v, heads), Q4_K
        yield p + "attn_output.weight", (heads * v, e), Q4_K
        yield p + "ffn_norm.weight", (e,), F32
        if layer < numbers["leading_dense_block_count"]:
            yield from _feed_forward(e, numbers["feed_forward_length"], p, GgmlType.Q8_0)
            continue
        yield from _experts(numbers, p, GgmlType.Q8_0)
        shared = numbers["expert_shared_count"] * numbers["expert_feed_forward_length"]
        yield from _feed_forward(e, shared, p, more, "_shexp")


_LLAMA_8B: dict[str, Any] = {
    "block_count": 32,
    "context_length": 131072,
    "embedding_length": 4096,
    "feed_forward_length": 14336,
    "attention.head_count": 32,
    "attention.head_count_kv": 8,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.freq_base": 500000.0,
    "rope.dimension_count": 128,
    "vocab_size": 128256,
}
_GEMMA3_12B: dict[str, Any] = {
    "block_count": 48,
    "context_length": 131072,
    "embedding_length": 3840,
    "feed_forward_length": 15360,
    "attention.head_count": 16,
    "attention.head_count_kv": 8,
    "attention.key_length": 256,
    "attention.value_length": 256,
    "attention.sliding_window": 1024,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "rope.freq_base": 1000000.0,
    "vocab_size": 262144,
}
_QWEN3_30B: dict[str, Any] = {
    "block_count": 48,
    "context_length": 40960,
    "embedding_length": 2048,
    "feed_forward_length": 6144,
    "expert_feed_forward_length": 768,
    "expert_count": 128,
    "expert_used_count": 8,
    "attention.head_count": 32,
    "attention.head_count_kv": 4,
    "attention.key_length": 128,
    "attention.value_length": 128,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "rope.freq_base": 1000000.0,
    "vocab_size": 151936,
}
_DEEPSEEK2_LITE: dict[str, Any] = {
    "block_count": 27,
    "context_length": 163840,
    "embedding_length": 2048,
    "feed_forward_length": 10944,
    "expert_feed_forward_length": 1408,
    "expert_count": 64,
    "expert_used_count": 6,
    "expert_shared_count": 2,
    "expert_weights_scale": 1.0,
    "leading_dense_block_count": 1,
    "attention.head_count": 16,
    "attention.head_count_kv": 1,
    "attention.key_length": 576,
    "attention.value_length": 512,
    "attention.key_length_mla": 192,
    "attention.value_length_mla": 128,
    "attention.kv_lora_rank": 512,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "rope.dimension_count": 64,
    "rope.freq_base": 10000.0,
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 40.0,
    "rope.scaling.original_context_length": 4096,
    "rope.scaling.yarn_log_multiplier": 0.0707,
    "vocab_size": 102400,
}
_MODELS = {
    "llama-3.1-8b": ("llama", _LLAMA_8B, _llama),
    "gemma-3-12b": ("gemma3", _GEMMA3_12B, _gemma3),
    "qwen3-30b-a3b": ("qwen3moe", _QWEN3_30B, _qwen3moe),
    "deepseek-v2-lite": ("deepseek2", _DEEPSEEK2_LITE, _deepseek2),
}
