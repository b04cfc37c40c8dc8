"""The chat's background work: reading documents, and tasks that run while idle between replies."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from edgechat.base.errors import DocumentError, EdgechatError
from edgechat.base.text import one_line
from edgechat.chat.conversation import Conversation
from edgechat.chat.parameters import add_documents
from edgechat.chat.session import ChatSession
from edgechat.tui.chat.open_conversation import OpenConversation
from edgechat.tui.chat.reply import progress_on_loop
from edgechat.tui.chat.views import ChatView

if TYPE_CHECKING:
    from edgechat.documents.indexing import Progress


class IdleWork:
    """Titles a conversation and embeds documents while idle, until the next question or model switch."""

    def __init__(self, session: ChatSession, view: ChatView) -> None:
        self._session = session
        self._view = view
        self._task: asyncio.Task[None] | None = None

    def begin(self, opened: OpenConversation) -> None:
        """Start the idle work for a conversation whose reply has ended."""
        self._task = asyncio.create_task(self._work(opened))

    def end(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _work(self, opened: OpenConversation) -> None:
        conversation = opened.conversation
        is_complete = opened.turns and opened.turns[-1].state == "complete"
        if conversation is not None and conversation.has_first_title and is_complete:
            await self._title(conversation)
        await self._embed_documents(opened)

    async def _title(self, conversation: Conversation) -> None:
        with suppress(EdgechatError):  # if no title is suggested, the first question remains the title
            title = await self._session.suggest_title(conversation)
            if title and await conversation.retitle(title) and self._view.is_open:
                self._view.refresh_chat()

    async def _embed_documents(self, opened: OpenConversation) -> None:
        activity = ""

        def show(progress: Progress) -> None:
            nonlocal activity
            activity = f"Embedding passages of {one_line(progress.name, 30)}"
            opened.show_activity(activity, progress.done / progress.total)

        try:
            await self._session.embed_documents(show)
        finally:
            if activity and opened.activity[0] == activity:
                opened.show_activity("")


class FolderReader:
    """Reads folders or files, one at a time, so that a conversation can search them."""

    def __init__(self, session: ChatSession, view: ChatView) -> None:
        self._session = session
        self._view = view
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def is_reading(self) -> bool:
        return self._task is not None and not self._task.done()

    def read(self, opened: OpenConversation, path: str) -> None:
        """Start reading. Raises DocumentError if other documents are still being read."""
        if self.is_reading:
            raise DocumentError("Other documents are being read.", hint="Escape stops that.")
        self._task = asyncio.create_task(self._read(opened, path))
        self._view.run_in_background(self._wait_for(self._task))

    def stop(self) -> None:
        """Stop reading, keeping the documents read so far."""
        if self._task is not None:
            self._task.cancel()

    def close(self) -> None:
        """Stop reading, without showing a message."""
        self._is_closed = True
        self.stop()

    async def _read(self, opened: OpenConversation, path: str) -> None:
        def show(activity: str, share: float | None = None) -> None:
            if not opened.is_answering and self.is_reading:
                opened.show_activity(activity, share)

        show("Looking for documents")
        try:
            told = await add_documents(self._session, opened, path, progress_on_loop(show))
            self._view.show_message(told)
        finally:
            show("")

    async def _wait_for(self, reading: asyncio.Task[None]) -> None:
        try:
            await asyncio.wait([reading])
        finally:
            reading.cancel()
        if self._is_closed:
            return
        self._view.refresh_chat()
        if reading.cancelled():
            self._view.show_message(
                "Stopped. The documents read so far are kept; run the same command to continue."
            )
        else:
            reading.result()
