"""OpenAI's endpoints: chats, completions, responses, embeddings, vector stores and the list of models."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import TypeVar

import msgspec

from edgechat.chat.storage.response_store import ResponseStore
from edgechat.engine.types import ChatRequest
from edgechat.server.documents import AskedDocuments, RequestDocuments
from edgechat.server.endpoints.base import Endpoints, stopped
from edgechat.server.exchange import Exchange
from edgechat.server.media import RequestMedia
from edgechat.server.pool.models import ModelPool
from edgechat.server.protocol.body import decode_query, not_heeded, off_loop, parse_body
from edgechat.server.protocol.listing import (
    ModelEntry,
    ModelList,
    ModelsQuery,
    StoreSearchBody,
    StoresQuery,
    VectorStorePage,
    found_page,
    vector_store,
)
from edgechat.server.protocol.openai_answers import ChatAnswers
from edgechat.server.protocol.openai_chat import ChatBody
from edgechat.server.protocol.openai_texts import (
    CompletionAnswers,
    CompletionBody,
    EmbeddingBody,
    embedding_list,
)
from edgechat.server.protocol.responses_answer import ResponseAnswers
from edgechat.server.protocol.responses_items import Earlier, references_of
from edgechat.server.protocol.responses_request import InputBody, ResponseBody, toolbox_of
from edgechat.server.protocol.responses_store import InputTokens, ItemsQuery, ResponseQuery, StoredResponses


class OpenAIEndpoints(Endpoints):
    """What OpenAI's clients ask."""

    async def chat(self, exchange: Exchange) -> None:
        """POST /v1/chat/completions."""
        await self._generate(exchange, ChatBody, lambda body: ChatAnswers(body, self._think))

    async def completions(self, exchange: Exchange) -> None:
        """POST /v1/completions."""
        await self._generate(exchange, CompletionBody, CompletionAnswers)

    async def embeddings(self, exchange: Exchange) -> None:
        """POST /v1/embeddings."""
        await exchange.run_until_disconnect(self._embed(exchange, await self._body(exchange, EmbeddingBody)))

    async def _embed(self, exchange: Exchange, body: EmbeddingBody) -> None:
        texts = body.texts()
        async with self._models.serve(body.model or "") as served:
            exchange.record_model(served.name)
            body.check(served)
            embedded = await served.embed(f"embd-{secrets.token_hex(12)}", tuple(texts))
        if embedded is None:
            raise stopped()
        exchange.record_tokens(embedded.tokens, 0)
        await exchange.answer(200, await asyncio.to_thread(embedding_list, body, served.name, embedded))

    async def models(self, exchange: Exchange) -> None:
        """GET /v1/models."""
        query = decode_query(exchange.scope["query_string"], ModelsQuery)
        cards = await asyncio.to_thread(self._models.names)
        await exchange.answer(200, msgspec.json.encode(ModelList.of(cards, query)))

    async def one_model(self, exchange: Exchange) -> None:
        """GET /v1/models/{id}."""
        card = await asyncio.to_thread(self._models.card, exchange.scope["path_params"]["id"])
        await exchange.answer(200, msgspec.json.encode(ModelEntry.of(card)))


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


class VectorStoreEndpoints(Endpoints):
    """What clients ask of documents alone."""

    async def stores(self, exchange: Exchange) -> None:
        """GET /v1/vector_stores."""
        query = decode_query(exchange.scope["query_string"], StoresQuery)
        page = VectorStorePage.of(list(map(vector_store, await self._documents.usable())), query)
        await exchange.answer(200, msgspec.json.encode(page))

    async def one_store(self, exchange: Exchange) -> None:
        """GET /v1/vector_stores/{id}."""
        name = str(exchange.scope["path_params"]["id"])
        await self._documents.check([name], status=404)
        store = vector_store(await self._documents.facts(name))
        await exchange.answer(200, msgspec.json.encode(store))

    async def search(self, exchange: Exchange) -> None:
        """POST /v1/vector_stores/{id}/search."""
        name = str(exchange.scope["path_params"]["id"])
        body = await self._body(exchange, StoreSearchBody)
        await self._documents.check([name], status=404)

        async def search() -> None:
            await self._documents.prepare(AskedDocuments((name,)))
            found = await self._documents.search(name, body.text, body.max_num_results)
            await exchange.answer(200, msgspec.json.encode(found_page(body, found)))

        await exchange.run_until_disconnect(search())
