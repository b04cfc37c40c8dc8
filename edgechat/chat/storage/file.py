"""The database file: opening it, and turning its errors into messages for users."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from pathlib import Path

from edgechat.base import paths
from edgechat.base.errors import StoreError, StoreUnwritable
from edgechat.base.sqlite_file import open_read_only, remedy, why_unwritable
from edgechat.chat.storage.migrations import migrate

BUSY_MS = 5_000


def store_path() -> Path:
    """Return the path of the database file, which need not exist."""
    return paths.data_dir() / "chats.db"


def connect(path: Path | None, *, busy_ms: int) -> sqlite3.Connection:
    """Open or create the file (in memory if `path` is None) and migrate its schema.

    busy_ms: how long to wait for other programs' locks. Raises sqlite3.Error, OSError, and StoreError if the
    file has a newer schema.
    """
    if path is not None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Created here, so that only its owner can read it; SQLite gives -wal and -shm the same mode.
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        path.chmod(0o600)
    db = _open(str(path or ":memory:"), busy_ms)
    try:
        if path is not None:
            _use_wal(db, busy_ms)
        _set_up(db)
    except BaseException:
        db.close()
        raise
    return db


def connect_to_read(path: Path, *, busy_ms: int) -> sqlite3.Connection:
    """Open the file as `connect` does, or a copy of it if the file is read-only."""
    try:
        return connect(path, busy_ms=busy_ms)
    except (sqlite3.Error, OSError) as error:
        if not isinstance(store_error(path, error), StoreUnwritable):
            raise
        return copy_in_memory(path, busy_ms=busy_ms)


def copy_in_memory(path: Path, *, busy_ms: int) -> sqlite3.Connection:
    """Return an in-memory copy of a file that cannot be written to, or an empty database if there is no file.

    The copy can be migrated, and its conversations can be continued. Raises the same errors as `connect`.
    """
    copy = _open(":memory:", busy_ms)
    try:
        copy.execute("PRAGMA temp_store = MEMORY")  # temporary files may be on the disk that is full
        if path.exists():
            with contextlib.closing(open_read_only(path, seconds=busy_ms / 1000)) as db:
                db.backup(copy)
        _set_up(copy)
    except BaseException:
        copy.close()
        raise
    return copy


def _open(name: str, busy_ms: int) -> sqlite3.Connection:
    return sqlite3.connect(name, isolation_level=None, check_same_thread=False, timeout=busy_ms / 1000)


def _set_up(db: sqlite3.Connection) -> None:
    db.execute("PRAGMA foreign_keys = ON")
    db.execute("PRAGMA secure_delete = ON")  # overwrite deleted content
    migrate(db)


def damaged(path: Path, flaw: str) -> StoreError:
    """Return the error for a damaged file."""
    return StoreError(
        f"The conversation database is damaged: {path} ({flaw}).",
        hint=f"edgechat does not change it. To start with a new one, rename it: mv '{path}' '{path}.damaged'",
    )


def store_error(path: Path, exc: sqlite3.Error | OSError) -> StoreError:
    """Convert an SQLite or system error to a StoreError."""
    code = getattr(exc, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return damaged(path, str(exc))
    why = why_unwritable(path, exc)
    if why is not None:
        message = f"{why.capitalize()}; conversations cannot be saved to {path}."
        return StoreUnwritable(message, hint=remedy(why))
    if getattr(exc, "sqlite_errorcode", 0) == sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY:
        return deleted_meanwhile()
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreError(
            f"Another program has locked {path}.",
            hint="Close the program that has the file open, then try again.",
        )
    return StoreUnwritable(
        f"The conversations cannot be read or written: {path} ({exc}).",
        hint="Check that the folder exists and is writable, or set EDGECHAT_HOME to another folder.",
    )


def _use_wal(db: sqlite3.Connection, busy_ms: int) -> None:
    # Changing to WAL needs an exclusive lock, and ignores the busy timeout.
    deadline = time.monotonic() + busy_ms / 1000
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as exc:
            if exc.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def deleted_meanwhile() -> StoreError:
    """Return the error for writing to a chat that was deleted."""
    return StoreError("This conversation has been deleted in the meantime.", hint="Start a new one.")


def truncate_wal(db: sqlite3.Connection) -> None:
    """Empty the write-ahead log, which would otherwise keep deleted text while another program uses it."""
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
