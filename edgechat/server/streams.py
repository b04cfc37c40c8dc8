"""Answers as they come from the engine: sent whole, or while they are written.

Each answer has one task, which reads its events and writes them to the client: a token passes through no
queue of ours, and a client that does not read holds up its own answer alone.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from functools import partial
from itertools import takewhile

import msgspec
from msgspec.structs import replace

from edgechat.base.errors import EngineError, PromptTooLong
from edgechat.engine.types import ChatRequest, Finished, Message, RequestEvent
from edgechat.server.documents import RequestDocuments, with_documents
from edgechat.server.exchange import Exchange
from edgechat.server.media import RequestMedia
from edgechat.server.pool.models import ModelPool, ServedModel
from edgechat.server.protocol.answers import Answers
from edgechat.server.protocol.fields import requested_adapters
from edgechat.server.refusal import BROKEN_OFF, refusal_of

KEEP_ALIVE = 10.0
"""Seconds of silence after which something is sent, so that no proxy or client gives up."""

OnEvent = Callable[[int, RequestEvent], Awaitable[None]]
"""Takes the events of each answer, by its number."""
Placed = Callable[[ChatRequest], AbstractAsyncContextManager[ChatRequest]]
"""Gives a request whose images and sounds are files."""


async def generate(
    exchange: Exchange,
    models: ModelPool,
    media: RequestMedia,
    documents: RequestDocuments,
    answers: Answers,
) -> None:
    """Compute the answers and send them. Raises EdgechatError and Refusal where nothing is sent yet."""
    compute = partial(_compute, exchange, models, media, documents, answers)
    try:
        if answers.streams:
            await _Stream(exchange, answers).send(compute)
        else:
            await _send_whole(exchange, answers, compute)
    finally:
        exchange.record_tokens(*answers.tokens)


async def _send_whole(
    exchange: Exchange, answers: Answers, compute: Callable[[OnEvent], Awaitable[None]]
) -> None:
    async def take(choice: int, event: RequestEvent) -> None:
        answers.take(choice, event)

    await compute(take)
    await answers.settle()
    await exchange.answer(200, answers.whole())


async def _compute(
    exchange: Exchange,
    models: ModelPool,
    media: RequestMedia,
    documents: RequestDocuments,
    answers: Answers,
    on_event: OnEvent,
) -> None:
    """Compute all answers at once; cancelling this stops them within a step."""
    asked = answers.documents
    if asked is not None:
        await documents.prepare(asked)
    try:
        async with models.serve(answers.requested_model, answers.n_choices, answers.priority) as served:
            answers.model = "+".join((served.name, *served.adapters))
            exchange.record_model(served.name)
            if asked is not None:
                answers.passages = await documents.find(asked, served, answers.request(served, 0))
            placed = partial(media.placed, served=served, models=models)
            await _compute_with(served, placed, answers, on_event)
    except PromptTooLong as error:
        raise PromptTooLong(error.message, hint=answers.shorter) from error


async def _compute_with(served: ServedModel, placed: Placed, answers: Answers, on_event: OnEvent) -> None:
    adapters = tuple(adapter.use for adapter in served.plan.adapters)
    if served.adapters or answers.lora is not None:
        wanted = served.adapters, answers.lora, served.plan
        adapters = await asyncio.to_thread(requested_adapters, *wanted)
    try:
        async with asyncio.TaskGroup() as group:
            for choice in range(answers.n_choices):
                request = with_documents(answers.request(served, choice), answers.passages)
                request = replace(request, adapters=adapters)
                group.create_task(_follow(served, placed, request, choice, on_event))
    except BaseExceptionGroup as several:
        error: BaseException = several
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None


async def _follow(
    served: ServedModel, placed: Placed, request: ChatRequest, choice: int, on_event: OnEvent
) -> None:
    event: RequestEvent | None = None
    async with (
        placed(request) as ready,
        aclosing(served.stream(with_conversation(ready, served.name))) as events,
    ):
        async for event in events:
            await on_event(choice, event)
    if not isinstance(event, Finished):
        raise EngineError("The engine ended an answer without a result.")


class _Stream:
    """A stream that begins with the answer's first word.

    Until then it can turn out that there is no answer, which is a status of its own.
    """

    def __init__(self, exchange: Exchange, answers: Answers) -> None:
        self._exchange = exchange
        self._answers = answers
        self._clock = asyncio.get_running_loop().time
        self._last_write = self._clock()
        self._writing = asyncio.Lock()

    async def send(self, compute: Callable[[OnEvent], Awaitable[None]]) -> None:
        """Send the answers as they are computed. Raises what goes wrong before the first word."""
        try:
            async with self._keeping_alive():
                await compute(self._on_event)
                await self._answers.settle()
            await self._write(self._answers.end(), more=False)
        except Exception as error:
            if not self._exchange.status:
                raise
            # The status has been sent: what went wrong is an event.
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
        """Send something whenever nothing was sent for long: during a load, or a long prompt."""
        while True:
            silent = self._clock() - self._last_write
            if silent >= KEEP_ALIVE:
                self._last_write = self._clock()
                if data := self._answers.waiting():
                    await self._write(data, more=True)
            else:
                await asyncio.sleep(KEEP_ALIVE - silent)


def with_conversation(request: ChatRequest, model: str) -> ChatRequest:
    """Return a request with the id of its conversation, a hash, if it has one.

    Requests with tools: all that have the same system prompt and tools are one, of which the last is saved.
    Others: from the second question on, those with the same system prompt and first question. Those with
    other LoRA adapters are others.
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
