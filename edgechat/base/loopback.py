"""Servers of llama.cpp's RPC backend that edgechat talks to: those of this machine, by their address."""

from __future__ import annotations

_HOSTS = ("127.0.0.1", "localhost")

HINT = "To use a server on another machine, forward its port: ssh -L 50052:127.0.0.1:50052 HOST"


def address(server: str) -> str | None:
    """Return a server as 127.0.0.1:PORT, whatever the name stands for here; None where it is another's."""
    host, _, port = server.rpartition(":")
    if host in _HOSTS and port.isascii() and port.isdecimal() and len(port) < 9 and 0 < int(port) < 2**16:
        return f"{_HOSTS[0]}:{int(port)}"
    return None


def refusal(server: str) -> str:
    """Return why a server is not talked to, for people."""
    return (
        f"{server[:80]!r} is not a llama.cpp server on this machine: edgechat accepts only 127.0.0.1:PORT, "
        "because RPC servers have no access control."
    )
