"""Child process that talks to one tool server through the official SDK.

It exits when edgechat does, and takes the server with it. `Watch` enforces limits that the SDK lacks, for
example on message length and parsing time, by killing both.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

import msgspec
import psutil

from edgechat import __version__
from edgechat.base.process import frames, spawn
from edgechat.base.process.child import resident_bytes
from edgechat.base.process.program import kill_group
from edgechat.base.text import one_line
from edgechat.tools.config import ServerConfig
from edgechat.tools.mcp.connection import (
    GRACE_SECONDS,
    CallTool,
    CancelCall,
    FromChild,
    ListTools,
    RequestFailed,
    ServerLost,
    ServerStarted,
    StartServer,
    ToChild,
    ToolCalled,
    ToolsListed,
)
from edgechat.tools.mcp.results import result_of, specs_of
from edgechat.tools.mcp.transport import over_http, server_process
from edgechat.tools.tool import MAX_TOOLS, inert

if TYPE_CHECKING:
    from mcp import Client


_MOST_PAGES = 32
_LISTED_FOR = 60.0
"""Number of seconds after which the tools are listed again if the server does not announce changes."""
_READ_SECONDS = 3600.0
"""Time limit for one request; the parent gives up sooner, and then cancels it."""
_SESSIONLESS = "2026-07-28"
"""The first protocol version in which servers send no messages on their own initiative."""
_MEMORY = 512 * 2**20
"""Memory limit for the child. The SDK alone takes about 80 MiB."""
_POLL_SECONDS = 1.0
_BUSY_WINDOW, _BUSY_SECONDS = 10.0, 4.0
"""A child that uses this much processor time within the window is being flooded, or is stuck on a schema."""
_LOG_BYTES = 2**20
_TAIL_BYTES, _TAIL_SECONDS = 2048, 0.3


class Bridge:
    """Forwards requests from the parent to the server, and answers from the server to the parent."""

    def __init__(self, pipes: tuple[BinaryIO, BinaryIO]) -> None:
        self._incoming, self._outgoing = pipes
        self._sending = threading.Lock()
        self._name = ""
        self._log: ServerLog | None = None
        self._watch = Watch(self._lost)
        self._listed: tuple[float, ToolsListed] | None = None
        self._tasks: dict[int, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Handle requests until the parent or the server is gone."""
        queue, loop = asyncio.Queue[ToChild | None](), asyncio.get_running_loop()
        threading.Thread(target=self._read, args=(queue, loop), daemon=True, name="requests").start()
        start = await queue.get()
        if not isinstance(start, StartServer):
            return
        self._name = start.config.name
        serving = asyncio.ensure_future(self._serve(start, queue))
        await asyncio.wait([serving])
        if (error := serving.exception()) is not None:
            self._watch.end(_why_lost(error, start.config))
        # Threads that the SDK leaves running must not keep the process alive.
        self._watch.end("was ended")

    def _read(self, queue: asyncio.Queue[ToChild | None], loop: asyncio.AbstractEventLoop) -> None:
        decoder = msgspec.msgpack.Decoder(ToChild)
        try:
            while (payload := frames.read(self._incoming)) is not None:
                loop.call_soon_threadsafe(queue.put_nowait, decoder.decode(payload))
        finally:
            self._watch.end_soon()
            loop.call_soon_threadsafe(queue.put_nowait, None)

    async def _serve(self, start: StartServer, queue: asyncio.Queue[ToChild | None]) -> None:
        if start.config.url:
            transport = over_http(start.config, self._watch.end)
        else:
            self._log, watch = ServerLog(), self._watch
            transport = server_process(start.config, self._log.descriptor, watch.server_started, watch.end)
        async with _client(transport, self._on_message) as client:
            info = client.server_info
            title = one_line(inert(f"{info.title or info.name} {info.version}"), 120) if info else ""
            self._send(ServerStarted(title, client.protocol_version))
            while (request := await queue.get()) is not None:
                if isinstance(request, CancelCall):
                    if (task := self._tasks.get(request.id)) is not None:
                        task.cancel()
                elif isinstance(request, ListTools | CallTool):
                    task = asyncio.create_task(self._answer(client, request))
                    self._tasks[request.id] = task
                    task.add_done_callback(partial(self._forget, request.id))

    def _forget(self, id: int, _task: asyncio.Task[None]) -> None:
        self._tasks.pop(id, None)

    async def _answer(self, client: Client, request: ListTools | CallTool) -> None:
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED

        try:
            if isinstance(request, ListTools):
                self._send(await self._list(client, request.id))
            else:
                result = await client.call_tool(request.name, json.loads(request.arguments))
                text, images = result_of(result)
                self._send(ToolCalled(request.id, text, result.is_error, images))
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                self._watch.end("has ended")
            self._send(RequestFailed(request.id, f"answers with an error: {_said(error)}"))
        except _TooMany as error:
            self._send(RequestFailed(request.id, str(error)))
        except Exception as error:  # from pydantic, jsonschema or anything else that an answer triggers
            why = f"{type(error).__name__}: {_said(error)}"
            self._send(RequestFailed(request.id, f"sent an invalid answer ({why})"))

    async def _list(self, client: Client, id: int) -> ToolsListed:
        now = time.monotonic()
        if self._listed is not None:
            at, listed = self._listed
            if client.protocol_version < _SESSIONLESS or now < at + _LISTED_FOR:
                return msgspec.structs.replace(listed, id=id)
        self._listed = None
        if client.server_capabilities.tools is None:
            return ToolsListed(id, (), ())
        found, cursor = list[Any](), None
        for _ in range(_MOST_PAGES):
            page = await client.list_tools(cursor=cursor)
            found += page.tools
            cursor = page.next_cursor
            if len(found) > MAX_TOOLS:
                raise _TooMany(f"offers more than {MAX_TOOLS} tools, the limit")
            if cursor is None:
                break
        else:
            raise _TooMany("lists its tools without end")
        specs, left_out = specs_of(self._name, found)
        listed = ToolsListed(id, tuple(specs), tuple(left_out))
        self._listed = now, listed
        return listed

    async def _on_message(self, message: object) -> None:
        from mcp_types import ToolListChangedNotification

        if isinstance(message, ToolListChangedNotification):
            self._listed = None

    def _lost(self, why: str) -> None:
        self._send(ServerLost(why, inert(self._log.tail()) if self._log is not None else ""))

    def _send(self, message: FromChild) -> None:
        with self._sending:
            try:
                frames.write(self._outgoing, msgspec.msgpack.encode(message))
            except OSError:  # the parent is gone; the reading thread ends this process
                return


class _TooMany(Exception):
    """Raised if a server lists too many tools; the text completes 'The tool server NAME ...'."""


def _client(transport: Any, on_message: Any) -> Client:
    """Return a client for a server; it refuses sampling, elicitation and roots."""
    from mcp import Client
    from mcp_types import Implementation

    logging.disable()  # the SDK's messages about invalid input would fill the disk
    return Client(
        transport,
        read_timeout_seconds=_READ_SECONDS,
        message_handler=on_message,
        client_info=Implementation(name="edgechat", version=__version__),
        input_required_max_rounds=1,
        cache=None,
    )


def _why_lost(error: BaseException, config: ServerConfig) -> str:
    """Return the reason why the server was lost, worded to complete 'The tool server NAME ...'."""
    import httpx2
    from mcp import MCPError
    from mcp_types import CONNECTION_CLOSED

    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, OSError) and not config.url:
        return f"cannot be started: {one_line(config.command, 80)}: {error.strerror or _said(error)}"
    if isinstance(error, MCPError) and error.code == CONNECTION_CLOSED:
        return "ended before it answered"
    if isinstance(error, httpx2.HTTPError):
        return f"cannot be reached: {_said(error) or type(error).__name__}"
    return f"cannot be used: {_said(error) or type(error).__name__}"


def _said(error: BaseException) -> str:
    return one_line(inert(str(error)), 300)


def main() -> None:
    """Run the child."""
    asyncio.run(Bridge(spawn.adopt_pipe()).run())


class Watch:
    """Kills the child if it uses too much memory or time, or if its server has exited."""

    def __init__(self, on_lost: Callable[[str], None]) -> None:
        """on_lost: called once with the reason, worded to complete 'The tool server NAME ...'."""
        self._on_lost = on_lost
        self._server: int | None = None
        self._ending = threading.Lock()
        threading.Thread(target=self._run, daemon=True, name="watch").start()

    def server_started(self, pid: int) -> None:
        """Watch the server's process from now on."""
        self._server = pid

    def end(self, why: str) -> NoReturn:
        """Kill the server and this process at once."""
        with self._ending:
            self._on_lost(why)
            self._kill_and_exit()

    def end_soon(self) -> None:
        """Kill both after a grace period, because the parent is gone or has closed its end of the pipe."""
        timer = threading.Timer(GRACE_SECONDS, self._kill_and_exit)
        timer.daemon = True
        timer.start()

    def _kill_and_exit(self) -> NoReturn:
        kill_group(self._server, psutil.Process().children(recursive=True))
        os._exit(0)

    def _run(self) -> None:
        used = deque[tuple[float, float]]()
        while True:
            time.sleep(_POLL_SECONDS)
            now = time.monotonic()
            used.append((now, time.process_time()))
            while now - used[0][0] > _BUSY_WINDOW:
                used.popleft()
            if used[-1][1] - used[0][1] > _BUSY_SECONDS:
                self.end("was stopped because it sent more than edgechat can read")
            if resident_bytes(os.getpid()) > _MEMORY:
                most = f"{_MEMORY // 2**20} MiB of memory"
                self.end(f"was stopped because it made edgechat take more than {most}")
            if self._server is not None and not psutil.pid_exists(self._server):
                self.end("has ended")


class ServerLog:
    """A server's stderr: the start is copied to this process's stderr; the end is kept for error messages."""

    def __init__(self) -> None:
        self._tail = b""
        self._source, self.descriptor = os.pipe()
        """`descriptor` is the server's end of the pipe; the code that starts the server must close it."""
        self._reader = threading.Thread(target=self._run, daemon=True, name="log")
        self._reader.start()

    def tail(self) -> str:
        """Return the end of the output, which is complete once the server has ended."""
        self._reader.join(_TAIL_SECONDS)
        return self._tail.decode("utf-8", "replace")

    def _run(self) -> None:
        room = _LOG_BYTES
        while data := os.read(self._source, 65536):
            self._tail = (self._tail + data)[-_TAIL_BYTES:]
            if room > 0:
                with contextlib.suppress(OSError):
                    os.write(2, data[:room])
                room -= len(data)
