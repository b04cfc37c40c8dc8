"""Addresses of memory lenders: RPC servers on this machine, and other machines reached by ssh.

Addresses come from settings and command lines and are passed to ssh as arguments. A host that starts with a
dash would be parsed as an option, and other special characters could reach a shell.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

SSH_HINT = (
    "Addresses look like this: ssh://user@gpu-box, ssh://gpu-box:2222, ssh://gpu-box/opt/edgechat/edgechat"
)
_LENGTH = 300
_ADDRESS = re.compile(
    r"ssh://(?:(?P<user>\w[\w.-]{0,63})@)?"
    r"(?P<host>[a-z0-9][\w.-]{0,252}|\[[0-9a-f:]{2,45}(?:%[a-z0-9]{1,15})?\])"
    r"(?::(?P<port>\d{1,5}))?"
    r"(?P<program>/[\w./+-]{1,255})?/?",
    re.ASCII | re.IGNORECASE,
)
_OPTIONS = (
    "BatchMode=yes",  # there is no way to enter a password
    "ExitOnForwardFailure=yes",
    "ConnectTimeout=10",
    "ServerAliveInterval=2",
    "ServerAliveCountMax=3",
    "ControlMaster=no",  # a shared connection would keep the tunnel open
    "ControlPath=none",
    "ForwardAgent=no",
    "ForwardX11=no",
    "PermitLocalCommand=no",
    "Compression=no",
)


@dataclass(frozen=True, slots=True)
class SshHost:
    """A machine reached by ssh."""

    address: str
    """The address as the user wrote it."""
    host: str
    """A name from DNS or ~/.ssh/config, or an IP address."""
    user: str | None = None
    port: int | None = None
    program: str = "edgechat"
    """The edgechat command on that machine."""

    @property
    def is_loopback(self) -> bool:
        """Whether the host is this machine, so that no network is needed."""
        return self.host in ("127.0.0.1", "localhost", "::1")

    def command(self, local_port: int, remote_port: int) -> list[str]:
        """Return the command that starts `edgechat worker` on the host, with a tunnel between the ports."""
        options = [word for option in _OPTIONS for word in ("-o", option)]
        tunnel = ["-L", f"127.0.0.1:{local_port}:127.0.0.1:{remote_port}"]
        remote = f"{self.program} worker --port {remote_port}"
        return ["ssh", "-T", *options, *tunnel, *self.destination, remote]

    @property
    def destination(self) -> list[str]:
        """Arguments that tell ssh which machine to use."""
        user = [] if self.user is None else ["-l", self.user]
        port = [] if self.port is None else ["-p", str(self.port)]
        return [*user, *port, "--", self.host]


def ssh_host(address: str) -> SshHost | None:
    """Parse an address, `ssh://[user@]host[:port][/program]`. Return None if it is malformed."""
    match = _ADDRESS.fullmatch(address) if len(address) <= _LENGTH else None
    if match is None or (match["port"] and not 0 < int(match["port"]) < 2**16):
        return None
    return SshHost(
        address=address,
        host=match["host"].strip("[]"),
        user=match["user"],
        port=int(match["port"]) if match["port"] else None,
        program=match["program"] or "edgechat",
    )


def ssh_refusal(address: str) -> str:
    """Return the error message for an address that is not accepted."""
    return f"{address[:80]!r} is not the address of a worker: edgechat reaches other machines only over ssh."


RPC_HINT = "To use a server on another machine, forward its port: ssh -L 50052:127.0.0.1:50052 HOST"


def rpc_address(server: str) -> str | None:
    """Return the address of an RPC server as 127.0.0.1:PORT, or None if it is not on this machine."""
    host, _, port = server.rpartition(":")
    is_number = port.isascii() and port.isdecimal() and len(port) < 9
    if host in ("127.0.0.1", "localhost") and is_number and 0 < int(port) < 2**16:
        return f"127.0.0.1:{int(port)}"
    return None


def rpc_refusal(server: str) -> str:
    """Return the error message for an RPC server that is not accepted."""
    return (
        f"{server[:80]!r} is not a llama.cpp server on this machine: edgechat accepts only 127.0.0.1:PORT, "
        "because RPC servers have no access control."
    )
