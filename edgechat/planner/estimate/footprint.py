"""What a load takes of memory by formula, and the ways it may lie there: of each format, by its backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from edgechat.device.accelerators import Accelerator
from edgechat.device.speed import DeviceSpeed
from edgechat.models.formats.header import Format, ModelHeader
from edgechat.native.params import CacheType, LoadParams
from edgechat.planner.estimate import mlx
from edgechat.planner.estimate.compute import compute_bytes, output_bytes, states_bytes
from edgechat.planner.estimate.memory import (
    cache_bytes_per_token,
    checkpoint_bytes,
    head_cache_bytes,
    layer_cache_bytes,
    layer_recurrent_bytes,
    not_in_blocks,
)
from edgechat.planner.estimate.rates import rate_of_card
from edgechat.planner.estimate.shape import ModelShape
from edgechat.planner.placement.budget import Budget, Extras, Needs
from edgechat.planner.placement.layout import Layout, estimated, layouts, whole_layouts, whole_needs

_BLOCK = 32
"""Numbers of a block of Q8_0 and Q4_0."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """What one backend takes, and how fast it computes where."""

    extras: Callable[[ModelHeader, LoadParams, int], Extras]
    """Of a load, besides its weights; the number: bytes of the process around the model."""
    per_token: Callable[[ModelHeader, CacheType], int]
    """Bytes of cache that one more token takes beyond all windows."""
    checkpoint: Callable[[ModelHeader, LoadParams], int]
    """Bytes of what is kept to go back in a sequence; 0 where sequences can be cut."""
    layouts: Callable[[ModelShape, Extras, Budget], Iterator[Layout]]
    needs: Callable[[ModelShape, Extras, Layout], dict[str, Needs]]
    """What a layout takes of each memory."""
    rate: Callable[[Accelerator | None, DeviceSpeed, DeviceSpeed | None], DeviceSpeed]
    """Of a card, or (None) of the processor, whose speed with llama.cpp is given, and the card's."""
    whole_cache: Callable[[ModelHeader], str]
    """Why the cache cannot be kept in 8 or 4 bits, as the end of a sentence; '' where it can."""
    source: str
    """How we know, in words."""
    splits: bool
    """Whether single layers can be moved from one memory to another."""


def footprint_of(format: Format) -> Footprint:
    """Return what the backend that reads a format takes."""
    return _FOOTPRINTS[format]


def may_quantize(header: ModelHeader) -> bool:
    """Say whether a cache of fewer bits can hold this model's keys and values."""
    return not footprint_of(header.format).whole_cache(header)


def _extras(header: ModelHeader, params: LoadParams, program: int) -> Extras:
    """Return what llama.cpp takes besides the weights."""
    cells, n, n_ubatch = params.context, params.n_seq_max, params.n_ubatch
    keys = layer_cache_bytes(header, cells, params.cache_type, n_seq_max=n, n_ubatch=n_ubatch)
    states = layer_recurrent_bytes(header, n, params.n_rs_seq)
    rows = params.n_batch if params.embeddings else params.n_rows
    computed = 0 if header.is_encoder else rows  # an encoder makes no logits; the output holds them anyway
    extras = Extras(
        cache=[key + state for key, state in zip(keys, states, strict=True)],
        compute=compute_bytes(
            header, cells, n_seq_max=n, n_outputs=computed, n_ubatch=n_ubatch, flash=params.flash_attention
        ),
        output=output_bytes(header, rows),
        program=program,
    )
    return _drafting(extras, header, params) if params.mtp else extras


def _drafting(extras: Extras, header: ModelHeader, params: LoadParams) -> Extras:
    """Return the same with the context in which the model's own layers draft; see `HeadContext`."""
    own, n = params.of_head(), params.n_seq_max
    keys = head_cache_bytes(header, params.context, params.cache_type)
    n_states = n + 2 * params.n_batch + own.n_ubatch
    return replace(
        extras,
        cache=[one + more for one, more in zip(extras.cache, keys, strict=True)],
        drafting=compute_bytes(
            header,
            own.context,
            n_seq_max=n,
            n_outputs=n,
            n_ubatch=own.n_ubatch,
            flash=own.flash_attention,
        ),
        output=extras.output + output_bytes(header, n) + states_bytes(header, n_states),
    )


_FOOTPRINTS: dict[Format, Footprint] = {
    "gguf": Footprint(
        extras=_extras,
        per_token=cache_bytes_per_token,
        checkpoint=checkpoint_bytes,
        layouts=layouts,
        needs=estimated,
        rate=lambda card, processor, measured: (
            processor if card is None else rate_of_card(card, processor, measured)
        ),
        whole_cache=lambda header: not_in_blocks(header, _BLOCK),
        source="estimated",
        splits=True,
    ),
    "mlx": Footprint(
        extras=mlx.extras,
        per_token=mlx.cache_bytes_per_token,
        checkpoint=mlx.checkpoint_bytes,
        layouts=whole_layouts,
        needs=whole_needs,
        rate=mlx.rate_of,
        whole_cache=mlx.whole_cache,
        source=mlx.SOURCE,
        splits=False,
    ),
}
