"""The models of a server: loaded when they are asked for, two at once only where the memory carries both.

One process stands for each loaded model. One load goes on at a time, so that each plan knows what the others
take. A model that does not fit beside the others, or would be the lesser for it, has idle ones unloaded
first, those that were not used for longest; busy ones are waited for, and take no new requests meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Literal, Protocol

import msgspec

from edgechat.engine.process import EngineState
from edgechat.engine.types import ChatRequest, Embedded, Finished, ModelInfo, RequestEvent
from edgechat.errors import DoesNotFit, Draining, EdgechatError, EngineCrashed, EngineError, QueueFull
from edgechat.planner.others import is_lesser
from edgechat.planner.plan import LoadPlan
from edgechat.server.lane import Engine, Lane
from edgechat.server.metrics import Look, Metrics
from edgechat.server.shelf import DEFAULT_NAMES, Known, ModelCard

State = Literal["loading", "ready", "degraded"]
_NAMES_KEPT = 256
_LOOKING = 1.0
"""Seconds that a look into an engine may take; without it the rest is told all the same."""

Told = Callable[[str], None]
MakeEngine = Callable[[LoadPlan, Told, Callable[[EngineState], None]], Engine]
"""From a plan to its engine, which tells what it has to change about the plan, and what it does."""


class Prepare(Protocol):
    """From a model to its plan, beside loads that stay or after others have ended. Called in a thread."""

    def __call__(self, model: str, *, staying: Sequence[LoadPlan], leaving: Sequence[LoadPlan]) -> LoadPlan:
        """Return the plan. Raises DoesNotFit, and others of errors.py."""
        ...


class Names(Protocol):
    """What clients may ask for; `edgechat.server.shelf.Shelf` is one. Called in threads."""

    @property
    def default(self) -> Known:
        """The model of who asks for none."""
        ...

    def find(self, name: str) -> Known:
        """Return the model that a name means. Raises ModelNotFound."""
        ...

    def cards(self) -> list[ModelCard]:
        """Return what may be asked for."""
        ...


class Served:
    """A loaded model, for as long as one request needs it."""

    def __init__(self, lane: Lane, engine: Engine, metrics: Metrics, arrived: float) -> None:
        assert engine.model is not None
        self.plan: LoadPlan = engine.plan
        self.model: ModelInfo = engine.model
        self._lane, self._engine = lane, engine
        self._metrics, self._arrived = metrics, arrived

    async def stream(self, request: ChatRequest) -> AsyncGenerator[RequestEvent, None]:
        """Answer a request; the events end after a Finished, or with an EdgechatError.

        Leaving the iteration early stops the request.
        """
        meter = self._metrics.meter(self._lane.id, self._arrived)
        try:
            async with contextlib.aclosing(self._engine.stream(request)) as events:
                async for event in events:
                    meter.take(event)
                    if isinstance(event, Finished):
                        self._lane.trouble = ""
                    yield event
        except BaseException as error:
            meter.broke_off("failed" if isinstance(error, Exception) else "cancelled")
            raise

    async def embed(self, request_id: str, texts: tuple[str | tuple[int, ...], ...]) -> Embedded | None:
        """Make an embedding of each text, or of its tokens; None where it was cancelled.

        Raises EdgechatError.
        """
        found = await self._engine.embed(request_id, texts)
        if found is not None:
            self._metrics.embedded(self._lane.id, found)
            self._lane.trouble = ""
        return found


class Pool:
    """All models of a server. Belongs to one event loop; entered before its first use."""

    def __init__(
        self,
        engines: MakeEngine,
        prepare: Prepare,
        shelf: Names,
        *,
        most_waiting: int = 32,
        patience: float = 60.0,
        on_note: Told = lambda _note: None,
    ) -> None:
        """`most_waiting`: requests beyond those that run, for each model. `patience`: seconds that a model
        waits for room while others are busy. `on_note` hears what had to be changed about a plan.
        """
        self.metrics = Metrics()
        self._engines, self._prepare, self._shelf = engines, prepare, shelf
        self._most_waiting, self._patience = most_waiting, patience
        self._on_note = on_note
        self._lanes: dict[str, Lane] = {}
        self._asked_as: dict[str, Lane] = {}
        """The same by what clients call them, so that the disk is not searched for a model that is loaded."""
        self._placing = asyncio.Lock()
        self._left = asyncio.Event()
        self._draining = False

    async def __aenter__(self) -> Pool:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # What there is.

    def names(self) -> list[ModelCard]:
        """Return what may be asked for. Reads the disk: call it in a thread."""
        return [self._as_loaded(card) for card in self._shelf.cards()]

    def _as_loaded(self, card: ModelCard) -> ModelCard:
        lane = self._lanes.get(card.id)
        if lane is None or lane.engine is None:
            return card
        plan = lane.engine.plan
        context = plan.context if lane.is_ready else card.context
        kind: Literal["chat", "embedding"] = "embedding" if plan.embeddings else "chat"
        return msgspec.structs.replace(card, loaded=lane.is_ready, kind=kind, context=context)

    @property
    def state(self) -> tuple[State, str]:
        """How it goes, and a sentence about it."""
        lanes = list(self._lanes.values())
        ready = [lane.id for lane in lanes if lane.is_ready]
        loading = next((lane for lane in lanes if lane.loading is not None), None)
        trouble = next((lane.trouble for lane in lanes if lane.trouble), "")
        if trouble:
            return "degraded", trouble
        if loading is not None and not ready:
            return "loading", f"{loading.id} is being loaded ({loading.progress:.0%})."
        if ready:
            return "ready", f"{' and '.join(ready)} {'are' if len(ready) > 1 else 'is'} loaded."
        return "ready", "No model is loaded; the next request loads one."

    async def metrics_text(self) -> bytes:
        """Return all that is counted, in Prometheus' text format, with a look into each engine."""
        lanes = [lane for lane in self._lanes.values() if lane.engine is not None]
        return self.metrics.text(await asyncio.gather(*map(_look, lanes)))

    # Requests.

    @contextlib.asynccontextmanager
    async def serve(self, model: str = "", places: int = 1) -> AsyncIterator[Served]:
        """Let so many requests in at once, and load the model if it is not loaded.

        Raises QueueFull at once where too many wait, or later where busy models leave no room in time;
        ModelNotFound, ModelFileError, DoesNotFit, LoadFailed, EngineCrashed or Draining.
        """
        arrived = time.perf_counter()
        lane = await self._lane(model)
        self._refuse_if_draining()
        with lane.admitted(places, self._most_waiting):
            while not lane.is_ready or lane.claimed:
                await self._load(lane)
            engine = lane.engine
            assert engine is not None
            lane.held += 1
            try:
                with engine.holding():
                    yield Served(lane, engine, self.metrics, arrived)
            finally:
                lane.held -= 1
                self._left.set()

    async def start(self, model: str = "") -> None:
        """Load a model ahead of its first request. Raises as `serve` does."""
        async with self.serve(model):
            pass

    def refuse(self) -> None:
        """Take no more requests; those that are here go on."""
        self._draining = True

    async def drain(self, seconds: float) -> bool:
        """Take no more requests, and wait so long for those that are here; say whether all have ended."""
        self.refuse()
        end = time.monotonic() + seconds
        while any(lane.taken for lane in self._lanes.values()):
            if time.monotonic() >= end:
                return False
            await asyncio.sleep(0.02)
        return True

    async def close(self) -> None:
        """End every engine, and with it what still runs (reason 'cancelled')."""
        self.refuse()
        for lane in self._lanes.values():
            if lane.loading is not None:
                lane.loading.cancel()
        engines = [lane.engine for lane in self._lanes.values() if lane.engine is not None]
        await asyncio.gather(*(engine.close() for engine in engines))

    async def _lane(self, model: str) -> Lane:
        """Return the lane of a model; of one that nobody has asked for, a new one. Raises ModelNotFound."""
        name = model.strip().casefold()
        lane = self._asked_as.get(name)
        if lane is not None and lane.is_ready:
            return lane
        default = name in DEFAULT_NAMES
        known = self._shelf.default if default else await asyncio.to_thread(self._shelf.find, model)
        lane = self._lanes.setdefault(known.id, Lane(known))
        self._asked_as[name] = lane
        if len(self._asked_as) > _NAMES_KEPT:
            del self._asked_as[next(iter(self._asked_as))]
        return lane

    def _refuse_if_draining(self) -> None:
        if self._draining:
            raise Draining("The server is ending.", hint="Send the request again when it is back.")

    # Loads.

    async def _load(self, lane: Lane) -> None:
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
            self._refuse_if_draining()
            raise EngineError("The load was stopped.")
        task.result()

    async def _place(self, lane: Lane) -> None:
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
            self.metrics.loaded(lane.id, time.perf_counter() - began)
            for one in self._lanes.values():
                if one is lane or not one.taken:
                    one.trouble = ""

    def _failed(self, lane: Lane, error: EdgechatError) -> None:
        self.metrics.load_failed(lane.id)
        if isinstance(error, EngineCrashed):
            self.metrics.crashed(lane.id)
        # That a model some client names is damaged or too large is no trouble of the server's.
        own = lane.known == self._shelf.default and not isinstance(error, QueueFull)
        if own or isinstance(error, EngineError):
            lane.trouble = f"{lane.id} could not be loaded: {error.message}"

    def _became(self, lane: Lane, state: EngineState) -> None:
        """Hear what an engine does."""
        if state is EngineState.STOPPED and lane.engine is not None and lane.engine.has_crashed:
            self.metrics.crashed(lane.id)
            lane.trouble = f"The engine of {lane.id} has crashed; the next request starts it again."

    async def _plan(self, lane: Lane) -> None:
        """Make room for a model, and let its engine have the plan for that."""
        others = any(one.is_ready for one in self._lanes.values() if one is not lane)
        if lane.engine is not None and lane.engine.has_crashed and not others:
            return  # it knows best what to do with less of
        plan = await self._with_room(lane)
        if lane.engine is None:
            lane.engine = self._engines(plan, self._on_note, partial(self._became, lane))
        else:
            lane.engine.plan = plan

    async def _with_room(self, lane: Lane) -> LoadPlan:
        """Return the plan of a model for what is free, having unloaded others where it needs that."""
        end = time.monotonic() + self._patience
        while True:
            others = [one for one in self._lanes.values() if one is not lane and one.is_ready]
            best = await self._planned(lane, leaving=others)
            if not others:
                return best
            try:
                beside = await self._planned(lane, staying=others)
            except DoesNotFit:
                beside = None
            if beside is not None and not is_lesser(beside, best):
                return beside
            for one in others:
                one.claimed = True
            idle = [one for one in others if not one.held]
            if idle:
                longest = min(idle, key=lambda one: one.last_used)
                assert longest.engine is not None
                await longest.engine.unload()
            elif not await self._somebody_leaves(end):
                if beside is not None:
                    return beside
                raise _no_room(lane, others)

    async def _planned(
        self, lane: Lane, *, staying: Sequence[Lane] = (), leaving: Sequence[Lane] = ()
    ) -> LoadPlan:
        stay, leave = ([one.engine.plan for one in lanes if one.engine] for lanes in (staying, leaving))
        return await asyncio.to_thread(self._prepare, lane.known.wanted, staying=stay, leaving=leave)

    async def _somebody_leaves(self, end: float) -> bool:
        """Wait until a request has ended; False where that takes too long."""
        self._left.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._left.wait(), max(0.0, end - time.monotonic()))
            return True
        return False


async def _look(lane: Lane) -> Look:
    assert lane.engine is not None
    snapshot = None
    if lane.is_ready:
        with contextlib.suppress(TimeoutError):
            snapshot = await asyncio.wait_for(lane.engine.inspect(), _LOOKING)
    return Look(lane.id, lane.engine.plan, lane.is_ready, lane.taken, snapshot)


def _no_room(lane: Lane, others: Sequence[Lane]) -> QueueFull:
    busy = " and ".join(one.id for one in others)
    seconds = max(one.seconds_until_free() for one in others)
    return QueueFull(
        f"{lane.id} does not fit into the memory beside {busy}, which is answering.",
        hint=f"Try again in {seconds} seconds.",
        seconds=seconds,
    )
