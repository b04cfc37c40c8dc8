"""Where models go: one load at a time, beside the others where the memory carries both, else in their place.

Nothing but this loads a model, or unloads one for another or for a client, so that each plan knows what the
others take. A model that does not fit beside the others, or would be the lesser for it, has idle ones
unloaded first, those that were not used for longest. Busy ones are waited for, unless a lesser plan fits
beside them.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

from edgechat.base.errors import DoesNotFit, EdgechatError, EngineCrashed, EngineError, QueueFull
from edgechat.engine.protocol import Engine, EngineState
from edgechat.engine.types import Priority
from edgechat.planner.machine import is_lesser
from edgechat.planner.plan import LoadPlan
from edgechat.server.pool.available_models import AvailableModel
from edgechat.server.pool.metrics import Metrics

CLAIM_SHARE = 0.25
"""The last share of the patience, in which busy models take no new requests: somebody has to give way."""

OnNote = Callable[[str], None]
MakeEngine = Callable[[LoadPlan, OnNote, Callable[[EngineState], None]], Engine]
"""From a plan to its engine, which tells what it has to change about the plan, and what it does."""


class PrepareBeside(Protocol):
    """From a model to its plan, beside loads that stay or after others have ended. Called in a thread."""

    def __call__(self, model: str, *, staying: Sequence[LoadPlan], leaving: Sequence[LoadPlan]) -> LoadPlan:
        """Return the plan. Raises DoesNotFit, and others of errors.py."""
        ...


class ResidencyManager:
    """The memory that all models of a server share. Belongs to one event loop."""

    def __init__(
        self,
        slots: Mapping[str, ModelSlot],
        default: AvailableModel,
        metrics: Metrics,
        engines: MakeEngine,
        prepare: PrepareBeside,
        *,
        patience: float,
        on_note: OnNote,
    ) -> None:
        """`slots`: all models that may be loaded; more may come. `patience`: see Pool."""
        self._slots, self._default, self._metrics = slots, default, metrics
        self._engines, self._prepare = engines, prepare
        self._patience, self._on_note = patience, on_note
        self._load_lock = asyncio.Lock()
        self._changed = asyncio.Event()
        self._ending: set[asyncio.Task[None]] = set()
        """Models that are being unloaded after the last request has left."""

    def request_left(self, slot: ModelSlot) -> None:
        """Hear that a request is no longer with its engine; whoever waits for room looks again."""
        self._changed.set()
        if slot.leaving and not slot.held:
            ending = asyncio.create_task(self.unload(slot))
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    async def ended(self) -> None:
        """Wait until the models are unloaded that requests left last."""
        await asyncio.gather(*self._ending)

    async def load(self, slot: ModelSlot) -> None:
        """Wait for the load of a slot's model, which all that wait for it share; the last one stops it."""
        if slot.loading is None or slot.loading.done():
            slot.loading = asyncio.create_task(self._place(slot))
            slot.loading.add_done_callback(slot.loaded)
            slot.awaiting = 0
        task = slot.loading
        slot.awaiting += 1
        try:
            await asyncio.wait([task])
        finally:
            if slot.loading is task:
                slot.awaiting -= 1
                if not slot.awaiting:
                    slot.loading = None
                    task.cancel()
        if task.cancelled():
            raise EngineError("The load was cancelled.")
        task.result()

    async def unload(self, slot: ModelSlot) -> None:
        """Unload a model that nobody uses; one in use is unloaded by the last request that leaves it."""
        if slot.loading is not None or slot.held:
            slot.leaving = True
            return
        slot.leaving = False
        async with self._load_lock:
            if slot.takes_memory and not slot.held:
                try:
                    await _unload(slot)
                finally:
                    slot.claimed = False

    async def _place(self, slot: ModelSlot) -> None:
        """Load a model, once no other load goes on and there is room for it."""
        slot.progress = 0.0
        async with self._load_lock:
            if slot.is_ready:
                return
            try:
                await self._plan(slot)
                assert slot.engine is not None
                began = time.perf_counter()
                await slot.engine.start(partial(setattr, slot, "progress"))
            except EdgechatError as error:
                self._failed(slot, error)
                raise
            finally:
                for one in self._slots.values():
                    one.claimed = False
            self._metrics.loaded(slot.id, time.perf_counter() - began)
            slot.trouble = ""

    def _failed(self, slot: ModelSlot, error: EdgechatError) -> None:
        self._metrics.load_failed(slot.id)
        if isinstance(error, EngineCrashed):
            self._metrics.crashed(slot.id)
        # That a model some client names is damaged or too large is no trouble of the server's.
        if slot.known == self._default and not isinstance(error, QueueFull):
            slot.trouble = f"{slot.id} could not be loaded: {error.message}"

    def _on_engine_state(self, slot: ModelSlot, state: EngineState) -> None:
        """Hear what an engine does."""
        self._changed.set()
        if state is EngineState.STOPPED and slot.engine is not None and slot.engine.has_crashed:
            self._metrics.crashed(slot.id)
            slot.trouble = f"The engine of {slot.id} has crashed; the next request starts it again."
            self._on_note(f"{slot.trouble} Its log: {slot.engine.log_path}")

    async def _plan(self, slot: ModelSlot) -> None:
        """Make room for a model, and let its engine have the plan for that."""
        if slot.engine is not None and slot.engine.has_crashed and not self._others(slot):
            return  # it knows best what to do with less of
        plan = await self._plan_with_room(slot)
        if slot.engine is None:
            slot.engine = self._engines(plan, self._on_note, partial(self._on_engine_state, slot))
        else:
            slot.engine.plan = plan

    def _others(self, slot: ModelSlot) -> list[ModelSlot]:
        return [one for one in self._slots.values() if one is not slot and one.takes_memory]

    async def _plan_with_room(self, slot: ModelSlot) -> LoadPlan:
        """Return the plan of a model for what is free, having unloaded others where it needs that."""
        end = time.monotonic() + self._patience
        while others := self._others(slot):
            best = await self._plan_beside(slot, leaving=others)
            try:
                beside = await self._plan_beside(slot, staying=others)
            except DoesNotFit:
                beside = None
            if beside is not None and not is_lesser(beside, best):
                return beside
            idle = _longest_idle(others)
            if idle is None and beside is not None:
                return beside
            if idle is None:
                await self._wait_for_idle(slot, others, end)
                idle = _longest_idle(others)
            if idle is not None:
                await _unload(idle)
        return await self._plan_beside(slot)

    async def _plan_beside(
        self, slot: ModelSlot, *, staying: Sequence[ModelSlot] = (), leaving: Sequence[ModelSlot] = ()
    ) -> LoadPlan:
        stay, leave = ([one.engine.plan for one in slots if one.engine] for slots in (staying, leaving))
        return await asyncio.to_thread(self._prepare, slot.known.wanted, staying=stay, leaving=leave)

    async def _wait_for_idle(self, slot: ModelSlot, others: Sequence[ModelSlot], end: float) -> None:
        """Wait until one of the others is idle, or gone. Raises QueueFull where the patience ends before."""
        claim = end - CLAIM_SHARE * self._patience
        while all(one.held and one.takes_memory for one in others):
            now = time.monotonic()
            if now >= end:
                raise _no_room(slot, others)
            for one in others:
                one.claimed = now >= claim
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), (claim if now < claim else end) - now)


def _longest_idle(slots: Sequence[ModelSlot]) -> ModelSlot | None:
    """Return the one that was not used for longest, of those that nobody uses now; None: all are in use."""
    idle = [one for one in slots if one.takes_memory and not one.held]
    return min(idle, key=lambda one: one.last_used, default=None)


async def _unload(slot: ModelSlot) -> None:
    """Unload an idle model; nobody new gets to it meanwhile, and half of that is not left behind."""
    assert slot.engine is not None
    slot.claimed = True
    ending = asyncio.ensure_future(slot.engine.unload())
    try:
        await asyncio.shield(ending)
    except asyncio.CancelledError:
        await asyncio.wait([ending])
        raise


def _no_room(slot: ModelSlot, others: Sequence[ModelSlot]) -> QueueFull:
    busy = " and ".join(one.id for one in others)
    seconds = max(one.seconds_until_free() for one in others)
    return QueueFull(
        f"{slot.id} does not fit into memory together with {busy}, which is in use.",
        hint=f"Try again in {seconds} seconds.",
        seconds=seconds,
    )


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
