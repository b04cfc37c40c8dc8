"""AMX, the matrix unit of Intel's server processors: used where llama.cpp computes right with it.

Where GCC before 13 compiled its kernels they end the process in the first answer: the tiles are configured
with what the compiler dropped as never read (llama.cpp's pull request 26954). Nobody can tell from a library
which compiler that was, so a child multiplies with each build once (`amx_trial.py`); the outcome is stored.

A process must ask Linux for AMX, and Linux refuses while a thread has a signal stack too small for the state
of the tiles (Documentation/arch/x86/xstate.rst, `validate_sigaltstack`). So llama.cpp is made to ask then.
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
"""llama.cpp's name of the buffers of weights that are laid out for it."""
FEATURE = "AMX_INT8"
"""The instruction set, as llama.cpp calls it."""
VARIABLE = "EDGECHAT_AMX"
"""The environment variable that forbids AMX with 0."""
_FILE = "amx.json"
_MAX_FILE_BYTES = 1 << 16
_TIME_LIMIT = 20.0
"""Seconds. The trial takes half a second, of which numpy is a third."""
_SMALL = 8192
"""Bytes. Enough for AVX-512 (3.5 KiB), which the kernel wants; not for the tiles' 8 KiB besides."""


class _SignalStack(ctypes.Structure):
    """stack_t of Linux."""

    _fields_ = (("start", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


class _Outcome(msgspec.Struct, frozen=True):
    """What the trial of a build came to."""

    build: str
    failure: str
    """Why AMX is not used; empty: it is."""


def is_used() -> bool:
    """Return whether AMX is used, as far as was tried. Takes a tenth of a millisecond, and starts nothing."""
    return _may_be_there() and (found := _stored()) is not None and not found.failure


def failure() -> str:
    """Return why AMX is not used, as the predicate of a sentence; '' if it is, or not there, or forbidden."""
    found = _stored() if _may_be_there() else None
    return found.failure if found is not None else ""


def computes_right(folder: Path) -> bool:
    """Return whether AMX is there, and the llama.cpp in a folder computes right with it."""
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
    """See that nobody in this process is granted AMX meanwhile."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        yield
        return
    libc = ctypes.CDLL(None)
    memory = ctypes.create_string_buffer(_SMALL)
    small, before = _SignalStack(ctypes.addressof(memory), 0, _SMALL), _SignalStack()
    replaced = libc.sigaltstack(ctypes.byref(small), ctypes.byref(before)) == 0  # or its minimum is larger
    try:
        yield
    finally:
        if replaced:
            libc.sigaltstack(ctypes.byref(before), None)
