"""Serving: opens the socket, and runs uvicorn on it with graceful shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from edgechat.base.errors import SettingsError
from edgechat.server.connection import Connection

_BACKLOG = 128
_OWN = "Use an address of this machine: --host 127.0.0.1, or --host 0.0.0.0 for all addresses."
_OUTSIDE = ("192.0.2.1", 9)
"""An address reserved for documentation (RFC 5737), which no machine has."""
_FAREWELL = 3
"""How many seconds clients have to finish reading after the last answer is complete."""


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on a port; 0 picks a free one. Raises SettingsError."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        name, colon, after = host.rpartition(":")
        apart = f"Give the port separately: --host {name} --port {after}"
        hint = apart if colon and after.isdecimal() else _OWN
        raise SettingsError(
            f"The address {host!r} cannot be resolved: {error.strerror}.", hint=hint
        ) from error
    # 'localhost' has two addresses; clients that try only one use IPv4.
    family, kind, protocol, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)
    listener = socket.socket(family, kind, protocol)
    try:
        if hasattr(socket, "SO_EXCLUSIVEADDRUSE"):  # Windows would share a port that is in use
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
        else:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRNOTAVAIL:
            raise SettingsError(f"{host} is not an address of this machine.", hint=_OWN) from error
        is_denied = error.errno == errno.EACCES  # low ports are reserved for administrators
        hint = f"Use another port: --port {8484 if is_denied else port + 1 if port < 65535 else 0}"
        what = f"Port {port} of {host} is not available: {error.strerror}."
        raise SettingsError(what, hint=hint) from error
    listener.setblocking(False)
    return listener


def url_of(listener: socket.socket) -> str:
    """Return the URL for users to type. If the socket listens on all addresses, it is the loopback URL."""
    host, port = listener.getsockname()[:2]
    if ipaddress.ip_address(host).is_unspecified:
        host = "::1" if ":" in host else "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def url_for_others(listener: socket.socket) -> str:
    """Return the URL at which other machines can probably reach the socket."""
    host, port = listener.getsockname()[:2]
    if not ipaddress.ip_address(host).is_unspecified:
        return url_of(listener)
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
            way.connect(_OUTSIDE)  # sends nothing, but picks a route
            name = way.getsockname()[0]
    except OSError:
        name = socket.gethostname()
    return f"http://{name}:{port}"


def is_loopback(listener: socket.socket) -> bool:
    """Return True if only programs on this machine can reach the socket."""
    return ipaddress.ip_address(listener.getsockname()[0]).is_loopback


class Server(uvicorn.Server):
    """uvicorn with graceful shutdown: running requests can finish, unless a second signal arrives."""

    def __init__(self, app: ASGIApp, *, drain: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """drain: waits for running requests to finish. New requests are refused in the meantime."""
        super().__init__(
            uvicorn.Config(
                app,
                http=Connection,
                ws="none",
                loop="asyncio",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=30,
                timeout_graceful_shutdown=_FAREWELL,
            )
        )
        self._drain = drain
        self._ending: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._signals = 0
        # The clients have already received the errors that uvicorn logs.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals while the server runs, and do not raise them again after a clean stop."""
        self._loop = asyncio.get_running_loop()
        names = ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")  # no system has all of these
        numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
        before = {
            number: signal.signal(number, self.handle_exit)
            for number in numbers
            if signal.getsignal(number) is not signal.SIG_IGN  # such as SIGHUP under nohup
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Start a graceful shutdown, or stop immediately on the second signal."""
        self._signals += 1
        if self._signals > 1:
            self.should_exit = self.force_exit = True
        elif self._loop is not None:
            self._loop.call_soon_threadsafe(self._begin_to_end)

    def _begin_to_end(self) -> None:
        self._ending = asyncio.ensure_future(self._end())

    async def _end(self) -> None:
        await self._drain()
        self.should_exit = True

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Run the server until it is shut down."""
        try:
            await super().serve(sockets)
        finally:
            if self._ending is not None:
                self._ending.cancel()
                await asyncio.wait([self._ending])
