"""The description of the server in OpenAPI 3.1, made of the Structs that it decodes and encodes."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from edgechat import __version__
from edgechat.server.protocol.anthropic import CountBody, MessagesBody, TokenCount
from edgechat.server.protocol.anthropic_answer import AnswerBlocks
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
    VectorStoreBody,
    VectorStorePage,
    VersionBody,
)
from edgechat.server.protocol.ollama import (
    EmbedAnswer,
    EmbedBody,
    EmbeddingsAnswer,
    EmbeddingsBody,
    GenerateBody,
    GenerateLine,
    OllamaChatBody,
    OllamaChatLine,
)
from edgechat.server.protocol.openai_answers import ChatChunk, ChatCompletion
from edgechat.server.protocol.openai_chat import ChatBody
from edgechat.server.protocol.openai_texts import (
    Completion,
    CompletionBody,
    DetokenizeBody,
    EmbeddingBody,
    EmbeddingList,
    RerankBody,
    RerankList,
    TokenizeBody,
    TokenList,
    TokensText,
)
from edgechat.server.protocol.responses_items import CallItem, CallOutputItem, MessageItem, ReasoningItem
from edgechat.server.protocol.responses_request import (
    CustomToolParam,
    FileSearchParam,
    FunctionToolParam,
    InputBody,
    NamespaceParam,
    ResponseBody,
)
from edgechat.server.protocol.responses_store import (
    DeletedResponse,
    InputItems,
    InputTokens,
    ItemsQuery,
    Response,
    ResponseQuery,
)
from edgechat.server.refusal import ErrorBody, MessagesError, OllamaError

_REF = "#/components/schemas/{name}"
_STATUSES = {
    "400": "The request is not valid, or does not fit into the context.",
    "401": "The API key is missing or not valid.",
    "403": "The Host or Origin is not allowed, or the server gives no access to documents.",
    "404": "The path, model, stored response or vector store does not exist.",
    "405": "The path does not accept this method.",
    "408": "The body arrived too slowly.",
    "413": "The body is too long.",
    "415": "The body is not uncompressed JSON.",
    "422": "This request has crashed the engine repeatedly.",
    "429": "Too many requests are waiting; see Retry-After.",
    "500": "The engine failed.",
    "503": "The model cannot be loaded now, its engine has crashed, the stored responses or the documents "
    "cannot be read, or the server is stopping.",
}
_CHUNKS = "A {}, an ErrorBody, or [DONE] at the end."
_RESPONSE_EVENTS = (
    "An event of the Responses API, from response.created to response.completed, response.incomplete or "
    "response.failed."
)
_MESSAGE_EVENTS = "An event of the Messages API, from message_start to message_stop, or error."
_LINES = "A line of the same form, as JSON, or an OllamaError; the last one has done: true."
_GET = ("400", "401", "403", "404", "500")
_STORED = (*_GET, "503")
_POST = tuple(_STATUSES)


@cache
def description() -> bytes:
    """Return the JSON of it."""
    return msgspec.json.encode(_described())


def _described() -> dict[str, Any]:
    structs = (
        ChatBody,
        ChatCompletion,
        ChatChunk,
        CompletionBody,
        Completion,
        EmbeddingBody,
        EmbeddingList,
        RerankBody,
        RerankList,
        TokenizeBody,
        TokenList,
        DetokenizeBody,
        TokensText,
        ModelList,
        ModelEntry,
        Health,
        ErrorBody,
        ResponseBody,
        InputBody,
        MessageItem,
        CallItem,
        CallOutputItem,
        ReasoningItem,
        FunctionToolParam,
        CustomToolParam,
        NamespaceParam,
        Response,
        InputTokens,
        DeletedResponse,
        InputItems,
        FileSearchParam,
        VectorStoreBody,
        VectorStorePage,
        StoreSearchBody,
        FoundPage,
        MessagesBody,
        CountBody,
        AnswerBlocks,
        TokenCount,
        MessagesError,
        OllamaChatBody,
        OllamaChatLine,
        GenerateBody,
        GenerateLine,
        EmbedBody,
        EmbedAnswer,
        EmbeddingsBody,
        EmbeddingsAnswer,
        ShowBody,
        ShownModelBody,
        TagList,
        VersionBody,
        OllamaError,
    )
    _, schemas = msgspec.json.schema_components(structs, ref_template=_REF)
    health = _operation(
        "health", "Return whether the server is loading, ready, degraded or draining.", Health, _GET
    )
    health["responses"]["503"] = _answer("The model is being loaded, or the server is stopping.", Health)
    health["security"] = []
    entry = _of_one(_operation("model", "Return one model.", ModelEntry, _GET))
    models = _with_query(_operation("models", "List the models.", ModelList, _GET), ModelsQuery)
    response = _with_query(
        _operation("response", "Return a stored response.", Response, _STORED), ResponseQuery
    )
    deletion = _operation("deleteResponse", "Delete a stored response.", DeletedResponse, _STORED)
    items = _with_query(
        _operation("inputItems", "Return the input of a stored response.", InputItems, _STORED), ItemsQuery
    )
    stores = _with_query(
        _operation("vectorStores", "List the documents that may be used.", VectorStorePage, _STORED),
        StoresQuery,
    )
    store = _operation("vectorStore", "Return how much there is of documents.", VectorStoreBody, _STORED)
    search = _post("searchVectorStore", "Search in documents.", StoreSearchBody, FoundPage)
    about = _plain("about", "Return an overview of the endpoints.")
    about["security"] = []
    paths = {
        "/v1/chat/completions": _post(
            "chat", "Create a chat completion.", ChatBody, ChatCompletion, _CHUNKS.format("ChatChunk")
        ),
        "/v1/completions": _post(
            "complete", "Create a text completion.", CompletionBody, Completion, _CHUNKS.format("Completion")
        ),
        "/v1/responses": _post("respond", "Create a response.", ResponseBody, Response, _RESPONSE_EVENTS),
        "/v1/responses/input_tokens": _post(
            "countInput", "Return the number of tokens of an input.", InputBody, InputTokens
        ),
        "/v1/responses/{id}": {"get": _of_one(response), "delete": _of_one(deletion)},
        "/v1/responses/{id}/input_items": {"get": _of_one(items)},
        "/v1/vector_stores": {"get": stores},
        "/v1/vector_stores/{id}": {"get": _of_one(store)},
        "/v1/vector_stores/{id}/search": {"post": _of_one(search["post"])},
        "/v1/messages": _post(
            "message", "Create a message.", MessagesBody, AnswerBlocks, _MESSAGE_EVENTS, MessagesError
        ),
        "/v1/messages/count_tokens": _post(
            "countMessages",
            "Return the number of tokens of a chat.",
            CountBody,
            TokenCount,
            error=MessagesError,
        ),
        "/api/chat": _post(
            "ollamaChat", "Answer in a chat.", OllamaChatBody, OllamaChatLine, _LINES, OllamaError
        ),
        "/api/generate": _post(
            "ollamaGenerate", "Answer a prompt.", GenerateBody, GenerateLine, _LINES, OllamaError
        ),
        "/api/embed": _post("ollamaEmbed", "Create embeddings.", EmbedBody, EmbedAnswer, error=OllamaError),
        "/api/embeddings": _post(
            "ollamaEmbeddings", "Create an embedding.", EmbeddingsBody, EmbeddingsAnswer, error=OllamaError
        ),
        "/api/show": _post("ollamaShow", "Return one model.", ShowBody, ShownModelBody, error=OllamaError),
        "/api/tags": {"get": _operation("ollamaTags", "List the models.", TagList, _GET, OllamaError)},
        "/api/ps": {"get": _operation("ollamaPs", "List the loaded models.", TagList, _GET, OllamaError)},
        "/api/version": {
            "get": _operation("ollamaVersion", "Return the version.", VersionBody, _GET, OllamaError)
        },
        "/v1/embeddings": _post("embed", "Create embeddings.", EmbeddingBody, EmbeddingList),
        "/v1/rerank": _post("rerank", "Rank documents for a query.", RerankBody, RerankList),
        "/tokenize": _post("tokenize", "Return the tokens of a text.", TokenizeBody, TokenList),
        "/detokenize": _post("detokenize", "Return the text of tokens.", DetokenizeBody, TokensText),
        "/v1/models": {"get": models},
        "/v1/models/{id}": {"get": entry},
        "/health": {"get": health},
        "/metrics": {"get": _plain("metrics", "Return metrics in the Prometheus text format.")},
        "/": {"get": about},
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "edgechat", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}],
    }


def _post(
    name: str,
    about: str,
    body: type[Any],
    answer: type[Any],
    stream: str | None = None,
    error: type[Any] = ErrorBody,
) -> dict[str, Any]:
    """Describe a POST. stream: what the data of a stream's events (or its lines) is, if there can be one."""
    operation = _operation(name, about, answer, _POST, error)
    operation["requestBody"] = {"required": True, "content": _json(body)}
    if stream is not None:
        data = {"type": "string", "description": stream}
        events = {"schema": {"type": "object", "properties": {"data": data}, "required": ["data"]}}
        kind = "application/x-ndjson" if stream is _LINES else "text/event-stream"
        operation["responses"]["200"]["content"][kind] = events
    return {"post": operation}


def _operation(
    name: str, about: str, answer: type[Any], statuses: tuple[str, ...], error: type[Any] = ErrorBody
) -> dict[str, Any]:
    responses = {status: _answer(_STATUSES[status], error) for status in statuses}
    return {
        "operationId": name,
        "summary": about,
        "responses": {"200": _answer("Success.", answer), **responses},
    }


def _of_one(operation: dict[str, Any]) -> dict[str, Any]:
    """Add the {id} of a path to the parameters."""
    path = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
    return operation | {"parameters": [path, *operation.get("parameters", [])]}


def _with_query(operation: dict[str, Any], query: type[Any]) -> dict[str, Any]:
    """Add the parameters of a query, as a Struct decodes them."""
    _, schemas = msgspec.json.schema_components([query])
    properties = schemas[query.__name__]["properties"]
    parameters = [{"name": name, "in": "query", "schema": schema} for name, schema in properties.items()]
    return operation | {"parameters": parameters}


def _plain(name: str, about: str) -> dict[str, Any]:
    operation = _operation(name, about, ErrorBody, _GET)
    operation["responses"]["200"]["content"] = {"text/plain": {"schema": {"type": "string"}}}
    return operation


def _answer(about: str, body: type[Any]) -> dict[str, Any]:
    return {"description": about, "content": _json(body)}


def _json(body: type[Any]) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": _REF.format(name=body.__name__)}}}
