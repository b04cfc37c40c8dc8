"""The server's OpenAPI 3.1 description: /openapi.json, generated from the operations and their Structs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec

from edgechat import __version__
from edgechat.server.operation import Operation
from edgechat.server.protocol.openai_answers import ChatChunk
from edgechat.server.protocol.responses_request import ITEMS, TOOLS
from edgechat.server.refusal import error_format

_REF = "#/components/schemas/{name}"
STATUSES = {
    "400": "The request is not valid, or does not fit into the context.",
    "401": "The API key is missing or not valid.",
    "403": "The Host or Origin is not allowed, or the server does not give access to documents.",
    "404": "The path, model, stored response or vector store does not exist.",
    "405": "The path does not accept this method.",
    "408": "The body arrived too slowly.",
    "413": "The body is too long.",
    "415": "The body is not uncompressed JSON.",
    "422": "This request has crashed the engine repeatedly.",
    "429": "Too many requests are waiting; see Retry-After.",
    "500": "The engine failed.",
    "503": "The model cannot be loaded at the moment, its engine has crashed, the stored responses or the "
    "documents cannot be read, or the server is stopping.",
}
_GET = ("400", "401", "403", "404", "500")
_NAMED = (ChatChunk, *ITEMS, *TOOLS)
"""Types that other schemas mention only in their descriptions or by reference."""


@cache
def description(operations: tuple[Operation, ...]) -> bytes:
    """Return the OpenAPI description as JSON."""
    paths: dict[str, dict[str, Any]] = {}
    structs: list[type[msgspec.Struct]] = []
    for operation in operations:
        if operation.name:
            path = operation.path.replace(":path}", "}")
            paths.setdefault(path, {})[operation.method.lower()] = _described(operation)
            structs += filter(None, (operation.body, operation.answer, error_format(path)[0]))
    _, schemas = msgspec.json.schema_components([*structs, *_NAMED], ref_template=_REF)
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {"title": "edgechat", "version": __version__},
            "paths": paths,
            "components": {
                "schemas": schemas,
                "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            },
            "security": [{"key": []}],
        }
    )


def _described(operation: Operation) -> dict[str, Any]:
    error, _ = error_format(operation.path)
    statuses = _GET if operation.body is None else tuple(STATUSES)
    answers = {"200": _answer("Success.", operation.answer)}
    answers |= {status: _answer(STATUSES[status], error) for status in statuses}
    answers |= {status: _answer(about, body) for status, (about, body) in operation.also.items()}
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.about,
        "responses": answers,
    }
    if operation.stream:
        data = {"type": "string", "description": operation.stream}
        event = {"schema": {"type": "object", "properties": {"data": data}, "required": ["data"]}}
        answers["200"]["content"][operation.stream_type] = event
    if operation.body is not None:
        described["requestBody"] = {"required": True, "content": _json(operation.body)}
    if parameters := list(_parameters(operation)):
        described["parameters"] = parameters
    if operation.is_open:
        described["security"] = []
    return described


def _parameters(operation: Operation) -> Iterator[dict[str, Any]]:
    if "{id" in operation.path:
        yield {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
    if operation.query is not None:
        _, schemas = msgspec.json.schema_components([operation.query])
        for name, schema in schemas[operation.query.__name__]["properties"].items():
            yield {"name": name, "in": "query", "schema": schema}


def _answer(about: str, body: type[msgspec.Struct] | None) -> dict[str, Any]:
    plain = {"text/plain": {"schema": {"type": "string"}}}
    return {"description": about, "content": plain if body is None else _json(body)}


def _json(body: type[msgspec.Struct]) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": _REF.format(name=body.__name__)}}}
