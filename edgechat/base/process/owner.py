"""Which process writes a reply or has loaded a model, to recognize those of processes that have ended.

A database in WAL mode belongs to one machine, so a process id is enough. Should a living writer be taken for
dead (in a container with its own process ids), its next update corrects its reply.
"""

from __future__ import annotations

import os

import msgspec

_SAME_START = 2.0
"""Seconds by which a process's start time may seem to move when the clock is adjusted."""


class Owner(msgspec.Struct, frozen=True):
    """A process; the start time (seconds since 1970) distinguishes it from later ones with the same id."""

    pid: int
    started: float


def this_process() -> Owner:
    """Return the Owner that this process is."""
    return Owner(os.getpid(), _started(os.getpid()) or 0.0)


def alive(owner: Owner) -> bool:
    """Return whether the process still runs."""
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
