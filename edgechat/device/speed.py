"""A device's speed, as measured by `planner/estimate/kernel_probe_child.py` and stored on disk."""

from __future__ import annotations

import contextlib
import importlib.metadata
import math
from typing import get_args

import msgspec

from edgechat.base import paths
from edgechat.base.errors import FolderError
from edgechat.device.cpu import Cpu, choose_threads, thread_counts
from edgechat.native import amx
from edgechat.native.params import AttentionKind

ROWS = (1, 2, 4, 8, 16, 64, 512)
"""Numbers of tokens in the measured calls. llama.cpp uses different kernels depending on this number."""
ATTENTION_ROWS = (1, 8, 512)
"""Numbers of tokens in the measured attention calls: one token, a draft to verify, and part of a prompt."""
_FILE = "speed.json"
_MAX_ENTRIES = 16
_MAX_FILE_BYTES = 1 << 20
"""Maximum size of the file, in bytes: ten times what edgechat writes."""

Seconds = tuple[float, ...]
"""One value for each entry in `ROWS`."""


class ThreadTrial(msgspec.Struct, frozen=True, array_like=True):
    """Times measured with a certain number of threads, in seconds."""

    threads: int
    decode: float
    """How long a call with one token takes."""
    prefill: float
    """How long a call with many tokens takes."""

    @property
    def score(self) -> float:
        """Geometric mean of the two times; lower is better."""
        return math.sqrt(self.decode * self.prefill)


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """A connection to a device on another machine."""

    up: float
    """Bytes per second to the device."""
    down: float
    """Bytes per second from the device."""
    round_trip: float
    """Time for a round trip, in seconds."""


class AttentionShape(msgspec.Struct, frozen=True, kw_only=True):
    """The shape of a layer's attention, which determines its time along with the number of tokens."""

    heads: int
    kv_heads: int
    keys: int
    """Number of channels per head."""
    values: int

    def __str__(self) -> str:
        """Return the name used in the file."""
        size = f"{self.keys}" if self.keys == self.values else f"{self.keys}:{self.values}"
        return f"{self.heads}/{self.kv_heads} heads of {size}"


class AttentionCurve(msgspec.Struct, frozen=True, array_like=True):
    """How long one layer's attention takes in calls with `ATTENTION_ROWS` tokens, in seconds."""

    first: Seconds
    """Time taken with an empty cache."""
    per_cell: Seconds
    """Time added by each cell in the cache."""


def attention_name(shape: AttentionShape, cache_type: str, kind: AttentionKind) -> str:
    """Return the key of a curve in `DeviceSpeed.attentions`."""
    return f"{shape}, {cache_type}, {kind}"


class DeviceSpeed(msgspec.Struct, frozen=True, kw_only=True):
    """How long a device takes for the parts of a call, by number of tokens."""

    bandwidth: float
    """Bytes of weights that the device reads from its memory per second."""
    kernels: dict[str, Seconds]
    """Seconds to multiply one cached weight by all rows of a call, keyed by GGML type."""
    attention: Seconds
    """Seconds per floating-point operation in attention."""
    attentions: dict[str, AttentionCurve] = {}
    """Curves for the shapes of loaded models, keyed by `attention_name`. For others, `attention` is used."""
    unmeasured: dict[str, str] = {}
    """Why a shape's curves could not be measured, keyed by shape name. The attempt is not repeated."""
    call: float = 0.0
    """Seconds of overhead per call."""
    layer: float = 0.0
    """Seconds of overhead per layer."""
    threads: int = 1
    trials: tuple[ThreadTrial, ...] = ()
    """The results for the thread counts that were compared."""
    disturbed: bool = False
    """Whether the measured speed is too low because other programs used a lot of CPU time."""
    link: Link | None = None
    """The connection to another machine; None for a device in this one."""
    measured: float = 0.0
    """Time of the measurement, in seconds since 1970; 0 for an estimate."""

    def knows(self, shape: AttentionShape) -> bool:
        """Return True if both kinds of attention were measured for a shape, with an f16 cache."""
        return all(attention_name(shape, "f16", kind) in self.attentions for kind in get_args(AttentionKind))

    def lacks(self, shape: AttentionShape) -> bool:
        """Return True if no attempt has been made to measure this shape."""
        return not self.knows(shape) and str(shape) not in self.unmeasured

    @property
    def is_sound(self) -> bool:
        """Whether the figures are plausible. Users may edit the file, and plans divide by these figures."""
        curves = [*self.kernels.values(), self.attention]
        beside = [seconds for curve in self.attentions.values() for seconds in (curve.first, curve.per_cell)]
        return (
            1e6 < self.bandwidth < 1e15
            and all(len(curve) == len(ROWS) for curve in curves)
            and all(1e-18 < seconds < 1.0 for curve in curves for seconds in curve)
            and all(len(curve) == len(ATTENTION_ROWS) for curve in beside)
            and all(0 <= seconds < 10.0 for curve in beside for seconds in curve)
            and all(0 <= seconds < 1.0 for seconds in (self.call, self.layer))
            and 0 < self.threads < 4096
        )


def best_threads(cpu: Cpu, speed: DeviceSpeed | None) -> tuple[int, str]:
    """Return the best number of threads, measured if possible, and the reason as a sentence."""
    if speed is None or len(speed.trials) < 2:
        return choose_threads(cpu)
    counts, chosen = thread_counts(cpu), speed.threads
    by_count = {trial.threads: trial.score for trial in speed.trials}
    if by_count.get(chosen, 0.0) <= 0:
        return choose_threads(cpu)
    others = [
        f"{count} ({counts[count]}) take{'s' * (count == 1)} {score / by_count[chosen]:.2f} times as long"
        for count, score in by_count.items()
        if count != chosen and count in counts
    ]
    threads = f"{chosen} thread{'s' * (chosen != 1)}, {counts.get(chosen, 'as measured')}"
    return chosen, f"{threads}: as measured on this machine, {' and '.join(others)}."


def cached_speed(cpu: Cpu, device: str = "") -> DeviceSpeed | None:
    """Return the stored speed of this CPU or of an accelerator used with it, or None if not measured.

    Takes a millisecond.
    """
    speed = _read().get(_key(cpu, device))
    return speed if speed is not None and speed.is_sound else None


def store_speed(speed: DeviceSpeed, cpu: Cpu, device: str = "") -> None:
    """Store a measurement. Failures are ignored, because the speed can be measured again."""
    key = _key(cpu, device)
    others = {name: other for name, other in _read().items() if name != key}
    newest = dict(sorted(others.items(), key=lambda pair: pair[1].measured)[-_MAX_ENTRIES + 1 :])
    with contextlib.suppress(OSError, FolderError):
        data = msgspec.json.encode({**newest, key: speed})
        paths.replace(paths.cache_dir() / _FILE, msgspec.json.format(data))


def _read() -> dict[str, DeviceSpeed]:
    try:
        data = paths.read_bytes(paths.cache_dir() / _FILE, _MAX_FILE_BYTES)
        return msgspec.json.decode(data, type=dict[str, DeviceSpeed])
    except (OSError, FolderError, msgspec.MsgspecError):
        return {}


def _key(cpu: Cpu, device: str) -> str:
    """Return the key for a measurement: the device, the available part of the CPU, and the kernels' build."""
    quota = "" if cpu.quota is None else f", {cpu.quota:g} CPUs"
    counts = f"{len(cpu.usable)} of {cpu.physical} cores, {cpu.logical} threads{quota}"
    try:
        build = importlib.metadata.version("llama-cpp-python")
    except importlib.metadata.PackageNotFoundError:
        build = "?"
    kernels = f"llama-cpp-python {build}", amx.NAME if amx.is_used() else ""
    return " | ".join(filter(None, (device, cpu.name, counts, *kernels)))
