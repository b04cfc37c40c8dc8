"""The description of the server in OpenAPI 3.1, made of the Structs that it decodes and encodes."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from edgechat import __version__
from edgechat.server.http.refusal import ErrorBody
from edgechat.server.protocol.chat import ChatBody
from edgechat.server.protocol.chat_answer import ChatChunk, ChatCompletion
from edgechat.server.protocol.completions import Completion, CompletionBody
from edgechat.server.protocol.embeddings import EmbeddingBody, EmbeddingList
from edgechat.server.protocol.listing import Health, ModelEntry, ModelList
from edgechat.server.protocol.translating import DetokenizeBody, TokenizeBody, TokenList, TokensText

_REF = "#/components/schemas/{name}"
_STATUSES = {
    "400": "The request is not valid, or does not fit into the context.",
    "401": "The API key is missing or not valid.",
    "403": "The Host or Origin is not allowed.",
    "404": "The path or model does not exist.",
    "405": "The path does not accept this method.",
    "408": "The body arrived too slowly.",
    "413": "The body is too long.",
    "415": "The body is not uncompressed JSON.",
    "422": "This request has crashed the engine repeatedly.",
    "429": "Too many requests are waiting; see Retry-After.",
    "500": "The engine failed.",
    "503": "The model cannot be loaded now, its engine has crashed, or the server is stopping.",
}
_GET = ("400", "401", "403", "404", "500")
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
        TokenizeBody,
        TokenList,
        DetokenizeBody,
        TokensText,
        ModelList,
        ModelEntry,
        Health,
        ErrorBody,
    )
    _, schemas = msgspec.json.schema_components(structs, ref_template=_REF)
    health = _operation(
        "health", "Return whether the server is loading, ready, degraded or draining.", Health, _GET
    )
    health["responses"]["503"] = _answer("The model is being loaded, or the server is stopping.", Health)
    health["security"] = []
    entry = _operation("model", "Return one model.", ModelEntry, _GET)
    entry["parameters"] = [{"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}]
    about = _plain("about", "Return an overview of the endpoints.")
    about["security"] = []
    paths = {
        "/v1/chat/completions": _post(
            "chat", "Create a chat completion.", ChatBody, ChatCompletion, ChatChunk
        ),
        "/v1/completions": _post(
            "complete", "Create a text completion.", CompletionBody, Completion, Completion
        ),
        "/v1/embeddings": _post("embed", "Create embeddings.", EmbeddingBody, EmbeddingList),
        "/tokenize": _post("tokenize", "Return the tokens of a text.", TokenizeBody, TokenList),
        "/detokenize": _post("detokenize", "Return the text of tokens.", DetokenizeBody, TokensText),
        "/v1/models": {"get": _operation("models", "List the models.", ModelList, _GET)},
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
    name: str, about: str, body: type[Any], answer: type[Any], chunk: type[Any] | None = None
) -> dict[str, Any]:
    operation = _operation(name, about, answer, _POST)
    operation["requestBody"] = {"required": True, "content": _json(body)}
    if chunk is not None:
        data = {"type": "string", "description": f"A {chunk.__name__}, an ErrorBody, or [DONE] at the end."}
        events = {"schema": {"type": "object", "properties": {"data": data}, "required": ["data"]}}
        operation["responses"]["200"]["content"]["text/event-stream"] = events
    return {"post": operation}


def _operation(name: str, about: str, answer: type[Any], statuses: tuple[str, ...]) -> dict[str, Any]:
    responses = {status: _answer(_STATUSES[status], ErrorBody) for status in statuses}
    return {
        "operationId": name,
        "summary": about,
        "responses": {"200": _answer("Success.", answer), **responses},
    }


def _plain(name: str, about: str) -> dict[str, Any]:
    operation = _operation(name, about, ErrorBody, _GET)
    operation["responses"]["200"]["content"] = {"text/plain": {"schema": {"type": "string"}}}
    return operation


def _answer(about: str, body: type[Any]) -> dict[str, Any]:
    return {"description": about, "content": _json(body)}


def _json(body: type[Any]) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": _REF.format(name=body.__name__)}}}
