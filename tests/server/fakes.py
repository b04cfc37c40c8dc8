"""Models that replay scripts, between the real server's HTTP layer and where the pool would be."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from starlette.types import ASGIApp

from edgechat.base.errors import ModelNotFound
from edgechat.chat.storage.store import ResponseStore
from edgechat.engine.types import (
    ChatRequest,
    Delta,
    Embedded,
    Finished,
    FinishReason,
    ModelInfo,
    Prefill,
    Priority,
    RequestEvent,
    SpeculationStats,
    Timings,
    ToolCall,
    ToolCallBegun,
    Translatable,
    Translated,
    Usage,
)
from edgechat.planner.plan import LoadPlan
from edgechat.server.access import AccessRules
from edgechat.server.app import make_app
from edgechat.server.documents import RequestDocuments
from edgechat.server.media import RequestMedia
from edgechat.server.operation import Services
from edgechat.server.pool.models import ModelCard, State
from edgechat.server.serving import Server, listen, url_of
from tests.fakes import MODEL

KEY = "ek-the-key-of-the-tests"
NOWHERE = Path(os.devnull, "images")
"""A folder that cannot be created."""
Step = str | float | asyncio.Event | Exception | RequestEvent
"""A word to say, seconds or an event to wait for, an error to raise, or an event to pass on."""


def thought(text: str, tokens: int = 1) -> Delta:
    return Delta("", text, True, tokens)


def called(name: str, arguments: str, id: str) -> ToolCallBegun:
    return ToolCallBegun("", ToolCall(id, name, arguments), 1)


def finished(
    reason: FinishReason = "stop", *, dropped: int = 0, drafted: int = 0, stop_text: str | None = None
) -> Finished:
    counts = {"drafted_tokens": drafted, "accepted_tokens": drafted // 2}
    stats = SpeculationStats(**counts, mean_length=2.0, speedup=1.2) if drafted else None
    return Finished("", reason, Usage(20, 8, 5, dropped), Timings(10.0, 500.0, 25.0), stats, stop_text)


class Counted(list[tuple[str, int, str | None]]):
    """The requests that were counted."""

    def request(self, endpoint: str, status: int, model: str | None = None) -> None:
        self.append((endpoint, status, model))


class FakeModels:
    """One model; each request gets the next script, and the last one is repeated."""

    def __init__(self, *scripts: Sequence[Step], refuses: Exception | None = None, **info: Any) -> None:
        self.name = "scripted"
        self.adapters: tuple[str, ...] = ()
        self.requests: list[ChatRequest] = []
        self.stopped: list[str] = []
        """Requests that were left before they ended."""
        self.metrics = Counted()
        self.state: tuple[State, str] = ("ready", "scripted is loaded.")
        self.refuses = refuses
        self.load_seconds = 0.0
        self.places: list[int] = []
        self.asked: list[str] = []
        """Names of the models requested."""
        self.unloaded: list[str] = []
        self.plan = LoadPlan(model_path="", model_name="scripted", context=4096, threads=1)
        self.model: ModelInfo = msgspec.structs.replace(MODEL, name="as its file is called", **info)
        self._scripts = list(scripts) or [["Hello", " there."]]

    def names(self) -> list[ModelCard]:
        file: dict[str, Any] = {"size": 7, "format": "gguf", "quant": "Q4_K_M", "n_params": 1_500_000_000}
        can = {name: getattr(self.model, name) for name in ("sees", "hears", "can_switch_thinking")}
        about = {"loaded": True, "kind": "chat", "context": 4096, "architecture": "llama", **file, **can}
        return [ModelCard(id=self.name, created=1, **about)]

    def card(self, name: str) -> ModelCard:
        if name != self.name:
            raise ModelNotFound(f"There is no model {name!r}.")
        return self.names()[0]

    async def metrics_text(self) -> bytes:
        return b"edgechat_up 1\n"

    @asynccontextmanager
    async def serve(
        self, model: str, places: int = 1, priority: Priority = "interactive"
    ) -> AsyncIterator[FakeModels]:
        self.places.append(places)
        self.asked.append(model)
        await asyncio.sleep(self.load_seconds)
        if self.refuses is not None:
            raise self.refuses
        yield self

    async def unload(self, model: str) -> str:
        self.unloaded.append(model)
        return self.name

    async def stream(self, request: ChatRequest) -> AsyncGenerator[RequestEvent, None]:
        self.requests.append(request)
        script = self._scripts.pop(0) if len(self._scripts) > 1 else self._scripts[0]
        tokens, done = 0, False
        try:
            yield Prefill(request.id, 20, 20, 8)
            for step in script:
                if isinstance(step, float):
                    await asyncio.sleep(step)
                elif isinstance(step, asyncio.Event):
                    await step.wait()
                elif isinstance(step, Exception):
                    done = True
                    raise step
                elif isinstance(step, str):
                    tokens += 1
                    yield Delta(request.id, step, False, tokens)
                else:
                    done = isinstance(step, Finished)
                    yield msgspec.structs.replace(step, request_id=request.id)
            if not done:
                done = True
                yield msgspec.structs.replace(finished(), request_id=request.id)
        finally:
            if not done:
                self.stopped.append(request.id)

    async def translate(
        self, request_id: str, what: Translatable, *, bos: bool = False, special: bool = False
    ) -> Translated:
        """Treat every character as a token; the first token is always 1."""
        if isinstance(what, ChatRequest):
            what = "".join(message.content for message in what.messages)
        if isinstance(what, str):
            return Translated(request_id, (*([1] if bos else []), *map(ord, what)), b"")
        return Translated(request_id, what, bytes(what))

    async def embed(
        self,
        request_id: str,
        texts: tuple[str | tuple[int, ...], ...],
        *,
        cut: bool = False,
        query: str | None = None,
    ) -> Embedded | None:
        if query is not None:  # longer texts score higher
            return Embedded(request_id, tuple(np.array([len(text)], "<f4").tobytes() for text in texts), 7)
        vectors = tuple(np.array([len(text), 1, 2, 3], "<f4").tobytes() for text in texts)
        return Embedded(request_id, vectors, 7)


@asynccontextmanager
async def serving(
    models: FakeModels,
    rules: AccessRules | None = None,
    *,
    host: str = "127.0.0.1",
    think: bool | None = None,
    strict: bool = False,
    store: ResponseStore | None = None,
    media: RequestMedia | None = None,
    docs: Sequence[str] = (),
    around: Callable[[ASGIApp], ASGIApp] = lambda app: app,
) -> AsyncIterator[str]:
    """Serve the models on a free port; yield the address. around: wraps the app."""
    listener = listen(host, 0)
    media = media or RequestMedia(NOWHERE)
    documents = RequestDocuments(docs)
    services = Services(models, media, documents, think, strict, store)
    app = make_app(services, rules or AccessRules(KEY))
    server = Server(around(app), drain=partial(asyncio.sleep, 0))
    task = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:
        await asyncio.sleep(0.005)
    try:
        yield url_of(listener)
    finally:
        task.cancel()  # a clean shutdown takes time, and is tested elsewhere
        await asyncio.wait([task])
        await documents.close()
        for connection in list(server.server_state.connections):
            connection.transport.abort()
        for one in server.servers:
            one.close()
        await asyncio.sleep(0)
