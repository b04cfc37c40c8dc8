"""Who uses an engine, and its unloading once nobody has for a while."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from typing import Any


class EngineUsers:
    """Counts the users of an engine; true while there are any."""

    def __init__(self, idle_seconds: float, unload: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """unload: called once there has been no user for `idle_seconds`; 0: never."""
        self._idle_seconds = idle_seconds
        self._unload = unload
        self._n = 0
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._unloading: asyncio.Task[None] | None = None

    def __bool__(self) -> bool:
        return self._n > 0

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        """Be a user."""
        self._n += 1
        self._cancel()
        try:
            yield
        finally:
            self._n -= 1
            if not self._n and self._idle_seconds > 0 and not self._closed:
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(self._idle_seconds, self._went_idle)

    def close(self) -> None:
        """Unload no more: the engine is closed."""
        self._closed = True
        self._cancel()

    def _went_idle(self) -> None:
        self._unloading = asyncio.ensure_future(self._unload())

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
