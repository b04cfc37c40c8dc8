"""JSON schemas of strangers on their way to the engine."""

from __future__ import annotations

from typing import Any

import msgspec

from edgechat.server.refusal import Refusal

_DEPTH = 64
_BYTES = 256 * 1024


def schema_text(schema: dict[str, Any], param: str) -> str:
    """Return a schema as text. Raises Refusal for one that is too deep or too long to be compiled."""
    level: list[Any] = [schema]
    for _ in range(_DEPTH):
        level = [
            inner
            for one in level
            for inner in (one.values() if isinstance(one, dict) else one)
            if isinstance(inner, dict | list)
        ]
        if not level:
            break
    else:
        raise Refusal(f"The schema is nested more than {_DEPTH} deep.", param=param)
    text = msgspec.json.encode(schema)
    if len(text) > _BYTES:
        raise Refusal(f"The schema is longer than {_BYTES // 1024} KiB.", param=param)
    return text.decode()
