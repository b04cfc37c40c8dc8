"""The tools of a program: which servers there are, those that run, and what a chat is offered of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgechat.base.errors import EdgechatError
from edgechat.tools.tool import CALL_SECONDS, MAX_RESULT, ToolResult, ToolServer, ToolSpec


@dataclass(frozen=True, slots=True)
class KnownServer:
    """Something that a chat can choose, whether it works or not; nothing is started to list it."""

    name: str
    """What to choose; the built-in 'files' is chosen as `files:FOLDER`."""
    about: str
    """One line: its command or URL without secrets, or what the built-in tools do."""
    built_in: bool


@dataclass(frozen=True, slots=True)
class ToolSet:
    """What one chat is offered. It stays as it is: `ToolRegistry.open` returns another one."""

    tools: tuple[ToolSpec, ...] = ()
    """In a stable order: by server, then by name, so that a prompt with them stays the same."""
    problems: tuple[EdgechatError, ...] = ()
    """Why servers that were chosen are missing; each names its server and what to do next."""
    _servers: Mapping[str, ToolServer] = {}

    def find(self, model_name: str) -> ToolSpec | None:
        """Return the tool that the model calls so; None if there is none."""
        return next((tool for tool in self.tools if tool.model_name == model_name), None)

    async def call(
        self, tool: ToolSpec, arguments: str, *, seconds: float = CALL_SECONDS, most: int = MAX_RESULT
    ) -> ToolResult:
        """Call a tool of this set, for which the user has given permission.

        arguments: what the model wrote, which need not be a JSON object. Raises nothing: whatever goes wrong,
        also running out of `seconds`, is a result that `failed`, of at most `most` characters. Cancelling
        this cancels the call at the server.
        """
        raise NotImplementedError


class ToolRegistry:
    """The servers of one program, for all of its chats. Servers start at first use and end with `close`."""

    def __init__(self, config: Path | None = None) -> None:
        """config: the file of the servers; None: mcp.json in edgechat's folder of settings."""

    def known(self) -> list[KnownServer]:
        """Return what can be chosen, the built-in tools first. Reads mcp.json; raises SettingsError."""
        raise NotImplementedError

    async def open(self, chosen: Sequence[str]) -> ToolSet:
        """Start what is chosen, if it does not run, and return its tools.

        Call it before each reply: it is fast once all runs, and the set is equal to the last one unless a
        server has changed its tools. chosen: names of servers, and of built-in tools: 'calculator', 'date',
        'chats', 'web', 'files:FOLDER'. Raises nothing: see `ToolSet.problems`.
        """
        raise NotImplementedError

    async def close(self) -> None:
        """End all servers; calls that run fail."""
        raise NotImplementedError
