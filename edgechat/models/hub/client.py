"""HTTP client for the hub, with limits on time and size. Only the hub's own host receives the token.

huggingface_hub is used only to find the token. Its own requests are unsuitable before a download: they read
responses of any size, wait indefinitely for a slow server, and look up the user's account just to read a file
header.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, TypeVar

from edgechat import __version__
from edgechat.base.deadline import OutOfTime, ProgressWatch, run_within
from edgechat.base.errors import (
    EdgechatError,
    HubAnswerError,
    HubError,
    HubUnreachable,
    RemoteFileChanged,
    SettingsError,
)
from edgechat.base.network.offline import unusable_proxy
from edgechat.base.text import one_line
from edgechat.models.catalogue import CatalogueEntry
from edgechat.models.choices import RemoteFile, RepoListing
from edgechat.models.hub.endpoint import (
    CHECK,
    Endpoint,
    changed,
    endpoint,
    host,
    next_address,
    nonsense,
    refusal,
    unreachable,
)
from edgechat.models.local.files import is_digest

if TYPE_CHECKING:
    import ssl

    import httpx2


T = TypeVar("T")

CONNECT = 5.0
"""Seconds allowed to establish a connection."""
IDLE = 8.0
"""Seconds allowed without progress, that is, without a resolved name, a new connection or a received byte."""
SPARE = 1.0
"""Extra seconds that give a more specific timeout the chance to expire first."""
PATIENCE, SLOWEST = 60.0, 1024
"""Period in seconds over which the rate is averaged, and minimum average rate in bytes per second."""
MAX_REDIRECTS = 5


class ConnectionCut(Exception):
    """The connection was lost before the response was complete."""


@dataclass(slots=True)
class HubResponse:
    """A successful response whose body has not been read yet. Header names are in lowercase."""

    url: str
    """The URL after all redirects."""
    status: int
    headers: Mapping[str, str]
    linked: Mapping[str, str]
    """Headers that describe the file, collected from the hub's responses before redirects: x-linked-… and
    x-repo-commit.
    """
    pieces: Iterator[bytes]
    """Pieces of the body. Iteration can raise ConnectionCut, HubUnreachable."""


class Client:
    """A client that sends requests about a single repository over persistent connections."""

    def __init__(
        self, hub: Endpoint, repo: str, http: httpx2.Client, watch: ProgressWatch, token: str | None
    ) -> None:
        self.hub = hub
        self.repo = repo
        self._http = http
        self._watch = watch
        self._token = token

    def paused(self) -> AbstractContextManager[None]:
        """Suspend the timeout between two pieces of a response: see ProgressWatch.paused."""
        return self._watch.paused()

    @contextmanager
    def get(self, url: str, headers: Mapping[str, str] | None = None) -> Iterator[HubResponse]:
        """Request `url`, following redirects. Raises HubError, or ConnectionCut if the connection is lost."""
        import httpx2

        try:
            yield from self._follow(url, headers)
        except (httpx2.RemoteProtocolError, httpx2.ReadError, httpx2.WriteError) as error:
            raise ConnectionCut(str(error)) from error

    def _follow(self, url: str, headers: Mapping[str, str] | None) -> Iterator[HubResponse]:
        linked: dict[str, str] = {}
        for _ in range(MAX_REDIRECTS + 1):
            self._watch.beat()
            with self._http.stream("GET", url, headers=self._headers(url, headers)) as response:
                self._watch.beat()
                received = {name.lower(): value for name, value in response.headers.items()}
                if self.hub.may_see_token(url):
                    linked |= {k: v for k, v in received.items() if k.startswith(("x-linked-", "x-repo-"))}
                location = received.get("location") if 300 <= response.status_code < 400 else None
                if location is None:
                    self._check(url, response.status_code, received)
                    yield HubResponse(
                        url, response.status_code, received, linked, self._pieces(url, response)
                    )
                    return
            url = next_address(url, location)
        raise nonsense(self.hub.url, f"redirected more than {MAX_REDIRECTS} times")

    def read(self, url: str, limit: int) -> bytes:
        """Return the response body from `url`, at most `limit` bytes. Raises HubError, ConnectionCut."""
        body = bytearray()
        with self.get(url) as answer:
            for piece in answer.pieces:
                body += piece
                if len(body) > limit:
                    raise nonsense(url, f"sent more than {limit} bytes")
        return bytes(body)

    def _headers(self, url: str, more: Mapping[str, str] | None) -> dict[str, str]:
        headers = {"User-Agent": f"edgechat/{__version__}", "Accept-Encoding": "identity", **(more or {})}
        if self._token and self.hub.may_see_token(url):
            headers["Authorization"] = f"Bearer {self._token}"
        return headers

    def _check(self, url: str, status: int, headers: Mapping[str, str]) -> None:
        if status not in (200, 206):
            raise refusal(self.hub, self.repo, url, status, headers, had_token=bool(self._token))
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise nonsense(url, "used a compression that was not requested")

    def _pieces(self, url: str, response: httpx2.Response) -> Iterator[bytes]:
        import httpx2

        n_bytes, waited, since = 0, 0.0, time.monotonic()
        try:
            # Pass no chunk size, or a slow connection would seem silent until a whole chunk had arrived.
            for piece in response.iter_raw():
                self._watch.beat()
                # Count only the time spent waiting for a piece, not the time the caller takes to process it.
                n_bytes, waited = n_bytes + len(piece), waited + time.monotonic() - since
                if waited >= PATIENCE:
                    if n_bytes < SLOWEST * PATIENCE:
                        speed = f"less than {SLOWEST} bytes per second for {PATIENCE:.0f} seconds"
                        raise HubUnreachable(f"{host(url)} is too slow: {speed}.", hint=CHECK)
                    n_bytes, waited = 0, 0.0
                yield piece
                since = time.monotonic()
        except httpx2.TimeoutException as error:
            raise _stalled(url, IDLE) from error
        except httpx2.TransportError as error:
            raise ConnectionCut(str(error)) from error


def ask_hub(hub: Endpoint, repo: str, seconds: float, work: Callable[[Client], T]) -> T:
    """Run `work` with a client in a separate thread. Raises HubError, and anything that `work` raises.

    seconds: overall time limit. With math.inf, only the time without progress is limited. After a timeout,
    the thread may keep running for a moment.
    """

    def run(watch: ProgressWatch) -> T:
        import httpx2

        if (unusable := unusable_proxy()) is not None:
            why, hint = unusable
            raise unreachable(hub.url, why, hint=hint)
        try:
            limits = httpx2.Timeout(IDLE, connect=CONNECT)
            with httpx2.Client(timeout=limits, verify=_tls(), follow_redirects=False) as http:
                return work(Client(hub, repo, http, watch, _token()))
        except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.CookieConflict, httpx2.StreamError) as error:
            raise _connection_error(hub, error) from error
        except ConnectionCut as error:
            raise unreachable(hub.url, "the connection was lost during a response") from error

    try:
        return run_within(seconds, IDLE + SPARE, run)
    except OutOfTime as error:
        if error.stalled:
            raise _stalled(hub.url, error.seconds) from error
        raise HubUnreachable(
            f"{host(hub.url)} is too slow: information about {repo} did not arrive within {seconds:.0f} "
            "seconds.",
            hint=CHECK,
        ) from error


@cache
def _tls() -> ssl.SSLContext:
    """Return the TLS context, which takes 25 ms to create. Raises SettingsError."""
    import httpx2

    try:
        return httpx2.create_ssl_context()
    except OSError as error:  # includes ssl.SSLError
        name = next((name for name in ("SSL_CERT_FILE", "SSL_CERT_DIR") if os.environ.get(name)), None)
        if name is None:
            raise
        raise SettingsError(
            f"{name} is {one_line(os.environ[name], 300)!r}, which cannot be read as certificates.",
            hint=f"Set it to a file in PEM format, or unset {name}.",
        ) from error


def _token() -> str | None:
    """Return the token stored by `hf auth login`, or None. The first call takes a quarter of a second."""
    from huggingface_hub import constants, get_token

    if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN:
        return None
    try:
        return get_token()
    # Ignore an unreadable token: most repositories do not need one, and the others say so.
    except Exception:
        return None


def _stalled(url: str, seconds: float) -> HubError:
    return unreachable(url, f"no data for {seconds:.0f} seconds")


def _connection_error(hub: Endpoint, error: Exception) -> HubError:
    import httpx2

    if isinstance(error, httpx2.TimeoutException):
        return unreachable(hub.url, "it did not respond in time")
    if isinstance(error, httpx2.InvalidURL | httpx2.UnsupportedProtocol):
        return nonsense(hub.url, f"redirected to an invalid URL ({type(error).__name__})")
    return unreachable(hub.url, _reason(error))


def _reason(error: BaseException) -> str:
    """Return the message of the error's root cause."""
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__ or error
    if isinstance(error, socket.gaierror):
        return "its name could not be resolved"
    message = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return message.rstrip(".") or type(error).__name__


_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19}|\*)", re.ASCII)


@dataclass(slots=True)
class RangedFile:
    """A file from a listing, requested in byte ranges."""

    listing: RepoListing
    file: RemoteFile
    etag: str | None = None
    """ETag of the last response, set by the host that stores the file."""

    @property
    def url(self) -> str:
        """The URL of the file at the listing's commit."""
        return Endpoint(self.listing.hub).file(self.listing.repo, self.listing.commit, self.file.name)

    def headers(self, at: int, end: int) -> dict[str, str]:
        """Return the headers for requesting bytes from `at` up to, but not including, `end`."""
        headers = {"Range": f"bytes={at}-{end - 1}"}
        if self.etag is not None and not self.etag.startswith("W/"):
            headers["If-Range"] = self.etag
        return headers

    def is_unchanged(self, answer: HubResponse) -> bool:
        """Return whether the ETag is the same as in the last response, and remember the new one.

        Raises RemoteFileChanged if the hub itself reports that the file differs from the listing.
        """
        size, etag = answer.linked.get("x-linked-size"), answer.linked.get("x-linked-etag", "").strip('"')
        digest = self.file.digest
        is_other = digest is not None and is_digest(etag) and len(etag) == len(digest) and etag != digest
        if (size is not None and size != str(self.file.size)) or is_other:
            raise self.changed()
        if answer.linked.get("x-repo-commit", self.listing.commit) != self.listing.commit:
            raise self.changed()
        before, self.etag = self.etag, answer.headers.get("etag")
        return before in (None, self.etag)

    def part(self, answer: HubResponse, at: int, end: int) -> tuple[int, int]:
        """Return the byte range in the response to a request for bytes from `at` up to `end`.

        The range can also be the whole file, or stop before `end`. Raises HubError.
        """
        if answer.status == 200:  # the whole file: the server does not support ranges
            length = answer.headers.get("content-length", str(self.file.size))
            if length != str(self.file.size):
                raise self.changed()
            return 0, self.file.size
        match = _CONTENT_RANGE.fullmatch(answer.headers.get("content-range", ""))
        if match is None:
            raise nonsense(answer.url, f"did not say which part of {one_line(self.file.name)} it sent")
        start, last = int(match[1]), int(match[2])
        if match[3] not in ("*", str(self.file.size)):
            raise self.changed()
        length = answer.headers.get("content-length", str(last - start + 1))
        if start != at or not start <= last < end or length != str(last - start + 1):
            raise nonsense(
                answer.url, f"sent a different part of {one_line(self.file.name)} than was requested"
            )
        return start, last + 1

    def changed(self) -> RemoteFileChanged:
        """Return the error for a file that differs from the listing."""
        return changed(one_line(self.file.name))


SECONDS = 3.0
"""Seconds of silence after which the hub is considered unreachable."""
_SAMPLE = 4 << 20
"""Number of bytes to request for measuring the rate."""
_SAMPLE_SECONDS = 1.0
"""Maximum duration of the measurement, in seconds."""
_LEAST = 1 << 19
"""Minimum number of bytes for a meaningful rate."""


@dataclass(frozen=True, slots=True)
class HubReach:
    """The result of probing the hub."""

    problem: str = ""
    """Why the hub cannot be reached, or '' if it can."""
    rate: float | None = None
    """Bytes per second, or None if the rate was not measured."""


def probe_hub(entry: CatalogueEntry, seconds: float = SECONDS) -> HubReach:
    """Probe the hub by requesting the first bytes of a model in the catalogue.

    A hub that rejects the request still counts as reachable. Raises SettingsError if HF_ENDPOINT is invalid.
    """
    hub, file = endpoint(), entry.file.format(quant=entry.quant)

    def sample(client: Client) -> float | None:
        with client.get(hub.file(client.repo, "main", file), {"Range": f"bytes=0-{_SAMPLE - 1}"}) as answer:
            return _rate(answer)

    try:
        return HubReach(rate=ask_hub(hub, entry.repo or "", seconds, sample))
    except (HubUnreachable, HubAnswerError) as error:
        return HubReach(problem=error.message)
    except HubError:
        return HubReach()


def _rate(answer: HubResponse) -> float | None:
    """Return the rate of a response, measured from the second piece onwards, once the connection is warm."""
    n_bytes, began = -1, 0.0
    with suppress(EdgechatError, ConnectionCut):  # an answer of any kind is enough
        for piece in answer.pieces:
            now = time.monotonic()
            if n_bytes < 0:
                n_bytes, began = 0, now
                continue
            n_bytes += len(piece)
            if now - began > _SAMPLE_SECONDS:
                break
    elapsed = time.monotonic() - began
    return n_bytes / elapsed if n_bytes >= _LEAST and elapsed > 0 else None
