"""The JSON schemas of tools and answers, as they came; and errors of the engine that name the field."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from edgechat.base.errors import BadRequest
from edgechat.engine.tool_calls.tools import schema_in
from edgechat.engine.types import Tool
from edgechat.server.refusal import Refusal, refusal_of

SchemaText = Annotated[
    # Left as it came: its length is looked at before anything is made of it.
    Raw, Meta(description="A JSON schema.", extra_json_schema={"type": ["object", "null"]})
]
_ANY = '{"type": "object"}'


@contextmanager
def errors_about(param: str) -> Iterator[None]:
    """Have the engine's complaints name the field that they are about."""
    try:
        yield
    except BadRequest as error:
        found = refusal_of(error)
        raise Refusal(found.message, param=param, code=found.code) from error


def tool_of(
    name: str, description: str | None, parameters: Raw | UnsetType | None, *, strict: bool | None = None
) -> Tool:
    """Return a tool as the engine takes it. Raises BadRequest."""
    tool = Tool(name, description or "", strict=bool(strict))
    text = _text(parameters)
    return msgspec.structs.replace(tool, parameters=text) if text else tool


def answer_schema(sent: Raw | UnsetType | None, param: str) -> str:
    """Return the schema that an answer is to follow, without one that of any object. Raises Refusal."""
    with errors_about(param):
        schema = _text(sent) or _ANY
        schema_in(schema)
    return schema


def arguments_object(text: str) -> Raw:
    """Return a call's arguments as a JSON object in one line, however many the model has written.

    What is no object, in an answer that was cut, stands in one.
    """
    text = text or "{}"
    try:
        is_object = isinstance(msgspec.json.decode(text), dict)
    except msgspec.DecodeError:
        is_object = False
    if is_object:  # formatted as text: numbers stay as they were written
        return Raw(msgspec.json.format(text.encode(), indent=-1))
    return Raw(msgspec.json.encode({"arguments": text}))


def _text(schema: Raw | UnsetType | None) -> str:
    """Return a schema as it came; '' for none. Raises BadRequest."""
    try:
        text = "" if schema is UNSET or schema is None else bytes(schema).decode()
    except UnicodeDecodeError as error:
        raise BadRequest("The schema is not valid UTF-8.") from error
    return "" if text in ("null", "{}") else text
