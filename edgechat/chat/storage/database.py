"""A database file, and the thread that accesses it so that the event loop never waits for a disk."""

from __future__ import annotations

import asyncio
import functools
import sqlite3
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from edgechat.base.errors import StoreError
from edgechat.chat.storage.file import connect, copy_in_memory, store_error

P = ParamSpec("P")
T = TypeVar("T")


class Database:
    """A database file with its own thread for all calls. When a call returns, the file has been written."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        """The path of the file, or None for a database in memory."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._db: sqlite3.Connection | None = None

    async def _connect(self, busy_ms: int, *, copied: Path | None = None) -> None:
        """Open or create the file. Raises StoreError; a file that cannot be read is left unchanged.

        copied: a file that cannot be written to; an in-memory copy of it is opened instead.
        """
        if copied is not None:
            self._db = await self._on_thread(lambda: copy_in_memory(copied, busy_ms=busy_ms))
        else:
            self._db = await self._on_thread(lambda: connect(self.path, busy_ms=busy_ms))

    async def _disconnect(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            await self._on_thread(db.close)
        self._thread.shutdown(wait=False)

    async def _call(
        self,
        statement: Callable[Concatenate[sqlite3.Connection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        db = self._db
        if db is None:
            raise closed()
        return await self._on_thread(lambda: statement(db, *args, **kwargs))

    async def _on_thread(self, work: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, work)
        except (sqlite3.Error, OSError) as exc:
            raise store_error(self.path or Path("memory"), exc) from exc


def method(
    statement: Callable[Concatenate[sqlite3.Connection, P], T],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Return a Database method that calls `statement` with the connection, on the database's thread."""

    @functools.wraps(statement)
    async def call(self: Database, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._call(statement, *args, **kwargs)

    return call


def closed() -> StoreError:
    """Return the error for using a closed database."""
    return StoreError("The conversation database is closed.")
