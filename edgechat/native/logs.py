"""llama.cpp's log, sent to stderr (a child's log file), with the last errors kept for messages."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import llama_cpp.llama_cpp as lib

_WARN, _ERROR = 3, 4
_KEPT = 16

last_errors: list[str] = []
"""The first errors that llama.cpp logged; whoever is about to call clears it."""


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
