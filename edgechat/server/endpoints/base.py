"""What the endpoints of all protocols share."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from typing import TypeVar

import msgspec
from starlette.types import Receive, Scope, Send

from edgechat.engine.types import ChatRequest, Translatable, Translated
from edgechat.server.documents import AskedDocuments, RequestDocuments, with_documents
from edgechat.server.exchange import ClientDisconnected, Exchange
from edgechat.server.media import RequestMedia
from edgechat.server.pool.models import ModelPool
from edgechat.server.protocol.answers import Answers
from edgechat.server.protocol.body import decode, parse_body, refuse_ignored_fields
from edgechat.server.refusal import Refusal, refusal_of
from edgechat.server.streams import generate

T = TypeVar("T", bound=msgspec.Struct)
Made = TypeVar("Made")
Work = Callable[[Exchange], Awaitable[None]]


class Endpoints:
    """The endpoints of one protocol, over the models behind them."""

    def __init__(
        self,
        models: ModelPool,
        media: RequestMedia,
        documents: RequestDocuments,
        think: bool | None,
        *,
        strict: bool,
    ) -> None:
        """think: what the settings say. strict: fields that would have no effect are refused."""
        self._models = models
        self._media = media
        self._documents = documents
        self._think = think
        self._strict = strict

    async def _body(self, exchange: Exchange, kind: type[T]) -> T:
        """Return the decoded body. Raises Refusal."""
        return await self._made_of(exchange, kind, lambda body: body)

    async def _made_of(self, exchange: Exchange, kind: type[T], make: Callable[[T], Made]) -> Made:
        """Return what is made of the decoded body, in a thread if that is large. Raises Refusal."""
        return await parse_body(await exchange.body(), lambda body: make(self._read(body, kind)))

    def _read(self, body: bytes, kind: type[T]) -> T:
        parsed = decode(body, kind)
        if self._strict:
            refuse_ignored_fields(parsed, body)
        return parsed

    async def _generate(self, exchange: Exchange, kind: type[T], answers: Callable[[T], Answers]) -> None:
        """Answer a request that generates text."""
        await self._send(exchange, await self._made_of(exchange, kind, answers))

    async def _send(self, exchange: Exchange, answers: Answers) -> None:
        """Compute answers and send them."""
        generated = generate(exchange, self._models, self._media, self._documents, answers)
        await exchange.run_until_disconnect(generated)

    async def _count(
        self,
        exchange: Exchange,
        model: str | None,
        chat: ChatRequest,
        documents: AskedDocuments | None,
        answer: Callable[[int], msgspec.Struct],
    ) -> None:
        """Answer with the number of tokens that a chat's prompt has, with passages of documents."""
        if documents is not None:
            await self._documents.prepare(documents)
        translated = await self._translated(exchange, model, chat, documents)
        await exchange.answer(200, msgspec.json.encode(answer(len(translated.tokens))))

    async def _translated(
        self,
        exchange: Exchange,
        model: str | None,
        what: Translatable,
        documents: AskedDocuments | None = None,
        /,
        *,
        bos: bool = False,
        special: bool = False,
    ) -> Translated:
        """Return the tokens of a text or a chat, or the text of tokens. Raises Refusal, EdgechatError."""
        async with self._models.serve(model or "") as served:
            exchange.record_model(served.name)
            name = f"tokn-{secrets.token_hex(12)}"
            async with AsyncExitStack() as held:
                if isinstance(what, ChatRequest):
                    if documents is not None:
                        found = await self._documents.find(documents, served, what)
                        what = with_documents(what, found)
                    what = await held.enter_async_context(self._media.placed(what, served, self._models))
                translated = await served.translate(name, what, bos=bos, special=special)
        if translated is None:
            raise stopped()
        return translated


class AsgiEndpoint:
    """A path as an ASGI app of its own, so that nothing buffers its bytes."""

    def __init__(self, work: Work) -> None:
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        exchange = Exchange(scope, receive, send)
        with suppress(ClientDisconnected):
            try:
                await self._work(exchange)
            except Exception as error:
                if isinstance(error, ClientDisconnected) or exchange.status:
                    raise
                await exchange.refuse(refusal_of(error))


def stopped() -> Refusal:
    """Return what is said where the server ends before there is an answer."""
    return Refusal("The server was stopped in the meantime.", status=503, code="stopped")
