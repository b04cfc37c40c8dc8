"""Memory: how much there is, and how much is available. Swap never counts.

Cached file pages can be reclaimed at once, so they count as free, even those of a model file: plans count the
weights in full, whether or not the file is mapped.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from edgechat.device.cgroup import Group, groups, read_number, read_table, read_text


@dataclass(frozen=True, slots=True)
class Memory:
    """The machine's memory, in bytes."""

    total: int
    """Installed memory."""
    available: int
    """Bytes that this process and its children can allocate now without swapping or being killed."""
    bound: str | None = None
    """What further limits memory, such as 'the control group /sys/fs/cgroup/a'; None if nothing does."""
    limit: int | None = None
    """How many bytes `bound` allows; None if there is no bound."""


def read_memory(root: Path = Path("/"), limits: dict[str, int] | None = None) -> Memory:
    """Return this machine's current memory.

    root: the folder that contains /proc and /sys. limits: as returned by `resource_limits`; defaults to this
    process's limits.
    """
    table = read_table(root / "proc/meminfo")
    if "MemTotal" not in table or "MemAvailable" not in table:
        import psutil

        memory = psutil.virtual_memory()
        return Memory(memory.total, memory.available)
    bounds: list[tuple[int, str | None, int | None]] = [(table["MemAvailable"] * 1024, None, None)]
    for group in groups("memory", root):
        bounds += _left_in(group, root)
    bounds += _left_of(resource_limits() if limits is None else limits, root)
    available, bound, limit = min(bounds, key=lambda entry: entry[0])
    return Memory(table["MemTotal"] * 1024, max(0, available), bound, limit)


def resource_limits() -> dict[str, int]:
    """Return the limits that `ulimit` has set on this process, in bytes, keyed by option."""
    if sys.platform == "win32":
        return {}
    import resource

    # The limit on resident memory (-m) is left out: Linux has not enforced it since 2.4.30.
    kinds = {"ulimit -v": resource.RLIMIT_AS, "ulimit -d": resource.RLIMIT_DATA}
    soft = {name: resource.getrlimit(kind)[0] for name, kind in kinds.items()}
    return {name: limit for name, limit in soft.items() if limit != resource.RLIM_INFINITY}


def oom_kills(root: Path = Path("/")) -> int | None:
    """Return how many processes Linux has killed since boot because memory ran out, or None if unknown."""
    match = re.search(r"^oom_kill (\d+)$", read_text(root / "proc/vmstat"), re.MULTILINE)
    return int(match[1]) if match else None


def _left_in(group: Group, root: Path) -> Iterator[tuple[int, str, int]]:
    """Yield the bytes left in a control group, its name, and its limit, or nothing if it has no limit."""
    # A process above memory.high is slowed to a crawl instead of killed. In version 1, only the figures whose
    # names start with total_ include a group's children.
    names, current_name, prefix = ["memory.limit_in_bytes"], "memory.usage_in_bytes", "total_"
    if group.version == 2:
        names, current_name, prefix = ["memory.max", "memory.high"], "memory.current", ""
    limits = [limit for name in names if (limit := read_number(group.folder / name)) is not None]
    current = read_number(group.folder / current_name)
    if not limits or current is None:
        return
    stat = read_table(group.folder / "memory.stat")
    cached = stat.get(f"{prefix}inactive_file", 0) + stat.get(f"{prefix}active_file", 0)
    shown = Path("/", group.folder.relative_to(root))
    yield min(limits) - max(0, current - cached), f"the control group {shown}", min(limits)


def _left_of(limits: dict[str, int], root: Path) -> Iterator[tuple[int, str, int]]:
    """Yield the bytes that resource limits leave, assuming that a new worker uses as much as this process."""
    status = read_table(root / "proc/self/status")
    used = {"ulimit -v": status.get("VmSize", 0), "ulimit -d": status.get("VmData", 0)}
    for name, limit in limits.items():
        yield limit - used[name] * 1024, f"the limit set by {name}", limit
