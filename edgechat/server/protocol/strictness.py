"""Fields that are accepted and have no effect, and `edgechat serve --strict`, which refuses them.

Clients send back earlier answers, of this server or another one, with all that they keep with them, and
fields that are hints at most. Refusing them would end a chat at its second turn for nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any, get_args, get_type_hints

import msgspec
from msgspec import Meta

from edgechat.server.refusal import Refusal

_EMPTY: tuple[object, ...] = (None, "", [], {})


def no_effect(description: str, *effective: object) -> Meta:
    """Document a field that has no effect, but for the values in `effective`."""
    return Meta(description=description, extra={"effective": effective})


Echoed = Annotated[Any, no_effect("Accepted and ignored: clients send it back with earlier messages.")]


def refuse_ignored_fields(value: msgspec.Struct, body: bytes) -> None:
    """Raise Refusal if a body, decoded as `value`, has fields without effect."""
    overruled: tuple[str, ...] = getattr(value, "overruled", ())
    for path in (*overruled, *_ignored_fields(value, msgspec.json.decode(body), "")):
        raise not_heeded(path)


def not_heeded(path: str) -> Refusal:
    """Return the refusal of a field without effect."""
    return Refusal(
        f"The field {path!r} has no effect here; `edgechat serve` without --strict accepts it.",
        param=path,
        code="not_heeded",
    )


def _ignored_fields(value: Any, sent: Any, where: str) -> Iterator[str]:
    """Yield the paths of fields that were sent and have no effect."""
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
    """Return the fields of a Struct that have no effect, each with the values that have."""
    fields = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        for meta in get_args(hint)[1:]:
            if isinstance(meta, Meta) and meta.extra and "effective" in meta.extra:
                fields[name] = meta.extra["effective"]
    return fields
