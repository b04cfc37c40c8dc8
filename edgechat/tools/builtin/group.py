"""Groups of built-in tools: functions with typed arguments."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from edgechat.tools.tool import ToolResult, ToolSpec


class ToolFailure(Exception):
    """Raised when a built-in tool fails; the text is for the model."""


@dataclass(frozen=True, slots=True)
class BuiltInTool:
    """A tool in a group."""

    name: str
    description: str
    arguments: type[msgspec.Struct]
    """A struct whose fields, described by `msgspec.Meta`, become the schema."""
    run: Callable[[Any], Awaitable[str]]
    """Called with validated arguments. Raises ToolFailure."""
    harmless: bool = False


class BuiltInGroup:
    """A ToolServer whose tools run in this process."""

    def __init__(self, name: str, *tools: BuiltInTool) -> None:
        self.name = name
        self._tools = {tool.name: tool for tool in tools}

    async def tools(self) -> Sequence[ToolSpec]:
        """See ToolServer."""
        return [self._spec(self._tools[name]) for name in sorted(self._tools)]

    async def call(self, tool: ToolSpec, arguments: str) -> ToolResult:
        """See ToolServer."""
        called = self._tools[tool.name]
        try:
            checked = msgspec.json.decode(arguments, type=called.arguments)
            return ToolResult(text=await called.run(checked))
        except msgspec.MsgspecError as error:
            return ToolResult(text=f"Error: wrong arguments: {error}.", failed=True)
        except ToolFailure as error:
            return ToolResult(text=f"Error: {error}", failed=True)

    async def close(self) -> None:
        """See ToolServer."""

    def _spec(self, tool: BuiltInTool) -> ToolSpec:
        return ToolSpec(
            server=self.name,
            name=tool.name,
            description=tool.description,
            schema=json.dumps(schema_of(tool.arguments)),
            read_only=True,
            destructive=False,
            built_in=True,
            harmless=tool.harmless,
        )


def schema_of(arguments: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the JSON schema for a struct with plain fields."""
    schema = msgspec.json.schema(arguments)["$defs"][arguments.__name__]
    schema = {key: schema[key] for key in ("type", "properties", "required")}
    return {**schema, "additionalProperties": False}
