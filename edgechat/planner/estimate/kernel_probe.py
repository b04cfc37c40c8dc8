"""The probe: how fast llama.cpp's own kernels are on this machine, for each type of weights.

A child process loads models of zeros that it makes up, and times calls of 1 to 512 tokens. What depends on a
type, on the layers, on attention and on memory is told apart by their shapes (`kernel_probe_child.py`); short
calls read more weights than caches hold. Accelerators are measured in the same way. What attention takes
depends on a model's heads: flash and plain attention are measured for those of a model when it is planned.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from pathlib import Path

import msgspec

from edgechat.base.process.ask import ChildFailed, ask
from edgechat.device.cgroup import read_text
from edgechat.device.cpu import Cpu, thread_counts
from edgechat.device.memory import Memory
from edgechat.device.speed import AttentionCurve, AttentionShape, DeviceSpeed, Seconds, store_speed
from edgechat.models.formats.quants import GgmlType
from edgechat.planner.estimate.rates import in_order

TIME_LIMIT = 60.0
"""Seconds; for the common types a machine of two cores takes 6 to 8, with the oldest kernels 27."""
ATTENTION_LIMIT = 30.0
"""Seconds for one shape of attention; on an idle machine of two cores it takes two."""
_MAX_SHAPES = 32
"""Shapes of attention that are stored, the newest."""
USUAL = 2**27
"""Bytes of weights that kernels compute with: they gain nothing from caches that hold all of them."""
COMMON = (GgmlType.Q4_K, GgmlType.Q6_K, GgmlType.Q8_0, GgmlType.Q4_0, GgmlType.Q5_K, GgmlType.F16)
"""Types that are measured at once; others when a model has them."""
_LARGEST = 2**29


class ProbeTask(msgspec.Struct, frozen=True, kw_only=True):
    """The request to the child."""

    threads: tuple[int, ...]
    """Numbers to compare, the most likely first."""
    types: tuple[GgmlType, ...]
    buffer: int
    """Bytes to read for the bandwidth, more than all caches hold."""
    shape: AttentionShape | None = None
    """Attention to measure, on the processor."""
    before: DeviceSpeed | None = None
    """What is known already: then only the types and the shape are measured, with its number of threads."""
    device: str = ""
    """llama.cpp's name of an accelerator; none: the processor."""
    rpc: tuple[str, ...] = ()
    """Servers whose devices may be named."""
    is_processor: bool = False
    """Whether that device is a processor: many rows of large matrices would take it long."""


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
    root: Path = Path("/"),
) -> DeviceSpeed:
    """Measure for some seconds, and store the result. Raises ChildFailed.

    before: what was measured earlier. It counts where it is better than a disturbed measurement; if it was
    not disturbed itself, only what it lacks of `types` is measured. device: llama.cpp's name of an
    accelerator; key: what it is stored by.
    """
    extends = before is not None and not before.disturbed
    task = ProbeTask(
        threads=tuple(thread_counts(cpu)),
        types=tuple(
            kind for kind in types if before is None or not extends or kind.name not in before.kernels
        ),
        buffer=_buffer(memory, root),
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


def measure_attention(
    cpu: Cpu, memory: Memory, shape: AttentionShape, before: DeviceSpeed, *, root: Path = Path("/")
) -> DeviceSpeed:
    """Return the speed of the processor with that of a shape of attention, and store it.

    If it cannot be measured the speed says why, and models are planned as if nothing were known of it.
    """
    task = ProbeTask(
        threads=(before.threads,),
        types=(),
        buffer=_buffer(memory, root),
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
    """Return the curves of the last shapes that were measured, this one last."""
    names = dict.fromkeys(name.split(",")[0] for name in speed.attentions)
    kept = [*(name for name in names if name != str(shape)), str(shape)][-_MAX_SHAPES:]
    curves = speed.attentions.items()
    return {name: curve for one in kept for name, curve in curves if name.split(",")[0] == one}


def _answer(task: ProbeTask, limit: float) -> DeviceSpeed:
    """Return what the child has measured within `limit` seconds. Raises ChildFailed."""
    try:
        answer = ask("speed", msgspec.msgpack.encode(task), limit=limit)
        speed = msgspec.msgpack.decode(answer, type=DeviceSpeed)
    except msgspec.MsgspecError as error:
        raise ChildFailed(f"gave an invalid answer: {error}") from error
    if not speed.is_sound:
        raise ChildFailed("gave figures that are not possible")
    return speed


def _better(one: DeviceSpeed, other: DeviceSpeed) -> DeviceSpeed:
    """Return the faster figures of both, with the threads of the latter."""

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


def _buffer(memory: Memory, root: Path) -> int:
    """Return how many bytes to read: several times the last-level cache, at most an eighth of free memory."""
    text = read_text(root / "sys/devices/system/cpu/cpu0/cache/index3/size").strip()
    last = int(text[:-1]) * 1024 if text.endswith("K") and text[:-1].isdigit() else 64 * 2**20
    return min(max(USUAL, 4 * last), _LARGEST, memory.available // 8)
