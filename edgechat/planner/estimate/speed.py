"""How fast a load will be: seconds from weights and cache, corrected by what this machine did before.

A call multiplies its tokens with every active weight. Each device takes for that what its memory takes to
read the weights, or what its kernels take to multiply with them, whichever is longer: one token is bound by
the bandwidth of memory, or on a few cores by the arithmetic of unpacking, many by arithmetic (Williams et al.
2009, "Roofline"). Speeds are those of `rates.py`, corrected by `calibration.py`. What attention takes grows
with the tokens before it; it was measured for the model's heads (`kernel_probe.py`), or follows from its
operations.
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
"""Tokens of the prompt whose first token is predicted, and of the context at which decoding is."""
_PART = 500
"""Tokens of the prompts whose speed at a depth is predicted."""

_BUS = 12e9
"""Bytes a second to a card: what lies in RAM is sent there for large batches, where that is faster."""
_MICRO_BATCH = ROWS[-1]
_STEP = 0.2e-3
"""Seconds of a token outside of llama.cpp: its sampling, and the way to the screen."""
_FLOAT = 4
_LEAST = 1e-9
"""Seconds of a token of a prompt, at the least."""
MASK = 4
"""Bytes for each token and cell."""
GRAPH = 15_000
"""Bytes of the description of a layer, as the RPC client sends it: some 50 tensors of 296 bytes."""
_SAME_GRAPH = 256
"""Tokens of a prompt after which it is sent again: the cache is looked at in steps of so many cells."""
DEPTHS = (0, 1000, 4000, 16000)
"""Tokens after which speeds are predicted."""


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds before any correction."""

    decode: float
    """Of one token with nothing before it."""
    decode_depth: float
    """More of it for each token before it."""
    prefill: float
    """Of each token of a prompt."""
    prefill_depth: float
    """More of it for each token before it."""
    window: int = 0
    """Tokens that windowed layers look at, at the most."""
    decode_window: float = 0.0
    """More of `decode` for each token before it, up to the window."""
    prefill_window: float = 0.0
    """More of `prefill` for each token before it, up to the window."""
    calls: Seconds = ()
    """Of calls of `ROWS` tokens with nothing before them, with logits of each but in the longest."""
    calls_depth: Seconds = ()
    """More of `calls` for each token before them."""
    graph: float = 0.0
    """Of a call that differs in size from the one before: other machines are sent what their layers are."""

    def decoding(self, depth: float) -> float:
        """Return the seconds of a token after `depth` others."""
        return self.decode + self.decode_depth * depth + self.decode_window * min(depth, self.window)

    def call(self, n: int, depth: int = 0) -> float:
        """Return the seconds of a call of `n` tokens after `depth` others, of no more than `ROWS` has."""
        deeper = depth * _at(n, ROWS, self.calls_depth) if self.calls_depth else 0.0
        return _at(n, ROWS, self.calls) + deeper

    def prefilling(self, n: int, depth: int = 0) -> float:
        """Return the seconds of `n` tokens of a prompt after `depth` others."""
        windowed = self._within(depth + n) - self._within(depth)
        return n * (self.prefill + self.prefill_depth * (depth + n / 2)) + self.prefill_window * windowed

    def _within(self, n: int) -> float:
        """Return how many tokens before them so many tokens look at in windows, all together."""
        first = min(n, self.window)
        return first * first / 2 + self.window * (n - first)


class Attending(msgspec.Struct, frozen=True):
    """How a load attends to its cache."""

    kind: AttentionKind
    cache_type: CacheType
    n_seq_max: int
    """Sequences whose windows share cells."""


class _Layers(NamedTuple):
    """What the attention of layers takes on a device, in seconds by `ROWS`."""

    first: Seconds
    """Of a call with nothing before it."""
    per_cell: Seconds
    """More of it for each cell before it."""


class SpeedAtDepth(msgspec.Struct, frozen=True, kw_only=True):
    """What a user will see after so many tokens."""

    depth: int
    decode_tps: float
    prompt_tps: float
    """Of the next 500 tokens."""


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """What a user will see."""

    decode_tps: float
    """Tokens a second, at 1,000 tokens of context."""
    prompt_tps: float
    """Tokens of a prompt of 1,000 a second."""
    ttft_ms: float
    """From sending such a prompt to the first token."""
    basis: str
    """How we know, in words."""
    by_depth: tuple[SpeedAtDepth, ...] = ()
    """At `DEPTHS` within the context."""


_VERIFIED = 0.25
"""Share of the calls of a reply that verify a draft, if there are any."""
_WORTH = 0.95
"""Share of the time that plain attention may take at most: it needs more memory."""


def is_plain_worth(plain: Forecast, flash: Forecast, use: ChatUse, *, drafts: bool) -> bool:
    """Return whether plain attention takes clearly less time. drafts: whether some calls verify one.

    It computes the cells of other requests, too, which flash attention skips.
    """
    beside = _using(plain, use, use.depth + use.beside, drafts=drafts)
    return beside < _WORTH * _using(flash, use, use.depth, drafts=drafts)


def _using(forecast: Forecast, use: ChatUse, depth: int, *, drafts: bool) -> float:
    """Return the seconds of what is read and written, all of it at one depth."""
    several = forecast.call(ATTENTION_ROWS[1], depth) - forecast.call(1, depth)
    writing = forecast.decoding(depth) + (_VERIFIED * several if drafts else 0.0)
    return use.read * forecast.prefilling(_PART, depth) / _PART + use.written * writing


def predict(forecast: Forecast, correction: Correction, context: int = 0) -> Prediction:
    """Return what to expect of a load with a context of so many tokens.

    Nobody reads a prompt slower than by writing it.
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
    """Return the seconds of a load whose parts lie so. rates: of each device; None is the processor.

    cache_bytes_per_token: of keys and values, in all layers that see everything. attending: None for MLX.
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
            at = 0 if part is placed[-1].part and rows == _MICRO_BATCH else row  # of a prompt's end only
            own = None if experts_in_ram else device
            seconds += n * sum(_product(one, device, rates, at) for one in part.matrices)
            seconds += n * sum(_routed(one, own, rates, at, shape.routed) for one in part.experts_matrices)
        seconds += on_links(shape, placed, rates, ROWS[row]) + full.first[row] + windowed.first[row]
        # More rows take no less, and no more than one after the other.
        calls.append(min(max(seconds, calls[-1]), rows * calls[0]) if calls else seconds)
    # Each device is sent which cells each token may attend to.
    links, n_parts = _links(placed, rates), Counter(part.device for part in placed)
    masks = sum(MASK / link.up for link in links.values())
    graph = sum(GRAPH * n_parts[device] / link.up for device, link in links.items())
    reading = sum(n / rates[device].bandwidth for device, n in share.items())
    alone = max(cache_bytes_per_token * reading, full.per_cell[0])
    together = min(full.per_cell[-1] / _MICRO_BATCH, alone)
    in_windows = min(windowed.per_cell[-1] / _MICRO_BATCH, windowed.per_cell[0])
    # Half of a part of a prompt is before each of its tokens.
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
    """Return what the attention of one layer takes on a device: as measured, or by its operations."""
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
    # A part of a prompt looks at all of itself; of fewer tokens that is part of what a layer takes.
    return _Layers((*[0.0] * (len(ROWS) - 1), _MICRO_BATCH * per_cell[-1]), per_cell)


def _together(parts: Sequence[tuple[float, _Layers]]) -> _Layers:
    """Return what so many layers of each kind take, one after the other."""
    first, per_cell = (
        tuple(sum(n * layers[at][row] for n, layers in parts) for row in range(len(ROWS))) for at in (0, 1)
    )
    return _Layers(first, per_cell)


def _window(shape: ModelShape, attending: Attending | None) -> int:
    """Return the cells that windowed layers look at: there is room for a call besides.

    Without flash attention those of all sequences are computed, and masked after that.
    """
    n = attending.n_seq_max if attending is not None and attending.kind == "plain" else 1
    return n * shape.window + _MICRO_BATCH


def _at(rows: int, known: Sequence[int], values: Sequence[float]) -> float:
    """Return the value of a call of so many tokens, between those of the nearest that are known."""
    above = next(at for at, more in enumerate(known) if more >= rows)
    below = max(0, above - 1)
    part = (rows - known[below]) / max(1, known[above] - known[below])
    return values[below] + part * (values[above] - values[below])


def _links(placed: Sequence[PlacedPart], rates: Mapping[str | None, DeviceSpeed]) -> dict[str | None, Link]:
    """Return the links to devices of other machines that a load needs."""
    used = {part.device: rates[part.device].link for part in placed}
    return {device: link for device, link in used.items() if link is not None}


def on_links(
    shape: ModelShape, placed: Sequence[PlacedPart], rates: Mapping[str | None, DeviceSpeed], rows: int
) -> float:
    """Return the seconds that a call of so many tokens spends on links to other machines.

    Hidden states travel wherever the next part is on another device, through this machine; the output's
    highest logits come back, each with its token. llama.cpp sends without waiting, and waits once for what
    it asks back.
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
    """Return the seconds of the products of `ROWS[row]` tokens with matrices on a device."""
    kind, n, n_bytes = matrices
    speed = rates[device]
    seconds = max(n_bytes / speed.bandwidth, n * speed.kernels[kind.name][row])
    if device is None and ROWS[row] == _MICRO_BATCH and len(rates) > 1:
        # Large batches may be computed on a card that is sent the weights.
        there = min(rate.kernels[kind.name][row] for name, rate in rates.items() if name is not None)
        seconds = min(seconds, n_bytes / _BUS + n * there)
    return seconds


def _routed(
    matrices: Matrices, device: str | None, rates: Mapping[str | None, DeviceSpeed], row: int, routed: float
) -> float:
    """Return the seconds with the experts that the tokens are routed to; routed: their share for one token.

    Some of them get several tokens, all the others none.
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
