"""Residency: loads one model at a time, alongside other models or in their place.

All loading and unloading happens here, so that each plan accounts for the memory of the other models. If a
model does not fit alongside the others, or only with a worse plan, idle models are unloaded first, starting
with the least recently used. If all are busy, the load waits for one to become idle, unless a worse plan
fits alongside them.
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
from edgechat.planner.machine import is_lesser
from edgechat.planner.plan import LoadPlan
from edgechat.server.pool.metrics import Metrics
from edgechat.server.pool.models import AvailableModel, ModelSlot

CLAIM_SHARE = 0.25
"""Final fraction of the patience, in which busy models accept no new requests, so that one becomes idle."""

OnNote = Callable[[str], None]
MakeEngine = Callable[[LoadPlan, OnNote, Callable[[EngineState], None]], Engine]
"""Creates the engine for a plan. The engine reports changes to the plan, and changes in its own state."""


class PrepareBeside(Protocol):
    """Plans a load alongside models that stay, or in place of models that leave. Called in a thread."""

    def __call__(self, model: str, *, staying: Sequence[LoadPlan], leaving: Sequence[LoadPlan]) -> LoadPlan:
        """Return the plan. Raises DoesNotFit and other EdgechatErrors."""
        ...


class ResidencyManager:
    """Loads and unloads a server's models, which share its memory. Bound to one event loop."""

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
        """slots: all models that can be loaded; more can be added later. patience, on_note: see Pool."""
        self._slots, self._default, self._metrics = slots, default, metrics
        self._engines, self._prepare = engines, prepare
        self._patience, self._on_note = patience, on_note
        self._load_lock = asyncio.Lock()
        self._changed = asyncio.Event()
        self._ending: set[asyncio.Task[None]] = set()
        """Unloads in progress that no other code waits for."""

    def request_left(self, slot: ModelSlot) -> None:
        """Record that a request has released its engine, so that waiting loads check for room again."""
        self._changed.set()
        if slot.leaving and not slot.held:
            ending = asyncio.create_task(self.unload(slot))
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    async def ended(self) -> None:
        """Wait for unloads in progress to finish."""
        await asyncio.gather(*self._ending)

    async def load(self, slot: ModelSlot) -> None:
        """Load a slot's model. Callers share one load, which is cancelled once all of them are cancelled."""
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
        """Unload a model. If it is in use, it is unloaded after its last request."""
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
        """Load a model once any other load has ended and there is room for it."""
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
        # A client that names a damaged or oversized model must not degrade the server.
        if slot.known == self._default and not isinstance(error, QueueFull):
            slot.trouble = f"{slot.id} could not be loaded: {error.message}"

    def _on_engine_state(self, slot: ModelSlot, state: EngineState) -> None:
        self._changed.set()
        if state is EngineState.STOPPED and slot.engine is not None and slot.engine.has_crashed:
            self._metrics.crashed(slot.id)
            slot.trouble = f"The engine of {slot.id} has crashed; the next request starts it again."
            self._on_note(f"{slot.trouble} Its log: {slot.engine.log_path}")

    async def _plan(self, slot: ModelSlot) -> None:
        """Make room for a model, and give its engine a plan."""
        if slot.engine is not None and slot.engine.has_crashed and not self._others(slot):
            return  # the engine falls back by itself
        plan = await self._plan_with_room(slot)
        if slot.engine is None:
            slot.engine = self._engines(plan, self._on_note, partial(self._on_engine_state, slot))
        else:
            slot.engine.plan = plan

    def _others(self, slot: ModelSlot) -> list[ModelSlot]:
        return [one for one in self._slots.values() if one is not slot and one.takes_memory]

    async def _plan_with_room(self, slot: ModelSlot) -> LoadPlan:
        """Return a plan for loading a model into free memory, unloading other models first if necessary."""
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
        """Wait until one of `others` is idle or unloaded. Raises QueueFull when the patience runs out."""
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
    """Return the least recently used idle model, or None if all are in use."""
    idle = [one for one in slots if one.takes_memory and not one.held]
    return min(idle, key=lambda one: one.last_used, default=None)


async def _unload(slot: ModelSlot) -> None:
    """Unload an idle model, even if cancelled. New requests wait until it has been unloaded."""
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
    verb = "are" if len(others) > 1 else "is"
    seconds = max(one.seconds_until_free() for one in others)
    return QueueFull(
        f"{slot.id} does not fit into memory alongside {busy}, which {verb} in use.",
        hint=f"Try again in {seconds} seconds.",
        seconds=seconds,
    )
