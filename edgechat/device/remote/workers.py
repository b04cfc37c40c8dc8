"""The workers that this process is connected to: each once, until it is lost or the process ends."""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from edgechat import settings
from edgechat.base.errors import WorkerRefused
from edgechat.base.network.lenders import SSH_HINT, SshHost, ssh_host, ssh_refusal
from edgechat.base.network.offline import offline_by
from edgechat.device.gpu.accelerators import Accelerator
from edgechat.device.remote.tunnel import Tunnel

_LOG = logging.getLogger(__name__)
_AGAIN = 300.0
"""Seconds after its loss in which a worker is not connected to again: it would be lost again soon."""
_NOTICED = 3.0
"""Seconds in which the loss of a worker is noticed that has ended an engine."""

_connecting = threading.Lock()
"""Held for seconds."""
_lock = threading.Lock()
"""Held for no time, for what follows: the front end's event loop asks too."""
_tunnels: dict[str, Tunnel] = {}
_lost: dict[str, tuple[float, str]] = {}
"""When workers were lost, and why, as sentences, by their address as the user writes it."""
_hosts: dict[str, str] = {}
"""Which worker an address on this machine belongs to, or belonged."""


def parsed(address: str) -> SshHost:
    """Return the machine that an address names. Raises WorkerRefused."""
    host = ssh_host(address)
    if host is None:
        raise WorkerRefused(ssh_refusal(address), hint=SSH_HINT)
    return host


@dataclass(frozen=True, slots=True)
class LostWorker:
    """A worker that was connected, and is not used."""

    address: str
    why: str
    """A sentence."""


def connect(address: str) -> Tunnel | LostWorker:
    """Return the worker, connected now unless it was before. Raises WorkerRefused; takes seconds."""
    host = parsed(address)
    if not host.is_loopback and (reason := offline_by() or settings.load().offline):
        by = reason if isinstance(reason, str) else "settings.toml"
        raise WorkerRefused(
            f"{address} is on the network, and edgechat is offline ({by}).",
            hint="Omit --with, or go online again.",
        )
    with _connecting:
        with _lock:
            tunnel = _tunnels.get(address)
            if tunnel is not None and not tunnel.lost:
                return tunnel
            if tunnel is not None:
                _note_loss(tunnel)
            at, why = _lost.get(address, (0.0, ""))
        if why and time.monotonic() - at < _AGAIN:
            return LostWorker(address, why)
        tunnel = Tunnel(host)
        with _lock:
            _tunnels[address] = tunnel
            _lost.pop(address, None)
            _hosts[tunnel.address] = address
        return tunnel


def _note_loss(tunnel: Tunnel) -> None:
    address = tunnel.host.address
    _lost[address] = time.monotonic(), f"The worker {address} {tunnel.lost}."
    del _tunnels[address]


def worker_addresses(servers: Iterable[str]) -> tuple[str, ...]:
    """Return the addresses, as users write them, of those RPC servers that workers of this process are."""
    return tuple(_hosts[server] for server in servers if server in _hosts)


def why_lost(servers: Sequence[str], *, wait: bool = False) -> str:
    """Return why one of these RPC servers is a worker that was lost, as a sentence; '' if none is.

    wait: an engine has died that used them; the reason may take seconds to show itself.
    """
    deadline = time.monotonic() + (_NOTICED if wait and any(server in _hosts for server in servers) else 0.0)
    while True:
        with _lock:
            reasons = [_why_lost(server) for server in servers]
        if found := next(filter(None, reasons), ""):
            return found
        if time.monotonic() > deadline:
            return ""
        time.sleep(0.05)


def _why_lost(server: str) -> str:
    address = _hosts.get(server)
    if address is None:
        return ""
    tunnel = _tunnels.get(address)
    if tunnel is not None and tunnel.address == server:
        return f"The worker {address} {tunnel.lost}." if tunnel.lost else ""
    # It may have been connected again since, with another port.
    return _lost.get(address, (0.0, f"The connection to {address} was lost."))[1]


def accelerators(tunnel: Tunnel, first: int) -> list[Accelerator]:
    """Return what a worker lends, as accelerators of this machine.

    first: the number of its first device among llama.cpp's RPC devices.
    """
    return [
        Accelerator(
            name=f"{device.description} of {tunnel.host.address}",
            vendor="other",
            devices=(f"RPC{first + number}",),
            total=device.total,
            free=min(free, device.total),
            shares_ram=False,
            own=min(free, device.total),
            pci=None,
            sources=(),
            worker=tunnel.host.address,
        )
        for number, (device, free) in enumerate(zip(tunnel.offer.devices, tunnel.free, strict=True))
    ]


@atexit.register
def close() -> None:
    """End all connections."""
    with _lock:
        for tunnel in _tunnels.values():
            tunnel.close()
        _tunnels.clear()
