"""How fast a load will be: seconds from weights and cache, corrected by what this machine did before.

A call multiplies its tokens with every active weight. Each device takes for that what its memory takes to
read the weights, or what its kernels take to multiply with them, whichever is longer: one token is bound by
the bandwidth of memory, or on a few cores by the arithmetic of unpacking, many by arithmetic (Williams et al.
2009, "Roofline"). Speeds are those of `rates.py`, corrected by `calibration.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from edgechat.device.speed import ROWS, DeviceSpeed, Link, Seconds
from edgechat.planner.estimate.calibration import Correction
from edgechat.planner.estimate.shape import Matrices, ModelShape, PlacedPart

PROMPT = 1000
"""Tokens of the prompt whose first token is predicted, and of the context at which decoding is."""

_BUS = 12e9
"""Bytes a second to a card: what lies in RAM is sent there for large batches, where that is faster."""
_MICRO_BATCH = ROWS[-1]
_STEP = 0.2e-3
"""Seconds of a token outside of llama.cpp: its sampling, and the way to the screen."""
_FLOAT = 4
MASK = 4
"""Bytes for each token and cell."""
GRAPH = 15_000
"""Bytes of the description of a layer, as the RPC client sends it: some 50 tensors of 296 bytes."""
_SAME_GRAPH = 256
"""Tokens of a prompt after which it is sent again: the cache is looked at in steps of so many cells."""
_TILE = 256
"""Cells that a large batch attends to at once, those behind its own tokens among them."""


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
    calls: Seconds = ()
    """Of calls of `ROWS` tokens with nothing before them, with logits of each but in the longest."""
    graph: float = 0.0
    """Of a call that differs in size from the one before: other machines are sent what their layers are."""

    def decoding(self, depth: float) -> float:
        """Return the seconds of a token after `depth` others."""
        return self.decode + self.decode_depth * depth

    def call(self, n: int) -> float:
        """Return the seconds of a call of `n` tokens with nothing before them, of no more than `ROWS` has."""
        above = next(at for at, rows in enumerate(ROWS) if rows >= n)
        below = max(0, above - 1)
        part = (n - ROWS[below]) / max(1, ROWS[above] - ROWS[below])
        return self.calls[below] + part * (self.calls[above] - self.calls[below])

    def prefilling(self, n: int, depth: int = 0) -> float:
        """Return the seconds of `n` tokens of a prompt after `depth` others."""
        return n * (self.prefill + self.prefill_depth * (depth + n / 2))


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


def predict(forecast: Forecast, correction: Correction) -> Prediction:
    """Return what to expect of a load. Nobody reads a prompt slower than by writing it."""
    decode = correction.decode * forecast.decoding(PROMPT)
    written = PROMPT * correction.decode * forecast.decoding(PROMPT / 2)
    prefill = min(correction.prefill * forecast.prefilling(PROMPT), written)
    return Prediction(
        decode_tps=1 / decode,
        prompt_tps=PROMPT / prefill,
        ttft_ms=1000 * (prefill + decode),
        basis=correction.basis,
    )


def forecast(
    shape: ModelShape,
    placed: Sequence[PlacedPart],
    rates: Mapping[str | None, DeviceSpeed],
    cache_bytes_per_token: int,
) -> Forecast:
    """Return the seconds of a load whose parts lie so. rates: of each device; None is the processor.

    cache_bytes_per_token: of keys and values, in all layers that see everything.
    """
    layers = Counter(part.device for part in placed[:-1]) or Counter([None])
    share = {device: n / layers.total() for device, n in layers.items()}
    besides = _STEP + sum(rates[device].call for device in {part.device for part in placed})
    besides += sum(n * rates[device].layer for device, n in layers.items() if len(placed) > 1)
    counts = Counter(placed)  # most layers are alike
    calls: list[float] = []
    for row, rows in enumerate(ROWS):
        seconds = besides
        for (part, device, experts_in_ram), n in counts.items():
            at = 0 if part is placed[-1].part and rows == _MICRO_BATCH else row  # of a prompt's end only
            own = None if experts_in_ram else device
            seconds += n * sum(_product(one, device, rates, at) for one in part.matrices)
            seconds += n * sum(_routed(one, own, rates, at, shape.routed) for one in part.experts_matrices)
        seconds += on_links(shape, placed, rates, ROWS[row])
        # More rows take no less, and no more than one after the other.
        calls.append(min(max(seconds, calls[-1]), rows * calls[0]) if calls else seconds)
    # Each device is sent which cells each token may attend to.
    links, n_parts = _links(placed, rates), Counter(part.device for part in placed)
    masks = sum(MASK / link.up for link in links.values())
    graph = sum(GRAPH * n_parts[device] / link.up for device, link in links.items())
    attending = [sum(n * rates[device].attention[row] for device, n in share.items()) for row in (0, -1)]
    reading = sum(n / rates[device].bandwidth for device, n in share.items())
    alone, together = (seconds * shape.attention for seconds in attending)
    windowed = [seconds * shape.windowed for seconds in attending]
    # The cache of a window has room for a call besides, and all of its cells are looked at.
    decode = calls[0] + windowed[0] * min(shape.window + _MICRO_BATCH, PROMPT)
    prefill = calls[-1] / _MICRO_BATCH + together * _TILE + windowed[1] * min(shape.window + _TILE, PROMPT)
    prefill += graph / _SAME_GRAPH
    return Forecast(
        decode=decode,
        decode_depth=max(cache_bytes_per_token * reading, alone) + masks,
        prefill=min(prefill, decode),
        prefill_depth=min(together, max(cache_bytes_per_token * reading, alone)) + masks,
        calls=tuple(calls),
        graph=graph,
    )


def _links(placed: Sequence[PlacedPart], rates: Mapping[str | None, DeviceSpeed]) -> dict[str | None, Link]:
    """Return the links to devices of other machines that a load needs."""
    used = {part.device: rates[part.device].link for part in placed}
    return {device: link for device, link in used.items() if link is not None}


def on_links(
    shape: ModelShape, placed: Sequence[PlacedPart], rates: Mapping[str | None, DeviceSpeed], rows: int
) -> float:
    """Return the seconds that a call of so many tokens spends on links to other machines.

    Hidden states travel wherever the next part is on another device, through this machine; the output's
    logits come back. llama.cpp sends without waiting, and waits once for what it asks back.
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
        seconds += links[before].round_trip + _FLOAT * shape.vocabulary * n_logits / links[before].down
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
