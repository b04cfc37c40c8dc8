"""A conversation that is open in the app: on the screen, or generating a reply behind it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Protocol

import msgspec

from edgechat.base.errors import EdgechatError
from edgechat.base.text import one_line
from edgechat.chat.attachments import MOST, named_in
from edgechat.chat.commands import sent
from edgechat.chat.conversation import Conversation
from edgechat.chat.records import Attachment, ChatSettings, Turn
from edgechat.chat.session import ChatSession
from edgechat.chat.storage.store import Store
from edgechat.engine.types import Finished
from edgechat.tui.chat.answer import ReplyEvents
from edgechat.tui.chat.views import TranscriptView

_MAX_STORED = 2**20
"""Characters of one unsent prompt that are stored."""


class UnsentPrompt(msgspec.Struct, omit_defaults=True):
    """A prompt that was not sent; stored as JSON."""

    text: str = ""
    attachments: list[Attachment] = []
    edits: str = ""
    """The id of the question that this is a new wording of; empty for a new question."""
    aside: UnsentPrompt | None = None
    """What was in the prompt before it was used for this; None if this is the prompt's own text."""

    @property
    def is_empty(self) -> bool:
        return not (self.text or self.attachments or (self.aside is not None and not self.aside.is_empty))

    def before(self, other: UnsentPrompt) -> UnsentPrompt:
        """Return this followed by a later prompt: as one text, or with the later one set aside."""
        if self.is_empty or other.is_empty:
            return other if self.is_empty else self
        if self.edits or other.edits or self.aside is not None or other.aside is not None:
            aside = other if self.aside is None else self.aside.before(other)
            return msgspec.structs.replace(self, aside=aside)
        text = "\n".join(part for part in (self.text, other.text) if part)
        return UnsentPrompt(text, [*self.attachments, *other.attachments])


async def load_unsent(store: Store, chat_id: str | None) -> UnsentPrompt:
    """Return the unsent prompt of a conversation; None: of a new one, wherever it was typed.

    Raises StoreError.
    """
    stored = await store.unsent(chat_id)
    if chat_id is None:
        stored = stored or await store.take_over_unsent()
    with suppress(msgspec.DecodeError, msgspec.ValidationError):
        return msgspec.json.decode(stored or "{}", type=UnsentPrompt)
    return UnsentPrompt()


async def save_unsent(store: Store, chat_id: str | None, prompt: UnsentPrompt) -> None:
    """Store the unsent prompt of a conversation, or (None) of a new one. Raises StoreError."""
    if len(prompt.text) + sum(len(one.text) for one in prompt.attachments) > _MAX_STORED:
        prompt = UnsentPrompt(prompt.text[:_MAX_STORED])
    await store.keep_unsent(chat_id, "" if prompt.is_empty else msgspec.json.encode(prompt).decode())


class ConversationListener(Protocol):
    """What is told of an open conversation."""

    def conversation_changed(self, opened: OpenConversation) -> None:
        """Its activity or figures have changed."""

    def question_saved(self, opened: OpenConversation) -> None:
        """A question is in the store."""

    def question_not_sent(self, opened: OpenConversation, prompt: UnsentPrompt) -> None:
        """A question comes back."""

    def reply_finished(self, finished: Finished) -> None:
        """A reply has ended, with these figures."""

    def warn(self, message: str) -> None:
        """There is something to know that does not belong to the transcript."""


class OpenConversation:
    """One conversation, its transcript and its running reply. A new one is stored with its first question."""

    def __init__(
        self,
        session: ChatSession,
        transcript: TranscriptView,
        listener: ConversationListener,
        conversation: Conversation | None = None,
    ) -> None:
        self.conversation = conversation
        """None before the first question."""
        self.settings = conversation.chat.settings if conversation else ChatSettings()
        self.system: str | None = conversation.system if conversation else None
        """Of a new conversation: the system prompt that it will begin with."""
        self.transcript = transcript
        self.activity: tuple[str, float | None] = ("", None)
        """What is being done, in words, and the share of it that is done (0 to 1) if it is known."""
        self.used = 0
        """Tokens in the context."""
        self.speed = self.speedup = 0.0
        """Tokens per second of the reply, and relative to plain decoding; 0 if unknown."""
        self.draft = UnsentPrompt()
        """The prompt, as it was when the conversation was shown last."""
        self.unsaved: UnsentPrompt | None = None
        """A question that is on its way to the store."""
        self._session = session
        self._listener = listener
        self._answering: asyncio.Task[None] | None = None
        self._stopping = False
        if conversation is not None:
            self._show_turns()
            self._read_figures()

    @property
    def id(self) -> str:
        """The id of the conversation; empty before the first question."""
        return self.conversation.chat.id if self.conversation is not None else ""

    @property
    def is_stored(self) -> bool:
        """Whether anything of it is in the store."""
        return bool(self.turns)

    @property
    def is_answering(self) -> bool:
        """Whether a question waits for its reply to end."""
        return self._answering is not None and not self._answering.done()

    @property
    def can_retry(self) -> bool:
        """Whether there is a reply, or a question without one, to regenerate."""
        return not self.is_answering and bool(self.turns) and self.turns[-1].role != "system"

    @property
    def think(self) -> bool | None:
        """How thinking is switched; None: not at all."""
        return self.settings.think

    @property
    def context(self) -> int:
        """The context length of the loaded model, in tokens; 0 if none is loaded."""
        engine = self._session.loaded
        return engine.model.context if engine is not None and engine.model is not None else 0

    @property
    def turns(self) -> list[Turn]:
        return self.conversation.turns if self.conversation is not None else []

    def turn(self, turn_id: str) -> Turn | None:
        return next((turn for turn in self.turns if turn.id == turn_id), None)

    @property
    def whole_draft(self) -> UnsentPrompt:
        """All that was typed here and is not in the store."""
        return self.draft if self.unsaved is None else self.unsaved.before(self.draft)

    # What is told of it; see `ReplyObserver`.

    def tell(self, words: str, share: float | None = None) -> None:
        """Say what is being done, and how much of it is done; no words: nothing."""
        self.activity = (words, share)
        self.changed()

    def changed(self) -> None:
        """Let the listener know that the activity or the figures have changed."""
        self._listener.conversation_changed(self)

    def warn(self, message: str) -> None:
        self._listener.warn(message)

    def finished(self, finished: Finished) -> None:
        self._listener.reply_finished(finished)

    # Asking and answering.

    def start(self, answering: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `ask` or `retry`, in a task of its own."""
        self._stopping = False
        self._answering = asyncio.create_task(answering)
        return self._answering

    async def ask(self, draft: UnsentPrompt) -> None:
        """Save a question, or a new wording of one, and stream the reply; if that fails, give it back."""
        known = len(self.turns)
        if not await self._save(draft):
            return
        if draft.edits:
            self._show_turns()
        else:
            # Before the question comes what `edgechat run` has said in this chat meanwhile.
            self.transcript.add_turns(self.turns[known:])
        self.transcript.follow_end()
        await self._answer(draft)

    async def _save(self, draft: UnsentPrompt) -> bool:
        """Save a question. Until it is in the store it is `unsaved`, and kept as what was not sent."""
        saved = False
        self.unsaved = draft
        try:
            attachments = await self._with_files(draft)
            conversation = await self._stored()
            if draft.edits:
                await conversation.edit(draft.edits, sent(draft.text), attachments)
            else:
                await conversation.ask(sent(draft.text), attachments)
            saved = True
            if self._stopping:
                saved = False
                await conversation.take_back_question()
        except EdgechatError as exc:
            self.transcript.add_problem(exc)
        self.unsaved = None
        if saved:
            self._listener.question_saved(self)
        else:
            self.tell("")
            self._listener.question_not_sent(self, draft)
        return saved

    async def _with_files(self, draft: UnsentPrompt) -> tuple[Attachment, ...]:
        """Return the attachments, and the files that the text names. Raises AttachmentError."""
        if "@" not in draft.text:
            return tuple(draft.attachments)
        had = {one.name for one in draft.attachments}
        found, missing = await asyncio.to_thread(named_in, draft.text, MOST - len(had))
        if missing:
            names = ", ".join(one_line(name, 60) for name in missing[:5])
            self.warn(f"Not attached, because there is no such file: {names}.")
        return (*draft.attachments, *(one for one in found if one.name not in had))

    async def retry(self, turn_id: str = "") -> None:
        """Regenerate a reply, or the last one; the present one stays as a branch."""
        conversation = self.conversation
        if conversation is None or not conversation.turns:
            return
        try:
            conversation.regenerate(turn_id or None)
        except EdgechatError as exc:
            self.transcript.add_problem(exc)
            return
        self._show_turns()
        await self._answer()

    async def _answer(self, asked: UnsentPrompt | None = None) -> None:
        """Stream the reply to the last question. asked: what to give back if it turns out too long."""
        try:
            conversation = await self._stored()
            question = conversation.turns[-1]
            await ReplyEvents(self, conversation).run(self._session)
            if question not in conversation.turns:
                self._show_turns(keep_problems=True)
                back = asked or UnsentPrompt(question.content, list(question.attachments))
                self._listener.question_not_sent(self, back)
            self._mark_left_out()
        except EdgechatError as exc:
            self.transcript.add_problem(exc)
        finally:
            self._put_line_back()
            self.tell("")

    def _put_line_back(self) -> None:
        """Show the reply again that was to be regenerated, if that did not even begin."""
        if self.conversation is not None:
            before = list(self.conversation.turns)
            self.conversation.put_back()
            if self.conversation.turns != before:
                self._show_turns(keep_problems=True)

    async def stop(self) -> None:
        """End the reply here; asked again, or before it has begun, give it up at once.

        A question on its way to the store comes back from there.
        """
        if self._answering is None:
            return
        told = not self._stopping and self.conversation is not None and await self.conversation.stop()
        self._stopping = True
        if told or self.unsaved is not None:
            self.tell("Stopping")
        else:
            self._answering.cancel()

    async def wind_down(self) -> None:
        """Give a running reply up, and return when its text is saved."""
        if self._answering is not None and self.is_answering:
            self._answering.cancel()
            await asyncio.wait([self._answering])

    # Branches and settings.

    async def go_to(self, turn_id: str) -> None:
        """Show the branch that a turn is on. Raises EdgechatError."""
        if self.conversation is not None and self.turn(turn_id) is None:
            await self.conversation.go_to(turn_id)
            self._show_turns()

    async def switch(self, turn_id: str, by: int) -> str | None:
        """Show the next (1) or the previous (-1) branch at a turn; return its id, None if there is none."""
        conversation = self.conversation
        if conversation is None or self.is_answering:
            return None
        number, count = conversation.branches(turn_id)
        if not 0 <= number + by < count:
            return None
        at = next(at for at, turn in enumerate(conversation.turns) if turn.id == turn_id)
        await conversation.switch(turn_id, number + by)
        self._show_turns()
        self._read_figures()
        return conversation.turns[at].id

    async def set_settings(self, settings: ChatSettings) -> None:
        """Change how its replies are generated from now on. Raises EdgechatError."""
        if self.conversation is not None:
            await self.conversation.set_settings(settings)
        self.settings = settings
        self.changed()

    async def set_system(self, text: str | None) -> None:
        """Set the system prompt, or (None) remove it. Raises EdgechatError."""
        if self.conversation is not None:
            await self.conversation.set_system(text)
            self._show_turns()
        self.system = text or None

    async def _stored(self) -> Conversation:
        if self.conversation is None:
            self.conversation = await self._session.begin(self.system)
            await self.conversation.set_settings(self.settings)
        return self.conversation

    def _show_turns(self, *, keep_problems: bool = False) -> None:
        conversation = self.conversation
        assert conversation is not None
        turns = [(turn, conversation.branches(turn.id)) for turn in conversation.turns]
        self.transcript.show_turns(turns, keep_problems=keep_problems)
        self._mark_left_out()

    def _mark_left_out(self) -> None:
        self.transcript.mark_left_out(self.conversation.left_out() if self.conversation is not None else ())

    def _read_figures(self) -> None:
        """Read how much of the context the conversation took when it was last answered."""
        figures = next((turn.figures for turn in reversed(self.turns) if turn.figures is not None), None)
        self.used = 0
        if figures is not None and figures.usage is not None:
            self.used = figures.usage.prompt_tokens + figures.usage.completion_tokens
            self.speed = figures.timings.decode_tps if figures.timings is not None else 0.0
