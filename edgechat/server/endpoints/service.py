"""What the server tells of itself, and tokens and scores as llama.cpp's server has them."""

from __future__ import annotations

import secrets

import msgspec

from edgechat.server.access import TRUSTED
from edgechat.server.endpoints.base import Endpoints, stopped
from edgechat.server.exchange import Exchange
from edgechat.server.openapi import description
from edgechat.server.pool.metrics import CONTENT_TYPE
from edgechat.server.pool.models import State
from edgechat.server.protocol.listing import Health
from edgechat.server.protocol.openai_texts import DetokenizeBody, RerankBody, RerankList, TokenizeBody

_PLAIN = "text/plain; charset=utf-8"
_ABOUT = b"""edgechat serves models of this machine by the protocols of OpenAI, Anthropic and Ollama.

POST /v1/chat/completions   an answer in a chat
POST /v1/responses          ... as OpenAI's newer clients ask for it
                            GET and DELETE /v1/responses/ID: of those that are stored
POST /v1/messages           ... as Anthropic's clients ask for it
POST /v1/completions        text that goes on
GET  /v1/vector_stores      the documents that a request may name; POST /v1/vector_stores/ID/search
POST /v1/embeddings         embeddings, of models made for that
POST /v1/rerank             documents ranked for a query, by models made for that
POST /api/chat              ... as Ollama's clients ask for it; /api/generate, /api/embed, /api/tags
POST /tokenize              the tokens of a text; POST /detokenize goes back; /v1/responses/input_tokens
                            and /v1/messages/count_tokens count those of a chat
GET  /v1/models             the models that may be asked for
GET  /health                loading, ready, degraded or draining
GET  /metrics               figures, for Prometheus
GET  /openapi.json          all of it, described

Paths are the same without /v1, and with a slash at their end.
Where it has a key, all but this page and /health want it: 'Authorization: Bearer KEY' or
'x-api-key: KEY'.
"""
_RETRY: dict[State, str] = {"loading": "1", "draining": "5"}
"""Seconds after which a server that is not ready may be so."""


class ServiceEndpoints(Endpoints):
    """What belongs to no protocol."""

    async def tokenize(self, exchange: Exchange) -> None:
        """POST /tokenize."""
        await self._convert(exchange, await self._body(exchange, TokenizeBody))

    async def detokenize(self, exchange: Exchange) -> None:
        """POST /detokenize."""
        await self._convert(exchange, await self._body(exchange, DetokenizeBody))

    async def _convert(self, exchange: Exchange, body: TokenizeBody | DetokenizeBody) -> None:
        async def convert() -> None:
            translated = await self._translated(exchange, body.model, body.what, **body.how)
            await exchange.answer(200, msgspec.json.encode(body.response(translated)))

        await exchange.run_until_disconnect(convert())

    async def rerank(self, exchange: Exchange) -> None:
        """POST /v1/rerank."""
        await exchange.run_until_disconnect(self._rank(exchange, await self._body(exchange, RerankBody)))

    async def _rank(self, exchange: Exchange, body: RerankBody) -> None:
        async with self._models.serve(body.model or "") as served:
            exchange.record_model(served.name)
            scored = await served.embed(f"rank-{secrets.token_hex(12)}", body.texts, query=body.query)
        if scored is None:
            raise stopped()
        exchange.record_tokens(scored.tokens, 0)
        await exchange.answer(200, msgspec.json.encode(RerankList.of(body, served.name, scored)))

    async def health(self, exchange: Exchange) -> None:
        """GET /health."""
        state, sentence = self._models.state
        health = Health(state, sentence if exchange.scope[TRUSTED] else msgspec.UNSET)
        if state in _RETRY:
            await exchange.answer(503, msgspec.json.encode(health), ("retry-after", _RETRY[state]))
        else:
            await exchange.answer(200, msgspec.json.encode(health))

    async def metrics(self, exchange: Exchange) -> None:
        """GET /metrics."""
        await exchange.answer(200, await self._models.metrics_text(), kind=CONTENT_TYPE)

    async def describe(self, exchange: Exchange) -> None:
        """GET /openapi.json."""
        await exchange.answer(200, description())

    async def about(self, exchange: Exchange) -> None:
        """GET /."""
        await exchange.answer(200, _ABOUT, kind=_PLAIN)
