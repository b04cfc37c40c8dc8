"""Where models go: one load at a time, beside the others where the memory carries both, else in their place.

Nothing but this loads a model or unloads one for another, so that each plan knows what the others take. A
model that does not fit beside the others, or would be the lesser for it, has idle ones unloaded first, those
that were not used for longest. Busy ones are waited for, unless a lesser plan fits beside them.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

from edgechat.base.errors import DoesNotFit, EdgechatError, EngineCrashed, EngineError, QueueFull
from edgechat.engine.protocol import Engine, EngineState
from edgechat.planner.placement.residents import is_lesser
from edgechat.planner.plan import LoadPlan
from edgechat.server.metrics import Metrics
from edgechat.server.pool.available_models import AvailableModel
from edgechat.server.pool.model_slot import ModelSlot

CLAIMING = 0.25
"""The last share of the patience, in which busy models take no new requests: somebody has to give way."""

Told = Callable[[str], None]
MakeEngine = Callable[[LoadPlan, Told, Callable[[EngineState], None]], Engine]
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
        lanes: Mapping[str, ModelSlot],
        default: AvailableModel,
        metrics: Metrics,
        engines: MakeEngine,
        prepare: PrepareBeside,
        *,
        patience: float,
        on_note: Told,
    ) -> None:
        """`lanes`: all models that may be loaded; more may come. `patience`: see Pool."""
        self._lanes, self._default, self._metrics = lanes, default, metrics
        self._engines, self._prepare = engines, prepare
        self._patience, self._on_note = patience, on_note
        self._placing = asyncio.Lock()
        self._left = asyncio.Event()

    def left(self) -> None:
        """Hear that a request is no longer with its engine; whoever waits for room looks again."""
        self._left.set()

    async def load(self, lane: ModelSlot) -> None:
        """Wait for the load of a lane's model, which all that wait for it share; the last one stops it."""
        if lane.loading is None or lane.loading.done():
            lane.loading = asyncio.create_task(self._place(lane))
            lane.loading.add_done_callback(lane.loaded)
            lane.awaiting = 0
        task = lane.loading
        lane.awaiting += 1
        try:
            await asyncio.wait([task])
        finally:
            if lane.loading is task:
                lane.awaiting -= 1
                if not lane.awaiting:
                    lane.loading = None
                    task.cancel()
        if task.cancelled():
            raise EngineError("The load was cancelled.")
        task.result()

    async def _place(self, lane: ModelSlot) -> None:
        """Load a model, once no other load goes on and there is room for it."""
        lane.progress = 0.0
        async with self._placing:
            if lane.is_ready:
                return
            try:
                await self._plan(lane)
                assert lane.engine is not None
                began = time.perf_counter()
                await lane.engine.start(partial(setattr, lane, "progress"))
            except EdgechatError as error:
                self._failed(lane, error)
                raise
            finally:
                for one in self._lanes.values():
                    one.claimed = False
            self._metrics.loaded(lane.id, time.perf_counter() - began)
            lane.trouble = ""

    def _failed(self, lane: ModelSlot, error: EdgechatError) -> None:
        self._metrics.load_failed(lane.id)
        if isinstance(error, EngineCrashed):
            self._metrics.crashed(lane.id)
        # That a model some client names is damaged or too large is no trouble of the server's.
        if lane.known == self._default and not isinstance(error, QueueFull):
            lane.trouble = f"{lane.id} could not be loaded: {error.message}"

    def _became(self, lane: ModelSlot, state: EngineState) -> None:
        """Hear what an engine does."""
        self._left.set()
        if state is EngineState.STOPPED and lane.engine is not None and lane.engine.has_crashed:
            self._metrics.crashed(lane.id)
            lane.trouble = f"The engine of {lane.id} has crashed; the next request starts it again."
            self._on_note(f"{lane.trouble} Its log: {lane.engine.log_path}")

    async def _plan(self, lane: ModelSlot) -> None:
        """Make room for a model, and let its engine have the plan for that."""
        if lane.engine is not None and lane.engine.has_crashed and not self._others(lane):
            return  # it knows best what to do with less of
        plan = await self._with_room(lane)
        if lane.engine is None:
            lane.engine = self._engines(plan, self._on_note, partial(self._became, lane))
        else:
            lane.engine.plan = plan

    def _others(self, lane: ModelSlot) -> list[ModelSlot]:
        return [one for one in self._lanes.values() if one is not lane and one.takes_memory]

    async def _with_room(self, lane: ModelSlot) -> LoadPlan:
        """Return the plan of a model for what is free, having unloaded others where it needs that."""
        end = time.monotonic() + self._patience
        while others := self._others(lane):
            best = await self._planned(lane, leaving=others)
            try:
                beside = await self._planned(lane, staying=others)
            except DoesNotFit:
                beside = None
            if beside is not None and not is_lesser(beside, best):
                return beside
            idle = _longest_idle(others)
            if idle is None and beside is not None:
                return beside
            if idle is None:
                await self._somebody_leaves(lane, others, end)
                idle = _longest_idle(others)
            if idle is not None:
                await _unload(idle)
        return await self._planned(lane)

    async def _planned(
        self, lane: ModelSlot, *, staying: Sequence[ModelSlot] = (), leaving: Sequence[ModelSlot] = ()
    ) -> LoadPlan:
        stay, leave = ([one.engine.plan for one in lanes if one.engine] for lanes in (staying, leaving))
        return await asyncio.to_thread(self._prepare, lane.known.wanted, staying=stay, leaving=leave)

    async def _somebody_leaves(self, lane: ModelSlot, others: Sequence[ModelSlot], end: float) -> None:
        """Wait until one of the others is idle, or gone. Raises QueueFull where the patience ends before."""
        claim = end - CLAIMING * self._patience
        while all(one.held and one.takes_memory for one in others):
            now = time.monotonic()
            if now >= end:
                raise _no_room(lane, others)
            for one in others:
                one.claimed = now >= claim
            self._left.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._left.wait(), (claim if now < claim else end) - now)


def _longest_idle(lanes: Sequence[ModelSlot]) -> ModelSlot | None:
    """Return the one that was not used for longest, of those that nobody uses now; None: all are in use."""
    idle = [one for one in lanes if one.takes_memory and not one.held]
    return min(idle, key=lambda one: one.last_used, default=None)


async def _unload(lane: ModelSlot) -> None:
    """Unload an idle model; nobody new gets to it meanwhile, and half of that is not left behind."""
    assert lane.engine is not None
    lane.claimed = True
    ending = asyncio.ensure_future(lane.engine.unload())
    try:
        await asyncio.shield(ending)
    except asyncio.CancelledError:
        await asyncio.wait([ending])
        raise


def _no_room(lane: ModelSlot, others: Sequence[ModelSlot]) -> QueueFull:
    busy = " and ".join(one.id for one in others)
    seconds = max(one.seconds_until_free() for one in others)
    return QueueFull(
        f"{lane.id} does not fit into memory together with {busy}, which is in use.",
        hint=f"Try again in {seconds} seconds.",
        seconds=seconds,
    )
