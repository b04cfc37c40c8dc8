"""An event loop in a thread of its own, so that the main thread is free for input() and for Ctrl+C."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class Background:
    """The loop. It ends with the program."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True, name="engine").start()

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start work; its result can be waited for."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do work, and return what it does or raise what it raises."""
        return self.begin(work).result()
