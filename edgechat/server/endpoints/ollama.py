"""Ollama's endpoints, for programs that know no others."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time

import msgspec
from msgspec import Raw

from edgechat.base.errors import ModelNotFound
from edgechat.server.endpoints.base import Endpoints, stopped
from edgechat.server.exchange import Exchange
from edgechat.server.protocol.listing import ShowBody, ShownModelBody, TagList, VersionBody
from edgechat.server.protocol.ollama import (
    EmbedBody,
    EmbeddingsAnswer,
    EmbeddingsBody,
    GenerateAnswers,
    GenerateBody,
    OllamaAnswers,
    OllamaBody,
    OllamaChatAnswers,
    OllamaChatBody,
    embed_answer,
    model_of,
    unloads,
)
from edgechat.server.protocol.openai_texts import vector_json
from edgechat.server.refusal import Refusal


class OllamaEndpoints(Endpoints):
    """What Ollama's clients ask."""

    async def chat(self, exchange: Exchange) -> None:
        """POST /api/chat."""
        body, answers = await self._made_of(
            exchange, OllamaChatBody, lambda body: (body, OllamaChatAnswers(body, self._think))
        )
        await self._answer(exchange, body, answers)

    async def generate(self, exchange: Exchange) -> None:
        """POST /api/generate."""
        body, answers = await self._made_of(
            exchange, GenerateBody, lambda body: (body, GenerateAnswers(body, self._think))
        )
        await self._answer(exchange, body, answers)

    async def _answer(self, exchange: Exchange, body: OllamaBody, answers: OllamaAnswers) -> None:
        if not body.is_empty:
            try:
                await self._send(exchange, answers)
            finally:
                await self._unload_after(body.keep_alive, answers.requested_model)
        elif unloads(body.keep_alive):
            await exchange.run_until_disconnect(self._unload(exchange, answers))
        else:
            await exchange.run_until_disconnect(self._load(exchange, answers))

    async def _unload_after(self, keep_alive: str | float | None, model: str) -> None:
        """Unload the model of an answer where the client wants that; the last one that uses it does it."""
        if unloads(keep_alive):
            with contextlib.suppress(ModelNotFound):  # then the answer says so
                await self._models.unload(model)

    async def _load(self, exchange: Exchange, answers: OllamaAnswers) -> None:
        """Load a model: what clients want that send nothing to answer."""
        async with self._models.serve(answers.requested_model) as served:
            answers.model = served.name
            exchange.record_model(served.name)
        await exchange.answer(200, answers.empty("load"))

    async def _unload(self, exchange: Exchange, answers: OllamaAnswers) -> None:
        answers.model = await self._models.unload(answers.requested_model)
        exchange.record_model(answers.model)
        await exchange.answer(200, answers.empty("unload"))

    async def embed(self, exchange: Exchange) -> None:
        """POST /api/embed."""
        body = await self._body(exchange, EmbedBody)
        try:
            await exchange.run_until_disconnect(self._embed(exchange, body))
        finally:
            await self._unload_after(body.keep_alive, model_of(body.model))

    async def _embed(self, exchange: Exchange, body: EmbedBody) -> None:
        began, texts = time.monotonic(), body.texts
        async with self._models.serve(model_of(body.model)) as served:
            loaded = time.monotonic()
            exchange.record_model(served.name)
            own = served.model.embedding
            if own and body.dimensions not in (None, own):
                raise Refusal(f"{served.name} produces embeddings with {own} dimensions.", param="dimensions")
            embedded = await served.embed(f"embd-{secrets.token_hex(12)}", texts, cut=body.truncate is True)
        if embedded is None:
            raise stopped()
        exchange.record_tokens(embedded.tokens, 0)
        took = {"total": time.monotonic() - began, "load": loaded - began}
        await exchange.answer(200, await asyncio.to_thread(embed_answer, served.name, embedded, **took))

    async def embeddings(self, exchange: Exchange) -> None:
        """POST /api/embeddings."""
        body = await self._body(exchange, EmbeddingsBody)
        try:
            await exchange.run_until_disconnect(self._embed_one(exchange, body))
        finally:
            await self._unload_after(body.keep_alive, model_of(body.model))

    async def _embed_one(self, exchange: Exchange, body: EmbeddingsBody) -> None:
        """Embed a text; without one, load the model, as clients do that warm it up."""
        async with self._models.serve(model_of(body.model)) as served:
            exchange.record_model(served.name)
            texts = (body.prompt,) if body.prompt else ()
            embedded = await served.embed(f"embd-{secrets.token_hex(12)}", texts) if texts else None
        if texts and embedded is None:
            raise stopped()
        if embedded is not None:
            exchange.record_tokens(embedded.tokens, 0)
        vector = vector_json(embedded.vectors[0]) if embedded is not None else Raw(b"[]")
        await exchange.answer(200, msgspec.json.encode(EmbeddingsAnswer(embedding=vector)))

    async def tags(self, exchange: Exchange) -> None:
        """GET /api/tags."""
        cards = await asyncio.to_thread(self._models.names)
        await exchange.answer(200, msgspec.json.encode(TagList.of(cards)))

    async def loaded(self, exchange: Exchange) -> None:
        """GET /api/ps."""
        cards = await asyncio.to_thread(self._models.names)
        await exchange.answer(200, msgspec.json.encode(TagList.of([card for card in cards if card.loaded])))

    async def show(self, exchange: Exchange) -> None:
        """POST /api/show."""
        body = await self._body(exchange, ShowBody)
        name = model_of(body.model or body.name)
        shown = await asyncio.to_thread(lambda: ShownModelBody.of(self._models.card(name)))
        await exchange.answer(200, msgspec.json.encode(shown))

    async def version(self, exchange: Exchange) -> None:
        """GET /api/version."""
        await exchange.answer(200, msgspec.json.encode(VersionBody()))
