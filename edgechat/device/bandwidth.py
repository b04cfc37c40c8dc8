"""Memory bandwidth and compute speed of the CPU: measured once, in a child, and cached on disk.

Decoding a token reads every weight once, so memory bandwidth bounds its speed; prefill is arithmetic. The
figures are numpy's, for comparing machines and for a first prediction that real loads then correct.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import msgspec

from edgechat import __version__
from edgechat.base import paths
from edgechat.base.errors import FolderError
from edgechat.base.process.ask import ChildFailed, ask
from edgechat.device.cgroup import read_text
from edgechat.device.cpu import Cpu, choose_threads
from edgechat.device.memory import Memory

TIME_LIMIT = 20.0
"""Time limit of the child in seconds; on an idle machine it takes 1 to 1.5."""
_FILE = "speed.json"
_SMALLEST, _LARGEST = 64 * 2**20, 2**30
_MAX_ENTRIES = 16
_MAX_FILE_BYTES = 1 << 16
"""Ten times what edgechat writes."""


class MemorySpeed(msgspec.Struct, frozen=True, kw_only=True):
    """A measurement with `threads` threads."""

    bandwidth: float
    """Memory bandwidth, in bytes per second."""
    compute: float
    """Floating-point operations per second, in products of float32 matrices."""
    threads: int
    disturbed: bool = False
    """Other programs used much of the CPU during the measurement, so the machine is faster."""
    measured: float = 0.0
    """When it was measured, in seconds since 1970."""


class BandwidthTask(msgspec.Struct, frozen=True):
    """The request to the child."""

    threads: int
    buffer: int
    """Bytes to read, larger than all caches."""


def cached_speed(cpu: Cpu) -> MemorySpeed | None:
    """Return the stored measurement of this CPU, or None. Takes a millisecond."""
    speed = _read_cache().get(_key(cpu))
    # Anybody may have edited the file, and plans divide by these.
    sensible = speed is not None and 1e6 < speed.bandwidth < 1e15 and 1e6 < speed.compute < 1e18
    return speed if sensible else None


def measure_speed(
    cpu: Cpu, memory: Memory, *, before: MemorySpeed | None = None, root: Path = Path("/")
) -> MemorySpeed:
    """Measure for about a second, and cache the result. Raises ChildFailed.

    before: an earlier measurement, which counts where it is better than a disturbed one.
    """
    task = BandwidthTask(choose_threads(cpu)[0], _buffer(memory, root))
    try:
        answer = ask("speed", msgspec.msgpack.encode(task), limit=TIME_LIMIT)
        speed = msgspec.msgpack.decode(answer, type=MemorySpeed)
    except msgspec.MsgspecError as error:
        raise ChildFailed(f"gave an invalid answer: {error}") from error
    if before is not None and speed.disturbed:
        best = {name: max(getattr(before, name), getattr(speed, name)) for name in ("bandwidth", "compute")}
        speed = msgspec.structs.replace(speed, **best)
    speed = msgspec.structs.replace(speed, measured=time.time())
    others = {key: other for key, other in _read_cache().items() if key != _key(cpu)}
    newest = dict(sorted(others.items(), key=lambda pair: pair[1].measured)[-_MAX_ENTRIES + 1 :])
    with contextlib.suppress(OSError, FolderError):
        data = msgspec.json.encode({**newest, _key(cpu): speed})
        paths.replace(paths.cache_dir() / _FILE, msgspec.json.format(data))
    return speed


def _read_cache() -> dict[str, MemorySpeed]:
    """Return the stored measurements by key. If the file cannot be read, speed is measured again."""
    try:
        data = paths.read_bytes(paths.cache_dir() / _FILE, _MAX_FILE_BYTES)
        return msgspec.json.decode(data, type=dict[str, MemorySpeed])
    except (OSError, FolderError, msgspec.MsgspecError):
        return {}


def _key(cpu: Cpu) -> str:
    """Return the key of a measurement: the CPU, the part of it that is available, edgechat's version."""
    counts = f"{cpu.physical} cores, {cpu.logical} threads, {choose_threads(cpu)[0]} used"
    return f"{cpu.name} | {counts} | edgechat {__version__}"


def _buffer(memory: Memory, root: Path) -> int:
    """Return how many bytes to read: twice the last-level cache, at most an eighth of the free memory."""
    text = read_text(root / "sys/devices/system/cpu/cpu0/cache/index3/size").strip()
    last = int(text[:-1]) * 1024 if text.endswith("K") and text[:-1].isdigit() else 64 * 2**20
    return max(_SMALLEST, min(_LARGEST, 2 * last, memory.available // 8))
