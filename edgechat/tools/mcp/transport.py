"""Transports to a server, over pipes and HTTP, with limits that the SDK lacks. Runs in the child process."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import anyio
import httpx2

from edgechat.base.network.offline import is_loopback
from edgechat.base.process.spawn import needed_environment
from edgechat.tools.config import ServerConfig
from edgechat.tools.mcp.connection import GRACE_SECONDS

if TYPE_CHECKING:
    from mcp.os.win32.utilities import ServerProcess


_MOST_BYTES, _MOST_LINES = 32 * 2**20, 10_000
"""Limits on a server's output between two messages sent to it."""
_MOST_RESPONSE = 32 * 2**20
"""Maximum size of a single HTTP response."""
_CONNECT_SECONDS, _READ_SECONDS = 30.0, 3600.0
_POLL_SECONDS = 0.02


class _Allowance:
    """The amount that a server may still send before it gets the next message."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        self.n_bytes, self.n_lines = _MOST_BYTES, _MOST_LINES

    def take(self, data: bytes) -> bool:
        """Count received data; return whether a limit has been exceeded."""
        self.n_bytes -= len(data)
        self.n_lines -= data.count(b"\n")
        return self.n_bytes < 0 or self.n_lines < 0


@asynccontextmanager
async def server_process(
    config: ServerConfig, log: int, on_start: Callable[[int], None], on_misuse: Callable[[str], None]
) -> AsyncIterator[tuple[Any, Any]]:
    """Start a server and yield the streams for the SDK. Raises OSError.

    log: file descriptor for the server's stderr; it is closed here. on_start: called with the server's
    process id. on_misuse: called with the reason if the server must be stopped. On exit, the server's input
    is closed, and the server is given GRACE_SECONDS to end.
    """
    from mcp.shared.message import SessionMessage

    process = await _spawn(config, log)
    on_start(process.pid)
    to_session, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, from_session = anyio.create_memory_object_stream[SessionMessage](0)
    allowance = _Allowance()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_read, process, to_session, allowance, on_misuse)
        tasks.start_soon(_write, process, from_session, allowance)
        try:
            yield incoming, outgoing
        finally:
            with anyio.CancelScope(shield=True), suppress(OSError, anyio.BrokenResourceError):
                assert process.stdin is not None
                await process.stdin.aclose()
                with anyio.move_on_after(GRACE_SECONDS):
                    while process.returncode is None:
                        await anyio.sleep(_POLL_SECONDS)
            tasks.cancel_scope.cancel()


async def _read(
    process: ServerProcess, to_session: Any, allowance: _Allowance, on_misuse: Callable[[str], None]
) -> None:
    """Pass each message to the session, and close the stream when the output ends."""
    from mcp.shared.message import SessionMessage
    from mcp_types import jsonrpc_message_adapter

    assert process.stdout is not None
    line = bytearray()
    async with to_session:
        with suppress(OSError, anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
            while True:
                data = await process.stdout.receive()
                if allowance.take(data):
                    on_misuse("was stopped because it wrote endlessly")
                *ends, rest = data.split(b"\n")
                for end in ends:
                    line += end
                    if b'"jsonrpc"' in line:  # any other line is a greeting or a log message
                        try:
                            message = jsonrpc_message_adapter.validate_json(bytes(line), by_name=False)
                        except ValueError:
                            on_misuse("was stopped because it sent an invalid message")
                        else:
                            await to_session.send(SessionMessage(message))
                    line.clear()
                line += rest


async def _write(process: ServerProcess, from_session: Any, allowance: _Allowance) -> None:
    assert process.stdin is not None
    with suppress(OSError, anyio.ClosedResourceError, anyio.BrokenResourceError):
        async with from_session:
            async for message in from_session:
                text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                await process.stdin.send(text.encode("utf-8", "replace") + b"\n")
                allowance.renew()


async def _spawn(config: ServerConfig, log: int) -> ServerProcess:
    """Start the process in a new session or, on Windows, in a job object that ends with this process."""
    command, folder = [config.command, *config.args], config.cwd or os.path.expanduser("~")
    environment = {**needed_environment(), **config.env}
    with os.fdopen(log, "w") as errors:
        if sys.platform == "win32":
            from mcp.os.win32 import utilities

            program = await anyio.to_thread.run_sync(utilities.get_windows_executable_command, command[0])
            return await utilities.create_windows_process(program, command[1:], environment, errors, folder)
        return await anyio.open_process(
            command, env=environment, stderr=errors, cwd=folder, start_new_session=True
        )


class _BoundedStream(httpx2.AsyncByteStream):
    """A response body whose size is limited."""

    def __init__(self, stream: httpx2.AsyncByteStream, on_misuse: Callable[[str], None]) -> None:
        self._stream = stream
        self._on_misuse = on_misuse

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = _MOST_RESPONSE
        async for data in self._stream:
            left -= len(data)
            if left < 0:
                self._on_misuse("was stopped because it wrote endlessly")
            yield data

    async def aclose(self) -> None:
        await self._stream.aclose()


@asynccontextmanager
async def over_http(config: ServerConfig, on_misuse: Callable[[str], None]) -> AsyncIterator[tuple[Any, Any]]:
    """Connect to a server at a URL and yield the streams for the SDK.

    on_misuse: see `server_process`.
    """
    from mcp.client.streamable_http import streamable_http_client

    async def bound(response: httpx2.Response) -> None:
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _BoundedStream(response.stream, on_misuse)

    timeout = httpx2.Timeout(_CONNECT_SECONDS, read=_READ_SECONDS)
    hooks = {"response": [bound]}
    async with (
        httpx2.AsyncClient(
            headers=config.headers,
            timeout=timeout,
            follow_redirects=False,
            event_hooks=hooks,
            trust_env=not is_loopback(config.url),  # never use a proxy to reach this machine
        ) as http,
        streamable_http_client(config.url, http_client=http) as streams,
    ):
        yield streams
