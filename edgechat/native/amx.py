"""Keep llama.cpp from computing with AMX, the matrix unit of Intel's server processors.

Its kernels end the process in the first answer where GCC before 13 compiled them: the tiles are configured
with what the compiler dropped as never read (llama.cpp's pull request 26954 mends it in the source). Nobody
can tell from a library which compiler that was, and no laptop has AMX; vectors compute all the same.

A process must ask Linux for AMX, and Linux refuses while a thread has a signal stack too small for the state
of the tiles (Documentation/arch/x86/xstate.rst, `validate_sigaltstack`). So llama.cpp is made to ask then.
"""

from __future__ import annotations

import contextlib
import ctypes
import platform
import sys
from collections.abc import Iterator

_SMALL = 8192
"""Bytes. Enough for AVX-512 (3.5 KiB), which the kernel wants; not for the tiles' 8 KiB besides."""


class _SignalStack(ctypes.Structure):
    """stack_t of Linux."""

    _fields_ = (("start", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


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
