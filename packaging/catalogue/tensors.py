"""The tensors of each architecture, named as in llama.cpp's loaders (src/models/*.cpp).

Rows are (name, shape in ggml's order). `plain` says which ones converters leave in F32 in an F16 file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Row = tuple[str, tuple[int, ...]]
Numbers = dict[str, Any]

NOT_METADATA = ("tied", "bias", "rope_freqs", "rope_factors", "alike", "token_types")
"""Keys that only determine which tensors exist."""

_PLAIN = (
    *("ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight", "ssm_conv1d.weight", "shortconv.conv.weight"),
    *("position_embd.weight", "token_types.weight"),
)


def plain(row: Row) -> bool:
    """Return True if converters write this tensor in F32: norms, biases, routers, convolutions, positions."""
    name, shape = row
    return (
        len(shape) == 1
        or not name.endswith(".weight")
        or name.endswith("_norm.weight")
        or name.endswith(_PLAIN)
    )


RANKED = 4
"""llama.cpp's number for the pooling type of rerankers."""
_BERTS = ("bert", "nomic-bert")
_LFM2 = ("lfm2", "lfm2moe")


def table(arch: str, numbers: Numbers) -> list[Row]:
    """Return all of a model's tensors."""
    rows = [*(_bert_ends(arch, numbers) if arch in _BERTS else _ends(numbers))]
    if arch in _LFM2:  # llama.cpp kept a misnomer here
        rows = [(name.replace("output_norm", "token_embd_norm"), shape) for name, shape in rows]
    if numbers.get("pooling_type") == RANKED:
        rows += _head_of_reranker(arch, numbers["embedding_length"])
    block = {"phi3": _phi3, "gemma4": _gemma4, "qwen35": _qwen35, "qwen35moe": _qwen35, "gpt-oss": _gpt_oss}
    block |= dict.fromkeys(_BERTS, _bert) | dict.fromkeys(_LFM2, _lfm2)
    for layer in range(numbers["block_count"]):
        rows += [
            (f"blk.{layer}.{name}", shape) for name, shape in block.get(arch, _block)(arch, numbers, layer)
        ]
    return rows


def _head_of_reranker(arch: str, e: int) -> Iterator[Row]:
    """Yield a reranker's head: two layers and one score for BERT, rows for 'yes' and 'no' for Qwen3."""
    if arch == "bert":
        yield from _biased("cls", (e, e))
        yield from (("cls.output.weight", (e,)), ("cls.output.bias", (1,)))
    else:
        yield "cls.output.weight", (e, 2)


def _ends(n: Numbers) -> Iterator[Row]:
    e, v = n["embedding_length"], n["vocab_size"]
    yield "token_embd.weight", (e, v)
    yield "output_norm.weight", (e,)
    if not n.get("tied"):
        yield "output.weight", (e, v)
    if n.get("rope_freqs"):
        yield "rope_freqs.weight", (n["rope.dimension_count"] // 2,)
    if n.get("rope_factors"):
        for factors in ("rope_factors_long", "rope_factors_short"):
            yield f"{factors}.weight", (n["rope.dimension_count"] // 2,)
    if "attention.shared_kv_layers" in n:
        yield "rope_freqs.weight", (n["attention.key_length"] // 2,)
    if per_layer := n.get("embedding_length_per_layer_input"):
        width = per_layer * n["block_count"]
        yield "per_layer_token_embd.weight", (width, v)
        yield "per_layer_model_proj.weight", (e, width)
        yield "per_layer_proj_norm.weight", (per_layer,)
    if wide := n.get("dense_2_feat_out"):
        yield from (("dense_2.weight", (e, wide)), ("dense_3.weight", (wide, e)))


def _bert_ends(arch: str, n: Numbers) -> Iterator[Row]:
    e = n["embedding_length"]
    yield "token_embd.weight", (e, n["vocab_size"])
    yield "token_types.weight", (e, n["token_types"])
    if arch == "bert":
        yield "position_embd.weight", (e, n["context_length"])
    yield from _biased("token_embd_norm", (e,))


def _block(arch: str, n: Numbers, layer: int) -> Iterator[Row]:
    """Yield a layer for llama, mistral3, granite, smollm3, qwen2, qwen3(moe), gemma3 or gemma-embedding."""
    e, d = n["embedding_length"], n["attention.key_length"]
    q, kv = d * n["attention.head_count"], d * n["attention.head_count_kv"]
    yield "attn_norm.weight", (e,)
    yield from _projections(e, q, kv)
    if n.get("bias"):
        yield from (("attn_q.bias", (q,)), ("attn_k.bias", (kv,)), ("attn_v.bias", (kv,)))
    if arch in ("qwen3", "qwen3moe", "gemma3", "gemma-embedding"):
        yield from (("attn_q_norm.weight", (d,)), ("attn_k_norm.weight", (d,)))
    if arch in ("gemma3", "gemma-embedding"):
        yield from (("post_attention_norm.weight", (e,)), ("post_ffw_norm.weight", (e,)))
    yield "ffn_norm.weight", (e,)
    if arch == "qwen3moe":
        yield from _experts(n)
    else:
        yield from _feed_forward(e, n["feed_forward_length"])


def _projections(e: int, q: int, kv: int) -> Iterator[Row]:
    yield "attn_q.weight", (e, q)
    yield "attn_k.weight", (e, kv)
    yield "attn_v.weight", (e, kv)
    yield "attn_output.weight", (q, e)


def _feed_forward(e: int, f: int, suffix: str = "") -> Iterator[Row]:
    yield f"ffn_gate{suffix}.weight", (e, f)
    yield f"ffn_up{suffix}.weight", (e, f)
    yield f"ffn_down{suffix}.weight", (f, e)


def _experts(n: Numbers) -> Iterator[Row]:
    e, f, x = n["embedding_length"], n["expert_feed_forward_length"], n["expert_count"]
    yield "ffn_gate_inp.weight", (e, x)
    yield "ffn_gate_exps.weight", (e, f, x)
    yield "ffn_up_exps.weight", (e, f, x)
    yield "ffn_down_exps.weight", (f, e, x)


def _phi3(arch: str, n: Numbers, layer: int) -> Iterator[Row]:
    e, d, f = n["embedding_length"], n["attention.key_length"], n["feed_forward_length"]
    kv = d * n["attention.head_count_kv"]
    yield "attn_norm.weight", (e,)
    yield "attn_qkv.weight", (e, e + 2 * kv)
    yield "attn_output.weight", (e, e)
    yield "ffn_norm.weight", (e,)
    yield "ffn_up.weight", (e, 2 * f)
    yield "ffn_down.weight", (f, e)


def _gemma4(arch: str, n: Numbers, layer: int) -> Iterator[Row]:
    """Yield a layer. Full layers have different heads, and their keys can double as values."""
    e, windowed = n["embedding_length"], n["attention.sliding_window_pattern"][layer]
    d = n["attention.key_length_swa" if windowed else "attention.key_length"]
    q, kv = d * n["attention.head_count"], d * n["attention.head_count_kv"][layer]
    for norm in ("attn", "post_attention", "ffn", "post_ffw"):
        yield f"{norm}_norm.weight", (e,)
    for name, shape in _projections(e, q, kv):
        if name != "attn_v.weight" or windowed or not n.get("alike"):
            yield name, shape
    yield from (
        ("attn_q_norm.weight", (d,)),
        ("attn_k_norm.weight", (d,)),
        ("layer_output_scale.weight", (1,)),
    )
    width = n["feed_forward_length"]
    yield from _feed_forward(e, width[layer] if isinstance(width, list) else width)
    if x := n.get("expert_count"):
        f = n["expert_feed_forward_length"]
        for norm in ("pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2"):
            yield f"{norm}.weight", (e,)
        yield from (("ffn_gate_inp.weight", (e, x)), ("ffn_gate_inp.scale", (e,)))
        yield "ffn_gate_up_exps.weight", (e, 2 * f, x)
        yield from (("ffn_down_exps.weight", (f, e, x)), ("ffn_down_exps.scale", (x,)))
    if per_layer := n["embedding_length_per_layer_input"]:
        yield "inp_gate.weight", (e, per_layer)
        yield "proj.weight", (per_layer, e)
        yield "post_norm.weight", (e,)


def _qwen35(arch: str, n: Numbers, layer: int) -> Iterator[Row]:
    """Yield a layer.

    After every three layers with linear attention (a gated delta net), there is a full one whose queries
    have a gate.
    """
    e, d = n["embedding_length"], n["attention.key_length"]
    yield from (("attn_norm.weight", (e,)), ("post_attention_norm.weight", (e,)))
    if (layer + 1) % n["full_attention_interval"]:
        yield from _delta_net(n)
    else:
        q, kv = d * n["attention.head_count"], d * n["attention.head_count_kv"]
        yield from (("attn_q.weight", (e, 2 * q)), ("attn_k.weight", (e, kv)), ("attn_v.weight", (e, kv)))
        yield "attn_output.weight", (q, e)
        yield from (("attn_q_norm.weight", (d,)), ("attn_k_norm.weight", (d,)))
    if arch == "qwen35":
        yield from _feed_forward(e, n["feed_forward_length"])
    else:
        yield from _experts(n)
        yield "ffn_gate_inp_shexp.weight", (e,)
        yield from _feed_forward(e, n["expert_shared_feed_forward_length"], "_shexp")


def _delta_net(n: Numbers) -> Iterator[Row]:
    e, state, heads = n["embedding_length"], n["ssm.state_size"], n["ssm.time_step_rank"]
    values = state * heads
    channels = 2 * state * n["ssm.group_count"] + values
    yield "attn_qkv.weight", (e, channels)
    yield "attn_gate.weight", (e, values)
    yield "ssm_conv1d.weight", (n["ssm.conv_kernel"], channels)
    yield from (("ssm_dt.bias", (heads,)), ("ssm_a", (heads,)), ("ssm_norm.weight", (state,)))
    yield from (("ssm_beta.weight", (e, heads)), ("ssm_alpha.weight", (e, heads)))
    yield "ssm_out.weight", (values, e)


def _lfm2(arch: str, n: Numbers, layer: int) -> Iterator[Row]:
    """Yield a layer: a short convolution or attention; in lfm2moe, all but the first few have experts."""
    e, d, heads = n["embedding_length"], n["attention.key_length"], n["attention.head_count_kv"][layer]
    yield from (("attn_norm.weight", (e,)), ("ffn_norm.weight", (e,)))
    if heads:
        yield from _projections(e, d * n["attention.head_count"], d * heads)
        yield from (("attn_q_norm.weight", (d,)), ("attn_k_norm.weight", (d,)))
    else:
        yield "shortconv.conv.weight", (n["shortconv.l_cache"], e)
        yield from (("shortconv.in_proj.weight", (e, 3 * e)), ("shortconv.out_proj.weight", (e, e)))
    if layer < n.get("leading_dense_block_count", n["block_count"]):
        yield from _feed_forward(e, n["feed_forward_length"])
    else:
        yield from _experts(n)
        yield "exp_probs_b.bias", (n["expert_count"],)


def _gpt_oss(arch: str, n: Numbers, layer: int) -> Iterator[Row]:
    e, d, f, x = (
        n[key]
        for key in ("embedding_length", "attention.key_length", "expert_feed_forward_length", "expert_count")
    )
    q, kv = d * n["attention.head_count"], d * n["attention.head_count_kv"]
    yield from (("attn_norm.weight", (e,)), ("post_attention_norm.weight", (e,)))
    yield from _projections(e, q, kv)
    yield from (("attn_q.bias", (q,)), ("attn_k.bias", (kv,)), ("attn_v.bias", (kv,)))
    yield from (("attn_output.bias", (e,)), ("attn_sinks.weight", (n["attention.head_count"],)))
    yield from _experts(n)
    yield "ffn_gate_inp.bias", (x,)
    yield from (("ffn_gate_exps.bias", (f, x)), ("ffn_up_exps.bias", (f, x)), ("ffn_down_exps.bias", (e, x)))


def _bert(arch: str, n: Numbers, layer: int) -> Iterator[Row]:
    """Yield a layer. Norms come last; nomic-bert has a gate, one tensor for q, k and v, and no biases."""
    e, f = n["embedding_length"], n["feed_forward_length"]
    if arch == "nomic-bert":
        yield "attn_qkv.weight", (e, 3 * e)
        yield "attn_output.weight", (e, e)
        yield from _feed_forward(e, f)
    else:
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            yield from _biased(name, (e, e))
        yield from _biased("ffn_up", (e, f))
        yield from _biased("ffn_down", (f, e))
    yield from _biased("attn_output_norm", (e,))
    yield from _biased("layer_output_norm", (e,))


def _biased(name: str, shape: tuple[int, ...]) -> Iterator[Row]:
    yield f"{name}.weight", shape
    yield f"{name}.bias", shape[-1:]
