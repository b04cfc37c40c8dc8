"""What lies on the user's desk: the conversation that is shown, those being written behind it, and what was
typed and not sent, which outlives a crash.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from textual.content import Content

from edgechat.chat.conversation import lasting_name
from edgechat.chat.records import TRASH_DAYS
from edgechat.errors import ChatBusy, ChatNotFound, StoreError
from edgechat.text import one_line
from edgechat.tui.chat.conversation_view import ConversationView, UnsentPrompt

if TYPE_CHECKING:
    from edgechat.chat.conversation import Conversation
    from edgechat.tui.chat.screen import ChatScreen

_SAVE_AFTER = 0.8
"""Seconds after the last key."""
_MOST_LETTERS = 2**20
"""Of one conversation's unsent words that outlive the app."""
_HISTORY = 200
_ENDED = {"complete": "has ended", "stopped": "was stopped", "failed": "has failed"}


class ConversationManager:
    """Opens, leaves, deletes and brings back conversations for the chat screen.

    Each conversation has one UnsentPrompt: in the prompt while it is shown, else in its view, and always in
    the store as well.
    """

    def __init__(self, screen: ChatScreen) -> None:
        self._screen = screen
        self._behind: list[ConversationView] = []
        self._deleted: list[str] = []
        """The ids of what was deleted here, for Ctrl+Z; the trash has more."""
        self._titles: dict[str, str] = {}
        self._new = UnsentPrompt()
        """What was written for a new conversation while an older one is shown."""
        self._saving: asyncio.TimerHandle | None = None

    # Opening and leaving.

    @property
    def answering(self) -> frozenset[str]:
        """The ids of the conversations in which a reply is being written."""
        talks = (self._screen.talk, *self._behind)
        return frozenset(talk.id for talk in talks if talk.answering)

    def title_of(self, chat_id: str) -> str | None:
        """Return the title of a conversation that was open."""
        for talk in (self._screen.talk, *self._behind):
            self._note_title(talk)
        return self._titles.get(chat_id)

    def _note_title(self, talk: ConversationView) -> None:
        if talk.conversation is not None:
            self._titles[talk.id] = talk.conversation.chat.title

    async def open(self, chat_id: str, turn: str = "", *, focus: bool = True) -> None:
        """Show a conversation of the store, at its end or at a turn. Raises EdgechatError.

        focus: whether the prompt has the keys then.
        """
        screen = self._screen
        talk = screen.talk
        if chat_id != talk.id:
            talk = next((one for one in self._behind if one.id == chat_id), None) or await self._load(chat_id)
        if turn and not talk.answering:
            await talk.go_to(turn)
        if talk is screen.talk:
            screen.transcript.point_at(turn)
        else:
            self._behind = [one for one in self._behind if one is not talk]
            screen.show_talk(talk, turn=turn)
            self._tell_model(talk)
        if focus:
            screen.prompt.focus()

    async def _load(self, chat_id: str) -> ConversationView:
        session = self._screen.session
        talk = ConversationView(session, await session.open(chat_id))
        talk.draft = _decoded(await (await session.store()).unsent(chat_id))
        return talk

    def _tell_model(self, talk: ConversationView) -> None:
        conversation, model = talk.conversation, self._screen.session.model
        if conversation is None or model is None:
            return
        last = conversation.chat.model
        if last and lasting_name(last) != lasting_name(model):
            was, now = (one_line(Path(name).name, 60) for name in (last, model))
            told = f"{was} wrote here last; now {now} answers. /model changes it."
            self._screen.notify(told, timeout=6, markup=False)

    def new_talk(self) -> ConversationView:
        """Return a new conversation, with what was written for it before."""
        talk = ConversationView(self._screen.session)
        talk.system = self._screen.session.settings.system
        talk.draft, self._new = self._new, UnsentPrompt()
        return talk

    def left(self, talk: ConversationView) -> None:
        """Put what was computed of a conversation on disk, or let its reply go on behind the one shown."""
        self._note_title(talk)
        if not (talk.is_stored or talk.answering):
            self._new = talk.draft
        self.keep(talk)
        if talk.answering:
            self._behind.append(talk)
        elif talk.conversation is not None:
            self._screen.run_worker(self._screen.session.persist(talk.conversation), group="leave")

    def settle(self) -> None:
        """Let go of conversations behind the one shown whose replies have ended, and say so."""
        ended = [talk for talk in self._behind if not talk.answering]
        self._behind = [talk for talk in self._behind if talk.answering]
        for talk in ended:
            if talk.conversation is not None and talk.is_stored:
                title = one_line(talk.conversation.chat.title, 50)
                how = _ENDED.get(talk.conversation.turns[-1].state, "was interrupted")
                self._screen.notify(f"The reply in “{title}” {how}.", markup=False)

    def not_sent(self, talk: ConversationView, draft: UnsentPrompt) -> None:
        """Keep what a conversation behind the one shown could not send."""
        if talk.is_stored:
            talk.draft = draft.before(talk.draft)
            self.keep(talk)
            return
        if not self._screen.talk.is_stored:
            self._screen.show_draft(draft.before(self._screen.unsent()))
            return
        self._screen.notify("A question was not sent; Ctrl+N has it.", severity="warning", timeout=10)
        self._new = draft.before(self._new)
        self._screen.run_worker(self._save(None, self._new), group="unsent", exit_on_error=False)

    async def wind_down(self) -> None:
        """Save every reply that is being written, and what was typed and not sent."""
        if self._saving is not None:
            self._saving.cancel()
        talks = [self._screen.talk, *self._behind]
        for talk in talks:
            await talk.wind_down()
        if self._screen.is_attached:
            talks[0].draft = self._screen.unsent()
            kept: dict[str | None, UnsentPrompt] = {None: self._new}
            for talk in talks:
                key = talk.id if talk.is_stored else None
                kept[key] = kept.get(key, UnsentPrompt()).before(_whole(talk))
            for key, draft in kept.items():
                with contextlib.suppress(StoreError):
                    await self._save(key, draft)

    # What was typed and not sent.

    async def restore(self) -> None:
        """Put back what was typed and not sent when the app ended, or was ended. Raises StoreError."""
        store, screen = await self._screen.session.store(), self._screen
        kept = _decoded(await store.unsent(None) or await store.take_over_unsent())
        if screen.talk.is_stored or screen.talk.answering:
            self._new = kept
        elif not kept.is_empty:
            screen.show_draft(kept.before(screen.unsent()))

    def typed(self) -> None:
        """Save what is typed, a moment after the last key."""
        if self._saving is not None:
            self._saving.cancel()
        self._saving = asyncio.get_running_loop().call_later(_SAVE_AFTER, self._save_shown)

    def _save_shown(self) -> None:
        if self._screen.is_attached:
            self._screen.talk.draft = self._screen.unsent()
            self.keep(self._screen.talk)

    def sent(self, talk: ConversationView) -> None:
        """Forget what is a question in the store now."""
        self.keep(talk)
        self._screen.run_worker(self._save(None, self._new), group="unsent", exit_on_error=False)

    def keep(self, talk: ConversationView) -> None:
        """Save what a conversation has that is not sent; nothing, where that is so."""
        key, draft = talk.id if talk.is_stored else None, _whole(talk)
        self._screen.run_worker(self._save(key, draft), group="unsent", exit_on_error=False)

    async def _save(self, chat_id: str | None, draft: UnsentPrompt) -> None:
        size = len(draft.text) + sum(len(one.text) for one in draft.attachments)
        if size > _MOST_LETTERS:
            draft = UnsentPrompt(draft.text[:_MOST_LETTERS])
        store = await self._screen.session.store()
        await store.keep_unsent(chat_id, "" if draft.is_empty else msgspec.json.encode(draft).decode())

    async def show_history(self) -> None:
        """Let the prompt go back to what was asked before."""
        with contextlib.suppress(StoreError):
            store = await self._screen.session.store()
            asked = await store.recent_questions(_HISTORY)
            if asked:
                self._screen.prompt.remember(asked)

    # Deleting and bringing back.

    @property
    def can_undo(self) -> bool:
        """Whether there is a deletion to undo."""
        return bool(self._deleted)

    async def delete(self, chat_id: str, *, ask: bool = False) -> None:
        """Move a conversation to the trash, after a question if that is wanted. Raises EdgechatError."""
        screen, store = self._screen, await self._screen.session.store()
        if chat_id in self.answering:
            raise ChatBusy("An answer is being written there.", hint="Stop it first: Escape.")
        chat = await store.find(chat_id)
        lasts = f"For {TRASH_DAYS} days it is in the trash." if store.lasting else ""
        if ask and not await self._is_sure(f"Delete “{one_line(chat.title, 50)}”?\n\n{lasts}"):
            return
        await store.trash(chat_id)
        screen.session.forget(chat_id)
        self._deleted.append(chat_id)
        if screen.talk.id == chat_id:
            screen.show_talk(self.new_talk())
        told = f"Deleted “{one_line(chat.title, 50)}”. Ctrl+Z undoes it. {lasts}"
        screen.notify(told, timeout=8, markup=False)
        screen.refresh_bindings()

    async def undo_delete(self) -> None:
        """Bring back what was deleted last, and show it. Raises EdgechatError."""
        if self._deleted:
            await self.restore_deleted(self._deleted[-1], focus=self._screen.focused is self._screen.prompt)

    async def restore_deleted(self, chat_id: str, *, focus: bool = True) -> None:
        """Bring a conversation back from the trash, and show it. Raises EdgechatError."""
        store = await self._screen.session.store()
        try:
            await store.restore(chat_id)
        except ChatNotFound:
            self._forget_deleted(chat_id)
            raise
        self._forget_deleted(chat_id)
        await self.open(chat_id, focus=focus)

    async def purge(self, chat_id: str) -> None:
        """Ask, then delete what is in the trash for good. Raises EdgechatError."""
        store = await self._screen.session.store()
        title = one_line((await store.find(chat_id, trashed=True)).title, 50)
        if await self._is_sure(f"Delete “{title}” for good? It cannot be brought back then."):
            await store.delete(chat_id)
            self._forget_deleted(chat_id)

    async def _is_sure(self, question: str) -> bool:
        from edgechat.tui.models.dialogs import ConfirmDialog

        return await self._screen.app.push_screen_wait(
            ConfirmDialog(Content(question.strip()), yes="Delete it", no="Keep it")
        )

    def _forget_deleted(self, chat_id: str) -> None:
        self._deleted = [one for one in self._deleted if one != chat_id]
        self._screen.refresh_bindings()

    async def rename(self, chat_id: str, title: str) -> None:
        """Give a conversation another title. Raises EdgechatError."""
        talk = self._screen.talk
        if talk.id == chat_id and talk.conversation is not None:
            await talk.conversation.rename(title)
        else:
            await (await self._screen.session.store()).rename(chat_id, title)

    async def pin(self, chat_id: str, pinned: bool) -> None:
        """Keep a conversation at the top of the list, or no longer. Raises EdgechatError."""
        talk = self._screen.talk
        if talk.id == chat_id and talk.conversation is not None:
            await talk.conversation.pin(pinned)
        else:
            await (await self._screen.session.store()).pin(chat_id, pinned)

    async def export(self, chat_id: str, name: str = "") -> None:
        """Write a conversation to a file, JSON if its name says so, else Markdown. Raises EdgechatError."""
        from edgechat.chat.conversation import Conversation

        found = await Conversation.load(await self._screen.session.store(), chat_id)
        path = await asyncio.to_thread(_exported, found, name)
        self._screen.notify(f"Written to {one_line(str(path), 300)}", timeout=8, markup=False)

    async def import_file(self, name: str) -> None:
        """Take a conversation from a file into the store, and show it. Raises EdgechatError."""
        from edgechat.chat import files
        from edgechat.chat.importing import imported

        new = await asyncio.to_thread(lambda: imported(files.read(name)))
        await (await self._screen.session.store()).add(new.chat, new.turns)
        await self.open(new.chat.id)


def _exported(conversation: Conversation, name: str) -> Path:
    from edgechat.chat import files
    from edgechat.chat.export import to_json, to_markdown

    path = files.target(name, conversation.chat.title)
    as_json = path.suffix.lower() == ".json"
    files.write(path, to_json(conversation) if as_json else to_markdown(conversation))
    return path.absolute()


def _whole(talk: ConversationView) -> UnsentPrompt:
    """Return all that a talk has which is not in the store."""
    return talk.draft if talk.unsaved is None else talk.unsaved.before(talk.draft)


def _decoded(kept: str) -> UnsentPrompt:
    with contextlib.suppress(msgspec.DecodeError, msgspec.ValidationError):
        return msgspec.json.decode(kept or "{}", type=UnsentPrompt)
    return UnsentPrompt()
