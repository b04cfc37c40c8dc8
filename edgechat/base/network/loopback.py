"""Addresses of this machine: of URLs, and of llama.cpp RPC servers, which are accepted nowhere else."""

from __future__ import annotations

import contextlib
from urllib.parse import urlsplit

HINT = "To use a server on another machine, forward its port: ssh -L 50052:127.0.0.1:50052 HOST"


def address(server: str) -> str | None:
    """Return a server's address as 127.0.0.1:PORT, or None if it is not on this machine."""
    host, _, port = server.rpartition(":")
    is_number = port.isascii() and port.isdecimal() and len(port) < 9
    if host in ("127.0.0.1", "localhost") and is_number and 0 < int(port) < 2**16:
        return f"127.0.0.1:{int(port)}"
    return None


def refusal(server: str) -> str:
    """Return the message why a server is refused."""
    return (
        f"{server[:80]!r} is not a llama.cpp server on this machine: edgechat accepts only 127.0.0.1:PORT, "
        "because RPC servers have no access control."
    )


def is_loopback(url: str) -> bool:
    """Return whether a URL is of this machine, as its host says without being looked up."""
    import ipaddress  # 3 ms, which a start without remotes need not pay

    host = urlsplit(url).hostname or ""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"
