"""Fetcher for untrusted URLs on the public web: only public addresses, with limits on time and size.

Without it, a client or a model could make edgechat fetch what only this machine can reach: its router, cloud
metadata, other programs. So each host is resolved here, all its addresses are checked, and the connection
goes to one of those, even if the name resolves to something else a moment later.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgechat import __version__
from edgechat.base.deadline import OutOfTime, ProgressWatch, run_within
from edgechat.base.network.offline import offline_by
from edgechat.base.text import mebibytes, one_line

if TYPE_CHECKING:
    import httpx2

_CONNECT, _IDLE = 5.0, 5.0
MAX_REDIRECTS = 3
_MOST_ADDRESSES = 3
"""Maximum number of addresses to try per host."""
_PORTS = (None, 80, 443)
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
# Special-purpose networks (protocols, relays, tunnels, documentation) that some Python versions do not know.
_SPECIAL = tuple(
    ipaddress.ip_network(network)
    for network in ("192.0.0.0/24", "192.88.99.0/24", "2001::/23", "2002::/16", "3fff::/20")
)


class NotFetched(Exception):
    """A URL could not be fetched; the text completes 'it cannot be fetched: ...'."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """The resource at a URL."""

    data: bytes
    content_type: str
    """The type reported by the server, which may be wrong, or '' if it reported none."""
    url: str
    """Its URL after redirects."""
    cut: bool
    """Whether the data is incomplete."""


Resolve = Callable[[str, int], Sequence[str]]
"""Resolves a host and a port to the host's addresses. Raises OSError."""


def addresses_of(host: str, port: int) -> list[str]:
    """Return the addresses of a host. Raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[4][0]) for address in found))


def is_public(address: str) -> bool:
    """Return whether an address, or the IPv4 address embedded in it, is on the public internet."""
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


class PublicWeb:
    """Fetches public resources. Thread-safe."""

    def __init__(
        self, accept: str, *, resolve: Resolve = addresses_of, transport: httpx2.BaseTransport | None = None
    ) -> None:
        """accept: the accepted media types. resolve, transport: replaced in tests."""
        self._accept = accept
        self._resolve = resolve
        self._transport = transport

    def fetch(self, url: str, *, most_bytes: int, seconds: float, may_cut: bool = False) -> Fetched:
        """Return the resource at a URL, whatever its type. Raises NotFetched.

        may_cut: whether to return the first `most_bytes` of a larger resource instead of rejecting it.
        """
        if (switch := offline_by()) is not None:
            raise NotFetched(f"{switch} keeps edgechat offline")
        try:
            return run_within(seconds, seconds, lambda watch: self._get(url, most_bytes, may_cut, watch))
        except OutOfTime as error:
            raise NotFetched(f"it took more than {seconds:.0f} seconds") from error

    def _get(self, url: str, limit: int, may_cut: bool, watch: ProgressWatch) -> Fetched:
        import httpx2

        try:
            # Proxies would resolve names themselves, and cookies and passwords must not be sent.
            timeout = httpx2.Timeout(_IDLE, connect=_CONNECT)
            with httpx2.Client(
                timeout=timeout, follow_redirects=False, trust_env=False, transport=self._transport
            ) as http:
                target = httpx2.URL(url)
                for _ in range(MAX_REDIRECTS + 1):
                    found = self._ask(http, target, limit, may_cut, watch)
                    if isinstance(found, Fetched):
                        return found
                    target = target.join(found)
        except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError, ValueError) as error:
            raise NotFetched(one_line(str(error), 120) or type(error).__name__) from error
        raise NotFetched(f"it was redirected more than {MAX_REDIRECTS} times")

    def _ask(
        self, http: httpx2.Client, target: httpx2.URL, limit: int, may_cut: bool, watch: ProgressWatch
    ) -> Fetched | str:
        """Return the resource at a URL, or the address that it redirects to."""
        import httpx2

        headers = {
            "Host": target.netloc.decode("ascii"),
            "User-Agent": f"edgechat/{__version__}",
            "Accept": self._accept,
            "Accept-Encoding": "identity",
        }
        extensions = {"sni_hostname": target.raw_host.decode("ascii")}
        addresses = self._checked(target)
        for address in addresses:
            watch.beat()
            there = target.copy_with(host=address)
            try:
                with http.stream("GET", there, headers=headers, extensions=extensions) as response:
                    return _read(str(target), response, limit, may_cut, watch)
            except (httpx2.ConnectError, httpx2.ConnectTimeout):
                if address == addresses[-1]:
                    raise
        raise AssertionError("a host has an address")

    def _checked(self, target: httpx2.URL) -> list[str]:
        """Return the addresses of a URL's host. Raises NotFetched if not all of them are public."""
        if target.scheme not in ("http", "https") or target.port not in _PORTS:
            raise NotFetched("only http and https on their usual ports are allowed")
        if target.userinfo:
            raise NotFetched("a URL with a password is not allowed")
        try:
            found = self._resolve(target.raw_host.decode("ascii"), target.port or 443)
        except (OSError, UnicodeError) as error:
            raise NotFetched("its host is unknown") from error
        if not found or not all(map(is_public, found)):
            raise NotFetched("its host is not on the public internet")
        return list(found)[:_MOST_ADDRESSES]


def _read(
    url: str, response: httpx2.Response, limit: int, may_cut: bool, watch: ProgressWatch
) -> Fetched | str:
    """Return the body of a response, or the address that it redirects to. Raises NotFetched."""
    location = response.headers.get("location")
    if response.status_code in (301, 302, 303, 307, 308) and location:
        return str(location)
    if response.status_code != 200:
        raise NotFetched(f"its server answered with status {response.status_code}")
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        raise NotFetched("it is compressed, which was not requested")
    body, kind = bytearray(), str(response.headers.get("content-type", ""))
    for piece in response.iter_raw():
        watch.beat()
        body += piece
        if len(body) > limit:
            if may_cut:
                return Fetched(bytes(body[:limit]), kind, url, cut=True)
            raise NotFetched(f"it is larger than {mebibytes(limit)}")
    return Fetched(bytes(body), kind, url, cut=False)
