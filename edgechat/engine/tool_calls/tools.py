"""A request's tools: checks on untrusted input, and the forms that templates and parsers expect."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from edgechat.base.errors import BadRequest, SchemaError
from edgechat.engine.tool_calls.scan import DEEPEST, JsonScan, Kinds, is_shallow
from edgechat.engine.types import ChatRequest, Tool

MOST_TOOLS = 128
"""Maximum number of tools in a request, the same as OpenAI's."""
MOST_CHARACTERS = 2**18
"""Maximum total length of all tools, in characters: about 60,000 tokens."""
COMBINED = ("$ref", "anyOf", "oneOf", "allOf")
"""Keywords that combine several schemas."""
LONGEST_SCHEMA = 128 * 1024
"""Maximum length of a schema, in characters. The schemas of large APIs are a tenth as long."""

VALUES = frozenset(("const", "enum", "default", "examples"))
"""Keywords whose values are not schemas."""
_SCHEMA_MAPS = frozenset(("properties", "patternProperties", "$defs", "definitions"))
"""Keywords that contain named schemas."""
_UNSUPPORTED = (
    frozenset(("uniqueItems", "propertyNames", "not", "contains", "minContains", "maxContains", "if", "then"))
    | frozenset(("else", "dependencies", "dependentRequired", "dependentSchemas", "unevaluatedItems"))
    | frozenset(("unevaluatedProperties", "$dynamicRef", "$dynamicAnchor", "$recursiveRef"))
)
"""Keywords that a grammar cannot enforce."""
_LOOKAROUND = re.compile(r"\(\?(?:[=!]|<[=!])|\\[1-9]")  # lookaround and backreferences in a pattern
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def check(request: ChatRequest) -> None:
    """Raise SchemaError or BadRequest unless a request's tools can be used."""
    if request.tools and request.text is not None:
        raise BadRequest("Text completions do not support tools.", hint="Send messages instead.")
    check_tools(request.tools)
    check_choice(request)


def check_tools(tools: Sequence[Tool]) -> None:
    """Raise SchemaError unless tools can be described to a model."""
    size = sum(len(tool.description) + len(tool.parameters) for tool in tools)
    if len(tools) > MOST_TOOLS or size > MOST_CHARACTERS:
        raise SchemaError(
            f"{len(tools)} tools with {size} characters exceed the limit for a request.",
            hint=f"Send at most {MOST_TOOLS} tools with {MOST_CHARACTERS} characters.",
        )
    for tool in tools:
        if not _NAME.fullmatch(tool.name):
            raise SchemaError(
                f"{tool.name[:80]!r} is not a valid name for a tool.",
                hint="Use up to 64 letters, digits, _, - and dots.",
            )
        parameters_of(tool)
    if len({tool.name for tool in tools}) < len(tools):
        raise SchemaError("Two tools have the same name.", hint="Give each tool a unique name.")


def check_choice(request: ChatRequest) -> None:
    """Raise SchemaError if a required call is impossible."""
    if request.tool_choice == "required" and not request.tools:
        raise SchemaError(
            "A tool call is required, but no tools were sent.", hint="Send the tools with the request."
        )
    if request.tool is not None and all(tool.name != request.tool for tool in request.tools):
        raise SchemaError(f"{request.tool[:80]!r} must be called, but is not one of the tools.")


def parameters_of(tool: Tool) -> dict[str, Any]:
    """Return the schema of a tool's arguments. Raises SchemaError if it is invalid, too long or too deep."""
    _check_length(f"The parameters of the tool {tool.name} have", tool.parameters)
    schema = object_in(tool.parameters)
    properties = schema.get("properties", {}) if schema is not None else None
    if schema is None or schema.get("type", "object") != "object" or not isinstance(properties, dict):
        raise SchemaError(
            f"The parameters of the tool {tool.name} are not a JSON schema for an object.",
            hint='Send a schema that begins with {"type": "object"; it can be up to 64 levels deep.',
        )
    return schema


def constrained_tools(request: ChatRequest) -> tuple[Tool, ...]:
    """Return the tools whose calls must follow their schemas."""
    if request.tool is not None:
        return tuple(tool for tool in request.tools if tool.name == request.tool)
    has_grammar = request.tool_choice == "required" or request.schema is not None
    return request.tools if has_grammar or any(tool.strict for tool in request.tools) else ()


def unenforceable(tools: Sequence[Tool]) -> list[str]:
    """Return the parts of the tools' schemas that a grammar cannot enforce, each as 'TOOL: PLACE'."""
    return [f"{tool.name}: {where}" for tool in tools for where in relaxed(parameters_of(tool))[1]]


def check_top_level(tool: Tool, schema: dict[str, Any]) -> None:
    """Raise SchemaError unless a tool's schema names all arguments at its top level."""
    if combined := next((key for key in COMBINED if key in schema), None):
        raise SchemaError(
            f"The parameters of {tool.name} have {combined} at the top level, which cannot be enforced for "
            "this model.",
            hint="List all properties at the top level, or use tool_choice auto without strict.",
        )


def object_in(text: str) -> dict[str, Any] | None:
    """Return the JSON object in `text`, or None if it is not one or cannot be sent to other processes."""
    try:
        value = msgspec.json.decode(text) if is_shallow(text) else None
        msgspec.msgpack.encode(value)  # rejects numbers that cannot be sent to other processes
    except (msgspec.MsgspecError, OverflowError):
        return None
    return value if isinstance(value, dict) else None


_NOTHING = ("", "null", '""')
"""What models and clients write when a call has no arguments."""


def arguments_in(text: str) -> dict[str, Any]:
    """Return an earlier call's arguments. Invalid or unfinished JSON is wrapped in an object, as text."""
    if text.strip() in _NOTHING:
        return {}
    found = object_in(text)
    if found is not None:
        return found
    return {"unfinished_arguments" if is_cut(text) else "arguments": text}


def arguments_text(text: str) -> str:
    """Return an earlier call's arguments as the text of a JSON object, unchanged if possible."""
    return text if object_in(text) is not None else json.dumps(arguments_in(text), ensure_ascii=False)


def is_cut(text: str) -> bool:
    """Return True if the text is an unfinished JSON object or array."""
    try:
        return JsonScan().feed(text) is None
    except ValueError:
        return False


def template_tool(tool: Tool) -> dict[str, Any]:
    """Return a tool in the form that chat templates expect."""
    function = {"name": tool.name, "description": tool.description, "parameters": parameters_of(tool)}
    return {"type": "function", "function": function}


def kinds_of(tools: Sequence[Tool]) -> Kinds:
    """Return the JSON types of each tool's parameters: an empty set where the schema names none."""
    kinds = {}
    for tool in tools:
        properties = parameters_of(tool).get("properties", {})
        kinds[tool.name] = {key: types_of(value) for key, value in properties.items()}
    return kinds


def text_choices(schema: dict[str, Any]) -> list[str]:
    """Return the values of an enum that consists of strings; [] for other schemas."""
    choices = schema.get("enum")
    return choices if isinstance(choices, list) and all(isinstance(one, str) for one in choices) else []


def types_of(schema: Any) -> frozenset[str]:
    """Return the JSON types that a schema names."""
    if not isinstance(schema, dict):
        return frozenset()
    declared = schema.get("type")
    types = {
        name for name in (declared if isinstance(declared, list) else [declared]) if isinstance(name, str)
    }
    for options in (schema.get("anyOf"), schema.get("oneOf")):
        for option in options if isinstance(options, list) else ():
            types |= types_of(option)
    return frozenset(types)


def relaxed(schema: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the part of a schema that a grammar can enforce, and the locations of the rest.

    The result may allow more than the schema, but never less.
    """
    left_out: list[str] = []
    kept = _relaxed(schema, "", left_out)
    assert isinstance(kept, dict)
    return kept, left_out


def _relaxed(part: Any, where: str, left_out: list[str]) -> Any:
    if isinstance(part, list):
        return [_relaxed(item, f"{where}{at}.", left_out) for at, item in enumerate(part)]
    if not isinstance(part, dict):
        return part
    kept: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    for key, value in part.items():
        if key in VALUES:
            kept[key] = value
        elif key in _UNSUPPORTED or (key == "pattern" and _looks_around(value)):
            left_out += [f"{where}{key}"] if value is not False or not key.startswith("unique") else []
        elif key == "oneOf" and "anyOf" not in part:
            kept["anyOf"] = _relaxed(value, f"{where}{key}.", left_out)
        elif key in _SCHEMA_MAPS and isinstance(value, dict):
            schemas = {
                name: item
                for name, item in value.items()
                if key != "patternProperties" or not _looks_around(name)
            }
            if schemas.keys() != value.keys():
                left_out += [f"{where}{key}.{name}" for name in value if name not in schemas]
                extra = {"additionalProperties": True}
            kept[key] = {
                name: _relaxed(item, f"{where}{key}.{name}.", left_out) for name, item in schemas.items()
            }
        else:
            kept[key] = _relaxed(value, f"{where}{key}.", left_out)
    return kept | extra


def _looks_around(pattern: Any) -> bool:
    return isinstance(pattern, str) and _LOOKAROUND.search(pattern) is not None


def schema_in(text: str) -> dict[str, Any]:
    """Parse a schema. Raises SchemaError if it is invalid, too long or too deep."""
    _check_length("The JSON schema has", text)
    try:
        schema: Any = json.loads(text, parse_constant=_refuse)
        is_deep = not is_shallow(text)
    except RecursionError:
        is_deep = True
    except ValueError as error:
        raise SchemaError(f"The schema is not valid JSON: {error}.") from error
    if is_deep:
        raise SchemaError(f"The schema is nested too deeply: {DEEPEST} levels are the limit.")
    if not isinstance(schema, dict):
        raise SchemaError(
            "A JSON schema must be an object.", hint='For any JSON object, use {"type": "object"}.'
        )
    return schema


def _check_length(what: str, schema: str) -> None:
    if len(schema) > LONGEST_SCHEMA:
        raise SchemaError(
            f"{what} {len(schema)} characters; the limit is {LONGEST_SCHEMA}.",
            hint="Omit descriptions, or split the request.",
        )


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")
