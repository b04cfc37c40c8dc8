"""Request bodies: decodes them into Structs or refuses them with a reason; finds ignored fields (`--strict`).

Clients send back earlier answers, from this server or another, with all the fields they have stored. They
also send fields that are only hints. Refusing either would needlessly end a chat on its second turn.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Annotated, Any, TypeVar, get_args, get_type_hints
from urllib.parse import parse_qsl

import msgspec
from msgspec import Meta

from edgechat.server.refusal import Refusal

T = TypeVar("T")
_AT = re.compile(r" - at (?:`key` in |`value` in )?`\$\.?([^`]*)`$")
_UNKNOWN = re.compile(r"unknown field `([^`]*)`")
_PART = re.compile(r"content\[\d+\]\.type$")
_HALF_PAIR = re.compile(
    rb"(?<!\\)(?:\\u[dD][89abAB]..(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..)\\u[dD][c-fC-F]..)"
)
"""Half of a surrogate pair, left when a string is cut in the middle of a character beyond U+FFFF."""
_SHOWN = 200
_LARGE = 128 * 1024
"""Size in bytes above which bodies are decoded in a thread."""
_MOST_VALUES, _MOST_PARTS = 2**20, 2**17
"""Maximum number of commas, and of opening brackets and colons, including those in strings.

No model has a context large enough for that many.
"""


async def parse_body(body: bytes, make: Callable[[bytes], T]) -> T:
    """Return `make(body)`, which is called in a thread if the body is large, so that streams do not stall.

    Raises Refusal.
    """

    def made() -> T:
        _check_number_of_values(body)
        return make(body)

    return await off_loop(len(body), made)


def _check_number_of_values(body: bytes) -> None:
    if body.count(b",") > _MOST_VALUES or sum(map(body.count, (b"[", b"{", b":"))) > _MOST_PARTS:
        raise Refusal(
            f"The body exceeds the limit of {_MOST_PARTS} lists, objects and fields, or {_MOST_VALUES} "
            "values.",
            status=413,
        )


async def off_loop(size: int, work: Callable[[], T]) -> T:
    """Return `work()`, which is called in a thread if it processes enough bytes to make streams stall."""
    return await asyncio.to_thread(work) if size > _LARGE else work()


def decode(body: bytes | msgspec.Raw, kind: type[T], at: str = "") -> T:
    """Decode a body, or a part of one. at: the path of the part.

    Raises Refusal, naming the invalid field and its valid values.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise _refused(str(error), kind, at) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        half = _HALF_PAIR.search(body)
        why = f"{half[0].decode()} is half of a surrogate pair" if half else str(error)
        raise Refusal(f"The body is not valid JSON: {why}.", code="invalid_json") from None
    except RecursionError:
        raise Refusal("The body is nested too deeply.", code="invalid_json") from None


def decode_query(query: bytes, kind: type[T]) -> T:
    """Decode the query string of a URL, ignoring unknown parameters. Raises Refusal."""
    sent = dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True))
    try:
        return msgspec.convert(sent, kind, strict=False)
    except msgspec.ValidationError as error:
        raise _refused(str(error), kind, "") from None


class _Typed(msgspec.Struct, frozen=True):
    type: str = ""


def kind_of(part: msgspec.Raw, at: str) -> str:
    """Return the `type` of a part of a body, or '' if it has none. Raises Refusal."""
    return decode(part, _Typed, at).type


def _refused(message: str, kind: type[Any], at: str) -> Refusal:
    location = _AT.search(message)
    where = location.group(1) if location else ""
    what = message[: location.start()] if location else message
    about = _descriptions(kind).get(re.split(r"[.\[]", where)[0], "")
    where = ".".join(part for part in (at, where) if part)
    if unknown := _UNKNOWN.search(what):
        name = unknown.group(1)[:_SHOWN]
        path = f"{where}.{name}" if where else name
        return Refusal(f"Unknown field {path!r}.", param=path, code="unknown_parameter")
    if _PART.search(where):
        about = "Only text is supported, plus images and audio in user and tool messages; files are not."
    text = " ".join(part for part in (f"{where or 'body'}: {what[:_SHOWN]}.", about) if part)
    return Refusal(text, param=where or None, code="invalid_value")


def _descriptions(kind: type[Any]) -> dict[str, str]:
    descriptions = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        metas = [meta for meta in get_args(hint)[1:] if isinstance(meta, msgspec.Meta)]
        descriptions[name] = next((meta.description for meta in metas if meta.description), "")
    return descriptions


_EMPTY: tuple[object, ...] = (None, "", [], {})


def no_effect(description: str, *effective: object) -> Meta:
    """Describe a field that has no effect. effective: values that do have an effect, or are the default."""
    return Meta(description=description, extra={"effective": effective})


Echoed = Annotated[Any, no_effect("Accepted and ignored: clients send it back with earlier messages.")]


def refuse_ignored_fields(value: msgspec.Struct, body: bytes) -> None:
    """Raise Refusal if a body, decoded as `value`, contains fields that have no effect."""
    overruled: tuple[str, ...] = getattr(value, "overruled", ())
    for path in (*overruled, *_ignored_fields(value, msgspec.json.decode(body), "")):
        raise not_heeded(path)


def not_heeded(path: str) -> Refusal:
    """Return the refusal for a field that would have no effect."""
    return Refusal(
        f"The field {path!r} has no effect here; `edgechat serve` without --strict accepts it.",
        param=path,
        code="not_heeded",
    )


def _ignored_fields(value: Any, sent: Any, where: str) -> Iterator[str]:
    """Yield the paths of fields in `sent` that have no effect."""
    if isinstance(value, list):
        for at, (item, part) in enumerate(zip(value, sent, strict=True)):
            yield from _ignored_fields(item, part, f"{where}[{at}]")
    if not isinstance(value, msgspec.Struct):
        return
    without_effect, tag = _fields_without_effect(type(value)), value.__struct_config__.tag_field
    for name, content in sent.items():
        path = f"{where}.{name}" if where else name
        if content in _EMPTY or name == tag:
            continue
        if name not in value.__struct_fields__:
            yield path
        elif name not in without_effect:
            yield from _ignored_fields(getattr(value, name), content, path)
        elif content not in without_effect[name]:
            yield path


@cache
def _fields_without_effect(kind: type[msgspec.Struct]) -> dict[str, tuple[object, ...]]:
    """Return the fields of a Struct that have no effect, each with its effective values."""
    fields = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        for meta in get_args(hint)[1:]:
            if isinstance(meta, Meta) and meta.extra and "effective" in meta.extra:
                fields[name] = meta.extra["effective"]
    return fields
