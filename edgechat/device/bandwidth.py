"""How fast the processor reads memory and multiplies: measured once in a child, and kept in the cache folder.

Decoding a token reads every weight once, so memory bandwidth bounds its speed; prefill is arithmetic. The
figures are numpy's, for comparing machines and for a first prediction that real loads then correct.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from edgechat import __version__, paths
from edgechat.device.cgroup import read_text
from edgechat.device.cpu import Cpu, choose_threads
from edgechat.device.memory import Memory
from edgechat.errors import FolderError
from edgechat.process.ask import ChildFailed, ask

TIME_LIMIT = 20.0
"""Seconds for the child, which takes 1 to 1.5 on a machine that has nothing else to do."""
_FILE = "speed.json"
_SMALLEST, _LARGEST = 64 * 2**20, 2**30
_KEPT = 16
_MOST_READ = 1 << 16
"""Bytes of the file: ten times what we write."""


class MemorySpeed(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured, with `threads` threads."""

    bandwidth: float
    """Bytes of memory read in a second."""
    compute: float
    """Floating-point operations in a second, in products of float32 matrices."""
    threads: int
    disturbed: bool = False
    """Other programs took a good part of the processor meanwhile: the machine can do better."""
    measured: float = 0.0
    """When, in seconds since 1970."""


class BandwidthTask(msgspec.Struct, frozen=True):
    """What the child is to measure with."""

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
    """Return what was measured on this processor before; None if nothing was. Takes a millisecond."""
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
    """Return what makes a measurement another one: the processor, how much of it is ours, our version."""
    counts = f"{cpu.physical} cores, {cpu.logical} threads, {choose_threads(cpu)[0]} used"
    return f"{cpu.name} | {counts} | edgechat {__version__}"


def _buffer(memory: Memory, root: Path) -> int:
    """Return how much to read: twice the last cache, as far as memory is there to spare."""
    text = read_text(root / "sys/devices/system/cpu/cpu0/cache/index3/size").strip()
    last = int(text[:-1]) * 1024 if text.endswith("K") and text[:-1].isdigit() else 64 * 2**20
    return max(_SMALLEST, min(_LARGEST, 2 * last, memory.available // 8))
