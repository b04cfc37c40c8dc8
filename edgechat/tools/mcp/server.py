"""A server of mcp.json as a ToolServer: started at first use, and again if it ends, but not too often."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from importlib.util import find_spec
from urllib.parse import urlsplit

from edgechat.base.errors import ToolError
from edgechat.base.offline import offline_by
from edgechat.base.process.spawn import frozen
from edgechat.tools.config import ServerConfig
from edgechat.tools.mcp.connection import McpConnection
from edgechat.tools.tool import ToolResult, ToolSpec

MOST_STARTS, STARTS_WITHIN = 3, 600.0
"""A server that ended is started again so many times in so many seconds."""
_PAUSE = 60.0
"""Seconds for which a failed start is not tried again."""
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class McpServer:
    """A ToolServer. Its methods raise ToolError."""

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._connection: McpConnection | None = None
        self._starting = asyncio.Lock()
        self._starts = deque[float](maxlen=MOST_STARTS)
        self._failed: tuple[float, ToolError] | None = None
        self._closed = False
        self.left_out: Sequence[str] = ()
        """Why some of its tools are not offered, a line for each."""

    @property
    def name(self) -> str:
        """See ToolServer."""
        return self._config.name

    @property
    def title(self) -> str:
        """The server's own name and version, and the version of the protocol; '' before it has started."""
        connection = self._connection
        return f"{connection.title}, MCP {connection.protocol}" if connection is not None else ""

    async def tools(self) -> Sequence[ToolSpec]:
        """See ToolServer."""
        connection = await self._running()
        listed = await connection.list()
        self.left_out = listed.left_out
        return listed.tools

    async def call(self, name: str, arguments: str) -> ToolResult:
        """See ToolServer."""
        connection = await self._running()
        called = await connection.call(name, arguments)
        return ToolResult(text=called.text, images=called.images, failed=called.failed)

    async def close(self) -> None:
        """See ToolServer."""
        self._closed = True
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _running(self) -> McpConnection:
        """Return the connection, after starting the server if it does not run."""
        async with self._starting:
            if self._connection is not None and self._connection.alive:
                return self._connection
            self._check_may_start()
            if self._connection is not None:
                ended, self._connection = self._connection, None
                await ended.close()
            try:
                connection = await McpConnection.start(self._config.resolved())
            except ToolError as error:
                self._failed = time.monotonic(), error
                raise
            self._starts.append(time.monotonic())
            if self._closed:
                await connection.close()
                raise ToolError(f"The tool server {self.name} was closed.")
            self._failed, self._connection = None, connection
            return connection

    def _check_may_start(self) -> None:
        now, test = time.monotonic(), f"edgechat mcp test {self.name}"
        if self._closed:
            raise ToolError(f"The tool server {self.name} was closed.")
        if self._failed is not None and now < self._failed[0] + _PAUSE:
            raise self._failed[1]
        if len(self._starts) == MOST_STARTS and now < self._starts[0] + STARTS_WITHIN:
            raise ToolError(
                f"The tool server {self.name} has ended {MOST_STARTS} times in {STARTS_WITHIN / 60:.0f} "
                "minutes and is not started again.",
                hint=f"To see what it says: {test}",
            )
        if find_spec("mcp") is None:
            hint = None if frozen() else 'To install them: pip install "edgechat[tools]"'
            raise ToolError("Tool servers need packages that are not installed.", hint=hint)
        host = urlsplit(self._config.url).hostname
        if host is not None and host not in _LOOPBACK and (switch := offline_by()) is not None:
            raise ToolError(f"The tool server {self.name} is not used: {switch} keeps edgechat offline.")
