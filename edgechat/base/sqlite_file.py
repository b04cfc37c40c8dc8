"""SQLite files: splitting scripts into statements, and coping with full or read-only disks."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

_SHM_BYTES = 64 * 2**10
"""Twice the initial size of a -shm file; with less space, SQLite reports an I/O error."""
_FULL = "the disk is full"
_DENIED = (errno.EACCES, errno.EPERM)


def why_unwritable(path: Path, error: sqlite3.Error | OSError) -> str | None:
    """Return why a file is not writable ('the disk is full'), or None if the error has another cause."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.ENOSPC or code == sqlite3.SQLITE_FULL:
        return _FULL
    if code == sqlite3.SQLITE_IOERR:
        with contextlib.suppress(OSError):
            if shutil.disk_usage(path.parent).free < _SHM_BYTES:
                return _FULL
    if number == errno.EROFS:
        return "the disk is read-only"
    return "you may not write there" if number in _DENIED or code == sqlite3.SQLITE_READONLY else None


def remedy(why: str) -> str:
    """Return the hint for a file that cannot be written to."""
    return "Free some space." if why == _FULL else "Set EDGECHAT_HOME to a folder that you may write to."


def open_read_only(path: Path, *, seconds: float) -> sqlite3.Connection:
    """Open a file and its -wal without writing anything. Raises sqlite3.Error.

    The connection can be used in any thread. Waits up to `seconds` for locks held by other programs.
    """
    uri = f"{path.absolute().as_uri()}?mode=ro"
    db = _open(uri, seconds)
    try:
        db.execute("SELECT 1 FROM sqlite_master")
    except sqlite3.OperationalError as error:
        db.close()
        if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
            raise
        # No -shm can be created, so nobody is writing to the file, and it needs no locks.
        if not path.with_name(f"{path.name}-wal").exists():
            return _open(f"{uri}&immutable=1", seconds)
        db = _open(f"{uri}&vfs={'win32' if os.name == 'nt' else 'unix'}-none", seconds)
        db.execute("PRAGMA locking_mode = EXCLUSIVE")  # keeps the index of the -wal in memory
    return db


def _open(uri: str, seconds: float) -> sqlite3.Connection:
    return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=seconds)


def statements_of(script: str) -> Iterator[str]:
    """Yield the statements in a script, each ending at a line break, since triggers contain semicolons."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    if statement.strip():
        yield statement
