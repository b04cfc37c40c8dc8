"""The conversations on disk: one SQLite file, written before anything is computed.

Every call runs on the store's own thread, so the event loop never waits for a disk; when it returns, the file
has been written. Several programs can use the same file at once. A store can also exist only in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import tempfile
import time
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from edgechat.base.errors import ChatNotFound, FolderError, ImageError, StoreError, StoreUnwritable
from edgechat.base.process.owner import Owner, this_process
from edgechat.base.text import encodable, one_line
from edgechat.chat.messages import title_of
from edgechat.chat.records import TRASH_DAYS, Chat, Turn
from edgechat.chat.storage import responses, search, statements
from edgechat.chat.storage.database import Database, closed, method
from edgechat.chat.storage.file import BUSY_MS, damaged
from edgechat.chat.storage.file import store_path as store_path

if TYPE_CHECKING:
    from edgechat.base.images.image import ImageLibrary

TITLE_LENGTH = 200
"""Maximum length of a title, in characters."""
_TRASH_CHATS, _TRASH_BYTES = 1000, 64 * 2**20
"""Limits on the trash: number of chats, and bytes of text in them."""
_RESPONSES_BUSY_MS = 2_000
"""How long storing a response may wait for another program's lock; the wait delays the end of an answer."""


class Store(Database):
    """The conversations in one file. Open it with `Store.open` or `Store.in_memory`, and close it."""

    def __init__(self, path: Path | None) -> None:
        super().__init__(path)
        self._owner: Owner | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        """Contains the images, if the store is in memory."""
        self._copied: Path | None = None
        """The file that this store is a copy of."""
        self._pending: dict[str, Turn] = {}
        """Replies that could not be written yet, keyed by turn id."""

    @classmethod
    async def open(cls, path: Path) -> Store:
        """Open or create the file, migrate its schema, and mark replies left by dead programs as interrupted.

        Raises StoreError. A file that cannot be read is left unchanged.
        """
        store = cls(path)
        await store._begin()
        return store

    @classmethod
    async def in_memory(cls) -> Store:
        """Return an empty store in memory."""
        store = cls(None)
        await store._begin()
        return store

    @classmethod
    async def copy(cls, path: Path) -> Store:
        """Return an in-memory copy of a file that cannot be written to. Raises StoreError.

        Changes to the copy never affect the file or its images.
        """
        store = cls(None)
        store._copied = path
        await store._begin()
        return store

    @classmethod
    async def open_to_read(cls, path: Path) -> Store:
        """Open the file, or a copy if the file cannot be written to. Raises StoreError."""
        try:
            return await cls.open(path)
        except StoreUnwritable:
            return await cls.copy(path)

    @cached_property
    def images(self) -> ImageLibrary:
        """The library of the images in conversations; its methods access the disk."""
        from edgechat.base.images.image import ImageLibrary  # not needed for text

        if self.path is not None:
            return ImageLibrary(_image_folder(self.path))
        stored = _image_folder(self._copied) if self._copied is not None else None
        try:
            self._folder = tempfile.TemporaryDirectory(prefix="edgechat-images-")
        except OSError:  # no disk has room, but stored images can still be shown
            if stored is None:
                raise
            return ImageLibrary(stored)
        return ImageLibrary(Path(self._folder.name), also=stored)

    @property
    def lasting(self) -> bool:
        """Whether the contents outlive the program."""
        return self.path is not None

    async def close(self) -> None:
        """Write pending changes and close the file. Raises StoreError if part of a reply is lost."""
        try:
            if self._db is not None:
                await self._write_pending()
        except StoreError as exc:
            raise StoreError(f"The end of a reply could not be saved. {exc.message}", hint=exc.hint) from exc
        finally:
            await self._disconnect()
            if self._folder is not None:
                await asyncio.to_thread(self._folder.cleanup)

    async def add_turn(
        self, turn: Turn, *, chat: Chat | None = None, system: Turn | None = None, branch: bool = False
    ) -> bool:
        """Append a turn, first inserting the chat that it starts and that chat's system prompt, if given.

        For a question, returns False without writing it if another program has asked one in the meantime, or
        is still writing the turn before it. branch: the turn is another version of a question.
        """
        owner = self._owner if turn.state == "streaming" else None
        await self._write_pending()
        return await self._call(statements.insert_turn, turn, owner, chat, system, branch)

    async def resume_turn(self, turn: Turn) -> bool:
        """Mark a reply as being generated again, by this program.

        Returns False, without writing, if the stored reply differs from `turn`, or if a turn follows it.
        """
        await self._write_pending()
        return await self._call(statements.resume_turn, turn, self._owner)

    async def update_turn(self, turn: Turn) -> None:
        """Write the current text and state of a reply.

        If this raises StoreError, they are written with the next turn, or by `close`.
        """
        self._pending[turn.id] = turn
        try:
            await self._write_pending()
        except StoreError as exc:
            later = "It will be saved with your next message, or when edgechat closes."
            raise StoreError(exc.message, hint=f"{exc.hint} {later}" if exc.hint else later) from exc

    delete_turn = method(statements.delete_turn)
    add = method(statements.insert_all)
    update_chat = method(statements.update_chat)
    retitle = method(statements.retitle)
    set_system = method(statements.set_system)
    version = method(statements.version)
    preference = method(statements.preference)
    set_preference = method(statements.set_preference)

    chats = method(statements.chats)
    listed = method(statements.listed)
    latest = method(statements.latest)
    headlines = method(statements.headlines)
    recent_questions = method(statements.recent_questions)
    search = method(search.search)

    async def find(self, prefix: str, *, trashed: bool | None = False) -> Chat:
        """Return the chat whose id has this prefix. Raises ChatNotFound unless there is exactly one.

        trashed: True to search the trash, False to search the other chats, None to search both.
        """
        prefix = prefix.strip().lower()
        matches = await self._call(statements.beginning_with, prefix, trashed=trashed) if prefix else []
        if len(matches) == 1:
            return matches[0]
        shown = one_line(prefix, 40)
        command = "edgechat chats --trash" if trashed else "edgechat chats"
        if not matches:
            in_trash = await self._call(statements.beginning_with, prefix, trashed=True) if prefix else []
            if in_trash and not trashed:
                raise ChatNotFound(
                    f"The conversation {shown!r} is in the trash.",
                    hint=f"To restore it: edgechat chats restore {shown}",
                )
            where = " in the trash" if trashed else ""
            raise ChatNotFound(
                f"There is no conversation {shown!r}{where}.",
                hint=f"To list conversations with their ids: {command}",
            )
        names = [f"{chat.id[:12]} ({one_line(chat.title, 30)})" for chat in matches[:3]]
        names += ["…"] * (len(matches) > 3)
        raise ChatNotFound(
            f"{len(matches)} conversations have ids that begin with {shown!r}: {', '.join(names)}.",
            hint=f"Give more of the id. To list conversations: {command}",
        )

    async def load(self, chat_id: str, *, trashed: bool = False) -> tuple[Chat, list[Turn]]:
        """Return a chat and all its turns, in the order they were written. Raises ChatNotFound.

        trashed: whether the chat is in the trash.
        """
        with contextlib.suppress(StoreUnwritable):  # chats can be read even if the disk is full
            await self._call(statements.interrupt_orphans)
        chat = await self._call(statements.chat, chat_id, trashed=trashed)
        if chat is None:
            raise ChatNotFound(f"There is no conversation {chat_id!r}.")
        return chat, await self._call(statements.turns, chat_id)

    async def rename(self, chat_id: str, title: str) -> str:
        """Set the title of a chat and return it; if empty, derive one from the first turn."""
        title = one_line(title, TITLE_LENGTH)
        if not title:
            _, turns = await self.load(chat_id)
            first = next((turn for turn in turns if turn.role != "system"), None)
            title = title_of(first.content, first.attached) if first is not None else ""
        await self.update_chat(chat_id, title=title)
        return title

    async def trash(self, *chat_ids: str) -> None:
        """Move chats to the trash, where only `listed(trashed=True)` shows them, and delete their KV states.

        They stay there for TRASH_DAYS days, or until the trash exceeds its limits.
        """
        await self._call(statements.trash, chat_ids)
        await self._forget_states(chat_ids)
        crowded_out = await self._call(statements.crowded_out, _TRASH_CHATS, _TRASH_BYTES)
        await self._delete(crowded_out, only_trashed=True)

    async def restore(self, chat_id: str) -> None:
        """Take a chat out of the trash. Raises ChatNotFound if it was deleted permanently."""
        if not await self._call(statements.restore, chat_id):
            raise ChatNotFound("The conversation cannot be restored: it was deleted permanently.")

    async def purge(self, older_than: float = 0.0) -> None:
        """Delete the chats that have been in the trash for more than `older_than` seconds."""
        await self._delete(await self._call(statements.trashed, time.time() - older_than), only_trashed=True)

    async def delete(self, *chat_ids: str) -> None:
        """Delete chats with their turns, images and KV states."""
        await self._delete(chat_ids)

    async def take_back(self, chat_id: str) -> None:
        """Delete a chat whose only question was taken back, but not its images, which the user still has."""
        await self._delete([chat_id], with_images=False)

    async def check(self) -> None:
        """Read the whole file. Raises StoreError if it is damaged."""
        flaw = await self._call(statements.flaw)
        if flaw is not None and self.path is not None:
            raise damaged(self.path, flaw)

    async def keep_unsent(self, chat_id: str | None, value: str) -> None:
        """Store the unsent text in a chat, replacing any stored before; '' deletes it.

        chat_id: None for this program's new conversation. Raises StoreError, for example if the chat was
        deleted.
        """
        await self._call(statements.keep_unsent, chat_id, self._this_owner, encodable(value))

    async def unsent(self, chat_id: str | None) -> str:
        """Return the unsent text in a chat; '' if there is none.

        chat_id: None for this program's new conversation.
        """
        return await self._call(statements.unsent, chat_id, self._this_owner)

    async def take_over_unsent(self) -> str:
        """Take over and return the unsent text that an ended program left in its new conversation.

        Returns '' if there is none, or if this program has already stored unsent text.
        """
        return await self._call(statements.take_over_unsent, self._this_owner)

    @property
    def _this_owner(self) -> Owner:
        if self._owner is None:
            raise closed()
        return self._owner

    async def _begin(self) -> None:
        try:
            await self._connect(BUSY_MS, copied=self._copied)
            self._owner = await self._on_thread(this_process)
            await self._call(statements.interrupt_orphans)
            await self.purge(TRASH_DAYS * 86400.0)
            await self._call(responses.prune)  # the server that stored them may no longer be in use
            if self.lasting:
                await self._call(_prune_states)
                await self._prune_images()
        except BaseException:
            await self.close()
            raise

    async def _delete(
        self, chat_ids: Sequence[str], *, only_trashed: bool = False, with_images: bool = True
    ) -> None:
        if chat_ids:
            images = await self._call(statements.images_of, chat_ids)
            deleted = await self._call(statements.delete_chats, chat_ids, only_trashed=only_trashed)
            if images and with_images and self._copied is None:
                unused = images - await self._call(statements.used_images)
                await self._on_thread(lambda: self._remove_images(unused))
            await self._forget_states(deleted)
            await self._forget_consents(deleted)

    async def _forget_consents(self, chat_ids: Sequence[str]) -> None:
        from edgechat.tools.consent import ConsentStore, consents_path

        if chat_ids and self.lasting and await self._on_thread(consents_path().is_file):
            with contextlib.suppress(StoreError):  # their chats are gone, so the consents no longer matter
                await ConsentStore(consents_path()).forget_chats(chat_ids)

    async def _forget_states(self, chat_ids: Sequence[str]) -> None:
        def forget_all() -> None:
            from edgechat.engine.kv.state_files import forget

            for chat_id in chat_ids:
                forget(chat_id)

        if chat_ids and self.lasting:
            with contextlib.suppress(FolderError):  # KV states are removed the next time the store is opened
                await self._on_thread(forget_all)

    def _remove_images(self, digests: Iterable[str]) -> None:
        with contextlib.suppress(ImageError):  # images are removed the next time the store is opened
            for digest in digests:
                self.images.remove(digest)

    async def _prune_images(self) -> None:
        """Delete the images that nothing refers to, such as images in questions that were taken back."""
        if self.path is not None and await self._on_thread(_image_folder(self.path).is_dir):
            used = await self._call(statements.used_images)
            with contextlib.suppress(ImageError):
                await self._on_thread(lambda: self.images.prune(used))

    async def _write_pending(self) -> None:
        for turn_id in list(self._pending):
            # Read it again each time: another call may have written or updated it in the meantime.
            turn = self._pending.get(turn_id)
            if turn is not None:
                await self._call(statements.update_turn, turn)
                if self._pending.get(turn_id) is turn:
                    del self._pending[turn_id]


class ResponseStore(Database):
    """The responses that the server stores, in the same file as the conversations.

    Open it with `ResponseStore.open`, and close it. All methods raise StoreError if the file cannot be read
    or written.
    """

    @classmethod
    async def open(cls, path: Path) -> ResponseStore:
        """Open or create the file, and delete old responses. Raises StoreError."""
        store = cls(path)
        try:
            await store._connect(_RESPONSES_BUSY_MS)
            await store._call(responses.prune)
        except BaseException:
            await store.close()
            raise
        return store

    async def close(self) -> None:
        """Close the file."""
        await self._disconnect()

    keep = method(responses.keep)
    body = method(responses.body)
    input_items = method(responses.input_items)
    chain = method(responses.chain)
    referenced = method(responses.referenced)
    delete = method(responses.delete)


def _image_folder(path: Path) -> Path:
    return path.parent / "images"


def _prune_states(db: sqlite3.Connection) -> None:
    """Delete the KV states of chats that no longer exist, perhaps because another program deleted them."""
    from edgechat.engine.kv.state_files import prune

    with contextlib.suppress(FolderError):
        prune(lambda chat_id: statements.chat(db, chat_id) is not None)
