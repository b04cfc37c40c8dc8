"""The chat screen: conversations at the left, the engine room at the right, and between them the chat.

It shows one talk and asks it for more. Panels that are not on the first frame are imported when they are
first opened. The file is long because every key and message of the screen ends here; what they lead to is
in ConversationView, ConversationManager, Panels, ModelController, and `obey`.
"""

from __future__ import annotations

import gc
from collections.abc import Coroutine
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar

from textual import events, on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import Screen
from textual.worker import Worker

from edgechat.errors import EdgechatError, EngineClosed
from edgechat.text import one_line
from edgechat.tui.chat.activity import Activity
from edgechat.tui.chat.prompt.box import PromptBox
from edgechat.tui.chat.prompt.pane import PromptPane
from edgechat.tui.chat.status import KeyBar, StatusBar
from edgechat.tui.terminal.resizing import StaleResizeFilter
from edgechat.tui.transcript.pieces import ThoughtPiece, WelcomePiece
from edgechat.tui.transcript.transcript import Transcript

if TYPE_CHECKING:
    from edgechat.chat.records import Turn
    from edgechat.chat.session import ChatSession, SessionServices
    from edgechat.planner.plan import LoadPlan
    from edgechat.settings import Backend
    from edgechat.tui.chat.conversation_manager import ConversationManager
    from edgechat.tui.chat.conversation_view import ConversationView, UnsentPrompt
    from edgechat.tui.chat.models import ModelController
    from edgechat.tui.chat.panels import Panels
    from edgechat.tui.models.shelf import ModelLibrary


_WHY = "Ctrl+O shows why, and what else fits this machine."
_TOLD = 240
"""Letters of a message beside the chat."""


class ChatScreen(StaleResizeFilter, Screen[None]):
    """Where people talk with a model."""

    DEFAULT_CSS = """
    ChatScreen {
        #columns { height: 1fr; }
        #chat { width: 1fr; }
        #foot { height: auto; align-horizontal: center; }
        #foot > * { margin: 0 1; max-width: 102; }
        #keys { padding: 0 2; }
        Sidebar, EngineRoom { display: none; height: 1fr; }
        &.-listing Sidebar { display: block; width: 34; }
        &.-inspecting EngineRoom { display: block; width: 48; }
        &.-narrow.-listing #chat, &.-narrow.-listing EngineRoom { display: none; }
        &.-narrow.-listing Sidebar { width: 1fr; }
        &.-narrow.-inspecting #chat, &.-normal.-inspecting #chat { display: none; }
        &.-narrow.-inspecting EngineRoom, &.-normal.-inspecting EngineRoom { width: 1fr; }
        &.-low PromptBox { max-height: 4; }
        &.-tiny PromptBox { max-height: 1; border: none; }
        &.-tiny StatusBar { display: none; }
    }
    """
    AUTO_FOCUS = ""  # it would let late keys overtake early ones
    VERTICAL_BREAKPOINTS = [(0, "-tiny"), (8, "-low"), (16, "-high")]  # noqa: RUF012  (as in Screen)

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (90, "-normal"), (130, "-wide")]  # noqa: RUF012

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "give_prompt_back", "Leave it"),
        Binding("escape", "stop", "Stop"),
        Binding("escape", "to_prompt", "Back"),
        Binding("escape", "clear_toasts", "Close the message", show=False),
        Binding("ctrl+r", "retry", "Again"),
        Binding("ctrl+n", "new_chat", "New chat"),
        Binding("ctrl+b", "conversations", "Chats"),
        Binding("ctrl+f", "search", "Search", priority=True),
        Binding("ctrl+g", "engine_room", "Engine"),
        Binding("ctrl+t", "thoughts", "Thinking"),
        Binding("f3", "switch_thinking", "Think on or off", show=False),
        Binding("f4", "parameters", "System prompt and parameters", show=False),
        Binding("ctrl+up", "turns", "Go to the turns", show=False, priority=True),
        Binding("ctrl+z", "undo_delete", "Undo the deletion", show=False, priority=True),
        Binding("pageup", "scroll('page_up')", "Page up", show=False),
        Binding("pagedown", "scroll('page_down')", "Page down", show=False),
        Binding("ctrl+home", "scroll('home')", "To the beginning", show=False),
        Binding("ctrl+end", "scroll('end')", "To the end", show=False),
    ]

    def __init__(
        self,
        services: SessionServices | None,
        model: str | None,
        *,
        library: ModelLibrary | None,
        anyway: bool,
        draft: str | None,
        backend: Backend | None,
    ) -> None:
        super().__init__()
        self._backend = backend
        self._anyway = anyway
        self._draft_wish = draft
        self._services = services
        self._library = library
        self._wanted_model = model
        self._session: ChatSession | None = None
        self._talk: ConversationView | None = None
        # What was typed before the prompt has the keys; None from then on.
        self._early: list[events.Key | events.Paste] | None = []
        self._welcome = WelcomePiece()
        self._told_plan: LoadPlan | None = None

    def compose(self) -> ComposeResult:
        """From left to right, and from top to bottom."""
        with Horizontal(id="columns"), Vertical(id="chat"):
            yield Transcript(id="transcript")
            with Vertical(id="foot"):
                yield Activity(id="activity")
                yield PromptPane(id="pane")
                yield StatusBar(id="status")
        yield KeyBar(id="keys")

    def on_mount(self) -> None:
        """Begin a new chat, and open everything behind it once the first frame is on the screen."""
        self.transcript.add(self._welcome)
        # After the keys that the terminal has already, and those that wait for the app.
        self.call_after_refresh(self.app.call_later, self._open_prompt)
        self.call_after_refresh(self._open)

    def _open_prompt(self) -> None:
        self.set_focus(self.prompt)
        early, self._early = self._early or [], None
        self.prompt.take(early)

    def _forward_event(self, event: events.Event) -> None:
        if self._early is not None and isinstance(event, events.Key | events.Paste):
            self._early.append(event)
        else:
            super()._forward_event(event)

    @property
    def transcript(self) -> Transcript:
        """The transcript."""
        return self.query_one(Transcript)

    @property
    def is_opening(self) -> bool:
        """Whether the prompt has not had the keys yet; they are kept for it."""
        return self._early is not None

    def focus_text(self) -> None:
        """Give the prompt the keys, for text that is typed or pasted where it means nothing."""
        self.panels.uncover()
        if not self.prompt.focusable:
            self.app.stylesheet.update(self)  # which else waits until nothing is left to do
        self.set_focus(self.prompt)

    @property
    def pane(self) -> PromptPane:
        """The prompt, with completions and attachments."""
        return self.query_one(PromptPane)

    @property
    def prompt(self) -> PromptBox:
        """The prompt box."""
        return self.query_one(PromptBox)

    @property
    def activity(self) -> Activity:
        """The line that says what goes on."""
        return self.query_one(Activity)

    @property
    def status(self) -> StatusBar:
        """The footer."""
        return self.query_one(StatusBar)

    @property
    def session(self) -> ChatSession:
        """What stands behind the screen."""
        if self._session is None:
            # SQLite and the engine come with it: 40 ms that the first frame does not wait for.
            from edgechat.chat.session import ChatSession, SessionServices

            services = self._services or SessionServices.real(
                anyway=self._anyway, draft=self._draft_wish, backend=self._backend
            )
            self._session = ChatSession(services, self._wanted_model)
            self._session.on_note = self.tell_note
        return self._session

    @property
    def talk(self) -> ConversationView:
        """The conversation that is shown."""
        if self._talk is None:
            from edgechat.tui.chat.conversation_view import ConversationView

            self._talk = ConversationView(self.session, welcome=self._welcome)
            self._take_up(self._talk)
        return self._talk

    @cached_property
    def panels(self) -> Panels:
        """What is beside the chat."""
        from edgechat.tui.chat.panels import Panels

        return Panels(self)

    @cached_property
    def desk(self) -> ConversationManager:
        """The conversations, shown and behind."""
        from edgechat.tui.chat.conversation_manager import ConversationManager

        return ConversationManager(self)

    @cached_property
    def models(self) -> ModelController:
        """Which model answers, and which are being pulled."""
        from edgechat.tui.chat.models import ModelController
        from edgechat.tui.models.shelf import ModelLibrary

        return ModelController(self, self._library or ModelLibrary.real(self._backend))

    @property
    def answering(self) -> bool:
        """Whether a question that is shown waits for its reply to end."""
        return self._talk is not None and self._talk.answering

    async def wind_down(self) -> None:
        """Save what is being written and what was computed, end the worker, close the store."""
        if "models" in self.__dict__:
            await self.models.pulls.close()
        if self._talk is not None:
            await self.desk.wind_down()
        if self._session is not None:
            self.activity.show("Closing")
            await self._session.close()

    # Opening: the store, the plan, the model.

    @work(group="open")
    async def _open(self) -> None:
        from edgechat.planner.drafting import asks_for_drafts
        from edgechat.tui.chat.command_handlers import arguments

        session = self.session
        self.pane.arguments = partial(arguments, self)
        try:
            await session.store()
            said = await session.read_settings()
            if not self.talk.id:
                self.talk.system = said.system
            await self.desk.restore()
            await self.panels.restore()
            self.talk.tell("Looking for the model")
            engine = await session.engine()
            if session.plan is not None:
                self.tell_plan(session.plan)
            if session.is_first_run and self._has_shelf:
                self.tries(self.models.first_run())
            self.tell_load(0.0)
            info = await engine.start(self.tell_load)
            self.panels.shows_model()
            if info.no_draft and asks_for_drafts(self._draft_wish):
                self.tell_note(info.no_draft)
            await session.remember_model()
            self._tell_opened()
        except EngineClosed:
            pass  # another model was taken meanwhile, which tells of itself
        except EdgechatError as exc:
            self._tell_opened(exc)
        # All that is loaded by now stays: looking through it for garbage would hold up a key for 40 ms.
        gc.collect()
        gc.freeze()

    def _tell_opened(self, error: EdgechatError | None = None) -> None:
        # A question that waits for the same thing will tell of it.
        if not self.answering:
            if error is not None:
                self.talk.tell_problem(error)
            self.talk.tell("")

    @property
    def _has_shelf(self) -> bool:
        return self._services is None or self._library is not None

    def tell_load(self, share: float) -> None:
        """Show how far the model is loaded."""
        if not self.answering:
            self.talk.tell("Loading the model", share)

    def tell_plan(self, plan: LoadPlan) -> None:
        """Show which model is loaded, and why so."""
        self.status.model = plan.model_name
        # Into the piece at the top, so that it never comes between a question and its answer.
        if plan.reasons and plan is not self._told_plan:
            self._told_plan = plan
            self.talk.note("\n\n" + "\n".join((*plan.notes, plan.reasons[0], _WHY)))

    def tell_note(self, note: str) -> None:
        """Say something for a while, and at the top of a new conversation for good."""
        self.talk.note(f"\n\n{note}")
        self.notify(one_line(note), severity="warning", timeout=10, markup=False)

    # The talk that is shown.

    def show_talk(self, talk: ConversationView, *, turn: str = "") -> None:
        """Show another conversation, at its end or at a turn; one that is being written goes on behind."""
        old = self._talk
        if old is not None and old is not talk:
            old.draft = self.unsent()
            old.hide()
        self._talk = talk
        if old is not None and old is not talk:
            self.desk.left(old)
        self._take_up(talk, turn)
        self.prompt.forget_history()
        self.show_draft(talk.draft)
        self._answering_changed()
        self.show_thinking()

    def _take_up(self, talk: ConversationView, turn: str = "") -> None:
        talk.on_change = self._talk_changed
        talk.on_unsent = self._not_sent
        talk.on_saved = lambda one: self.desk.sent(one)
        talk.on_told = lambda words: self.notify(words, severity="warning", timeout=8, markup=False)
        talk.on_finished = self.panels.finished
        talk.show_in(self.transcript, turn=turn)
        self._talk_changed(talk)

    def _talk_changed(self, talk: ConversationView) -> None:
        if talk is not self._talk or not self.is_attached:
            return
        self.panels.changed(talk)
        words, share = talk.activity
        if words:
            self.activity.show(words, share)
        else:
            self.activity.clear()
        status, engine = self.status, self.session.loaded
        status.used, status.speed, status.speedup = talk.used, talk.speed, talk.speedup
        if engine is not None and engine.model is not None:
            status.context = engine.model.context

    # What is in the prompt.

    def unsent(self) -> UnsentPrompt:
        """Return what is in the prompt and not sent."""
        from edgechat.tui.chat.conversation_view import UnsentPrompt

        shown = self.talk.draft
        return UnsentPrompt(self.prompt.unsent, list(self.pane.attachments), shown.edits, shown.aside)

    def show_draft(self, draft: UnsentPrompt) -> None:
        """Put this into the prompt, in place of what is there."""
        self.talk.draft = draft
        self.pane.put(draft.text, draft.attachments)
        borrowed = "back to what you wrote · Esc" if draft.aside is not None else ""
        self.prompt.border_title = "editing · Esc leaves it" if draft.edits else borrowed
        self.refresh_bindings()

    def borrow_prompt(self, text: str, turn: Turn | None = None) -> None:
        """Put other words for a turn, or a command, into the prompt; Escape brings back what was there."""
        from edgechat.tui.chat.conversation_view import UnsentPrompt

        now = self.unsent()
        aside = None if now.is_empty and turn is None else now
        attachments = list(turn.attachments) if turn is not None else []
        self.show_draft(UnsentPrompt(text, attachments, turn.id if turn is not None else "", aside))
        self.prompt.focus()

    def action_give_prompt_back(self) -> None:
        """Bring back what was set aside in the prompt."""
        from edgechat.tui.chat.conversation_view import UnsentPrompt

        self.show_draft(self.talk.draft.aside or UnsentPrompt())

    def _not_sent(self, talk: ConversationView, draft: UnsentPrompt) -> None:
        if talk is self._talk:
            self.show_draft(draft.before(self.unsent()))
            self.desk.keep(talk)
        else:
            self.desk.not_sent(talk, draft)

    # Asking and answering.

    @on(PromptPane.Asked)
    def _ask(self, event: PromptPane.Asked) -> None:
        from edgechat.tui.chat.conversation_view import UnsentPrompt

        asked = UnsentPrompt(event.text, list(event.attachments), self.talk.draft.edits)
        self.prompt.forget_history()
        self._give_prompt_back_unless_typed()
        if self.talk.answering:
            self._not_sent(self.talk, asked)
        else:
            self.begin(self.talk.ask(asked))

    def _give_prompt_back_unless_typed(self) -> None:
        """Show what was set aside for what has just been sent, before what was typed since."""
        from edgechat.tui.chat.conversation_view import UnsentPrompt

        since = UnsentPrompt(self.prompt.text, list(self.pane.attachments))
        self.show_draft((self.talk.draft.aside or UnsentPrompt()).before(since))

    @on(PromptPane.Refused)
    def _refuse(self) -> None:
        self.prompt.border_subtitle = "still answering · Esc stops"

    @on(PromptPane.Failed)
    def _tell_failure(self, event: PromptPane.Failed) -> None:
        self.tell_error(event.error)

    @on(PromptPane.Commanded)
    def _obey(self, event: PromptPane.Commanded) -> None:
        from edgechat.tui.chat.command_handlers import obey

        self._give_prompt_back_unless_typed()
        self.tries(obey(self, event.name, event.argument))

    def tries(self, doing: Coroutine[Any, Any, object]) -> None:
        """Do something, and say what goes wrong with it."""

        async def done() -> None:
            try:
                await doing
            except EdgechatError as error:
                self.tell_error(error)

        self.run_worker(done(), group="doing")

    def moves(self, doing: Coroutine[Any, Any, object]) -> None:
        """Do what gives the focus to something else, which keys wait for, and say what goes wrong with it."""
        end = self.app.keys.hold()  # type: ignore[attr-defined]

        async def done() -> None:
            try:
                await doing
            finally:
                end()

        self.tries(done())

    def tell_error(self, error: EdgechatError) -> None:
        """Say for a while what went wrong."""
        words = one_line(error.message, _TOLD)
        words += f"\n{one_line(error.hint, _TOLD // 2)}" if error.hint else ""
        self.notify(words, severity="error", timeout=10, markup=False)

    def begin(self, answering: Coroutine[Any, Any, None]) -> None:
        """Let the talk that is shown answer."""
        self.talk.runs(self.run_worker(answering, group="answer"))
        self._answering_changed()

    @on(Worker.StateChanged)
    def _work_changed(self, event: Worker.StateChanged) -> None:
        # Its beginning is `begin`'s to tell: each look at the list of conversations costs some milliseconds.
        if event.worker.group == "answer" and event.worker.is_finished:
            self.desk.settle()
            self._answering_changed()

    def _answering_changed(self) -> None:
        self.pane.is_busy = self.answering
        if not self.answering:
            self.prompt.border_subtitle = ""
        self.panels.refresh()
        self.refresh_bindings()

    async def action_stop(self) -> None:
        """End the reply here; pressed again, or before it has begun, give it up at once."""
        self.app.clear_notifications()
        await self.talk.stop()

    def action_clear_toasts(self) -> None:
        """Take away what was told."""
        self.app.clear_notifications()

    @property
    def _is_borrowed(self) -> bool:
        return self._talk is not None and (self._talk.draft.aside is not None or bool(self._talk.draft.edits))

    def action_retry(self) -> None:
        """Have another try at the last reply; the one so far can be gone back to."""
        self.begin(self.talk.retry())

    def action_new_chat(self) -> None:
        """Leave this conversation, which is in the store, and begin another."""
        if self.talk.is_stored or self.talk.answering:
            self.show_talk(self.desk.new_talk())
        self.prompt.focus()

    def action_thoughts(self) -> None:
        """Unfold or fold the thinking."""
        self.transcript.toggle_thoughts()

    def action_turns(self) -> None:
        """Give the keys to the turns, the last one first."""
        if self.transcript.turns:
            self.transcript.focus(scroll_visible=False)

    def action_to_prompt(self) -> None:
        """Give the keys back to the prompt, and uncover the chat."""
        self.app.clear_notifications()
        self.panels.uncover()
        self.prompt.focus()

    def action_turn(self, what: str) -> None:
        """Do something with the current turn."""
        from edgechat.tui.chat.turn_actions import act

        act(self, self.transcript.current, what)

    def action_copy_reply(self) -> None:
        """Copy the last reply."""
        from edgechat.tui.chat.turn_actions import copy_reply

        copy_reply(self)

    def action_conversations(self) -> None:
        """Show the conversations, or hide them."""
        self.moves(self.panels.toggle_sidebar())

    def action_trash(self) -> None:
        """Show the conversations that were deleted."""
        self.moves(self.panels.show_trash())

    def action_search(self) -> None:
        """Search everything that was ever said; what is typed from now on is searched for."""
        self.moves(self.panels.search(""))

    def action_engine_room(self) -> None:
        """Show what the engine does, or hide it."""
        self.moves(self.panels.toggle_room())

    def action_models(self) -> None:
        """Show the models."""
        self.tries(self.models.show())

    def take_model(self, name: str) -> None:
        """Let another model answer from now on."""
        self.tries(self.models.take(name))

    def action_parameters(self) -> None:
        """Change the system prompt and the parameters of this conversation."""
        from edgechat.tui.chat.command_handlers import edit_parameters

        self.tries(edit_parameters(self))

    def action_switch_thinking(self) -> None:
        """Switch the model's thinking: on, off, and as the model does."""
        from edgechat.tui.chat.command_handlers import next_thinking

        self.tries(next_thinking(self))

    def show_thinking(self) -> None:
        """Show in the footer how the thinking is switched."""
        self.status.think = self.talk.settings.think

    def action_undo_delete(self) -> None:
        """Bring back the conversation that was deleted last."""
        self.tries(self.desk.undo_delete())

    def settings_changed(self) -> None:
        """Heed what the settings say now."""
        self.tries(self.session.read_settings())

    # What the panels and the prompt want; their classes are not imported for it.

    def on_sidebar_chosen(self, event: Any) -> None:
        """Show a conversation."""
        self.panels.uncover()
        self.moves(self.desk.open(event.chat_id, event.turn_id or ""))

    def on_sidebar_renamed(self, event: Any) -> None:
        """Give a conversation another title."""
        self.tries(self._and_refresh(self.desk.rename(event.chat_id, event.title)))

    def on_sidebar_pinned(self, event: Any) -> None:
        """Keep a conversation at the top, or no longer."""
        self.tries(self._and_refresh(self.desk.pin(event.chat_id, event.pinned)))

    def on_sidebar_deleted(self, event: Any) -> None:
        """Ask, then move a conversation to the trash."""
        self.tries(self._and_refresh(self.desk.delete(event.chat_id, ask=True)))

    def on_sidebar_restored(self, event: Any) -> None:
        """Bring a conversation back from the trash."""
        self.panels.uncover()
        self.moves(self._and_refresh(self.desk.restore_deleted(event.chat_id)))

    def on_sidebar_purged(self, event: Any) -> None:
        """Delete a conversation for good, once more asked."""
        self.tries(self._and_refresh(self.desk.purge(event.chat_id)))

    def on_sidebar_exported(self, event: Any) -> None:
        """Write a conversation to a file."""
        self.tries(self.desk.export(event.chat_id))

    def on_sidebar_closed(self) -> None:
        """Give the keys back to the prompt."""
        self.action_to_prompt()

    async def _and_refresh(self, doing: Coroutine[Any, Any, None]) -> None:
        await doing
        self.panels.refresh()

    @on(PromptBox.WantsTurns)
    def _to_turns(self) -> None:
        self.action_turns()

    @on(PromptBox.WantsHistory)
    def _show_history(self) -> None:
        self.tries(self.desk.show_history())

    @on(PromptPane.Changed)
    def _prompt_changed(self) -> None:
        self.desk.typed()

    def action_scroll(self, where: str) -> None:
        """Move in the transcript while the prompt box keeps the keys."""
        getattr(self.transcript, f"action_{where}" if "page" in where else f"action_scroll_{where}")()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Show and allow only what can be done now."""
        match action:
            case "give_prompt_back":
                return self._is_borrowed and self.focused is self.prompt
            case "stop":
                return self.answering
            case "clear_toasts":
                return bool(self.app._notifications)
            case "turn":
                from edgechat.tui.chat.turn_actions import can

                return can(self, self.transcript.current, str(parameters[0]))
            case "retry":
                return self._talk is not None and self._talk.can_retry
            case "thoughts":
                return any(isinstance(piece, ThoughtPiece) for piece in self.transcript.pieces)
            case "undo_delete":
                typing = self.focused is self.prompt and bool(self.prompt.text)
                return "desk" in self.__dict__ and self.desk.can_undo and not typing
            case "to_prompt":
                return self.focused is not self.prompt
            case "turns":
                return self.focused is self.prompt
        return True
