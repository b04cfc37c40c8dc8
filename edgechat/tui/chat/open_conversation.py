"""A conversation that is open in the app, either on screen or generating a reply in the background."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any, Protocol

from edgechat.base.errors import CannotSee, ChatBusy, DocumentError, EdgechatError
from edgechat.base.text import one_line
from edgechat.chat.attachments import (
    MOST,
    named_in,
    paths_named_in,
    read_image,
    without_passages,
)
from edgechat.chat.commands import question_text
from edgechat.chat.conversation import Conversation
from edgechat.chat.parameters import set_documents
from edgechat.chat.records import AttachedImage, Attachment, ChatSettings, Turn
from edgechat.chat.reply.calls import tool_name
from edgechat.chat.session import ChatSession
from edgechat.tools.consent import Answer, Question
from edgechat.tui.chat.reply import ReplyEvents, ReplyStatus, progress_on_loop
from edgechat.tui.chat.unsent import UnsentPrompt
from edgechat.tui.chat.views import ChatView


def still_answering() -> ChatBusy:
    """Return the error for actions that must wait until a reply has ended."""
    return ChatBusy("An answer is being generated.", hint="Stop it first: Escape.")


class ConversationListener(Protocol):
    """Receives events from open conversations."""

    def conversation_changed(self, opened: OpenConversation) -> None:
        """Called when the conversation's activity or statistics have changed."""

    def question_saved(self, opened: OpenConversation) -> None:
        """Called when a question has been stored."""

    def question_not_sent(self, opened: OpenConversation, prompt: UnsentPrompt) -> None:
        """Called to return a question that was not sent."""

    def model_failed(self, error: EdgechatError) -> None:
        """Called when the model did not answer."""

    def cannot_see(self, opened: OpenConversation) -> None:
        """Called when a question was not sent because the model cannot see its images."""

    def title_if_hidden(self, opened: OpenConversation) -> str:
        """Return the conversation's title if it is off screen, or '' otherwise."""


class OpenConversation(ReplyStatus):
    """A conversation with its transcript and running reply. A new one is stored with its first question."""

    def __init__(
        self,
        session: ChatSession,
        view: ChatView,
        listener: ConversationListener,
        conversation: Conversation | None = None,
    ) -> None:
        transcript = view.new_transcript(is_new=conversation is None)
        super().__init__(transcript, partial(listener.conversation_changed, self))
        self.conversation = conversation
        """The stored conversation, or None before the first question."""
        self.settings = conversation.chat.settings if conversation else ChatSettings()
        self.system: str | None = conversation.system if conversation else None
        """The system prompt, or the one that a new conversation will start with."""
        self.unsent = UnsentPrompt()
        """The prompt's content when the conversation was last on screen."""
        self.pending_question: UnsentPrompt | None = None
        """The question being saved."""
        self.waiting: list[UnsentPrompt] = []
        """Questions to send one by one, as replies end or once an awaited model has arrived."""
        self._session = session
        self._view = view
        self._listener = listener
        self._answering: asyncio.Task[None] | None = None
        self._stopping = False
        self._finding: asyncio.Task[list[Attachment]] | None = None
        """The task that searches for passages relevant to the question being saved."""
        if conversation is not None:
            self._show_turns()
            self._read_figures()

    # Properties without a docstring are described in `Status`.

    @property
    def id(self) -> str:
        return self.conversation.chat.id if self.conversation is not None else ""

    @property
    def is_stored(self) -> bool:
        """Whether any of its turns are in the store."""
        return bool(self.turns)

    @property
    def stored_id(self) -> str | None:
        """The id under which its unsent prompt is stored, or None for a new conversation."""
        return self.id if self.is_stored else None

    @property
    def is_answering(self) -> bool:
        return self._answering is not None and not self._answering.done()

    def check_not_answering(self) -> None:
        """Raise ChatBusy while a reply is being generated."""
        if self.is_answering:
            raise still_answering()

    @property
    def is_busy(self) -> bool:
        """Whether a reply is being generated or questions are waiting."""
        return self.is_answering or bool(self.waiting)

    @property
    def can_retry(self) -> bool:
        """Whether there is a reply to regenerate, or a question without a reply."""
        return not self.is_answering and bool(self.turns) and self.turns[-1].role != "system"

    @property
    def can_continue(self) -> bool:
        """Whether the last reply ended early and can be continued."""
        return not self.is_answering and self.conversation is not None and self.conversation.can_continue

    @property
    def think(self) -> bool | None:
        return self.settings.think

    @property
    def tools(self) -> Sequence[str]:
        return self._session.chosen_tools(self.settings)

    @property
    def documents(self) -> Sequence[str]:
        """The collections to search."""
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
        """Everything typed in this conversation that is not stored as a turn."""
        unsent = self.pending_question or UnsentPrompt()
        for prompt in (*self.waiting, self.unsent):
            unsent = unsent.before(prompt)
        return unsent

    # Asking and answering.

    def start(self, answering: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `ask`, `retry` or `continue_reply` in a task."""
        self._stopping = False
        self._answering = asyncio.create_task(answering)
        return self._answering

    async def ask(self, question: UnsentPrompt) -> None:
        """Save a question, or a new version of one, and stream the reply.

        A question that cannot be saved is returned to the prompt.
        """
        n_turns = len(self.turns)
        if not await self._save(question):
            return
        if question.edits:
            self._show_turns()
        else:
            # `edgechat run` may have added turns before this question.
            self.transcript.add_turns(self.turns[n_turns:])
        self.transcript.follow_end()
        await self._answer(question)

    async def _save(self, question: UnsentPrompt) -> bool:
        """Save a question and return whether it was stored. In the meantime, it is `pending_question`."""
        saved = False
        self.pending_question = question
        try:
            attachments, images = await self._with_files(question)
            await self._check_sees(images)
            conversation = await self._stored()
            text = question_text(question.text)
            attachments += await self._find_passages(conversation, text, question.edits)
            if not self._stopping:  # stopped while reading documents
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
        """Raise CannotSee if there are images that the model cannot see."""
        try:
            if images:
                await self._session.check_sees()
        except CannotSee:
            self._listener.cannot_see(self)
            raise

    def give_back(self, question: UnsentPrompt | None = None) -> None:
        """Hand back an unsent question, if given, together with the waiting questions."""
        given = question or UnsentPrompt()
        for waiting in self.waiting:
            given = given.before(waiting)
        self.waiting.clear()
        if not given.is_empty:
            self._listener.question_not_sent(self, given)

    def next_question(self) -> UnsentPrompt | None:
        """Take the next waiting question. If the last reply was cut short, hand all of them back instead."""
        if not self.waiting:
            return None
        if self.turns and (self.turns[-1].role, self.turns[-1].state) != ("assistant", "complete"):
            self.give_back()
            return None
        self.pending_question = self.waiting.pop(0)
        return self.pending_question

    async def _with_files(self, question: UnsentPrompt) -> tuple[list[Attachment], list[AttachedImage]]:
        """Return a question's attachments and images, including the files named in its text.

        Raises AttachmentError and ImageError.
        """
        attachments, images = list(question.attachments), list(question.images)
        if "@" in question.text:
            room = MOST - len(attachments) - len(images)
            names = {file.name for file in attachments} | {image.name for image in images}
            files = await asyncio.to_thread(named_in, question.text, room, names)
            attachments += [file for file in files if file not in attachments]
            for path in await asyncio.to_thread(paths_named_in, question.text, "image"):
                library = (await self._session.store()).images
                image = await asyncio.to_thread(read_image, library, path)
                images += [image] if image.digest not in {known.digest for known in images} else []
            await self._use_named_folders(question.text)
        return attachments, images

    async def _use_named_folders(self, text: str) -> None:
        """Add folders named in the question to the documents searched from now on. Raises EdgechatError."""
        from edgechat.documents.registry import collection_at, collection_of, root_of, survey

        for path in await asyncio.to_thread(paths_named_in, text, "folder"):
            root = await asyncio.to_thread(root_of, path)
            if await asyncio.to_thread(collection_at, root) is None:
                found = await asyncio.to_thread(survey, root)
                if found.is_large:
                    name = one_line(path, 60)
                    self._view.warn(
                        f"{name} is large: only a list of its files is sent. To search it: /docs {name}"
                    )
                if found.is_large or not found.files:
                    continue
            name = await asyncio.to_thread(collection_of, root)
            if name not in self.documents:
                await set_documents(self._session, self, (*self.documents, name))

    async def _find_passages(
        self, conversation: Conversation, text: str, instead_of: str
    ) -> list[Attachment]:
        """Return passages that may help to answer a question, or [] if stopped. Raises EdgechatError."""
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
        """Regenerate a reply, by default the last one, keeping the current version as a branch."""
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
        """Continue the last reply if it ended early."""
        self.transcript.follow_end()
        await self._answer()

    async def _answer(self, question: UnsentPrompt | None = None) -> None:
        """Stream the reply to the last question, or the rest of an unfinished reply.

        question: returned to the prompt if it turns out to be too long.
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
                # If the new reply has not started, show the previous one again.
                turns = list(self.conversation.turns)
                self.conversation.put_back()
                if self.conversation.turns != turns:
                    self._show_turns(keep_problems=True)
            self.show_activity("")

    async def _ask_consent(self, question: Question) -> Answer:
        """Ask whether a tool call is allowed; the user may stop the reply instead."""
        self.show_activity(f"May the model call {tool_name(question.tool)}?")
        answer = await self._view.ask_consent(question, self._listener.title_if_hidden(self))
        if answer is None:
            await self.stop()
            await asyncio.get_running_loop().create_future()  # until `stop` cancels this task
        self.show_activity("Waiting for the model")
        return answer or "no"

    async def stop(self) -> None:
        """Stop the reply, keeping its text. Cancel it if it has not started, or on a second call.

        A question that is still being saved returns to the prompt.
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
        """Cancel the running reply, and wait until its text is saved."""
        if self._answering is not None and self.is_answering:
            self._answering.cancel()
            await asyncio.wait([self._answering])

    # Branches and settings.

    async def go_to(self, turn_id: str) -> None:
        """Show the branch that contains a turn. Raises EdgechatError."""
        if self.conversation is not None and self.turn(turn_id) is None:
            await self.conversation.go_to(turn_id)
            self._show_turns()

    async def switch(self, turn_id: str, by: int) -> str | None:
        """Show the next (1) or previous (-1) branch at a turn.

        Returns the id of the turn now in its place, or None if there is no such branch.
        """
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
        """Change the settings for later replies. Raises EdgechatError."""
        if self.conversation is not None:
            await self.conversation.set_settings(settings)
        self.settings = settings
        self.changed()

    async def set_system(self, text: str | None) -> None:
        """Set the system prompt, or remove it (None). Raises EdgechatError."""
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
        """Set the context usage and the speed to those of the last reply."""
        figures = self.turns[-1].figures if self.turns else None
        usage = figures.usage if figures is not None else None
        timings = figures.timings if figures is not None else None
        self.used = usage.prompt_tokens + usage.completion_tokens if usage is not None else None
        self.speed, self.speedup = timings.decode_tps if timings is not None else 0.0, 0.0
