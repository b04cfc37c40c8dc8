"""JSON schemas of requests, which are untrusted text."""

from __future__ import annotations

import json
import re
from typing import Any

from edgechat.base.errors import SchemaError
from edgechat.engine.tool_calls.scan import DEEPEST, is_shallow

LONGEST_SCHEMA = 128 * 1024
"""Characters of a schema; those of large interfaces have a tenth."""
SHORTER = "Omit descriptions, or split the request."


VALUES = frozenset(("const", "enum", "default", "examples"))
"""Keywords that hold values, not schemas."""
_SCHEMA_MAPS = frozenset(("properties", "patternProperties", "$defs", "definitions"))
"""Keywords that hold schemas by names."""
_UNSUPPORTED = (
    frozenset(("uniqueItems", "propertyNames", "not", "contains", "minContains", "maxContains", "if", "then"))
    | frozenset(("else", "dependencies", "dependentRequired", "dependentSchemas", "unevaluatedItems"))
    | frozenset(("unevaluatedProperties", "$dynamicRef", "$dynamicAnchor", "$recursiveRef"))
)
"""Keywords that a grammar cannot enforce."""
_LOOKAROUND = re.compile(r"\(\?(?:[=!]|<[=!])|\\[1-9]")  # lookaround and backreferences in a pattern


def relaxed(schema: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return as much of a schema as a grammar can enforce, and the places of the rest.

    The result allows more than the schema does, never less.
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
    if len(text) > LONGEST_SCHEMA:
        raise SchemaError(
            f"The JSON schema has {len(text)} characters; the limit is {LONGEST_SCHEMA}.", hint=SHORTER
        )
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


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")
