"""The answers to one request, computed at once; their events in the order in which they come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from types import TracebackType

from edgechat.engine.types import ChatRequest, Finished, RequestEvent
from edgechat.errors import EngineError
from edgechat.server.models import Models, Served

Ask = Callable[[Served, int], ChatRequest]
"""From the model that answers, and which of the answers it is, to what the engine is asked."""


class Choices:
    """Runs them from `async with` until its end; what still runs then is stopped within a step."""

    def __init__(self, models: Models, name: str, ask: Ask, count: int) -> None:
        self.model = ""
        """The name of what answers; '' before it is loaded."""
        self._models = models
        self._name = name
        self._ask = ask
        self._count = count
        self._events: list[tuple[int, RequestEvent]] = []
        self._error: BaseException | None = None
        self._news = asyncio.Event()
        self._work: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Choices:
        self._work = asyncio.create_task(self._run())
        self._work.add_done_callback(self._done)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._work is not None
        self._work.cancel()
        await asyncio.wait([self._work])

    async def more(self, seconds: float | None = None) -> list[tuple[int, RequestEvent]]:
        """Return what has come since the last call, waiting for something so long.

        Nothing where nothing came. Raises what went wrong with any of them, once the rest is handed out.
        """
        if not self._events and not self._is_over:
            self._news.clear()
            try:
                async with asyncio.timeout(seconds):
                    await self._news.wait()
            except TimeoutError:
                return []
        events, self._events = self._events, []
        if not events and self._error is not None:
            raise self._error
        return events

    @property
    def ended(self) -> bool:
        """Whether there is nothing more to come."""
        return self._is_over and not self._events and self._error is None

    @property
    def _is_over(self) -> bool:
        return self._work is not None and self._work.done()

    async def _run(self) -> None:
        async with self._models.serve(self._name, places=self._count) as served:
            self.model = served.model.name
            async with asyncio.TaskGroup() as group:
                for choice in range(self._count):
                    group.create_task(self._follow(served, choice))

    async def _follow(self, served: Served, choice: int) -> None:
        last: RequestEvent | None = None
        async with aclosing(served.stream(self._ask(served, choice))) as events:
            async for last in events:
                self._events.append((choice, last))
                self._news.set()
        if not isinstance(last, Finished):
            raise EngineError("The engine ended an answer without a word.")

    def _done(self, work: asyncio.Task[None]) -> None:
        error = None if work.cancelled() else work.exception()
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        self._error = error
        self._news.set()
