"""Connection to a running tool server through a child process, and the messages that the two exchange."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import psutil

from edgechat.base import paths
from edgechat.base.errors import FolderError, ToolError
from edgechat.base.process import frames, spawn
from edgechat.base.text import one_line
from edgechat.tools.config import ServerConfig
from edgechat.tools.tool import ToolSpec

START_SECONDS = 60.0
"""Time limit for starting a server; a package runner may have to download it first."""
LIST_SECONDS = 15.0
GRACE_SECONDS = 1.5
"""Seconds that a server is given to exit on its own once its input is closed."""
_CLOSE_SECONDS = GRACE_SECONDS + 2.0


class StartServer(msgspec.Struct, frozen=True, tag=True):
    """Request to start a server or connect to it; sent once, as the first message."""

    config: ServerConfig
    """The configuration, with variables already replaced by their values."""


class ListTools(msgspec.Struct, frozen=True, tag=True):
    """Request for the list of tools; the server is asked again if it has announced changes."""

    id: int


class CallTool(msgspec.Struct, frozen=True, tag=True):
    """Request to call a tool."""

    id: int
    name: str
    arguments: str
    """A JSON object."""


class CancelCall(msgspec.Struct, frozen=True, tag=True):
    """Request to cancel another request; unknown ids are ignored."""

    id: int


class ServerStarted(msgspec.Struct, frozen=True, tag=True):
    """Reply to StartServer: the server has started and speaks MCP."""

    title: str
    """The name and version that the server reports."""
    protocol: str


class ToolsListed(msgspec.Struct, frozen=True, tag=True):
    """Reply to ListTools: the tools, sorted by name."""

    id: int
    tools: tuple[ToolSpec, ...]
    left_out: tuple[str, ...]
    """The reasons why tools were left out, one line each."""


class ToolCalled(msgspec.Struct, frozen=True, tag=True):
    """Reply to CallTool; see ToolResult."""

    id: int
    text: str
    failed: bool
    images: tuple[bytes, ...] = ()


class RequestFailed(msgspec.Struct, frozen=True, tag=True):
    """Reply to a request that failed."""

    id: int
    why: str
    """The reason, worded to complete 'The tool server NAME ...'."""


class ServerLost(msgspec.Struct, frozen=True, tag=True):
    """Last message: the server could not be started, or has ended."""

    why: str
    """The reason, worded to complete 'The tool server NAME ...'."""
    said: str = ""
    """The end of its stderr."""


ToChild = StartServer | ListTools | CallTool | CancelCall
FromChild = ServerStarted | ToolsListed | ToolCalled | RequestFailed | ServerLost


class McpConnection:
    """A running server. It ends on `close`, on its own, or when it exceeds its limits."""

    def __init__(self, config: ServerConfig, process: asyncio.subprocess.Process) -> None:
        """Do not call this directly; use `start`."""
        self.title = ""
        """Name and version that the server reports: untrusted, but inert."""
        self.protocol = ""
        self._config = config
        self._process = process
        self._closing = False
        self._lost: ToolError | None = None
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[ToolsListed | ToolCalled]] = {}
        self._started: asyncio.Future[ServerStarted] = asyncio.get_running_loop().create_future()
        self._reader = asyncio.ensure_future(self._read())

    @classmethod
    async def start(cls, config: ServerConfig) -> McpConnection:
        """Start a server and wait until it responds. Raises ToolError.

        config: with variables already replaced by their values.
        """
        log = _open_log(config)
        try:
            process = await asyncio.create_subprocess_exec(*spawn.command("mcp"), **spawn.options(log))
        except OSError as error:
            raise ToolError(f"{_named(config)} cannot be started: {error.strerror}.") from error
        finally:
            os.close(log)
        connection = cls(config, process)
        try:
            connection._send(StartServer(config))
            async with asyncio.timeout(START_SECONDS):
                started = await asyncio.shield(connection._started)
        except TimeoutError as error:
            await connection.close()
            raise connection.error(f"did not answer within {START_SECONDS:.0f} seconds") from error
        except BaseException:
            await connection.close()
            raise
        connection.title, connection.protocol = started.title, started.protocol
        return connection

    @property
    def alive(self) -> bool:
        """Whether it accepts requests."""
        return not self._closing and self._lost is None and not self._reader.done()

    async def list(self) -> ToolsListed:
        """Return the tools. Raises ToolError."""
        try:
            async with asyncio.timeout(LIST_SECONDS):
                listed = await self._request(ListTools)
        except TimeoutError as error:
            await self.close()  # the server hangs
            raise self.error(f"did not list its tools within {LIST_SECONDS:.0f} seconds") from error
        assert isinstance(listed, ToolsListed)
        return listed

    async def call(self, name: str, arguments: str) -> ToolCalled:
        """Call a tool. Cancelling this cancels the call on the server. Raises ToolError."""
        called = await self._request(lambda id: CallTool(id, name, arguments))
        assert isinstance(called, ToolCalled)
        return called

    async def close(self) -> None:
        """Stop the server by closing its input, or by force if it takes too long to exit."""
        self._closing = True
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, RuntimeError):
            self._process.stdin.close()
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await asyncio.shield(self._process.wait())
        except TimeoutError:
            self._kill()
        await self._reader

    def error(self, why: str, said: str = "") -> ToolError:
        """Return an error about this server; `why` completes 'The tool server NAME ...'."""
        lines = [one_line(line, 200) for line in said.splitlines() if line.strip()]
        last = f" It last said: {lines[-1].rstrip('.')}." if lines else ""
        return ToolError(
            f"{_named(self._config)} {why.rstrip('.')}.{last}",
            hint=f"To test it and see its output: edgechat mcp test {self._config.name}",
        )

    async def _request(self, make: Callable[[int], ToChild]) -> ToolsListed | ToolCalled:
        if not self.alive:
            raise self._lost or self.error("has ended")
        id = next(self._ids)
        answer: asyncio.Future[ToolsListed | ToolCalled] = asyncio.get_running_loop().create_future()
        self._waiting[id] = answer
        try:
            self._send(make(id))
            return await answer
        finally:
            del self._waiting[id]
            if answer.cancelled() and self.alive:
                self._send(CancelCall(id))

    async def _read(self) -> None:
        """Pass each answer to the request waiting for it; at the end, fail any requests still waiting."""
        assert self._process.stdout is not None
        stdout, decoder = self._process.stdout, msgspec.msgpack.Decoder(FromChild)
        with contextlib.suppress(
            asyncio.IncompleteReadError, OSError, frames.BrokenFrame, msgspec.MsgspecError
        ):
            while True:
                header = await stdout.readexactly(frames.HEADER.size)
                self._take(decoder.decode(await stdout.readexactly(frames.length(header))))
        self._lost = self._lost or self.error("was ended" if self._closing else "has ended")
        waiting: list[asyncio.Future[Any]] = [self._started, *self._waiting.values()]
        for future in waiting:
            if not future.done():
                future.set_exception(self._lost)
        if not self._started.cancelled():
            self._started.exception()  # mark it as retrieved, in case nobody is waiting for it

    def _take(self, message: FromChild) -> None:
        match message:
            case ServerStarted():
                if not self._started.done():
                    self._started.set_result(message)
            case ServerLost(why, said):
                self._lost = self.error(why, said)
            case ToolsListed(id) | ToolCalled(id):
                if (future := self._waiting.get(id)) is not None and not future.done():
                    future.set_result(message)
            case RequestFailed(id, why):
                if (future := self._waiting.get(id)) is not None and not future.done():
                    future.set_exception(self.error(why))

    def _send(self, message: ToChild) -> None:
        """Send a message. If the pipe is broken, the reading task notices."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, RuntimeError):
            self._process.stdin.write(frames.pack(msgspec.msgpack.encode(message)))

    def _kill(self) -> None:
        """Kill the unresponsive child and the server."""
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(self._process.pid)
            for one in [*process.children(recursive=True), process]:
                with contextlib.suppress(psutil.Error):
                    one.kill()


def _named(config: ServerConfig) -> str:
    return f"The tool server {config.name}"


def log_path(config: ServerConfig) -> Path:
    """Return the path of the log file for a server's stderr. Raises FolderError."""
    return paths.log_dir() / f"mcp-{config.name.replace(' ', '-')}.log"


def _open_log(config: ServerConfig) -> int:
    """Open a server's log and truncate it; if it cannot be written to, open the null device instead."""
    try:
        return paths.private(log_path(config), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    except (OSError, FolderError):
        return os.open(os.devnull, os.O_WRONLY)
