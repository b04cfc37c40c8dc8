"""The server's paths, over the models behind them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from edgechat.chat.storage.response_store import ResponseStore
from edgechat.server.access import AccessLog, AccessPolicy, AccessRules
from edgechat.server.documents import RequestDocuments
from edgechat.server.endpoints.anthropic import AnthropicEndpoints
from edgechat.server.endpoints.base import AsgiEndpoint, Work
from edgechat.server.endpoints.ollama import OllamaEndpoints
from edgechat.server.endpoints.openai import OpenAIEndpoints, ResponseEndpoints, VectorStoreEndpoints
from edgechat.server.endpoints.service import ServiceEndpoints
from edgechat.server.media import RequestMedia
from edgechat.server.pool.models import ModelPool
from edgechat.server.refusal import ERROR_BODY, Refusal, anthropic_error, ollama_error

_ERRORS: dict[str, Callable[[Refusal], bytes]] = {"/v1/messages": anthropic_error, "/api/": ollama_error}
"""How errors are written, by the beginnings of paths; elsewhere as OpenAI does."""


def make_app(
    models: ModelPool,
    rules: AccessRules,
    media: RequestMedia,
    documents: RequestDocuments,
    *,
    think: bool | None = None,
    strict: bool = False,
    store: ResponseStore | None = None,
) -> ASGIApp:
    """Return the app, guarded. media: where those of requests go. documents: those that clients may use.

    think: what the settings say. strict: fields that would have no effect are refused. store: where
    responses are stored, if they are.
    """
    service = ServiceEndpoints(models, media, documents, think, strict=strict)
    openai = OpenAIEndpoints(models, media, documents, think, strict=strict)
    responses = ResponseEndpoints(models, media, documents, think, strict=strict, store=store)
    vector_stores = VectorStoreEndpoints(models, media, documents, think, strict=strict)
    anthropic = AnthropicEndpoints(models, media, documents, think, strict=strict)
    ollama = OllamaEndpoints(models, media, documents, think, strict=strict)
    routes = [
        _get("/", service.about),
        _get("/health", service.health),
        _get("/metrics", service.metrics),
        _get("/openapi.json", service.describe),
        _post("/tokenize", service.tokenize),
        _post("/detokenize", service.detokenize),
        _get("/v1/models", openai.models),
        _get("/v1/models/{id:path}", openai.one_model),
        _post("/v1/chat/completions", openai.chat),
        _post("/v1/responses", responses.respond),
        _post("/v1/responses/input_tokens", responses.count_input),
        # One route, so that a wrong method is told of both.
        Route("/v1/responses/{id}", AsgiEndpoint(responses.stored), methods=["GET", "DELETE"]),
        _get("/v1/responses/{id}/input_items", responses.input_items),
        _post("/v1/completions", openai.completions),
        _post("/v1/embeddings", openai.embeddings),
        _post("/v1/rerank", service.rerank),
        _get("/v1/vector_stores", vector_stores.stores),
        _get("/v1/vector_stores/{id}", vector_stores.one_store),
        _post("/v1/vector_stores/{id}/search", vector_stores.search),
        _post("/v1/messages", anthropic.messages),
        _post("/v1/messages/count_tokens", anthropic.count),
        _post("/api/chat", ollama.chat),
        _post("/api/generate", ollama.generate),
        _post("/api/embed", ollama.embed),
        _post("/api/embeddings", ollama.embeddings),
        _post("/api/show", ollama.show),
        _get("/api/tags", ollama.tags),
        _get("/api/ps", ollama.loaded),
        _get("/api/version", ollama.version),
    ]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _handle_http_exception})
    app.router.redirect_slashes = False
    paths = [route.path for route in routes]
    return _PathNormalizer(AccessLog(AccessPolicy(app, rules), models, paths), paths)


def _get(path: str, work: Work) -> Route:
    return Route(path, AsgiEndpoint(work), methods=["GET"])


def _post(path: str, work: Work) -> Route:
    return Route(path, AsgiEndpoint(work), methods=["POST"])


class _PathNormalizer:
    """Rewrites each path to its canonical form, before anything else looks at it; knows its protocol."""

    def __init__(self, app: ASGIApp, paths: Sequence[str]) -> None:
        self._app = app
        self._paths = frozenset(path for path in paths if "{" not in path)
        self._folders = tuple(path.partition("{")[0] for path in paths if "{" in path)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        scope["path"] = path = self._canonical(scope["path"])
        write = next((write for prefix, write in _ERRORS.items() if path.startswith(prefix)), None)
        if write is not None:
            scope[ERROR_BODY] = write
        await self._app(scope, receive, send)

    def _canonical(self, path: str) -> str:
        """Return the canonical form of a known path, and other paths as they are."""
        path = path.rstrip("/") or "/"
        for candidate in (path, f"/v1{path}", path.removeprefix("/v1")):
            if candidate in self._paths or candidate.startswith(self._folders):
                return candidate
        return path


async def _handle_http_exception(request: Request, error: Exception) -> Response:
    """Answer requests for unknown paths and methods."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    what = "No such path" if status == 404 else "This path does not accept this method"
    refusal = Refusal(f"{what}; GET / lists the paths.", status=status)
    headers = error.headers if isinstance(error, HTTPException) else None
    write = request.scope.get(ERROR_BODY, Refusal.body)
    return Response(write(refusal), status, dict(headers or {}), "application/json")
