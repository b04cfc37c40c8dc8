"""Machine load: a speed measured while other programs run says little about the machine.

Counters are read before and after some work: the CPU time used by its threads and by other programs, and the
time that threads waited for a CPU. Counters that the system lacks are ignored.
"""

from __future__ import annotations

import os
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from edgechat.device.cgroup import read_number, read_text

Disturbance = Literal["busy", "battery", "hot"]
"""busy: other programs were running. battery: the machine ran on battery. hot: heat throttled the CPU."""

_OWN = 0.8
"""Minimum fraction of the time for which computing threads get a CPU on an idle machine."""
_OTHERS, _LEAST_OTHERS = 0.15, 0.5
"""Other programs may use this fraction of all CPUs, or this many CPUs, whichever is more."""
_WAITED = 0.5
"""Maximum fraction of the time for which some thread waits for a CPU on an idle machine."""
_BUSY_NOW = 30.0
"""Maximum percentage of the last ten seconds with some thread waiting for a CPU (Linux's `some avg10`)."""
_QUEUED = 0.75
"""Maximum number of runnable threads per CPU over the last minute; used if the percentage is unavailable."""


@dataclass(frozen=True, slots=True)
class LoadSample:
    """Counter values in seconds. CPU times are totals for all CPUs."""

    wall: float
    own: float
    """CPU time used by this process."""
    busy: float
    """CPU time used by all processes."""
    waited: float | None = None
    """Time during which some thread waited for a CPU."""
    throttled: int | None = None
    """Number of times that heat has throttled the CPU."""


def moment(root: Path = Path("/")) -> LoadSample:
    """Read the counters. Takes 0.1 ms. root: the folder that contains /proc and /sys."""
    import psutil

    times = psutil.cpu_times()._asdict()
    busy = sum(times.get(name, 0.0) for name in ("user", "nice", "system", "irq", "softirq", "steal"))
    waited = re.search(r"^some .*total=(\d+)", read_text(root / "proc/pressure/cpu"), re.MULTILINE)
    return LoadSample(
        wall=time.perf_counter(),
        own=time.process_time(),
        busy=busy,
        waited=int(waited[1]) / 1e6 if waited else None,
        throttled=read_number(root / "sys/devices/system/cpu/cpu0/thermal_throttle/package_throttle_count"),
    )


def disturbance(before: LoadSample, after: LoadSample, threads: int | None) -> Disturbance | None:
    """Return what may have slowed down this process's work between two samples.

    threads: how many threads were computing the whole time; None if an accelerator did the computing.
    """
    wall, own = max(after.wall - before.wall, 1e-9), after.own - before.own
    others = (after.busy - before.busy - own) / wall
    waited = (after.waited - before.waited) / wall if after.waited and before.waited else 0.0
    starved = threads is not None and own < _OWN * wall * threads
    if starved or others > max(_LEAST_OTHERS, _OTHERS * (os.cpu_count() or 1)) or waited > _WAITED:
        return "busy"
    if on_battery():
        return "battery"
    return "hot" if (after.throttled or 0) > (before.throttled or 0) else None


def on_battery() -> bool:
    """Return True if this machine is running on battery power."""
    if not _may_have_battery():
        return False
    import psutil

    battery = psutil.sensors_battery() if hasattr(psutil, "sensors_battery") else None
    return battery is not None and battery.power_plugged is False


def _may_have_battery() -> bool:
    """Return True if there may be a battery, without importing psutil."""
    return sys.platform != "linux" or any(Path("/sys/class/power_supply").glob("BAT*"))


def slowed_now(root: Path = Path("/")) -> tuple[Disturbance, ...]:
    """Return what is slowing this machine down right now, except heat, which shows only under load."""
    busy: tuple[Disturbance, ...] = ("busy",) if _is_busy(root) else ()
    return (*busy, "battery") if on_battery() else busy


def _is_busy(root: Path) -> bool:
    stalled = re.search(r"^some avg10=([\d.]+)", read_text(root / "proc/pressure/cpu"), re.MULTILINE)
    if stalled:
        return float(stalled[1]) > _BUSY_NOW
    if not hasattr(os, "getloadavg"):
        return False
    return os.getloadavg()[0] > _QUEUED * (os.cpu_count() or 1)
