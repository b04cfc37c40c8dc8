"""A server's pool of models: gives requests access to them, and reports their state and metrics.

Each loaded model runs in its own process. `edgechat.server.pool.residency` decides which models are loaded.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from types import TracebackType

import msgspec

from edgechat import settings
from edgechat.base.errors import Draining, EngineError, ModelNotFound
from edgechat.engine.kv.snapshot import Snapshot
from edgechat.engine.protocol import Engine, EngineState
from edgechat.engine.remote.choice import remote_engine, remote_plan
from edgechat.engine.types import CachePolicy, Priority
from edgechat.guide.engine import local_engine
from edgechat.planner.plan import LoadPlan
from edgechat.planner.prepare import prepare
from edgechat.planner.request import DEFAULT_REQUEST, PlanRequest
from edgechat.server.pool.available_models import DEFAULT_NAMES, AvailableModels
from edgechat.server.pool.metrics import Metrics, ModelGauges
from edgechat.server.pool.models import AvailableModel, ModelCard, ModelSlot, ServedModel, State
from edgechat.server.pool.residency import MakeEngine, OnNote, PrepareBeside, ResidencyManager

_NAMES_KEPT = 256
SAVE_SECONDS = 5.0
"""How many seconds an engine may take to save its KV states before it is closed."""
INSPECT_SECONDS = 1.0
"""How many seconds the metrics wait for an engine to answer before they are reported without it."""


class Pool:
    """All models on a server. Bound to one event loop; must be entered before use."""

    def __init__(
        self,
        engines: MakeEngine,
        prepare: PrepareBeside,
        available: AvailableModels,
        *,
        most_waiting: int = 32,
        patience: float = 60.0,
        on_note: OnNote = lambda _note: None,
    ) -> None:
        """most_waiting: places in each queue. patience: how many seconds a load waits for busy models.

        on_note: called when a plan changes, and when an engine crashes.
        """
        self.metrics = Metrics()
        self._available = available
        self._most_waiting = most_waiting
        self._slots: dict[str, ModelSlot] = {}
        self._by_requested_name: dict[str, tuple[ModelSlot, tuple[str, ...]]] = {}
        """Slots and adapters, keyed by requested name. Avoids disk access for requests to a loaded model."""
        self._residency = ResidencyManager(
            self._slots, available.default, self.metrics, engines, prepare, patience=patience, on_note=on_note
        )
        self._draining = False
        self.on_busy: Callable[[bool], None] = lambda _is_busy: None
        """Called with True when the first request arrives, and with False after the last one has ended."""
        self._requests = 0

    async def __aenter__(self) -> Pool:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def names(self) -> list[ModelCard]:
        """Return all models that can be requested. Reads from disk: call it in a thread."""
        return [self._as_loaded(card) for card in self._available.cards()]

    def card(self, name: str) -> ModelCard:
        """Describe a model that clients can request by `name`. Reads from disk. Raises ModelNotFound."""
        return self._as_loaded(self._available.card(self._available.find(name)))

    def _as_loaded(self, card: ModelCard) -> ModelCard:
        slot = self._slots.get(card.id)
        if slot is None or slot.engine is None:
            return card
        plan = slot.engine.plan
        context = plan.context if slot.is_ready else card.context
        model = slot.engine.model
        if model is not None:
            card = msgspec.structs.replace(
                card, sees=model.sees, hears=model.hears, can_switch_thinking=model.can_switch_thinking
            )
        return msgspec.structs.replace(card, loaded=slot.is_ready, kind=plan.kind, context=context)

    @property
    def state(self) -> tuple[State, str]:
        """The state of the server, and a sentence that describes it."""
        slots = list(self._slots.values())
        if self._draining:
            left = sum(slot.taken for slot in slots)
            return "draining", f"The server is shutting down; requests in progress: {left}."
        ready = [slot.id for slot in slots if slot.is_ready]
        loading = next((slot for slot in slots if slot.loading is not None), None)
        trouble = next((slot.trouble for slot in slots if slot.trouble), "")
        if trouble:
            return "degraded", trouble
        if loading is not None and not ready:
            return "loading", f"{loading.id} is being loaded ({loading.progress:.0%})."
        if ready:
            return "ready", f"{' and '.join(ready)} {'are' if len(ready) > 1 else 'is'} loaded."
        return "ready", "No model is loaded; the next request loads one."

    async def metrics_text(self) -> bytes:
        """Return all metrics in Prometheus's text format. Queries every engine."""
        slots = [slot for slot in self._slots.values() if slot.engine is not None]
        return self.metrics.text(await asyncio.gather(*map(_look, slots)))

    @contextlib.asynccontextmanager
    async def serve(
        self, model: str = "", places: int = 1, priority: Priority = "interactive"
    ) -> AsyncIterator[ServedModel]:
        """Take places for a request, load the model if necessary, and yield it.

        Raises QueueFull immediately if too many requests are waiting (the limit for background requests is
        lower), or later if busy models leave no room. Also raises ModelNotFound, ModelFileError, DoesNotFit,
        LoadFailed, EngineCrashed and Draining.
        """
        arrived = time.perf_counter()
        slot, adapters = await self._slot(model)
        self._refuse_if_draining()
        with slot.admitted(places, self._most_waiting, priority), self._busy():
            while not slot.is_ready or slot.claimed:
                await self._load(slot)
            engine = slot.engine
            assert engine is not None
            slot.held += 1
            try:
                with engine.holding():
                    yield ServedModel(slot, engine, self.metrics, arrived, self._load_again, adapters)
            finally:
                slot.held -= 1
                self._residency.request_left(slot)

    async def unload(self, model: str) -> str:
        """Unload a model and return its name. If it is in use, it is unloaded after its last request.

        Raises ModelNotFound.
        """
        slot, _ = await self._slot(model)
        await self._residency.unload(slot)
        return slot.id

    @contextlib.contextmanager
    def _busy(self) -> Iterator[None]:
        self._requests += 1
        if self._requests == 1:
            self.on_busy(True)
        try:
            yield
        finally:
            self._requests -= 1
            if not self._requests and not self._draining:
                self.on_busy(False)

    def refuse(self) -> None:
        """Refuse new requests. Requests that are already running continue."""
        self._draining = True

    async def drain(self, seconds: float) -> bool:
        """Refuse new requests and wait for running ones. Return False if any still run after `seconds`."""
        self.refuse()
        end = time.monotonic() + seconds
        while any(slot.taken for slot in self._slots.values()):
            if time.monotonic() >= end:
                return False
            await asyncio.sleep(0.02)
        return True

    async def close(self) -> None:
        """Save KV states and close every engine. Requests still running end as 'cancelled'."""
        self.refuse()
        for slot in self._slots.values():
            if slot.loading is not None:
                slot.loading.cancel()
        await asyncio.gather(*map(_end, self._slots.values()))
        await self._residency.ended()

    async def _slot(self, model: str) -> tuple[ModelSlot, tuple[str, ...]]:
        """Return the slot for a model, created on its first request, and the adapters in its name.

        Raises ModelNotFound.
        """
        name = model.strip().casefold()
        slot, adapters = self._by_requested_name.get(name, (None, ()))
        if slot is not None and slot.is_ready:
            return slot, adapters
        known, adapters = self._available.default, ()
        if name not in DEFAULT_NAMES:
            known, adapters = await asyncio.to_thread(self._find, model)
        slot = next((one for one in self._slots.values() if one.has_loaded(known)), None)
        if slot is None:
            slot = self._slots.setdefault(known.id, ModelSlot(known))
        self._by_requested_name[name] = slot, adapters
        if len(self._by_requested_name) > _NAMES_KEPT:
            del self._by_requested_name[next(iter(self._by_requested_name))]
        return slot, adapters

    def _find(self, name: str) -> tuple[AvailableModel, tuple[str, ...]]:
        """Return the model and the adapters that NAME or NAME+ADAPTER refers to. Raises ModelNotFound."""
        try:
            return self._available.find(name), ()
        except ModelNotFound:
            model, *adapters = name.split("+")
            if not all((model, *adapters)) or not adapters:
                raise
            return self._available.find(model), tuple(adapter.strip() for adapter in adapters)

    def _refuse_if_draining(self) -> None:
        if self._draining:
            raise Draining(
                "The server is shutting down.", hint="Send the request again when the server is back."
            )

    async def _load(self, slot: ModelSlot) -> None:
        try:
            await self._residency.load(slot)
        except EngineError:
            self._refuse_if_draining()
            raise

    async def _load_again(self, slot: ModelSlot) -> None:
        """Load a model again if its engine was unloaded just as an admitted request reached it."""
        while not slot.is_ready:
            await self._load(slot)


async def _end(slot: ModelSlot) -> None:
    if slot.engine is None:
        return
    try:
        if not slot.taken:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(slot.engine.persist(), SAVE_SECONDS)
    finally:
        await slot.engine.close()


async def _look(slot: ModelSlot) -> ModelGauges:
    assert slot.engine is not None
    snapshot = None
    if slot.is_ready:
        with contextlib.suppress(TimeoutError):
            snapshot = await asyncio.wait_for(slot.engine.inspect(), INSPECT_SECONDS)
    seen = snapshot if isinstance(snapshot, Snapshot) else None
    return ModelGauges(slot.id, slot.engine.plan, slot.is_ready, slot.taken, seen)


def real_pool(
    default: str,
    request: PlanRequest = DEFAULT_REQUEST,
    *,
    on_note: Callable[[str], None] = lambda _note: None,
) -> Pool:
    """Return the pool for a server. Reads from disk.

    default: name or path of the model for requests that do not name one. request: planning options for every
    model. Its draft, `anyway` and runtime quantization apply only to the default model; its adapters are also
    applied to any other model that they fit. Raises ModelNotFound, ModelFileError or SettingsError.
    """
    user_settings = settings.load()
    available = AvailableModels(default)
    return Pool(
        partial(_engine, 60 * user_settings.idle_minutes, cache_policy(user_settings.state_bytes)),
        partial(prepare_model, request, available.default.wanted),
        available,
        on_note=on_note,
    )


def cache_policy(disk_bytes: int | None) -> CachePolicy:
    """Return the cache policy for a server's workers.

    Programs send requests without pauses, so nothing is computed in advance. Grammars are prepared while the
    model loads, so that the first answer with a schema does not delay other answers.
    """
    return CachePolicy(settle=False, disk_bytes=disk_bytes, grammars=True)


def _engine(
    idle_seconds: float,
    policy: CachePolicy,
    plan: LoadPlan,
    on_note: Callable[[str], None],
    on_state: Callable[[EngineState], None],
) -> Engine:
    if plan.remote is not None:
        return remote_engine(
            plan, settings.load(), idle_seconds=idle_seconds, on_note=on_note, on_state=on_state
        )
    return local_engine(
        plan, idle_seconds=idle_seconds, cache_policy=policy, on_state=on_state, on_note=on_note
    )


def prepare_model(
    request: PlanRequest,
    default: str,
    model: str,
    *,
    staying: Sequence[LoadPlan] = (),
    leaving: Sequence[LoadPlan] = (),
) -> LoadPlan:
    """Plan how to load a model, or how to reach it on another server.

    request, default: see `real_pool`. staying, leaving: see `prepare`.
    """
    if model != default:
        usual = request.adapters or ()
        adapters = None if usual else request.adapters
        request = msgspec.structs.replace(
            request,
            draft=None,
            anyway=False,
            adapters=adapters,
            usual_adapters=usual,
            runtime_quant=None,
        )
    if staying:  # unload other models instead of loading this one anyway
        request = msgspec.structs.replace(request, anyway=False)
    remote = remote_plan(model, settings.load(), request)
    return remote or prepare(model, request, may_embed=True, staying=staying, leaving=leaving)
