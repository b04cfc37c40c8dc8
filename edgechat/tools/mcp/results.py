"""Converts the SDK's tools and results to edgechat's own types, which are limited in size."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from edgechat.base.text import one_line
from edgechat.tools.tool import (
    MAX_DESCRIPTION,
    MAX_IMAGE_BYTES,
    MAX_IMAGES,
    MAX_RESULT,
    MAX_SCHEMA,
    MAX_SCHEMA_DEPTH,
    ToolSpec,
    inert,
)

if TYPE_CHECKING:
    from mcp_types import CallToolResult, Tool

_MAX_NAME, _MAX_TITLE = 128, 200
_MOST_TEXT = 4 * MAX_RESULT
"""Maximum number of characters that the child sends per result; the parent truncates results further."""
_LEFT_OUT_SHOWN = 20


def specs_of(server: str, tools: Iterable[Tool]) -> tuple[list[ToolSpec], list[str]]:
    """Return the tools that can be offered, sorted by name, and the reasons for leaving out the others."""
    specs, left_out = dict[str, ToolSpec](), list[str]()
    for tool in tools:
        why = "two have its name" if tool.name in specs else _flaw(tool)
        if why is None:
            specs[tool.name] = _spec(server, tool)
        elif len(left_out) < _LEFT_OUT_SHOWN:
            left_out.append(f"{one_line(tool.name, 60)!r}: {why}")
    return [specs[name] for name in sorted(specs)], left_out


def _flaw(tool: Tool) -> str | None:
    """Return the reason why a tool cannot be offered, or None."""
    if not tool.name or len(tool.name) > _MAX_NAME or not (tool.name.isascii() and tool.name.isprintable()):
        return f"a name has 1 to {_MAX_NAME} printable ASCII characters"
    if _depth(tool.input_schema, MAX_SCHEMA_DEPTH + 1) > MAX_SCHEMA_DEPTH:
        return f"its schema is nested more than {MAX_SCHEMA_DEPTH} deep"
    if len(json.dumps(tool.input_schema)) > MAX_SCHEMA:
        return f"its schema has more than {MAX_SCHEMA:,} characters"
    return None


def _spec(server: str, tool: Tool) -> ToolSpec:
    description, hints = inert(tool.description or "").strip(), tool.annotations
    if len(description) > MAX_DESCRIPTION:
        description = description[: MAX_DESCRIPTION - 1] + "…"
    return ToolSpec(
        server=server,
        name=tool.name,
        title=one_line(inert(tool.title or (hints.title if hints else "") or ""), _MAX_TITLE),
        description=description,
        schema=json.dumps(_inert_values(tool.input_schema), ensure_ascii=False),
        read_only=hints.read_only_hint if hints else None,
        destructive=hints.destructive_hint if hints else None,
    )


def _inert_values(value: Any) -> Any:
    if isinstance(value, str):
        return inert(value)
    if isinstance(value, dict):
        return {inert(str(key)): _inert_values(one) for key, one in value.items()}
    return [_inert_values(one) for one in value] if isinstance(value, list) else value


def _depth(value: Any, most: int) -> int:
    """Return the nesting depth of a value, up to `most`."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if most == 0 or not inside:
        return 0
    return 1 + max(_depth(one, most - 1) for one in inside)


def result_of(result: CallToolResult) -> tuple[str, tuple[bytes, ...]]:
    """Return the text and the images in a result. The text mentions any other kinds of content."""
    texts, images, room = list[str](), list[bytes](), _MOST_TEXT
    for block in result.content:
        if block.type == "image":
            image = _image(block.data) if len(images) < MAX_IMAGES else None
            text = "" if image is not None else "[An image is left out: too many, too large, or no image.]"
            images += [image] if image is not None else []
        else:
            text = _text(block)
        texts.append(text[:room])
        room -= len(texts[-1])
    if not result.content and result.structured_content is not None:
        texts.append(json.dumps(result.structured_content, ensure_ascii=False)[:_MOST_TEXT])
    return "\n".join(filter(None, texts)), tuple(images)


def _text(block: Any) -> str:
    match block.type:
        case "text":
            return str(block.text)
        case "audio":
            return "[Audio is left out.]"
        case "resource_link":
            return f"{one_line(block.name, 200)}: {one_line(str(block.uri), 500)}"
        case "resource":
            uri = one_line(str(block.resource.uri), 500)
            text = getattr(block.resource, "text", None)
            return f"{uri}\n{text}" if text is not None else f"[{uri} is left out: it is not text.]"
    return f"[Something of the kind {one_line(str(block.type), 40)} is left out.]"


def _image(data: str) -> bytes | None:
    if len(data) > MAX_IMAGE_BYTES * 4 // 3 + 4:
        return None
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return None
