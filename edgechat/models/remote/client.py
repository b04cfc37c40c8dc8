"""HTTP client for a remote engine, with limits on time and size. Translates the engine's errors into ours.

The key is sent only to this server.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import msgspec

from edgechat import __version__, settings
from edgechat.base.errors import (
    BadRequest,
    EdgechatError,
    EngineCrashed,
    ModelNotFound,
    PromptTooLong,
    QueueFull,
    RemoteDenied,
    RemoteFailed,
    RemoteUnreachable,
)
from edgechat.base.network.offline import is_loopback, offline_by, unusable_proxy
from edgechat.base.text import mebibytes, one_line
from edgechat.models.remote.model import root_of
from edgechat.settings import RemoteServer

if TYPE_CHECKING:
    import httpx2

CONNECT_SECONDS, ASK_SECONDS, SILENT_SECONDS = 5.0, 10.0, 600.0
"""Seconds allowed for connecting, for a query about the server, and between two pieces of a reply. The
last is long because servers are silent while they load models and read long prompts.
"""
MOST_JSON, MOST_LINE, MOST_ANSWER = 8 * 2**20, 2**20, 256 * 2**20
"""Maximum sizes of a response about the server, of one line in a stream, and of a whole stream, in bytes."""
_MOST_ERROR = 2**16
_TOO_LONG = re.compile(
    r"context.{0,40}(length|size|window)|too many tokens|(prompt|input).{0,40}too long", re.I
)
_MOST_WAIT = 3600


class RemoteClient:
    """Connections to one server, for use in a single event loop. Must be closed.

    Redirects are never followed, because they could send the key and the chat somewhere else.
    """

    def __init__(self, name: str, server: RemoteServer) -> None:
        """Set up the client. `name` is the server's name as shown to users."""
        self.name = name
        self.server = server
        self.root = root_of(server.url)
        self._http: httpx2.AsyncClient | None = None
        self._has_address = is_loopback(self.root)
        self._secret: str | None = None

    async def get(self, path: str, *, seconds: float = ASK_SECONDS) -> Any:
        """GET a path below the root and return the JSON response. Raises EdgechatError."""
        return await self._ask("GET", path, None, seconds)

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """POST `body` to a path and return the JSON response. Raises EdgechatError."""
        return await self._ask("POST", path, body, ASK_SECONDS)

    async def text(self, path: str, *, seconds: float = ASK_SECONDS) -> str:
        """GET a path below the root and return the response as text. Raises EdgechatError."""
        return (await self._bytes("GET", path, None, seconds)).decode("utf-8", "replace")

    async def lines(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[list[bytes], None]:
        """POST `body` and yield the lines of the response in groups, as they arrive. Raises EdgechatError."""
        async with self._response("POST", path, body, SILENT_SECONDS) as response:
            rest, n_bytes = bytearray(), 0
            async for piece in response.aiter_raw():
                n_bytes += len(piece)
                *lines, last = piece.split(b"\n")
                if lines:
                    lines[0] = bytes(rest + lines[0])
                    rest.clear()
                    yield lines
                rest += last
                if len(rest) > MOST_LINE:
                    raise self.failed(f"sent a line of more than {mebibytes(MOST_LINE)}")
                if n_bytes > MOST_ANSWER:
                    raise self.failed(f"sent an answer of more than {mebibytes(MOST_ANSWER)}")
            if rest:
                yield [bytes(rest)]

    async def close(self) -> None:
        """Close all connections."""
        http, self._http = self._http, None
        if http is not None:
            await http.aclose()

    def failed(self, what: str) -> RemoteFailed:
        """Return the error for a response that cannot be used."""
        return RemoteFailed(
            f"{self.name} {what}.", hint=f"To see what it is: edgechat remote test {self.name}"
        )

    def said(self, text: str, limit: int = 300) -> str:
        """Format text from the server for users: on one line, without the key in case it is repeated."""
        if self._secret:
            text = text.replace(self._secret, "…")
        return one_line(text, limit)

    def refusal(self, status: int, body: bytes, retry_after: str = "") -> EdgechatError:
        """Return the error for an unsuccessful response."""
        message, code = _message(body)
        message = self.said(message or f"status {status}").rstrip(".")
        if status in (401, 403):
            return RemoteDenied(f"{self.name} rejected the key: {message}.", hint=self._key_hint)
        if status == 404:
            return ModelNotFound(
                f"{self.name} could not find what was requested: {message}.",
                hint=f"To list its models: edgechat remote test {self.name}",
            )
        if status == 429 or (status == 503 and retry_after):
            seconds = min(int(retry_after), _MOST_WAIT) if retry_after.isdecimal() else 1
            hint = f"Ask again in {seconds} second{'s' * (seconds != 1)}."
            return QueueFull(f"{self.name} is too busy: {message}.", hint=hint, seconds=seconds)
        if status in (502, 503, 504):  # from a router that has no engine available
            return RemoteUnreachable(
                f"{self.name} cannot answer now: {message}.",
                hint=f"To see when it can: edgechat remote test {self.name}",
            )
        if status in (400, 413, 422):
            if code in ("context_length_exceeded", "exceed_context_size_error") or _TOO_LONG.search(message):
                return PromptTooLong(f"{self.name} says: {message}.")
            return BadRequest(f"{self.name} refuses the request: {message}.")
        if 300 <= status < 400:
            return self.failed("redirects to another address, which edgechat does not follow")
        return self.failed(f"failed: {message}")

    @property
    def _key_hint(self) -> str:
        where = f"[remotes.{self.name}] in {settings.settings_file()}"
        if self.server.key_env is not None:
            return f"The key comes from the environment variable {one_line(self.server.key_env, 80)}."
        return f"{'Correct' if self.server.key else 'Add'} key or key_env: {where}"

    async def _ask(self, method: str, path: str, body: Mapping[str, Any] | None, seconds: float) -> Any:
        data = await self._bytes(method, path, body, seconds)
        try:
            return msgspec.json.decode(data)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise RemoteUnreachable(
                f"{self.name} does not answer like a model server.", hint=self._hint
            ) from error

    async def _bytes(self, method: str, path: str, body: Mapping[str, Any] | None, seconds: float) -> bytes:
        try:
            async with asyncio.timeout(seconds), self._response(method, path, body, seconds) as response:
                data = bytearray()
                async for piece in response.aiter_raw():
                    data += piece
                    if len(data) > MOST_JSON:
                        raise self.failed(f"sent a response of more than {mebibytes(MOST_JSON)}")
                return bytes(data)
        except TimeoutError as error:
            raise self._unreachable(f"it did not answer within {seconds:.0f} s") from error

    @contextlib.asynccontextmanager
    async def _response(
        self, method: str, path: str, body: Mapping[str, Any] | None, seconds: float
    ) -> AsyncIterator[httpx2.Response]:
        """Yield a response that is not an error. Its connection is closed on exit."""
        import httpx2

        http = self._client()
        if not self._has_address:
            await self._look_up(min(seconds, CONNECT_SECONDS))
        begun = False
        try:
            timeout = httpx2.Timeout(seconds, connect=min(seconds, CONNECT_SECONDS))
            data = None if body is None else msgspec.json.encode(body)
            async with http.stream(method, self.root + path, content=data, timeout=timeout) as response:
                begun = response.status_code == 200
                if not begun:
                    raise self.refusal(
                        response.status_code,
                        await _beginning(response),
                        response.headers.get("retry-after", ""),
                    )
                if response.headers.get("content-encoding", "identity").lower() != "identity":
                    raise self.failed("sent a compressed answer, which was not requested")
                yield response
        except httpx2.ConnectError as error:
            raise self._unreachable("the connection failed") from error
        except httpx2.TimeoutException as error:
            if begun:
                raise self.broken(f"sent nothing for {seconds:.0f} s") from error
            raise self._unreachable("it did not answer in time") from error
        except (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL, ValueError) as error:
            if begun:
                raise self.broken("closed the connection in the middle of its answer") from error
            raise self._unreachable(self.said(str(error), 120) or type(error).__name__) from error

    def _client(self) -> httpx2.AsyncClient:
        """Return the HTTP client, creating it the first time.

        Raises RemoteUnreachable if edgechat is offline, and RemoteDenied if the key is missing.
        """
        if self._http is None:
            import httpx2

            is_here = is_loopback(self.root)
            if not is_here and (switch := _offline()) is not None:
                raise RemoteUnreachable(
                    f"{self.name} is not on this machine, and {switch} keeps edgechat offline.",
                    hint="Choose a model on this machine: edgechat list",
                )
            if not is_here and (unusable := unusable_proxy()) is not None:
                why, hint = unusable
                raise RemoteUnreachable(f"{self.name} cannot be reached: {why}.", hint=hint)
            self._secret = self._key()
            headers = {
                "User-Agent": f"edgechat/{__version__}",
                "Accept-Encoding": "identity",
                "Content-Type": "application/json",
            }
            if self._secret is not None:
                headers["Authorization"] = f"Bearer {self._secret}"
            self._http = httpx2.AsyncClient(
                headers=headers,
                follow_redirects=False,
                trust_env=not is_here,  # never use a proxy for this machine
                limits=httpx2.Limits(max_connections=None, max_keepalive_connections=4),
            )
        return self._http

    async def _look_up(self, seconds: float) -> None:
        """Wait until the host name has been resolved. Raises RemoteUnreachable."""
        host = urlsplit(self.root).hostname or ""
        try:
            async with asyncio.timeout(seconds):
                # A proxy resolves names itself.
                self._has_address = bool(getproxies().keys() - {"no"}) or await _resolves(host)
        except TimeoutError as error:
            raise self._unreachable(f"looking up {one_line(host, 100)} took too long") from error
        if not self._has_address:
            raise self._unreachable(f"there is no host {one_line(host, 100)}")

    def _key(self) -> str | None:
        variable = self.server.key_env
        if variable is None:
            return self.server.key
        key = os.environ.get(variable, "").strip()
        if not key or not key.isascii() or not key.isprintable():
            raise RemoteDenied(
                f"{self.name} needs a key, but the environment variable {one_line(variable, 80)} has none.",
                hint=f"Set it, or change key_env of [remotes.{self.name}] in {settings.settings_file()}.",
            )
        return key

    def _unreachable(self, why: str) -> RemoteUnreachable:
        return RemoteUnreachable(f"{self.name} cannot be reached: {why}.", hint=self._hint)

    @property
    def _hint(self) -> str:
        return f"Is it running? Its address: {one_line(self.root, 200)}"

    def broken(self, what: str) -> EngineCrashed:
        """Return the error for a response that was cut off."""
        return EngineCrashed(f"{self.name} {what}.", hint="Ask again; the partial answer is kept.")


async def _resolves(host: str) -> bool:
    """Return whether a host name can be resolved. If this is cancelled, the lookup keeps running.

    asyncio would run the lookup in a thread that it joins when the loop or the program ends. Without a
    network, a listing that gave up after two seconds would then appear only after ten.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[bool] = loop.create_future()

    def settle(found: bool) -> None:
        if not answer.done():
            answer.set_result(found)

    def ask() -> None:
        try:
            found = bool(socket.getaddrinfo(host, None))
        except (OSError, UnicodeError):
            found = False
        with contextlib.suppress(RuntimeError):  # the loop has been closed
            loop.call_soon_threadsafe(settle, found)

    threading.Thread(target=ask, daemon=True, name="look-up").start()
    return await answer


async def _beginning(response: httpx2.Response) -> bytes:
    """Return the start of an error response. The server may never stop sending, so the rest is not read."""
    data = bytearray()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(ASK_SECONDS):
            async for piece in response.aiter_raw():
                data += piece
                if len(data) >= _MOST_ERROR:
                    break
    return bytes(data[:_MOST_ERROR])


def _message(body: bytes) -> tuple[str, str]:
    """Return an error's message and code, in any format used by known servers.

    Either is '' if it is missing.
    """
    try:
        said = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        text = body.decode("utf-8", "replace").strip()
        return "" if text.startswith("<") else text, ""
    error = said.get("error", said) if isinstance(said, dict) else said
    if isinstance(error, dict):
        texts = [error.get(name) for name in ("message", "detail", "reason")]
        codes = [error.get(name) for name in ("code", "type")]
        code = next((code for code in codes if isinstance(code, str)), "")
        return next((text for text in texts if isinstance(text, str)), ""), code
    return (error, "") if isinstance(error, str) else ("", "")


def _offline() -> str | None:
    """Return what prevents edgechat from using the network, or None. Raises SettingsError."""
    return offline_by() or ("offline in settings.toml" if settings.load().offline else None)
