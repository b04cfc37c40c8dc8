"""OpenAI's responses: created, counted, and, where they are stored, returned and deleted."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from edgechat.chat.storage.response_store import ResponseStore
from edgechat.engine.types import ChatRequest
from edgechat.server.documents.asked import AskedDocuments
from edgechat.server.documents.finding import RequestDocuments
from edgechat.server.endpoints.base import Endpoints
from edgechat.server.http.exchange import Exchange
from edgechat.server.media.request_media import RequestMedia
from edgechat.server.pool.models import ModelPool
from edgechat.server.protocol.decoding import decode_query, off_loop, parse_body
from edgechat.server.protocol.responses.answer import ResponseAnswers
from edgechat.server.protocol.responses.items import Earlier, references_of
from edgechat.server.protocol.responses.output import InputTokens
from edgechat.server.protocol.responses.request import InputBody, ResponseBody
from edgechat.server.protocol.responses.storing import ItemsQuery, ResponseQuery, StoredResponses
from edgechat.server.protocol.responses.tools import toolbox_of
from edgechat.server.protocol.strictness import not_heeded

B = TypeVar("B", bound=InputBody)
Made = TypeVar("Made")


class ResponseEndpoints(Endpoints):
    """What clients ask of responses."""

    def __init__(
        self,
        models: ModelPool,
        media: RequestMedia,
        documents: RequestDocuments,
        think: bool | None,
        *,
        strict: bool,
        store: ResponseStore | None,
    ) -> None:
        """See Endpoints. store: where responses are stored, if they are."""
        super().__init__(models, media, documents, think, strict=strict)
        self._stored = StoredResponses(store)

    async def respond(self, exchange: Exchange) -> None:
        """POST /v1/responses."""

        def answers(body: ResponseBody, earlier: Earlier) -> ResponseAnswers:
            keep = self._stored.keeper(body.store)
            if self._strict and body.store and keep is None:
                raise not_heeded("store")
            return ResponseAnswers(body, self._think, earlier, keep)

        await self._send(exchange, await self._made_with_earlier(exchange, ResponseBody, answers))

    async def count_input(self, exchange: Exchange) -> None:
        """POST /v1/responses/input_tokens."""

        def made(body: InputBody, earlier: Earlier) -> tuple[str | None, ChatRequest, AskedDocuments | None]:
            box = toolbox_of(body.tools or ())
            return body.model, body.asked(box, earlier), body.documents(box)

        asked = await self._made_with_earlier(exchange, InputBody, made)
        counted = self._count(exchange, *asked, lambda count: InputTokens(input_tokens=count))
        await exchange.run_until_disconnect(counted)

    async def stored(self, exchange: Exchange) -> None:
        """GET and DELETE /v1/responses/{id}."""
        if exchange.scope["method"] == "DELETE":
            deleted = await self._stored.delete(_id(exchange))
            await exchange.answer(200, msgspec.json.encode(deleted))
            return
        decode_query(exchange.scope["query_string"], ResponseQuery)
        await exchange.answer(200, await self._stored.response(_id(exchange)))

    async def input_items(self, exchange: Exchange) -> None:
        """GET /v1/responses/{id}/input_items."""
        query = decode_query(exchange.scope["query_string"], ItemsQuery)
        items = await self._stored.input_items(_id(exchange), query)
        await exchange.answer(200, msgspec.json.encode(items))

    async def _made_with_earlier(
        self, exchange: Exchange, kind: type[B], make: Callable[[B, Earlier], Made]
    ) -> Made:
        """Return what is made of the decoded body and what it names of earlier responses. Raises Refusal."""

        def read(sent: bytes) -> tuple[B, dict[str, str]]:
            body = self._read(sent, kind)
            return body, references_of(body.input or ())

        sent = await exchange.body()
        body, references = await parse_body(sent, read)
        earlier = await self._stored.earlier(body.previous_response_id, references)
        return await off_loop(len(sent) + earlier.size, lambda: make(body, earlier))


def _id(exchange: Exchange) -> str:
    return str(exchange.scope["path_params"]["id"])
