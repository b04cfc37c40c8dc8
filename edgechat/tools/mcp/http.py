"""In the child: the connection to a server at a URL, with a bound that the SDK's own transport has not."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import httpx2

from edgechat.base.network.loopback import is_loopback
from edgechat.tools.config import ServerConfig

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

_MOST_BYTES = 32 * 2**20
"""Of one response."""
_CONNECT_SECONDS, _READ_SECONDS = 30.0, 3600.0


class _BoundedStream(httpx2.AsyncByteStream):
    """The body of a response, of which only so much is read."""

    def __init__(self, stream: httpx2.AsyncByteStream, on_misuse: Callable[[str], None]) -> None:
        self._stream = stream
        self._on_misuse = on_misuse

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = _MOST_BYTES
        async for data in self._stream:
            left -= len(data)
            if left < 0:
                self._on_misuse("writes without end, and was ended")
            yield data

    async def aclose(self) -> None:
        await self._stream.aclose()


@asynccontextmanager
async def over_http(
    config: ServerConfig, on_misuse: Callable[[str], None]
) -> AsyncIterator[TransportStreams]:
    """Yield the streams for the SDK. on_misuse: is told why the server cannot be used any more."""
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
            trust_env=not is_loopback(config.url),  # nothing of this machine is reached through a proxy
        ) as http,
        streamable_http_client(config.url, http_client=http) as streams,
    ):
        yield streams
