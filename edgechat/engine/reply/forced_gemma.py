"""The grammar of a call in Gemma's own notation: `call:NAME{key:<|"|>text<|"|>,other:1}`, keys in order.

It keeps to the names, types and choices of a schema, and to what is required; finer limits are left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from edgechat.base.errors import SchemaError
from edgechat.engine.tool_calls.call_parsing import QUOTE
from edgechat.engine.tool_calls.tools import check_top_level, text_choices, types_of
from edgechat.engine.types import Tool

_KEY = re.compile(r"[\w.$@-]{1,200}")
_NESTED = 8  # levels of objects whose schemas are followed; what lies deeper may be any value
_SIMPLE_RULES = {
    "string": "gemma_text",
    "integer": "GEMMA_INTEGER",
    "number": "GEMMA_NUMBER",
    "boolean": "GEMMA_TRUTH",
}


def call(tool: Tool, schema: dict[str, Any], rule: str, mark: Callable[[str], str]) -> tuple[str, list[str]]:
    """Return the rule of a call behind its mark, and more rules, named after `rule`. Raises SchemaError."""
    check_top_level(tool, schema)
    rules: list[str] = []
    value = _object(schema, rule, rules, mark, 0)
    name = json.dumps(f"call:{tool.name}")
    return f"{name} {value} {mark('<tool_call|>')}", rules


def shared(mark: Callable[[str], str]) -> str:
    """Return the rules that all calls have in common."""
    quote = mark(QUOTE)
    text = f"gemma_text: {quote} GEMMA_WORDS? {quote}"
    if quote.startswith('"'):
        text = f"gemma_text: {quote} gemma_words\ngemma_words[suffix={quote}]: /(?s:.*)/"
    spelled = re.escape(QUOTE)
    return "\n".join(
        [
            text,
            f"GEMMA_WORDS: /(?s:.+)/ & ~/(?s:.*){spelled}(?s:.*)/",
            "GEMMA_INTEGER: /-?(0|[1-9][0-9]{0,18})/",
            r"GEMMA_NUMBER: /-?(0|[1-9][0-9]{0,18})(\.[0-9]{1,18})?/",
            'GEMMA_TRUTH: "true" | "false"',
            "GEMMA_KEY: /[A-Za-z_][A-Za-z0-9_]{0,63}/",
            'gemma_pair: GEMMA_KEY ":" gemma_any',
            'gemma_list: "[" (gemma_any ("," gemma_any)*)? "]"',
            'gemma_object: "{" (gemma_pair ("," gemma_pair)*)? "}"',
            'gemma_any: gemma_text | GEMMA_NUMBER | GEMMA_TRUTH | "null" | gemma_list | gemma_object',
        ]
    )


def _value(schema: Any, rule: str, rules: list[str], mark: Callable[[str], str], depth: int) -> str:
    if not isinstance(schema, dict) or depth > _NESTED:
        return "gemma_any"
    if choices := text_choices(schema):
        quote = mark(QUOTE)
        return f"{quote} ({' | '.join(json.dumps(choice) for choice in choices)}) {quote}"
    types = types_of(schema)
    if len(types) != 1:
        return "gemma_any"
    (kind,) = types
    if kind == "object" and isinstance(schema.get("properties"), dict):
        rules.append(f"{rule}: {_object(schema, rule, rules, mark, depth)}")
        return rule
    if kind == "array":
        item = _value(schema.get("items"), f"{rule}_i", rules, mark, depth + 1)
        return f'"[" ({item} ("," {item})*)? "]"'
    return _SIMPLE_RULES.get(kind, "gemma_object" if kind == "object" else "gemma_any")


def _object(
    schema: dict[str, Any], rule: str, rules: list[str], mark: Callable[[str], str], depth: int
) -> str:
    """Return an object as it stands in a rule. Each key has two rules: for the first, and behind others."""
    required = schema.get("required")
    required_keys = (
        set(required) if isinstance(required, list) and all(isinstance(x, str) for x in required) else set()
    )
    properties = sorted(schema["properties"].items())
    for number, (key, value) in enumerate(properties):
        if not _KEY.fullmatch(key):
            raise SchemaError(f"{key[:80]!r} is not a valid name for an argument.")
        pair = f"{json.dumps(key + ':')} {_value(value, f'{rule}_{number}', rules, mark, depth + 1)}"
        rest = f"{rule}_{number + 1}"
        first, later = f"{pair} {rest}b", f'"," {pair} {rest}b'
        if key not in required_keys:
            first, later = f"{first} | {rest}a", f"{later} | {rest}b"
        rules += [f"{rule}_{number}a: {first}", f"{rule}_{number}b: {later}"]
    rules += [f'{rule}_{len(properties)}a: ""', f'{rule}_{len(properties)}b: ""']
    return f'"{{" {rule}_0a "}}"'
