"""Log files: a worker logs to its stderr, which is its log file; a front end logs to `edgechat.log`.

Both files are private, limited in size and stored in `paths.log_dir()`. They contain nothing that users
wrote: exceptions are logged with their type and traceback, but without their text, which may quote a message.
Errors while writing a log are ignored.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import sys
import traceback
from typing import Literal, TextIO

from edgechat.base import paths
from edgechat.base.errors import FolderError
from edgechat.base.text import printable

MOST_BYTES = 1 << 20
"""Maximum size of a log file; beyond it, a front end starts a new file, and a worker keeps only the second
half.
"""
_BACKUPS = 2
"""Number of older files that a front end keeps."""
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_BRIEF = "%(asctime)s %(message)s"
_DAY = "%Y-%m-%d %H:%M:%S"
_OURS = logging.getLogger("edgechat")


class _Formatter(logging.Formatter):
    """Formats exceptions itself, ignoring what another handler may have cached in the record."""

    def __init__(self, form: str, exceptions: Literal["none", "traceback", "text"]) -> None:
        super().__init__(form, None if form is _FORMAT else _DAY)
        self._exceptions = exceptions

    def format(self, record: logging.LogRecord) -> str:
        record.exc_text, exc_info = None, record.exc_info
        if self._exceptions == "none":
            record.exc_info = None
        try:
            return printable(super().format(record))
        finally:
            record.exc_text, record.exc_info = None, exc_info

    def formatException(self, ei: object) -> str:
        if self._exceptions == "text":
            return super().formatException(ei)  # type: ignore[arg-type]
        parts: list[str] = []
        error = ei[1]  # type: ignore[index]
        while error is not None:
            frames = "".join(traceback.format_tb(error.__traceback__))
            parts.append(f"Traceback (most recent call last):\n{frames}{type(error).__name__}")
            error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        return "\n\n".join(reversed(parts))


class _FrontEndHandler(logging.Handler):
    """Writes `edgechat.log`, which is shared with other processes. Opens it when the first record arrives."""

    def __init__(self) -> None:
        super().__init__()
        self._file: logging.Handler | None = None

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError, FolderError):
            if self._file is None:
                self._file = _open_log()
            self._file.emit(record)


def _open_log() -> logging.Handler:
    from logging.handlers import RotatingFileHandler  # 5 ms, not needed by commands that log nothing

    path = str(paths.log_dir() / "edgechat.log")
    _create(path)
    file = RotatingFileHandler(
        path, maxBytes=MOST_BYTES, backupCount=_BACKUPS, encoding="utf-8", errors="backslashreplace"
    )
    file.rotator = _rotate
    file.setFormatter(_Formatter(_FORMAT, "traceback"))
    return file


def _create(path: str) -> None:
    os.close(paths.private(path, os.O_CREAT | os.O_WRONLY))


def _rotate(source: str, target: str) -> None:
    with contextlib.suppress(OSError):  # Windows cannot rename a file that another edgechat has open
        os.replace(source, target)
    _create(source)


class _WorkerHandler(logging.StreamHandler[TextIO]):
    """Writes to stderr, as native code does, and keeps the log file from growing too large."""

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        with contextlib.suppress(OSError, ValueError):
            _shorten(self.stream.fileno())


def _shorten(fd: int) -> None:
    """Cut a file that is too large down to its second half. It must be open for reading and appending."""
    state = os.fstat(fd)
    if stat.S_ISREG(state.st_mode) and state.st_size > MOST_BYTES:
        os.lseek(fd, -MOST_BYTES // 2, os.SEEK_END)
        end = os.read(fd, MOST_BYTES // 2)
        os.ftruncate(fd, 0)
        os.write(fd, end[end.find(b"\n") + 1 :])


def to_file() -> None:
    """In a front end: send records at INFO and above from edgechat's loggers to `edgechat.log`."""
    if not any(isinstance(handler, _FrontEndHandler) for handler in _OURS.handlers):
        _install(_OURS, _FrontEndHandler())


def to_stderr() -> None:
    """In a worker: send all records to stderr, but edgechat's own only at INFO and above."""
    handler = _WorkerHandler(sys.stderr)
    handler.setFormatter(_Formatter(_FORMAT, "traceback"))
    _install(logging.getLogger(), handler)


def to_terminal(*, verbose: bool, debug: bool) -> None:
    """In a server: also print records, from WARNING upwards.

    verbose: whether to print INFO records too. debug: whether to print full exceptions.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(logging.INFO if verbose else logging.WARNING)
    handler.setFormatter(_Formatter(_BRIEF, "text" if debug else "none"))
    _install(logging.getLogger("edgechat.server"), handler)


def _install(logger: logging.Logger, handler: logging.Handler) -> None:
    logging.raiseExceptions = False  # do not report on stderr that a record could not be written
    _OURS.setLevel(logging.INFO)
    logger.addHandler(handler)
