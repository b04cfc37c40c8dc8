"""The grammar of a reply: a thought first, if the model thinks, then what the request wants: answer or calls.

Grammars are texts in llguidance's dialect of Lark. Thoughts and the strings of a JSON value stay free; what a
schema says of an answer holds for every token of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from edgechat.base.errors import SchemaError
from edgechat.engine.backends.base import Vocabulary
from edgechat.engine.prompt.template import HARMONY_FINAL, Marks
from edgechat.engine.tool_calls.formats import QUOTE, Format
from edgechat.engine.tool_calls.tools import (
    COMBINED,
    VALUES,
    check_top_level,
    parameters_of,
    relaxed,
    schema_in,
    text_choices,
    types_of,
)
from edgechat.engine.types import Tool

_WHITE_SPACE = r"\x20|\x0A(\x20{0,16}|\x09{0,8})"
"""Between two parts of a JSON value: a space or a line's indentation. Small models write all they may."""
_FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
)
"""Of strings: those that an answer can be made to have."""
TOOL_COMMENT = "// of the tool "
"""A comment line before the rules of a tool's calls, by which errors find its name."""
_POSITION = re.compile(r"at (\d+)\(\d+\)")
_LONGEST_EXPLANATION = 200  # characters of what llguidance says about a schema


def json_rule(schema: str) -> str:
    """Return what stands for a JSON value of this schema in a rule. Raises SchemaError."""
    # The key has options for llguidance, which are ours to set.
    options = {"x-guidance": {"whitespace_pattern": _WHITE_SPACE}}
    return "%json " + json.dumps(_without_unknown_formats(schema_in(schema)) | options)


def _without_unknown_formats(part: Any) -> Any:
    """Return a part of a schema without formats that cannot be checked; these are annotations."""
    if isinstance(part, list):
        return [_without_unknown_formats(item) for item in part]
    if not isinstance(part, dict):
        return part
    return {
        key: value if key in VALUES else _without_unknown_formats(value)
        for key, value in part.items()
        if not (key == "format" and isinstance(value, str) and value not in _FORMATS)
    }


def reply_grammar(body: str, vocabulary: Vocabulary, marks: Marks | None, *, thinking: bool) -> str:
    """Return the grammar of a whole reply.

    body: Lark rules, whose top one is `answer`; names of other rules that begin with `reply_` are taken.
    marks: of the template's thoughts, if it has such; thinking: the prompt has opened the thought already.
    """
    if marks is None:
        return f"start: answer\n{body}\n"
    skipped = " ".join(f"({literal(mark, vocabulary)} REPLY_SPACE?)?" for mark in marks.skip)
    start = "reply_thought"
    if not thinking:
        start = f"(REPLY_SPACE? {literal(marks.open, vocabulary)} reply_thought)?"
    return (
        f"start: {start} REPLY_SPACE? {skipped} answer\n"
        f"{_thinking_rule(marks.close, vocabulary)}\n"
        "REPLY_SPACE: /[ \\t\\r\\n]{1,8}/\n"
        f"{body}\n"
    )


def _thinking_rule(close: str, vocabulary: Vocabulary) -> str:
    """Return the rule of a thought that has been opened: any text, and then the mark that closes it."""
    first, *rest = _rule_items(close, vocabulary)
    if first.startswith('"'):
        return f"reply_thought: reply_open {' '.join(rest)}\nreply_open[suffix={first}]: /(?s:.*)/"
    # The mark spelled out in letters would close the thought too, but only for readers of the text.
    text = re.escape(close).replace("/", r"\/")
    return (
        f"reply_thought: REPLY_TEXT? {' '.join((first, *rest))}\n"
        f"REPLY_TEXT: /(?s:.+)/ & ~/(?s:.*){text}(?s:.*)/"
    )


def literal(text: str, vocabulary: Vocabulary) -> str:
    """Return what stands for a text in a rule; control tokens among it are named by their number."""
    return " ".join(_rule_items(text, vocabulary))


def _rule_items(text: str, vocabulary: Vocabulary) -> list[str]:
    items: list[str] = []
    for token in vocabulary.tokenize(text, bos=False, special=True):
        if vocabulary.piece(token):
            continue
        before, mark, after = text.partition(vocabulary.piece(token, special=True).decode("utf-8", "replace"))
        if mark:
            items += [_quoted(before), f"<[{token}]>"]
            text = after
    return [item for item in (*items, _quoted(text)) if item != '""'] or ['""']


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def grammar_error(why: str, grammar: str = "") -> SchemaError:
    """Return the error for a grammar that cannot be followed. why: llguidance's message."""
    position = _POSITION.match(why)
    tool = _tool_at(grammar, int(position[1])) if position else ""
    return SchemaError(
        f"{f'The calls of the tool {tool}' if tool else 'The answer'} cannot be made to follow "
        f"{'its' if tool else 'this'} schema: {_explain(why)}.",
        hint="Simplify the schema: use fewer optional properties, no overlapping patterns, and smaller "
        "limits.",
    )


def _tool_at(grammar: str, line: int) -> str:
    """Return the tool that a line of a grammar belongs to, or ''."""
    before = grammar.splitlines()[:line]
    marks = (text.removeprefix(TOOL_COMMENT) for text in reversed(before) if text.startswith(TOOL_COMMENT))
    return next(marks, "")


def _explain(why: str) -> str:
    """Return llguidance's message, in terms of the schema."""
    line = why.partition("\n")[0]
    explanation = line.partition("failed to compile JSON schema: ")[2] or line
    if keys := re.match(r"Unimplemented keys: \[(.*)\]", explanation):
        explanation = f"unsupported keywords: {keys[1].replace(chr(34), '')}"
    elif explanation.startswith("regex parse error"):
        error = re.search(r"^error: (.*)", why, re.MULTILINE)
        explanation = f"a pattern is not supported: {error[1] if error else 'it is not a regular expression'}"
    elif explanation.startswith("oneOf constraints"):
        explanation = "a value could match several schemas of oneOf; use anyOf if they may overlap"
    return explanation[:_LONGEST_EXPLANATION].rstrip(".")


MOST_CALLS = 16
"""In one reply, where a family may make several."""

_XML_KEY = re.compile(r"[^<>\n]{1,200}")

WriteMark = Callable[[str], str]
"""Writes a text, with the control tokens in it, as it stands in a rule."""


def calls_grammar(
    family: Format,
    tools: Sequence[Tool],
    vocabulary: Vocabulary,
    *,
    tool: str | None = None,
    most_calls: int | None = None,
    alternative: str = "",
    optional: bool = False,
) -> str:
    """Return the Lark rules, of which `answer` is the top one, of a reply that calls some of these tools.

    tool: the one that is called, once; without it, several calls are allowed where the family can write
    them. alternative: a rule for what the answer may be instead. optional: any text may come before the
    calls, or instead of them. Raises SchemaError.
    """
    if tool is not None:
        tools, most_calls = [candidate for candidate in tools if candidate.name == tool], 1

    def mark(text: str) -> str:
        return literal(text, vocabulary)

    calls, rules = [], []
    for number, called in enumerate(tools):
        calls.append(f"call_{number}")
        body, more = _call_rule(family, called, number, mark)
        rules += [f"{TOOL_COMMENT}{called.name}", f"call_{number}: {body}", *more]
    if family.name == "gemma":
        rules.append(shared(mark))
    opening, between, closing = _delimiters(family, mark)
    n_most = MOST_CALLS if between else 1
    if most_calls is not None:
        n_most = min(n_most, most_calls)
    sequence = "call" + (f" ({between} call){{0,{n_most - 1}}}" if n_most > 1 else "") + f" {closing}"
    if optional:
        answer, more = _optional_calls(family, opening, sequence, mark)
        rules += more
    else:
        answer = f"{opening} {sequence}{f' | {alternative}' if alternative else ''}"
    return "\n".join([f"answer: {answer}", f"call: {' | '.join(calls)}", *rules])


def _delimiters(family: Format, mark: WriteMark) -> tuple[str, str, str]:
    """Return what stands before the first call, between two, and after the last; no between: just one."""
    if family.name in ("llama", "harmony"):
        return "", "", ""
    opening = mark(family.opens[0])
    if family.name == "mistral":
        return f'{opening} " "? "["', '", "', '"]"'
    return opening, opening if family.name in ("args", "gemma") else f'"\\n" {opening}', ""


def _optional_calls(family: Format, opening: str, calls: str, mark: WriteMark) -> tuple[str, list[str]]:
    """Return what an answer is that may be any text and then calls, and the rules that this needs.

    No text spells out what begins a call: whoever reads it would take that for one.
    """
    spelled_out = "|".join(re.escape(text) for text in family.opens)
    excluded = [f"(?s:.*)({spelled_out})(?s:.*)"] if spelled_out else []
    if family.name == "llama":
        text = _text_terminal(*excluded, r'\{\s*"name"(?s:.*)', start="[^ \\t\\r\\n]")
        return f"CALL_SPACE? ({mark(family.opens[0])}? {calls} | CALL_TEXT?)", [_SPACE, text]
    if family.name == "harmony":
        text = _text_terminal(" ?to=(?s:.*)", r"(?s:.*)<\|(channel|start|end)\|>(?s:.*)")
        final = mark(f"<|start|>assistant{HARMONY_FINAL}")
        before = f"{mark('<|channel|>commentary<|message|>')} CALL_TEXT {mark('<|end|>')}"
        again = f"{before} ({mark('<|start|>assistant')} {calls} | {final} CALL_TEXT)"
        return f"CALL_TEXT? | {calls} | {again}", [text]
    first, *rest = opening.split(" ", 1)
    if not first.startswith('"'):
        return f"CALL_TEXT? ({opening} {calls})?", [_text_terminal(*excluded)]
    begun = f"call_begun[suffix={first}]: /(?s:.*)/"
    return f"CALL_TEXT? | call_begun {' '.join(rest)} {calls}", [_text_terminal(*excluded), begun]


_SPACE = "CALL_SPACE: /[ \\t\\r\\n]{1,8}/"


def _text_terminal(*excluded: str, start: str = "") -> str:
    """Return the terminal of a text that matches none of these patterns."""
    anything = f"/{start}(?s:.*)/" if start else "/(?s:.+)/"
    escaped = [pattern.replace("/", r"\/") for pattern in excluded]
    return " & ".join([f"CALL_TEXT: {anything}", *(f"~/{pattern}/" for pattern in escaped)])


def _call_rule(family: Format, tool: Tool, number: int, mark: WriteMark) -> tuple[str, list[str]]:
    """Return the rule of a call of a tool, but for the mark before it, and the rules that it needs."""
    schema, _ = relaxed(closed(parameters_of(tool)))
    name = json.dumps(tool.name)
    if family.name == "xml":
        return _xml_call(tool, schema, f"call_{number}", mark)
    if family.name == "gemma":
        return call(tool, schema, f"call_{number}", mark)
    arguments = json_rule(json.dumps(schema))
    if family.name == "args":
        return f"{name} {mark('[ARGS]')} {arguments}", []
    if family.name == "harmony":
        header = f"<|channel|>commentary to=functions.{tool.name} <|constrain|>json<|message|>"
        return f"{mark(header)} {arguments}", []
    key = "parameters" if family.name == "llama" else "arguments"
    start = json.dumps(f'{{"name": {name}, "{key}": ')
    if family.close:
        return f'"\\n" {start} {arguments} "}}" "\\n" {mark(family.close)}', []
    return f'{start} {arguments} "}}"', []


def _xml_call(tool: Tool, schema: dict[str, Any], rule: str, mark: WriteMark) -> tuple[str, list[str]]:
    """Return the rule of a call in Qwen's tags: texts as they are, of any length, other values as JSON."""
    check_top_level(tool, schema)
    rules: list[str] = []
    parts = [json.dumps(f"\n<function={tool.name}>\n")]
    required = schema.get("required")
    for number, (key, value) in enumerate(schema["properties"].items()):
        if not _XML_KEY.fullmatch(key):
            raise SchemaError(f"{key[:80]!r} is not a valid name for an argument of {tool.name}.")
        name = f"{rule}_{number}"
        rules += _xml_parameter(name, key, value if isinstance(value, dict) else {}, schema)
        parts.append(name if isinstance(required, list) and key in required else f"{name}?")
    return " ".join([*parts, json.dumps("</function>\n"), mark("</tool_call>")]), rules


def _xml_parameter(name: str, key: str, value: dict[str, Any], schema: dict[str, Any]) -> list[str]:
    opening = json.dumps(f"<parameter={key}>\n")
    if choices := text_choices(value):
        text = " | ".join(json.dumps(choice) for choice in choices)
        return [f'{name}: {opening} ({text}) "\\n</parameter>\\n"']
    types = types_of(value)
    if "string" in types or not (types or value):
        free_text = f'{name}_text[suffix="\\n</parameter>\\n"]: /(?s:.*)/'
        return [f"{name}: {opening} {name}_text", free_text]
    complete = value | {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    return [f'{name}: {opening} {json_rule(json.dumps(complete))} "\\n</parameter>\\n"']


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that has no other properties than it names, unless it says that there may be some."""
    named = {"type": "object", "properties": {}} | schema
    is_open = {"additionalProperties", *COMBINED} & named.keys()
    return named if is_open else named | {"additionalProperties": False}


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
