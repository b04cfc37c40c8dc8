"""The grammar of a reply: a thought first, where the model thinks, then what the request wants.

Grammars are texts in llguidance's dialect of Lark. Thoughts and the strings of a JSON value stay free; what a
schema says of an answer holds for every token of it.
"""

from __future__ import annotations

import json
import re
from typing import Any

from edgechat.base.errors import SchemaError
from edgechat.engine.backends.base import Vocabulary
from edgechat.engine.prompt.thinking import Marks
from edgechat.engine.tool_calls.tools import VALUES, schema_in

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
