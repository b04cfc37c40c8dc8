"""The conversations on disk: one SQLite file, written before anything is computed.

Every call runs on the store's own thread, so the event loop never waits for a disk; awaiting a call means
that its words are in the file. Several programs may use one file at once. A store may also be in memory
alone, for what is not to be kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from edgechat import paths
from edgechat.chat import statements
from edgechat.chat.migrations import migrate
from edgechat.chat.records import Chat, Front, Listed, Turn
from edgechat.errors import ChatNotFound, FolderError, StoreError
from edgechat.owner import Owner, this_process
from edgechat.text import one_line

_P = ParamSpec("_P")
_T = TypeVar("_T")

_BUSY_MS = 5_000
_LITTLE_ROOM = 64 * 2**10


def store_path() -> Path:
    """Return the path of the file, which need not exist."""
    return paths.data_dir() / "chats.db"


class Store:
    """The conversations of one file. Open it with `Store.open` or `Store.in_memory`, and close it."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        """None: it is in memory."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._db: sqlite3.Connection | None = None
        self._owner: Owner | None = None
        self._owed: dict[str, Turn] = {}
        """The last words of replies that could not be written yet, by the turn's id."""

    @classmethod
    async def open(cls, path: Path) -> Store:
        """Open or make the file, bring it to this schema, and mark the replies of dead programs.

        Raises StoreError; a file that cannot be read is left as it is.
        """
        store = cls(path)
        await store._begin()
        return store

    @classmethod
    async def in_memory(cls) -> Store:
        """Return an empty store that is gone when it is closed, and touches no disk."""
        store = cls(None)
        await store._begin()
        return store

    @property
    def lasting(self) -> bool:
        """Whether what is in it outlives the program."""
        return self.path is not None

    async def close(self) -> None:
        """Finish what is being written and let go of the file. Raises StoreError if words are lost by it."""
        try:
            if self._db is not None:
                await self._write_owed()
        except StoreError as exc:
            raise StoreError(f"The end of a reply is lost. {exc.message}", hint=exc.hint) from exc
        finally:
            db, self._db = self._db, None
            if db is not None:
                await self._on_thread(db.close)
            self._thread.shutdown(wait=False)

    async def add_turn(self, turn: Turn, *, chat: Chat | None = None, system: Turn | None = None) -> bool:
        """Append a turn. `chat` is the conversation that it begins, if it does, `system` a turn before it.

        False, and nothing is written, for a question where another program has asked one meanwhile.
        """
        owner = self._owner if turn.state == "streaming" else None
        await self._write_owed()
        return await self._call(statements.insert_turn, turn, owner, chat, system)

    async def update_turn(self, turn: Turn) -> None:
        """Write the text and the state that a reply has now.

        Raises StoreError; the next turn that is written, or `close`, then writes it as well.
        """
        self._owed[turn.id] = turn
        try:
            await self._write_owed()
        except StoreError as exc:
            later = "What is missing is saved with your next message, or as edgechat ends."
            raise StoreError(exc.message, hint=f"{exc.hint} {later}" if exc.hint else later) from exc

    async def delete_turn(self, turn_id: str) -> None:
        """Delete a turn and all that answers it."""
        await self._call(statements.delete_turn, turn_id)

    async def note_use(self, chat_id: str, model: str, front: Front) -> None:
        """Note which model writes in a chat now, and where."""
        await self._call(statements.note_use, chat_id, model, front)

    async def chats(self, limit: int = 100) -> list[Chat]:
        """Return the chats, the one that was used last first."""
        return await self._call(statements.chats, limit)

    async def listed(self, limit: int) -> list[Listed]:
        """Return the chats as a list shows them, the one that was used last first."""
        return await self._call(statements.listed, limit)

    async def latest(self, front: Front) -> Chat | None:
        """Return the chat that was used last of those held at `front`, or None."""
        return await self._call(statements.latest, front)

    async def find(self, prefix: str) -> Chat:
        """Return the chat whose id begins so. Raises ChatNotFound where there is none, or more than one."""
        prefix = prefix.strip().lower()
        found = await self._call(statements.beginning_with, prefix) if prefix else []
        if len(found) == 1:
            return found[0]
        shown = one_line(prefix, 40)
        if not found:
            raise ChatNotFound(
                f"There is no conversation {shown!r}.", hint="This lists them with their ids: edgechat chats"
            )
        names = [f"{one.id[:12]} ({one_line(one.title, 30)})" for one in found[:3]]
        names += ["…"] * (len(found) > 3)
        raise ChatNotFound(
            f"The ids of {len(found)} conversations begin with {shown!r}: {', '.join(names)}.",
            hint="Give more of the id; this lists them: edgechat chats",
        )

    async def load(self, chat_id: str) -> tuple[Chat, list[Turn]]:
        """Return a chat and all its turns in the order of writing. Raises ChatNotFound."""
        await self._call(statements.interrupt_orphans)
        chat = await self._call(statements.chat, chat_id)
        if chat is None:
            raise ChatNotFound(f"There is no conversation {chat_id!r}.")
        return chat, await self._call(statements.turns, chat_id)

    async def delete(self, chat_id: str) -> None:
        """Delete a chat, its turns, and what the engine has computed of it on disk."""
        await self._call(statements.delete_chat, chat_id)
        if self.lasting:
            await self._on_thread(lambda: _forget_state(chat_id))

    async def check(self) -> None:
        """Read the whole file. Raises StoreError where its parts do not hold together."""
        flaw = await self._call(statements.flaw)
        if flaw is not None and self.path is not None:
            raise _damaged(self.path, flaw)

    async def preference(self, name: str) -> str | None:
        """Return what was remembered under a name, or None."""
        return await self._call(statements.preference, name)

    async def set_preference(self, name: str, value: str) -> None:
        """Remember a value under a name, for the next start."""
        await self._call(statements.set_preference, name, value)

    async def _begin(self) -> None:
        try:
            await self._on_thread(self._connect)
            await self._call(statements.interrupt_orphans)
            if self.lasting:
                await self._call(_prune_states)
        except BaseException:
            await self.close()
            raise

    async def _write_owed(self) -> None:
        for turn_id in list(self._owed):
            # Read anew each time: another call may have written it meanwhile, or brought more words.
            turn = self._owed.get(turn_id)
            if turn is not None:
                await self._call(statements.update_turn, turn)
                if self._owed.get(turn_id) is turn:
                    del self._owed[turn_id]

    async def _call(
        self,
        statement: Callable[Concatenate[sqlite3.Connection, _P], _T],
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> _T:
        db = self._db
        if db is None:
            raise StoreError("The conversations are closed.")
        return await self._on_thread(lambda: statement(db, *args, **kwargs))

    async def _on_thread(self, work: Callable[[], _T]) -> _T:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, work)
        except (sqlite3.Error, OSError) as exc:
            raise _store_error(self.path or Path("memory"), exc) from exc

    def _connect(self) -> None:
        if self.path is not None:
            # Made first and by us, so that it is nobody else's to read; SQLite gives -wal and -shm its mode.
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
            self.path.chmod(0o600)
        db = sqlite3.connect(
            self.path or ":memory:", isolation_level=None, check_same_thread=False, timeout=_BUSY_MS / 1000
        )
        try:
            if self.path is not None:
                _use_wal(db)
            db.execute("PRAGMA foreign_keys = ON")
            db.execute("PRAGMA secure_delete = ON")  # what is deleted is not to be read in the file
            migrate(db)
        except BaseException:
            db.close()
            raise
        self._db, self._owner = db, this_process()


def _forget_state(chat_id: str) -> None:
    from edgechat.engine.state_folder import forget  # what it brings is needed only here

    forget(chat_id)


def _prune_states(db: sqlite3.Connection) -> None:
    """Remove what the engine keeps of chats that are gone: another program may have deleted them."""
    from edgechat.engine.state_folder import prune

    with contextlib.suppress(FolderError):
        prune(lambda chat: statements.chat(db, chat) is not None)


def _use_wal(db: sqlite3.Connection) -> None:
    # The change to WAL needs the file for itself and does not wait on the busy timeout.
    give_up = time.monotonic() + _BUSY_MS / 1000
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as exc:
            if exc.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > give_up:
                raise
            time.sleep(0.02)


def _damaged(path: Path, flaw: str) -> StoreError:
    return StoreError(
        f"The file of the conversations is damaged: {path} ({flaw}).",
        hint=f"edgechat leaves it untouched. Move it aside to start afresh: mv '{path}' '{path}.damaged'",
    )


def _has_no_room(path: Path) -> bool:
    # SQLite calls it an error of the disk where the 32 KiB of its -shm do not fit.
    with contextlib.suppress(OSError):
        return shutil.disk_usage(path.parent).free < _LITTLE_ROOM
    return False


def _store_error(path: Path, exc: sqlite3.Error | OSError) -> StoreError:
    code = getattr(exc, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return _damaged(path, str(exc))
    if code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and _has_no_room(path)):
        return StoreError(
            f"The disk is full; the conversation cannot be saved to {path}.", hint="Free some space."
        )
    if getattr(exc, "sqlite_errorcode", 0) == sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY:
        return StoreError("This conversation was deleted meanwhile.", hint="Begin a new one.")
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreError(
            f"Another program holds {path}.",
            hint="Close the program that has the file open, then send again.",
        )
    return StoreError(
        f"The conversations cannot be read or written: {path} ({exc}).",
        hint="See that the folder exists, is yours and may be written; EDGECHAT_HOME names another one.",
    )
