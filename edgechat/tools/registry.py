"""Tool registry: lists and starts servers, and opens the set of tools chosen for a chat."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from edgechat.base.errors import EdgechatError, ToolError
from edgechat.base.text import one_line
from edgechat.tools.config import BUILT_IN, ServerConfig, config_path, read_servers
from edgechat.tools.tool import (
    CALL_SECONDS,
    MAX_ARGUMENTS,
    MAX_RESULT,
    ToolResult,
    ToolServer,
    ToolSpec,
    inert,
)

if TYPE_CHECKING:  # the first frame needs this module, but not the tools
    from edgechat.tools.builtin.searches import SearchChats, SearchDocuments
    from edgechat.tools.mcp.server import McpServer

_DOCUMENTS, _FILES = "documents", "files"
_MOST_CHOSEN = 32


@dataclass(frozen=True, slots=True)
class KnownServer:
    """A server or group of tools that can be chosen for a chat, listed without starting it."""

    name: str
    """The name used to choose it; 'files' and 'documents' take an argument: `files:FOLDER`,
    `documents:NAME`.
    """
    about: str
    """Its command or URL without secrets, or the description of a built-in group, on one line."""
    built_in: bool


@dataclass(frozen=True, slots=True)
class ToolSet:
    """The tools offered to a chat. Immutable; `ToolRegistry.open` returns a new set."""

    tools: tuple[ToolSpec, ...] = ()
    """Sorted by server, then by name, so that the prompt does not change."""
    problems: tuple[EdgechatError, ...] = ()
    """Why some of the chosen servers are missing; each error names its server and says what to do next."""
    servers: Mapping[str, ToolServer] = field(default_factory=dict, repr=False, compare=False)
    """The servers that offer the tools, keyed by name."""

    def find(self, model_name: str) -> ToolSpec | None:
        """Return the tool that the model knows by this name, or None."""
        return next((tool for tool in self.tools if tool.model_name == model_name), None)

    async def call(
        self, tool: ToolSpec, arguments: str, *, seconds: float = CALL_SECONDS, most: int = MAX_RESULT
    ) -> ToolResult:
        """Call a tool in this set. The user must already have permitted it.

        arguments: as the model wrote them, possibly not a JSON object. Never raises: any failure, including a
        timeout after `seconds`, is returned as a result with `failed` set. Results have at most `most`
        characters. Cancelling this cancels the call on the server.
        """
        began = time.monotonic()
        wrong = _wrong_arguments(arguments)
        if wrong is not None:
            result = ToolResult(text=f"Error: {wrong}", failed=True)
        else:
            try:
                async with asyncio.timeout(seconds):
                    result = await self.servers[tool.server].call(tool, arguments)
            except ToolError as error:
                result = ToolResult(text=f"Error: {error.message}", failed=True, error=error)
            except TimeoutError:
                late = _too_late(tool, seconds)
                result = ToolResult(text=f"Error: {late.message}", failed=True, error=late)
        return replace(_cut(result, most), seconds=time.monotonic() - began)


class ToolRegistry:
    """A program's tool servers, shared by all its chats. They start on first use; `close` stops them."""

    def __init__(
        self, search_chats: SearchChats | None = None, search_documents: SearchDocuments | None = None
    ) -> None:
        """search_chats, search_documents: enable the built-in groups 'chats' and 'documents'."""
        self._search_chats = search_chats
        self._search_documents = search_documents
        self._groups: dict[str, ToolServer] = {}
        self._servers: dict[str, tuple[ServerConfig, McpServer]] = {}
        self._closed = False

    def known(self) -> list[KnownServer]:
        """Return all servers and groups, built-in ones first. Reads mcp.json; raises SettingsError."""
        searches = {"chats": self._search_chats, _DOCUMENTS: self._search_documents}
        built_in = [
            KnownServer(name, about, built_in=True)
            for name, about in BUILT_IN.items()
            if searches.get(name, True) is not None
        ]
        servers = read_servers(config_path())
        return built_in + [
            KnownServer(name, server.shown, built_in=False) for name, server in servers.items()
        ]

    async def open(self, chosen: Sequence[str]) -> ToolSet:
        """Start the chosen servers that are not running, and return their tools.

        Call this before each reply: it is fast once all the servers are running, and returns an equal set
        unless a server's tools change. chosen: names of servers and built-in groups: 'calculator', 'date',
        'chats', 'web', 'files:FOLDER', 'documents:NAME'. Never raises; see `ToolSet.problems`.
        """
        names = sorted(set(chosen))[:_MOST_CHOSEN]
        if not names:
            return ToolSet()
        opened = await asyncio.gather(*map(self._open, names), return_exceptions=True)
        servers, tools, problems = dict[str, ToolServer](), dict[str, ToolSpec](), list[EdgechatError]()
        for found in opened:
            if isinstance(found, EdgechatError):
                problems.append(found)
            elif isinstance(found, BaseException):
                raise found
            else:
                server, specs = found
                if server.name in servers:
                    problems.append(
                        ToolError(
                            f"The {server.name} tools can be chosen only once; the first choice is used."
                        )
                    )
                    continue
                servers[server.name] = server
                for spec in specs:  # truncation can make names identical
                    tools.setdefault(spec.model_name, spec)
        return ToolSet(tuple(tools.values()), tuple(problems), servers)

    async def close(self) -> None:
        """Stop all servers; calls in progress fail."""
        self._closed = True
        running = [server for _, server in self._servers.values()]
        self._servers.clear()
        await asyncio.gather(*(server.close() for server in running))

    async def _open(self, name: str) -> tuple[ToolServer, Sequence[ToolSpec]]:
        server = await self._server(name)
        return server, await server.tools()

    async def _server(self, name: str) -> ToolServer:
        group, _, argument = name.partition(":")
        if group in BUILT_IN:
            return await self._group(group, argument)
        # Read the file every time: the user may have changed it.
        servers = await asyncio.to_thread(read_servers, config_path())
        if name not in servers:
            _, removed = self._servers.pop(name, (None, None))
            if removed is not None:
                await removed.close()
            raise ToolError(
                f"There is no tool server {one_line(name, 60)!r}.", hint="To list them: edgechat mcp list"
            )
        if self._closed:
            raise ToolError(f"The tool server {name} is not started: edgechat is closing.")
        config, running = self._servers.get(name, (None, None))
        if running is not None and config == servers[name]:
            return running
        from edgechat.tools.mcp.server import McpServer

        current = McpServer(servers[name])
        self._servers[name] = servers[name], current
        if running is not None:
            await running.close()
        return current

    async def _group(self, group: str, argument: str) -> ToolServer:
        if group == _DOCUMENTS:
            if self._search_documents is None or not argument:
                raise ToolError("No documents are named.", hint="Name some: documents:NAME")
            from edgechat.tools.builtin.searches import documents_named

            return documents_named(argument, self._search_documents)
        if group == _FILES:
            from edgechat.tools.builtin.files import files_below

            return await asyncio.to_thread(files_below, argument)
        if group not in self._groups:
            self._groups[group] = self._new_group(group)
        return self._groups[group]

    def _new_group(self, group: str) -> ToolServer:
        if group == "calculator":
            from edgechat.tools.builtin.harmless import calculator

            return calculator()
        if group == "date":
            from edgechat.tools.builtin.harmless import clock

            return clock()
        if group == "web":
            from edgechat.tools.builtin.page import web_pages

            return web_pages()
        if self._search_chats is None:
            raise ToolError("There are no conversations to search here.")
        from edgechat.tools.builtin.searches import past_chats

        return past_chats(self._search_chats)


def _wrong_arguments(arguments: str) -> str | None:
    """Return a message for the model if its arguments are not a JSON object, else None."""
    if len(arguments) > MAX_ARGUMENTS:
        return f"the arguments have more than {MAX_ARGUMENTS:,} characters."
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError) as error:
        return f"the arguments are not valid JSON: {one_line(str(error), 120)}."
    return None if isinstance(parsed, dict) else "the arguments are not a JSON object."


def _too_late(tool: ToolSpec, seconds: float) -> ToolError:
    name, server = one_line(tool.name, 60), one_line(tool.server, 60)
    return ToolError(
        f"The tool {name} of {server} did not answer within {seconds:.0f} seconds.",
        hint=None if tool.built_in else f"To test the server alone: edgechat mcp test {server}",
    )


def _cut(result: ToolResult, most: int) -> ToolResult:
    """Return a result whose text is inert and has at most `most` characters."""
    text = inert(result.text[: 4 * MAX_RESULT])  # inert text may be much shorter
    left_out = len(result.text) - min(len(result.text), 4 * MAX_RESULT)
    if not left_out and len(text) <= most:
        return replace(result, text=text)
    note = "\n[Cut: the result is longer.]"
    kept = text[: max(0, min(most, MAX_RESULT) - len(note))]
    return replace(result, text=(kept + note)[:most], left_out=left_out + len(text) - len(kept))
