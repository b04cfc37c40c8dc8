"""Fields that are taken though nothing heeds them, and `edgechat serve --strict`, which refuses those.

Clients send back what they were answered, by this server or another one, with all that they keep of it; and
fields that are a wish at most. To refuse them would end a chat at its second turn for the sake of nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any, get_args, get_type_hints

import msgspec
from msgspec import Meta

from edgechat.server.http.refusal import Refusal

_NOTHING: tuple[object, ...] = (None, "", [], {})


def taken(description: str, *heeded: object) -> Meta:
    """Document a field that has no effect, but for the values in `heeded`."""
    return Meta(description=description, extra={"heeded": heeded})


Echoed = Annotated[Any, taken("Accepted and ignored: clients send it back with earlier messages.")]


def refuse_unheeded(value: msgspec.Struct, body: bytes) -> None:
    """Raise Refusal where a body, decoded as `value`, says what would have no effect."""
    overruled: tuple[str, ...] = getattr(value, "overruled", ())
    for path in (*overruled, *_unheeded(value, msgspec.json.decode(body), "")):
        raise Refusal(
            f"The field {path!r} has no effect here; `edgechat serve` without --strict accepts it.",
            param=path,
            code="not_heeded",
        )


def _unheeded(value: Any, sent: Any, where: str) -> Iterator[str]:
    """Return the paths of what was sent and is not heeded."""
    if isinstance(value, list):
        for at, (one, part) in enumerate(zip(value, sent, strict=True)):
            yield from _unheeded(one, part, f"{where}[{at}]")
    if not isinstance(value, msgspec.Struct):
        return
    marked, tag = _marked(type(value)), value.__struct_config__.tag_field
    for name, said in sent.items():
        path = f"{where}.{name}" if where else name
        if said in _NOTHING or name == tag:
            continue
        if name not in value.__struct_fields__:
            yield path
        elif name not in marked:
            yield from _unheeded(getattr(value, name), said, path)
        elif said not in marked[name]:
            yield path


@cache
def _marked(kind: type[msgspec.Struct]) -> dict[str, tuple[object, ...]]:
    """Return the fields of a Struct that have no effect, each with the values that have."""
    found = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        for one in get_args(hint)[1:]:
            if isinstance(one, Meta) and one.extra and "heeded" in one.extra:
                found[name] = one.extra["heeded"]
    return found
