"""Asks the engine what it does, as long as somebody looks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from edgechat.engine.protocol import Engine
from edgechat.engine.snapshot import Snapshot

EVERY = 0.5
_LOG_BYTES = 8192


class SnapshotView(Protocol):
    """What shows snapshots."""

    @property
    def is_seen(self) -> bool:
        """Whether it is on the screen now."""
        ...

    def show_snapshot(self, snapshot: Snapshot | None) -> None:
        """Show what the engine does now; None where no model is loaded."""
        ...

    def show_log(self, log: str) -> None:
        """Show the end of the worker's log."""
        ...


class SnapshotPoller:
    """Feeds an engine room twice a second, from `start` to `stop`; both may be called again."""

    def __init__(
        self,
        room: SnapshotView,
        engine: Callable[[], Engine | None],
        chat: Callable[[], str | None] = lambda: None,
        every: float = EVERY,
    ) -> None:
        """engine: the present one, None where there is none yet. chat: the one that is on the screen."""
        self._room = room
        self._engine = engine
        self._chat = chat
        self._every = every
        self._task: asyncio.Task[None] | None = None

    @property
    def runs(self) -> bool:
        """Whether it asks."""
        return self._task is not None

    def start(self) -> None:
        """Begin to ask."""
        if self._task is None:
            self._task = asyncio.ensure_future(self._run())

    def stop(self) -> None:
        """Ask no more."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()

    async def _run(self) -> None:
        while True:
            if self._room.is_seen:
                await self._look()
            await asyncio.sleep(self._every)

    async def _look(self) -> None:
        engine = self._engine()
        if engine is None:
            self._room.show_snapshot(None)
            return
        snapshot = await engine.inspect(self._chat())
        log = await asyncio.to_thread(engine.log_tail, _LOG_BYTES)  # a disk may be slow
        self._room.show_snapshot(snapshot)
        self._room.show_log(log)
