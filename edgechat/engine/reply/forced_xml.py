"""The grammar of a call in Qwen's tags: texts as they are, of any length; all other values as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from edgechat.base.errors import SchemaError
from edgechat.engine.reply.grammar import json_rule
from edgechat.engine.tool_calls.tools import check_top_level, types_of
from edgechat.engine.types import Tool

_KEY = re.compile(r"[^<>\n]{1,200}")


def call(tool: Tool, schema: dict[str, Any], rule: str, mark: Callable[[str], str]) -> tuple[str, list[str]]:
    """Return the rule of a call behind its mark, and more rules, named after `rule`. Raises SchemaError."""
    check_top_level(tool, schema)
    rules: list[str] = []
    parts = [json.dumps(f"\n<function={tool.name}>\n")]
    required = schema.get("required")
    for number, (key, value) in enumerate(schema["properties"].items()):
        if not _KEY.fullmatch(key):
            raise SchemaError(f"{key[:80]!r} is not a valid name for an argument of {tool.name}.")
        name = f"{rule}_{number}"
        rules += _parameter(name, key, value if isinstance(value, dict) else {}, schema)
        parts.append(name if isinstance(required, list) and key in required else f"{name}?")
    return " ".join([*parts, json.dumps("</function>\n"), mark("</tool_call>")]), rules


def _parameter(name: str, key: str, value: dict[str, Any], schema: dict[str, Any]) -> list[str]:
    opening = json.dumps(f"<parameter={key}>\n")
    choices = value.get("enum")
    if isinstance(choices, list) and all(isinstance(choice, str) for choice in choices) and choices:
        text = " | ".join(json.dumps(choice) for choice in choices)
        return [f'{name}: {opening} ({text}) "\\n</parameter>\\n"']
    types = types_of(value)
    if "string" in types or not (types or value):
        free_text = f'{name}_text[suffix="\\n</parameter>\\n"]: /(?s:.*)/'
        return [f"{name}: {opening} {name}_text", free_text]
    complete = value | {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    return [f'{name}: {opening} {json_rule(json.dumps(complete))} "\\n</parameter>\\n"']
