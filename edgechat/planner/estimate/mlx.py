"""What MLX takes, by formula: there is no dry run of it. And how fast it computes.

Every sequence has caches of its own (engine/backends/mlx). Layers that see everything grow with the tokens of
all sequences together; a windowed layer keeps one window, and a recurrent one its state, for each of them.
"""

from __future__ import annotations

from edgechat.device.accelerators import Accelerator
from edgechat.device.speed import DeviceSpeed
from edgechat.models.formats.header import ModelHeader
from edgechat.native.params import CacheType, LoadParams
from edgechat.planner.estimate.compute import widest
from edgechat.planner.estimate.memory import (
    layer_recurrent_bytes,
    not_in_blocks,
    padded,
    recurrent_bytes,
    rows,
)
from edgechat.planner.estimate.rates import guessed, rate_of_card, scaled
from edgechat.planner.placement.budget import Extras

SOURCE = "estimated: weights from the known headers, the rest by formula"
GROUP = 64
"""Numbers of a quantized cache that have a scale and a bias in common, of 16 bits each."""
_BITS: dict[CacheType, int] = {"q8_0": 8, "q4_0": 4}
_STEP = 256
"""Tokens by which a cache grows."""
_ROWS = 32
"""Rows of logits that the end of a prompt leaves (`_SHORT` of the backend)."""
_FUSED = (64, 80, 128)
"""Sizes of heads for which Metal computes attention without writing its scores down."""
_SINKS = {"gpt-oss"}
"""Models with attention sinks."""
_MARGIN = 1.25
"""Of what is computed with: MLX keeps some of what it has freed, to take it again."""

_PROMPTS, _WRITING = 1.14, 1.05
"""Times as fast as llama.cpp with Metal, byte for byte, until both were measured here. From issue 1029 of
ml-explore/mlx-examples (M3 Max, Llama 3.3 70B in 4 bits and in Q4_K_M): prompts were read 1.14 times as fast,
and answers written 1.12 times, of which 1.07 is for fewer bytes."""
_ALONE = guessed(bandwidth=1e8, compute=2e8)
"""On a processor MLX multiplies quantized matrices with one plain thread: 0.06 to 1.3 GB/s were measured."""


def whole_cache(header: ModelHeader) -> str:
    """Return why the cache cannot be kept in 8 or 4 bits, as the end of a sentence; '' where it can."""
    if header.architecture in _SINKS:
        return "mlx-lm has none for models with attention sinks"
    if header.number("attention.shared_kv_layers", 0) or header.number("attention.key_length_mla", 0):
        return "mlx-lm has none for this kind of attention"
    return not_in_blocks(header, GROUP)


def extras(header: ModelHeader, params: LoadParams, program: int) -> Extras:
    """Return what every part takes besides its weights. Raises ModelFileError."""
    states = layer_recurrent_bytes(header, params.n_seq_max)
    # As it is, and as it was before the last call.
    cache = [key + 2 * state for key, state in zip(_cache_bytes(header, params), states, strict=True)]
    return Extras(cache, _compute_bytes(header, params), output=0, program=program)


def cache_bytes_per_token(header: ModelHeader, cache_type: CacheType) -> int:
    """Return what one more token of context takes beyond all windows."""
    size = _float(header)
    widths = (row.keys + row.values for row in rows(header) if not row.windowed)
    return sum(_row_bytes(numbers, cache_type, size) for numbers in widths)


def checkpoint_bytes(header: ModelHeader, params: LoadParams) -> int:
    """Return the bytes of a checkpoint at the most: windows, with the last chunk, and recurrent states."""
    windowed = [row for row in rows(header) if row.windowed]
    tokens = min(header.sliding_window + params.n_batch, params.context)
    width = sum(row.keys + row.values for row in windowed)
    return _float(header) * width * tokens + recurrent_bytes(header, 1)


def rate_of(
    card: Accelerator | None, processor: DeviceSpeed, measured: DeviceSpeed | None = None
) -> DeviceSpeed:
    """Return how fast MLX computes on the GPU of an Apple processor, or (None) on the processor itself.

    measured: what llama.cpp does on that GPU.
    """
    if card is None:
        return _ALONE
    return scaled(rate_of_card(card, processor, measured), reading=_WRITING, computing=_PROMPTS)


def _cache_bytes(header: ModelHeader, params: LoadParams) -> list[int]:
    """Return the bytes of the keys and values of each layer."""
    cache_rows, n, size = list(rows(header)), params.n_seq_max, _float(header)
    window, cells = header.sliding_window, padded(params.context)
    full = cells + n * _STEP
    windowed = min(full, n * (window + params.n_ubatch))
    sizes = [0] * header.n_layers
    for row in cache_rows:
        cache_type: CacheType = "f16" if row.windowed else params.cache_type
        n_bytes = _row_bytes(row.keys + row.values, cache_type, size)
        sizes[row.layer] = n_bytes * (windowed if row.windowed else full)
    return sizes


def _row_bytes(numbers: int, cache_type: CacheType, size: int) -> int:
    """Return the bytes of so many numbers; size: of one that the model computes with."""
    bits = _BITS.get(cache_type)
    return numbers * size if bits is None else numbers * bits // 8 + numbers // GROUP * 2 * size


def _compute_bytes(header: ModelHeader, params: LoadParams) -> int:
    """Return the bytes of what a chunk of a prompt is computed with, and of rows of logits.

    Within a tenth of what was measured on a processor with small models, in F32 and 4 bits, for each cache.
    """
    n, size = params.n_ubatch, _float(header)
    activations = 4 * n * (widest(header) + 4 * header.embedding_length)
    fused = params.devices and params.cache_type == "f16" and header.key_length in _FUSED
    scores = n * params.context * (1 if fused else size * max(header.heads, default=1))
    logits = (4 + size) * max(_ROWS, params.n_outputs_max) * header.vocab_size
    return round(_MARGIN * (activations + scores + logits))


def _float(header: ModelHeader) -> int:
    """Return the bytes of a number as the model computes: those of its norms, which nobody quantizes."""
    plain = [tensor.type.row_bytes(1) for tensor in header.tensors if tensor.name.endswith("norm.weight")]
    return max(plain, default=2)
