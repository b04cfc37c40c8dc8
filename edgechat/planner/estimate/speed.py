"""Speed of a load, predicted from its weights and cache, and corrected by earlier loads on this machine.

A call multiplies its tokens by every active weight. On each device this takes as long as reading the weights
from memory or multiplying by them, whichever is slower. A single token is limited by memory bandwidth or, if
there are few cores, by the arithmetic of unpacking; many tokens are limited by arithmetic (Williams et al.
2009, "Roofline"). Device speeds come from `rates.py`, corrections from `calibration.py`. The time for
attention grows with the number of tokens before a call. It is measured for the model's heads, or derived
from its operations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from edgechat.device.speed import (
    ATTENTION_ROWS,
    ROWS,
    DeviceSpeed,
    Link,
    Seconds,
    attention_name,
)
from edgechat.native.params import CANDIDATES_FROM, N_CANDIDATES, AttentionKind, CacheType
from edgechat.planner.estimate.calibration import ChatUse, Correction
from edgechat.planner.estimate.shape import Matrices, ModelShape, PlacedPart

PROMPT = 1000
"""Number of tokens that predictions assume in a prompt, or before a decoded token."""
_PART = 500
"""Number of prompt tokens assumed in predictions for different depths."""

_BUS = 12e9
"""Transfer rate to a card, in bytes per second. For large batches, weights are sent there from RAM if that is
faster.
"""
_MICRO_BATCH = ROWS[-1]
_STEP = 0.2e-3
"""Seconds per token spent outside llama.cpp, on sampling and display."""
_FLOAT = 4
_LEAST = 1e-9
"""Lower limit for the seconds per prompt token."""
MASK = 4
"""Bytes that the attention mask takes per token and cell."""
GRAPH = 15_000
"""Bytes that the RPC client sends to describe a layer: about 50 tensors of 296 bytes."""
_SAME_GRAPH = 256
"""Number of prompt tokens after which the graph is resent, as attention covers the cache in such steps."""
DEPTHS = (0, 1000, 4000, 16000)
"""Numbers of earlier tokens for which speeds are predicted."""


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """Predicted times in seconds, before any correction."""

    decode: float
    """Time for decoding one token with nothing before it."""
    decode_depth: float
    """Added to `decode` for each token before it."""
    prefill: float
    """Time for reading each prompt token with nothing before it."""
    prefill_depth: float
    """Added to `prefill` for each token before it."""
    window: int = 0
    """Maximum number of tokens that windowed layers attend to."""
    decode_window: float = 0.0
    """Added to `decode` for each earlier token within the window."""
    prefill_window: float = 0.0
    """Added to `prefill` for each earlier token within the window."""
    calls: Seconds = ()
    """Time for calls of `ROWS` tokens with nothing before them. Logits are computed for every token, except
    in the longest call.
    """
    calls_depth: Seconds = ()
    """Added to `calls` for each token before them."""
    graph: float = 0.0
    """Added if a call is not as long as the previous one, as new graphs are then sent to other machines."""

    def decoding(self, depth: float) -> float:
        """Return the seconds it takes to decode a token after `depth` others."""
        return self.decode + self.decode_depth * depth + self.decode_window * min(depth, self.window)

    def call(self, n: int, depth: int = 0) -> float:
        """Return the seconds for a call of `n` tokens (at most `ROWS[-1]`) after `depth` others."""
        deeper = depth * _at(n, ROWS, self.calls_depth) if self.calls_depth else 0.0
        return _at(n, ROWS, self.calls) + deeper

    def prefilling(self, n: int, depth: int = 0) -> float:
        """Return the seconds it takes to read `n` prompt tokens after `depth` others."""
        windowed = self._within(depth + n) - self._within(depth)
        return n * (self.prefill + self.prefill_depth * (depth + n / 2)) + self.prefill_window * windowed

    def _within(self, n: int) -> float:
        """Return how many earlier tokens are within the window, summed over the first `n` tokens."""
        first = min(n, self.window)
        return first * first / 2 + self.window * (n - first)


class Attending(msgspec.Struct, frozen=True):
    """How attention in a load reads the cache."""

    kind: AttentionKind
    cache_type: CacheType
    n_seq_max: int
    """Number of sequences whose windows share the cells."""


class _Layers(NamedTuple):
    """Seconds that attention takes in some layers on a device, for calls of `ROWS` tokens."""

    first: Seconds
    """Time for a call with nothing before it."""
    per_cell: Seconds
    """Added to `first` for each cell before the call."""


class SpeedAtDepth(msgspec.Struct, frozen=True, kw_only=True):
    """The predicted speed after `depth` tokens."""

    depth: int
    decode_tps: float
    prompt_tps: float
    """Speed of reading the next 500 tokens."""


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """The predicted speed."""

    decode_tps: float
    """Speed of decoding after 1,000 tokens, in tokens per second."""
    prompt_tps: float
    """Speed of reading a prompt of 1,000 tokens, in tokens per second."""
    ttft_ms: float
    """Time to first token for a prompt of 1,000 tokens, in milliseconds."""
    basis: str
    """A phrase that says what the prediction is based on."""
    by_depth: tuple[SpeedAtDepth, ...] = ()
    """Speeds at those `DEPTHS` that are within the context."""


_VERIFIED = 0.25
"""Fraction of a reply's calls that verify a draft, if drafting is possible."""
_WORTH = 0.95
"""Plain attention needs more memory, so it must take less than this fraction of flash attention's time."""


def is_plain_worth(plain: Forecast, flash: Forecast, use: ChatUse, *, drafts: bool) -> bool:
    """Return whether plain attention is clearly faster. drafts: whether some calls verify drafts.

    Plain attention also computes the cells of other requests, which flash attention skips.
    """
    beside = _using(plain, use, use.depth + use.beside, drafts=drafts)
    return beside < _WORTH * _using(flash, use, use.depth, drafts=drafts)


def _using(forecast: Forecast, use: ChatUse, depth: int, *, drafts: bool) -> float:
    """Return how many seconds it takes to read and write a chat turn at one depth."""
    several = forecast.call(ATTENTION_ROWS[1], depth) - forecast.call(1, depth)
    writing = forecast.decoding(depth) + (_VERIFIED * several if drafts else 0.0)
    return use.read * forecast.prefilling(_PART, depth) / _PART + use.written * writing


def predict(forecast: Forecast, correction: Correction, context: int = 0) -> Prediction:
    """Return the expected speed of a load. context: the length of its context in tokens.

    Reading a prompt is never predicted to be slower than decoding the same number of tokens.
    """

    def reading(n: int, depth: int) -> float:
        written = n * correction.decode * forecast.decoding(depth + n / 2)
        return min(correction.prefill * forecast.prefilling(n, depth), written)

    decode, prefill = correction.decode * forecast.decoding(PROMPT), reading(PROMPT, 0)
    return Prediction(
        decode_tps=1 / decode,
        prompt_tps=PROMPT / prefill,
        ttft_ms=1000 * (prefill + decode),
        basis=correction.basis,
        by_depth=tuple(
            SpeedAtDepth(
                depth=depth,
                decode_tps=1 / (correction.decode * forecast.decoding(depth)),
                prompt_tps=_PART / reading(_PART, depth),
            )
            for depth in DEPTHS
            if depth + _PART <= context
        ),
    )


def forecast(
    shape: ModelShape,
    placed: Sequence[PlacedPart],
    rates: Mapping[str | None, DeviceSpeed],
    cache_bytes_per_token: int,
    attending: Attending | None = None,
) -> Forecast:
    """Return the forecast for a load whose parts are placed on the given devices.

    rates: keyed by device; None is the CPU. cache_bytes_per_token: the total for all layers with full
    attention. attending: None for MLX.
    """
    layers = Counter(part.device for part in placed[:-1]) or Counter([None])
    share = {device: n / layers.total() for device, n in layers.items()}
    besides = _STEP + sum(rates[device].call for device in {part.device for part in placed})
    besides += sum(n * rates[device].layer for device, n in layers.items() if len(placed) > 1)
    counts = Counter(placed)  # most layers are alike
    full, windowed = (
        _together([(share[device] * n, _attention(shape, rates[device], attending)) for device in share])
        for n in (shape.n_full, shape.n_windowed)
    )
    calls: list[float] = []
    for row, rows in enumerate(ROWS):
        seconds = besides
        for (part, device, experts_in_ram), n in counts.items():
            at = 0 if part is placed[-1].part and rows == _MICRO_BATCH else row  # only at a prompt's end
            own = None if experts_in_ram else device
            seconds += n * sum(_product(one, device, rates, at) for one in part.matrices)
            seconds += n * sum(_routed(one, own, rates, at, shape.routed) for one in part.experts_matrices)
        seconds += on_links(shape, placed, rates, ROWS[row]) + full.first[row] + windowed.first[row]
        # More rows never take less time, nor more time than the same rows one by one.
        calls.append(min(max(seconds, calls[-1]), rows * calls[0]) if calls else seconds)
    # Each remote device is sent a mask that shows which cells each token attends to.
    links, n_parts = _links(placed, rates), Counter(part.device for part in placed)
    masks = sum(MASK / link.up for link in links.values())
    graph = sum(GRAPH * n_parts[device] / link.up for device, link in links.items())
    reading = sum(n / rates[device].bandwidth for device, n in share.items())
    alone = max(cache_bytes_per_token * reading, full.per_cell[0])
    together = min(full.per_cell[-1] / _MICRO_BATCH, alone)
    in_windows = min(windowed.per_cell[-1] / _MICRO_BATCH, windowed.per_cell[0])
    # On average, half of a micro-batch precedes each of its tokens.
    prefill = calls[-1] / _MICRO_BATCH - together * _MICRO_BATCH / 2 + graph / _SAME_GRAPH
    return Forecast(
        decode=calls[0],
        decode_depth=alone + masks,
        prefill=min(max(_LEAST, prefill), calls[0]),
        prefill_depth=together + masks,
        window=_window(shape, attending) if shape.n_windowed else 0,
        decode_window=windowed.per_cell[0],
        prefill_window=in_windows,
        calls=tuple(calls),
        calls_depth=(alone, *full.per_cell[1:]),
        graph=graph,
    )


def _attention(shape: ModelShape, speed: DeviceSpeed, attending: Attending | None) -> _Layers:
    """Return one layer's attention time on a device, measured or derived from its number of operations."""
    if attending is not None and shape.heads is not None:
        name = attention_name(shape.heads, attending.cache_type, attending.kind)
        if (curve := speed.attentions.get(name)) is not None:
            first, per_cell = (
                tuple(_at(rows, ATTENTION_ROWS, seconds) for rows in ROWS)
                for seconds in (curve.first, curve.per_cell)
            )
            return _Layers(first, per_cell)
    operations = shape.attention / max(1, shape.n_full)
    per_cell = tuple(rows * operations * seconds for rows, seconds in zip(ROWS, speed.attention, strict=True))
    # A micro-batch attends to itself. For fewer tokens, that is included in the layer's time.
    return _Layers((*[0.0] * (len(ROWS) - 1), _MICRO_BATCH * per_cell[-1]), per_cell)


def _together(parts: Sequence[tuple[float, _Layers]]) -> _Layers:
    """Add up attention times, given as (number of layers, time per layer) pairs."""
    first, per_cell = (
        tuple(sum(n * layers[at][row] for n, layers in parts) for row in range(len(ROWS))) for at in (0, 1)
    )
    return _Layers(first, per_cell)


def _window(shape: ModelShape, attending: Attending | None) -> int:
    """Return how many cells windowed layers attend to, including room for a call.

    Without flash attention, the cells of all sequences are computed and then masked.
    """
    n = attending.n_seq_max if attending is not None and attending.kind == "plain" else 1
    return n * shape.window + _MICRO_BATCH


def _at(rows: int, known: Sequence[int], values: Sequence[float]) -> float:
    """Return the value for a call of `rows` tokens, interpolated between the nearest known values."""
    above = next(at for at, more in enumerate(known) if more >= rows)
    below = max(0, above - 1)
    part = (rows - known[below]) / max(1, known[above] - known[below])
    return values[below] + part * (values[above] - values[below])


def _links(placed: Sequence[PlacedPart], rates: Mapping[str | None, DeviceSpeed]) -> dict[str | None, Link]:
    """Return the links that a load uses to devices on other machines."""
    used = {part.device: rates[part.device].link for part in placed}
    return {device: link for device, link in used.items() if link is not None}


def on_links(
    shape: ModelShape, placed: Sequence[PlacedPart], rates: Mapping[str | None, DeviceSpeed], rows: int
) -> float:
    """Return the seconds that a call of `rows` tokens spends on links to other machines.

    Hidden states travel through this machine whenever the next part is on another device. The output returns
    only its highest logits and their tokens. llama.cpp sends without waiting, and waits only for the result.
    """
    seconds, before = 0.0, None
    links = _links(placed, rates)
    state = _FLOAT * shape.width * rows
    for _, device, _ in placed:
        if device == before:
            continue
        if before in links:
            seconds += links[before].round_trip + state / links[before].down
        if device in links:
            seconds += state / links[device].up
        before = device
    if before in links:
        n_logits = 1 if rows == _MICRO_BATCH else rows
        numbers = shape.vocabulary if shape.vocabulary < CANDIDATES_FROM else 2 * N_CANDIDATES
        seconds += links[before].round_trip + _FLOAT * numbers * n_logits / links[before].down
    return seconds


def _product(
    matrices: Matrices, device: str | None, rates: Mapping[str | None, DeviceSpeed], row: int
) -> float:
    """Return the seconds it takes to multiply `ROWS[row]` tokens by matrices on a device."""
    kind, n, n_bytes = matrices
    speed = rates[device]
    seconds = max(n_bytes / speed.bandwidth, n * speed.kernels[kind.name][row])
    if device is None and ROWS[row] == _MICRO_BATCH and len(rates) > 1:
        # For large batches, the weights may be sent to a card.
        there = min(rate.kernels[kind.name][row] for name, rate in rates.items() if name is not None)
        seconds = min(seconds, n_bytes / _BUS + n * there)
    return seconds


def _routed(
    matrices: Matrices, device: str | None, rates: Mapping[str | None, DeviceSpeed], row: int, routed: float
) -> float:
    """Return the seconds that routed experts take. routed: fraction of the experts that a token uses.

    Some experts get several tokens, others none.
    """
    active = 1 - (1 - routed) ** ROWS[row]
    if active <= 0:
        return 0.0
    tokens = max(1.0, routed * ROWS[row] / active)
    above = next(at for at, rows in enumerate(ROWS) if rows >= tokens)
    below = max(0, above - 1)
    part = (tokens - ROWS[below]) / max(1, ROWS[above] - ROWS[below])
    fewer, more = (_product(matrices, device, rates, at) for at in (below, above))
    return active * (fewer + part * (more - fewer))
