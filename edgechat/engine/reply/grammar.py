"""Grammar of a reply: a thought if the model thinks, then the answer or calls that the request requires.

Grammars are written in llguidance's dialect of Lark. Thoughts, and strings in JSON values, may contain
anything. Every token of an answer follows its schema.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from edgechat.base.errors import BadRequest, SchemaError
from edgechat.engine.backends.base import Vocabulary
from edgechat.engine.prompt.template import HARMONY_FINAL, ChatTemplate, Marks, begins_answer
from edgechat.engine.reply.grammar_child import TOOL_COMMENT
from edgechat.engine.tool_calls.formats import QUOTE, Format
from edgechat.engine.tool_calls.tools import (
    COMBINED,
    VALUES,
    check_top_level,
    constrained_tools,
    parameters_of,
    relaxed,
    schema_in,
    text_choices,
    types_of,
)
from edgechat.engine.types import ChatRequest, Tool

_WHITE_SPACE = r"\x20|\x0A(\x20{0,16}|\x09{0,8})"
"""What may separate parts of a JSON value: a space, or a line break with indentation. Without limits, small
models would write endless whitespace.
"""
_FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
)
"""String formats that can be enforced."""
MOST_CALLS = 16
"""Maximum number of calls in a reply, for families that support several."""
_XML_KEY = re.compile(r"[^<>\n]{1,200}")
_GEMMA_KEY = re.compile(r"[\w.$@-]{1,200}")
_NESTED = 8  # levels of objects whose schemas are enforced; deeper ones may have any value
_GEMMA_RULES = {
    "string": "gemma_text",
    "integer": "GEMMA_INTEGER",
    "number": "GEMMA_NUMBER",
    "boolean": "GEMMA_TRUTH",
    "object": "gemma_object",
}
_GEMMA_SHARED = """\
GEMMA_WORDS: /(?s:.+)/ & ~/(?s:.*)%s(?s:.*)/
GEMMA_INTEGER: /-?(0|[1-9][0-9]{0,18})/
GEMMA_NUMBER: /-?(0|[1-9][0-9]{0,18})(\\.[0-9]{1,18})?/
GEMMA_TRUTH: "true" | "false"
GEMMA_KEY: /[A-Za-z_][A-Za-z0-9_]{0,63}/
gemma_pair: GEMMA_KEY ":" gemma_any
gemma_list: "[" (gemma_any ("," gemma_any)*)? "]"
gemma_object: "{" (gemma_pair ("," gemma_pair)*)? "}"
gemma_any: gemma_text | GEMMA_NUMBER | GEMMA_TRUTH | "null" | gemma_list | gemma_object"""


def grammar_of(
    request: ChatRequest, template: ChatTemplate, vocabulary: Vocabulary, *, thinking: bool
) -> str | None:
    """Return the grammar for the reply to a request, if it needs one. Raises SchemaError or BadRequest."""
    must_call, constrained = request.tool_choice == "required", constrained_tools(request)
    if request.schema is None and not constrained:
        return None
    if begins_answer(request.messages):
        raise BadRequest(
            "A schema cannot be applied to an answer that has already begun.",
            hint="End with a user message, or omit response_format, tool_choice and strict.",
        )
    answer = json_rule(request.schema) if request.schema is not None else ""
    body = f"answer: {answer}"
    if constrained:
        body = calls_grammar(
            template.calls,
            request.tools,
            vocabulary,
            tool=request.tool,
            most_calls=request.most_calls,
            alternative="" if must_call else answer,
            optional=not (must_call or answer),
        )
    marks = template.marks if request.text is None else None
    return reply_grammar(body, vocabulary, marks, thinking=thinking)


def json_rule(schema: str) -> str:
    """Return the expression for a JSON value that follows a schema. Raises SchemaError."""
    # llguidance reads its options from this key, which requests may not set.
    options = {"x-guidance": {"whitespace_pattern": _WHITE_SPACE}}
    return "%json " + json.dumps(_without_unknown_formats(schema_in(schema)) | options)


def _without_unknown_formats(part: Any) -> Any:
    """Return part of a schema without unenforceable formats, which are only annotations."""
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
    """Return the grammar for a whole reply.

    body: Lark rules with `answer` as the top rule. Rule names that start with `reply_` are reserved. marks:
    the template's marks for thoughts, if any. thinking: whether the prompt already opens the thought.
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
    """Return the rule for a thought that is already open: any text, then the closing mark."""
    first, *rest = _rule_items(close, vocabulary)
    if first.startswith('"'):
        return f"reply_thought: reply_open {' '.join(rest)}\nreply_open[suffix={first}]: /(?s:.*)/"
    # The mark must not be spelled out as text: anyone who reads the text would consider the thought closed.
    text = re.escape(close).replace("/", r"\/")
    return (
        f"reply_thought: REPLY_TEXT? {' '.join((first, *rest))}\n"
        f"REPLY_TEXT: /(?s:.+)/ & ~/(?s:.*){text}(?s:.*)/"
    )


def literal(text: str, vocabulary: Vocabulary) -> str:
    """Return the expression for `text`, with control tokens represented by their ids."""
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
    """Return Lark rules, with `answer` as the top rule, for a reply that calls tools.

    tool: require exactly one call, to this tool; otherwise, several calls are allowed if the family supports
    them. alternative: the expression for an answer instead of calls. optional: allow any text before the
    calls or instead of them. Raises SchemaError.
    """
    if tool is not None:
        tools, most_calls = [candidate for candidate in tools if candidate.name == tool], 1
    written = _CallRules(family, vocabulary)
    calls = [written.add(called, f"call_{number}") for number, called in enumerate(tools)]
    opening, between, closing = written.delimiters()
    n_most = MOST_CALLS if between else 1
    if most_calls is not None:
        n_most = min(n_most, most_calls)
    sequence = "call" + (f" ({between} call){{0,{n_most - 1}}}" if n_most > 1 else "") + f" {closing}"
    if optional:
        answer = written.optional(opening, sequence)
    else:
        answer = f"{opening} {sequence}{f' | {alternative}' if alternative else ''}"
    return "\n".join([f"answer: {answer}", f"call: {' | '.join(calls)}", *written.rules])


class _CallRules:
    """The Lark rules for a family's calls."""

    def __init__(self, family: Format, vocabulary: Vocabulary) -> None:
        self._family = family
        self._vocabulary = vocabulary
        self.rules: list[str] = []
        if family.name == "gemma":
            self._add_gemma_rules()

    def _mark(self, text: str) -> str:
        return literal(text, self._vocabulary)

    def add(self, tool: Tool, rule: str) -> str:
        """Add the rule for a call to a tool, without the opening mark, and return its name."""
        self.rules.append(f"{TOOL_COMMENT}{tool.name}")
        self.rules.append(f"{rule}: {self._call(tool, rule)}")
        return rule

    def delimiters(self) -> tuple[str, str, str]:
        """Return the expressions before, between ('' if only one is allowed) and after the calls."""
        family = self._family
        if family.name in ("llama", "harmony"):
            return "", "", ""
        opening = self._mark(family.opens[0])
        if family.name == "mistral":
            return f'{opening} " "? "["', '", "', '"]"'
        return opening, opening if family.name in ("args", "gemma") else f'"\\n" {opening}', ""

    def optional(self, opening: str, calls: str) -> str:
        """Return the expression for text followed by calls, both optional.

        The text never spells out how a call starts, since it would then be parsed as a call.
        """
        family, mark = self._family, self._mark
        spelled_out = "|".join(re.escape(text) for text in family.opens)
        excluded = [f"(?s:.*)({spelled_out})(?s:.*)"] if spelled_out else []
        if family.name == "llama":
            self.rules.append("CALL_SPACE: /[ \\t\\r\\n]{1,8}/")
            self._add_text(*excluded, r'\{\s*"name"(?s:.*)', start="[^ \\t\\r\\n]")
            return f"CALL_SPACE? ({mark(family.opens[0])}? {calls} | CALL_TEXT?)"
        if family.name == "harmony":
            self._add_text(" ?to=(?s:.*)", r"(?s:.*)<\|(channel|start|end)\|>(?s:.*)")
            final = mark(f"<|start|>assistant{HARMONY_FINAL}")
            before = f"{mark('<|channel|>commentary<|message|>')} CALL_TEXT {mark('<|end|>')}"
            again = f"{before} ({mark('<|start|>assistant')} {calls} | {final} CALL_TEXT)"
            return f"CALL_TEXT? | {calls} | {again}"
        self._add_text(*excluded)
        first, *rest = opening.split(" ", 1)
        if not first.startswith('"'):
            return f"CALL_TEXT? ({opening} {calls})?"
        self.rules.append(f"call_begun[suffix={first}]: /(?s:.*)/")
        return f"CALL_TEXT? | call_begun {' '.join(rest)} {calls}"

    def _add_text(self, *excluded: str, start: str = "") -> None:
        """Add the terminal for text that matches none of the excluded patterns."""
        anything = f"/{start}(?s:.*)/" if start else "/(?s:.+)/"
        escaped = [pattern.replace("/", r"\/") for pattern in excluded]
        self.rules.append(" & ".join([f"CALL_TEXT: {anything}", *(f"~/{pattern}/" for pattern in escaped)]))

    def _call(self, tool: Tool, rule: str) -> str:
        """Return the expression for a call. The names of any additional rules start with `rule`."""
        family, mark = self._family, self._mark
        schema, _ = relaxed(_closed(parameters_of(tool)))
        name = json.dumps(tool.name)
        if family.name == "xml":
            return self._xml_call(tool, schema, rule)
        if family.name == "gemma":
            check_top_level(tool, schema)
            start = json.dumps(f"call:{tool.name}")
            return f"{start} {self._gemma_object(schema, rule, 0)} {mark('<tool_call|>')}"
        arguments = json_rule(json.dumps(schema))
        if family.name == "args":
            return f"{name} {mark('[ARGS]')} {arguments}"
        if family.name == "harmony":
            header = f"<|channel|>commentary to=functions.{tool.name} <|constrain|>json<|message|>"
            return f"{mark(header)} {arguments}"
        key = "parameters" if family.name == "llama" else "arguments"
        start = json.dumps(f'{{"name": {name}, "{key}": ')
        if family.close:
            return f'"\\n" {start} {arguments} "}}" "\\n" {mark(family.close)}'
        return f'{start} {arguments} "}}"'

    # Qwen's tags: strings are plain text of any length, and other values are JSON.

    def _xml_call(self, tool: Tool, schema: dict[str, Any], rule: str) -> str:
        check_top_level(tool, schema)
        parts = [json.dumps(f"\n<function={tool.name}>\n")]
        required = schema.get("required")
        for number, (key, value) in enumerate(schema["properties"].items()):
            if not _XML_KEY.fullmatch(key):
                raise SchemaError(f"{key[:80]!r} is not a valid name for an argument of {tool.name}.")
            name = f"{rule}_{number}"
            self._add_xml_parameter(name, key, value if isinstance(value, dict) else {}, schema)
            parts.append(name if isinstance(required, list) and key in required else f"{name}?")
        return " ".join([*parts, json.dumps("</function>\n"), self._mark("</tool_call>")])

    def _add_xml_parameter(self, name: str, key: str, value: dict[str, Any], schema: dict[str, Any]) -> None:
        opening, types = json.dumps(f"<parameter={key}>\n"), types_of(value)
        if choices := text_choices(value):
            text = " | ".join(json.dumps(choice) for choice in choices)
            self.rules.append(f'{name}: {opening} ({text}) "\\n</parameter>\\n"')
        elif "string" in types or not (types or value):
            self.rules.append(f"{name}: {opening} {name}_text")
            self.rules.append(f'{name}_text[suffix="\\n</parameter>\\n"]: /(?s:.*)/')
        else:
            complete = value | {key: schema[key] for key in ("$defs", "definitions") if key in schema}
            rule = json_rule(json.dumps(complete))
            self.rules.append(f'{name}: {opening} {rule} "\\n</parameter>\\n"')

    # Gemma's notation.

    def _add_gemma_rules(self) -> None:
        """Add the rules that are common to all calls."""
        quote = self._mark(QUOTE)
        if quote.startswith('"'):
            self.rules += [f"gemma_text: {quote} gemma_words", f"gemma_words[suffix={quote}]: /(?s:.*)/"]
        else:
            self.rules.append(f"gemma_text: {quote} GEMMA_WORDS? {quote}")
        self.rules.append(_GEMMA_SHARED % re.escape(QUOTE))

    def _gemma_value(self, schema: Any, rule: str, depth: int) -> str:
        if not isinstance(schema, dict) or depth > _NESTED:
            return "gemma_any"
        if choices := text_choices(schema):
            quote = self._mark(QUOTE)
            return f"{quote} ({' | '.join(json.dumps(choice) for choice in choices)}) {quote}"
        types = types_of(schema)
        if len(types) != 1:
            return "gemma_any"
        (kind,) = types
        if kind == "object" and isinstance(schema.get("properties"), dict):
            self.rules.append(f"{rule}: {self._gemma_object(schema, rule, depth)}")
            return rule
        if kind == "array":
            item = self._gemma_value(schema.get("items"), f"{rule}_i", depth + 1)
            return f'"[" ({item} ("," {item})*)? "]"'
        return _GEMMA_RULES.get(kind, "gemma_any")

    def _gemma_object(self, schema: dict[str, Any], rule: str, depth: int) -> str:
        """Return an object's expression. Each key has a rule for the first place and one for later places."""
        required = schema.get("required")
        required_keys = (
            set(required)
            if isinstance(required, list) and all(isinstance(key, str) for key in required)
            else set()
        )
        properties = sorted(schema["properties"].items())
        for number, (key, value) in enumerate(properties):
            if not _GEMMA_KEY.fullmatch(key):
                raise SchemaError(f"{key[:80]!r} is not a valid name for an argument.")
            pair = f"{json.dumps(key + ':')} {self._gemma_value(value, f'{rule}_{number}', depth + 1)}"
            rest = f"{rule}_{number + 1}"
            first, later = f"{pair} {rest}b", f'"," {pair} {rest}b'
            if key not in required_keys:
                first, later = f"{first} | {rest}a", f"{later} | {rest}b"
            self.rules += [f"{rule}_{number}a: {first}", f"{rule}_{number}b: {later}"]
        self.rules += [f'{rule}_{len(properties)}a: ""', f'{rule}_{len(properties)}b: ""']
        return f'"{{" {rule}_0a "}}"'


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that allows only the properties it names, unless the original says otherwise."""
    named = {"type": "object", "properties": {}} | schema
    is_open = {"additionalProperties", *COMBINED} & named.keys()
    return named if is_open else named | {"additionalProperties": False}
