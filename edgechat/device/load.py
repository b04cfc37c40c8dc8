"""The load of this machine: a speed measured while other programs run says little about the machine.

Counters are looked at before and after some work: how much of the time its threads had a processor, what
others took, how long somebody waited for one. Where a system has no such counter it says nothing.
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
"""Other programs were running; the machine was on battery power; the CPU was throttled by heat."""

_OWN = 0.8
"""Share of the time that threads which compute get of their processors on a quiet machine, at least."""
_OTHERS, _LEAST_OTHERS = 0.15, 0.5
"""Share of all CPUs that other programs may use, or the number of CPUs."""
_WAITED = 0.5
"""Share of the time in which somebody may wait for a processor."""
_BUSY_NOW = 30.0
"""Percent of the last ten seconds in which somebody waited for a processor (Linux' `some avg10`)."""
_QUEUED = 0.75
"""Programs that want to run for each processor, over the last minute, where nothing else is known."""


@dataclass(frozen=True, slots=True)
class LoadSample:
    """What the counters said; seconds, of all processors together where they are of processors."""

    wall: float
    own: float
    """That this process has computed."""
    busy: float
    """That all processors were busy."""
    waited: float | None = None
    """In which somebody waited for a processor."""
    throttled: int | None = None
    """How often the processor has slowed down not to overheat."""


def moment(root: Path = Path("/")) -> LoadSample:
    """Look at the counters now; a tenth of a millisecond. root: where /proc and /sys are looked for."""
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
    """Say what else may have slowed down what this process did between two moments.

    threads: that computed all the while; None where an accelerator did.
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
    """Return whether this machine runs on battery power."""
    if not _may_have_battery():
        return False
    import psutil

    battery = psutil.sensors_battery() if hasattr(psutil, "sensors_battery") else None
    return battery is not None and battery.power_plugged is False


def _may_have_battery() -> bool:
    """Say at a glance whether there may be one: planning on a machine without does not wait for psutil."""
    return sys.platform != "linux" or any(Path("/sys/class/power_supply").glob("BAT*"))


def slowed_now(root: Path = Path("/")) -> tuple[Disturbance, ...]:
    """Say what slows this machine down now; that it is hot shows only while it computes."""
    busy: tuple[Disturbance, ...] = ("busy",) if _is_busy(root) else ()
    return (*busy, "battery") if on_battery() else busy


def _is_busy(root: Path) -> bool:
    stalled = re.search(r"^some avg10=([\d.]+)", read_text(root / "proc/pressure/cpu"), re.MULTILINE)
    if stalled:
        return float(stalled[1]) > _BUSY_NOW
    if not hasattr(os, "getloadavg"):
        return False
    return os.getloadavg()[0] > _QUEUED * (os.cpu_count() or 1)
