"""OpenAI's endpoints: chats, completions, embeddings and the list of models."""

from __future__ import annotations

import asyncio
import secrets

import msgspec

from edgechat.server.endpoints.base import Endpoints, stopped
from edgechat.server.http.exchange import Exchange
from edgechat.server.protocol.decoding import decode_query
from edgechat.server.protocol.openai.chat import ChatBody
from edgechat.server.protocol.openai.chat_answer import ChatAnswers
from edgechat.server.protocol.openai.completions import CompletionAnswers, CompletionBody
from edgechat.server.protocol.openai.embeddings import EmbeddingBody, embedding_list
from edgechat.server.protocol.openai.listing import ModelEntry, ModelList, ModelsQuery


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
