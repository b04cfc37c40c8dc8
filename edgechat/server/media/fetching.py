"""Images from the web, for servers that may fetch them: public addresses only, and bounded in all ways.

A client of the server could otherwise have it ask what only this machine can reach: its router, the metadata
of a cloud, other programs on it. So each host is resolved here, all its addresses are checked, and the
connection goes to one of these, whatever the name means a moment later.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from edgechat import __version__
from edgechat.base.errors import ImageError
from edgechat.base.offline import offline_by
from edgechat.base.text import mebibytes, one_line
from edgechat.models.hub.http.deadline import OutOfTime, ProgressWatch, run_within

if TYPE_CHECKING:
    import httpx2

MAX_BYTES = 32 * 2**20
"""Of one image."""
SECONDS = 15.0
"""For one image."""
_CONNECT, _IDLE = 5.0, 5.0
MAX_REDIRECTS = 3
_MOST_ADDRESSES = 3
"""Of a host that are tried."""
_PORTS = (None, 80, 443)
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
# Protocols, relays, tunnels and documents, which not every Python knows as such.
_SPECIAL = tuple(
    ipaddress.ip_network(network)
    for network in ("192.0.0.0/24", "192.88.99.0/24", "2001::/23", "2002::/16", "3fff::/20")
)
_HINT = "Send it as a data URL."

Resolve = Callable[[str, int], Sequence[str]]
"""Returns the addresses of a host. Raises OSError."""


def addresses_of(host: str, port: int) -> list[str]:
    """Return the addresses of a host. Raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[4][0]) for address in found))


def is_public(address: str) -> bool:
    """Return whether an address is one of the internet, whatever IPv4 address it stands for included."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return is_public(str(found.ipv4_mapped))
        if found in _NAT64:
            return is_public(str(ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)))
        if found not in _GLOBAL_UNICAST:
            return False
    return found.is_global and not found.is_multicast and not any(found in network for network in _SPECIAL)


class ImageFetcher:
    """Fetches images. Thread-safe."""

    def __init__(
        self, *, resolve: Resolve = addresses_of, transport: httpx2.BaseTransport | None = None
    ) -> None:
        """resolve, transport: for tests."""
        self._resolve = resolve
        self._transport = transport

    def fetch(self, url: str, *, most_bytes: int = MAX_BYTES, seconds: float = SECONDS) -> bytes:
        """Return what is at a URL: bytes, of whatever kind. Raises ImageError."""
        if (switch := offline_by()) is not None:
            raise ImageError(f"Images cannot be fetched: {switch} keeps edgechat offline.", hint=_HINT)
        limit, seconds = min(most_bytes, MAX_BYTES), min(seconds, SECONDS)
        try:
            return run_within(seconds, seconds, lambda watch: self._get(url, limit, watch))
        except OutOfTime as error:
            raise _not_fetched(url, f"it took more than {seconds:.0f} seconds") from error

    def _get(self, url: str, limit: int, watch: ProgressWatch) -> bytes:
        import httpx2

        try:
            # Proxies would resolve names themselves, and cookies and passwords have no place here.
            timeout = httpx2.Timeout(_IDLE, connect=_CONNECT)
            with httpx2.Client(
                timeout=timeout, follow_redirects=False, trust_env=False, transport=self._transport
            ) as http:
                target = httpx2.URL(url)
                for _ in range(MAX_REDIRECTS + 1):
                    found = self._ask(http, target, limit, watch)
                    if isinstance(found, bytes):
                        return found
                    target = target.join(found)
        except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError, ValueError) as error:
            raise _not_fetched(url, one_line(str(error), 120) or type(error).__name__) from error
        raise _not_fetched(url, f"it was redirected more than {MAX_REDIRECTS} times")

    def _ask(self, http: httpx2.Client, target: httpx2.URL, limit: int, watch: ProgressWatch) -> bytes | str:
        """Return what is at a URL, or where it redirects to."""
        import httpx2

        headers = {
            "Host": target.netloc.decode("ascii"),
            "User-Agent": f"edgechat/{__version__}",
            "Accept": "image/*",
            "Accept-Encoding": "identity",
        }
        extensions = {"sni_hostname": target.raw_host.decode("ascii")}
        addresses = self._checked(target)
        for address in addresses:
            watch.beat()
            there = target.copy_with(host=address)
            try:
                with http.stream("GET", there, headers=headers, extensions=extensions) as response:
                    return _read(str(target), response, limit, watch)
            except (httpx2.ConnectError, httpx2.ConnectTimeout):
                if address == addresses[-1]:
                    raise
        raise AssertionError("a host has an address")

    def _checked(self, target: httpx2.URL) -> list[str]:
        """Return the addresses of a URL's host. Raises ImageError if not all of them are public."""
        url = str(target)
        if target.scheme not in ("http", "https") or target.port not in _PORTS:
            raise _not_fetched(url, "only http and https on their usual ports are allowed")
        if target.userinfo:
            raise _not_fetched(url, "a URL with a password is not allowed")
        try:
            found = self._resolve(target.raw_host.decode("ascii"), target.port or 443)
        except (OSError, UnicodeError) as error:
            raise _not_fetched(url, "its host is not known") from error
        if not found or not all(map(is_public, found)):
            raise _not_fetched(url, "its host is not on the public internet")
        return list(found)[:_MOST_ADDRESSES]


def _read(url: str, response: httpx2.Response, limit: int, watch: ProgressWatch) -> bytes | str:
    """Return the body of a response, or where it redirects to. Raises ImageError."""
    location = response.headers.get("location")
    if response.status_code in (301, 302, 303, 307, 308) and location:
        return str(location)
    if response.status_code != 200:
        raise _not_fetched(url, f"its server answers with status {response.status_code}")
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        raise _not_fetched(url, "it is compressed, which was not asked for")
    body = bytearray()
    for piece in response.iter_raw():
        watch.beat()
        body += piece
        if len(body) > limit:
            raise _not_fetched(url, f"it has more than {mebibytes(limit)}")
    return bytes(body)


def _not_fetched(url: str, why: str) -> ImageError:
    return ImageError(f"The image at {one_line(url, 120)} cannot be fetched: {why}.", hint=_HINT)
