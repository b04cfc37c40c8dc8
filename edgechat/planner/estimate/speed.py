"""How fast a load will be: seconds from bytes and operations, corrected by what this machine did before.

Decoding a token reads every active weight and the cache before it once, so it is bound by the bandwidth of
the memory they lie in, and on a few cores as much by the arithmetic of unpacking them; prefill is bound by
arithmetic (Williams et al. 2009, "Roofline"). Rates are those of `rates.py`, corrected by `calibration.py`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from edgechat.models.formats.quants import GgmlType
from edgechat.planner.estimate.calibration import Correction
from edgechat.planner.estimate.rates import DeviceRate
from edgechat.planner.estimate.shape import ModelShape, PlacedPart

PROMPT = 1000
"""Tokens of the prompt whose first token is predicted, and of the context at which decoding is."""

_BUS = 12e9
"""Bytes a second to a card: what lies in RAM is sent there for large batches, where that is faster."""
_MICRO_BATCH = 512
_CALL = 0.5e-3
"""Seconds of a call whatever it holds: the graph, the sampling, the way to the screen."""
_KERNELS: dict[GgmlType, tuple[float, float]] = {
    GgmlType.F32: (0.6, 0.13),
    GgmlType.F16: (0.8, 0.25),
    GgmlType.BF16: (0.8, 0.25),
    GgmlType.Q8_0: (1.1, 0.45),
    GgmlType.Q4_0: (2.0, 0.55),
    GgmlType.Q4_1: (0.6, 0.35),
    GgmlType.Q5_0: (0.6, 0.35),
    GgmlType.Q5_1: (0.6, 0.3),
    GgmlType.IQ4_NL: (1.8, 0.5),
    GgmlType.IQ4_XS: (1.2, 0.4),
    GgmlType.MXFP4: (1.0, 0.35),
    GgmlType.Q2_K: (1.2, 0.6),
    GgmlType.Q3_K: (1.2, 0.55),
    GgmlType.Q4_K: (1.8, 0.55),
    GgmlType.Q5_K: (1.2, 0.5),
    GgmlType.Q6_K: (1.2, 0.5),
}
_OTHER_KERNELS = (0.6, 0.2)
"""Speed of llama.cpp's CPU kernels relative to a product of float32 matrices: for a large batch, and for one
token, whose weights are unpacked for it only. The latter is rounded down from what an AVX-512 core does from
its cache (0.41 to 0.73 for K-quants), and in each family no more bits are faster."""
_ATTENTION = 0.35
"""The same for the attention to the cache."""


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
    rates: Mapping[str | None, DeviceRate],
    cache_bytes_per_token: int,
) -> Forecast:
    """Return the seconds of a load whose parts lie so. rates: of each device; None is the processor.

    cache_bytes_per_token: of keys and values, in all layers that see everything.
    """
    decode = prefill = 0.0
    kernel, one_row = _KERNELS.get(shape.main_type, _OTHER_KERNELS)
    fastest = max((rate.compute for device, rate in rates.items() if device is not None), default=0.0)
    for (part, device, experts_in_ram), n in Counter(placed).items():  # most layers are alike
        rate = rates[device]
        in_ram = experts_in_ram or device is None
        own = rates[None] if in_ram else rate
        decode += n * _written(part.read, part.operations, device is None, rate, one_row)
        decode += n * _written(part.experts_read, part.experts_operations, in_ram, own, one_row)
        prefill += n * _arithmetic(part.operations, part.weights, device is None, rate, kernel, fastest)
        prefill += n * _arithmetic(part.experts_operations, part.experts, in_ram, own, kernel, fastest)
    on = Counter([part.device for part in placed[:-1]] or [None])
    bandwidth = on.total() / sum(n / rates[device].bandwidth for device, n in on.items())
    compute = on.total() / sum(n / rates[device].compute for device, n in on.items())
    attending = shape.attention / (_ATTENTION * compute)
    return Forecast(
        decode=_CALL + decode,
        decode_depth=math.hypot(cache_bytes_per_token / bandwidth, attending),
        prefill=min(_CALL / _MICRO_BATCH + prefill, _CALL + decode),
        prefill_depth=attending,
    )


def _written(n_bytes: int, n: int, in_ram: bool, rate: DeviceRate, one_row: float) -> float:
    """Return the seconds of one token alone in weights that lie in RAM, or on the card.

    A processor reads and computes by turns: where both take long, it takes longer than the longer one.
    """
    reading = n_bytes / rate.bandwidth
    return math.hypot(reading, n / (one_row * rate.compute)) if in_ram else reading


def _arithmetic(n: int, n_bytes: int, in_ram: bool, rate: DeviceRate, kernel: float, fastest: float) -> float:
    """Return the seconds of one token of a large batch in weights that lie in RAM, or on the card."""
    if not in_ram:
        return n / rate.compute
    alone = n / (kernel * rate.compute)
    return min(alone, n_bytes / _BUS / _MICRO_BATCH + n / fastest) if fastest else alone
