"""The user's side of remote workers: ssh with a tunnel to the RPC server, a heartbeat, and open connections.

llama.cpp's client waits forever for a server that hangs, and kills its own process when the connection
breaks. So the heartbeat decides: a worker that does not answer counts as lost, and ssh is killed, which
closes the tunnel. This process connects to each worker once, and stays connected until the worker is lost or
the process ends.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import random
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import IO, Any

import msgspec

from edgechat import settings
from edgechat.base.errors import WorkerRefused
from edgechat.base.network.lenders import SSH_HINT, SshHost, ssh_host, ssh_refusal
from edgechat.base.network.offline import offline_by
from edgechat.base.process import spawn
from edgechat.base.text import figure, one_line
from edgechat.device.accelerators import Accelerator
from edgechat.device.remote.messages import (
    MOST_BYTES,
    FromWorker,
    Offer,
    Ping,
    Pong,
    ToWorker,
    Transfer,
    WorkerRefusal,
)
from edgechat.device.speed import Link

_LOG = logging.getLogger(__name__)
_BEAT = 1.0
_SILENCE = 5.0
"""After this many seconds without an answer, plus the time that the link needs for `_IN_THE_WAY`, a worker
counts as lost.
"""
_IN_THE_WAY = 8 << 20
"""Number of bytes of RPC traffic that may precede a heartbeat in the buffers of ssh and the system."""
_START_SECONDS = 120.0
"""Time limit in seconds. The first start on a machine is slow, because the machine's speed is measured."""
_PORTS, _TRIES = range(20_000, 30_000), 4
_PINGS = 9
_FIRST_TRANSFER, _LAST_TRANSFER, _LONG_ENOUGH = 1 << 18, 1 << 25, 0.25
"""The smallest and largest transfers in bytes, and a time in seconds. Each transfer is four times as large as
the previous one, until one takes longer than this time.
"""
_EXIT_SECONDS = 5.0
_MOST_DEVICES = 16
_NOT_FOUND, _SSH_FAILED = 127, 255
"""Exit codes: the shell cannot find the command; ssh itself failed."""


class Tunnel:
    """A connection to a worker."""

    offer: Offer
    link: Link

    def __init__(self, host: SshHost) -> None:
        """Connect, start the worker there, and measure the link. Raises WorkerRefused."""
        self.host = host
        self.lost = ""
        """Why the worker was lost, as the predicate of a sentence; empty while it answers."""
        self.free: tuple[int, ...] = ()
        """Free bytes on each device, according to the last answer."""
        self._answers: dict[int, Pong] = {}
        self._changed = threading.Condition()
        self._writing = threading.Lock()
        self._number = 0
        self._ended = False
        for attempt in range(_TRIES):
            refusal = self._start(last=attempt == _TRIES - 1)
            if refusal is None:
                break
        threading.Thread(target=self._read, daemon=True, name="worker").start()
        try:
            self.link = self._measured_link()
        except TimeoutError as error:
            self.close()
            raise self._refused(f"{self.lost or 'did not answer'} while the link was measured") from error
        threading.Thread(target=self._beat, daemon=True, name="heartbeat").start()

    @property
    def address(self) -> str:
        """The tunnel's address on this machine, which leads to the RPC server."""
        return f"127.0.0.1:{self._port}"

    def close(self) -> None:
        """End ssh, and with it the worker. Can be called repeatedly."""
        self._ended = True
        self._process.kill()
        self._process.wait()

    def _start(self, *, last: bool) -> WorkerRefusal | None:
        """Start ssh and read the offer. Returns a refusal if it is worth trying another port."""
        import subprocess  # takes 18 ms, and `edgechat --version` does not need it

        self._port, there = spawn.free_port(), random.choice(_PORTS)
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (open as long as the object lives)
        try:
            command = self.host.command(self._port, there)
            self._process: Any = subprocess.Popen(command, **spawn.options(self._log.fileno()))
        except OSError as error:
            why = f"ssh cannot be started: {error.strerror or error}"
            raise WorkerRefused(f"{why}.", hint="Install OpenSSH's client.") from error
        message = self._first()
        if isinstance(message, Offer):
            self.offer = _checked(message)
            self.free = tuple(device.free for device in self.offer.devices)
            _LOG.info(
                "%s lends %d devices, confined by: %s", self.host.address, len(self.free), message.sandbox
            )
            return None
        if message is None:
            with contextlib.suppress(subprocess.TimeoutExpired):  # the exit code says why
                self._process.wait(_EXIT_SECONDS)
        self.close()
        if isinstance(message, WorkerRefusal):
            if message.is_port and not last:
                return message
            text = one_line(message.message, 300)
            raise WorkerRefused(f"{self.host.address}: {text}", hint=one_line(message.hint, 300) or None)
        raise self._not_started()

    def _first(self) -> FromWorker | None:
        """Return the worker's first message, or None if the worker or ssh ends without sending one."""
        timer = threading.Timer(_START_SECONDS, self._process.kill)
        timer.start()
        try:
            line = self._process.stdout.readline(MOST_BYTES)
            return msgspec.json.decode(line, type=FromWorker) if line else None
        except msgspec.DecodeError as error:
            self.close()
            raise self._refused("did not answer like `edgechat worker`") from error
        finally:
            timer.cancel()

    def _not_started(self) -> WorkerRefused:
        """Return the error to raise if ssh ends before the worker sends anything."""
        code, reason = self._process.returncode, self._last_line()
        name, where = self.host.host, " ".join(self.host.destination)
        if code == _NOT_FOUND:
            hint = (
                f"Install edgechat on {name}. If it is installed, name it in the address: "
                f"ssh://{name}/home/you/.local/bin/edgechat"
            )
            return WorkerRefused(f"{self.host.address} has no command {self.host.program}.", hint=hint)
        if code == _SSH_FAILED:
            hint = f"Check that ssh connects without a prompt: ssh -o BatchMode=yes {where} true"
            return WorkerRefused(f"ssh cannot connect to {self.host.address}: {reason}.", hint=hint)
        return self._refused(f"did not start a worker: {reason}")

    def _refused(self, why: str) -> WorkerRefused:
        hint = f"Try: ssh {' '.join(self.host.destination)} {self.host.program} worker"
        return WorkerRefused(f"{self.host.address} {why.removesuffix('.')}.", hint=hint)

    def _last_line(self) -> str:
        self._log.seek(max(0, os.fstat(self._log.fileno()).st_size - MOST_BYTES))
        lines = self._log.read().decode("utf-8", "replace").splitlines()
        last = next((line for line in reversed(lines) if line.strip()), "it gave no reason")
        return one_line(last, 160).rstrip(".")

    def _read(self) -> None:
        """Receive answers until the worker or ssh ends."""
        why = "ended"
        try:
            while line := self._process.stdout.readline(MOST_BYTES):
                answer = msgspec.json.decode(line, type=Pong)
                if answer.free and len(answer.free) != len(self.free):
                    raise ValueError("it has other devices now")
                left = answer.n_bytes
                while left > 0 and (block := self._process.stdout.read(min(left, 1 << 20))):
                    left -= len(block)
                with self._changed:
                    self.free = answer.free or self.free
                    self._answers = {answer.number: answer}
                    self._changed.notify_all()
        except (OSError, ValueError, msgspec.DecodeError):
            why = "sent an invalid answer"
        self._lose(why)

    def _lose(self, why: str) -> None:
        with self._changed:
            if not (self.lost or self._ended):
                self.lost = why
                _LOG.warning("the worker %s %s", self.host.address, why)
            self._changed.notify_all()
        self._process.kill()
        self._process.wait()

    def _send(self, message: ToWorker, payload: bytes = b"") -> None:
        # The reader thread notices a broken pipe.
        with self._writing, contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(msgspec.json.encode(message) + b"\n" + payload)
            self._process.stdin.flush()

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _await(self, number: int, seconds: float) -> None:
        """Wait for an answer. Raises TimeoutError if none arrives or the worker is lost."""
        with self._changed:
            done = self._changed.wait_for(lambda: self.lost or number in self._answers, seconds)
        if self.lost or not done:
            raise TimeoutError

    def _beat(self) -> None:
        """Send heartbeats until the worker is lost or the connection is closed."""
        patience = _SILENCE + _IN_THE_WAY / self.link.up
        while not (self.lost or self._ended):
            ping = Ping(self._next())
            # Sent from a separate thread, since writing blocks if the other side stops reading.
            threading.Thread(target=self._send, args=(ping,), daemon=True, name="ping").start()
            try:
                self._await(ping.number, patience)
            except TimeoutError:
                self._lose(f"has not responded for {figure(patience)} seconds")
            time.sleep(_BEAT)

    def _measured_link(self) -> Link:
        """Measure the link: the shortest of several round trips, and a long transfer in each direction."""
        times = [self._seconds(Ping(self._next())) for _ in range(_PINGS)]
        round_trip = min(times)
        return Link(
            up=self._rate(round_trip, up=True), down=self._rate(round_trip, up=False), round_trip=round_trip
        )

    def _rate(self, round_trip: float, *, up: bool) -> float:
        size = _FIRST_TRANSFER
        while True:
            payload = os.urandom(size) if up else b""
            asked = Transfer(self._next(), up=len(payload), down=0 if up else size)
            taken = max(1e-6, self._seconds(asked, payload) - round_trip)
            if taken > _LONG_ENOUGH or size >= _LAST_TRANSFER:
                return size / taken
            size *= 4

    def _seconds(self, message: Ping | Transfer, payload: bytes = b"") -> float:
        begun = time.perf_counter()
        self._send(message, payload)
        self._await(message.number, _START_SECONDS)
        return time.perf_counter() - begun


def _checked(offer: Offer) -> Offer:
    """Return an offer that is free of impossible values and safe to display."""
    devices = tuple(
        msgspec.structs.replace(
            device,
            name=one_line(device.name, 20),
            description=one_line(device.description, 60),
            total=max(0, device.total),
            free=max(0, min(device.free, device.total)),
            speed=device.speed if device.speed is not None and device.speed.is_sound else None,
        )
        for device in offer.devices[:_MOST_DEVICES]
    )
    return msgspec.structs.replace(
        offer,
        edgechat=one_line(offer.edgechat, 40),
        llama_cpp=one_line(offer.llama_cpp, 40),
        ggml=one_line(offer.ggml, 80),
        cpu=one_line(offer.cpu, 80),
        sandbox=one_line(offer.sandbox, 80),
        devices=devices,
    )


_AGAIN = 300.0
"""Seconds to wait before reconnecting to a lost worker, which would otherwise soon be lost again."""
_NOTICED = 3.0
"""Time to wait, after an engine has died, for the loss of its worker to be noticed, in seconds."""

_connecting = threading.Lock()
"""Held while connecting, which takes seconds."""
_lock = threading.Lock()
"""Guards the following dictionaries. Held only briefly, because the front end's event loop needs it too."""
_tunnels: dict[str, Tunnel] = {}
_lost: dict[str, tuple[float, str]] = {}
"""When and why (as a sentence) workers were lost, keyed by their address as typed."""
_hosts: dict[str, str] = {}
"""Each worker's address as typed, keyed by its present and past addresses on this machine."""


def parsed(address: str) -> SshHost:
    """Parse a worker's address. Raises WorkerRefused."""
    host = ssh_host(address)
    if host is None:
        raise WorkerRefused(ssh_refusal(address), hint=SSH_HINT)
    return host


@dataclass(frozen=True, slots=True)
class LostWorker:
    """A worker that was lost and has not been reconnected."""

    address: str
    why: str
    """The reason, as a sentence."""


def connect(address: str) -> Tunnel | LostWorker:
    """Return the connection to a worker. Connecting, if necessary, takes seconds. Raises WorkerRefused."""
    host = parsed(address)
    if not host.is_loopback and (reason := offline_by() or settings.load().offline):
        by = reason if isinstance(reason, str) else "settings.toml"
        raise WorkerRefused(
            f"{address} is on the network, but edgechat is offline ({by}).",
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
    """Return the addresses of the workers among some RPC servers, as the user typed them."""
    return tuple(_hosts[server] for server in servers if server in _hosts)


def why_lost(servers: Sequence[str], *, wait: bool = False) -> str:
    """Return why a worker among the given RPC servers was lost, as a sentence; '' if none was.

    wait: whether to wait a few seconds for the reason, because an engine may die before the loss of its
    worker is noticed.
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
    # The worker may have been reconnected through another port since then.
    return _lost.get(address, (0.0, f"The connection to {address} was lost."))[1]


def accelerators(tunnel: Tunnel, first: int) -> list[Accelerator]:
    """Return a worker's devices as accelerators of this machine.

    first: the number in llama.cpp's name for the worker's first device, such as 2 in 'RPC2'.
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
