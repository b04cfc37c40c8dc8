"""From a body to a Struct, or words about what is wrong with it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec

from edgechat.server.http.refusal import Refusal

T = TypeVar("T")
_AT = re.compile(r" - at (?:`key` in |`value` in )?`\$\.?([^`]*)`$")
_UNKNOWN = re.compile(r"unknown field `([^`]*)`")
_PART = re.compile(r"content\[\d+\]\.type$")
_SHOWN = 200
_LARGE = 128 * 1024
"""Bytes of a body that is worth a thread."""
_MOST_VALUES, _MOST_PARTS = 2**20, 2**17
"""Commas; and brackets that open, and colons. Those in texts count too: no context holds as many of them."""


async def made_of(body: bytes, make: Callable[[bytes], T]) -> T:
    """Return what is made of a body, while others' streams go on. Raises Refusal as `make` does."""
    if body.count(b",") > _MOST_VALUES or sum(map(body.count, (b"[", b"{", b":"))) > _MOST_PARTS:
        raise Refusal(
            f"The body has more than {_MOST_PARTS} lists, objects and fields, or {_MOST_VALUES} values, "
            "the limit.",
            status=413,
        )
    return await asyncio.to_thread(make, body) if len(body) > _LARGE else make(body)


def decoded(body: bytes, kind: type[T]) -> T:
    """Return what a body says. Raises Refusal, with the field that is wrong and what may stand there."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise _refused(str(error), kind) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refusal(f"The body is not valid JSON: {error}.", code="invalid_json") from None
    except RecursionError:
        raise Refusal("The body is nested too deeply.", code="invalid_json") from None


def _refused(message: str, kind: type[Any]) -> Refusal:
    found = _AT.search(message)
    where = found.group(1) if found else ""
    what = message[: found.start()] if found else message
    if unknown := _UNKNOWN.search(what):
        name = unknown.group(1)[:_SHOWN]
        path = f"{where}.{name}" if where else name
        return Refusal(f"Unknown field {path!r}.", param=path, code="unknown_parameter")
    about = _descriptions(kind).get(re.split(r"[.\[]", where)[0], "")
    if _PART.search(where):
        about = "Only parts of type text are supported: no images, audio or files."
    told = " ".join(part for part in (f"{where or 'body'}: {what[:_SHOWN]}.", about) if part)
    return Refusal(told, param=where or None, code="invalid_value")


def _descriptions(kind: type[Any]) -> dict[str, str]:
    """Return what the fields of a Struct are said to be."""
    found = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        metas = [one for one in get_args(hint)[1:] if isinstance(one, msgspec.Meta)]
        found[name] = next((one.description for one in metas if one.description), "")
    return found
