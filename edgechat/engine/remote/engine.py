"""Remote engine: a model on another server, used through chat completions over HTTP.

`start` asks the server what kind it is and whether it has the model. Each request posts the whole
conversation. The server has its own cache, so there is nothing to prewarm, save or inspect here.
"""

# ruff: noqa: D102  (`Engine` documents its methods)

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from edgechat.base.errors import (
    BadRequest,
    EngineClosed,
    EngineCrashed,
    EngineError,
    EngineGone,
    LoadFailed,
    PromptTooLong,
    RemoteUnreachable,
)
from edgechat.engine.kv.state_files import check_id
from edgechat.engine.protocol import BaseEngine, EngineState, cannot_chat, cannot_embed
from edgechat.engine.remote.reply import RemoteReply
from edgechat.engine.remote.request import body_of, unsupported, without_oldest
from edgechat.engine.types import (
    ChatRequest,
    Dropped,
    Embedded,
    Finished,
    ModelInfo,
    RequestEvent,
    Translatable,
    Translated,
)
from edgechat.engine.worker.connection import closed
from edgechat.models.remote.client import RemoteClient
from edgechat.models.remote.discovery import described
from edgechat.models.remote.measured import note_speed
from edgechat.models.remote.metrics import ServerLoad, load_of
from edgechat.models.remote.model import KINDS, HostedModel
from edgechat.planner.plan import LoadPlan
from edgechat.settings import RemoteServer

T = TypeVar("T")

_COMPLETIONS = "/v1/chat/completions"
_LOOK_SECONDS, _NO_LOOK_SECONDS = 2.0, 60.0
"""Seconds between requests for metrics: to servers that provide them, and to servers that do not."""
_TOKENIZERS = ("llama-server", "vllm", "edgechat")
"""Servers that offer /tokenize and /detokenize."""


class RemoteHost(Protocol):
    """Provides a remote engine with its server."""

    async def open(self, on_progress: Callable[[float], None]) -> RemoteServer:
        """Return the server once it is reachable. Raises LoadFailed; cancelling this stops the attempt."""

    async def close(self) -> None:
        """Release the server until `open` is called again."""

    @property
    def log_path(self) -> Path | None:
        """The server's log, if it is on this machine."""

    def log_tail(self, n_bytes: int) -> str:
        """Return the end of the log as printable text, or '' if there is no log."""


class RunningHost:
    """A server that is already running, at the URL in settings.toml."""

    log_path: Path | None = None

    def __init__(self, server: RemoteServer) -> None:
        self._server = server

    async def open(self, on_progress: Callable[[float], None]) -> RemoteServer:
        return self._server

    async def close(self) -> None:
        """Do nothing: the server keeps running."""

    def log_tail(self, n_bytes: int) -> str:
        return ""


class _Stop:
    """Lets another task stop whatever a request is waiting for."""

    def __init__(self) -> None:
        self._is_ended = False
        self._waiting: asyncio.Timeout | None = None

    def end(self) -> None:
        self._is_ended = True
        if self._waiting is not None:
            self._waiting.reschedule(asyncio.get_running_loop().time())

    async def unless(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Return the result of `work`, or None if it was stopped first."""
        if self._is_ended:
            work.close()
            return None
        try:
            async with asyncio.timeout(None) as self._waiting:
                return await work
        except TimeoutError:
            if self._waiting is None or not self._waiting.expired():
                raise
            return None
        finally:
            self._waiting = None


class RemoteEngine(BaseEngine):
    """An `Engine` on another server.

    If edgechat runs the server itself, `RemoteHost.open` starts it on a loopback port. `RemoteHost.close`
    ends it when the engine is closed or the model is unloaded.
    """

    def __init__(
        self,
        plan: LoadPlan,
        host: RemoteHost,
        *,
        idle_seconds: float = 0.0,
        on_state: Callable[[EngineState], None] | None = None,
        on_note: Callable[[str], None] = lambda _note: None,
    ) -> None:
        """plan: from `engine.remote.choice.remote_plan`; its `remote` names the server and the model.

        idle_seconds: close the host after this much time without requests; 0 means never. on_note: called
        with notices about settings for which the server has no field.
        """
        assert plan.remote is not None
        super().__init__(idle_seconds, on_state, on_note)
        self.plan = plan
        self.has_crashed = False
        self._host = host
        self._noted: set[str] = set()
        self._client: RemoteClient | None = None
        self._retired: list[RemoteClient] = []
        """Connections that other requests may still be using."""
        self._stops: dict[object, _Stop] = {}
        """A `_Stop` for each request in progress, keyed by its id, and for each start."""
        self._seen: ServerLoad | None = None
        self._next_look = 0.0

    async def start(self, on_progress: Callable[[float], None] | None = None) -> ModelInfo:
        with self._stoppable(object()) as stop, self.holding():
            if await stop.unless(self._ready(on_progress)) is None:
                raise closed()
            assert self.model is not None
            return self.model

    async def stream(
        self,
        request: ChatRequest,
        on_progress: Callable[[float], None] | None = None,
        *,
        may_load: bool = True,
    ) -> AsyncGenerator[RequestEvent, None]:
        try:
            with self._stoppable(request.id) as stop, self.holding():
                client = await stop.unless(self._ready_for(on_progress, may_load))
                if client is None:
                    yield Finished.cancelled(request.id)
                    return
                async with contextlib.aclosing(self._answer(request, client, stop)) as events:
                    async for event in events:
                        yield event
        except (EngineCrashed, RemoteUnreachable) as error:
            if not isinstance(error, EngineGone):
                await self._retire()
                self.has_crashed = isinstance(error, EngineCrashed)
                if self.log_path is not None:
                    error.hint = f"{error.hint} Its log: {self.log_path}"
            raise

    async def _answer(
        self, request: ChatRequest, client: RemoteClient, stop: _Stop
    ) -> AsyncGenerator[RequestEvent, None]:
        """Send the request. Whenever the server finds the conversation too long, retry with fewer turns."""
        if not self._remote.chats:
            raise cannot_chat(self._remote.name)
        self._note_unsupported(request)
        dropped = 0
        while True:
            try:
                async with contextlib.aclosing(self._once(request, client, stop, dropped)) as events:
                    async for event in events:
                        yield event
                return
            except PromptTooLong:  # no event has arrived yet
                n_dropped, messages = without_oldest(request.messages)
                if request.overflow == "error" or not n_dropped:
                    raise
            dropped += n_dropped
            request = msgspec.structs.replace(request, messages=messages)
            yield Dropped(request.id, dropped)

    async def _once(
        self, request: ChatRequest, client: RemoteClient, stop: _Stop, dropped: int
    ) -> AsyncGenerator[RequestEvent, None]:
        remote = self._remote
        body = await asyncio.to_thread(body_of, request, remote)
        reply = RemoteReply(request, client, dropped)
        async with contextlib.aclosing(client.lines(_COMPLETIONS, body)) as pieces:
            while not reply.is_over:
                lines = await stop.unless(_next(pieces))
                if lines is None:
                    yield reply.cancelled()
                    return
                if not lines:
                    break
                for line in lines:
                    for event in reply.feed(line):
                        yield event
        for event in reply.finish():
            if isinstance(event, Finished) and reply.is_timed:
                speed = event.timings
                await asyncio.to_thread(note_speed, remote.name, speed.ttft_ms, speed.decode_tps)
            yield event

    def _note_unsupported(self, request: ChatRequest) -> None:
        remote = self._remote
        for name in unsupported(request, remote):
            if name not in self._noted:
                self._noted.add(name)
                self._on_note(f"{name} has no effect: {KINDS[remote.kind]} does not support it.")

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
        raise cannot_embed(self._remote.name, query)

    async def translate(
        self,
        request_id: str,
        what: Translatable,
        *,
        bos: bool = False,
        special: bool = False,
        may_load: bool = True,
    ) -> Translated | None:
        with self._stoppable(request_id) as stop, self.holding():
            client = await stop.unless(self._ready_for(None, may_load))
            if client is None:
                return None
            return await stop.unless(self._translated(client, request_id, what, bos, special))

    async def _translated(
        self, client: RemoteClient, request_id: str, what: Translatable, bos: bool, special: bool
    ) -> Translated:
        remote = self._remote
        if isinstance(what, ChatRequest) or remote.kind not in _TOKENIZERS:
            raise BadRequest(f"{remote.name} does not offer tokenization ({KINDS[remote.kind]}).")
        if isinstance(what, tuple):
            told = await client.post("/detokenize", {"model": remote.id, "tokens": what})
            text = _field(told, "content", "prompt", "text")
            if not isinstance(text, str):
                raise client.failed("did not return the text of the tokens")
            return Translated(request_id, what, text.encode("utf-8", "replace"))
        asked = "prompt" if remote.kind == "vllm" else "content"
        flags = {"add_special": bos, "parse_special": special} if asked == "content" else {}
        told = await client.post("/tokenize", {"model": remote.id, asked: what, **flags})
        tokens = _field(told, "tokens")
        if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
            raise client.failed("did not return the tokens of the text")
        return Translated(request_id, tuple(tokens), b"")

    async def cancel(self, request_id: str) -> None:
        if request_id in self._stops:
            self._stops[request_id].end()

    async def persist(self, chat: str | None = None) -> None:
        """Do nothing: KV states stay on the server."""

    def forget(self, chat: str) -> None:
        check_id(chat)

    async def inspect(self, chat: str | None = None) -> ServerLoad | None:
        """Return the server's load, at most a few seconds old. No server reports what is in its cache."""
        client, now = self._client, time.monotonic()
        if client is None or self.state is not EngineState.READY:
            return None
        if now >= self._next_look:
            self._next_look = math.inf
            self._seen = await load_of(client, self._remote.kind)
            self._next_look = now + (_LOOK_SECONDS if self._seen is not None else _NO_LOOK_SECONDS)
        return self._seen

    async def unload(self) -> None:
        async with self._lock:
            if not self._n_users:
                await self._disconnect()
                await self._host.close()

    @property
    def log_path(self) -> Path | None:
        return self._host.log_path

    def log_tail(self, n_bytes: int = 4096) -> str:
        return self._host.log_tail(n_bytes)

    async def close(self) -> None:
        self._closed = True
        for stop in self._stops.values():
            stop.end()
        self._stop_timer()
        async with self._lock:
            await self._disconnect()
            await self._host.close()

    @property
    def _remote(self) -> HostedModel:
        assert self.plan.remote is not None
        return self.plan.remote

    async def _ready_for(
        self, on_progress: Callable[[float], None] | None, may_load: bool
    ) -> RemoteClient | None:
        """Return the connection for a request, or None if the engine is closed."""
        if not may_load and self.state is not EngineState.READY:
            raise EngineGone("The engine was stopped before it received the request.")
        try:
            return await self._ready(on_progress)
        except EngineClosed:
            return None

    async def _ready(self, on_progress: Callable[[float], None] | None) -> RemoteClient:
        async with self._lock:
            if self._closed:
                raise closed()
            if self._client is not None and self.state is EngineState.READY:
                return self._client
            self._set_state(EngineState.LOADING)
            try:
                client = await self._connected(on_progress or (lambda _share: None))
            except BaseException:
                await self._retire()
                raise
            self.has_crashed = False
            self._set_state(EngineState.READY)
            return client

    async def _connected(self, on_progress: Callable[[float], None]) -> RemoteClient:
        """Connect, and find out what the model can do. Raises errors such as LoadFailed and ModelNotFound."""
        began = time.perf_counter()
        on_progress(0.0)
        remote = self._remote
        server = await self._host.open(on_progress)
        client = self._client = RemoteClient(remote.server, server)
        try:
            found = await described(client, remote.id)
        except EngineError as error:
            if isinstance(error, LoadFailed):
                raise
            raise RemoteUnreachable(error.message, hint=error.hint) from error
        found = msgspec.structs.replace(found, url=remote.url, is_started=remote.is_started)
        self.plan = msgspec.structs.replace(
            self.plan, remote=found, context=found.context or self.plan.context
        )
        self.model = ModelInfo(
            name=found.name,
            architecture="",
            backend=KINDS[found.kind],
            n_params=found.n_params,
            context=self.plan.context,
            train_context=found.context,
            can_switch_thinking=found.can_switch_thinking,
            has_tools=found.has_tools,
            has_effort=found.kind in ("openai", "ollama", "lmstudio"),
            sees=found.sees,
            hears=found.hears,
            template="own",
            load_ms=1000 * (time.perf_counter() - began),
        )
        on_progress(1.0)
        return client

    @contextlib.contextmanager
    def _stoppable(self, key: object) -> Iterator[_Stop]:
        """Yield a `_Stop` that `cancel` and `close` can use."""
        stop = self._stops[key] = _Stop()
        try:
            yield stop
        finally:
            del self._stops[key]

    async def _retire(self) -> None:
        """After a failure, make the next request reconnect. Other requests keep their connections."""
        if self._client is not None:
            self._retired.append(self._client)
        self._client, self._seen, self._next_look = None, None, 0.0
        self._set_state(EngineState.STOPPED)
        if not self._n_users:
            await self._disconnect()

    async def _disconnect(self) -> None:
        clients = [*self._retired, *filter(None, [self._client])]
        self._retired.clear()
        self._client, self._seen, self._next_look = None, None, 0.0
        for client in clients:
            await client.close()
        self._set_state(EngineState.STOPPED)


async def _next(pieces: AsyncGenerator[list[bytes], None]) -> list[bytes]:
    """Return the next lines, or [] at the end."""
    try:
        return await anext(pieces)
    except StopAsyncIteration:
        return []


def _field(told: Any, *names: str) -> Any:
    return next((told[name] for name in names if name in told), None) if isinstance(told, dict) else None
