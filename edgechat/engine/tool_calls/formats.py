r"""Call formats: what each model family's calls look like, how to parse them, and which one a template uses.

    format    models                            a call, as the model writes it
    hermes    Hermes, Qwen2.5, Qwen3            <tool_call>\n{"name": …, "arguments": {…}}\n</tool_call>
    xml       Qwen3-Coder, Qwen3.5 and later    <tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE…
    llama     Llama 3.1, 3.2, 3.3               {"name": …, "parameters": {…}}, perhaps after <|python_tag|>
    mistral   Mistral 7B v0.3, Nemo, Small 3.1  [TOOL_CALLS][{"name": …, "arguments": {…}, "id": …}, …]
    args      Mistral Small 3.2, Ministral 3,   [TOOL_CALLS]NAME[ARGS]{…}, perhaps with [CALL_ID]ID
              Devstral, Magistral
    gemma     Gemma 4                           <|tool_call>call:NAME{key:<|"|>text<|"|>,…}<tool_call|>
    harmony   gpt-oss                           <|channel|>commentary to=functions.NAME …<|message|>{…}
    generic   all others                        as hermes; a system message describes tools and format

A model's chat template shows which format it uses. Some models forget the marks (Qwen2.5-Coder always does).
They write JSON in a fenced code block, at the beginning of an answer, or after another family's mark. Such
JSON is a call if it names one of the request's tools and arguments follow.

Calls are untrusted text of bounded size. `parse_x` reads a complete call, `parse_x_head` the beginning of a
call with incomplete arguments. They take the call's header and body and the types of the tools' parameters,
and return None if the text is not a call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from edgechat.engine.tool_calls.scan import Kinds, is_shallow

QUOTE = '<|"|>'
"""The mark around strings in Gemma 4's calls."""


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """A parsed call. `arguments` is a JSON object as text, and may be incomplete."""

    name: str
    arguments: str
    id: str = ""
    """The id that the model wrote, or '' if it wrote none."""


_OBJECT = r'\s*(?=\{\s*["}])'  # comes before anything that looks like a JSON object
_NAMED = re.compile(
    r'\s*\{\s*(?:\{\s*)?"name"\s*:\s*"([\w.-]{1,64})"\s*,\s*"(?:arguments|parameters)"\s*:' + _OBJECT
)
_DOUBLED = re.compile(r"\{\s*\{")  # some templates show calls like this, and models copy them


def parse_named_head(_header: str, body: str, _kinds: Kinds) -> ParsedCall | None:
    """Read the start of a call in the format of `parse_named`."""
    match = _NAMED.match(body)
    return ParsedCall(match[1], body[match.end() :]) if match else None


class _Named(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"")
    parameters: msgspec.Raw = msgspec.Raw(b"")
    id: str | int | float | None = None


def parse_named(_header: str, body: str, _kinds: Kinds) -> ParsedCall | None:
    """Read `{"name": …, "arguments" or "parameters": {…}}`, where the outer braces may be doubled."""
    body = body[1:-1] if _DOUBLED.match(body) else body
    try:
        call = msgspec.json.decode(body, type=_Named)
    except (msgspec.MsgspecError, RecursionError):
        return None
    raw = bytes(call.arguments) or bytes(call.parameters) or b"{}"
    arguments = _object(raw.decode("utf-8", "replace"))
    return ParsedCall(call.name, arguments, _id(call.id)) if arguments else None


_HEADER = re.compile(r"\s*([^\s\[\]]+?)\s*(?:\[CALL_ID\]\s*(\w{1,64})\s*)?")


def parse_args(header: str, body: str, _kinds: Kinds) -> ParsedCall | None:
    """Read `NAME[ARGS]{…}` and `NAME[CALL_ID]ID[ARGS]{…}`."""
    match = _HEADER.fullmatch(header)
    arguments = _object(body)
    return ParsedCall(match[1], arguments, _id(match[2])) if match and arguments else None


def parse_args_head(header: str, body: str, _kinds: Kinds) -> ParsedCall | None:
    """Read the start of a call in the format of `parse_args`."""
    match = _HEADER.fullmatch(header)
    return ParsedCall(match[1], body.lstrip(), _id(match[2])) if match and re.match(_OBJECT, body) else None


_ADDRESS = re.compile(r"\bto=functions\.([\w.-]+)")


def parse_addressed(header: str, body: str, _kinds: Kinds) -> ParsedCall | None:
    """Read a gpt-oss message that is addressed to a function."""
    match = _ADDRESS.search(header)
    arguments = _object(body)
    return ParsedCall(match[1], arguments) if match and arguments else None


def parse_addressed_head(header: str, body: str, _kinds: Kinds) -> ParsedCall | None:
    """Read the start of a message in the format of `parse_addressed`."""
    match = _ADDRESS.search(header)
    return ParsedCall(match[1], body.lstrip()) if match and re.match(_OBJECT, body) else None


def _object(text: str) -> str:
    """Return the text of a JSON object, unwrapped from a JSON string if necessary, or '' if there is none."""
    text = text.strip()
    if text in ("null", '""'):  # from models that call a tool without arguments
        return "{}"
    if text.startswith('"'):
        try:
            text = msgspec.json.decode(text, type=str).strip()
        except msgspec.MsgspecError:
            return ""
    if not text.startswith("{") or not is_shallow(text):
        return ""
    try:
        msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, RecursionError):
        return ""
    return text


def _id(model_id: object) -> str:
    """Return the id that a model wrote, or '' if Mistral's templates would not accept it."""
    text = model_id if isinstance(model_id, str) else ""
    return text if len(text) == 9 and text.isascii() and text.isalnum() else ""


# Qwen's tags.

_FUNCTION = re.compile(r"\s*<function=([^>\n]{1,256})>")
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]{1,256})>")
_PARAMETER_END = re.compile(r"</parameter>(?=\s*(?:<parameter=|$))")


def parse_xml(_header: str, body: str, kinds: Kinds) -> ParsedCall | None:
    """Read `<function=NAME>` with a `<parameter=KEY>` for each argument."""
    name, arguments, rest = _parse_tagged(body[: body.rfind("</function>")], kinds)
    if not name or rest.strip():
        return None
    return ParsedCall(name, json.dumps(arguments, ensure_ascii=False))


def parse_xml_head(_header: str, body: str, kinds: Kinds) -> ParsedCall | None:
    """Read the start of a call in the format of `parse_xml`: its name and any complete arguments."""
    name, arguments, _ = _parse_tagged(body, kinds)
    return ParsedCall(name, json.dumps(arguments, ensure_ascii=False)[:-1]) if name else None


def _parse_tagged(body: str, kinds: Kinds) -> tuple[str, dict[str, Any], str]:
    """Return a call's name ('' if missing) and arguments, and the text that follows them."""
    opening = _FUNCTION.match(body)
    if opening is None:
        return "", {}, body
    name, at = opening[1].strip(), opening.end()
    arguments: dict[str, Any] = {}
    while parameter := _PARAMETER.match(body, at):
        end = _PARAMETER_END.search(body, parameter.end())
        if end is None:
            break
        key, value = parameter[1].strip(), body[parameter.end() : end.start()]
        arguments[key] = _value(value, kinds.get(name, {}).get(key, frozenset()))
        at = end.end()
    return name, arguments, body[at:]


def _value(text: str, kinds: frozenset[str]) -> Any:
    """Convert the text between two tags to a value of one of these JSON types."""
    text = text.removeprefix("\n").removesuffix("\n")
    if not kinds - {"string"}:
        return text
    try:
        value = msgspec.json.decode(text) if is_shallow(text) else text
    except msgspec.MsgspecError:
        return {"true": True, "false": False, "none": None}.get(text.strip().lower(), text)
    return text if isinstance(value, str) else value


# Gemma's own notation.

_CALL = re.compile(r"\s*call:\s*([^\s{]{1,256})\s*")
_WORD = r"[^\s:,{}\[\]<]+"
_TOKEN = re.compile(
    rf'<\|"\|>(?P<text>(?s:.*?))<\|"\|>|(?P<key>{_WORD})(?=\s*:)|(?P<value>{_WORD})|(?P<sign>[:,{{}}\[\]<])|\s+'
)
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_LITERALS = {"true": "true", "false": "false", "null": "null", "None": "null"}


def parse_gemma(_header: str, body: str, _kinds: Kinds) -> ParsedCall | None:
    """Read `call:NAME{key:value,…}`, with strings in special quotes."""
    opening = _CALL.match(body)
    body, end, rest = body.rpartition("<tool_call|>")
    if opening is None or not end or rest.strip():
        return None
    text = _TOKEN.sub(_in_json, body[opening.end() :])
    try:
        value = msgspec.json.decode(text, type=dict[str, Any]) if is_shallow(text) else None
    except msgspec.MsgspecError:
        return None
    return None if value is None else ParsedCall(opening[1], json.dumps(value, ensure_ascii=False))


def parse_gemma_head(_header: str, body: str, _kinds: Kinds) -> ParsedCall | None:
    """Read the start of a call in the format of `parse_gemma`: its name, without arguments."""
    opening = _CALL.match(body)
    return ParsedCall(opening[1], "") if opening and body[opening.end() :].startswith("{") else None


def _in_json(token: re.Match[str]) -> str:
    """Convert a token in Gemma's notation to JSON; an unknown value becomes invalid JSON."""
    text = token[token.lastgroup] if token.lastgroup else " "
    match token.lastgroup:
        case "text":
            return json.dumps(text)
        case "key":
            return json.dumps(text.strip('"'))
        case "value" if not _NUMBER.fullmatch(text):
            return _LITERALS.get(text, "no value")
    return text


_SPACE = " \t\r\n"


@dataclass(frozen=True, slots=True)
class Format:
    """A call format: an opening mark, an optional header, a body, and separators before the next call."""

    name: str
    signs: tuple[str, ...]
    """A template belongs to the family if it contains all of these, and does not contain `unless`."""
    read: Callable[[str, str, Kinds], ParsedCall | None] = parse_named
    """Parses a header and body; returns None if they are not a call."""
    head: Callable[[str, str, Kinds], ParsedCall | None] = parse_named_head
    """Parses a call with an incomplete body; returns None until it is certain to be a call."""
    streams: bool = True
    """Whether to stream arguments piece by piece. If not, they are returned once complete or cut short."""
    opens: tuple[str, ...] = ()
    """Marks that start a call anywhere in an answer."""
    first: tuple[str, ...] = ()
    """Text that starts a call only at the start of an answer. It is also part of the header or body."""
    header_end: str = ""
    """Text that ends the header, or '' if there is no header."""
    body_end: str = ""
    """Pattern that ends the body, or '' for a JSON object, whose end needs no mark."""
    between: str = _SPACE
    """Characters that may come before or after a body."""
    close: str = ""
    """The mark after a call."""
    ends: tuple[str, ...] = ()
    """Marks that end the reply."""
    message_end: str = ""
    """The mark after a message, for replies that consist of several messages."""
    skip: tuple[str, ...] = ()
    """Marks that may precede an answer, in addition to those around thoughts."""
    inside: tuple[str, ...] = ()
    """Other marks that occur inside headers and bodies."""
    unless: str = ""
    """A template that contains this text does not belong to the family; '' excludes no template."""
    several: bool = False
    """Whether several bodies may follow one another."""
    single: bool = False
    """Whether the template supports only one call per message. Several calls then become several messages."""
    before: str = ""
    """The template's key for a message's text before its calls; '' means `content`."""
    short_ids: bool = False
    """Whether the template requires ids that consist of nine letters or digits."""
    unmarked: bool = False
    """Whether there is no opening mark, so that a call is recognized by a body with a tool's name and
    arguments.
    """
    told: bool = False
    """Whether the template lacks support for tools. A message then describes the tools and the format."""

    @property
    def marks(self) -> tuple[str, ...]:
        """All marks that may contain control tokens."""
        others = (self.header_end, self.close, self.message_end, *self.inside, *self.skip)
        return tuple(mark for mark in (*self.opens, *self.first, *self.ends, *others) if mark)


GENERIC = Format("generic", (), opens=("<tool_call>",), close="</tool_call>", told=True)

BARE = Format("bare", (), between=_SPACE + "[],;", several=True, unmarked=True)
"""For models that forget the marks: JSON at the start of an answer."""
FENCED = replace(BARE, name="fenced", close="```")
"""Like BARE, but in a fenced code block."""
TAGGED = {
    f"<{tag}>": replace(BARE, name=tag, close=f"</{tag}>")
    for tag in ("tools", "function_call", "tool", "response", "json")
}
"""Like BARE, but after another family's mark."""

FORMATS = (
    Format(
        "harmony",
        ("<|call|>", "<|channel|>commentary"),
        parse_addressed,
        parse_addressed_head,
        first=("<|channel|>commentary to=", "<|channel|>analysis to=", "to=functions."),
        header_end="<|message|>",
        ends=("<|call|>", "<|return|>"),
        message_end="<|end|>",
        skip=("<|channel|>commentary<|message|>",),
        inside=("<|constrain|>", "<|start|>"),
        single=True,
        before="thinking",
    ),
    Format(
        "gemma",
        ("<|tool_call>", "<tool_call|>"),
        parse_gemma,
        parse_gemma_head,
        streams=False,
        opens=("<|tool_call>",),
        body_end=r"<tool_call\|>",
        ends=("<|tool_response>",),
        inside=("<tool_call|>", QUOTE),
        before="reasoning_content",
    ),
    Format(
        "xml",
        ("<tool_call>", "<function=", "<parameter="),
        parse_xml,
        parse_xml_head,
        streams=False,
        opens=("<tool_call>",),
        body_end=r"</function>\s{0,16}</tool_call>",
    ),
    replace(GENERIC, name="hermes", signs=("<tool_call>",), unless="<arg_key>", told=False),
    Format(
        "args",
        ("[TOOL_CALLS]", "[ARGS]"),
        parse_args,
        parse_args_head,
        opens=("[TOOL_CALLS]",),
        header_end="[ARGS]",
        inside=("[CALL_ID]",),
        short_ids=True,
    ),
    Format(
        "mistral",
        ("[TOOL_CALLS]",),
        streams=False,  # the id comes last
        opens=("[TOOL_CALLS]",),
        between=_SPACE + "[],",
        several=True,
        short_ids=True,
    ),
    Format(
        "llama",
        ("ipython", '"parameters": '),
        opens=("<|python_tag|>",),
        first=("{",),
        between=_SPACE + ";",
        several=True,
        ends=("<|eom_id|>",),
        single=True,
    ),
)


def format_of(template: str) -> Format:
    """Return the call format that a chat template uses."""
    if "tools" not in template or "tool_calls" not in template:
        return GENERIC
    for family in FORMATS:
        excluded = family.unless and family.unless in template
        if not excluded and all(sign in template for sign in family.signs):
            return family
    return GENERIC
