"""Exchange: one HTTP request and its response. Limits body size, and notices when the client disconnects."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, ClassVar, Final, Self

from starlette.types import Receive, Scope, Send

from edgechat.server.refusal import Refusal, error_format

_KINDS = (b"application/json", b"application/x-www-form-urlencoded", b"")
"""Content types accepted for bodies that may be JSON; b'' stands for a missing header."""
_JSON = "application/json"
_CLOSE = (("connection", "close"),)
TRUSTED: Final = "edgechat.trusted"
"""Scope key: whether the request included the API key, or did not need it."""
MODEL: Final = "edgechat.model"
"""Scope key, for the access log: the model that answers, once it is loaded."""
TOKENS: Final = "edgechat.tokens"
"""Scope key, for the access log: the number of tokens in the prompt and in the answer."""
BODY_BYTES: Final = 32 * 2**20
"""Maximum size of a body. Large bodies contain media: 8 MiB of text is already about two million tokens."""
BODIES_BYTES: Final = 128 * 2**20
"""Maximum total size of all bodies being received, not counting the first FREE_BYTES of each."""
FREE_BYTES = 64 * 2**10
"""Bytes of each body that do not count toward BODIES_BYTES, so that short requests are always accepted."""
BODY_SECONDS = 60.0
DRAIN_SECONDS = 2.0
"""How many seconds to keep reading past the limit, because a client sees no response while it is sending."""


class ClientDisconnected(Exception):
    """The client has closed the connection."""


class Exchange:
    """An HTTP request and its response."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.status = 0
        """HTTP status of the response, or 0 until the response starts."""
        self.body_bytes = 0
        self._receive = receive
        self._send = send

    async def body(self) -> bytes:
        """Return the whole body. Raises Refusal if it is not JSON, is too long, or arrives too slowly."""
        headers = dict(self.scope["headers"])
        _check_kind(headers)
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await self._read(int(headers.get(b"content-length", b"0")))
        except TimeoutError:
            raise Refusal(
                f"The body did not arrive within {BODY_SECONDS:.0f} seconds.", status=408, headers=_CLOSE
            ) from None
        self.body_bytes = len(body)
        return body

    async def _read(self, content_length: int) -> bytes:
        if content_length > BODY_BYTES:
            await self._drain_body()
            raise _too_long()
        parts, more = [], True
        with BodyMemory() as memory:
            while more:
                part, more = await self._receive_part()
                memory.add(len(part))
                if memory.size > BODY_BYTES:
                    await self._drain_body()
                    raise _too_long()
                parts.append(part)
            return b"".join(parts)

    async def _receive_part(self) -> tuple[bytes, bool]:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        return message.get("body", b""), message.get("more_body", False)

    async def _drain_body(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                while (await self._receive_part())[1]:
                    pass

    async def run_until_disconnect(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work`, and cancel it if the client disconnects. Must be called after reading the body."""
        working = asyncio.ensure_future(work)
        gone = asyncio.ensure_future(self._wait_for_disconnect())
        try:
            await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise ClientDisconnected
            working.result()
        finally:
            for task in (working, gone):
                task.cancel()
            await asyncio.gather(working, gone, return_exceptions=True)

    async def _wait_for_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def answer(self, status: int, body: bytes, *headers: tuple[str, str], kind: str = _JSON) -> None:
        """Send a complete response."""
        await self.begin(status, ("content-length", str(len(body))), *headers, kind=kind)
        await self.write(body, more=False)

    async def refuse(self, refusal: Refusal) -> None:
        """Send a refusal in the path's error format."""
        _, encode = error_format(self.scope["path"])
        await self.answer(refusal.status, encode(refusal), *refusal.headers)

    async def begin(self, status: int, *headers: tuple[str, str], kind: str) -> None:
        """Send the status and headers of the response."""
        self.status = status
        pairs = (("content-type", kind), ("x-content-type-options", "nosniff"), *headers)
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in pairs]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def write(self, body: bytes, *, more: bool) -> None:
        """Send part of the response body. Waits while the client is not reading."""
        await self._send({"type": "http.response.body", "body": body, "more_body": more})


class BodyMemory:
    """Counts the bytes of a body as it is received, and limits the total for all bodies."""

    total: ClassVar[int] = 0

    def __init__(self) -> None:
        self.size = 0
        self._beyond = 0

    def add(self, count: int) -> None:
        """Count more bytes. Raises Refusal if all bodies together are too large."""
        beyond = max(0, self.size + count - FREE_BYTES) - self._beyond
        if beyond and BodyMemory.total + beyond > BODIES_BYTES:
            raise Refusal(
                "Too many long requests are being received.",
                status=429,
                headers=(("retry-after", "1"), *_CLOSE),
            )
        self.size += count
        self._beyond += beyond
        BodyMemory.total += beyond

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        BodyMemory.total -= self._beyond


def _check_kind(headers: dict[bytes, bytes]) -> None:
    """Raise Refusal for compressed bodies, and for content types of web forms.

    Browsers send web forms to any server without a preflight. Programs may omit the type, or send the
    default of `curl -d`. A form cannot pass for JSON: it always has a type and, if that is curl's default,
    its braces and quotation marks are escaped. Requests from scripts on web pages have an Origin header,
    whatever their type.
    """
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind not in _KINDS:
        raise Refusal("The body must be JSON: 'Content-Type: application/json'.", status=415)
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise Refusal(
            "Compressed bodies are not supported: send the body without Content-Encoding.", status=415
        )


def _too_long() -> Refusal:
    text = f"The body exceeds the limit of {BODY_BYTES // 2**20} MiB."
    return Refusal(text, status=413, headers=_CLOSE)
