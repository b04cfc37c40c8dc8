"""The grammar of calls, for a reply that has to be one: rules for that of the whole reply."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from edgechat.engine.backends.base import Vocabulary
from edgechat.engine.calls import forced_gemma, forced_xml
from edgechat.engine.calls.formats import Format
from edgechat.engine.calls.tools import COMBINED, parameters_of
from edgechat.engine.grammar import json_rule, literal
from edgechat.engine.types import Tool

MOST_CALLS = 16
"""In one reply, where a family may make several."""

Literal = Callable[[str], str]
"""Writes a text, with the control tokens in it, as it stands in a rule."""


def calls_answer(
    family: Format, tools: Sequence[Tool], vocabulary: Vocabulary, *, tool: str | None = None, other: str = ""
) -> str:
    """Return the Lark rules, of which `answer` is the top one, of a reply that calls some of these tools.

    tool: the one that is called, once; else there may be several calls, where the family has a way to write
    that. other: what the answer may be instead, as it stands in a rule. Raises SchemaError.
    """
    if tool is not None:
        tools = [one for one in tools if one.name == tool]

    def mark(text: str) -> str:
        return literal(text, vocabulary)

    calls, rules = [], []
    for number, called in enumerate(tools):
        calls.append(f"call_{number}")
        body, more = _body(family, called, number, mark)
        rules += [f"call_{number}: {body}", *more]
    if family.name == "gemma":
        rules.append(forced_gemma.shared(mark))
    before, between, after = _around(family, mark)
    repeated = "" if tool is not None or not between else f" ({between} call){{0,{MOST_CALLS - 1}}}"
    answer = f"answer: {before} call{repeated} {after}{f' | {other}' if other else ''}"
    return "\n".join([answer, f"call: {' | '.join(calls)}", *rules])


def _around(family: Format, mark: Literal) -> tuple[str, str, str]:
    """Return what stands before the first call, between two, and after the last; no between: just one."""
    if family.name == "mistral":
        return f'{mark("[TOOL_CALLS]")} " "? "["', '", "', '"]"'
    if family.name in ("llama", "harmony"):
        return "", "", ""
    return "", '""' if family.name in ("args", "gemma") else '"\\n"', ""


def _body(family: Format, tool: Tool, number: int, mark: Literal) -> tuple[str, list[str]]:
    """Return the rule of a call of a tool, and the rules that it needs."""
    schema = closed(parameters_of(tool))
    name = json.dumps(tool.name)
    if family.name == "xml":
        return forced_xml.call(tool, schema, f"call_{number}", mark)
    if family.name == "gemma":
        return forced_gemma.call(tool, schema, f"call_{number}", mark)
    arguments = json_rule(json.dumps(schema))
    if family.name == "args":
        return f"{mark('[TOOL_CALLS]')} {name} {mark('[ARGS]')} {arguments}", []
    if family.name == "harmony":
        header = f"<|channel|>commentary to=functions.{tool.name} <|constrain|>json<|message|>"
        return f"{mark(header)} {arguments}", []
    key = "parameters" if family.name == "llama" else "arguments"
    start = json.dumps(f'{{"name": {name}, "{key}": ')
    if family.close:
        opening, closing = mark(family.opens[0]), mark(family.close)
        return f'{opening} "\\n" {start} {arguments} "}}" "\\n" {closing}', []
    return f'{start} {arguments} "}}"', []


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that has no other properties than it names, unless it says that there may be some."""
    named = {"type": "object", "properties": {}} | schema
    is_open = {"additionalProperties", *COMBINED} & named.keys()
    return named if is_open else named | {"additionalProperties": False}
