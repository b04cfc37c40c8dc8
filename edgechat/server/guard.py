"""Who may speak to the server: before anything else, and for every path.

A page in a browser can reach a server on this machine, by DNS rebinding (CVE-2024-28224) under a name of its
own; so the Host must be ours, and the Origin ours or a named one.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgechat.server.exchange import Exchange
from edgechat.server.refusal import Refusal

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^:\[\]@/\s]+)(?::([0-9]{1,5}))?")
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
_ASKED_HEADERS = re.compile(r"accept|authorization|content-type|openai-[a-z-]+|x-stainless-[a-z-]+")
_OPEN = "/health"
"""What needs no key."""
TRUSTED = "edgechat.trusted"
"""In the scope: whether the request has shown the key, or needs none."""


@dataclass(frozen=True, slots=True)
class Door:
    """What opens it."""

    key: str | None
    """None: no key is needed."""
    hosts: frozenset[str] = frozenset()
    """Names of this machine by which it may be called, beside the loopback's and the address itself."""
    origins: frozenset[str] = field(default=frozenset())
    """Web pages of these origins may use it: 'https://example.org'."""


class Guard:
    """Refuses whoever may not; the app behind it sees the rest."""

    def __init__(self, app: ASGIApp, door: Door) -> None:
        self._app = app
        self._door = door
        self._expected = f"Bearer {door.key}".encode() if door.key is not None else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        headers = _Headers(scope["headers"])
        if self._is_named(headers):
            send = _sharing(send, headers.one("origin"))
        exchange = Exchange(scope, receive, send)
        try:
            self._check_caller(scope, headers)
            if scope["method"] == "OPTIONS" and self._is_named(headers):
                await exchange.answer(204, b"", *_allowed(headers), kind="text/plain")
                return
            scope[TRUSTED] = self._has_key(headers)
            if not scope[TRUSTED] and scope["path"] != _OPEN:
                raise _no_key()
        except Refusal as refusal:
            await exchange.refuse(refusal)
            return
        await self._app(scope, receive, send)

    def _check_caller(self, scope: Scope, headers: _Headers) -> None:
        """Raise Refusal where the request was not meant for us, or comes from somebody's web page."""
        host = headers.one("host").lower()
        if not self._is_ours(scope, host):
            raise Refusal(
                "This server is not called so. Use the address that `edgechat serve` has printed.",
                status=403,
                code="wrong_host",
            )
        origin = headers.one("origin").lower()
        if origin and origin != f"http://{host}" and not self._is_named(headers):
            raise Refusal(
                "Web pages of this origin may not use the server; `edgechat serve --cors ORIGIN` lets them.",
                status=403,
                code="wrong_origin",
            )

    def _is_ours(self, scope: Scope, host: str) -> bool:
        found = _HOST.fullmatch(host)
        if found is None:
            return False
        address, port = scope["server"]
        address = address.removeprefix("::ffff:")  # an old address on a socket for both kinds
        arrived = f"[{address}]" if ":" in address else address
        name, asked = found.group(1), int(found.group(2) or 80)
        return asked == port and (name == arrived or name in _LOOPBACK or name in self._door.hosts)

    def _is_named(self, headers: _Headers) -> bool:
        return headers.one("origin").lower() in self._door.origins

    def _has_key(self, headers: _Headers) -> bool:
        if self._expected is None:
            return True
        scheme, _, key = headers.one("authorization").partition(" ")
        shown = f"{scheme.capitalize()} {key.strip()}".encode()
        return hmac.compare_digest(shown, self._expected)


class _Headers:
    """The first of each name, as text."""

    def __init__(self, raw: Iterable[tuple[bytes, bytes]]) -> None:
        self._values: dict[str, str] = {}
        for name, value in raw:
            self._values.setdefault(name.decode("latin-1"), value.decode("latin-1"))

    def one(self, name: str) -> str:
        """Return it; '' where there is none."""
        return self._values.get(name, "")


def _no_key() -> Refusal:
    return Refusal(
        "This server wants its key: 'Authorization: Bearer KEY'. `edgechat serve` says where it is.",
        status=401,
        code="invalid_api_key",
        headers=(("www-authenticate", "Bearer"),),
    )


def _allowed(headers: _Headers) -> Iterable[tuple[str, str]]:
    """Return what a browser wants to know before it sends a named page's request."""
    asked = (name.strip().lower() for name in headers.one("access-control-request-headers").split(","))
    yield "access-control-allow-methods", "GET, POST"
    yield "access-control-allow-headers", ", ".join(name for name in asked if _ASKED_HEADERS.fullmatch(name))
    yield "access-control-max-age", "600"
    if headers.one("access-control-request-private-network"):
        yield "access-control-allow-private-network", "true"


def _sharing(send: Send, origin: str) -> Send:
    """Let the page of a named origin read the answer."""

    async def sharing(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [
                *message["headers"],
                (b"access-control-allow-origin", origin.encode("latin-1")),
                (b"access-control-expose-headers", b"retry-after"),
                (b"vary", b"origin"),
            ]
        await send(message)

    return sharing
