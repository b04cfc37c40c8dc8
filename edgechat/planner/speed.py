"""How fast a load will be: seconds from bytes and operations, corrected by what this machine did before.

Decoding a token reads every active weight and the cache before it once, so it is bound by the bandwidth of
the memory they lie in; prefill is bound by arithmetic (Williams et al. 2009, "Roofline"). The rates of the
processor are measured (`device/bandwidth.py`), those of a graphics card guessed, until loads that really
happened correct both: see `learned.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from edgechat.device.bandwidth import Speed
from edgechat.device.gpu import Accelerator, Vendor
from edgechat.models.quants import GgmlType
from edgechat.planner.shape import Layer, ModelShape

PROMPT = 1000
"""Tokens of the prompt whose first token is predicted, and of the context at which decoding is."""

_UNMEASURED = (20e9, 100e9)
_READS = 30.0
"""A card reads all of its own memory about so many times a second: 8 GB at 260 GB/s, 24 GB at 770."""
_OPERATIONS: dict[Vendor, float] = {
    "nvidia": 2500.0,
    "amd": 1500.0,
    "intel": 800.0,
    "apple": 1500.0,
    "other": 1000.0,
}
"""Operations a second for each byte of its memory, by what llama.cpp reads of prompts on them."""
_SHARED: dict[Vendor, float] = {"nvidia": 4e12, "amd": 2e12, "intel": 1.2e12, "apple": 1e12, "other": 5e11}
"""Operations a second of a graphics unit in a processor."""
_APPLE = 19.0
"""Of Apple's, for each byte that the memory gives in a second (llama.cpp discussion 4167: M1 to M2 Ultra)."""
_SHARED_COMPUTE = 4.0
"""A graphics unit in the processor multiplies so many times faster than the processor itself."""
_BUS = 12e9
"""Bytes a second to a card: what lies in RAM is sent there for large batches, where that is faster."""
_MICRO_BATCH = 512
_CALL = 0.5e-3
"""Seconds of a call whatever it holds: the graph, the sampling, the way to the screen."""
_KERNELS: dict[GgmlType, float] = {
    GgmlType.F32: 0.6,
    GgmlType.F16: 0.8,
    GgmlType.BF16: 0.8,
    GgmlType.Q8_0: 1.1,
    GgmlType.Q4_0: 2.0,
    GgmlType.IQ4_NL: 1.8,
    GgmlType.MXFP4: 1.0,
    GgmlType.Q2_K: 1.2,
    GgmlType.Q3_K: 1.2,
    GgmlType.Q4_K: 1.8,
    GgmlType.Q5_K: 1.2,
    GgmlType.Q6_K: 1.2,
    GgmlType.IQ4_XS: 1.2,
}
"""Speed of llama.cpp's kernels on a processor against a product of float32 matrices; others 0.6."""
_ATTENTION = 0.35
"""The same for the attention to the cache."""


@dataclass(frozen=True, slots=True)
class Rate:
    """What a device does in a second."""

    bandwidth: float
    """Bytes read from its memory."""
    compute: float
    """Floating-point operations, with whole matrices."""


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds by the roofline, before any correction."""

    decode: float
    """Of one token with nothing before it."""
    decode_depth: float
    """More of it for each token before it."""
    prefill: float
    """Of each token of a prompt."""
    prefill_depth: float
    """More of it for each token before it."""

    def decoding(self, depth: float) -> float:
        """Return the seconds of a token after `depth` others."""
        return self.decode + self.decode_depth * depth

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


@dataclass(frozen=True, slots=True)
class Correction:
    """Real seconds over those of the roofline, and how we know."""

    decode: float = 1.0
    prefill: float = 1.0
    basis: str = "a first guess from this machine's speed; the first answers correct it"


def predict(forecast: Forecast, correction: Correction) -> Prediction:
    """Return what to expect of a load."""
    decode = correction.decode * forecast.decoding(PROMPT)
    prefill = correction.prefill * forecast.prefilling(PROMPT)
    return Prediction(
        decode_tps=1 / decode,
        prompt_tps=PROMPT / prefill,
        ttft_ms=1000 * (prefill + decode),
        basis=correction.basis,
    )


def rate_of_processor(speed: Speed | None) -> Rate:
    """Return what was measured, or the rate of a slow laptop."""
    return Rate(speed.bandwidth, speed.compute) if speed is not None else Rate(*_UNMEASURED)


def rate_of_card(card: Accelerator, processor: Rate) -> Rate:
    """Return what a card of this kind usually does."""
    if card.devices and card.devices[0].startswith("RPC"):
        return processor
    if not card.shares_ram:
        return Rate(_READS * card.total, _OPERATIONS[card.vendor] * card.total)
    compute = max(_SHARED[card.vendor], _SHARED_COMPUTE * processor.compute)
    if card.vendor == "apple":
        compute = max(compute, _APPLE * processor.bandwidth)
    return Rate(processor.bandwidth, compute)


@dataclass(frozen=True, slots=True)
class Placed:
    """A part of the model on a device: None is the processor."""

    part: Layer
    device: str | None = None
    experts_in_ram: bool = False


def forecast(
    shape: ModelShape,
    placed: Sequence[Placed],
    rates: Mapping[str | None, Rate],
    cache_bytes_per_token: int,
) -> Forecast:
    """Return the seconds of a load whose parts lie so. rates: of each device; None is the processor.

    cache_bytes_per_token: of keys and values, in all layers that see everything.
    """
    decode = prefill = 0.0
    kernel = _KERNELS.get(shape.main_type, 0.6)
    fastest = max((rate.compute for device, rate in rates.items() if device is not None), default=0.0)
    for one in placed:
        part, rate = one.part, rates[one.device]
        in_ram = one.experts_in_ram or one.device is None
        own = rates[None] if in_ram else rate
        decode += part.read / rate.bandwidth + part.experts_read / own.bandwidth
        prefill += _arithmetic(part.operations, part.weights, one.device is None, rate, kernel, fastest)
        prefill += _arithmetic(part.experts_operations, part.experts, in_ram, own, kernel, fastest)
    on = [one.device for one in placed[:-1]] or [None]
    bandwidth = len(on) / sum(1 / rates[device].bandwidth for device in on)
    compute = len(on) / sum(1 / rates[device].compute for device in on)
    return Forecast(
        decode=_CALL + decode,
        decode_depth=cache_bytes_per_token / bandwidth,
        prefill=_CALL / _MICRO_BATCH + prefill,
        prefill_depth=shape.attention / (_ATTENTION * compute),
    )


def _arithmetic(n: int, n_bytes: int, in_ram: bool, rate: Rate, kernel: float, fastest: float) -> float:
    """Return the seconds of one token of a large batch in weights that lie in RAM, or on the card."""
    if not in_ram:
        return n / rate.compute
    alone = n / (kernel * rate.compute)
    return min(alone, n_bytes / _BUS / _MICRO_BATCH + n / fastest) if fastest else alone
