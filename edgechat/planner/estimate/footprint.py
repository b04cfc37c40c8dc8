"""Footprint: formulas for the memory that a load needs with llama.cpp or MLX, and for its possible layouts.

For llama.cpp there is also a dry run (`dry_run.py`); MLX has none. With MLX, every sequence has its own
caches (engine/backends/mlx). In layers with full attention, they grow with the tokens of all sequences. A
windowed layer stores one window per sequence, and a recurrent layer one state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from edgechat.device.accelerators import Accelerator
from edgechat.device.speed import DeviceSpeed
from edgechat.models.formats.header import Format, ModelHeader
from edgechat.native.params import CacheType, LoadParams
from edgechat.planner.estimate import budget, memory
from edgechat.planner.estimate.budget import MLX, RAM, Budget, Extras, Layout, Needs
from edgechat.planner.estimate.memory import (
    compute_bytes,
    head_buffers,
    head_cache_bytes,
    layer_cache_bytes,
    layer_recurrent_bytes,
    not_in_blocks,
    output_bytes,
    padded,
    recurrent_bytes,
    rows,
    widest,
)
from edgechat.planner.estimate.rates import guessed, rate_of_card, scaled
from edgechat.planner.estimate.shape import ModelShape

_BLOCK = 32
"""Number of values in a block of Q8_0 or Q4_0."""
GROUP = 64
"""Number of values in a quantized MLX cache that share a scale and a bias of 16 bits each."""
_BITS: dict[CacheType, int] = {"q8_0": 8, "q4_0": 4}
_STEP = 256
"""MLX caches grow in steps of this many tokens."""
_ROWS = 32
"""Number of rows of logits at the end of a prompt (`_SHORT` in the MLX backend)."""
_FUSED = (64, 80, 128)
"""Head sizes for which Metal computes attention without storing any scores."""
_SINKS = {"gpt-oss"}
"""Architectures with attention sinks."""
_MARGIN = 1.25
"""Factor applied to compute memory, because MLX caches some of the memory it has freed."""
_PROMPTS, _WRITING = 1.14, 1.05
"""Speed per byte relative to llama.cpp with Metal, used until both have been measured here. From issue 1029
in ml-explore/mlx-examples (M3 Max, Llama 3.3 70B at 4 bits and Q4_K_M): prompts were read 1.14 times as fast,
and answers written 1.12 times as fast, of which a factor of 1.07 is due to fewer bytes.
"""
_ALONE = guessed(bandwidth=1e8, compute=2e8)
"""MLX's speed on a CPU, where one thread multiplies quantized matrices: 0.06 to 1.3 GB/s were measured."""


class LlamaFootprint:
    """Memory use with llama.cpp."""

    source = "estimated"
    """A phrase that says where the sizes come from."""
    splits = True
    """Whether individual layers can be moved to another device."""

    def extras(self, header: ModelHeader, params: LoadParams, program: int) -> Extras:
        """Return what a load needs in addition to its weights. program: bytes for the process itself."""
        cells, n, n_ubatch = params.context, params.n_seq_max, params.n_ubatch
        keys = layer_cache_bytes(header, cells, params.cache_type, n_seq_max=n, n_ubatch=n_ubatch)
        states = layer_recurrent_bytes(header, n, params.n_rs_seq)
        n_rows = params.n_batch if params.embeddings else params.n_rows
        computed = 0 if header.is_encoder else n_rows  # an encoder has the buffer, but no logits
        flash = params.flash_attention
        extras = Extras(
            cache=[key + state for key, state in zip(keys, states, strict=True)],
            compute=compute_bytes(
                header, cells, n_seq_max=n, n_outputs=computed, n_ubatch=n_ubatch, flash=flash
            ),
            output=output_bytes(header, n_rows),
            program=program,
        )
        return self._with_head(extras, header, params) if params.mtp else extras

    def _with_head(self, extras: Extras, header: ModelHeader, params: LoadParams) -> Extras:
        """Add the memory for the context in which the model's own layers draft; see `HeadContext`."""
        keys = head_cache_bytes(header, params.context, params.cache_type)
        compute, output = head_buffers(header, params.of_head(), params.n_batch)
        return replace(
            extras,
            cache=[one + more for one, more in zip(extras.cache, keys, strict=True)],
            drafting=compute,
            output=extras.output + output,
        )

    per_token = staticmethod(memory.cache_bytes_per_token)
    checkpoint = staticmethod(memory.checkpoint_bytes)
    layouts = staticmethod(budget.layouts)
    needs = staticmethod(budget.estimated)

    def rate(
        self, card: Accelerator | None, processor: DeviceSpeed, measured: DeviceSpeed | None
    ) -> DeviceSpeed:
        """Return a card's speed, or the processor's if card is None.

        processor: the processor's speed with llama.cpp. measured: the card's speed, or None if it is unknown.
        """
        return processor if card is None else rate_of_card(card, processor, measured)

    def whole_cache(self, header: ModelHeader) -> str:
        """Return why the cache cannot be quantized to 8 or 4 bits, as the end of a sentence; '' if it can."""
        return not_in_blocks(header, _BLOCK)


class MlxFootprint:
    """Memory use with MLX. Its methods do the same as in `LlamaFootprint`."""

    source = "estimated: weights from the known headers, the rest calculated"
    splits = False

    def extras(self, header: ModelHeader, params: LoadParams, program: int) -> Extras:
        """Return what a load needs in addition to its weights. Raises ModelFileError."""
        states = layer_recurrent_bytes(header, params.n_seq_max)
        # Two states are held: the current one, and the one before the last call.
        keys = _layer_cache_bytes(header, params)
        cache = [key + 2 * state for key, state in zip(keys, states, strict=True)]
        return Extras(cache, _compute_bytes(header, params), output=0, program=program)

    def per_token(self, header: ModelHeader, cache_type: CacheType) -> int:
        """Return how many bytes of cache each additional token takes once all windows are full."""
        size = _value_bytes(header)
        widths = (row.keys + row.values for row in rows(header) if not row.windowed)
        return sum(_row_bytes(width, cache_type, size) for width in widths)

    def checkpoint(self, header: ModelHeader, params: LoadParams) -> int:
        """Return the maximum size of a checkpoint in bytes: windows, the last chunk, and recurrent states."""
        width = sum(row.keys + row.values for row in rows(header) if row.windowed)
        tokens = min(header.sliding_window + params.n_batch, params.context)
        return _value_bytes(header) * width * tokens + recurrent_bytes(header, 1)

    def layouts(self, shape: ModelShape, _extras: Extras, budget: Budget) -> Iterator[Layout]:
        """Yield the only layout, with all layers on the GPU, or on the CPU if there is no GPU."""
        yield Layout((MLX,), (len(shape.parts),)) if budget.cards else Layout()

    def needs(self, shape: ModelShape, extras: Extras, layout: Layout) -> dict[str, Needs]:
        """Return what a layout needs in each kind of memory. Tied matrices are stored only once."""
        weights = sum(part.weights + part.experts for part in shape.parts) + shape.embedding - shape.tied
        model = Needs(weights, sum(extras.cache), extras.compute)
        program = Needs(program_bytes=extras.program)
        return {RAM: program, MLX: model} if layout.n else {RAM: model + program}

    def rate(
        self, card: Accelerator | None, processor: DeviceSpeed, measured: DeviceSpeed | None
    ) -> DeviceSpeed:
        """Return MLX's speed on an Apple GPU, or on the CPU if card is None."""
        if card is None:
            return _ALONE
        return scaled(rate_of_card(card, processor, measured), reading=_WRITING, computing=_PROMPTS)

    def whole_cache(self, header: ModelHeader) -> str:
        """Return why the cache cannot be quantized, as the end of a sentence; '' if it can."""
        if header.architecture in _SINKS:
            return "mlx-lm does not support that for models with attention sinks"
        if header.number("attention.shared_kv_layers", 0) or header.number("attention.key_length_mla", 0):
            return "mlx-lm does not support that for this kind of attention"
        return not_in_blocks(header, GROUP)


Footprint = LlamaFootprint | MlxFootprint
_FOOTPRINTS: dict[Format, Footprint] = {"gguf": LlamaFootprint(), "mlx": MlxFootprint()}


def footprint_of(format: Format) -> Footprint:
    """Return the footprint for the backend that reads this format."""
    return _FOOTPRINTS[format]


def may_quantize(header: ModelHeader) -> bool:
    """Return whether this model's cache can be quantized."""
    return not footprint_of(header.format).whole_cache(header)


def _layer_cache_bytes(header: ModelHeader, params: LoadParams) -> list[int]:
    n, size, cells = params.n_seq_max, _value_bytes(header), padded(params.context)
    full = cells + n * _STEP
    windowed = min(full, n * (header.sliding_window + params.n_ubatch))
    sizes = [0] * header.n_layers
    for row in rows(header):
        cache_type: CacheType = "f16" if row.windowed else params.cache_type
        n_bytes = _row_bytes(row.keys + row.values, cache_type, size)
        sizes[row.layer] = n_bytes * (windowed if row.windowed else full)
    return sizes


def _row_bytes(width: int, cache_type: CacheType, size: int) -> int:
    """Return how many bytes `width` values take in an MLX cache. size: bytes per unquantized value."""
    bits = _BITS.get(cache_type)
    return width * size if bits is None else width * bits // 8 + width // GROUP * 2 * size


def _compute_bytes(header: ModelHeader, params: LoadParams) -> int:
    """Return how many bytes MLX needs to compute a chunk of a prompt and its rows of logits.

    For small models on a CPU, in F32 and at 4 bits, the result was within 10 % of the measured values with
    each cache type.
    """
    n, size = params.n_ubatch, _value_bytes(header)
    activations = 4 * n * (widest(header) + 4 * header.embedding_length)
    fused = params.devices and params.cache_type == "f16" and header.key_length in _FUSED
    scores = n * params.context * (1 if fused else size * max(header.heads, default=1))
    logits = (4 + size) * max(_ROWS, params.n_outputs_max) * header.vocab_size
    return round(_MARGIN * (activations + scores + logits))


def _value_bytes(header: ModelHeader) -> int:
    """Return how many bytes MLX uses per computed value, judging by the norms, which are never quantized."""
    plain = [tensor.type.row_bytes(1) for tensor in header.tensors if tensor.name.endswith("norm.weight")]
    return max(plain, default=2)
