"""The file of the conversations: how it is opened, and what its errors mean to people."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import time
from pathlib import Path

from edgechat.base.errors import StoreError, StoreUnwritable
from edgechat.chat.storage.migrations import migrate

_LITTLE_ROOM = 64 * 2**10


def connect(path: Path | None, *, busy_ms: int) -> sqlite3.Connection:
    """Open or make the file (None: in memory), bring it to this schema, and wait so long for other programs.

    Raises sqlite3.Error, OSError, and StoreError where it is of a newer schema.
    """
    if path is not None:
        # Made first and by us, so that it is nobody else's to read; SQLite gives -wal and -shm its mode.
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        path.chmod(0o600)
    db = sqlite3.connect(
        path or ":memory:", isolation_level=None, check_same_thread=False, timeout=busy_ms / 1000
    )
    try:
        if path is not None:
            _use_wal(db, busy_ms)
        db.execute("PRAGMA foreign_keys = ON")
        db.execute("PRAGMA secure_delete = ON")  # what is deleted is not to be read in the file
        migrate(db)
    except BaseException:
        db.close()
        raise
    return db


def damaged(path: Path, flaw: str) -> StoreError:
    """Return the error of a file whose parts do not hold together."""
    return StoreError(
        f"The database of conversations is damaged: {path} ({flaw}).",
        hint=f"edgechat does not change it. To start with a new one, rename it: mv '{path}' '{path}.damaged'",
    )


def store_error(path: Path, exc: sqlite3.Error | OSError) -> StoreError:
    """Return what SQLite or the system says in words for people."""
    code = getattr(exc, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return damaged(path, str(exc))
    if code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and _has_no_room(path)):
        return StoreUnwritable(
            f"The disk is full; the conversation cannot be saved to {path}.", hint="Free some space."
        )
    if getattr(exc, "sqlite_errorcode", 0) == sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY:
        return deleted_meanwhile()
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreError(
            f"Another program has locked {path}.",
            hint="Close the program that has the file open, then send again.",
        )
    return StoreUnwritable(
        f"The conversations cannot be read or written: {path} ({exc}).",
        hint="Check that the folder exists and is writable, or set EDGECHAT_HOME to another folder.",
    )


def _use_wal(db: sqlite3.Connection, busy_ms: int) -> None:
    # The change to WAL needs the file for itself and does not wait on the busy timeout.
    give_up = time.monotonic() + busy_ms / 1000
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as exc:
            if exc.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > give_up:
                raise
            time.sleep(0.02)


def _has_no_room(path: Path) -> bool:
    # SQLite calls it an error of the disk where the 32 KiB of its -shm do not fit.
    with contextlib.suppress(OSError):
        return shutil.disk_usage(path.parent).free < _LITTLE_ROOM
    return False


def deleted_meanwhile() -> StoreError:
    """Return the error of whoever writes in a chat that is gone."""
    return StoreError("This conversation was deleted meanwhile.", hint="Begin a new one.")
