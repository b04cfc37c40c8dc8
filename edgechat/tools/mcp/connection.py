"""One life of a tool server, as the program sees it: the child process that speaks to it."""

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
"""Until a server answers; package runners may have to download it first."""
LIST_SECONDS = 15.0
GRACE_SECONDS = 1.5
"""For a server to end by itself, once its input is closed."""
_CLOSE_SECONDS = GRACE_SECONDS + 2.0


class McpConnection:
    """A server that was started. It ends with `close`, by itself, or when it takes too much."""

    def __init__(self, config: ServerConfig, process: asyncio.subprocess.Process) -> None:
        """Use `start`."""
        self.title = ""
        """The server's own name and version, untrusted but inert."""
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
        """Start a server and wait until it answers. Raises ToolError.

        config: with the values of variables.
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
        """Whether requests can be made."""
        return not self._closing and self._lost is None and not self._reader.done()

    async def list(self) -> ToolsListed:
        """Return the tools. Raises ToolError."""
        try:
            async with asyncio.timeout(LIST_SECONDS):
                listed = await self._request(lambda id: ListTools(id))
        except TimeoutError as error:
            await self.close()  # it hangs
            raise self.error(f"did not list its tools within {LIST_SECONDS:.0f} seconds") from error
        assert isinstance(listed, ToolsListed)
        return listed

    async def call(self, name: str, arguments: str) -> ToolCalled:
        """Call a tool; being cancelled cancels it at the server. Raises ToolError."""
        called = await self._request(lambda id: CallTool(id, name, arguments))
        assert isinstance(called, ToolCalled)
        return called

    async def close(self) -> None:
        """End the server: ask it by the end of its input, and force it if that takes too long."""
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
        """Return an error of this server; `why` completes 'The tool server NAME ...'."""
        lines = [one_line(line, 200) for line in said.splitlines() if line.strip()]
        last = f" It last said: {lines[-1].rstrip('.')}." if lines else ""
        return ToolError(
            f"{_named(self._config)} {why.rstrip('.')}.{last}",
            hint=f"To try it alone, with all that it says: edgechat mcp test {self._config.name}",
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
        """Give each answer to the request that waits for it; at the end, an error to all."""
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
            self._started.exception()  # nobody may be waiting for it

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
        """Write a message; a pipe that is broken shows itself in the reader."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, RuntimeError):
            self._process.stdin.write(frames.pack(msgspec.msgpack.encode(message)))

    def _kill(self) -> None:
        """Kill the child, which does not answer, and the server."""
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(self._process.pid)
            for one in [*process.children(recursive=True), process]:
                with contextlib.suppress(psutil.Error):
                    one.kill()


def _named(config: ServerConfig) -> str:
    return f"The tool server {config.name}"


def log_path(config: ServerConfig) -> Path:
    """Return the path of the file for what a server writes to stderr. Raises FolderError."""
    return paths.log_dir() / f"mcp-{config.name.replace(' ', '-')}.log"


def _open_log(config: ServerConfig) -> int:
    """Open a server's log anew; the null device if there is no place for it."""
    try:
        return paths.private(log_path(config), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    except (OSError, FolderError):
        return os.open(os.devnull, os.O_WRONLY)


class StartServer(msgspec.Struct, frozen=True, tag=True):
    """Start a server, or connect to it. The first message, and once only."""

    config: ServerConfig
    """With the values of variables."""


class ListTools(msgspec.Struct, frozen=True, tag=True):
    """List the tools, anew if the server has said that they have changed."""

    id: int


class CallTool(msgspec.Struct, frozen=True, tag=True):
    """Call a tool."""

    id: int
    name: str
    arguments: str
    """A JSON object."""


class CancelCall(msgspec.Struct, frozen=True, tag=True):
    """Nobody waits for a request any more; unknown ones are ignored."""

    id: int


class ServerStarted(msgspec.Struct, frozen=True, tag=True):
    """The server speaks MCP."""

    title: str
    """Its name and version, as it says."""
    protocol: str


class ToolsListed(msgspec.Struct, frozen=True, tag=True):
    """The tools, sorted by name."""

    id: int
    tools: tuple[ToolSpec, ...]
    left_out: tuple[str, ...]
    """Why others are missing: a line for each."""


class ToolCalled(msgspec.Struct, frozen=True, tag=True):
    """A result; see ToolResult."""

    id: int
    text: str
    failed: bool
    images: tuple[bytes, ...] = ()


class RequestFailed(msgspec.Struct, frozen=True, tag=True):
    """A request has no result."""

    id: int
    why: str
    """Completes 'The tool server NAME ...'."""


class ServerLost(msgspec.Struct, frozen=True, tag=True):
    """The server cannot be started, or has ended, or was ended. The last message."""

    why: str
    """Completes 'The tool server NAME ...'."""
    said: str = ""
    """The end of what it wrote to stderr."""


ToChild = StartServer | ListTools | CallTool | CancelCall
FromChild = ServerStarted | ToolsListed | ToolCalled | RequestFailed | ServerLost
