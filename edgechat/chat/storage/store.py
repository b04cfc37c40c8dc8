"""The conversations on disk: one SQLite file, written before anything is computed.

Every call runs on the store's own thread, so the event loop never waits for a disk; awaiting a call means
that its words are in the file. Several programs may use one file at once. A store may also be in memory
alone, for what is not to be kept.

Longer than most files: it is the list of all that can be asked of the conversations, a few lines each.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from edgechat.base import paths
from edgechat.base.errors import ChatNotFound, FolderError, StoreError
from edgechat.base.process.owner import Owner, this_process
from edgechat.base.text import one_line
from edgechat.chat.messages import title_of
from edgechat.chat.records import (
    TRASH_DAYS,
    Chat,
    ChatSettings,
    Front,
    Headline,
    Hit,
    Listed,
    Turn,
)
from edgechat.chat.storage import changes, lists, search, statements, unsent
from edgechat.chat.storage.file import connect, damaged, store_error

_P = ParamSpec("_P")
_T = TypeVar("_T")

TITLE_LENGTH = 200
"""Characters of a title that somebody gives."""
_BUSY_MS = 5_000
_TRASH_CHATS, _TRASH_BYTES = 1000, 64 * 2**20
"""So many chats, and so much of what was said in them, are in the trash at most."""


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
        """Finish what is being written, and let go of the file. Raises StoreError if words are lost by it."""
        try:
            if self._db is not None:
                await self._write_owed()
        except StoreError as exc:
            raise StoreError(f"The end of a reply could not be saved. {exc.message}", hint=exc.hint) from exc
        finally:
            db, self._db = self._db, None
            if db is not None:
                await self._on_thread(db.close)
            self._thread.shutdown(wait=False)

    async def add_turn(
        self, turn: Turn, *, chat: Chat | None = None, system: Turn | None = None, branch: bool = False
    ) -> bool:
        """Append a turn. `chat` is the conversation that it begins, if it does, `system` a turn before it.

        False, and nothing is written, for a question where another program has asked one meanwhile, or is
        writing what it would follow. branch: it is another wording of one that was asked.
        """
        owner = self._owner if turn.state == "streaming" else None
        await self._write_owed()
        return await self._call(statements.insert_turn, turn, owner, chat, system, branch)

    async def update_turn(self, turn: Turn) -> None:
        """Write the text and the state that a reply has now.

        Raises StoreError; the next turn that is written, or `close`, then writes it as well.
        """
        self._owed[turn.id] = turn
        try:
            await self._write_owed()
        except StoreError as exc:
            later = "It will be saved with your next message, or when edgechat closes."
            raise StoreError(exc.message, hint=f"{exc.hint} {later}" if exc.hint else later) from exc

    async def delete_turn(self, turn_id: str) -> None:
        """Delete a turn and all that answers it."""
        await self._call(statements.delete_turn, turn_id)

    async def add(self, chat: Chat, turns: Sequence[Turn]) -> None:
        """Add a whole conversation, as `importing.imported` returns it."""
        await self._call(statements.insert_all, chat, turns)

    async def note_use(self, chat_id: str, model: str, front: Front) -> None:
        """Note which model writes in a chat now, and where."""
        await self._call(changes.note_use, chat_id, model, front)

    async def chats(self, limit: int = 100) -> list[Chat]:
        """Return the chats, the one that was used last first."""
        return await self._call(lists.chats, limit)

    async def listed(self, limit: int) -> list[Listed]:
        """Return the chats as a list shows them, the one that was used last first."""
        return await self._call(lists.listed, limit)

    async def latest(self, front: Front) -> Chat | None:
        """Return the chat that was used last of those held at `front`, or None."""
        return await self._call(lists.latest, front)

    async def trashed(self, limit: int) -> list[Listed]:
        """Return the chats in the trash, the one that was put there last first."""
        return await self._call(lists.listed, limit, trashed=True)

    async def find(self, prefix: str, *, trashed: bool | None = False) -> Chat:
        """Return the chat whose id begins so. Raises ChatNotFound where there is none, or more than one.

        trashed: one in the trash, or (None) in the trash or not.
        """
        prefix = prefix.strip().lower()
        found = await self._call(lists.beginning_with, prefix, trashed=trashed) if prefix else []
        if len(found) == 1:
            return found[0]
        shown = one_line(prefix, 40)
        which = "edgechat chats --trash" if trashed else "edgechat chats"
        if not found:
            gone = await self._call(lists.beginning_with, prefix, trashed=True) if prefix else []
            if gone and not trashed:
                raise ChatNotFound(
                    f"The conversation {shown!r} is in the trash.",
                    hint=f"To restore it: edgechat chats restore {shown}",
                )
            where = " in the trash" if trashed else ""
            raise ChatNotFound(
                f"There is no conversation {shown!r}{where}.",
                hint=f"To list conversations with their ids: {which}",
            )
        names = [f"{one.id[:12]} ({one_line(one.title, 30)})" for one in found[:3]]
        names += ["…"] * (len(found) > 3)
        raise ChatNotFound(
            f"{len(found)} conversations have ids that begin with {shown!r}: {', '.join(names)}.",
            hint=f"Give more of the id. To list conversations: {which}",
        )

    async def load(self, chat_id: str, *, trashed: bool = False) -> tuple[Chat, list[Turn]]:
        """Return a chat, or (trashed) one in the trash, and all its turns in the order of writing.

        Raises ChatNotFound.
        """
        await self._call(statements.interrupt_orphans)
        chat = await self._call(lists.chat, chat_id, trashed=trashed)
        if chat is None:
            raise ChatNotFound(f"There is no conversation {chat_id!r}.")
        return chat, await self._call(statements.turns, chat_id)

    async def headlines(self, limit: int = 100, offset: int = 0) -> list[Headline]:
        """Return the chats, the pinned ones first, and among each the one that was used last."""
        return await self._call(lists.headlines, limit, offset)

    async def search(self, text: str, limit: int = 50, chat_id: str | None = None) -> list[Hit]:
        """Return where all the words of `text` are, in one chat or in all; the last may be half a word.

        Titles first, then the best, of equals the newest. Nothing that is typed is syntax.
        """
        return await self._call(search.search, text, limit, chat_id)

    async def recent_questions(self, limit: int = 100) -> list[str]:
        """Return what was asked, the newest first, each text once."""
        return await self._call(lists.recent_questions, limit)

    async def version(self) -> int:
        """Return a number that changes when another program, or another Store, has written to the file."""
        return await self._call(statements.version)

    async def rename(self, chat_id: str, title: str) -> str:
        """Give a chat another title, which is returned; without letters, the one made from its first turn."""
        title = one_line(title.encode("utf-8", "replace").decode(), TITLE_LENGTH)
        if not title:
            _, turns = await self.load(chat_id)
            said = [turn for turn in turns if turn.role != "system"]
            title = title_of(said[0].content, said[0].attachments) if said else ""
        await self._call(changes.rename, chat_id, title)
        return title

    async def pin(self, chat_id: str, pinned: bool) -> None:
        """Keep a chat at the top of the list, or no longer."""
        await self._call(changes.pin, chat_id, pinned)

    async def set_settings(self, chat_id: str, settings: ChatSettings) -> None:
        """Write what was decided for a chat."""
        await self._call(changes.set_settings, chat_id, settings)

    async def set_system(self, chat_id: str, system: Turn | None) -> None:
        """Change, add or remove the system prompt; `system` is only the words where there is one already."""
        await self._call(changes.set_system, chat_id, system)

    async def choose(self, chat_id: str, turn_id: str) -> None:
        """Remember which line of turns is shown: the one through this turn."""
        await self._call(changes.choose, chat_id, turn_id)

    async def trash(self, *chat_ids: str) -> None:
        """Put chats into the trash: nothing else shows them, and what was computed of them goes.

        The trash keeps them for TRASH_DAYS. Where it gets too full, what came there first goes for good.
        """
        await self._call(changes.trash, chat_ids)
        with contextlib.suppress(FolderError):  # what stays is removed when the store is next opened
            await self._forget_states(chat_ids)
        crowded_out = await self._call(changes.crowded_out, _TRASH_CHATS, _TRASH_BYTES)
        await self._delete(crowded_out, only_trashed=True)

    async def restore(self, chat_id: str) -> None:
        """Bring a chat back from the trash. Raises ChatNotFound where it is gone for good."""
        if not await self._call(changes.restore, chat_id):
            raise ChatNotFound("The conversation cannot be restored: it was deleted permanently.")

    async def purge(self, older_than: float = 0.0) -> None:
        """Delete what has been in the trash for so many seconds, whoever put it there."""
        await self._delete(await self._call(changes.trashed, time.time() - older_than), only_trashed=True)

    async def delete(self, *chat_ids: str) -> None:
        """Delete chats, their turns, and what the engine has computed of them on disk."""
        await self._delete(chat_ids)

    async def check(self) -> None:
        """Read the whole file. Raises StoreError where its parts do not hold together."""
        flaw = await self._call(statements.flaw)
        if flaw is not None and self.path is not None:
            raise damaged(self.path, flaw)

    async def preference(self, name: str) -> str | None:
        """Return what was remembered under a name, or None."""
        return await self._call(statements.preference, name)

    async def set_preference(self, name: str, value: str) -> None:
        """Remember a value under a name, for the next start."""
        await self._call(statements.set_preference, name, value)

    async def keep_unsent(self, chat_id: str | None, value: str) -> None:
        """Keep what was typed in a chat and not sent, in place of what was kept; '' keeps nothing.

        None: in this program's new conversation. It goes when its chat is deleted. Raises StoreError, also
        where the chat was deleted meanwhile.
        """
        value = value.encode("utf-8", "replace").decode()
        await self._call(unsent.keep, chat_id, self._this_owner, value)

    async def unsent(self, chat_id: str | None) -> str:
        """Return what was typed in a chat (None: in this program's new one) and not sent; '' if nothing."""
        return await self._call(unsent.of, chat_id, self._this_owner)

    async def take_over_unsent(self) -> str:
        """Return what was typed last in a new conversation of a program that has ended; it is this one's now.

        '' where there is nothing, and where this program has kept something of its own already.
        """
        return await self._call(unsent.take_over, self._this_owner)

    @property
    def _this_owner(self) -> Owner:
        if self._owner is None:
            raise _closed()
        return self._owner

    async def _begin(self) -> None:
        try:
            self._db = await self._on_thread(lambda: connect(self.path, busy_ms=_BUSY_MS))
            self._owner = await self._on_thread(this_process)
            await self._call(statements.interrupt_orphans)
            await self.purge(TRASH_DAYS * 86400.0)
            if self.lasting:
                await self._call(_prune_states)
        except BaseException:
            await self.close()
            raise

    async def _delete(self, chat_ids: Sequence[str], *, only_trashed: bool = False) -> None:
        if chat_ids:
            gone = await self._call(changes.delete_chats, chat_ids, only_trashed=only_trashed)
            await self._forget_states(gone)

    async def _forget_states(self, chat_ids: Sequence[str]) -> None:
        for chat_id in chat_ids if self.lasting else ():
            await self._on_thread(lambda name=chat_id: _forget_state(name))  # type: ignore[misc]

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
            raise _closed()
        return await self._on_thread(lambda: statement(db, *args, **kwargs))

    async def _on_thread(self, work: Callable[[], _T]) -> _T:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, work)
        except (sqlite3.Error, OSError) as exc:
            raise store_error(self.path or Path("memory"), exc) from exc


def _closed() -> StoreError:
    return StoreError("The database of conversations is closed.")


def _forget_state(chat_id: str) -> None:
    from edgechat.engine.kv.state_folder import forget  # what it brings is needed only here

    forget(chat_id)


def _prune_states(db: sqlite3.Connection) -> None:
    """Remove what the engine keeps of chats that are not kept: another program may have deleted them."""
    from edgechat.engine.kv.state_folder import prune

    with contextlib.suppress(FolderError):
        prune(lambda chat: lists.is_kept(db, chat))
