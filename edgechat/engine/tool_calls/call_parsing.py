"""Parsing the calls that models write, which are untrusted text of bounded size.

A function `parse_x` reads a complete call, `parse_x_head` one whose arguments have begun. They take header
and body of the call, and the types of the tools' parameters, and return None for what is no call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from edgechat.engine.tool_calls.scan import DEEPEST, is_shallow

QUOTE = '<|"|>'
"""Around texts in the calls of Gemma 4."""

Kinds = Mapping[str, Mapping[str, frozenset[str]]]
"""Of each tool and each of its parameters: the JSON types that it may have; none where that is not said."""


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """A call. `arguments` is the text of a JSON object, of a head as far as it is written."""

    name: str
    arguments: str
    id: str = ""
    """'' if the model gave none."""


_OBJECT = r'\s*(?=\{\s*["}])'
"""Before a JSON object that is one so far."""
_NAMED = re.compile(
    r'\s*\{\s*(?:\{\s*)?"name"\s*:\s*"([\w.-]{1,64})"\s*,\s*"(?:arguments|parameters)"\s*:' + _OBJECT
)
_DOUBLED = re.compile(r"\{\s*\{")
"""As some templates show a call, and models copy it."""


def parse_named_head(_header: str, body: str, _kinds: Kinds) -> ParsedCall | None:
    """Read the beginning of what `parse_named` reads."""
    match = _NAMED.match(body)
    return ParsedCall(match[1], body[match.end() :]) if match else None


class _Named(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"")
    parameters: msgspec.Raw = msgspec.Raw(b"")
    id: str | int | float | None = None


def parse_named(_header: str, body: str, _kinds: Kinds) -> ParsedCall | None:
    """Read `{"name": …, "arguments" or "parameters": {…}}`, also with the outer braces doubled."""
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
    """Read the beginning of what `parse_args` reads."""
    match = _HEADER.fullmatch(header)
    return ParsedCall(match[1], body.lstrip(), _id(match[2])) if match and re.match(_OBJECT, body) else None


_ADDRESS = re.compile(r"\bto=functions\.([\w.-]+)")


def parse_addressed(header: str, body: str, _kinds: Kinds) -> ParsedCall | None:
    """Read a message of gpt-oss that is addressed to a function."""
    match = _ADDRESS.search(header)
    arguments = _object(body)
    return ParsedCall(match[1], arguments) if match and arguments else None


def parse_addressed_head(header: str, body: str, _kinds: Kinds) -> ParsedCall | None:
    """Read the beginning of what `parse_addressed` reads."""
    match = _ADDRESS.search(header)
    return ParsedCall(match[1], body.lstrip()) if match and re.match(_OBJECT, body) else None


def _object(text: str) -> str:
    """Return the text of a JSON object, also of one inside of a JSON string; '' if it is none."""
    text = text.strip()
    if text in ("null", '""'):  # of a tool without arguments
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
    """Return the id that a model gave, if it is one of those that Mistral's templates accept."""
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
    """Read what `parse_xml` reads as far as it is written: of the arguments those that are complete."""
    name, arguments, _ = _parse_tagged(body, kinds)
    return ParsedCall(name, json.dumps(arguments, ensure_ascii=False)[:-1]) if name else None


def _parse_tagged(body: str, kinds: Kinds) -> tuple[str, dict[str, Any], str]:
    """Return the name and the arguments of a call, and what follows them; '' where there is no name."""
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
    """Return what is written between two tags as a value of one of these JSON types."""
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
_BARE = re.compile(r"[^\s:,{}\[\]<]+")
_GAP = re.compile(r"\s*")
_LITERALS = {"true": True, "false": False, "null": None, "None": None}


def parse_gemma(_header: str, body: str, _kinds: Kinds) -> ParsedCall | None:
    """Read `call:NAME{key:value,…}`, where texts stand between quotes of their own."""
    opening = _CALL.match(body)
    if opening is None:
        return None
    try:
        value, at = _Gemma(body).value(opening.end(), 0)
    except ValueError:
        return None
    if not isinstance(value, dict) or body[at:].strip() != "<tool_call|>":
        return None
    return ParsedCall(opening[1], json.dumps(value, ensure_ascii=False))


def parse_gemma_head(_header: str, body: str, _kinds: Kinds) -> ParsedCall | None:
    """Read what `parse_gemma` reads as far as it is written: the name, and nothing of the arguments."""
    opening = _CALL.match(body)
    return ParsedCall(opening[1], "") if opening and body[opening.end() :].startswith("{") else None


class _Gemma:
    """A reader of values; ValueError where there is none, or it is too deep."""

    def __init__(self, text: str) -> None:
        self._text = text

    def value(self, at: int, depth: int) -> tuple[Any, int]:
        """Return the value that begins at a character, and where it ends."""
        at = self._skip(at)
        if depth > DEEPEST:
            raise ValueError("too deep")
        if self._text.startswith(QUOTE, at):
            return self._quoted(at)
        if self._text.startswith("{", at):
            pairs, at = self._items(at + 1, "}", depth)
            return dict(pairs), at
        if self._text.startswith("[", at):
            return self._items(at + 1, "]", depth)
        word = _BARE.match(self._text, at)
        if word is None:
            raise ValueError("no value")
        return _LITERALS[word[0]] if word[0] in _LITERALS else _number(word[0]), word.end()

    def _items(self, at: int, close: str, depth: int) -> tuple[list[Any], int]:
        items: list[Any] = []
        at = self._skip(at)
        while not self._text.startswith(close, at):
            if items:
                at = self._expect(",", at)
            if close == "}":
                key, at = self._key(at)
                value, at = self.value(self._expect(":", at), depth + 1)
                items.append((key, value))
            else:
                value, at = self.value(at, depth + 1)
                items.append(value)
            at = self._skip(at)
        return items, at + 1

    def _key(self, at: int) -> tuple[str, int]:
        at = self._skip(at)
        if self._text.startswith(QUOTE, at):
            return self._quoted(at)
        word = _BARE.match(self._text, at)
        if word is None:
            raise ValueError("no key")
        return word[0].strip('"'), word.end()

    def _quoted(self, at: int) -> tuple[str, int]:
        start = at + len(QUOTE)
        end = self._text.find(QUOTE, start)
        if end < 0:
            raise ValueError("a text does not end")
        return self._text[start:end], end + len(QUOTE)

    def _expect(self, sign: str, at: int) -> int:
        at = self._skip(at)
        if not self._text.startswith(sign, at):
            raise ValueError(f"no {sign}")
        return at + 1

    def _skip(self, at: int) -> int:
        match = _GAP.match(self._text, at)
        return match.end() if match else at


def _number(word: str) -> int | float:
    try:
        value = msgspec.json.decode(word)
    except msgspec.MsgspecError as error:
        raise ValueError("no number") from error
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("no number")
    return value
