"""AMX, the matrix unit in Intel's server processors: used if llama.cpp computes correctly with it.

Kernels compiled by GCC versions before 13 crash on the first answer: the compiler drops the tile
configuration, believing that it is never read (llama.cpp's pull request 26954). The library does not reveal
its compiler, so a child process tries each build once (`amx_trial.py`), and the outcome is stored.

A process must ask Linux for permission to use AMX. Linux refuses while any thread has a signal stack too
small for the tiles' state (Documentation/arch/x86/xstate.rst, `validate_sigaltstack`). To forbid AMX, we make
llama.cpp ask while there is such a stack.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import msgspec

from edgechat.base import paths
from edgechat.base.errors import FolderError
from edgechat.base.process.ask import ChildFailed, ask

NAME = "AMX"
"""llama.cpp's name for weight buffers in AMX's layout."""
FEATURE = "AMX_INT8"
"""llama.cpp's name for the instruction set."""
VARIABLE = "EDGECHAT_AMX"
"""Environment variable that forbids AMX if set to 0."""
_FILE = "amx.json"
_MAX_FILE_BYTES = 1 << 16
_TIME_LIMIT = 20.0
"""Time limit for the trial, in seconds. It takes half a second, a third of that for importing numpy."""
_SMALL = 8192
"""Size in bytes: enough for AVX-512 (3.5 KiB), as the kernel requires, but not for the 8 KiB of tiles."""


class _SignalStack(ctypes.Structure):
    """Linux's stack_t."""

    _fields_ = (("start", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


class _Outcome(msgspec.Struct, frozen=True):
    """The outcome of the trial for one build."""

    build: str
    failure: str
    """Why AMX is not used, or '' if it is."""


def is_used() -> bool:
    """Return True if AMX is used, according to the stored trial. Takes 0.1 ms and starts no process."""
    return _may_be_there() and (found := _stored()) is not None and not found.failure


def failure() -> str:
    """Return why AMX failed its trial, as a predicate, or '' if it is used, unavailable or forbidden."""
    found = _stored() if _may_be_there() else None
    return found.failure if found is not None else ""


def computes_right(folder: Path) -> bool:
    """Return True if AMX is available and the llama.cpp in `folder` computes correct results with it."""
    if not _may_be_there():
        return False
    files = [(path.name, path.stat()) for path in sorted(folder.glob("*ggml-cpu*"))]
    build = ", ".join(f"{name} {stat.st_size} {stat.st_mtime_ns}" for name, stat in files)
    found = _stored()
    if found is None or found.build != build:
        try:
            found = _Outcome(build, ask("amx", limit=_TIME_LIMIT).decode())
        except ChildFailed as failed:
            found = _Outcome(build, str(failed).partition(" (")[0])
        with contextlib.suppress(OSError, FolderError):
            paths.replace(paths.cache_dir() / _FILE, msgspec.json.encode(found))
    return not found.failure


def _may_be_there() -> bool:
    if sys.platform != "linux" or platform.machine() != "x86_64" or os.environ.get(VARIABLE) == "0":
        return False
    return _processor_has_it()


@cache
def _processor_has_it() -> bool:
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="ascii", errors="replace") as lines:
        flags = next((line for line in lines if line.startswith("flags")), "")
        return " amx_int8" in flags
    return False


def _stored() -> _Outcome | None:
    with contextlib.suppress(OSError, FolderError, msgspec.MsgspecError):
        return msgspec.json.decode(
            paths.read_bytes(paths.cache_dir() / _FILE, _MAX_FILE_BYTES), type=_Outcome
        )
    return None


@contextlib.contextmanager
def refused() -> Iterator[None]:
    """Make Linux deny this process the use of AMX while the context is active."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        yield
        return
    libc = ctypes.CDLL(None)
    memory = ctypes.create_string_buffer(_SMALL)
    small, before = _SignalStack(ctypes.addressof(memory), 0, _SMALL), _SignalStack()
    replaced = libc.sigaltstack(ctypes.byref(small), ctypes.byref(before)) == 0  # False if it is too small
    try:
        yield
    finally:
        if replaced:
            libc.sigaltstack(ctypes.byref(before), None)
