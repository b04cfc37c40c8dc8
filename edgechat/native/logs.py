"""llama.cpp's log, sent to stderr (a child's log file), with the last errors kept for messages."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import llama_cpp.llama_cpp as lib

_WARN, _ERROR = 3, 4
_KEPT = 16

# llama.cpp has no code for want of memory. Known by whole messages, as the sources of llama.cpp and ggml have
# them: names out of a file, and the path to it, stand in other messages, and may say anything.
_BEFORE = r"(?:\w+: )?(?:error: )?(?:error loading model: |failed to initialize the context: )?"
_SIZE = r" *[\d.]+ Mi?B"
_MESSAGES = (
    # ggml, for every device
    r"failed to allocate (?:\S+ )?buffer of size \d+",
    r"(?:insufficient memory|unknown allocation error) \(attempted to allocate" + _SIZE + r"\)",
    # llama.cpp
    r"unable to allocate \S+ buffer",
    r"failed to allocate compute (?:pp |tg )?buffers",
    r"failed to allocate buffer for (?:(?:kv|rs) cache|DSV4 compressor state)",
    r"failed to allocate output buffer of size" + _SIZE,
    r"failed to reserve initial output buffer",
    r"mmap failed: Cannot allocate memory",
    r"posix_memalign failed with error 12",
    r"std::bad_alloc",
    # CUDA and HIP, Metal, Vulkan, SYCL
    r"allocating" + _SIZE + r" on device \d+: \w+ failed: out of memory",
    r"failed to allocate buffer, size =" + _SIZE,
    r"Device memory allocation of size \d+ failed\.?",
    r"[\w :]+: ErrorOutOf(?:Device|Host)Memory",
    r"can't allocate \d+ Bytes of memory on (?:device|host)",
)
_NO_MEMORY = re.compile(_BEFORE + "(?:" + "|".join(_MESSAGES) + ")")

last_errors: list[str] = []
"""The first errors that llama.cpp logged; callers clear it before a call."""


@lib.llama_log_callback  # type: ignore[untyped-decorator]
def _receive(level: int, text: bytes, _user: Any) -> None:
    line = text.decode("utf-8", "replace")
    if level == _ERROR and line.strip() and len(last_errors) < _KEPT:
        last_errors.append(line.strip())
    if level in (_WARN, _ERROR):
        sys.stderr.write(line)
        sys.stderr.flush()


@lib.llama_log_callback  # type: ignore[untyped-decorator]
def _receive_all(level: int, text: bytes, user: Any) -> None:
    if level not in (_WARN, _ERROR):
        sys.stderr.write(text.decode("utf-8", "replace"))
    _receive(level, text, user)


def install(*, verbose: bool = False) -> None:
    """Take over llama.cpp's log for the life of this process; `verbose` writes all of it."""
    lib.llama_log_set(_receive_all if verbose else _receive, None)


@contextlib.contextmanager
def recording() -> Iterator[list[str]]:
    """Give a list to which all lines are added that llama.cpp logs meanwhile."""
    lines: list[str] = []

    @lib.llama_log_callback  # type: ignore[untyped-decorator]
    def record(level: int, text: bytes, user: Any) -> None:
        lines.append(text.decode("utf-8", "replace"))
        _receive(level, text, user)

    lib.llama_log_set(record, None)
    try:
        yield lines
    finally:
        install()


def ran_out(errors: Iterable[str]) -> bool:
    """Say whether one of these errors in llama.cpp's log tells that memory was not to be had."""
    return any(_NO_MEMORY.fullmatch(line.strip()) for line in errors)
