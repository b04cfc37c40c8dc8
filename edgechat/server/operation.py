"""Operations: what the server does at each path, from the request body to the response body.

An operation reads, decodes and checks the body, then runs until it has answered or the client disconnects.
Each generated answer has one task, which reads its events and writes them to the client. There is no queue
in between, so a client that does not read delays only its own answer.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from itertools import takewhile
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from edgechat.base.errors import EngineError, PromptTooLong
from edgechat.chat.storage.store import ResponseStore
from edgechat.engine.types import (
    ChatRequest,
    Embedded,
    Finished,
    Message,
    RequestEvent,
    Translatable,
    Translated,
)
from edgechat.server.documents import AskedDocuments, RequestDocuments, with_documents
from edgechat.server.exchange import MODEL, TOKENS, Exchange
from edgechat.server.media import RequestMedia
from edgechat.server.pool.models import ServedModel
from edgechat.server.pool.pool import Pool
from edgechat.server.protocol.answers import Answers
from edgechat.server.protocol.body import decode, decode_query, parse_body, refuse_ignored_fields
from edgechat.server.protocol.fields import requested_adapters
from edgechat.server.refusal import BROKEN_OFF, Refusal, refusal_of

KEEP_ALIVE = 10.0
"""Seconds of silence after which something is sent, so that no proxy or client gives up."""

OnEvent = Callable[[int, RequestEvent], Awaitable[None]]
"""Takes the index of an answer and one of its events."""


@dataclass(frozen=True, slots=True)
class Services:
    """The services that operations use."""

    models: Pool
    media: RequestMedia
    documents: RequestDocuments
    think: bool | None = None
    """Whether models that can turn thinking on and off should think, according to the settings."""
    strict: bool = False
    """Whether to refuse fields that have no effect."""
    store: ResponseStore | None = None
    """Where to store responses, or None if they are not stored."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One method on one path. The routes and /openapi.json are generated from operations."""

    method: Literal["GET", "POST", "DELETE"]
    path: str
    run: Callable[..., Awaitable[bytes | msgspec.Struct | None]]
    """Takes the exchange, the services, and the decoded body or query, if there is one.

    Returns JSON, or None if it has already responded.
    """
    name: str = ""
    """The `operationId` in /openapi.json, which omits operations without a name."""
    about: str = ""
    answer: type[msgspec.Struct] | None = None
    """Type of the response body, or None for plain text."""
    _: KW_ONLY
    body: type[msgspec.Struct] | None = None
    make: Callable[[Any, bool | None], Any] | None = None
    """Converts the body and `Services.think` into the argument for `run`, in a thread for large bodies."""
    query: type[msgspec.Struct] | None = None
    stream: str = ""
    """Describes the data in one event (or line), if the answer can be streamed."""
    stream_type: str = "text/event-stream"
    also: Mapping[str, tuple[str, type[msgspec.Struct]]] = field(default_factory=dict, hash=False)
    """Additional responses, keyed by status: when they are sent, and the type of their body."""
    is_open: bool = False
    """Whether requests are allowed without a key."""

    async def answer_to(self, exchange: Exchange, services: Services) -> None:
        """Run the operation for one request. Raises Refusal or EdgechatError, unless a response has begun."""
        if self.body is not None:
            made = await parse_body(await exchange.body(), partial(self._decoded, services))
            await exchange.run_until_disconnect(self._run(exchange, services, made))
        elif self.query is not None:
            await self._run(exchange, services, decode_query(exchange.scope["query_string"], self.query))
        else:
            await self._run(exchange, services)

    def _decoded(self, services: Services, sent: bytes) -> Any:
        assert self.body is not None
        body = decode(sent, self.body)
        if services.strict:
            refuse_ignored_fields(body, sent)
        return body if self.make is None else self.make(body, services.think)

    async def _run(self, exchange: Exchange, services: Services, *made: Any) -> None:
        answer = await self.run(exchange, services, *made)
        if answer is not None:
            await exchange.answer(200, answer if isinstance(answer, bytes) else msgspec.json.encode(answer))


def path_id(exchange: Exchange) -> str:
    """Return the {id} parameter of the path."""
    return str(exchange.scope["path_params"]["id"])


async def load(exchange: Exchange, services: Services, model: str) -> str:
    """Load a model and return its name."""
    async with services.models.serve(model) as served:
        exchange.scope[MODEL] = served.name
        return served.name


async def embed(
    exchange: Exchange,
    services: Services,
    model: str,
    texts: Iterable[str | tuple[int, ...]],
    *,
    dimensions: float | None = None,
    cut: bool = False,
    query: str | None = None,
) -> tuple[str, Embedded, float]:
    """Embed texts, or score them as answers to `query`.

    dimensions: the number of dimensions that the client expects. Returns the model's name, the result, and
    how long loading the model took, in seconds. Raises Refusal and EdgechatError.
    """
    began = asyncio.get_running_loop().time()
    async with services.models.serve(model) as served:
        load_seconds = asyncio.get_running_loop().time() - began
        exchange.scope[MODEL] = served.name
        own = served.model.embedding
        if query is None and own and dimensions not in (None, own):
            raise Refusal(
                f"{served.name} produces embeddings with {own} dimensions, not {dimensions:.0f}.",
                param="dimensions",
            )
        embedded = await served.embed(f"embd-{secrets.token_hex(12)}", tuple(texts), cut=cut, query=query)
    if embedded is None:
        raise _stopped()
    exchange.scope[TOKENS] = (embedded.tokens, 0)
    return served.name, embedded, load_seconds


async def translate(
    exchange: Exchange,
    services: Services,
    model: str | None,
    what: Translatable,
    documents: AskedDocuments | None = None,
    /,
    *,
    bos: bool = False,
    special: bool = False,
) -> Translated:
    """Tokenize a text or a chat, or detokenize tokens. Raises Refusal and EdgechatError."""
    if documents is not None:
        await services.documents.prepare(documents)
    async with services.models.serve(model or "") as served, AsyncExitStack() as held:
        exchange.scope[MODEL] = served.name
        if isinstance(what, ChatRequest):
            if documents is not None:
                what = with_documents(what, await services.documents.find(documents, served, what))
            what = await held.enter_async_context(services.media.placed(what, served, services.models.names))
        name = f"tokn-{secrets.token_hex(12)}"
        translated = await served.translate(name, what, bos=bos, special=special)
    if translated is None:
        raise _stopped()
    return translated


def _stopped() -> Refusal:
    return Refusal("The server was stopped in the meantime.", status=503, code="stopped")


async def generate(exchange: Exchange, services: Services, answers: Answers) -> None:
    """Generate the answers and send them. Raises EdgechatError or Refusal, unless something has been sent."""
    compute = partial(_compute, exchange, services, answers)
    try:
        if answers.streams:
            await _Stream(exchange, answers).send(compute)
        else:
            await _send_whole(exchange, answers, compute)
    finally:
        exchange.scope[TOKENS] = answers.tokens


async def _send_whole(
    exchange: Exchange, answers: Answers, compute: Callable[[OnEvent], Awaitable[None]]
) -> None:
    async def take(choice: int, event: RequestEvent) -> None:
        answers.take(choice, event)

    await compute(take)
    await answers.settle()
    await exchange.answer(200, answers.whole())


async def _compute(exchange: Exchange, services: Services, answers: Answers, on_event: OnEvent) -> None:
    """Generate all answers concurrently. On cancellation, they stop within one step."""
    asked = answers.documents
    if asked is not None:
        await services.documents.prepare(asked)
    try:
        async with services.models.serve(
            answers.requested_model, answers.n_choices, answers.priority
        ) as served:
            answers.model = "+".join((served.name, *served.adapters))
            exchange.scope[MODEL] = served.name
            if asked is not None:
                answers.passages = await services.documents.find(asked, served, answers.request(served, 0))
            await _compute_with(services, served, answers, on_event)
    except PromptTooLong as error:
        raise PromptTooLong(error.message, hint=answers.shorter) from error


async def _compute_with(services: Services, served: ServedModel, answers: Answers, on_event: OnEvent) -> None:
    adapters = tuple(adapter.use for adapter in served.plan.adapters)
    if served.adapters or answers.lora is not None:
        wanted = served.adapters, answers.lora, served.plan
        adapters = await asyncio.to_thread(requested_adapters, *wanted)
    try:
        async with asyncio.TaskGroup() as group:
            for choice in range(answers.n_choices):
                request = with_documents(answers.request(served, choice), answers.passages)
                request = replace(request, adapters=adapters)
                group.create_task(_follow(services, served, request, choice, on_event))
    except BaseExceptionGroup as several:
        error: BaseException = several
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None


async def _follow(
    services: Services, served: ServedModel, request: ChatRequest, choice: int, on_event: OnEvent
) -> None:
    event: RequestEvent | None = None
    async with (
        services.media.placed(request, served, services.models.names) as ready,
        aclosing(served.stream(with_conversation(ready, served.name))) as events,
    ):
        async for event in events:
            await on_event(choice, event)
    if not isinstance(event, Finished):
        raise EngineError("The engine ended an answer without a result.")


class _Stream:
    """A streamed response. It starts with the first word, so earlier errors get their own HTTP status."""

    def __init__(self, exchange: Exchange, answers: Answers) -> None:
        self._exchange = exchange
        self._answers = answers
        self._clock = asyncio.get_running_loop().time
        self._last_write = self._clock()
        self._writing = asyncio.Lock()

    async def send(self, compute: Callable[[OnEvent], Awaitable[None]]) -> None:
        """Send the answers as they are generated. Raises errors that occur before the first word."""
        try:
            async with self._keeping_alive():
                await compute(self._on_event)
                await self._answers.settle()
            await self._write(self._answers.end(), more=False)
        except Exception as error:
            if not self._exchange.status:
                raise
            # The status has been sent, so the error becomes an event.
            refusal = refusal_of(error)
            self._exchange.scope[BROKEN_OFF] = refusal.code
            await self._write(self._answers.failure(refusal), more=False)

    async def _on_event(self, choice: int, event: RequestEvent) -> None:
        if data := self._answers.send(choice, event):
            await self._write(data, more=True)

    async def _write(self, data: bytes, *, more: bool) -> None:
        async with self._writing:
            if not self._exchange.status:
                await self._exchange.begin(
                    200,
                    ("cache-control", "no-store"),
                    ("x-accel-buffering", "no"),
                    kind=self._answers.stream_type,
                )
            self._last_write = self._clock()
            await self._exchange.write(data, more=more)

    @asynccontextmanager
    async def _keeping_alive(self) -> AsyncIterator[None]:
        filling = asyncio.create_task(self._send_keep_alives())
        try:
            yield
        finally:
            filling.cancel()
            await asyncio.wait([filling])

    async def _send_keep_alives(self) -> None:
        """Send something during long silences, for example while a model loads or reads a long prompt."""
        while True:
            silent = self._clock() - self._last_write
            if silent >= KEEP_ALIVE:
                self._last_write = self._clock()
                if data := self._answers.waiting():
                    await self._write(data, more=True)
            else:
                await asyncio.sleep(KEEP_ALIVE - silent)


def with_conversation(request: ChatRequest, model: str) -> ChatRequest:
    """Return a request with a conversation id (a hash), if its conversation might continue.

    Programs send whole conversations without identifying them. When a model is unloaded, the engine saves the
    KV cache of each conversation under its id, so that an agent does not have to wait while its long prompt
    is read again.

    Requests with the same system prompt and tools count as one conversation, whose latest state is saved.
    Requests without tools get an id once they contain an earlier answer, and count as one conversation if
    they have the same system prompt and first question. Different LoRA adapters mean different conversations.
    """
    if request.text is not None or request.chat is not None:
        return request
    system = list(takewhile(lambda message: message.role == "system", request.messages))
    first: Iterable[Message]
    if request.tools:
        first = system
    elif any(message.role == "assistant" for message in request.messages[:-1]):
        first = request.messages[: len(system) + 1]
    else:
        return request
    key = (model, list(first), request.tools, *([request.adapters] if request.adapters else ()))
    digest = hashlib.blake2b(msgspec.msgpack.encode(key), digest_size=32)
    return msgspec.structs.replace(request, chat=digest.hexdigest())
