"""What a pass through the model takes beyond weights and cache, by formula.

Fitted to what llama.cpp's allocator says on a CPU and checked against it from 2k to 16k tokens: within one
percent for Llama 3.1 8B, Gemma 3 12B and Qwen3 30B-A3B with a cache in f16, up to eight percent too much in
q8_0; a quarter too much for DeepSeek V2 Lite. Without flash attention it is within one percent for the same
models. What recurrent layers add is not in it.
"""

from __future__ import annotations

from edgechat.models.formats.header import ModelHeader

_FLOAT = 4


def compute_bytes(
    header: ModelHeader,
    n_ctx: int,
    *,
    n_seq_max: int = 4,
    n_outputs: int = 0,
    n_ubatch: int = 512,
    flash: bool = True,
) -> int:
    """Return the bytes of llama.cpp's compute buffer, with flash attention or without.

    It holds the activations of the widest layer and the attention masks, or where that is more the logits:
    `n_outputs` rows of them, or one for each sequence. Without flash attention it holds the scores of a
    layer, which may be more: of each head, token and cell.
    """
    embedding = header.embedding_length
    activations = _FLOAT * n_ubatch * (widest(header) + 4 * embedding)
    windowed = header.sliding_window and min(n_ctx, header.sliding_window * n_seq_max + n_ubatch)
    masks = (2 if flash else _FLOAT) * n_ubatch * (n_ctx + windowed)
    if not flash:
        heads, keys = max(header.heads, default=0), header.key_length
        beside = 2 * (embedding + heads * keys) + 6 * max(header.kv_heads, default=0) * keys
        queries = _FLOAT * n_ubatch * heads * keys
        activations = max(activations + queries, _FLOAT * n_ubatch * (heads * n_ctx + beside))
    n_rows = max(n_seq_max, n_outputs)
    logits = _FLOAT * (n_rows * header.vocab_size + 2 * n_ubatch * header.embedding_length)
    return max(activations + masks, logits)


def output_bytes(header: ModelHeader, n_outputs: int) -> int:
    """Return the bytes of the buffer in which logits are handed out, so many rows of them."""
    return _FLOAT * n_outputs * header.vocab_size


def states_bytes(header: ModelHeader, n_rows: int) -> int:
    """Return the bytes of so many hidden states, from which a model's own layers draft (MTP)."""
    return _FLOAT * n_rows * header.number("embedding_length_out", header.embedding_length)


def widest(header: ModelHeader) -> int:
    """Return the activations of one token inside a feed-forward layer: gate, up and their product."""
    dense = max(header.per_layer("feed_forward_length", (0,)))
    experts = header.number("expert_used_count", 0) * header.number("expert_feed_forward_length", 0)
    return max(3 * dense, 6 * experts)
