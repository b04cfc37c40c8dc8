"""Device speeds: measured by the kernel probe, or guessed from the kind of device.

The probe is a child process that loads synthetic models of zeros and times calls of 1 to 512 tokens. The
models' shapes separate the costs of weight types, layers, attention and memory (`kernel_probe_child.py`).
Short calls read more weights than fit in the caches. Accelerators are measured the same way. The cost of
attention depends on a model's heads, so flash and plain attention are measured when a model is planned.

Real loads correct both measured and guessed speeds (`calibration.py`).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path

import msgspec
from msgspec.structs import replace

from edgechat.base.process.ask import ChildFailed, ask
from edgechat.device.accelerators import Accelerator, Vendor
from edgechat.device.cgroup import read_text
from edgechat.device.cpu import Cpu, thread_counts
from edgechat.device.memory import Memory
from edgechat.device.speed import ROWS, AttentionCurve, AttentionShape, DeviceSpeed, Seconds, store_speed
from edgechat.models.formats.quants import GgmlType

_UNMEASURED = (20e9, 100e9)
_READS = 30.0
"""How many times per second a card can read all of its memory: 260 GB/s for 8 GB, 770 GB/s for 24 GB."""
_OPERATIONS: dict[Vendor, float] = {
    "nvidia": 2500.0,
    "amd": 1500.0,
    "intel": 800.0,
    "apple": 1500.0,
    "other": 1000.0,
}
"""Operations per second for each byte of a card's memory, from llama.cpp's prefill speeds."""
_SHARED: dict[Vendor, float] = {"nvidia": 4e12, "amd": 2e12, "intel": 1.2e12, "apple": 1e12, "other": 5e11}
"""Operations per second on an integrated GPU."""
_APPLE = 19.0
"""Operations per second on Apple's GPUs for each byte per second of bandwidth (llama.cpp discussion 4167: M1
to M2 Ultra).
"""
_SHARED_COMPUTE = 4.0
"""How many times faster an integrated GPU computes than the CPU."""
_ALONE = 2
"""Factor by which a thread's share of the bandwidth grows when the other threads are idle."""


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
token, for which all weights have to be unpacked. Used for types that were not measured here.
"""
_ATTENTION, _ATTENTION_ALONE = 0.35, 0.1
"""The same speeds for attention over the cache."""
FAMILIES = (
    (GgmlType.Q4_0, GgmlType.Q8_0),
    (GgmlType.IQ4_NL, GgmlType.Q8_0),
    (GgmlType.Q4_1, GgmlType.Q5_1),
    (GgmlType.Q3_K, GgmlType.Q5_K, GgmlType.Q6_K),
    (GgmlType.F16, GgmlType.F32),
    (GgmlType.BF16, GgmlType.F32),
    (GgmlType.IQ1_S, GgmlType.IQ2_XS, GgmlType.IQ3_S),
)
"""Types that are unpacked in the same way, sorted by bits. A type with more bits is never faster, even if
noisy measurements suggest that it is.
"""
_MANY = 64
"""Minimum number of rows for attention to be computed in tiles."""


def guessed(bandwidth: float, compute: float, threads: int = 1) -> DeviceSpeed:
    """Return the speed of a device, derived from its bandwidth and compute.

    bandwidth: bytes per second. compute: floating-point operations per second for large matrix products.
    """
    alone, together = 1 / (_ATTENTION_ALONE * compute), 1 / (_ATTENTION * compute)
    return DeviceSpeed(
        bandwidth=bandwidth,
        kernels={kind.name: _scaled(_usual(kind), 1 / compute) for kind in GgmlType},
        attention=tuple(together if rows >= _MANY else alone for rows in ROWS),
        threads=threads,
    )


def guessed_card(bandwidth: float, compute: float) -> DeviceSpeed:
    """Return the speed of an accelerator whose kernels all reach its full compute speed; see `guessed`."""
    return DeviceSpeed(
        bandwidth=bandwidth,
        kernels={kind.name: tuple(2 * rows / compute for rows in ROWS) for kind in GgmlType},
        attention=(1 / (_ATTENTION * compute),) * len(ROWS),
    )


def rate_of_processor(speed: DeviceSpeed | None, threads: int | None = None) -> DeviceSpeed:
    """Return the CPU's speed for every type: the measured speed, or else a slow laptop's.

    threads: number of threads to use. More than the measured number gain nothing, as that number is the best.
    """
    if speed is None:
        return guessed(*_UNMEASURED)
    speed = replace(speed, kernels=_completed(speed.kernels))
    share = 1.0 if threads is None else min(1.0, threads / max(1, speed.threads))
    return scaled(speed, reading=min(1.0, _ALONE * share), computing=share)


def rate_of_card(
    card: Accelerator, processor: DeviceSpeed, measured: DeviceSpeed | None = None
) -> DeviceSpeed:
    """Return a card's measured speed, or else the usual speed of cards of its kind."""
    if measured is not None:
        return replace(measured, kernels=_completed(measured.kernels))
    if card.devices and card.devices[0].startswith("RPC"):
        return processor
    if not card.shares_ram:
        return guessed_card(_READS * card.total, _OPERATIONS[card.vendor] * card.total)
    kind = GgmlType.Q4_K
    computing = _usual(kind)[-1] / processor.kernels[kind.name][-1]
    compute = max(_SHARED[card.vendor], _SHARED_COMPUTE * computing)
    if card.vendor == "apple":
        compute = max(compute, _APPLE * processor.bandwidth)
    return guessed_card(processor.bandwidth, compute)


def scaled(speed: DeviceSpeed, *, reading: float = 1.0, computing: float = 1.0) -> DeviceSpeed:
    """Return a speed multiplied by factors for reading and computing."""
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
    """Return the kernels, corrected so that within a family, a type with more bits is never faster.

    Kernels in the wrong order are set to their mean (pool-adjacent-violators, Ayer et al. 1955).
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


def _completed(kernels: Mapping[str, Seconds]) -> dict[str, Seconds]:
    """Return kernels for all types, deriving them from the most similar measured type where necessary."""
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
    """Return the seconds per weight for calls of `ROWS` tokens, assuming one second per float32 operation."""
    large, alone = _KERNELS.get(kind, _OTHER_KERNELS)
    return tuple(max(2 / alone, 2 * rows / large) for rows in ROWS)


def _bits(kind: GgmlType) -> float:
    n, size = kind.block
    return 8 * size / n


def _scaled(seconds: Seconds, factor: float) -> Seconds:
    return tuple(factor * value for value in seconds)


TIME_LIMIT = 60.0
"""Time limit in seconds. Two cores take 6 to 8 s for the common types, or 27 s with the oldest kernels."""
ATTENTION_LIMIT = 30.0
"""Time limit for one attention shape, in seconds. An idle machine with two cores takes two."""
_MAX_SHAPES = 32
"""Maximum number of attention shapes that are stored; the oldest are dropped."""
USUAL = 2**27
"""Bytes of weights in a test: too many to fit in any cache."""
COMMON = (GgmlType.Q4_K, GgmlType.Q6_K, GgmlType.Q8_0, GgmlType.Q4_0, GgmlType.Q5_K, GgmlType.F16)
"""Types that are measured the first time. Others are measured when a model uses them."""
_LARGEST = 2**29


class ProbeTask(msgspec.Struct, frozen=True, kw_only=True):
    """What the child process should measure."""

    threads: tuple[int, ...]
    """Thread counts to compare, most promising first."""
    types: tuple[GgmlType, ...]
    buffer: int
    """Number of bytes to read when measuring bandwidth: too many to fit in any cache."""
    shape: AttentionShape | None = None
    """Attention shape to measure on the CPU."""
    before: DeviceSpeed | None = None
    """An earlier result. If given, only the types and the shape are measured, using its number of threads."""
    device: str = ""
    """llama.cpp's name for an accelerator; '' for the CPU."""
    rpc: tuple[str, ...] = ()
    """RPC servers that `device` may belong to."""
    is_processor: bool = False
    """Whether the device is a CPU, for which large matrices with many rows would take too long."""


def measure_speed(
    cpu: Cpu,
    memory: Memory,
    *,
    types: Collection[GgmlType] = COMMON,
    before: DeviceSpeed | None = None,
    device: str = "",
    is_processor: bool = False,
    key: str = "",
    rpc: tuple[str, ...] = (),
) -> DeviceSpeed:
    """Measure a device for a few seconds and store the result. Raises ChildFailed.

    before: an earlier measurement. Unless it was disturbed, only missing `types` are measured. If the new
    measurement is disturbed, the better of the two is used for each figure. device: llama.cpp's name for an
    accelerator. key: the accelerator's key in the store.
    """
    extends = before is not None and not before.disturbed
    task = ProbeTask(
        threads=tuple(thread_counts(cpu)),
        types=tuple(
            kind for kind in types if before is None or not extends or kind.name not in before.kernels
        ),
        buffer=_buffer(memory),
        before=before if extends else None,
        device=device,
        rpc=rpc,
        is_processor=is_processor or not device,
    )
    speed = _answer(task, TIME_LIMIT)
    if before is not None and speed.disturbed:
        speed = _better(before, speed)
    speed = msgspec.structs.replace(speed, kernels=in_order(speed.kernels), measured=time.time())
    store_speed(speed, cpu, key or device)
    return speed


def measure_attention(cpu: Cpu, memory: Memory, shape: AttentionShape, before: DeviceSpeed) -> DeviceSpeed:
    """Measure an attention shape on the CPU. Store and return the CPU's speed with the result added.

    If the shape cannot be measured, the speed contains the reason, and models are planned without it.
    """
    task = ProbeTask(
        threads=(before.threads,),
        types=(),
        buffer=_buffer(memory),
        shape=shape,
        before=before,
        is_processor=True,
    )
    try:
        found = _answer(task, ATTENTION_LIMIT)
        others = {name: why for name, why in found.unmeasured.items() if name != str(shape)}
        speed = msgspec.structs.replace(found, attentions=_newest(found, shape), unmeasured=others)
    except ChildFailed as failed:
        failures = before.unmeasured | {str(shape): str(failed)}
        speed = msgspec.structs.replace(before, unmeasured=dict(list(failures.items())[-_MAX_SHAPES:]))
    store_speed(speed, cpu)
    return speed


def _newest(speed: DeviceSpeed, shape: AttentionShape) -> dict[str, AttentionCurve]:
    """Return the curves of the shapes measured most recently, ending with this one."""
    names = dict.fromkeys(name.split(",")[0] for name in speed.attentions)
    kept = [*(name for name in names if name != str(shape)), str(shape)][-_MAX_SHAPES:]
    curves = speed.attentions.items()
    return {name: curve for one in kept for name, curve in curves if name.split(",")[0] == one}


def _answer(task: ProbeTask, limit: float) -> DeviceSpeed:
    """Return what the child measures within `limit` seconds. Raises ChildFailed."""
    try:
        answer = ask("speed", msgspec.msgpack.encode(task), limit=limit)
        speed = msgspec.msgpack.decode(answer, type=DeviceSpeed)
    except msgspec.MsgspecError as error:
        raise ChildFailed(f"gave an invalid answer: {error}") from error
    if not speed.is_sound:
        raise ChildFailed("gave impossible figures")
    return speed


def _better(one: DeviceSpeed, other: DeviceSpeed) -> DeviceSpeed:
    """Combine two measurements: the better value of each figure, and the number of threads in `other`."""

    def faster(a: Seconds, b: Seconds) -> Seconds:
        return tuple(map(min, a, b))

    kernels = {
        name: faster(one.kernels.get(name, seconds), seconds) for name, seconds in other.kernels.items()
    }
    return msgspec.structs.replace(
        other,
        bandwidth=max(one.bandwidth, other.bandwidth),
        kernels=one.kernels | kernels,
        attentions=one.attentions | other.attentions,
        attention=faster(one.attention, other.attention),
        call=min(one.call, other.call),
        layer=min(one.layer, other.layer),
    )


def _buffer(memory: Memory) -> int:
    """Return how many bytes to read: several times the last-level cache, but at most 1/8 of free memory."""
    text = read_text(Path("/sys/devices/system/cpu/cpu0/cache/index3/size")).strip()
    last = int(text[:-1]) * 1024 if text.endswith("K") and text[:-1].isdigit() else 64 * 2**20
    return min(max(USUAL, 4 * last), _LARGEST, memory.available // 8)
