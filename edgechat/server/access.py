"""Access control: checks host names, web origins and API keys, normalizes paths, and writes the access log.

A web page can reach a server on the user's machine. With DNS rebinding (CVE-2024-28224), it can even do so
under its own host name. So the Host header must name this server, and the Origin header must name this server
or an allowed page.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import os
import re
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import filelock
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgechat.base import paths
from edgechat.base.errors import SettingsError
from edgechat.base.text import one_line
from edgechat.server.exchange import MODEL, TOKENS, TRUSTED, Exchange
from edgechat.server.pool.metrics import Metrics
from edgechat.server.refusal import BROKEN_OFF, Refusal

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^:\[\]@/\s]+)(?::([0-9]{1,5}))?")
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
_OPEN = ("/", "/health")
"""Paths that reveal no secrets and need no key."""
_ONCE = ("host", "origin", "authorization", "x-api-key", "content-type", "content-encoding", "sec-fetch-site")
"""Headers that must not be repeated, because programs disagree about which value counts."""
_OTHER_PAGES = ("cross-site", "same-site")
_KEY_HEADER = "x-api-key"
"""The header in which Anthropic's clients send the key."""


@dataclass(frozen=True, slots=True)
class AccessRules:
    """The rules that the access policy enforces."""

    key: str | None
    """The required API key, or None if no key is needed."""
    hosts: frozenset[str] = frozenset()
    """Host names of this machine, besides the loopback names and the address itself."""
    origins: frozenset[str] = frozenset()
    """Origins of web pages that may use the server, such as 'https://example.org'."""
    aliases: frozenset[str] = frozenset()
    """Other names for the server, for example behind a proxy or in a container; accepted with any port."""


class AccessPolicy:
    """ASGI middleware that enforces the access rules."""

    def __init__(self, app: ASGIApp, rules: AccessRules) -> None:
        self._app = app
        self._rules = rules
        self._expected = f"Bearer {rules.key}".encode() if rules.key is not None else None
        self._after_caller: ASGIApp = self._with_key
        if rules.origins:
            self._after_caller = CORSMiddleware(
                self._with_key,
                allow_origins=rules.origins,
                allow_methods=("GET", "POST", "DELETE"),
                allow_headers=("*",),  # clients add harmless headers
                allow_private_network=True,
                expose_headers=("Retry-After",),
            )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request before passing it to the app."""
        # This must come before CORS, which would answer a preflight for any host name.
        try:
            self._check_caller(scope, _Headers(scope["headers"]))
        except Refusal as refusal:
            await Exchange(scope, receive, send).refuse(refusal)
            return
        await self._after_caller(scope, receive, send)

    async def _with_key(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Require the key. Runs inside CORSMiddleware, so that an allowed page can read the refusal."""
        headers = _Headers(scope["headers"])
        scope[TRUSTED] = self._has_key(headers)
        if not scope[TRUSTED] and scope["path"] not in _OPEN:
            await Exchange(scope, receive, send).refuse(_no_key(headers))
            return
        await self._app(scope, receive, send)

    def _check_caller(self, scope: Scope, headers: _Headers) -> None:
        """Raise Refusal for an ambiguous request, a foreign host name, or a web page that is not allowed."""
        if headers.repeated:
            raise Refusal(f"The header {headers.repeated!r} was sent twice.", code="repeated_header")
        is_chunked = bool(headers.get("transfer-encoding"))
        if is_chunked and (headers.get("content-length") or scope["http_version"] < "1.1"):
            # A proxy may disagree about where the body ends (RFC 9112, 6.1), so requests could bypass it.
            raise Refusal(
                "The length of the body is ambiguous, or not supported by HTTP/1.0: send either "
                "Content-Length or Transfer-Encoding.",
                headers=(("connection", "close"),),
            )
        host = headers.get("host").lower()
        if not self._is_own_host(scope, host):
            raise _wrong_host(host)
        origin = headers.get("origin").lower()
        foreign = origin != f"http://{host}" if origin else headers.get("sec-fetch-site") in _OTHER_PAGES
        if foreign and origin not in self._rules.origins:
            raise Refusal(
                "Web pages from this origin are not allowed to use the server; `edgechat serve --cors "
                "ORIGIN` allows them.",
                status=403,
                code="wrong_origin",
            )

    def _is_own_host(self, scope: Scope, host: str) -> bool:
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        address, port = scope["server"]
        address = address.removeprefix("::ffff:")  # IPv4 on a dual-stack socket
        arrived = f"[{address}]" if ":" in address else address
        name, requested_port = match.group(1), int(match.group(2) or 80)
        if name in self._rules.aliases:
            return True
        return requested_port == port and (name == arrived or name in _LOOPBACK or name in self._rules.hosts)

    def _has_key(self, headers: _Headers) -> bool:
        if self._expected is None:
            return True
        if (key := headers.get(_KEY_HEADER)) and not headers.get("authorization"):
            return hmac.compare_digest(f"Bearer {key.strip()}".encode(), self._expected)
        scheme, _, key = headers.get("authorization").partition(" ")
        shown = f"{scheme.capitalize()} {key.strip()}".encode()
        return hmac.compare_digest(shown, self._expected)


class _Headers:
    """Request headers as text. If a header is repeated, the first one counts."""

    def __init__(self, raw: Iterable[tuple[bytes, bytes]]) -> None:
        self._values: dict[str, str] = {}
        self.repeated = ""
        """The name of a header that was repeated but must not be, or '' if there is none."""
        for sent, value in raw:
            name = sent.decode("latin-1")
            if name in self._values and name in _ONCE:
                self.repeated = name
            self._values.setdefault(name, value.decode("latin-1"))

    def get(self, name: str) -> str:
        """Return the value of a header, or '' if it is missing."""
        return self._values.get(name, "")


def _wrong_host(host: str) -> Refusal:
    match = _HOST.fullmatch(host)
    name = one_line(match.group(1), 80) if match else "NAME"
    return Refusal(
        "Unknown host name. Use the URL that `edgechat serve` printed, or start the server with "
        f"--allow-host {name} if clients use that name.",
        status=403,
        code="wrong_host",
    )


def _no_key(headers: _Headers) -> Refusal:
    if headers.get("authorization"):
        is_bearer = headers.get("authorization").partition(" ")[0].lower() == "bearer"
        what = "The API key is not valid." if is_bearer else "The key must follow the word Bearer."
    elif headers.get(_KEY_HEADER):
        what = "The API key is not valid."
    else:
        what = "The api-key header is not supported." if headers.get("api-key") else "No API key was sent."
    return Refusal(
        f"{what} Send 'Authorization: Bearer KEY'; at startup, `edgechat serve` prints where the key is "
        "stored.",
        status=401,
        code="invalid_api_key",
        headers=(("www-authenticate", "Bearer"),),
    )


_KEY = re.compile(r"[\x21-\x7e]{8,512}")
_LINE = 4096
_LOCK_SECONDS = 10.0
VARIABLE = "EDGECHAT_API_KEY"


@dataclass(frozen=True, slots=True)
class Key:
    """An API key and its source."""

    text: str
    file: Path | None = None
    """The file that stores the key, or None if the key was passed in."""
    is_new: bool = False
    variable: str | None = None
    """The environment variable that contained the key, if any."""


def key_file() -> Path:
    """Return the path of the file that stores the key."""
    return paths.config_dir() / "api-key"


def find_key(given: str | None) -> Key:
    """Return the key from the command line, EDGECHAT_API_KEY or its file, which is created if missing.

    Raises FolderError, and SettingsError if the key cannot be read, stored, or sent in a header.
    """
    other = "Use another key, or omit it: edgechat then generates one."
    if given is not None:
        return Key(_checked(given, "The given API key", other))
    if VARIABLE in os.environ:
        return Key(_checked(os.environ[VARIABLE], f"The API key in {VARIABLE}", other), variable=VARIABLE)
    file = key_file()
    try:
        return _kept(file)
    except FileNotFoundError:
        pass
    try:
        with filelock.FileLock(file.with_name(".api-key.lock"), timeout=_LOCK_SECONDS, mode=0o600):
            with contextlib.suppress(FileNotFoundError):  # another server may have created it
                return _kept(file)
            made = f"ek-{secrets.token_urlsafe(32)}"
            paths.replace(file, f"{made}\n".encode())
    except OSError as error:
        raise SettingsError(
            f"A key cannot be written to {file}: {error.strerror or error}.",
            hint=f"Check the free disk space and the permissions of {file.parent}.",
        ) from error
    return Key(made, file, is_new=True)


def _kept(file: Path) -> Key:
    """Read the key from a file.

    Raises FileNotFoundError if the file is missing or empty, and SettingsError if the key is not usable.
    """
    try:
        text = paths.read_bytes(file, _LINE).decode("utf-8", "replace").strip()
        if not text and not file.is_symlink():  # left by a killed process or a full disk
            raise FileNotFoundError
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not file.is_symlink():
            raise
        raise SettingsError(
            f"The key in {file} cannot be read: {error.strerror or error}.",
            hint="Correct or remove the file.",
        ) from error
    with contextlib.suppress(OSError):  # files in a copied folder may be readable by other users
        file.chmod(0o600)
    return Key(
        _checked(text, f"The key in {file}", "Delete the file; the next start generates a new key."), file
    )


def _checked(text: str, what: str, hint: str) -> str:
    if _KEY.fullmatch(text) is None:
        raise SettingsError(
            f"{what} is not valid: keys have 8 to 512 letters, digits and punctuation characters, without "
            "spaces.",
            hint=hint,
        )
    return text


_LOG = logging.getLogger(__name__)
_CLOSED = 499
"""Status logged if the client disconnects before the response starts, as in nginx."""
_OTHER = "other"
"""Metrics label for all unknown paths, so that text from clients never becomes a label."""


class KnownPaths:
    """The app's paths, recognized in every spelling that clients use."""

    def __init__(self, paths: Iterable[str]) -> None:
        """paths: the paths of the routes. A parameter in braces matches the rest of the path."""
        paths = list(paths)
        self._whole = frozenset(path for path in paths if "{" not in path)
        self._folders = tuple(path.partition("{")[0] for path in paths if "{" in path)

    def canonical(self, path: str) -> str:
        """Return the canonical spelling of a known path, or an unknown path without its trailing slash."""
        path = path.rstrip("/") or "/"
        for candidate in (path, f"/v1{path}", path.removeprefix("/v1")):
            if candidate in self._whole or candidate.startswith(self._folders):
                return candidate
        return path

    def label(self, path: str) -> str:
        """Return the metrics label for a canonical path, without parameters."""
        if path in self._whole:
            return path
        return next((folder.removesuffix("/") for folder in self._folders if path.startswith(folder)), _OTHER)


class AccessLog:
    """ASGI middleware that makes paths canonical, counts requests, and logs them without their content."""

    def __init__(self, app: ASGIApp, metrics: Metrics, paths: KnownPaths) -> None:
        self._app = app
        self._metrics = metrics
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count and log a request."""
        began = time.monotonic()
        scope["path"] = self._paths.canonical(scope["path"])
        status, whole = _CLOSED, False

        async def observe(message: Message) -> None:
            nonlocal status, whole
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                whole = not message.get("more_body", False)
            await send(message)

        try:
            await self._app(scope, receive, observe)
        finally:
            model = scope.get(MODEL, "")
            self._metrics.request(self._paths.label(scope["path"]), status, model or None)
            seconds = time.monotonic() - began
            cut = scope.get(BROKEN_OFF) if whole else "client_gone"
            request = f"{scope['method']} {one_line(scope['path'], 80)}"
            caller = scope["client"][0] if scope["client"] else ""
            fields = (caller, request, str(status), f"{seconds:.2f} s", model, _tokens(scope), cut)
            _LOG.info("%s", " ".join(field for field in fields if field))


def _tokens(scope: Scope) -> str:
    prompt, completion = scope.get(TOKENS, (0, 0))
    return f"{prompt}+{completion} tokens" if prompt or completion else ""
