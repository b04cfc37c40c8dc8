"""One model of the pool: its engine, who is here for it, and how soon a place is free."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edgechat.base.errors import QueueFull
from edgechat.engine.protocol import Engine, EngineState
from edgechat.engine.types import Priority
from edgechat.server.pool.available_models import AvailableModel

_PLACES = 4
"""Places of a model that was not planned yet."""
_RECENT_SECONDS = 60.0
"""Seconds that tell how fast requests end."""
_UNKNOWN = 5
"""Seconds to wait where nobody knows."""
_LONGEST = 120


class ModelSlot:
    """The way of requests to one model. Belongs to one event loop."""

    def __init__(self, known: AvailableModel) -> None:
        self.known = known
        self.engine: Engine | None = None
        """None until it is planned for the first time."""
        self.taken = 0
        """Places of all requests that are here."""
        self.in_background = 0
        """Those of them that requests in the background have."""
        self.held = 0
        """Requests that are with the engine: it is not unloaded meanwhile."""
        self.claimed = False
        """Whether it has to make room for another model: nobody new gets to the engine."""
        self.leaving = False
        """Whether a client wants it to be unloaded, once nobody uses it."""
        self.loading: asyncio.Task[None] | None = None
        self.awaiting = 0
        """Who waits for that."""
        self.progress = 0.0
        """Of the load, from 0 to 1."""
        self.trouble = ""
        """What went wrong last, as a sentence; '' once it works again."""
        self.last_used = 0.0
        self._ended: deque[float] = deque(maxlen=64)

    @property
    def id(self) -> str:
        """What clients call the model."""
        return self.known.id

    @property
    def is_ready(self) -> bool:
        """Whether the model is loaded."""
        return self.engine is not None and self.engine.state is EngineState.READY

    @property
    def takes_memory(self) -> bool:
        """Whether the model is loaded, or on its way in or out."""
        return self.engine is not None and self.engine.state is not EngineState.STOPPED

    def has_loaded(self, known: AvailableModel) -> bool:
        """Return whether a model is loaded here; of several quantizations the planner has chosen one."""
        if self.engine is None or not self.is_ready or Path(self.engine.plan.model_path) != known.path:
            return False
        return self.known.identity[1] == known.identity[1]

    @property
    def places(self) -> int:
        """Requests that run at once."""
        return self.engine.plan.n_seq_max if self.engine is not None else _PLACES

    @contextmanager
    def admitted(self, places: int, most_waiting: int, priority: Priority = "interactive") -> Iterator[None]:
        """Take places for a request. Raises QueueFull where so many wait already.

        Half of all places are kept for interactive requests: those in the background never fill the queue.
        """
        behind = places if priority == "background" else 0
        most = self.places + most_waiting
        too_many = max(self.taken + places - most, self.in_background + behind - most // 2 if behind else 0)
        if self.taken and too_many > 0:
            raise self._full(too_many, priority)
        self.taken += places
        self.in_background += behind
        try:
            yield
        finally:
            self.taken -= places
            self.in_background -= behind
            self.last_used = time.monotonic()
            self._ended.extend([self.last_used] * places)

    def _full(self, too_many: int, priority: Priority) -> QueueFull:
        seconds = self.seconds_until_free(too_many)
        if priority == "background":
            told = f"{self.in_background} of {self.taken} requests for {self.id} have background priority"
            told = f"{told}, and the remaining places are reserved for interactive requests."
        else:
            told = f"The queue of {self.id} is full: it has {self.taken} requests."
        return QueueFull(told, hint=f"Try again in {seconds} seconds.", seconds=seconds)

    def loaded(self, task: asyncio.Task[None]) -> None:
        """Hear that a load has ended; how, only those that wait for it want to know."""
        if self.loading is task:
            self.loading = None
        if task.cancelled() or task.exception() is not None:
            self.leaving = False

    def seconds_until_free(self, places: int = 1) -> int:
        """Return when so many places are likely to be free, by how fast requests ended lately."""
        now = time.monotonic()
        recent = [one for one in self._ended if now - one < _RECENT_SECONDS]
        if len(recent) < 2:
            return _UNKNOWN
        each = (now - recent[0]) / len(recent)
        return min(max(1, math.ceil(places * each)), _LONGEST)
