"""How fast a device computes: as the probe has measured it (`kernel_probe.py`), or guessed of its kind.

Real loads correct both (`calibration.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from msgspec.structs import replace

from edgechat.device.accelerators import Accelerator, Vendor
from edgechat.device.speed import ROWS, AttentionCurve, DeviceSpeed, Seconds
from edgechat.models.formats.quants import GgmlType

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
_ALONE = 2
"""Times its share of the bandwidth that a thread reads where the others rest."""


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
token, whose weights are unpacked for it only. For types that were not measured here."""
_ATTENTION, _ATTENTION_ALONE = 0.35, 0.1
"""The same for the attention to the cache."""
FAMILIES = (
    (GgmlType.Q4_0, GgmlType.Q8_0),
    (GgmlType.IQ4_NL, GgmlType.Q8_0),
    (GgmlType.Q4_1, GgmlType.Q5_1),
    (GgmlType.Q3_K, GgmlType.Q5_K, GgmlType.Q6_K),
    (GgmlType.F16, GgmlType.F32),
    (GgmlType.BF16, GgmlType.F32),
    (GgmlType.IQ1_S, GgmlType.IQ2_XS, GgmlType.IQ3_S),
)
"""Types that are unpacked alike, by their bits: more are not faster, whatever a noisy measurement says."""
_MANY = 64
"""Rows from which on attention is computed in tiles."""


def guessed(bandwidth: float, compute: float, threads: int = 1) -> DeviceSpeed:
    """Return the speed of a device of which only this is known.

    bandwidth: bytes that it reads in a second; compute: floating-point operations, with whole matrices.
    """
    alone, together = 1 / (_ATTENTION_ALONE * compute), 1 / (_ATTENTION * compute)
    return DeviceSpeed(
        bandwidth=bandwidth,
        kernels={kind.name: _scaled(_usual(kind), 1 / compute) for kind in GgmlType},
        attention=tuple(together if rows >= _MANY else alone for rows in ROWS),
        threads=threads,
    )


def guessed_card(bandwidth: float, compute: float) -> DeviceSpeed:
    """Return the speed of an accelerator, of which all kernels reach what it can; see `guessed`."""
    return DeviceSpeed(
        bandwidth=bandwidth,
        kernels={kind.name: tuple(2 * rows / compute for rows in ROWS) for kind in GgmlType},
        attention=(1 / (_ATTENTION * compute),) * len(ROWS),
    )


def rate_of_processor(speed: DeviceSpeed | None, threads: int | None = None) -> DeviceSpeed:
    """Return what was measured, or the speed of a slow laptop, for every type; threads: fewer than measured.

    More gain nothing: it was measured with as many as compute best.
    """
    if speed is None:
        return guessed(*_UNMEASURED)
    speed = replace(speed, kernels=_completed(speed.kernels))
    share = 1.0 if threads is None else min(1.0, threads / max(1, speed.threads))
    return scaled(speed, reading=min(1.0, _ALONE * share), computing=share)


def rate_of_card(
    card: Accelerator, processor: DeviceSpeed, measured: DeviceSpeed | None = None
) -> DeviceSpeed:
    """Return what was measured of a card, or what one of this kind usually does."""
    if measured is not None:
        return replace(measured, kernels=_completed(measured.kernels))
    if card.devices and card.devices[0].startswith("RPC"):
        return processor
    if not card.shares_ram:
        return guessed_card(_READS * card.total, _OPERATIONS[card.vendor] * card.total)
    compute = max(_SHARED[card.vendor], _SHARED_COMPUTE * compute_of(processor))
    if card.vendor == "apple":
        compute = max(compute, _APPLE * processor.bandwidth)
    return guessed_card(processor.bandwidth, compute)


def scaled(speed: DeviceSpeed, *, reading: float = 1.0, computing: float = 1.0) -> DeviceSpeed:
    """Return the speed of a device that reads and computes so many times faster."""
    return replace(
        speed,
        bandwidth=reading * speed.bandwidth,
        kernels={name: _scaled(seconds, 1 / computing) for name, seconds in speed.kernels.items()},
        attention=_scaled(speed.attention, 1 / computing),
        attentions={
            name: AttentionCurve(_scaled(curve.first, 1 / computing), _scaled(curve.per_cell, 1 / computing))
            for name, curve in speed.attentions.items()
        },
    )


def in_order(kernels: dict[str, Seconds]) -> dict[str, Seconds]:
    """Return the kernels with more bits of a family nowhere faster than fewer: neighbours share their mean.

    By the pool-adjacent-violators algorithm (Ayer et al. 1955).
    """
    ordered = {name: list(seconds) for name, seconds in kernels.items()}
    for family in FAMILIES:
        names = [kind.name for kind in family if kind.name in ordered]
        for row in range(min((len(ordered[name]) for name in names), default=0)):
            pools: list[list[float]] = []
            for name in names:
                pools.append([ordered[name][row]])
                while len(pools) > 1 and _mean(pools[-1]) < _mean(pools[-2]):
                    last = pools.pop()
                    pools[-1] += last
            means = [_mean(pool) for pool in pools for _ in pool]
            for name, mean in zip(names, means, strict=True):
                ordered[name][row] = mean
    return {name: tuple(seconds) for name, seconds in ordered.items()}


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def compute_of(speed: DeviceSpeed) -> float:
    """Return the operations a second of a processor, as `guessed` takes them."""
    kind = GgmlType.Q4_K
    return _usual(kind)[-1] / speed.kernels[kind.name][-1]


def _completed(kernels: Mapping[str, Seconds]) -> dict[str, Seconds]:
    """Return the kernels of all types: those not measured in the usual proportion to one that was."""
    measured = [kind for kind in GgmlType if kind.name in kernels]
    if not measured:
        return guessed(*_UNMEASURED).kernels
    completed = dict(kernels)
    for kind in GgmlType:
        if kind.name not in kernels:
            like = min(measured, key=lambda other: abs(_bits(other) - _bits(kind)))
            ratios = zip(_usual(kind), _usual(like), kernels[like.name], strict=True)
            completed[kind.name] = tuple(seconds * mine / its for mine, its, seconds in ratios)
    return in_order(completed)


@cache
def _usual(kind: GgmlType) -> Seconds:
    """Return the seconds for each weight, in calls of `ROWS`, where a float32 operation takes one."""
    large, alone = _KERNELS.get(kind, _OTHER_KERNELS)
    return tuple(max(2 / alone, 2 * rows / large) for rows in ROWS)


def _bits(kind: GgmlType) -> float:
    n, size = kind.block
    return 8 * size / n


def _scaled(seconds: Seconds, factor: float) -> Seconds:
    return tuple(factor * value for value in seconds)
