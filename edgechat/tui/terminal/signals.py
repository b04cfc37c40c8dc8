"""Signals that end the app: in the same way as Ctrl+Q, and by force if that hangs."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable

_QUIT_TIMEOUT = 5.0
"""Seconds for a graceful shutdown. Writing to a terminal that is gone can block forever."""


class EndSignals:
    """Turns SIGINT, SIGTERM and SIGHUP into one call of `quit`; Windows knows only the first two."""

    def __init__(self, quit: Callable[[], Awaitable[None]]) -> None:
        self._quit = quit
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            if hasattr(signal, name):
                # Not the loop's own handlers: those never run while the loop is blocked.
                signal.signal(getattr(signal, name), self._on_signal)

    def _on_signal(self, number: int, _: object) -> None:
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, _QUIT_TIMEOUT)  # SIGALRM ends the process
        self._loop.call_soon_threadsafe(self._start_quitting, number)

    def _start_quitting(self, number: int) -> None:
        if self._task is None:
            self._task = self._loop.create_task(self._quit_and_hang_up(number))

    async def _quit_and_hang_up(self, number: int) -> None:
        # `kill -HUP` leaves the terminal, whose modes must not stay as they are.
        is_gone = number == getattr(signal, "SIGHUP", None) and not os.isatty(0)
        await self._quit()
        if is_gone:
            restore_hang_up()
            os.kill(os.getpid(), signal.SIGHUP)  # there is no terminal left to restore


def restore_hang_up() -> None:
    """Restore the default action of SIGHUP, which ends the process: call it when everything is saved."""
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
