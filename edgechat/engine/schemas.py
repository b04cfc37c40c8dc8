"""JSON schemas of requests: a stranger's text, looked over before anything is made of it."""

from __future__ import annotations

import json
from typing import Any

from edgechat.engine.calls.scan import DEEPEST, nests
from edgechat.errors import SchemaError

LONGEST_SCHEMA = 128 * 1024
"""Characters of a schema; those of large programs' interfaces have a tenth."""
SHORTER = "Leave out descriptions, or ask for less at once."


def schema_in(text: str) -> dict[str, Any]:
    """Return the schema that a text is. Raises SchemaError for one that is none, too long or too deep."""
    if len(text) > LONGEST_SCHEMA:
        raise SchemaError(
            f"The JSON schema has {len(text)} characters; {LONGEST_SCHEMA} are the most.", hint=SHORTER
        )
    try:
        found: Any = json.loads(text, parse_constant=_refuse)
        is_deep = not nests(text)
    except RecursionError:
        is_deep = True
    except ValueError as error:
        raise SchemaError(f"The schema is no JSON: {error}.") from error
    if is_deep:
        raise SchemaError(f"The schema is nested too deeply: {DEEPEST} levels are the most.")
    if not isinstance(found, dict):
        raise SchemaError("A JSON schema must be an object.", hint='{"type": "object"} is any JSON object.')
    return found


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON value")
