"""A server from mcp.json as a ToolServer: started on first use, and restarted a few times if it ends."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from importlib.util import find_spec

from edgechat.base.errors import ToolError
from edgechat.base.network.offline import is_loopback, offline_by
from edgechat.base.process.spawn import frozen
from edgechat.base.text import one_line
from edgechat.tools.config import ServerConfig
from edgechat.tools.mcp.connection import McpConnection
from edgechat.tools.tool import ToolResult, ToolSpec

MOST_STARTS, STARTS_WITHIN = 3, 600.0
"""Maximum number of starts, and the period in seconds to which it applies."""
_PAUSE = 60.0
"""Number of seconds to wait before retrying a failed start."""


class McpServer:
    """A ToolServer. Its methods raise ToolError."""

    def __init__(self, config: ServerConfig) -> None:
        self.name = config.name
        self._config = config
        self._connection: McpConnection | None = None
        self._starting = asyncio.Lock()
        self._start: asyncio.Future[McpConnection] | None = None
        self._starts = deque[float](maxlen=MOST_STARTS)
        self._failed: tuple[float, ToolError] | None = None
        self._closed = False
        self.left_out: Sequence[str] = ()
        """Why some of its tools are not offered, one line each."""

    @property
    def title(self) -> str:
        """The server's reported name and version, with the protocol version; '' until it has started."""
        connection = self._connection
        return f"{connection.title}, MCP {connection.protocol}" if connection is not None else ""

    async def tools(self) -> Sequence[ToolSpec]:
        """See ToolServer."""
        connection = await self._running()
        listed = await connection.list()
        self.left_out = listed.left_out
        return listed.tools

    async def call(self, tool: ToolSpec, arguments: str) -> ToolResult:
        """See ToolServer."""
        connection = await self._running()
        if tool not in (await connection.list()).tools:  # the user consented to a different version
            name = one_line(tool.name, 60)
            raise connection.error(f"has changed its tool {name} since it was offered, so it is not called")
        called = await connection.call(tool.name, arguments)
        return ToolResult(text=called.text, images=called.images, failed=called.failed)

    async def close(self) -> None:
        """See ToolServer."""
        self._closed = True
        if self._start is not None:
            self._start.cancel()
            await asyncio.wait([self._start])
        if self._connection is not None:
            await self._connection.close()

    async def _running(self) -> McpConnection:
        """Return the connection, starting the server if it is not running."""
        async with self._starting:
            if self._connection is not None and self._connection.alive:
                return self._connection
            self._check_may_start()
            if self._connection is not None:
                await self._connection.close()
                if self._closed:  # it was closed in the meantime
                    raise self._was_closed()
            self._start = asyncio.ensure_future(McpConnection.start(self._config.resolved()))
            try:
                self._connection = await self._start
            except ToolError as error:
                self._failed = time.monotonic(), error
                raise
            except asyncio.CancelledError:
                if self._closed:
                    raise self._was_closed() from None
                raise
            self._starts.append(time.monotonic())
            self._failed = None
            return self._connection

    def _check_may_start(self) -> None:
        now, test = time.monotonic(), f"edgechat mcp test {self.name}"
        if self._closed:
            raise self._was_closed()
        if self._failed is not None and now < self._failed[0] + _PAUSE:
            raise self._failed[1]
        if len(self._starts) == MOST_STARTS and now < self._starts[0] + STARTS_WITHIN:
            raise ToolError(
                f"The tool server {self.name} has ended {MOST_STARTS} times in {STARTS_WITHIN / 60:.0f} "
                "minutes and is not started again.",
                hint=f"To see its output: {test}",
            )
        if find_spec("mcp") is None:
            hint = None if frozen() else 'To install them: pip install "edgechat[tools]"'
            raise ToolError("Tool servers need packages that are not installed.", hint=hint)
        url = self._config.url
        if url and not is_loopback(url) and (switch := offline_by()) is not None:
            raise ToolError(f"The tool server {self.name} is not used: {switch} keeps edgechat offline.")

    def _was_closed(self) -> ToolError:
        return ToolError(f"The tool server {self.name} was closed.")
