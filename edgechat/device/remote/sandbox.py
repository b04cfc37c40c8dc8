"""Confines this process with what Linux offers without privileges; elsewhere there is nothing.

By landlock (Linux 5.13, more with each version: https://docs.kernel.org/userspace-api/landlock.html), the
process reads only programs, libraries and devices, writes only below one folder, listens on one port and
connects to nothing. Where the kernel has no landlock, it gets a user namespace of its own.
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

_LOG = logging.getLogger(__name__)

_CREATE, _ADD, _RESTRICT = 444, 445, 446
"""Numbers of the system calls, on all architectures."""
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
"""Abstract sockets and signals of processes outside."""
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
    """Confine this thread and those that it starts from now on; return by what, as text; '' for nothing.

    writable: the folder that may be written to. port: what may be listened on.
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
        steps.append("a user namespace of its own")
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
            rule = _Port(_BIND | _CONNECT, port)  # it looks whether it listens
            libc.syscall(_ADD, ruleset, _PORT, ctypes.byref(rule), 0)
        return bool(libc.syscall(_RESTRICT, ruleset, 0) == 0)
    finally:
        os.close(ruleset)


def _readable() -> Iterator[Path]:
    """Yield what libraries and drivers read, and where this program lies: packaged, in its executable."""
    here: Iterable[str] = (sys.prefix, sys.base_prefix, sys.executable, *sys.path)
    package = str(Path(__file__).parents[3])
    for name in dict.fromkeys((*_READABLE, *here, package)):
        if name and Path(name) != Path("/"):
            yield Path(name)


def _allow(libc: ctypes.CDLL, ruleset: int, path: Path, access: int) -> None:
    """Allow access below a path; what is not there needs none."""
    try:
        folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        rule = _Path(access if path.is_dir() else access & _OF_FILES, folder)
        libc.syscall(_ADD, ruleset, _PATH, ctypes.byref(rule), 0)
    finally:
        os.close(folder)
