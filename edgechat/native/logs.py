"""llama.cpp's log, forwarded to our own log. Its errors are also stored, to be quoted in messages."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import llama_cpp.llama_cpp as lib

from edgechat.base.errors import LoadFailed, OutOfMemory

_LOG = logging.getLogger("llama.cpp")
_LEVELS = {3: logging.WARNING, 4: logging.ERROR}
_MAX_ERRORS = 16

# llama.cpp has no error code for running out of memory, so entire messages from the source code of llama.cpp
# and ggml are matched. Other messages quote file paths and names found in files, which may say anything.
_BEFORE = r"(?:\w+: )?(?:error: )?(?:error loading model: |failed to initialize the context: )?"
_SIZE = r" *[\d.]+ Mi?B"
_MESSAGES = (
    # ggml, for all devices
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
"""The first errors in llama.cpp's log. Callers clear the list before each call."""


@lib.llama_log_callback  # type: ignore[untyped-decorator]
def _receive(level: int, text: bytes, _user: Any) -> None:
    python_level, line = _LEVELS.get(level), text.decode("utf-8", "replace").strip()
    if python_level is None or not line:
        return
    if python_level == logging.ERROR and len(last_errors) < _MAX_ERRORS:
        last_errors.append(line)
    _LOG.log(python_level, "%s", line)


_logs: list[Callable[[Any, None], None]] = [lib.llama_log_set]
_current: list[Any] = [_receive]
"""The current receiver of log lines."""


def install() -> None:
    """Redirect llama.cpp's log to ours for the rest of this process."""
    _send_to(_receive)


def add(set_log: Callable[[Any, None], None]) -> None:
    """Redirect another library's log as well, given the function that sets its receiver."""
    if set_log not in _logs:
        _logs.append(set_log)
        set_log(_current[0], None)


def _send_to(receiver: Any) -> None:
    _current[0] = receiver
    for set_log in _logs:
        set_log(receiver, None)


@contextlib.contextmanager
def recording() -> Iterator[list[str]]:
    """Collect all lines that llama.cpp logs while the context is active."""
    lines: list[str] = []
    with listening(lines.append):
        yield lines


@contextlib.contextmanager
def listening(on_text: Callable[[str], None]) -> Iterator[None]:
    """Call `on_text` with each line, or part of a line, that llama.cpp logs while the context is active."""

    @lib.llama_log_callback  # type: ignore[untyped-decorator]
    def record(level: int, text: bytes, user: Any) -> None:
        on_text(text.decode("utf-8", "replace"))
        _receive(level, text, user)

    _send_to(record)
    try:
        yield
    finally:
        install()


def ran_out(errors: Iterable[str]) -> bool:
    """Return True if any of these errors says that memory ran out."""
    return any(_NO_MEMORY.fullmatch(line.strip()) for line in errors)


def refusal() -> type[LoadFailed]:
    """Return the exception class that matches the logged errors."""
    return OutOfMemory if ran_out(last_errors) else LoadFailed


def cause() -> str:
    """Return the first logged error, which is the cause; later ones only say that something failed."""
    if not last_errors:
        return "it gave no reason"
    return re.sub(r"^\w+: ", "", last_errors[0])  # drop the name of the C function
