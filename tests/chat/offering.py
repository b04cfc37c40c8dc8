"""Tools for tests of the code that calls them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from edgechat.chat.reply.calls import ToolAccess
from edgechat.engine.types import ToolCall
from edgechat.tools.consent import Permission
from edgechat.tools.registry import ToolSet
from edgechat.tools.tool import ToolResult, ToolSpec

Answering = Callable[[str, dict[str, Any]], Awaitable[str]]


def call(name: str, call_id: str = "", **arguments: Any) -> ToolCall:
    return ToolCall(call_id or f"call-{name}", name, json.dumps(arguments))


async def permit(tool: ToolSpec, arguments: str) -> bool:
    return True


class Shelf:
    """A server with two tools, `read` (read-only) and `write`, that answer as a test wants."""

    name = "shelf"

    def __init__(self, answer: Answering | None = None) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.running = self.most_running = 0
        self._answer = answer

    def access(self, permission: Permission = permit, **options: Any) -> ToolAccess:
        read = ToolSpec(server=self.name, name="read", description="Reads a book.", read_only=True)
        write = ToolSpec(server=self.name, name="write", description="Writes a book.", destructive=True)
        return ToolAccess(
            tools=ToolSet((read, write), servers={self.name: self}), permission=permission, **options
        )

    async def tools(self) -> Sequence[ToolSpec]:
        raise AssertionError("they are known")

    async def call(self, tool: ToolSpec, arguments: str) -> ToolResult:
        name = tool.name
        self.calls.append((name, json.loads(arguments)))
        self.running += 1
        self.most_running = max(self.running, self.most_running)
        try:
            if self._answer is not None:
                return ToolResult(text=await self._answer(name, json.loads(arguments)))
            await asyncio.sleep(0)
            return ToolResult(text=f"{name} {json.loads(arguments)}")
        finally:
            self.running -= 1

    async def close(self) -> None:
        pass
