"""A conversation that is open in the app: on the screen, or generating a reply behind it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from edgechat.base.errors import CannotSee, DocumentError, EdgechatError
from edgechat.base.text import one_line
from edgechat.chat.attachments import (
    MOST,
    folders_named_in,
    images_named_in,
    named_in,
    read_image,
    without_passages,
)
from edgechat.chat.commands import question_text
from edgechat.chat.conversation import Conversation
from edgechat.chat.parameters import set_documents
from edgechat.chat.records import AttachedImage, Attachment, ChatSettings, Turn
from edgechat.chat.reply.calls import tool_name
from edgechat.chat.session import ChatSession
from edgechat.chat.storage.store import Store
from edgechat.tools.consent import Answer, Question
from edgechat.tui.chat.answer import ReplyEvents
from edgechat.tui.chat.views import ChatView

if TYPE_CHECKING:
    from edgechat.documents.indexing import Progress

_PROGRESS_EVERY = 0.1
"""Seconds."""
_MAX_STORED = 2**20
"""Characters of one unsent prompt that are stored."""


class UnsentPrompt(msgspec.Struct, omit_defaults=True):
    """What was typed and not sent; stored as JSON."""

    text: str = ""
    attachments: list[Attachment] = []
    images: list[AttachedImage] = []
    edits: str = ""
    """The id of the question that this is a new wording of; empty for a new question."""
    aside: UnsentPrompt | None = None
    """What was in the prompt before it was used for this; None if this is the prompt's own text."""

    @property
    def is_empty(self) -> bool:
        has_aside = self.aside is not None and not self.aside.is_empty
        return not (self.text or self.attachments or self.images or has_aside)

    def before(self, other: UnsentPrompt) -> UnsentPrompt:
        """Return this followed by a later prompt: as one text, or with the later one set aside."""
        if self.is_empty or other.is_empty:
            return other if self.is_empty else self
        if self.edits or other.edits or self.aside is not None or other.aside is not None:
            aside = other if self.aside is None else self.aside.before(other)
            return msgspec.structs.replace(self, aside=aside)
        text = "\n".join(part for part in (self.text, other.text) if part)
        return UnsentPrompt(text, [*self.attachments, *other.attachments], [*self.images, *other.images])


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
    value = "" if prompt.is_empty else msgspec.json.encode(_bounded(prompt)).decode()
    await store.keep_unsent(chat_id, value)


def _bounded(prompt: UnsentPrompt) -> UnsentPrompt:
    """Return a prompt, and what it set aside, without attachments and the end of a text over the limit."""
    text = prompt.text[:_MAX_STORED]
    room, attachments = _MAX_STORED - len(text), []
    for attachment in prompt.attachments:
        if len(attachment.text) <= room:
            attachments.append(attachment)
            room -= len(attachment.text)
    aside = _bounded(prompt.aside) if prompt.aside is not None else None
    return msgspec.structs.replace(prompt, text=text, attachments=attachments, aside=aside)


def progress_on_loop(show: Callable[[str, float], None]) -> Callable[[Progress], None]:
    """Return what takes the progress of reading documents on another thread, and shows it on this loop."""
    loop, shown_at = asyncio.get_running_loop(), -_PROGRESS_EVERY

    def take(progress: Progress) -> None:
        nonlocal shown_at
        if progress.name and time.monotonic() - shown_at >= _PROGRESS_EVERY:
            shown_at = time.monotonic()
            text = f"Reading {progress.done + 1:,} of {progress.total:,} documents"
            with suppress(RuntimeError):  # the app is closed
                loop.call_soon_threadsafe(show, text, progress.done / progress.total)

    return take


class ConversationListener(Protocol):
    """What an open conversation calls when something happens in it."""

    def conversation_changed(self, opened: OpenConversation) -> None:
        """Its activity or figures have changed."""

    def question_saved(self, opened: OpenConversation) -> None:
        """A question is in the store."""

    def question_not_sent(self, opened: OpenConversation, prompt: UnsentPrompt) -> None:
        """A question was not sent, and is given back."""

    def model_failed(self, error: EdgechatError) -> None:
        """The model has not answered."""

    def cannot_see(self, opened: OpenConversation) -> None:
        """A question with images was not sent, since the model takes none."""

    def title_if_hidden(self, opened: OpenConversation) -> str:
        """Return its title if it is not shown, else ''."""


class OpenConversation:
    """One conversation, its transcript and its running reply. A new one is stored with its first question."""

    def __init__(
        self,
        session: ChatSession,
        view: ChatView,
        listener: ConversationListener,
        conversation: Conversation | None = None,
    ) -> None:
        self.conversation = conversation
        """None before the first question."""
        self.settings = conversation.chat.settings if conversation else ChatSettings()
        self.system: str | None = conversation.system if conversation else None
        """Of a new conversation: the system prompt that it will begin with."""
        self.transcript = view.new_transcript(is_new=conversation is None)
        self.activity: tuple[str, float | None, float | None] = ("", None, None)
        """As in `Status`."""
        self.used: int | None = 0
        """Tokens in the context; None if unknown."""
        self.speed = self.speedup = 0.0
        """Tokens per second of the reply, and relative to plain decoding; 0 if unknown."""
        self.unsent = UnsentPrompt()
        """The prompt, as it was when the conversation was shown last."""
        self.pending_question: UnsentPrompt | None = None
        """A question that is being saved."""
        self.waiting: list[UnsentPrompt] = []
        """Questions that are sent one after the other as replies end, or once an awaited model is here."""
        self._session = session
        self._view = view
        self._listener = listener
        self._answering: asyncio.Task[None] | None = None
        self._stopping = False
        self._finding: asyncio.Task[list[Attachment]] | None = None
        """Looks for passages of documents for a question that is being saved."""
        if conversation is not None:
            self._show_turns()
            self._read_figures()

    # Properties without a docstring are those of `Status`.

    @property
    def id(self) -> str:
        return self.conversation.chat.id if self.conversation is not None else ""

    @property
    def is_stored(self) -> bool:
        """Whether anything of it is in the store."""
        return bool(self.turns)

    @property
    def stored_id(self) -> str | None:
        """The id under which its unsent prompt is stored; None for a new conversation."""
        return self.id if self.is_stored else None

    @property
    def is_answering(self) -> bool:
        return self._answering is not None and not self._answering.done()

    @property
    def is_busy(self) -> bool:
        """Whether something goes on, or will, when it is not shown any more."""
        return self.is_answering or bool(self.waiting)

    @property
    def can_retry(self) -> bool:
        """Whether there is a reply, or a question without one, to regenerate."""
        return not self.is_answering and bool(self.turns) and self.turns[-1].role != "system"

    @property
    def can_continue(self) -> bool:
        """Whether the last reply ended early, and can be continued."""
        return not self.is_answering and self.conversation is not None and self.conversation.can_continue

    @property
    def think(self) -> bool | None:
        return self.settings.think

    @property
    def tools(self) -> Sequence[str]:
        return self._session.chosen_tools(self.settings)

    @property
    def documents(self) -> Sequence[str]:
        """The collections that are searched."""
        return self._session.chosen_documents(self.settings)

    @property
    def adapters(self) -> Sequence[str]:
        return self._session.chosen_adapters(self.settings)

    @property
    def context(self) -> int:
        engine = self._session.loaded
        return engine.model.context if engine is not None and engine.model is not None else 0

    @property
    def turns(self) -> list[Turn]:
        return self.conversation.turns if self.conversation is not None else []

    def turn(self, turn_id: str) -> Turn | None:
        return next((turn for turn in self.turns if turn.id == turn_id), None)

    @property
    def all_unsent(self) -> UnsentPrompt:
        """All that was typed here and is not a turn in the store."""
        unsent = self.pending_question or UnsentPrompt()
        for prompt in (*self.waiting, self.unsent):
            unsent = unsent.before(prompt)
        return unsent

    def show_activity(self, activity: str, share: float | None = None, cached: float | None = None) -> None:
        """Show what is being done, and the shares of it that are done and were cached; empty: nothing."""
        self.activity = (activity, share, cached)
        self.changed()

    def changed(self) -> None:
        """Report that the activity or the figures have changed."""
        self._listener.conversation_changed(self)

    # Asking and answering.

    def start(self, answering: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `ask` or `retry` in a task."""
        self._stopping = False
        self._answering = asyncio.create_task(answering)
        return self._answering

    async def ask(self, question: UnsentPrompt) -> None:
        """Save a question, or a new wording of one, and stream the reply; if that fails, give it back."""
        n_turns = len(self.turns)
        if not await self._save(question):
            return
        if question.edits:
            self._show_turns()
        else:
            # `edgechat run` may have added turns before the question.
            self.transcript.add_turns(self.turns[n_turns:])
        self.transcript.follow_end()
        await self._answer(question)

    async def _save(self, question: UnsentPrompt) -> bool:
        """Save a question. Until it is in the store it is `pending_question`, and counts as unsent."""
        saved = False
        self.pending_question = question
        try:
            attachments, images = await self._with_files(question)
            await self._check_sees(images)
            conversation = await self._stored()
            text = question_text(question.text)
            attachments += await self._find_passages(conversation, text, question.edits)
            if not self._stopping:  # as it was while documents were read
                if question.edits:
                    await conversation.edit(question.edits, text, attachments, images)
                else:
                    await conversation.ask(text, attachments, images)
                saved = True
            if saved and self._stopping:
                saved = False
                await conversation.take_back_question()
        except EdgechatError as exc:
            self.transcript.add_problem(exc)
        self.pending_question = None
        if saved:
            self._listener.question_saved(self)
        else:
            self.show_activity("")
            self.give_back(question)
        return saved

    async def _check_sees(self, images: Sequence[AttachedImage]) -> None:
        """Raise CannotSee if there are images, and the model takes none."""
        try:
            if images:
                await self._session.check_sees()
        except CannotSee:
            self._listener.cannot_see(self)
            raise

    def give_back(self, question: UnsentPrompt | None = None) -> None:
        """Give back a question that was not sent, if any, and those that wait behind it."""
        given = question or UnsentPrompt()
        for waiting in self.waiting:
            given = given.before(waiting)
        self.waiting.clear()
        if not given.is_empty:
            self._listener.question_not_sent(self, given)

    def next_question(self) -> UnsentPrompt | None:
        """Take the next waiting question; give all back where the last reply did not end by itself."""
        if not self.waiting:
            return None
        if self.turns and (self.turns[-1].role, self.turns[-1].state) != ("assistant", "complete"):
            self.give_back()
            return None
        self.pending_question = self.waiting.pop(0)
        return self.pending_question

    async def _with_files(self, question: UnsentPrompt) -> tuple[list[Attachment], list[AttachedImage]]:
        """Return what is attached, and the files that the text names.

        Raises AttachmentError and ImageError.
        """
        attachments, images = list(question.attachments), list(question.images)
        if "@" in question.text:
            room = MOST - len(attachments) - len(images)
            names = {file.name for file in attachments} | {image.name for image in images}
            files = await asyncio.to_thread(named_in, question.text, room, names)
            attachments += [file for file in files if file not in attachments]
            for path in await asyncio.to_thread(images_named_in, question.text):
                library = (await self._session.store()).images
                image = await asyncio.to_thread(read_image, library, path)
                images += [image] if image.digest not in {known.digest for known in images} else []
            await self._use_named_folders(question.text)
        return attachments, images

    async def _use_named_folders(self, text: str) -> None:
        """Search the documents in the folders that a question names, from now on. Raises EdgechatError."""
        from edgechat.documents.registry import collection_at, collection_of, root_of, survey

        for path in await asyncio.to_thread(folders_named_in, text):
            root = await asyncio.to_thread(root_of, path)
            if await asyncio.to_thread(collection_at, root) is None:
                found = await asyncio.to_thread(survey, root)
                if found.is_large:
                    name = one_line(path, 60)
                    self._view.warn(f"{name} is large: only its list is sent. To search it: /docs {name}")
                if found.is_large or not found.files:
                    continue
            name = await asyncio.to_thread(collection_of, root)
            if name not in self.documents:
                await set_documents(self._session, self, (*self.documents, name))

    async def _find_passages(
        self, conversation: Conversation, text: str, instead_of: str
    ) -> list[Attachment]:
        """Return what helps to answer from the documents; nothing if it was stopped. Raises EdgechatError."""
        if not self.documents:
            return []

        def show(activity: str, share: float) -> None:
            if self._finding is not None and not self._stopping:
                self.show_activity(activity, share)

        self.show_activity("Searching the documents")
        passages = self._session.passages(conversation, text, progress_on_loop(show), instead_of=instead_of)
        self._finding = asyncio.create_task(passages)
        try:
            return await self._finding
        except asyncio.CancelledError:
            if not self._stopping:
                raise
            return []
        except DocumentError as error:
            hint = " ".join(filter(None, (error.hint, "To ask without them: /docs off")))
            raise DocumentError(error.message, hint=hint) from error
        finally:
            self._finding = None

    async def retry(self, turn_id: str = "") -> None:
        """Regenerate a reply, or the last one; the present one stays as a branch."""
        conversation = self.conversation
        if conversation is None or not conversation.turns:
            return
        try:
            conversation.regenerate(turn_id or None)
            await self._check_sees(conversation.turns[-1].images)
        except EdgechatError as exc:
            conversation.put_back()
            self.transcript.add_problem(exc)
            return
        self._show_turns()
        await self._answer()

    async def continue_reply(self) -> None:
        """Continue the last reply, which ended early."""
        self.transcript.follow_end()
        await self._answer()

    async def _answer(self, question: UnsentPrompt | None = None) -> None:
        """Stream the reply to the last question, or the rest of it.

        question: what to give back if it turns out too long.
        """
        try:
            conversation = await self._stored()
            turn = conversation.turns[-1]
            permission = await self._session.tools.asking(conversation.chat.id, self._ask_consent)
            problem = await ReplyEvents(self, self._view, conversation).run(self._session, permission)
            if problem is not None:
                self._listener.model_failed(problem)
            if self.turn(turn.id) is None:  # the question was too long
                self._show_turns(keep_problems=True)
                files = without_passages(turn.attachments)
                question = question or UnsentPrompt(turn.content, files, list(turn.images))
                self.give_back(question)
            self._mark_left_out()
        except EdgechatError as exc:
            self.transcript.add_problem(exc)
        finally:
            if self.conversation is not None:
                # The reply that was to be regenerated is shown again if the new one has not begun.
                turns = list(self.conversation.turns)
                self.conversation.put_back()
                if self.conversation.turns != turns:
                    self._show_turns(keep_problems=True)
            self.show_activity("")

    async def _ask_consent(self, question: Question) -> Answer:
        """Ask whether a call may be made; the user may also stop the reply there."""
        self.show_activity(f"May the model call {tool_name(question.tool)}?")
        answer = await self._view.ask_consent(question, self._listener.title_if_hidden(self))
        if answer is None:
            await self.stop()
            await asyncio.get_running_loop().create_future()  # which the stop cancels
        self.show_activity("Waiting for the model")
        return answer or "no"

    async def stop(self) -> None:
        """End the reply here; cancel it if it has not begun, or if this is the second call.

        A question that is being saved is given back.
        """
        if self._answering is None:
            return
        is_ending = not self._stopping and self.conversation is not None and await self.conversation.stop()
        self._stopping = True
        if self._finding is not None:
            self._finding.cancel()
        if is_ending or self.pending_question is not None:
            self.show_activity("Stopping")
        else:
            self._answering.cancel()

    async def cancel(self) -> None:
        """Cancel a running reply, and return when its text is saved."""
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
        index = [turn.id for turn in conversation.turns].index(turn_id)
        await conversation.switch(turn_id, number + by)
        self._show_turns()
        self._read_figures()
        return conversation.turns[index].id

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
        """Read how much of the context the last reply took, and how fast it was."""
        figures = self.turns[-1].figures if self.turns else None
        usage = figures.usage if figures is not None else None
        timings = figures.timings if figures is not None else None
        self.used = usage.prompt_tokens + usage.completion_tokens if usage is not None else None
        self.speed, self.speedup = timings.decode_tps if timings is not None else 0.0, 0.0
