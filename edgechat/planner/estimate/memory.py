"""Memory formulas for llama.cpp: KV cache, recurrent states, compute buffers and the program itself.

The formulas rule out candidates before a dry run. Those for the cache are llama.cpp's own
(llama-kv-cache.cpp, -iswa.cpp, llama-memory-recurrent.cpp). They are exact for dense, grouped, windowed,
latent (MLA), short-convolution and Mamba-like models with a unified cache. Unless an architecture is known to
have windows, every layer is assumed to have full attention, so the result is too high rather than too low.

The formulas for compute buffers were fitted to llama.cpp's allocator on a CPU and compared with it from 2k to
16k tokens. For Llama 3.1 8B, Gemma 3 12B and Qwen3 30B-A3B, they are within one percent with an f16 cache,
and up to eight percent too high with q8_0. For DeepSeek V2 Lite they are a quarter too high. Without flash
attention they are within one percent for the same models. Recurrent layers are not included.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from edgechat.models.formats.header import Format, GgufArray, ModelHeader
from edgechat.models.formats.mtp import stated_layers
from edgechat.models.formats.quants import GgmlType
from edgechat.native.params import CacheType, LoadParams

CELLS = 256
"""llama.cpp rounds the cells of a cache up to a multiple of this number."""

_TYPES: dict[CacheType, GgmlType] = {"f16": GgmlType.F16, "q8_0": GgmlType.Q8_0, "q4_0": GgmlType.Q4_0}

_WINDOW_PERIODS = {
    "gemma2": 2,
    "gemma3": 6,
    "gemma3n": 5,
    "gpt-oss": 2,
    "cohere2": 4,
    "exaone4": 4,
    "olmo2": 4,
}
"""Architectures in which every Nth layer has full attention, unless the file specifies another number."""

_RECURRENT_PERIODS = {"qwen35": 4, "qwen35moe": 4, "qwen3next": 4}
_PARALLEL = {"falcon-h1"}
"""Architectures that have both attention and a recurrent state in every layer."""

_PROGRAM = 64 * 2**20
"""Bytes for the interpreter and libraries, in the worker and in the process that renders its template."""
_MLX_LM = 64 * 2**20
"""Bytes for mlx-lm and its dependencies."""
_PER_CELL, _PER_LAYER = 24, 64
"""Upper limits on llama.cpp's tables in a sequence's state, in bytes per cell and per layer."""
_PER_TOKEN = 400
"""Bytes that llama.cpp needs for each token in the vocabulary."""

SMALL_STATE = 4 * 2**20
"""Maximum size of a small recurrent state, in bytes per sequence."""
# Same list as in llama-arch.cpp.
TAKES_BACK = {
    "bailingmoe3",
    "deepseek4",
    "glm5-next",
    "kimi-k3",
    "lfm2",
    "lfm2moe",
    "nemotron_h",
    "nemotron_h_moe",
    "qwen35",
    "qwen35moe",
    "qwen4exp",
}
"""Recurrent architectures that can be rolled back using snapshots."""
_RECURRENT = TAKES_BACK | {
    "arwkv7",
    "falcon-h1",
    "granitehybrid",
    "jamba",
    "kimi-linear",
    "mamba",
    "mamba2",
    "minimax-01",
    "plamo2",
    "qwen3next",
    "rwkv6",
    "rwkv6qwen2",
    "rwkv7",
}


def program_bytes(n_vocab: int, format: Format = "gguf") -> int:
    """Return how many bytes the processes themselves need: 30 to 130 MB on Linux, and more for MLX."""
    return _PROGRAM + _MLX_LM * (format == "mlx") + _PER_TOKEN * n_vocab


def layer_cache_bytes(
    header: ModelHeader,
    n_ctx: int,
    cache_type: CacheType,
    *,
    n_seq_max: int = 1,
    n_ubatch: int = 512,
) -> tuple[int, ...]:
    """Return how many bytes each layer needs to cache `n_ctx` tokens; 0 for layers without a cache.

    n_seq_max: number of sequences that share the cache. Raises ModelFileError if the model's shape is missing
    from the header.
    """
    cells = padded(n_ctx)
    window = header.sliding_window
    windowed_cells = min(cells, padded(min(cells, window * n_seq_max + n_ubatch)))
    kind = _TYPES[cache_type]
    sizes = [0] * header.n_layers
    for row in rows(header):
        n_bytes = kind.row_bytes(row.keys) + kind.row_bytes(row.values)
        sizes[row.layer] = n_bytes * (windowed_cells if row.windowed else cells)
    return tuple(sizes)


def head_cache_bytes(header: ModelHeader, n_ctx: int, cache_type: CacheType) -> tuple[int, ...]:
    """Return the size in bytes of each layer's cache in the context in which a model's own layers draft.

    Windowed layers are assumed to have full attention, so the result is too high rather than too low.
    """
    kind, sizes = _TYPES[cache_type], [0] * header.n_layers
    for layer in stated_layers(header):
        keys, values = _widths(header, header.kv_heads[layer] or max(header.kv_heads), windowed=False)
        sizes[layer] = padded(n_ctx) * (kind.row_bytes(keys) + kind.row_bytes(values))
    return tuple(sizes)


class CacheRow(NamedTuple):
    """What one layer stores in the cache for one token."""

    layer: int
    windowed: bool
    """Whether tokens are dropped once they are outside the window."""
    keys: int
    """Number of elements (not bytes) in the keys."""
    values: int
    """Number of elements in the values; 0 if the keys contain latent values."""


def rows(header: ModelHeader) -> Iterator[CacheRow]:
    """Yield a row for each layer that caches keys and values. Raises ModelFileError."""
    if header.is_encoder:
        return
    known: dict[tuple[int, bool], tuple[int, int]] = {}  # most layers are alike
    for layer, heads, windowed in _attention_layers(header):
        if (heads, windowed) not in known:
            known[heads, windowed] = _widths(header, heads, windowed)
        yield CacheRow(layer, windowed, *known[heads, windowed])


def layer_recurrent_bytes(header: ModelHeader, n_seq: int, n_rs_seq: int = 0) -> tuple[int, ...]:
    """Return the size of each layer's recurrent states, in bytes; see `recurrent_bytes`."""
    state = _state_size(header) * 4 * n_seq * (1 + n_rs_seq)
    keeping = _recurrent_layers(header)
    keeping += [False] * (header.n_layers - len(keeping))
    return tuple(state * keeps for keeps in keeping)


def checkpoint_bytes(header: ModelHeader, params: LoadParams) -> int:
    """Return the size of a checkpoint (windows and recurrent states) in bytes.

    Returns 0 if sequences can be truncated.
    """
    kind, window = _TYPES[params.cache_type], min(header.sliding_window, params.context)
    windowed = [row for row in rows(header) if row.windowed]
    tables = _PER_CELL * window + _PER_LAYER * len(windowed) if windowed else 0
    keys = sum(kind.row_bytes(row.keys) + kind.row_bytes(row.values) for row in windowed)
    state = recurrent_bytes(header, 1)
    return keys * window + tables + state + (_PER_LAYER * header.n_layers if state else 0)


def cache_bytes_per_token(header: ModelHeader, cache_type: CacheType = "f16") -> int:
    """Return how many bytes each additional token of context takes in layers with full attention."""
    kind = _TYPES[cache_type]
    unwindowed = [row for row in rows(header) if not row.windowed]
    return sum(kind.row_bytes(row.keys) + kind.row_bytes(row.values) for row in unwindowed)


def not_in_blocks(header: ModelHeader, size: int) -> str:
    """Return why keys and values cannot be stored in blocks of `size` values, or '' if they can."""
    odd = [length for length in (header.key_length, header.value_length) if length % size]
    return f"its blocks have {size} values, but this model's heads have {odd[0]}" if odd else ""


def recurrent_bytes(header: ModelHeader, n_seq: int, n_rs_seq: int = 0) -> int:
    """Return the size in bytes of the recurrent states (F32) of `n_seq` sequences.

    n_rs_seq: number of snapshots per sequence. Returns 0 if there are no recurrent layers, or if the formulas
    do not cover their kind (RWKV, KDA).
    """
    return sum(layer_recurrent_bytes(header, n_seq, n_rs_seq))


def padded(n: int) -> int:
    """Return how many cells llama.cpp allocates for `n` tokens."""
    return (n + CELLS - 1) // CELLS * CELLS


def _state_size(header: ModelHeader) -> int:
    """Return how many values one layer's state has, including both its convolution and its recurrence."""
    kernel = header.number("shortconv.l_cache", 0)
    if kernel:
        return header.embedding_length * (kernel - 1)
    inner, state = header.number("ssm.inner_size", 0), header.number("ssm.state_size", 0)
    groups = header.number("ssm.group_count", 0)
    width = max(0, header.number("ssm.conv_kernel", 0) - 1)
    return width * (inner + 2 * groups * state) + state * inner


def _recurrent_layers(header: ModelHeader) -> list[bool]:
    n = _n_layers(header)
    if header.shape_value("shortconv.l_cache") is None and header.shape_value("ssm.inner_size") is None:
        return [False] * n
    if header.architecture in _PARALLEL:
        return [True] * n
    listed = header.shape_value("attention.recurrent_layers")
    if isinstance(listed, GgufArray) and listed.values and len(listed.values) >= n:
        return [bool(value) for value in listed.values[:n]]
    if header.architecture in _RECURRENT_PERIODS:
        period = header.number("full_attention_interval", _RECURRENT_PERIODS[header.architecture])
        return [(layer + 1) % max(1, period) != 0 for layer in range(n)]
    # Other models mark recurrent layers with 0 KV heads. Nemotron-H also marks feed-forward layers that way.
    widths = header.per_layer("feed_forward_length", (0,) * header.n_layers)
    alone = any(width == 0 for width in widths)
    return [
        heads == 0 and not (alone and width)
        for heads, width in zip(header.kv_heads[:n], widths, strict=False)
    ]


def _n_layers(header: ModelHeader) -> int:
    """Return the number of layers, excluding those that only predict further tokens (MTP)."""
    return stated_layers(header).start


def _attention_layers(header: ModelHeader) -> Iterator[tuple[int, int, bool]]:
    """Yield the number of each layer that has keys and values, its KV heads, and whether it has a window."""
    n = _n_layers(header)
    parallel = header.architecture in _PARALLEL
    recurrent = _recurrent_layers(header)
    keeping = n - header.number("attention.shared_kv_layers", 0)
    if header.architecture == "gemma3n":
        keeping = min(keeping, 20)
    windows = _windows(header, n)
    kv_heads = header.kv_heads
    for layer in range(max(0, keeping)):
        if kv_heads[layer] and (parallel or not recurrent[layer]):
            yield layer, kv_heads[layer], windows[layer]


def _windows(header: ModelHeader, n: int) -> list[bool]:
    if not header.sliding_window:
        return [False] * n
    listed = header.shape_value("attention.sliding_window_pattern")
    if isinstance(listed, GgufArray) and listed.values and len(listed.values) >= n:
        return [bool(value) for value in listed.values[:n]]
    period = _WINDOW_PERIODS.get(header.architecture, 1)
    if listed is not None:
        period = header.number("attention.sliding_window_pattern")
    return [period > 0 and layer % period < period - 1 for layer in range(n)]


def _widths(header: ModelHeader, heads: int, windowed: bool) -> tuple[int, int]:
    """Return how many elements one token's keys and values have in one layer.

    For latent attention, the number for values is 0.
    """
    keys, values = header.key_length, header.value_length
    if windowed:
        keys = header.number("attention.key_length_swa", keys)
        values = header.number("attention.value_length_swa", values)
    latent = header.number("attention.key_length_mla", 0) and header.number("attention.value_length_mla", 0)
    return keys * heads, 0 if latent else values * heads


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
    """Return the size of llama.cpp's compute buffer in bytes, with or without flash attention.

    The buffer holds the activations of the widest layer and the attention masks, or the logits if those are
    larger: `n_outputs` rows, but at least one per sequence. Without flash attention, it also has to hold one
    layer's attention scores, one for each head, token and cell.
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
    """Return the size in bytes of an output buffer for `n_outputs` rows of logits."""
    return _FLOAT * n_outputs * header.vocab_size


def states_bytes(header: ModelHeader, n_rows: int) -> int:
    """Return the size in bytes of the `n_rows` hidden states that a model's own layers (MTP) draft from."""
    return _FLOAT * n_rows * header.number("embedding_length_out", header.embedding_length)


def head_buffers(header: ModelHeader, own: LoadParams, n_batch: int) -> tuple[int, int]:
    """Return the sizes in bytes of the compute and output buffers of the context used by drafting layers.

    own: the parameters of that context. n_batch: number of tokens in the longest call to the model itself,
    which computes the states that the layers read.
    """
    compute = compute_bytes(
        header, own.context, n_seq_max=own.n_seq_max, n_ubatch=own.n_ubatch, flash=own.flash_attention
    )
    n_states = own.n_seq_max + 2 * n_batch + own.n_ubatch
    return compute, output_bytes(header, own.n_outputs_max) + states_bytes(header, n_states)


def widest(header: ModelHeader) -> int:
    """Return how many activations a token has in a feed-forward layer: gate, up and their product."""
    dense = max(header.per_layer("feed_forward_length", (0,)))
    experts = header.number("expert_used_count", 0) * header.number("expert_feed_forward_length", 0)
    return max(3 * dense, 6 * experts)


def has_large_state(header: ModelHeader) -> bool:
    """Return whether a sequence's recurrent state exceeds `SMALL_STATE`."""
    return recurrent_bytes(header, 1) > SMALL_STATE


def is_recurrent(header: ModelHeader) -> bool:
    """Return whether some layers have a state that cannot be truncated."""
    listed = header.shape_value("attention.recurrent_layers")
    any_listed = isinstance(listed, GgufArray) and any(listed.values or ())
    return header.architecture in _RECURRENT or any_listed or recurrent_bytes(header, 1) > 0
