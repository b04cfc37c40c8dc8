"""The server's paths, over the models behind them."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from edgechat.server.http.access_log import AccessLog
from edgechat.server.http.access_policy import TRUSTED, AccessPolicy, AccessRules
from edgechat.server.http.exchange import ClientDisconnected, Exchange
from edgechat.server.http.http_errors import refusal_of
from edgechat.server.http.refusal import Refusal
from edgechat.server.http.streams import generate
from edgechat.server.metrics import CONTENT_TYPE
from edgechat.server.openapi import description
from edgechat.server.pool.models import ModelPool, State
from edgechat.server.protocol.answers import Answers
from edgechat.server.protocol.chat import ChatBody
from edgechat.server.protocol.chat_answer import ChatAnswers
from edgechat.server.protocol.completions import CompletionAnswers, CompletionBody
from edgechat.server.protocol.decoding import decode, parse_body
from edgechat.server.protocol.embeddings import EmbeddingBody, embedding_list
from edgechat.server.protocol.listing import Health, ModelEntry, ModelList
from edgechat.server.protocol.strictness import refuse_ignored_fields
from edgechat.server.protocol.translating import DetokenizeBody, TokenizeBody

_PLAIN = "text/plain; charset=utf-8"
_ABOUT = b"""edgechat serves models of this machine by OpenAI's protocol.

POST /v1/chat/completions   an answer in a chat
POST /v1/completions        text that goes on
POST /v1/embeddings         embeddings, of models made for that
POST /tokenize              the tokens of a text; POST /detokenize goes back
GET  /v1/models             the models that may be asked for
GET  /health                loading, ready, degraded or draining
GET  /metrics               figures, for Prometheus
GET  /openapi.json          all of it, described

Paths are the same without /v1, and with a slash at their end.
Where it has a key, all but this page and /health want it: 'Authorization: Bearer KEY'.
"""

T = TypeVar("T", bound=msgspec.Struct)
_RETRY: dict[State, str] = {"loading": "1", "draining": "5"}
"""Seconds after which a server that is not ready may be so."""
Work = Callable[[Exchange], Awaitable[None]]


def make_app(
    models: ModelPool,
    rules: AccessRules,
    *,
    think: bool | None = None,
    strict: bool = False,
) -> ASGIApp:
    """Return the app, guarded. think: what the settings say.

    strict: fields that would have no effect are refused.
    """
    api = _Api(models, think, strict)
    routes = [
        Route("/", _Endpoint(api.about), methods=["GET"]),
        Route("/health", _Endpoint(api.health), methods=["GET"]),
        Route("/metrics", _Endpoint(api.metrics), methods=["GET"]),
        Route("/openapi.json", _Endpoint(api.describe), methods=["GET"]),
        Route("/v1/models", _Endpoint(api.models), methods=["GET"]),
        Route("/v1/models/{id:path}", _Endpoint(api.one_model), methods=["GET"]),
        Route("/v1/chat/completions", _Endpoint(api.chat), methods=["POST"]),
        Route("/v1/completions", _Endpoint(api.completions), methods=["POST"]),
        Route("/v1/embeddings", _Endpoint(api.embeddings), methods=["POST"]),
        Route("/tokenize", _Endpoint(api.tokenize), methods=["POST"]),
        Route("/detokenize", _Endpoint(api.detokenize), methods=["POST"]),
    ]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _handle_http_exception})
    app.router.redirect_slashes = False
    paths = [route.path for route in routes]
    return _PathNormalizer(AccessLog(AccessPolicy(app, rules), models, paths), paths)


class _Api:
    """What each path does."""

    def __init__(self, models: ModelPool, think: bool | None, strict: bool) -> None:
        self._models = models
        self._think = think
        self._strict = strict

    def _read(self, body: bytes, kind: type[T]) -> T:
        """Decode a body. Raises Refusal."""
        parsed = decode(body, kind)
        if self._strict:
            refuse_ignored_fields(parsed, body)
        return parsed

    async def chat(self, exchange: Exchange) -> None:
        await self._generate(exchange, lambda body: ChatAnswers(self._read(body, ChatBody), self._think))

    async def completions(self, exchange: Exchange) -> None:
        await self._generate(exchange, lambda body: CompletionAnswers(self._read(body, CompletionBody)))

    async def _generate(self, exchange: Exchange, make: Callable[[bytes], Answers[Any]]) -> None:
        answers = await parse_body(await exchange.body(), make)
        await exchange.run_until_disconnect(generate(exchange, self._models, answers))

    async def embeddings(self, exchange: Exchange) -> None:
        body = await parse_body(await exchange.body(), lambda body: self._read(body, EmbeddingBody))
        await exchange.run_until_disconnect(self._embed(exchange, body))

    async def _embed(self, exchange: Exchange, body: EmbeddingBody) -> None:
        texts = body.texts()
        async with self._models.serve(body.model or "") as served:
            exchange.record_model(served.name)
            body.check(served)
            embedded = await served.embed(f"embd-{secrets.token_hex(12)}", tuple(texts))
        if embedded is None:
            raise _stopped()
        exchange.record_tokens(embedded.tokens, 0)
        await exchange.answer(200, await asyncio.to_thread(embedding_list, body, served.name, embedded))

    async def tokenize(self, exchange: Exchange) -> None:
        body = await parse_body(await exchange.body(), lambda body: self._read(body, TokenizeBody))
        await exchange.run_until_disconnect(self._translate(exchange, body))

    async def detokenize(self, exchange: Exchange) -> None:
        body = await parse_body(await exchange.body(), lambda body: self._read(body, DetokenizeBody))
        await exchange.run_until_disconnect(self._translate(exchange, body))

    async def _translate(self, exchange: Exchange, body: TokenizeBody | DetokenizeBody) -> None:
        async with self._models.serve(body.model or "") as served:
            exchange.record_model(served.name)
            translated = await served.translate(f"tokn-{secrets.token_hex(12)}", body.what, **body.how)
        if translated is None:
            raise _stopped()
        await exchange.answer(200, msgspec.json.encode(body.response(translated)))

    async def models(self, exchange: Exchange) -> None:
        cards = await asyncio.to_thread(self._models.names)
        models = ModelList(data=[ModelEntry.of(card) for card in cards])
        await exchange.answer(200, msgspec.json.encode(models))

    async def one_model(self, exchange: Exchange) -> None:
        card = await asyncio.to_thread(self._models.card, exchange.scope["path_params"]["id"])
        await exchange.answer(200, msgspec.json.encode(ModelEntry.of(card)))

    async def health(self, exchange: Exchange) -> None:
        state, sentence = self._models.state
        health = Health(state, sentence if exchange.scope[TRUSTED] else msgspec.UNSET)
        if state in _RETRY:
            await exchange.answer(503, msgspec.json.encode(health), ("retry-after", _RETRY[state]))
        else:
            await exchange.answer(200, msgspec.json.encode(health))

    async def metrics(self, exchange: Exchange) -> None:
        await exchange.answer(200, await self._models.metrics_text(), kind=CONTENT_TYPE)

    async def describe(self, exchange: Exchange) -> None:
        await exchange.answer(200, description())

    async def about(self, exchange: Exchange) -> None:
        await exchange.answer(200, _ABOUT, kind=_PLAIN)


class _PathNormalizer:
    """Rewrites each path to its canonical form, before anything else looks at it."""

    def __init__(self, app: ASGIApp, paths: Sequence[str]) -> None:
        self._app = app
        self._paths = frozenset(path for path in paths if "{" not in path)
        self._folders = tuple(path.partition("{")[0] for path in paths if "{" in path)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        scope["path"] = self._canonical(scope["path"])
        await self._app(scope, receive, send)

    def _canonical(self, path: str) -> str:
        """Return the canonical form of a known path, and other paths as they are."""
        path = path.rstrip("/") or "/"
        for candidate in (path, f"/v1{path}", path.removeprefix("/v1")):
            if candidate in self._paths or candidate.startswith(self._folders):
                return candidate
        return path


class _Endpoint:
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


def _stopped() -> Refusal:
    return Refusal("The server was stopped in the meantime.", status=503, code="stopped")


async def _handle_http_exception(request: Request, error: Exception) -> Response:
    """Answer requests for unknown paths and methods."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    what = "No such path" if status == 404 else "This path does not accept this method"
    refusal = Refusal(f"{what}; GET / lists the paths.", status=status)
    headers = error.headers if isinstance(error, HTTPException) else None
    return Response(refusal.body(), status, dict(headers or {}), "application/json")
