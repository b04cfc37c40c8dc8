"""The table of the server's operations, and the ASGI app that routes requests to them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TypeVar

import msgspec
from msgspec import UNSET, Raw
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response as HttpResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from edgechat.base.errors import ModelNotFound
from edgechat.engine.types import ChatRequest
from edgechat.server import openapi
from edgechat.server.access import AccessLog, AccessPolicy, AccessRules, KnownPaths
from edgechat.server.documents import AskedDocuments, VectorStoreBody, asked_documents
from edgechat.server.exchange import MODEL, TRUSTED, ClientDisconnected, Exchange
from edgechat.server.operation import Operation, Services, embed, generate, load, path_id, translate
from edgechat.server.pool.metrics import CONTENT_TYPE
from edgechat.server.pool.models import State
from edgechat.server.protocol.anthropic import CountBody, MessagesBody, TokenCount
from edgechat.server.protocol.anthropic_answer import AnswerBlocks, MessagesAnswers
from edgechat.server.protocol.body import not_heeded, off_loop
from edgechat.server.protocol.fields import vector_json
from edgechat.server.protocol.listing import (
    FoundPage,
    Health,
    ModelEntry,
    ModelList,
    ModelsQuery,
    ShowBody,
    ShownModelBody,
    StoreSearchBody,
    StoresQuery,
    TagList,
    VectorStorePage,
    VersionBody,
    found_page,
)
from edgechat.server.protocol.ollama import (
    EmbedAnswer,
    EmbedBody,
    EmbeddingsAnswer,
    EmbeddingsBody,
    GenerateAnswers,
    GenerateBody,
    GenerateLine,
    OllamaAnswers,
    OllamaChatAnswers,
    OllamaChatBody,
    OllamaChatLine,
    embed_answer,
    model_of,
    unloads,
)
from edgechat.server.protocol.openai_answers import ChatAnswers, ChatCompletion
from edgechat.server.protocol.openai_chat import ChatBody
from edgechat.server.protocol.openai_texts import (
    Completion,
    CompletionAnswers,
    CompletionBody,
    DetokenizeBody,
    EmbeddingBody,
    EmbeddingList,
    RerankBody,
    RerankList,
    TokenizeBody,
    TokenList,
    TokensText,
    embedding_list,
)
from edgechat.server.protocol.responses_answer import ResponseAnswers
from edgechat.server.protocol.responses_items import references_of
from edgechat.server.protocol.responses_request import InputBody, ResponseBody, toolbox_of
from edgechat.server.protocol.responses_store import (
    DeletedResponse,
    InputItems,
    InputTokens,
    ItemsQuery,
    Response,
    ResponseQuery,
    StoredResponses,
)
from edgechat.server.refusal import ErrorBody, Refusal, error_format, refusal_of

_ABOUT = b"""edgechat serves this machine's models over the OpenAI, Anthropic and Ollama protocols.

POST /v1/chat/completions   chat completions
POST /v1/responses          OpenAI's Responses API; GET and DELETE /v1/responses/ID: stored responses
POST /v1/messages           Anthropic's Messages API
POST /v1/completions        text completions
GET  /v1/vector_stores      documents that requests can name; POST /v1/vector_stores/ID/search
POST /v1/embeddings         embeddings, by embedding models
POST /v1/rerank             documents ranked for a query, by reranking models
POST /api/chat              Ollama's API; also /api/generate, /api/embed, /api/tags
POST /tokenize              tokens of a text; POST /detokenize: text of tokens; /v1/responses/input_tokens
                            and /v1/messages/count_tokens count the tokens of a chat
GET  /v1/models             models that can be requested
GET  /health                loading, ready, degraded or draining
GET  /metrics               metrics for Prometheus
GET  /openapi.json          description of all of these

Paths also work without /v1, and with a slash at the end.
If the server has a key, all paths but this one and /health require it: 'Authorization: Bearer KEY' or
'x-api-key: KEY'.
"""
_RETRY: dict[State, str] = {"loading": "1", "draining": "5"}
"""Value of Retry-After, in seconds, for states in which the server is not ready."""


async def _embed(exchange: Exchange, services: Services, body: EmbeddingBody) -> bytes:
    sent = body.model or "", body.texts()
    name, embedded, _ = await embed(exchange, services, *sent, dimensions=body.dimensions)
    return await asyncio.to_thread(embedding_list, body, name, embedded)


async def _rerank(exchange: Exchange, services: Services, body: RerankBody) -> RerankList:
    name, scored, _ = await embed(exchange, services, body.model or "", body.texts, query=body.query)
    return RerankList.of(body, name, scored)


async def _tokenize(exchange: Exchange, services: Services, body: TokenizeBody) -> TokenList:
    options = {"bos": bool(body.add_special), "special": bool(body.parse_special)}
    return TokenList((await translate(exchange, services, body.model, body.content, **options)).tokens)


async def _detokenize(exchange: Exchange, services: Services, body: DetokenizeBody) -> TokensText:
    translated = await translate(exchange, services, body.model, tuple(body.tokens))
    return TokensText(translated.text.decode("utf-8", "replace"))


Counted = tuple[str | None, ChatRequest, AskedDocuments | None]
"""The model, the chat, and the documents to search for passages."""


def _counted(body: CountBody, _think: bool | None) -> Counted:
    return body.model, body.engine_request(), asked_documents(body.docs)


async def _count(exchange: Exchange, services: Services, counted: Counted) -> TokenCount:
    return TokenCount(len((await translate(exchange, services, *counted)).tokens))


B = TypeVar("B", bound=InputBody)
References = dict[str, str]
"""The ids of the stored items that an input refers to, keyed by the path of the reference ('input[0]')."""


def _with_references(body: B, _think: bool | None) -> tuple[B, References]:
    return body, references_of(body.input or ())


async def _respond(exchange: Exchange, services: Services, sent: tuple[ResponseBody, References]) -> None:
    body, references = sent
    stored = StoredResponses(services.store)
    keep = stored.keeper(body.store)
    if services.strict and body.store and keep is None:
        raise not_heeded("store")
    earlier = await stored.earlier(body.previous_response_id, references)
    size = exchange.body_bytes + earlier.size
    answers = await off_loop(size, lambda: ResponseAnswers(body, services.think, earlier, keep))
    await generate(exchange, services, answers)


async def _count_input(
    exchange: Exchange, services: Services, sent: tuple[InputBody, References]
) -> InputTokens:
    body, references = sent
    earlier = await StoredResponses(services.store).earlier(body.previous_response_id, references)

    def counted() -> Counted:
        box = toolbox_of(body.tools or ())
        return body.model, body.engine_request(box, earlier), body.documents(box)

    asked = await off_loop(exchange.body_bytes + earlier.size, counted)
    return InputTokens(input_tokens=len((await translate(exchange, services, *asked)).tokens))


async def _response(exchange: Exchange, services: Services, _query: ResponseQuery) -> bytes:
    return await StoredResponses(services.store).response(path_id(exchange))


async def _delete_response(exchange: Exchange, services: Services) -> DeletedResponse:
    return await StoredResponses(services.store).delete(path_id(exchange))


async def _input_items(exchange: Exchange, services: Services, query: ItemsQuery) -> InputItems:
    return await StoredResponses(services.store).input_items(path_id(exchange), query)


async def _vector_stores(_: Exchange, services: Services, query: StoresQuery) -> VectorStorePage:
    return VectorStorePage.of(await services.documents.usable(), query)


async def _vector_store(exchange: Exchange, services: Services) -> VectorStoreBody:
    name = path_id(exchange)
    await services.documents.check([name], status=404)
    return await services.documents.vector_store(name)


async def _search_vector_store(exchange: Exchange, services: Services, body: StoreSearchBody) -> FoundPage:
    name = path_id(exchange)
    await services.documents.check([name], status=404)
    await services.documents.prepare(AskedDocuments((name,)))
    return found_page(body, await services.documents.search(name, body.text, body.max_num_results))


async def _ollama(exchange: Exchange, services: Services, answers: OllamaAnswers) -> bytes | None:
    model, keep_alive = answers.requested_model, answers.body.keep_alive
    if not answers.body.is_empty:
        try:
            await generate(exchange, services, answers)
        finally:
            await _unload_after(services, keep_alive, model)
        return None
    if not unloads(keep_alive):
        answers.model = await load(exchange, services, model)
        return answers.empty("load")
    answers.model = await services.models.unload(model)
    exchange.scope[MODEL] = answers.model
    return answers.empty("unload")


async def _unload_after(services: Services, keep_alive: str | float | None, model: str) -> None:
    """Unload the model after an answer, if the client asked to. Other requests for the model finish first."""
    if unloads(keep_alive):
        with suppress(ModelNotFound):  # the answer has already reported it
            await services.models.unload(model)


async def _ollama_embed(exchange: Exchange, services: Services, body: EmbedBody) -> bytes:
    began, model = time.monotonic(), model_of(body.model)
    try:
        name, embedded, load_seconds = await embed(
            exchange, services, model, body.texts, dimensions=body.dimensions, cut=body.truncate is True
        )
    finally:
        await _unload_after(services, body.keep_alive, model)
    seconds = {"total": time.monotonic() - began, "load": load_seconds}
    return await asyncio.to_thread(embed_answer, name, embedded, **seconds)


async def _ollama_embeddings(
    exchange: Exchange, services: Services, body: EmbeddingsBody
) -> EmbeddingsAnswer:
    """Embed a prompt. An empty prompt only loads the model, which is how clients warm it up."""
    model = model_of(body.model)
    try:
        if not body.prompt:
            await load(exchange, services, model)
            return EmbeddingsAnswer(embedding=Raw(b"[]"))
        _, embedded, _ = await embed(exchange, services, model, [body.prompt])
    finally:
        await _unload_after(services, body.keep_alive, model)
    return EmbeddingsAnswer(embedding=vector_json(embedded.vectors[0]))


async def _show(_: Exchange, services: Services, body: ShowBody) -> ShownModelBody:
    name = model_of(body.model or body.name)
    return await asyncio.to_thread(lambda: ShownModelBody.of(services.models.card(name)))


async def _tags(_: Exchange, services: Services) -> TagList:
    return TagList.of(await asyncio.to_thread(services.models.names))


async def _loaded(_: Exchange, services: Services) -> TagList:
    cards = await asyncio.to_thread(services.models.names)
    return TagList.of([card for card in cards if card.loaded])


async def _version(_: Exchange, _services: Services) -> VersionBody:
    return VersionBody()


async def _models(_: Exchange, services: Services, query: ModelsQuery) -> ModelList:
    return ModelList.of(await asyncio.to_thread(services.models.names), query)


async def _model(exchange: Exchange, services: Services) -> ModelEntry:
    return ModelEntry.of(await asyncio.to_thread(services.models.card, path_id(exchange)))


async def _health(exchange: Exchange, services: Services) -> Health | None:
    state, sentence = services.models.state
    health = Health(state, sentence if exchange.scope[TRUSTED] else UNSET)
    if state not in _RETRY:
        return health
    await exchange.answer(503, msgspec.json.encode(health), ("retry-after", _RETRY[state]))
    return None


async def _metrics(exchange: Exchange, services: Services) -> None:
    await exchange.answer(200, await services.models.metrics_text(), kind=CONTENT_TYPE)


async def _about(exchange: Exchange, _: Services) -> None:
    await exchange.answer(200, _ABOUT, kind="text/plain; charset=utf-8")


async def _describe(_: Exchange, _services: Services) -> bytes:
    return openapi.description(OPERATIONS)


_CHUNKS = "A {}, an ErrorBody, or [DONE] at the end."
_RESPONSE_EVENTS = (
    "An event of the Responses API, from response.created to response.completed, response.incomplete or "
    "response.failed."
)
_MESSAGE_EVENTS = "An event of the Messages API, from message_start to message_stop, or error."
_LINES = "A line of the same form, as JSON, or an OllamaError; the last one has done: true."
_NDJSON = "application/x-ndjson"
_STORED = {"503": (openapi.STATUSES["503"], ErrorBody)}

OPERATIONS = (
    Operation(
        "POST",
        "/v1/chat/completions",
        generate,
        "chat",
        "Create a chat completion.",
        ChatCompletion,
        body=ChatBody,
        make=ChatAnswers,
        stream=_CHUNKS.format("ChatChunk"),
    ),
    Operation(
        "POST",
        "/v1/completions",
        generate,
        "complete",
        "Create a text completion.",
        Completion,
        body=CompletionBody,
        make=lambda body, _think: CompletionAnswers(body),
        stream=_CHUNKS.format("Completion"),
    ),
    Operation(
        "POST",
        "/v1/responses",
        _respond,
        "respond",
        "Create a response.",
        Response,
        body=ResponseBody,
        make=_with_references,
        stream=_RESPONSE_EVENTS,
    ),
    Operation(
        "POST",
        "/v1/responses/input_tokens",
        _count_input,
        "countInput",
        "Return the number of tokens in an input.",
        InputTokens,
        body=InputBody,
        make=_with_references,
    ),
    Operation(
        "GET",
        "/v1/responses/{id}",
        _response,
        "response",
        "Return a stored response.",
        Response,
        query=ResponseQuery,
        also=_STORED,
    ),
    Operation(
        "DELETE",
        "/v1/responses/{id}",
        _delete_response,
        "deleteResponse",
        "Delete a stored response.",
        DeletedResponse,
        also=_STORED,
    ),
    Operation(
        "GET",
        "/v1/responses/{id}/input_items",
        _input_items,
        "inputItems",
        "Return the input of a stored response.",
        InputItems,
        query=ItemsQuery,
        also=_STORED,
    ),
    Operation(
        "GET",
        "/v1/vector_stores",
        _vector_stores,
        "vectorStores",
        "List the available document collections.",
        VectorStorePage,
        query=StoresQuery,
        also=_STORED,
    ),
    Operation(
        "GET",
        "/v1/vector_stores/{id}",
        _vector_store,
        "vectorStore",
        "Return the size of a document collection.",
        VectorStoreBody,
        also=_STORED,
    ),
    Operation(
        "POST",
        "/v1/vector_stores/{id}/search",
        _search_vector_store,
        "searchVectorStore",
        "Search a document collection.",
        FoundPage,
        body=StoreSearchBody,
    ),
    Operation(
        "POST",
        "/v1/messages",
        generate,
        "message",
        "Create a message.",
        AnswerBlocks,
        body=MessagesBody,
        make=MessagesAnswers,
        stream=_MESSAGE_EVENTS,
    ),
    Operation(
        "POST",
        "/v1/messages/count_tokens",
        _count,
        "countMessages",
        "Return the number of tokens in a chat.",
        TokenCount,
        body=CountBody,
        make=_counted,
    ),
    Operation(
        "POST",
        "/api/chat",
        _ollama,
        "ollamaChat",
        "Generate the next message in a chat.",
        OllamaChatLine,
        body=OllamaChatBody,
        make=OllamaChatAnswers,
        stream=_LINES,
        stream_type=_NDJSON,
    ),
    Operation(
        "POST",
        "/api/generate",
        _ollama,
        "ollamaGenerate",
        "Answer a prompt.",
        GenerateLine,
        body=GenerateBody,
        make=GenerateAnswers,
        stream=_LINES,
        stream_type=_NDJSON,
    ),
    Operation(
        "POST", "/api/embed", _ollama_embed, "ollamaEmbed", "Create embeddings.", EmbedAnswer, body=EmbedBody
    ),
    Operation(
        "POST",
        "/api/embeddings",
        _ollama_embeddings,
        "ollamaEmbeddings",
        "Create an embedding.",
        EmbeddingsAnswer,
        body=EmbeddingsBody,
    ),
    Operation("POST", "/api/show", _show, "ollamaShow", "Return one model.", ShownModelBody, body=ShowBody),
    Operation("GET", "/api/tags", _tags, "ollamaTags", "List the models.", TagList),
    Operation("GET", "/api/ps", _loaded, "ollamaPs", "List the loaded models.", TagList),
    Operation("GET", "/api/version", _version, "ollamaVersion", "Return the version.", VersionBody),
    Operation(
        "POST", "/v1/embeddings", _embed, "embed", "Create embeddings.", EmbeddingList, body=EmbeddingBody
    ),
    Operation(
        "POST", "/v1/rerank", _rerank, "rerank", "Rank documents for a query.", RerankList, body=RerankBody
    ),
    Operation(
        "POST",
        "/tokenize",
        _tokenize,
        "tokenize",
        "Convert text to tokens.",
        TokenList,
        body=TokenizeBody,
    ),
    Operation(
        "POST",
        "/detokenize",
        _detokenize,
        "detokenize",
        "Convert tokens to text.",
        TokensText,
        body=DetokenizeBody,
    ),
    Operation("GET", "/v1/models", _models, "models", "List the models.", ModelList, query=ModelsQuery),
    Operation("GET", "/v1/models/{id:path}", _model, "model", "Return one model.", ModelEntry),
    Operation(
        "GET",
        "/health",
        _health,
        "health",
        "Return whether the server is loading, ready, degraded or draining.",
        Health,
        also={"503": ("The model is being loaded, or the server is stopping.", Health)},
        is_open=True,
    ),
    Operation("GET", "/metrics", _metrics, "metrics", "Return metrics in the Prometheus text format."),
    Operation("GET", "/", _about, "about", "Return an overview of the endpoints.", is_open=True),
    Operation("GET", "/openapi.json", _describe),
)


def make_app(services: Services, rules: AccessRules) -> ASGIApp:
    """Return the ASGI app, guarded by the access rules."""
    by_path: dict[str, dict[str, Operation]] = {}
    for operation in OPERATIONS:
        by_path.setdefault(operation.path, {})[operation.method] = operation
    # One route per path, so that the response to an unsupported method lists all supported ones.
    routes = [
        Route(path, _Endpoint(operations, services), methods=list(operations))
        for path, operations in by_path.items()
    ]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _handle_http_exception})
    app.router.redirect_slashes = False
    return AccessLog(AccessPolicy(app, rules), services.models.metrics, KnownPaths(by_path))


class _Endpoint:
    """ASGI app for the operations on one path. Avoids Starlette's responses, which would buffer data."""

    def __init__(self, operations: Mapping[str, Operation], services: Services) -> None:
        self._operations = operations
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send)
        operation = self._operations["GET" if scope["method"] == "HEAD" else scope["method"]]
        with suppress(ClientDisconnected):
            try:
                await operation.answer_to(exchange, self._services)
            except Exception as error:
                if isinstance(error, ClientDisconnected) or exchange.status:
                    raise
                await exchange.refuse(refusal_of(error))


async def _handle_http_exception(request: Request, error: Exception) -> HttpResponse:
    """Answer requests with unknown paths or methods."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    what = "No such path" if status == 404 else "This path does not accept this method"
    headers = error.headers if isinstance(error, HTTPException) else None
    _, encode = error_format(request.scope["path"])
    body = encode(Refusal(f"{what}; GET / lists the paths.", status=status))
    return HttpResponse(body, status, dict(headers or {}), "application/json")
