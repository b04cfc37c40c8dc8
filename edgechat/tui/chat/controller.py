"""The chat's controller, independent of Textual: manages conversations, questions and the model in use.

The screen calls it in response to keys and messages, and it displays everything through `ChatView`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from edgechat.base.errors import ChatNotFound, CommandError, EdgechatError, EngineClosed, StoreError
from edgechat.base.text import one_line
from edgechat.chat.conversation import nothing_to_continue
from edgechat.chat.model_choice import DEFAULT_MODEL, lasting_name
from edgechat.chat.records import AttachedImage, Attachment
from edgechat.chat.session import ChatSession
from edgechat.chat.storage.store import Store
from edgechat.engine.protocol import Engine
from edgechat.engine.types import ModelInfo
from edgechat.planner.placement.drafting import asks_for_drafts
from edgechat.planner.plan import LoadPlan
from edgechat.tui.chat.background import FolderReader, IdleWork
from edgechat.tui.chat.models import ChatModels
from edgechat.tui.chat.open_conversation import OpenConversation, still_answering
from edgechat.tui.chat.reply import load_shown
from edgechat.tui.chat.unsent import PromptContent, UnsentPrompt, load_unsent, save_unsent
from edgechat.tui.chat.views import ChatView
from edgechat.tui.models.library import ModelLibrary
from edgechat.tui.models.pulls import Pull

_SAVE_AFTER = 0.8
"""Seconds after the last key press before an unsent prompt is saved."""
_HISTORY = 200
"""Number of questions in the prompt's history."""
_LONG = 15.0
"""Minimum duration, in seconds, of an answer whose end is announced to a user in another window."""
_ENDED = {"complete": "has ended", "stopped": "was stopped", "failed": "has failed"}


class ChatController:
    """Manages the open conversations: the one on screen, and those whose replies continue in the background.

    Each conversation has one UnsentPrompt. It is in the prompt box while the conversation is on screen, and
    in its OpenConversation otherwise. Either way, it is also saved in the store.
    """

    def __init__(
        self,
        view: ChatView,
        session: ChatSession,
        library: ModelLibrary | None = None,
        *,
        draft: str | None = None,
    ) -> None:
        """library: the models to offer, if any. draft: see `planner.request`."""
        self.view = view
        self.session = session
        session.on_note = self.add_note
        self.prompt = PromptContent(view)
        self.models = ChatModels(
            view,
            session,
            library or ModelLibrary.real(),
            on_awaited=self._awaited_changed,
            has_waiting=lambda: bool(self.shown.waiting),
        )
        self.documents = FolderReader(session, view)
        """Reader of the documents that /docs adds."""
        self.deleted: list[str] = []
        """Ids of the conversations deleted since the app started, most recent last."""
        self._offers_models = library is not None
        self._draft_option = draft
        self._background: list[OpenConversation] = []
        self._titles: dict[str, str] = {}
        self._new_unsent = UnsentPrompt()
        """Text typed for a new conversation, held here while a stored one is on screen."""
        self._save_timer: asyncio.TimerHandle | None = None
        self._is_closing = False
        self._idle_work = IdleWork(session, view)
        self._arrived: str | None = None
        """An awaited model that has been downloaded, to switch to once no reply is being generated."""
        self.shown = OpenConversation(session, view, self)
        """The conversation on screen."""
        view.show_transcript(self.shown.transcript)

    # Opening and closing the app.

    async def start(self, *, last: bool = False) -> None:
        """Open the store, restore the unsent prompt, and load the model. Errors are shown.

        last: show the last conversation instead of a new one.
        """
        session, view = self.session, self.view
        try:
            store = await session.store()
            unsent = await load_unsent(store, None)  # before new typing overwrites it
            settings = await session.read_settings()
            if not self.shown.id:
                self.shown.system = settings.system
            await self._begin(store, unsent, last=last)
            await view.restore_panels()
            self.shown.show_activity("Finding the model")
            engine = await session.engine()
            if session.plan is not None:
                self._show_plan(session.plan)
            asks_how_to_begin = session.is_first_run and self._offers_models
            if asks_how_to_begin:
                view.show_first_run()
            self._show_load("Loading the model", 0.0)
            info = await self._load_model(engine)
            view.show_loaded()
            if info.no_draft and asks_for_drafts(self._draft_option):
                self.add_note(info.no_draft)
            if not asks_how_to_begin:  # otherwise done once the user has chosen
                await session.remember_model()
                await self.models.resume(store)
            self._started()
        except EngineClosed:
            pass  # the user has chosen another model
        except EdgechatError as error:
            self._started(error)

    def _started(self, error: EdgechatError | None = None) -> None:
        if error is not None:
            self.models.find_stand_in(error)
        # If a question is waiting for the model, its reply shows the error.
        if not self.shown.is_answering:
            if error is not None:
                self.shown.transcript.add_problem(error)
            self.shown.show_activity("")

    async def close(self) -> None:
        """Save replies and prompts, stop the downloads and the worker, and close the store."""
        self._is_closing = True
        self._idle_work.end()
        self.documents.close()
        await self.models.close()
        await self._save_all()
        self.shown.show_activity("Closing")
        await self.session.close()

    async def _save_all(self) -> None:
        if self._save_timer is not None:
            self._save_timer.cancel()
        for opened in self._all:
            await opened.cancel()
        if self.view.is_open:
            self._take_prompt()
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
        """Ids of the conversations where a reply is being generated."""
        return frozenset(opened.id for opened in self._all if opened.is_answering)

    def title_of(self, chat_id: str) -> str | None:
        """Return the title of a conversation that is, or has been, open."""
        for opened in self._all:
            self._remember_title(opened)
        return self._titles.get(chat_id)

    def _remember_title(self, opened: OpenConversation) -> None:
        if opened.conversation is not None:
            self._titles[opened.id] = opened.conversation.chat.title

    async def open(self, chat_id: str, turn: str = "", *, focus: bool = True) -> None:
        """Show a stored conversation, scrolled to the end or to a turn. Raises EdgechatError.

        focus: whether to focus the prompt.
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
            self.view.prompt.focus()

    async def _begin(self, store: Store, new: UnsentPrompt, *, last: bool) -> None:
        """Restore the text typed for a new conversation, or show the last conversation instead."""
        chat = await store.latest("app") if last else None
        opened = await self._load(chat.id) if chat is not None else None
        if last and opened is None:
            self.view.show_message("The app has no earlier conversations, so this is a new one.")
        if opened is None or self.shown.is_stored or self.shown.is_answering:
            if self.shown.is_stored or self.shown.is_answering:
                self._new_unsent = new
            elif not new.is_empty:
                self.prompt.write_before(new)
            return
        typed = self.prompt.unsent  # typed while the conversation was loading, and meant for it
        self.prompt.write(new)
        self._show(opened)
        self.prompt.write(self.prompt.unsent.before(typed))

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
                f"The last answer came from {was}; the current model is {now}. To switch: /model", seconds=6
            )

    def show_new(self) -> None:
        """Show a new conversation, along with its unsent text."""
        opened = OpenConversation(self.session, self.view, self)
        opened.system = self.session.settings.system
        opened.unsent, self._new_unsent = self._new_unsent, UnsentPrompt()
        self._show(opened)

    def begin_new(self) -> None:
        """Show a new conversation unless the current one is already new."""
        if self.shown.is_stored or self.shown.is_busy:
            self.show_new()
        self.view.prompt.focus()

    def _show(self, opened: OpenConversation, turn: str = "") -> None:
        """Show another conversation. A reply being generated continues in the background."""
        self._take_prompt()
        previous, self.shown = self.shown, opened
        self._leave(previous)
        self.view.show_transcript(opened.transcript, turn)
        self.view.show_status(opened)
        self.view.prompt.forget_history()
        self.prompt.write(opened.unsent)
        self._show_waiting()
        self.view.refresh_chat()

    def _leave(self, opened: OpenConversation) -> None:
        """Save the unsent text of a conversation leaving the screen and, unless it is busy, its KV state."""
        self._remember_title(opened)
        if not (opened.is_stored or opened.is_busy):
            self._new_unsent = opened.unsent
        self._store_typed(opened)
        if opened.is_busy:
            self._background.append(opened)
        elif opened.conversation is not None:
            self.view.run_in_background(self.session.persist(opened.conversation))

    # Called by open conversations: see ConversationListener.

    def conversation_changed(self, opened: OpenConversation) -> None:
        """Update the status if this conversation is on screen."""
        if opened is self.shown and self.view.is_open:
            self.view.show_status(opened)

    def question_saved(self, opened: OpenConversation) -> None:
        """Save the unsent text again, since part of it has become a question."""
        if self.models.stand_in is not None:
            self.models.take_stand_in()
        self._store_typed(opened)
        self._store_unsent(None, self._new_unsent)

    def question_not_sent(self, opened: OpenConversation, prompt: UnsentPrompt) -> None:
        """Put a question back into the prompt, or store it with its conversation if that is not on screen."""
        if opened is self.shown:
            self.prompt.write_before(prompt)
            self._waiting_changed(opened)
        elif opened.is_stored:
            opened.unsent = prompt.before(opened.unsent)
            self._store_typed(opened)
        elif not self.shown.is_stored:
            self.prompt.write_before(prompt)
        else:
            self.view.show_message("A question was not sent; Ctrl+N shows it.", warning=True, seconds=10)
            self._new_unsent = prompt.before(self._new_unsent)
            self._store_unsent(None, self._new_unsent)

    def cannot_see(self, opened: OpenConversation) -> None:
        """Offer a model that can see images."""
        self.view.run_in_background(self.models.find_seeing(), ignore_errors=True)

    def title_if_hidden(self, opened: OpenConversation) -> str:
        """Return the title of a conversation that is off screen, or '' if it is on screen."""
        if opened is self.shown or opened.conversation is None:
            return ""
        return opened.conversation.chat.title

    def model_failed(self, error: EdgechatError) -> None:
        """Offer a local model if a remote one is not responding."""
        self.models.find_stand_in(error)

    def add_note(self, note: str) -> None:
        """Show a warning at the top of a new conversation, or as a message in any other."""
        if not self.shown.transcript.add_note(note):
            self.view.show_message(one_line(note), warning=True, seconds=10)

    # Typed text.

    def _take_prompt(self) -> None:
        """Copy the content of the prompt to the conversation on screen."""
        self.shown.unsent = self.prompt.unsent

    @property
    def unread_tokens(self) -> int:
        """Number of tokens that the current model has yet to read because another model answered before."""
        conversation, model = self.shown.conversation, self.session.model
        if conversation is None or model is None:
            return 0
        is_known = lasting_name(conversation.chat.model) == lasting_name(model)
        return 0 if is_known else self.shown.used or 0

    def prompt_changed(self) -> None:
        """Save the typed text shortly after the last key press."""
        if self._save_timer is not None:
            self._save_timer.cancel()
        self._save_timer = asyncio.get_running_loop().call_later(_SAVE_AFTER, self._save_shown)

    def _save_shown(self) -> None:
        if self.view.is_open:
            self._store_typed(self.shown)

    def _store_typed(self, opened: OpenConversation) -> None:
        """Save a conversation's unsent text in the background."""
        if opened is self.shown and self.view.is_open:
            self._take_prompt()
        self._store_unsent(opened.stored_id, opened.all_unsent)

    def _store_unsent(self, chat_id: str | None, prompt: UnsentPrompt) -> None:
        self.view.run_in_background(self._save_unsent(chat_id, prompt), ignore_errors=True)

    async def _save_unsent(self, chat_id: str | None, prompt: UnsentPrompt) -> None:
        await save_unsent(await self.session.store(), chat_id, prompt)

    async def show_history(self) -> None:
        """Offer earlier questions as the prompt's history."""
        with suppress(StoreError):
            questions = await (await self.session.store()).recent_questions(_HISTORY)
            if questions:
                self.view.prompt.remember(questions)

    # Asking and answering.

    def ask(
        self, text: str, attachments: Sequence[Attachment] = (), images: Sequence[AttachedImage] = ()
    ) -> None:
        """Send the prompt as a question, or as a new version of an earlier one."""
        asked = UnsentPrompt(text, list(attachments), list(images), self.prompt.edits)
        self.view.prompt.forget_history()
        self.prompt.sent()
        shown = self.shown
        if not (shown.is_answering or shown.waiting or self.models.is_awaiting):
            self._answer(shown, shown.ask(asked))
        elif asked.edits:
            self.question_not_sent(shown, asked)
        else:
            shown.waiting.append(asked)
            self._waiting_changed(shown)

    def take_back(self, number: int = -1) -> None:
        """Put a waiting question, the last one by default, back into the prompt."""
        waiting = self.shown.waiting
        if -len(waiting) <= number < len(waiting):
            self.prompt.write_before(waiting.pop(number))
            self._waiting_changed(self.shown)
            self.view.prompt.focus()
            self.view.refresh_chat()

    def _waiting_changed(self, opened: OpenConversation) -> None:
        """Show and save a conversation's waiting questions."""
        if opened is self.shown:
            self._show_waiting()
        self._store_typed(opened)

    def _show_waiting(self) -> None:
        self.view.pane.show_waiting([question.text for question in self.shown.waiting])
        self.models.show_notice()

    def retry(self, turn_id: str = "") -> None:
        """Regenerate a reply (by default the last) in the conversation on screen. Raises EdgechatError."""
        self.check_can_retry()
        self._answer(self.shown, self.shown.retry(turn_id))

    async def retry_with(self, model: str, turn_id: str = "") -> None:
        """Switch to a model and regenerate a reply with it. Raises EdgechatError."""
        self.check_can_retry()
        opened, previous = self.shown, self.session.model
        if model != previous:
            await self.switch_model(model)
        if opened is self.shown:
            self.retry(turn_id)
        if previous is not None and model != previous:
            back = f"To go back: /model {one_line(previous, 200)}"
            self.view.show_message(f"The current model is now {one_line(model, 60)}. {back}", seconds=8)

    def check_can_retry(self) -> None:
        """Raise EdgechatError if no reply on screen can be regenerated now."""
        self.shown.check_not_answering()
        if not self.shown.can_retry:
            raise ChatNotFound("There is no question yet to answer again.")

    def continue_reply(self) -> None:
        """Continue the last reply in the conversation on screen. Raises EdgechatError."""
        self.shown.check_not_answering()
        if not self.shown.can_continue:
            raise nothing_to_continue()
        self._answer(self.shown, self.shown.continue_reply())

    def _answer(self, opened: OpenConversation, answering: Coroutine[Any, Any, None]) -> None:
        self._idle_work.end()
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
            if not self._is_closing and not self.answering:
                self._idle_work.begin(opened)
            self._close_answered()
            self._begin_with_arrived()
            self.view.refresh_chat()
        if not answer.cancelled():
            answer.result()

    def _ask_next(self, opened: OpenConversation) -> None:
        if self._is_closing or self.models.is_awaiting or opened.is_answering or not opened.waiting:
            return
        question = opened.next_question()
        if question is not None:
            self._answer(opened, opened.ask(question))
            self._waiting_changed(opened)

    def _announce_end(self, opened: OpenConversation) -> None:
        if opened.conversation is not None and opened.turns:
            how = _ENDED.get(opened.turns[-1].state, "was interrupted")
            self.view.announce(f"{opened.conversation.chat.title}: the answer {how}.")

    def _close_answered(self) -> None:
        """Close background conversations whose replies have ended, showing a message about each."""
        ended = [opened for opened in self._background if not opened.is_busy]
        self._background = [opened for opened in self._background if opened.is_busy]
        for opened in ended:
            if opened.conversation is not None and opened.is_stored:
                title = one_line(opened.conversation.chat.title, 50)
                how = _ENDED.get(opened.turns[-1].state, "was interrupted")
                self.view.show_message(f"The reply in “{title}” {how}.")

    # The model.

    async def switch_model(self, name: str) -> None:
        """Switch to a model and load it. Raises EdgechatError."""
        session = self.session
        if self.answering:
            raise still_answering()
        self._idle_work.end()
        self.view.clear_messages()
        self.shown.show_activity(f"Inspecting {one_line(name, 60)}")
        try:
            plan = await session.switch_model(name)
            self._show_plan(plan)
            await self._load_model(await session.engine())
            await session.remember_model()
        except EngineClosed:  # the user has chosen another model
            return
        except EdgechatError as error:
            self._show_switched()
            self.models.find_stand_in(error)
            raise
        self._show_switched()
        self.view.show_message(f"Switched to {one_line(plan.model_name, 60)}.", seconds=4)
        self.models.switched_to(name)
        for opened in self._all:
            self._ask_next(opened)
        self.models.show_notice()

    async def _load_model(self, engine: Engine) -> ModelInfo:
        info = await engine.start(load_shown(self._show_load, engine))
        if engine.plan.remote is not None:  # a remote model's capabilities are only known now
            self._show_plan(engine.plan)
        return info

    def _show_switched(self) -> None:
        self.shown.show_activity("")
        self.view.show_loaded()

    def _show_load(self, activity: str, share: float | None) -> None:
        # A waiting question's reply shows the progress itself, except while a program is starting.
        if not self.shown.is_answering or activity.startswith("Starting"):
            self.shown.show_activity(activity, share)

    def _show_plan(self, plan: LoadPlan) -> None:
        """Show which model is being loaded, and why."""
        self.view.show_model(plan)
        self.shown.transcript.show_model(plan)

    async def use_stand_in(self) -> None:
        """Switch to the model offered as a stand-in, or start downloading it. Raises EdgechatError."""
        stand_in = self.models.take_stand_in()
        if stand_in is not None and stand_in.is_here:
            await self.switch_model(stand_in.name)
        elif stand_in is not None:
            self.models.pulls.start(stand_in.name)

    def ask_guide(self, question: str) -> None:
        """Ask the guide while waiting for another model. Raises EdgechatError."""
        if self.session.model not in (None, DEFAULT_MODEL):
            name = one_line(self.models.current or "", 60)
            raise CommandError(
                f"The current model is {name}, not the guide.", hint="To switch to the guide: /model guide"
            )
        self.shown.check_not_answering()
        self._answer(self.shown, self.shown.ask(UnsentPrompt(question)))

    def _awaited_changed(self, pull: Pull) -> None:
        """Show the progress of the awaited download. When it ends, switch models or return the questions."""
        if pull.model is not None:
            self._arrived = pull.model
            self._begin_with_arrived()
        elif pull.is_over:
            self._give_back_waiting()
            self._close_answered()
            if pull.error is not None:
                hint = " ".join(filter(None, (pull.error.hint, "Ctrl+O resumes it, and the guide answers.")))
                text = f"{one_line(pull.name, 60)} was not downloaded. {pull.error.message}"
                self.shown.transcript.add_problem(EdgechatError(text, hint=hint))
            self.view.refresh_chat()
        self.models.remember()
        self.models.show_notice()

    def _give_back_waiting(self) -> None:
        for opened in self._all:
            opened.give_back()

    def _begin_with_arrived(self) -> None:
        if self._arrived is not None and not self.answering:
            name, self._arrived = self._arrived, None
            self.view.run_in_background(self._switch_to_awaited(name))

    async def _switch_to_awaited(self, name: str) -> None:
        try:
            await self.switch_model(name)
        except EdgechatError:
            self.models.awaited = None
            self._give_back_waiting()
            self.models.show_notice()
            raise
