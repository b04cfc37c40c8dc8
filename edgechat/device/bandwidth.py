"""Memory bandwidth and compute speed of the CPU: measured once, in a child, and cached on disk.

Decoding a token reads every weight once, so memory bandwidth bounds its speed; prefill is arithmetic. The
figures are numpy's, for comparing machines and for a first prediction that real loads then correct.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
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
_KEPT = 16
_MOST_READ = 1 << 16
"""Maximum size of the file: ten times what edgechat writes."""


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


@dataclass(frozen=True, slots=True)
class _Cache:
    """The cache file, key -> MemorySpeed. If it cannot be read, speed is measured again."""

    path: Path

    def read(self) -> dict[str, MemorySpeed]:
        try:
            return msgspec.json.decode(paths.read_bytes(self.path, _MOST_READ), type=dict[str, MemorySpeed])
        except (OSError, msgspec.MsgspecError):
            return {}

    def write(self, key: str, speed: MemorySpeed) -> None:
        others = {name: one for name, one in self.read().items() if name != key}
        kept = dict(sorted(others.items(), key=lambda pair: pair[1].measured)[-_KEPT + 1 :])
        with contextlib.suppress(OSError):
            paths.replace(self.path, msgspec.json.format(msgspec.json.encode({**kept, key: speed})))


def cached_speed(cpu: Cpu) -> MemorySpeed | None:
    """Return the stored measurement of this CPU, or None. Takes a millisecond."""
    try:
        found = _cache().read().get(_key(cpu))
    except FolderError:
        return None
    # A file that anybody may have edited: a plan divides by these.
    sensible = found is not None and 1e6 < found.bandwidth < 1e15 and 1e6 < found.compute < 1e18
    return found if sensible else None


def measure_speed(
    cpu: Cpu, memory: Memory, *, before: MemorySpeed | None = None, root: Path = Path("/")
) -> MemorySpeed:
    """Measure for about a second, and keep the result. Raises ChildFailed.

    before: what was measured earlier, which counts where it is better than a disturbed measurement.
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
    with contextlib.suppress(FolderError):
        _cache().write(_key(cpu), speed)
    return speed


def _cache() -> _Cache:
    return _Cache(paths.cache_dir() / _FILE)


def _key(cpu: Cpu) -> str:
    """Return the key of a measurement: the CPU, the part of it that is available, edgechat's version."""
    counts = f"{cpu.physical} cores, {cpu.logical} threads, {choose_threads(cpu)[0]} used"
    return f"{cpu.name} | {counts} | edgechat {__version__}"


def _buffer(memory: Memory, root: Path) -> int:
    """Return how much to read: twice the last cache, as far as memory is there to spare."""
    text = read_text(root / "sys/devices/system/cpu/cpu0/cache/index3/size").strip()
    last = int(text[:-1]) * 1024 if text.endswith("K") and text[:-1].isdigit() else 64 * 2**20
    return max(_SMALLEST, min(_LARGEST, 2 * last, memory.available // 8))
