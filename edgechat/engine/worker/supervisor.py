"""Supervisor: starts a worker process, streams from it and survives its crashes.

An EngineSupervisor represents one model. The first request starts its worker. Once the worker has been idle
for a while, it is stopped to free all of its memory. The next request starts a new worker, even after a
crash.
"""

# ruff: noqa: D102  (`Engine` documents its methods)

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path

import msgspec

from edgechat.base.errors import (
    EngineCrashed,
    EngineError,
    EngineGone,
    OutOfMemory,
    RemoteWorkerLost,
    RequestRefused,
    ServerRefused,
)
from edgechat.device.remote.workers import why_lost
from edgechat.engine.kv.snapshot import Snapshot
from edgechat.engine.kv.state_files import check_id
from edgechat.engine.protocol import BaseEngine, EngineState, cannot_chat, cannot_embed
from edgechat.engine.types import (
    CachePolicy,
    ChatRequest,
    Embed,
    Embedded,
    Finished,
    ModelInfo,
    RequestEvent,
    Translatable,
    Translate,
    Translated,
)
from edgechat.engine.worker.connection import WorkerConnection, closed, tail
from edgechat.engine.worker.messages import Cancel, Forget
from edgechat.planner.fallback import is_short, plan_reload, refit, replan_for_more
from edgechat.planner.plan import LoadPlan

_CRASHES_ALLOWED = 2
_PERSIST_SECONDS = 10.0  # maximum seconds to wait for chat states to be saved
INSPECT_SECONDS = 5.0  # maximum seconds to wait for a snapshot, which is taken between steps


class EngineSupervisor(BaseEngine):
    """An `Engine` that runs in a worker process.

    A request that has already killed its worker twice raises RequestRefused.
    """

    def __init__(
        self,
        plan: LoadPlan,
        *,
        idle_seconds: float = 600.0,
        cache_policy: CachePolicy = CachePolicy(),  # noqa: B008  (it is frozen)
        replan: Callable[[], LoadPlan] | None = None,
        on_state: Callable[[EngineState], None] | None = None,
        on_note: Callable[[str], None] = lambda _note: None,
    ) -> None:
        """idle_seconds: 0 keeps idle workers running. on_note: called with notes on changes to the plan.

        replan: makes a new plan if more memory is free at a later load. Called in another thread.
        """
        super().__init__(idle_seconds, on_state, on_note)
        self._requested = self._plan = self._loaded_plan = plan
        self._replan = replan
        self._cache_policy = cache_policy
        self._worker: WorkerConnection | None = None
        self._ending: asyncio.Task[None] | None = None
        """Closes the previous worker, even if the task waiting for this has been cancelled."""
        self._log: Path | None = None
        self._loading: set[str] = set()
        self._cancelled: set[str] = set()
        self._crashes: Counter[bytes] = Counter()

    @property
    def plan(self) -> LoadPlan:
        """How the model is loaded, or will be loaded if memory allows. Setting it affects the next load."""
        return self._plan

    @plan.setter
    def plan(self, plan: LoadPlan) -> None:
        self._requested = self._plan = plan

    async def start(self, on_progress: Callable[[float], None] | None = None) -> ModelInfo:
        with self.holding():
            await self._ready(on_progress)
            assert self.model is not None
            return self.model

    async def stream(
        self,
        request: ChatRequest,
        on_progress: Callable[[float], None] | None = None,
        *,
        may_load: bool = True,
    ) -> AsyncGenerator[RequestEvent, None]:
        if self.plan.embeddings:
            raise cannot_chat(self.plan.model_name)
        digest = _digest(msgspec.structs.replace(request, id=""))
        async with self._worker_for(request.id, digest, on_progress, may_load) as worker:
            if worker is None:
                yield Finished.cancelled(request.id)
                return
            # Otherwise, an abandoned generator would only be closed, and its request cancelled, by the
            # garbage collector.
            async with contextlib.aclosing(worker.stream(request)) as events:
                async for event in events:
                    yield event

    async def embed(
        self,
        request_id: str,
        texts: tuple[str | tuple[int, ...], ...],
        on_progress: Callable[[float], None] | None = None,
        *,
        cut: bool = False,
        query: str | None = None,
        may_load: bool = True,
    ) -> Embedded | None:
        if not self.plan.embeddings or self.plan.reranks != (query is not None):
            raise cannot_embed(self.plan.model_name, query)
        request = Embed(request_id, texts, cut, query)
        digest = _digest(msgspec.structs.replace(request, request_id=""))
        async with self._worker_for(request_id, digest, on_progress, may_load) as worker:
            return None if worker is None else await worker.ask(request, Embedded)

    async def translate(
        self,
        request_id: str,
        what: Translatable,
        *,
        bos: bool = False,
        special: bool = False,
        may_load: bool = True,
    ) -> Translated | None:
        digest = _digest(Translate("", what, bos, special))
        async with self._worker_for(request_id, digest, None, may_load) as worker:
            request = Translate(request_id, what, bos, special)
            return None if worker is None else await worker.ask(request, Translated)

    async def cancel(self, request_id: str) -> None:
        if request_id in self._loading:
            self._cancelled.add(request_id)
        elif self._worker is not None:
            self._worker.send(Cancel(request_id))

    async def persist(self, chat: str | None = None) -> None:
        if self._worker is not None and self._worker.alive and self.state is EngineState.READY:
            await self._worker.persist(chat, _PERSIST_SECONDS)

    def forget(self, chat: str) -> None:
        check_id(chat)
        if self._worker is not None:
            self._worker.send(Forget(chat))

    async def inspect(self, chat: str | None = None) -> Snapshot | None:
        if self._worker is None or self.state is not EngineState.READY:
            return None
        return await self._worker.inspect(chat, INSPECT_SECONDS)

    async def unload(self) -> None:
        async with self._lock:
            if not self._n_users:
                await self.persist()
            if not self._n_users:  # still no users
                await self._end_worker()

    @property
    def has_crashed(self) -> bool:
        return self._worker is not None and self.state is EngineState.STOPPED and not self._closed

    @property
    def log_path(self) -> Path | None:
        return self._log

    def log_tail(self, n_bytes: int = 4096) -> str:
        return tail(self._log, n_bytes)

    async def close(self) -> None:
        self._closed = True
        self._stop_timer()
        if self._worker is not None:
            await self._worker.close()  # this also stops a load in progress
        async with self._lock:
            await self._end_worker()

    @contextlib.asynccontextmanager
    async def _worker_for(
        self, request_id: str, digest: bytes, on_progress: Callable[[float], None] | None, may_load: bool
    ) -> AsyncIterator[WorkerConnection | None]:
        """Yield the worker for a request (None if it was cancelled), and count the crashes it causes."""
        if self._crashes[digest] >= _CRASHES_ALLOWED:
            raise RequestRefused(
                f"This message has crashed the engine {self._crashes[digest]} times and is refused.",
                hint="Change the message, or use another model.",
            )
        with self.holding():
            worker = await self._ready_for(request_id, on_progress, may_load)
            try:
                yield worker
            except RemoteWorkerLost:
                raise
            except EngineCrashed:
                if worker is not None and await self._is_to_blame(request_id, worker):
                    self._crashes[digest] += 1
                raise

    async def _is_to_blame(self, request_id: str, worker: WorkerConnection) -> bool:
        """Return True if the request probably killed its worker."""
        if worker.victims != {request_id}:  # any of the requests may be to blame
            return False
        return not (worker.lost_its_memory and await asyncio.to_thread(is_short, self._loaded_plan))

    async def _ready_for(
        self, request_id: str, on_progress: Callable[[float], None] | None, may_load: bool
    ) -> WorkerConnection | None:
        """Return the worker, or None if the request was cancelled while the model was loading."""
        self._loading.add(request_id)
        try:
            worker = await self._ready(on_progress, may_load=may_load)
            return None if request_id in self._cancelled else worker
        except EngineError:
            if self._closed:  # closing stopped both the load and the request
                return None
            raise
        finally:
            self._loading.discard(request_id)
            self._cancelled.discard(request_id)

    async def _ready(
        self, on_progress: Callable[[float], None] | None, *, may_load: bool = True
    ) -> WorkerConnection:
        async with self._lock:
            if self._closed:
                raise closed()
            is_ready = self._worker is not None and self._worker.alive and self.state is EngineState.READY
            if is_ready and not why_lost(self._loaded_plan.rpc):
                assert self._worker is not None
                return self._worker
            if not may_load:
                raise EngineGone(
                    f"The engine for {self.plan.model_name} was stopped before it received the request.",
                    hint="Send the request again.",
                )
            killed = self._worker is not None and self._worker.lost_its_memory
            await self._end_worker()
            self._set_state(EngineState.LOADING)
            try:
                fitted = await asyncio.to_thread(self._refitted_plan, killed=killed)
                while not await self._load(*fitted, on_progress):
                    await self._end_worker()
                    self._set_state(EngineState.LOADING)
                    fitted = await asyncio.to_thread(self._next_plan)
            except BaseException:
                await self._end_worker()
                raise
            self._set_state(EngineState.READY)
            assert self._worker is not None
            return self._worker

    def _refitted_plan(self, *, killed: bool) -> tuple[LoadPlan, tuple[str, ...]]:
        """Fit the requested plan to the free memory. Returns it with notes on what has changed."""
        lost = why_lost(self._requested.rpc)
        if self._replan is not None:
            self._requested = replan_for_more(self._requested, self._replan)
        plan, notes = plan_reload(self._requested, self._loaded_plan, killed=killed)
        return plan, (f"{lost} The model is loaded without it.", *notes) if lost else notes

    def _next_plan(self) -> tuple[LoadPlan, tuple[str, ...]]:
        """Return the plan to try after a load ran out of memory or lost a remote worker."""
        if why_lost(self._loaded_plan.rpc):
            return self._refitted_plan(killed=False)
        return refit(self._loaded_plan, failed=True)

    async def _load(
        self, plan: LoadPlan, notes: tuple[str, ...], on_progress: Callable[[float], None] | None
    ) -> bool:
        """Load as planned. Returns False if memory ran out after all or a remote worker was lost."""
        self._plan = self._loaded_plan = plan
        for note in notes:
            self._on_note(note)
        self._worker = await WorkerConnection.spawn(self._worker_ended)
        self._log = self._worker.log
        if self._closed:
            raise closed()
        try:
            self.model = await self._worker.load(self.plan, self._cache_policy, on_progress)
        except (RemoteWorkerLost, ServerRefused):
            if not await asyncio.to_thread(why_lost, plan.rpc, wait=True):
                raise
            return False
        except (OutOfMemory, EngineCrashed) as error:
            if self.plan.anyway or not (isinstance(error, OutOfMemory) or self._worker.lost_its_memory):
                raise
            return False
        return True

    async def _end_worker(self) -> None:
        """Stop the worker, if there is one, even if this task is cancelled."""
        worker, self._worker = self._worker, None
        if worker is not None:
            self._ending = asyncio.ensure_future(worker.close())
        try:
            if self._ending is not None:
                await asyncio.shield(self._ending)
                self._ending = None
        finally:
            self._set_state(EngineState.STOPPED)

    def _worker_ended(self, worker: WorkerConnection) -> None:
        if worker is self._worker and self.state is EngineState.READY:
            self._set_state(EngineState.STOPPED)


def _digest(request: ChatRequest | Embed | Translate) -> bytes:
    """Return a digest that identifies repeats of a request. The request must have an empty id."""
    return hashlib.blake2b(msgspec.msgpack.encode(request), digest_size=16).digest()
