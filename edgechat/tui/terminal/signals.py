"""Signals that end the app: by the same door as Ctrl+Q, and by force where that is stuck."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable

_PATIENCE = 5.0
"""Seconds for the orderly way out. A terminal that is gone can block its writer for ever."""


class EndSignals:
    """Turns SIGINT, SIGTERM and SIGHUP into a call of `leave`, once; Windows knows only the first two."""

    def __init__(self, leave: Callable[[], Awaitable[None]]) -> None:
        self._leave = leave
        self._loop = asyncio.get_running_loop()
        self._leaving: asyncio.Task[None] | None = None
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            if hasattr(signal, name):
                # Not the loop's own handlers: those never run where the loop is blocked.
                signal.signal(getattr(signal, name), self._arrived)

    def _arrived(self, number: int, _: object) -> None:
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, _PATIENCE)  # SIGALRM ends the process
        self._loop.call_soon_threadsafe(self._begin, number)

    def _begin(self, number: int) -> None:
        if self._leaving is None:
            self._leaving = self._loop.create_task(self._end(number))

    async def _end(self, number: int) -> None:
        await self._leave()
        if number == getattr(signal, "SIGHUP", None):
            hang_up()


def heed_hang_up() -> None:
    """Let a hang-up end the process at once: for when everything is saved."""
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def hang_up() -> None:
    """End as a program that knows no SIGHUP ends: there is no terminal left to restore."""
    heed_hang_up()
    os.kill(os.getpid(), signal.SIGHUP)
