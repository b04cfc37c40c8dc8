"""Owners: the processes that write replies or have loaded models, and whether they are still running.

A database in WAL mode belongs to one machine, so a process id is enough. If a live writer is mistaken for a
dead one (in a container with separate process ids), the writer's next update corrects the reply.
"""

from __future__ import annotations

import os

import msgspec

_SAME_START = 2.0
"""Seconds by which a process's start time may shift when the clock is adjusted."""


class Owner(msgspec.Struct, frozen=True):
    """A process. Its start time (seconds since 1970) distinguishes it from later ones with the same id."""

    pid: int
    started: float


def this_process() -> Owner:
    """Return this process as an Owner."""
    return Owner(os.getpid(), _started(os.getpid()) or 0.0)


def alive(owner: Owner) -> bool:
    """Return whether the process is still running."""
    started = _started(owner.pid)
    return started is not None and abs(started - owner.started) < _SAME_START


def _started(pid: int) -> float | None:
    import psutil  # 15 ms, needed only once there is a store to open

    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return float(process.create_time())
    except psutil.Error:
        return None
