"""Tool calls in a reply: getting permission, carrying them out, and showing them with their results."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from edgechat.base.errors import EdgechatError
from edgechat.base.text import one_line
from edgechat.chat.attachments import ChatImages
from edgechat.chat.records import ToolUse
from edgechat.engine.types import Tool
from edgechat.settings import Settings
from edgechat.tools.consent import NamedPermission, Permission
from edgechat.tools.registry import ToolSet
from edgechat.tools.tool import MAX_RESULT, ToolSpec, visible_escapes

_AT_ONCE = 4
"""Maximum number of calls running at the same time."""
_LEAST_RESULT = 400
"""Number of characters that every result may have, even if the total then exceeds its limit."""
STOPPED = "The user stopped the reply before there was a result."


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolAccess:
    """The tools that a reply can call, and the permission to call them; no tools by default."""

    tools: ToolSet = field(default_factory=ToolSet)
    permission: Permission = field(default_factory=lambda: NamedPermission(()))
    rounds: int = Settings().tool_rounds
    """Maximum number of successive rounds of calls."""

    @property
    def offered(self) -> tuple[Tool, ...]:
        """The tools, converted for the engine."""
        return tuple(map(engine_tool, self.tools.tools))


class UseChanged(msgspec.Struct, frozen=True):
    """Event: the model has written a call, or a call has started or ended. Occurs between two requests."""

    turn_id: str
    use: ToolUse
    running: bool = False
    """Whether the call is running, which it is not while the user is being asked."""
    error: EdgechatError | None = None
    """Why there is no result, as an error to show to the user."""


def engine_tool(tool: ToolSpec) -> Tool:
    """Convert a tool for the engine."""
    return Tool(tool.model_name, tool.description, tool.schema)


class RoundOfCalls:
    """Carries out the calls of one round: read-only calls concurrently, all others one at a time."""

    def __init__(
        self,
        turn_id: str,
        uses: Sequence[ToolUse],
        access: ToolAccess,
        images: ChatImages,
        *,
        most: int,
    ) -> None:
        """images: stores images from results. most: maximum number of characters in all results together."""
        self._turn_id = turn_id
        self._uses = [_with_tool(use, access.tools.find(use.name)) for use in uses]
        self._access = access
        self._images = images
        self._most = max(_LEAST_RESULT, min(MAX_RESULT, most // max(1, len(uses))))
        self._events: asyncio.Queue[UseChanged | None] = asyncio.Queue()
        self._at_once = asyncio.Semaphore(_AT_ONCE)
        self._task: asyncio.Task[None] | None = None
        self._stopping = False

    async def run(self) -> AsyncGenerator[UseChanged, None]:
        """Yield each change to the calls. Closing the generator cancels unfinished ones."""
        for use in self._uses:
            yield UseChanged(self._turn_id, use)
        self._task = asyncio.create_task(self._run_all())
        self._task.add_done_callback(lambda _: self._events.put_nowait(None))
        if self._stopping:  # stopped before it started
            self._task.cancel()
        try:
            while (event := await self._events.get()) is not None:
                yield event
            if self._task.cancelled():
                for use in self._uses:
                    if use.outcome == "open":
                        yield UseChanged(self._turn_id, _ended(use, "stopped", STOPPED))
            else:
                self._task.result()
        finally:
            self._task.cancel()
            await asyncio.wait([self._task])

    def stop(self) -> None:
        """Cancel unfinished calls, which become 'stopped', and end `run`."""
        self._stopping = True
        if self._task is not None:
            self._task.cancel()

    async def _run_all(self) -> None:
        for group in self._groups():
            async with asyncio.TaskGroup() as tasks:
                for use in group:
                    tasks.create_task(self._run(use))

    def _groups(self) -> Sequence[Sequence[ToolUse]]:
        """Return the calls in order, grouped so that the calls in a group can run concurrently."""
        groups: list[list[ToolUse]] = []
        was_reading = False
        for use in self._uses:
            tool = self._access.tools.find(use.name)
            reads = tool is None or bool(tool.read_only)
            if groups and reads and was_reading:
                groups[-1].append(use)
            else:
                groups.append([use])
            was_reading = reads
        return groups

    async def _run(self, use: ToolUse) -> None:
        tool = self._access.tools.find(use.name)
        if tool is None:
            self._end(use, "failed", f"Error: there is no tool {one_line(use.name, 80)!r}.")
            return
        try:
            if not await self._access.permission(tool, use.arguments):
                self._end(use, "refused", "The user did not allow this call.")
                return
        except EdgechatError as error:  # the permission cannot be stored
            self._end(use, "failed", f"Not called: {error.message}", error)
            return
        async with self._at_once:
            self._events.put_nowait(UseChanged(self._turn_id, use, running=True))
            result = await self._access.tools.call(tool, use.arguments, most=self._most)
            images = await self._images.keep(result.images) if result.images else ()
        use = msgspec.structs.replace(use, seconds=round(result.seconds, 3), images=images)
        text = result.text
        if n_lost := len(result.images) - len(images):
            text += f"\n[Images that cannot be read: {n_lost}]"
        self._end(use, "failed" if result.failed else "answered", text, result.error)

    def _end(self, use: ToolUse, outcome: str, text: str, error: EdgechatError | None = None) -> None:
        ended = _ended(use, outcome, text)
        self._uses = [ended if one.id == use.id else one for one in self._uses]
        self._events.put_nowait(UseChanged(self._turn_id, ended, error=error))


def _ended(use: ToolUse, outcome: str, text: str) -> ToolUse:
    return msgspec.structs.replace(use, outcome=outcome, result=text)


def _with_tool(use: ToolUse, tool: ToolSpec | None) -> ToolUse:
    return use if tool is None else msgspec.structs.replace(use, server=tool.server, tool=tool.name)


OUTCOMES = {
    "open": "interrupted",
    "answered": "answered",
    "failed": "failed",
    "refused": "not allowed",
    "stopped": "not carried out",
}
"""Outcomes of calls in a finished reply, as shown to users."""
_LONGEST_NAME = 60


def name_of(use: ToolUse) -> str:
    """Return a call's server and tool on one line; if unknown, the name that the model used."""
    name = f"{use.server}: {use.tool}" if use.server else use.name
    return one_line(name, 2 * _LONGEST_NAME)


def arguments_in_a_line(use: ToolUse, most: int = 200) -> str:
    """Return a call's arguments on one line of at most `most` characters: 'path="a.py", depth=2'."""
    text = use.arguments
    with suppress(ValueError, RecursionError):
        values = json.loads(use.arguments)
        if isinstance(values, dict):
            text = ", ".join(
                f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in values.items()
            )
    return one_line(visible_escapes(text[: 4 * most]), most)


def tool_name(tool: ToolSpec) -> str:
    """Return the server and name of a tool on one line."""
    return f"{one_line(tool.server, _LONGEST_NAME)}: {one_line(tool.name, _LONGEST_NAME)}"


def told_in_words(model: str) -> str:
    """Return the note for a model that is given tools although its chat template does not support them."""
    name = one_line(model, _LONGEST_NAME)
    return (
        f"{name}'s chat template does not support tools: they are described in plain text, and the model may "
        "ignore them."
    )


def hints(tool: ToolSpec) -> str:
    """Return a sentence about a tool's effects, as claimed by its server."""
    if tool.built_in:
        return "A built-in tool that changes nothing." if tool.read_only else "A built-in tool."
    server = one_line(tool.server, _LONGEST_NAME)
    if tool.destructive:
        return f"According to {server}, it may delete or overwrite something."
    if tool.read_only:
        return f"According to {server}, it changes nothing."
    return f"{server} does not say whether it changes anything."
