"""The worker's side: an RPC server in a sandbox, in a process that also answers heartbeats.

The server computes in a thread, so an answered heartbeat shows that the process is running. The process exits
when its standard input ends, its parent is gone, or the heartbeats stop.

Linux offers a sandbox that needs no privileges. With landlock (since 5.13, extended in later versions:
https://docs.kernel.org/userspace-api/landlock.html), the process can read only programs, libraries and
devices, write only below one folder, and use only one port. Without landlock, it gets a separate user
namespace. On other systems there is no sandbox.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NoReturn

import msgspec
import psutil

from edgechat.base import paths
from edgechat.base.errors import EdgechatError
from edgechat.base.process import spawn
from edgechat.device.memory import read_memory
from edgechat.device.remote.messages import (
    CPU,
    MOST_BYTES,
    MOST_TRANSFER,
    LentDevice,
    Offer,
    Ping,
    Pong,
    ToWorker,
    Transfer,
    WorkerRefusal,
)
from edgechat.native import ggml
from edgechat.native.accelerators import rpc

_LOG = logging.getLogger(__name__)
_SILENCE = 60.0
"""After the first heartbeat, the user is considered gone if no more arrive for this many seconds. Without
this limit, sshd would wait for hours if the network failed.
"""
_START_SECONDS = 30.0
_CACHE_BYTES, _CACHE_SHARE = 32 << 30, 0.2
"""Limits on the size of the tensor cache: in bytes, and as a fraction of the free disk space."""
_TRIM_SECONDS = 10.0


def serve(offer: Offer, pipes: tuple[BinaryIO, BinaryIO], *, cached: bool = True) -> NoReturn:
    """Announce an offer on the outgoing pipe, and serve it until the incoming pipe ends.

    offer: port 0 means any free port. cached: whether to cache large tensors on disk and sandbox the process.
    """
    incoming, outgoing = pipes
    cache = _cache_folder() if cached else None
    try:
        port = spawn.free_port(offer.port)
    except OSError as error:
        send(outgoing, WorkerRefusal(f"Port {offer.port} cannot be used: {error.strerror}.", is_port=True))
        raise SystemExit(1) from error
    ggml.start()  # drivers must be loaded before the sandbox starts
    confined = "" if cache is None else confine(cache, port)
    names = [device.name for device in offer.devices]
    threading.Thread(target=_run, args=(port, names, offer.threads, cache), daemon=True, name="rpc").start()
    _await(port)
    answers = _Answers(offer.devices, incoming, outgoing, cache)  # the parent may exit once it has the offer
    send(outgoing, msgspec.structs.replace(offer, port=port, sandbox=confined))
    answers.run()
    os._exit(0)  # the server's thread never ends


def main() -> None:
    """Serve the offer in the first line of input. Runs in a child process that measures this machine."""
    incoming, outgoing = spawn.adopt_pipe()
    if line := incoming.readline(MOST_BYTES):
        serve(msgspec.json.decode(line, type=Offer), (incoming, outgoing), cached=False)


def send(outgoing: BinaryIO, message: Offer | WorkerRefusal | Pong) -> None:
    """Write a message as one line."""
    outgoing.write(msgspec.json.encode(message) + b"\n")
    outgoing.flush()


def _run(port: int, devices: list[str], threads: int, cache: Path | None) -> None:
    try:
        rpc.serve(port, devices, threads, cache)
    except EdgechatError as error:
        _LOG.error("%s", error.message)
    _LOG.error("llama.cpp's RPC server has ended")
    os._exit(1)


def _await(port: int) -> None:
    """Wait until the server is listening, by trying to connect to it."""
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=_START_SECONDS):
                return
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


class _Answers:
    def __init__(
        self, devices: tuple[LentDevice, ...], incoming: BinaryIO, outgoing: BinaryIO, cache: Path | None
    ) -> None:
        self._devices = devices
        self._incoming, self._outgoing = incoming, outgoing
        self._cache = cache
        self._heard = 0.0
        self._before = _resident()
        self._parent = os.getppid()
        threading.Thread(target=self._watch, daemon=True, name="watch").start()

    def run(self) -> None:
        """Answer messages until the pipe ends or breaks."""
        decoder = msgspec.json.Decoder(ToWorker)
        with contextlib.suppress(OSError, msgspec.DecodeError):
            while line := self._incoming.readline(MOST_BYTES):
                self._answer(decoder.decode(line))
                self._heard = time.monotonic()

    def _answer(self, message: ToWorker) -> None:
        match message:
            case Ping(number):
                send(self._outgoing, Pong(number, tuple(map(self._free, self._devices))))
            case Transfer(number, up, down):
                self._skip(min(up, MOST_TRANSFER))
                down = min(down, MOST_TRANSFER)
                send(self._outgoing, Pong(number, n_bytes=down))
                block = memoryview(os.urandom(1 << 20))
                while down > 0:
                    down -= self._outgoing.write(block[:down])
                self._outgoing.flush()

    def _skip(self, n_bytes: int) -> None:
        while n_bytes > 0 and (block := self._incoming.read(min(n_bytes, 1 << 20))):
            n_bytes -= len(block)

    def _free(self, device: LentDevice) -> int:
        if device.name != CPU:
            return min(device.total, ggml.device_memory(ggml.device_handles((device.name,))[0]))
        lent = max(0, _resident() - self._before)
        return max(0, min(device.total - lent, read_memory().available))

    def _watch(self) -> None:
        """End the process once the user is gone, and keep the cache within its size limit."""
        trimmed = time.monotonic()
        while True:
            time.sleep(1.0)
            silent = self._heard and time.monotonic() - self._heard > _SILENCE
            if silent or os.getppid() != self._parent:
                os._exit(0)
            if self._cache is not None and time.monotonic() - trimmed > _TRIM_SECONDS:
                trim(self._cache)
                trimmed = time.monotonic()


def _resident() -> int:
    return int(psutil.Process().memory_info().rss)


def _cache_folder() -> Path:
    """Return the tensor cache folder after trimming it. Raises FolderError."""
    folder = paths.cache_dir() / "tensors"
    folder.mkdir(mode=0o700, exist_ok=True)
    trim(folder)
    return folder


def trim(folder: Path, most: int | None = None) -> None:
    """Delete the oldest tensors beyond `most` bytes. None means 32 GiB, or less on a small disk."""
    files: list[tuple[float, int, str]] = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            status = entry.stat()
            files.append((status.st_mtime, status.st_size, entry.path))
    total = sum(size for _, size, _ in files)
    if most is None:
        most = min(_CACHE_BYTES, int(_CACHE_SHARE * (total + psutil.disk_usage(str(folder)).free)))
    for _, size, path in sorted(files):
        if total <= most:
            return
        with contextlib.suppress(OSError):
            os.unlink(path)
            total -= size


_CREATE, _ADD, _RESTRICT = 444, 445, 446
"""System call numbers, which are the same on all architectures."""
_VERSION, _PATH, _PORT = 1, 1, 2
_SET_NO_NEW_PRIVS = 38
_NEW_USER = 0x10000000
_EXECUTE, _WRITE, _READ, _LIST, _REMOVE, _MAKE, _TRUNCATE, _IOCTL = (
    1 << bit for bit in (0, 1, 2, 3, 5, 8, 14, 15)
)
_ALL_OF_FIRST = (1 << 13) - 1
_OF_FILES = _EXECUTE | _WRITE | _READ | _TRUNCATE | _IOCTL
_BIND, _CONNECT = 1, 2
_SCOPES = 3
"""Scopes that forbid connecting to other processes' abstract sockets and sending them signals."""
_READABLE = (
    *("/usr", "/lib", "/lib32", "/lib64", "/opt", "/nix/store", "/run/opengl-driver", "/sys", "/dev"),
    *("/etc/ld.so.cache", "/etc/OpenCL", "/etc/vulkan", "/etc/localtime", "/proc/self", "/proc/sys"),
    *("/proc/cpuinfo", "/proc/devices", "/proc/driver", "/proc/meminfo", "/proc/modules", "/proc/stat"),
)


class _Ruleset(ctypes.Structure):
    """struct landlock_ruleset_attr."""

    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scopes", ctypes.c_uint64))


class _Path(ctypes.Structure):
    """struct landlock_path_beneath_attr, which is packed."""

    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32))


class _Port(ctypes.Structure):
    """struct landlock_net_port_attr."""

    _fields_ = (("allowed", ctypes.c_uint64), ("port", ctypes.c_uint64))


def confine(writable: Path, port: int) -> str:
    """Confine this thread and all threads it starts later. Return a description, or '' if that fails.

    writable: the only folder that may be written to. port: the only port to listen on.
    """
    if sys.platform != "linux":
        return ""
    libc = ctypes.CDLL(None, use_errno=True)
    steps: list[str] = []
    if libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0:
        steps.append("no new privileges")
        version = libc.syscall(_CREATE, None, 0, _VERSION)
        if version > 0 and _landlock(libc, version, writable, port):
            steps.append(f"landlock {version}")
    if len(steps) < 2 and libc.unshare(_NEW_USER) == 0:
        steps.append("a separate user namespace")
    if len(steps) < 2:
        _LOG.warning("the system offers no sandbox: %s", os.strerror(ctypes.get_errno()))
    return ", ".join(steps)


def _landlock(libc: ctypes.CDLL, version: int, writable: Path, port: int) -> bool:
    files = _ALL_OF_FIRST | sum(1 << bit for bit, since in ((13, 2), (14, 3), (15, 5)) if version >= since)
    rules = _Ruleset(files, _BIND | _CONNECT if version >= 4 else 0, _SCOPES if version >= 6 else 0)
    size = 8 * (1 + (version >= 4) + (version >= 6))
    ruleset = libc.syscall(_CREATE, ctypes.byref(rules), size, 0)
    if ruleset < 0:
        return False
    try:
        reading, writing = _READ | _LIST | _EXECUTE, _READ | _LIST | _WRITE | _MAKE | _REMOVE | _TRUNCATE
        allowed = [(path, reading) for path in _readable()]
        allowed += [(writable, writing), (Path("/dev"), _READ | _LIST | _WRITE | _IOCTL)]
        for path, access in allowed:
            _allow(libc, ruleset, path, access & files)
        if version >= 4:
            rule = _Port(_BIND | _CONNECT, port)  # connecting lets the process check that it is listening
            libc.syscall(_ADD, ruleset, _PORT, ctypes.byref(rule), 0)
        return bool(libc.syscall(_RESTRICT, ruleset, 0) == 0)
    finally:
        os.close(ruleset)


def _readable() -> Iterator[Path]:
    """Yield the paths that libraries and drivers read, and the paths of this program."""
    here: Iterable[str] = (sys.prefix, sys.base_prefix, sys.executable, *sys.path)
    package = str(Path(__file__).parents[3])
    for name in dict.fromkeys((*_READABLE, *here, package)):
        if name and Path(name) != Path("/"):
            yield Path(name)


def _allow(libc: ctypes.CDLL, ruleset: int, path: Path, access: int) -> None:
    """Allow access to everything below a path, if the path exists."""
    try:
        folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        rule = _Path(access if path.is_dir() else access & _OF_FILES, folder)
        libc.syscall(_ADD, ruleset, _PATH, ctypes.byref(rule), 0)
    finally:
        os.close(folder)
