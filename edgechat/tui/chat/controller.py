"""What happens in the chat, without Textual: open and leave conversations, ask, switch the model.

The screen calls it for keys and messages, and shows what it is told to through `ChatView`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgechat.base.errors import (
    ChatBusy,
    ChatNotFound,
    CommandError,
    DocumentError,
    EdgechatError,
    EngineClosed,
    EngineError,
    ModelNotFound,
    StoreError,
)
from edgechat.base.text import one_line
from edgechat.chat.attachments.documents import without_passages
from edgechat.chat.conversation import Conversation, nothing_to_continue
from edgechat.chat.model_choice import (
    DEFAULT_MODEL,
    lasting_name,
    remember_downloads,
    remembered_downloads,
)
from edgechat.chat.parameters import add_documents
from edgechat.chat.records import AttachedImage, Attachment, Turn
from edgechat.chat.session import ChatSession
from edgechat.chat.storage.store import Store
from edgechat.planner.drafting import asks_for_drafts
from edgechat.planner.plan import LoadPlan
from edgechat.tui.chat.answer import load_shown
from edgechat.tui.chat.open_conversation import (
    OpenConversation,
    UnsentPrompt,
    load_unsent,
    progress_on_loop,
    save_unsent,
)
from edgechat.tui.chat.views import ChatView

if TYPE_CHECKING:
    from edgechat.documents.indexing import Progress
    from edgechat.tui.chat.model_downloads import ModelDownloads
    from edgechat.tui.models.library import ModelLibrary
    from edgechat.tui.models.pulls import Pull

_SAVE_AFTER = 0.8
"""Seconds after the last key press until an unsent prompt is saved."""
_HISTORY = 200
"""Questions that the prompt's history goes back."""
_LONG = 15.0
"""Seconds after which the end of an answer is announced to a user who is elsewhere."""
_ENDED = {"complete": "has ended", "stopped": "was stopped", "failed": "has failed"}


class ChatController:
    """The conversation that is shown, those whose replies are generated in the background, and the model.

    Each conversation has one UnsentPrompt: in the prompt while it is shown, else in its OpenConversation, and
    always in the store as well.
    """

    def __init__(
        self,
        view: ChatView,
        session: ChatSession,
        library: ModelLibrary | None = None,
        *,
        draft: str | None = None,
    ) -> None:
        """library: the models that are offered, if any. draft: see `planner.request`."""
        self.view = view
        self.session = session
        session.on_note = self.add_note
        self.deleted: list[str] = []
        """The ids of the conversations deleted since the start, the latest last."""
        self._library = library
        self._draft_option = draft
        self._background: list[OpenConversation] = []
        self._titles: dict[str, str] = {}
        self._new_unsent = UnsentPrompt()
        """What was typed for a new conversation while a stored one is shown."""
        self._save_timer: asyncio.TimerHandle | None = None
        self._is_closing = False
        self._idle_work: asyncio.Task[None] | None = None
        self._is_named = session.model is not None
        """Whether the user has named the model that answers."""
        self._unfinished = ("", "")
        """The downloads that the next start goes on with: see `remember_downloads`."""
        self._arrived: str | None = None
        """A model that was awaited, and is switched to once nothing is being answered."""
        self._reading: asyncio.Task[None] | None = None
        """Reads the documents that /docs adds."""
        self.shown = OpenConversation(session, view, self)
        """The conversation on the screen."""
        view.show_transcript(self.shown.transcript)

    # Opening and closing the app.

    async def start(self, *, last: bool = False) -> None:
        """Open the store, restore the unsent prompt, and load the model. Errors are shown.

        last: show the last conversation instead of a new one.
        """
        session, view = self.session, self.view
        try:
            store = await session.store()
            unsent = await load_unsent(store, None)  # at once: before what is typed now is saved there
            settings = await session.read_settings()
            if not self.shown.id:
                self.shown.system = settings.system
            await self._begin(store, unsent, last=last)
            await view.restore_panels()
            self.shown.show_activity("Finding the model")
            engine = await session.engine()
            if session.plan is not None:
                self._show_plan(session.plan)
            asks_how_to_begin = session.is_first_run and self._library is not None
            if asks_how_to_begin:
                view.show_first_run()
            self._show_load("Loading the model", 0.0)
            info = await engine.start(load_shown(self._show_load, engine))
            if engine.plan.remote is not None:  # now it is known what it can do
                self._show_plan(engine.plan)
            view.show_loaded()
            if info.no_draft and asks_for_drafts(self._draft_option):
                self.add_note(info.no_draft)
            if not asks_how_to_begin:  # else once that is known
                await session.remember_model()
                await self._resume_downloads(store)
            self._started()
        except EngineClosed:
            pass  # another model was chosen meanwhile
        except EdgechatError as error:
            self._started(error)

    def _started(self, error: EdgechatError | None = None) -> None:
        if error is not None:
            self.model_failed(error)
        # While a question waits for the model, its reply shows the error.
        if not self.shown.is_answering:
            if error is not None:
                self.shown.transcript.add_problem(error)
            self.shown.show_activity("")

    async def close(self) -> None:
        """Save replies and prompts, end downloads and the worker, and close the store."""
        self._is_closing = True
        self._end_idle_work()
        self.stop_reading()
        if "downloads" in self.__dict__:
            await self.downloads.pulls.close()
        await self._save_all()
        self.shown.show_activity("Closing")
        await self.session.close()

    async def _save_all(self) -> None:
        if self._save_timer is not None:
            self._save_timer.cancel()
        for opened in self._all:
            await opened.cancel()
        if self.view.is_open:
            self.shown.unsent = self.prompt
            prompts: dict[str | None, UnsentPrompt] = {None: self._new_unsent}
            for opened in self._all:
                key = opened.stored_id
                prompts[key] = prompts.get(key, UnsentPrompt()).before(opened.all_unsent)
            for key, prompt in prompts.items():
                with suppress(StoreError):
                    await self._save_unsent(key, prompt)

    # Opening and leaving conversations.

    @property
    def _all(self) -> list[OpenConversation]:
        return [self.shown, *self._background]

    @property
    def answering(self) -> frozenset[str]:
        """The ids of the conversations in which a reply is being generated."""
        return frozenset(opened.id for opened in self._all if opened.is_answering)

    def title_of(self, chat_id: str) -> str | None:
        """Return the title of a conversation that is or was open."""
        for opened in self._all:
            self._remember_title(opened)
        return self._titles.get(chat_id)

    def _remember_title(self, opened: OpenConversation) -> None:
        if opened.conversation is not None:
            self._titles[opened.id] = opened.conversation.chat.title

    async def open(self, chat_id: str, turn: str = "", *, focus: bool = True) -> None:
        """Show a conversation of the store, at its end or at a turn. Raises EdgechatError.

        focus: whether the prompt gets the keys.
        """
        opened = self.shown
        if chat_id != opened.id:
            background = next((other for other in self._background if other.id == chat_id), None)
            opened = background or await self._load(chat_id)
        if turn and not opened.is_answering:
            await opened.go_to(turn)
        if opened is self.shown:
            self.view.point_at(turn)
        else:
            self._background = [other for other in self._background if other is not opened]
            self._show(opened, turn)
            self._mention_other_model(opened)
        if focus:
            self.view.pane.take_focus()

    async def _begin(self, store: Store, new: UnsentPrompt, *, last: bool) -> None:
        """Restore what was typed for a new conversation, or show the last one."""
        chat = await store.latest("app") if last else None
        opened = await self._load(chat.id) if chat is not None else None
        if last and opened is None:
            self.view.show_message("There is no earlier conversation of the app. This is a new one.")
        if opened is None or self.shown.is_stored or self.shown.is_answering:
            self._restore_new_unsent(new)
            return
        typed = self.prompt  # meanwhile, for the conversation that comes now
        self.write_prompt(new)
        self._show(opened)
        self.write_prompt(self.prompt.before(typed))

    async def _load(self, chat_id: str) -> OpenConversation:
        conversation = await self.session.open(chat_id)
        opened = OpenConversation(self.session, self.view, self, conversation)
        opened.unsent = await load_unsent(await self.session.store(), chat_id)
        return opened

    def _mention_other_model(self, opened: OpenConversation) -> None:
        model = self.session.model
        last = opened.conversation.chat.model if opened.conversation is not None else ""
        if last and model is not None and lasting_name(last) != lasting_name(model):
            was, now = (one_line(Path(name).name, 60) for name in (last, model))
            self.view.show_message(
                f"The last answer was by {was}; {now} answers now. To change it: /model", seconds=6
            )

    def show_new(self) -> None:
        """Show a new conversation, with what was typed for one before."""
        opened = OpenConversation(self.session, self.view, self)
        opened.system = self.session.settings.system
        opened.unsent, self._new_unsent = self._new_unsent, UnsentPrompt()
        self._show(opened)

    def begin_new(self) -> None:
        """Show a new conversation, unless the present one is new."""
        if self.shown.is_stored or self.shown.is_busy:
            self.show_new()
        self.view.pane.take_focus()

    def _show(self, opened: OpenConversation, turn: str = "") -> None:
        """Show another conversation; a reply that is being generated goes on in the background."""
        self.shown.unsent = self.prompt
        previous, self.shown = self.shown, opened
        self._leave(previous)
        self.view.show_transcript(opened.transcript, turn)
        self.view.show_status(opened)
        self.view.pane.forget_history()
        self.write_prompt(opened.unsent)
        self._show_waiting()
        self.view.refresh_chat()

    def _leave(self, opened: OpenConversation) -> None:
        """Save the KV state of a conversation that is not shown any more, unless it is being answered."""
        self._remember_title(opened)
        if not (opened.is_stored or opened.is_busy):
            self._new_unsent = opened.unsent
        self._store_unsent(opened.stored_id, opened.all_unsent)
        if opened.is_busy:
            self._background.append(opened)
        elif opened.conversation is not None:
            self.view.run_in_background(self.session.persist(opened.conversation))

    # What open conversations report: see ConversationListener.

    def conversation_changed(self, opened: OpenConversation) -> None:
        """Show what is new about the conversation, if it is shown."""
        if opened is self.shown and self.view.is_open:
            self.view.show_status(opened)

    def question_saved(self, opened: OpenConversation) -> None:
        """Update the stored prompts: one of them has become a question."""
        if self.offers_stand_in:
            self.downloads.stand_in = None
            self.model_offered()
        self._store_unsent(opened.stored_id, opened.all_unsent)
        self._store_unsent(None, self._new_unsent)

    def question_not_sent(self, opened: OpenConversation, prompt: UnsentPrompt) -> None:
        """Put a question back into the prompt, or keep it with its conversation if that is not shown."""
        if opened is self.shown:
            self.write_prompt(prompt.before(self.prompt))
            self._waiting_changed(opened)
        elif opened.is_stored:
            opened.unsent = prompt.before(opened.unsent)
            self._store_unsent(opened.stored_id, opened.all_unsent)
        elif not self.shown.is_stored:
            self.write_prompt(prompt.before(self.prompt))
        else:
            self.view.show_message("A question was not sent; Ctrl+N shows it.", warning=True, seconds=10)
            self._new_unsent = prompt.before(self._new_unsent)
            self._store_unsent(None, self._new_unsent)

    def cannot_see(self, opened: OpenConversation) -> None:
        """Offer a model that sees."""
        self.view.run_in_background(self.downloads.find_seeing(), ignore_errors=True)

    def title_if_hidden(self, opened: OpenConversation) -> str:
        """Return the title of a conversation that is not shown, else ''."""
        if opened is self.shown or opened.conversation is None:
            return ""
        return opened.conversation.chat.title

    def model_failed(self, error: EdgechatError) -> None:
        """Offer a model of this machine, if one of another server does not answer."""
        plan = self.session.plan
        if plan is not None and plan.remote is not None and isinstance(error, EngineError | ModelNotFound):
            self.view.run_in_background(self.downloads.find_local(), ignore_errors=True)

    async def use_stand_in(self) -> None:
        """Switch to the model that is offered instead, or download it. Raises EdgechatError."""
        stand_in, self.downloads.stand_in = self.downloads.stand_in, None
        self.model_offered()
        if stand_in is not None and stand_in.is_here:
            await self.switch_model(stand_in.name)
        elif stand_in is not None:
            self.downloads.pulls.start(stand_in.name)

    @property
    def offers_stand_in(self) -> bool:
        """Whether a model is offered that could answer instead."""
        return "downloads" in self.__dict__ and self.downloads.stand_in is not None

    def add_note(self, note: str) -> None:
        """Show a warning: at the top of a new conversation, beside others."""
        if not self.shown.transcript.add_note(note):
            self.view.show_message(one_line(note), warning=True, seconds=10)

    # The prompt.

    @property
    def prompt(self) -> UnsentPrompt:
        """What is in the prompt and not sent."""
        pane, unsent = self.view.pane, self.shown.unsent
        return UnsentPrompt(
            pane.unsent, list(pane.attachments), list(pane.images), unsent.edits, unsent.aside
        )

    def write_prompt(self, prompt: UnsentPrompt) -> None:
        """Put this into the prompt, in place of what is there."""
        self.shown.unsent = prompt
        hint = "Esc returns to your text" if prompt.aside is not None else ""
        title = "editing · Esc cancels" if prompt.edits else hint
        self.view.pane.put(prompt.text, prompt.attachments, prompt.images, title)

    def replace_prompt(self, text: str, turn: Turn | None = None) -> None:
        """Put a new wording of a question, or a command, into the prompt; what was there is set aside."""
        now = self.prompt
        aside = None if now.is_empty and turn is None else now
        prompt = UnsentPrompt(text, aside=aside)
        if turn is not None:
            files = without_passages(turn.attachments)
            prompt = UnsentPrompt(text, files, list(turn.images), turn.id, aside)
        self.write_prompt(prompt)
        self.view.pane.take_focus()

    @property
    def has_prompt_aside(self) -> bool:
        """Whether the prompt is used for something else than the user's next question."""
        return self.shown.unsent.aside is not None or bool(self.shown.unsent.edits)

    def restore_prompt(self) -> None:
        """Restore what was set aside in the prompt."""
        self.write_prompt(self.shown.unsent.aside or UnsentPrompt())

    def prompt_sent(self) -> None:
        """Restore what was set aside for what has just been sent, before what was typed since."""
        pane = self.view.pane
        since = UnsentPrompt(pane.text, list(pane.attachments), list(pane.images))
        self.write_prompt((self.shown.unsent.aside or UnsentPrompt()).before(since))

    @property
    def unread_tokens(self) -> int:
        """How many tokens of the conversation the model has never read: all if another one has answered."""
        conversation, model = self.shown.conversation, self.session.model
        if conversation is None or model is None:
            return 0
        is_known = lasting_name(conversation.chat.model) == lasting_name(model)
        return 0 if is_known else self.shown.used or 0

    def prompt_changed(self) -> None:
        """Save what is typed, a moment after the last key press."""
        if self._save_timer is not None:
            self._save_timer.cancel()
        self._save_timer = asyncio.get_running_loop().call_later(_SAVE_AFTER, self._save_shown)

    def _save_shown(self) -> None:
        if self.view.is_open:
            self.shown.unsent = self.prompt
            self._store_unsent(self.shown.stored_id, self.shown.all_unsent)

    def _restore_new_unsent(self, unsent: UnsentPrompt) -> None:
        """Restore what had been typed for a new conversation when the app ended."""
        if self.shown.is_stored or self.shown.is_answering:
            self._new_unsent = unsent
        elif not unsent.is_empty:
            self.write_prompt(unsent.before(self.prompt))

    def _store_unsent(self, chat_id: str | None, prompt: UnsentPrompt) -> None:
        """Save in the background what was typed in a conversation, or (None) in a new one."""
        self.view.run_in_background(self._save_unsent(chat_id, prompt), ignore_errors=True)

    async def _save_unsent(self, chat_id: str | None, prompt: UnsentPrompt) -> None:
        await save_unsent(await self.session.store(), chat_id, prompt)

    async def show_history(self) -> None:
        """Offer the questions that were asked before."""
        with suppress(StoreError):
            questions = await (await self.session.store()).recent_questions(_HISTORY)
            if questions:
                self.view.pane.remember(questions)

    # Asking and answering.

    def ask(
        self, text: str, attachments: Sequence[Attachment] = (), images: Sequence[AttachedImage] = ()
    ) -> None:
        """Send what was in the prompt as a question, or as the new wording of one."""
        asked = UnsentPrompt(text, list(attachments), list(images), self.shown.unsent.edits)
        self.view.pane.forget_history()
        self.prompt_sent()
        shown = self.shown
        if not (shown.is_answering or shown.waiting or self.is_awaiting_model):
            self._answer(shown, shown.ask(asked))
        elif asked.edits:
            self.question_not_sent(shown, asked)
        else:
            shown.waiting.append(asked)
            self._waiting_changed(shown)

    def take_back(self, number: int = -1) -> None:
        """Take a waiting question, by default the last one, back into the prompt."""
        waiting = self.shown.waiting
        if -len(waiting) <= number < len(waiting):
            self.write_prompt(waiting.pop(number).before(self.prompt))
            self._waiting_changed(self.shown)
            self.view.pane.take_focus()
            self.view.refresh_chat()

    def _waiting_changed(self, opened: OpenConversation) -> None:
        """Show and save the questions that wait in a conversation."""
        if opened is self.shown:
            opened.unsent = self.prompt
            self._show_waiting()
        self._store_unsent(opened.stored_id, opened.all_unsent)

    def _show_waiting(self) -> None:
        self.view.pane.show_waiting([question.text for question in self.shown.waiting])
        self._show_notice()

    def retry(self, turn_id: str = "") -> None:
        """Regenerate a reply of the conversation that is shown, or its last one. Raises EdgechatError."""
        self.check_can_retry()
        self._answer(self.shown, self.shown.retry(turn_id))

    async def retry_with(self, model: str, turn_id: str = "") -> None:
        """Regenerate a reply with a model, which answers from now on. Raises EdgechatError."""
        self.check_can_retry()
        opened, previous = self.shown, self.session.model
        if model != previous:
            await self.switch_model(model)
        if opened is self.shown:
            self.retry(turn_id)
        if previous is not None and model != previous:
            back = f"To go back: /model {one_line(previous, 200)}"
            self.view.show_message(f"{one_line(model, 60)} answers from now on. {back}", seconds=8)

    def check_can_retry(self) -> None:
        """Raise EdgechatError if no reply of the conversation that is shown can be regenerated now."""
        if self.shown.is_answering:
            raise ChatBusy("An answer is being generated.", hint="Stop it first: Escape.")
        if not self.shown.can_retry:
            raise ChatNotFound("There is no question yet to answer again.")

    def continue_reply(self) -> None:
        """Continue the last reply of the conversation that is shown. Raises EdgechatError."""
        if self.shown.is_answering:
            raise ChatBusy("An answer is being generated.", hint="Stop it first: Escape.")
        if not self.shown.can_continue:
            raise nothing_to_continue()
        self._answer(self.shown, self.shown.continue_reply())

    def _answer(self, opened: OpenConversation, answering: Coroutine[Any, Any, None]) -> None:
        self._end_idle_work()
        self.view.run_in_background(self._wait_for(opened, opened.start(answering)))
        self.view.refresh_chat()

    async def _wait_for(self, opened: OpenConversation, answer: asyncio.Task[None]) -> None:
        began = time.monotonic()
        try:
            await asyncio.wait([answer])
        finally:
            answer.cancel()
        if self.view.is_open:
            self._begin_with_arrived()
            self._ask_next(opened)
            if time.monotonic() - began >= _LONG and not opened.is_answering:
                self._announce_end(opened)
            self._begin_idle_work(opened)
            self._close_answered()
            self._begin_with_arrived()
            self.view.refresh_chat()
        if not answer.cancelled():
            answer.result()

    def _ask_next(self, opened: OpenConversation) -> None:
        """Send the next question that waits in a conversation."""
        if self._is_closing or self.is_awaiting_model or opened.is_answering or not opened.waiting:
            return
        question = opened.next_question()
        if question is not None:
            self._answer(opened, opened.ask(question))
            self._waiting_changed(opened)

    def _begin_idle_work(self, opened: OpenConversation) -> None:
        """Title a conversation, and embed documents; a question, or another model, ends that at once."""
        if not self._is_closing and not self.answering:
            self._idle_work = asyncio.create_task(self._work_idly(opened))

    async def _work_idly(self, opened: OpenConversation) -> None:
        conversation = opened.conversation
        is_complete = opened.turns and opened.turns[-1].state == "complete"
        if conversation is not None and conversation.has_first_title and is_complete:
            await self._title(conversation)
        await self._embed_documents(opened)

    async def _title(self, conversation: Conversation) -> None:
        with suppress(EdgechatError):  # the first question stays the title
            title = await self.session.suggest_title(conversation)
            if title and await conversation.retitle(title) and self.view.is_open:
                self.view.refresh_chat()

    async def _embed_documents(self, opened: OpenConversation) -> None:
        activity = ""

        def show(progress: Progress) -> None:
            nonlocal activity
            activity = f"Embedding passages of {one_line(progress.name, 30)}"
            opened.show_activity(activity, progress.done / progress.total)

        try:
            await self.session.embed_documents(show)
        finally:
            if activity and opened.activity[0] == activity:
                opened.show_activity("")

    def _end_idle_work(self) -> None:
        if self._idle_work is not None:
            self._idle_work.cancel()

    def _announce_end(self, opened: OpenConversation) -> None:
        if opened.conversation is not None and opened.turns:
            how = _ENDED.get(opened.turns[-1].state, "was interrupted")
            self.view.announce(f"{opened.conversation.chat.title}: the answer {how}.")

    def _close_answered(self) -> None:
        """Close background conversations whose replies have ended, and show a message for each."""
        ended = [opened for opened in self._background if not opened.is_busy]
        self._background = [opened for opened in self._background if opened.is_busy]
        for opened in ended:
            if opened.conversation is not None and opened.is_stored:
                title = one_line(opened.conversation.chat.title, 50)
                how = _ENDED.get(opened.turns[-1].state, "was interrupted")
                self.view.show_message(f"The reply in “{title}” {how}.")

    # Documents.

    @property
    def is_reading(self) -> bool:
        """Whether documents are being added."""
        return self._reading is not None and not self._reading.done()

    def add_documents(self, path: str) -> None:
        """Read a folder or file in the background, and search it in the conversation that is shown.

        Raises DocumentError if another one is being read.
        """
        if self.is_reading:
            raise DocumentError("Other documents are being read.", hint="Escape stops that.")
        self._reading = asyncio.create_task(self._read_documents(self.shown, path))
        self.view.run_in_background(self._wait_for_reading(self._reading))

    async def _read_documents(self, opened: OpenConversation, path: str) -> None:
        def show(activity: str, share: float | None = None) -> None:
            if not opened.is_answering and self.is_reading:
                opened.show_activity(activity, share)

        show("Looking for documents")
        try:
            told = await add_documents(self.session, opened, path, progress_on_loop(show))
            self.view.show_message(told)
        finally:
            show("")

    async def _wait_for_reading(self, reading: asyncio.Task[None]) -> None:
        try:
            await asyncio.wait([reading])
        finally:
            reading.cancel()
        if self._is_closing:
            return
        self.view.refresh_chat()
        if reading.cancelled():
            self.view.show_message("Stopped. What has been read is kept; the same command goes on.")
        else:
            reading.result()

    def stop_reading(self) -> None:
        """Stop adding documents; what has been read is kept."""
        if self._reading is not None:
            self._reading.cancel()

    # The model.

    @cached_property
    def downloads(self) -> ModelDownloads:
        """The models that are downloaded in the background."""
        from edgechat.tui.chat.model_downloads import ModelDownloads
        from edgechat.tui.models.library import ModelLibrary

        return ModelDownloads(self.view, self._library or ModelLibrary.real(), self)

    @property
    def current_model(self) -> str | None:
        """The name of the model that answers now: of a file, its path."""
        model = self.session.model
        return lasting_name(model) if model is not None else None

    async def switch_model(self, name: str) -> None:
        """Let a model answer from now on, and load it. Raises EdgechatError."""
        session = self.session
        if self.answering:
            raise ChatBusy("An answer is being generated.", hint="Stop it first: Escape.")
        self._end_idle_work()
        self.view.clear_messages()
        self.shown.show_activity(f"Inspecting {one_line(name, 60)}")
        try:
            plan = await session.switch_model(name)
            self._show_plan(plan)
            engine = await session.engine()
            await engine.start(load_shown(self._show_load, engine))
            if engine.plan.remote is not None:
                self._show_plan(engine.plan)
            await session.remember_model()
        except EngineClosed:  # another one was chosen meanwhile
            return
        except EdgechatError as error:
            self._show_switched()
            self.model_failed(error)
            raise
        self._show_switched()
        self.view.show_message(f"Switched to {one_line(plan.model_name, 60)}.", seconds=4)
        self._ask_waiting(name)

    def _show_switched(self) -> None:
        self.shown.show_activity("")
        self.view.show_loaded()

    def _show_load(self, activity: str, share: float | None) -> None:
        # A question that waits for a program waits with it; of others its reply shows the progress.
        if not self.shown.is_answering or activity.startswith("Starting"):
            self.shown.show_activity(activity, share)

    def _show_plan(self, plan: LoadPlan) -> None:
        """Show which model is loaded, and why."""
        self.view.show_model(plan)
        self.shown.transcript.show_model(plan)

    # Waiting for a model that is being downloaded: see ModelDownloads.awaited.

    @property
    def is_awaiting_model(self) -> bool:
        """Whether questions wait for a model that is being downloaded."""
        return "downloads" in self.__dict__ and self.downloads.is_awaiting

    def await_model(self, pull: Pull | None, follower: Pull | None = None) -> None:
        """Let the model of a download answer once it is here. follower: the download of a better one."""
        downloads = self.downloads
        downloads.awaited, downloads.follower = pull, follower
        self._remember_downloads()
        if pull is not None:
            self.awaited_changed(pull)  # it may be over already

    async def _resume_downloads(self, store: Store) -> None:
        """Go on with what was awaited when the app was closed. Raises StoreError."""
        names = await remembered_downloads(store)
        if any(names) and not self._is_named:
            awaited, follower = (self.downloads.pulls.start(name) if name else None for name in names)
            answers = self.session.model == DEFAULT_MODEL  # another one was chosen since
            self.await_model(awaited if answers else None, follower or (None if answers else awaited))

    def _remember_downloads(self) -> None:
        """Let the next start go on with what has not come until then."""
        names = self.downloads.unfinished
        if names != self._unfinished and not self._is_closing:
            self._unfinished = names
            self.view.run_in_background(self._save_downloads(*names))

    async def _save_downloads(self, awaited: str, follower: str) -> None:
        await remember_downloads(await self.session.store(), awaited, follower)

    def ask_guide(self, question: str) -> None:
        """Ask the guide now, while another model is awaited. Raises EdgechatError."""
        if self.session.model not in (None, DEFAULT_MODEL):
            name = one_line(self.current_model or "", 60)
            raise CommandError(f"{name} answers now.", hint="To switch to the guide: /model guide")
        if self.shown.is_answering:
            raise ChatBusy("An answer is being generated.", hint="Stop it first: Escape.")
        self._answer(self.shown, self.shown.ask(UnsentPrompt(question)))

    def awaited_changed(self, pull: Pull) -> None:
        """Show how far the awaited download is; switch to its model, or give back what waits for it."""
        if pull.model is not None:
            self._arrived = pull.model
            self._begin_with_arrived()
        elif pull.is_over:
            for opened in self._all:
                opened.give_back()
            self._close_answered()
            if pull.error is not None:
                hint = " ".join(filter(None, (pull.error.hint, "Ctrl+O resumes it, and the guide answers.")))
                text = f"{one_line(pull.name, 60)} was not downloaded. {pull.error.message}"
                self.shown.transcript.add_problem(EdgechatError(text, hint=hint))
            self.view.refresh_chat()
        self._remember_downloads()
        self._show_notice()

    def model_offered(self) -> None:
        """Show, or withdraw, the offer of another model."""
        self._remember_downloads()
        self._show_notice()
        self.view.refresh_chat()

    def _begin_with_arrived(self) -> None:
        if self._arrived is not None and not self.answering:
            name, self._arrived = self._arrived, None
            self.view.run_in_background(self._switch_to_awaited(name))

    async def _switch_to_awaited(self, name: str) -> None:
        try:
            await self.switch_model(name)
        except EdgechatError:
            self.downloads.awaited = None
            for opened in self._all:
                opened.give_back()
            self._show_notice()
            raise

    def _ask_waiting(self, name: str) -> None:
        """Ask the questions that waited for a model, now that one was switched to."""
        if "downloads" in self.__dict__:
            self.downloads.awaited = self.downloads.stand_in = None
            self.downloads.withdraw_offer(name)
            self._remember_downloads()
        for opened in self._all:
            self._ask_next(opened)
        self._show_notice()

    def _show_notice(self) -> None:
        if "downloads" in self.__dict__:
            self.view.show_notice(self.downloads.notice(waits=bool(self.shown.waiting)))
