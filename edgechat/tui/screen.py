"""The chat screen: transcript, activity, prompt box, status and keys, from top to bottom."""

from __future__ import annotations

import gc
from collections.abc import Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

from textual import events, on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import Screen
from textual.worker import Worker, WorkerCancelled, WorkerFailed

from edgechat.errors import EdgechatError
from edgechat.tui.activity import Activity
from edgechat.tui.prompt import PromptBox
from edgechat.tui.status import KeyBar, StatusBar
from edgechat.tui.transcript.pieces import NotePiece, ProblemPiece, ThoughtPiece, WelcomePiece
from edgechat.tui.transcript.transcript import Transcript

if TYPE_CHECKING:
    from edgechat.tui.session import Services, Session


class ChatScreen(Screen[None]):
    """Where people talk with a model: it shows what the session does, and asks it for more."""

    DEFAULT_CSS = """
    ChatScreen {
        #foot { height: auto; align-horizontal: center; }
        #foot > * { margin: 0 1; max-width: 102; }
        &.-low PromptBox { max-height: 4; }
        &.-tiny PromptBox { max-height: 1; border: none; }
        &.-tiny StatusBar { display: none; }
    }
    """
    AUTO_FOCUS = ""  # it would let late keys overtake early ones
    VERTICAL_BREAKPOINTS = [(0, "-tiny"), (8, "-low"), (16, "-high")]  # noqa: RUF012  (as in Screen)

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "stop", "Stop"),
        Binding("ctrl+r", "retry", "Try again"),
        Binding("ctrl+n", "new_chat", "New chat"),
        Binding("ctrl+t", "thoughts", "Thinking"),
        Binding("pageup", "scroll('page_up')", show=False),
        Binding("pagedown", "scroll('page_down')", show=False),
        Binding("ctrl+home", "scroll('home')", show=False),
        Binding("ctrl+end", "scroll('end')", show=False),
    ]

    def __init__(
        self, services: Services | None, model: str | None, *, anyway: bool, draft: str | None
    ) -> None:
        super().__init__()
        self._anyway = anyway
        self._draft = draft
        self._services = services
        self._wanted_model = model
        self._session: Session | None = None
        self._answering: Worker[None] | None = None
        self._stopping = False
        self._saving = False  # whether a question is on its way to the store
        self._welcome = WelcomePiece()
        # What was typed before there was a prompt to type into; None since there is one.
        self._early: list[events.Key | events.Paste] | None = []

    def compose(self) -> ComposeResult:
        """From top to bottom."""
        yield Transcript(id="transcript")
        with Vertical(id="foot"):
            yield Activity(id="activity")
            yield PromptBox(id="prompt")
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
    def session(self) -> Session:
        """What stands behind the screen."""
        if self._session is None:
            # SQLite and the engine come with it: 40 ms that the first frame does not wait for.
            from edgechat.tui.session import Services, Session

            services = self._services or Services.real(anyway=self._anyway, draft=self._draft)
            self._session = Session(services, self._wanted_model)
            self._session.on_note = self._tell_note
        return self._session

    @property
    def answering(self) -> bool:
        """Whether a question waits for its reply to end."""
        return self._answering is not None and not self._answering.is_finished

    async def wind_down(self) -> None:
        """Save what is being written and what was computed, end the worker, close the store."""
        if self._answering is not None and self.answering:
            self._answering.cancel()
            with suppress(WorkerCancelled, WorkerFailed):
                await self._answering.wait()
        if self._session is not None:
            self.activity.show("Closing")
            await self._session.close()

    # Opening: the store, the plan, the model.

    @work(group="open")
    async def _open(self) -> None:
        from edgechat.planner.drafting import asks_for_drafts

        session = self.session
        try:
            await session.store()
            self.activity.show("Looking for the model")
            engine = await session.engine()
            self._tell_plan(session)
            self._tell_load(0.0)
            info = await engine.start(self._tell_load)
            self.status.context = info.context
            if info.no_draft and asks_for_drafts(self._draft):
                self._tell_note(info.no_draft)
            await session.remember_model()
        except EdgechatError as exc:
            # A question that waits for the same thing will tell of it.
            if not self.answering:
                self._tell_problem(exc)
        if not self.answering:
            self.activity.clear()
        # All that is loaded by now stays: looking through it for garbage would hold up a key for 40 ms.
        gc.collect()
        gc.freeze()

    def _tell_load(self, share: float) -> None:
        self.activity.show("Loading the model", share)

    def _tell_plan(self, session: Session) -> None:
        if session.plan is None or self.status.model:
            return
        self.status.model = session.plan.model_name
        if session.missing is not None:
            note = f"{session.missing}, used last time, is gone; {session.plan.model_name} stands in for it."
            self.transcript.add(NotePiece(note, "warning"))
        # Into the piece at the top, so that it never comes between a question and its answer.
        if session.plan.reasons:
            told = (*session.plan.notes, *session.plan.reasons)
            self.transcript.append(self._welcome, "\n\n" + "\n".join(told))

    def _tell_note(self, note: str) -> None:
        # At the top for good, where it comes between no question and its answer; and now where one looks.
        self.transcript.append(self._welcome, f"\n\n{note}")
        self.notify(note, severity="warning", timeout=10, markup=False)

    def _tell_problem(self, error: EdgechatError) -> None:
        self.transcript.add(ProblemPiece(error.message, error.hint))

    # Asking and answering.

    @on(PromptBox.Submitted)
    def _send(self, event: PromptBox.Submitted) -> None:
        if self.answering:
            self.prompt.border_subtitle = "still answering · Esc stops"
            self.prompt.put_back(event.text)
            return
        self._begin(self._ask(event.text))

    def _begin(self, answering: Coroutine[Any, Any, None]) -> None:
        self._stopping = False
        self._answering = self.run_worker(answering, group="answer")
        self.refresh_bindings()

    async def _ask(self, text: str) -> None:
        from edgechat.tui.transcript.turns import pieces_of

        turn, known, self._saving = None, 0, True
        try:
            conversation = await self.session.talk()
            known = len(conversation.turns)
            turn = await conversation.ask(text)
            if self._stopping:
                await conversation.take_back_question()
                turn = None
        except EdgechatError as exc:
            self._tell_problem(exc)
        finally:
            self._saving = False
        if turn is None:
            self.activity.clear()
            self.prompt.put_back(text)
            return
        # Before the question comes what `edgechat run` has said in this chat meanwhile.
        for said in conversation.turns[known:]:
            self.transcript.add(*pieces_of(said))
        self.transcript.anchor()
        await self._answer()

    async def _answer(self) -> None:
        from edgechat.tui.answer import Answer

        try:
            session = self.session
            conversation, engine = await session.talk(), await session.engine()
            self._tell_plan(session)
            await conversation.use_model(session.model or "")
            question = conversation.turns[-1]
            answer = Answer(self.transcript, self.activity, self.status)
            await answer.run(conversation, engine, session.manner)
            if question not in conversation.turns:
                self.transcript.remove_question()
                self.prompt.put_back(question.content)
            if engine.model is not None:
                self.status.context = engine.model.context
        except EdgechatError as exc:
            self._tell_problem(exc)

    @on(Worker.StateChanged)
    def _work_changed(self) -> None:
        if not self.answering:
            self.prompt.border_subtitle = ""
        self.refresh_bindings()

    async def action_stop(self) -> None:
        """End the reply here; pressed again, or before it has begun, give it up at once.

        A question on its way to the store comes back from there.
        """
        if self._answering is None:
            return
        conversation = self.session.conversation
        told = not self._stopping and conversation is not None and await conversation.stop()
        self._stopping = True
        if told or self._saving:
            self.activity.show("Stopping")
        else:
            self._answering.cancel()

    def action_retry(self) -> None:
        """Ask the last question once more."""
        if self.session.conversation is not None:
            self.session.conversation.take_back_reply()
            self._begin(self._answer())

    def action_new_chat(self) -> None:
        """Leave this conversation, which is in the store, and begin another."""
        self.run_worker(self.session.leave(), group="leave")
        self.transcript.remove_from(0)
        self._welcome = WelcomePiece()
        self.transcript.add(self._welcome)
        self.status.used = 0
        self.refresh_bindings()

    def action_thoughts(self) -> None:
        """Unfold or fold the thinking."""
        self.transcript.toggle_thoughts()

    def action_scroll(self, where: str) -> None:
        """Move in the transcript while the prompt box keeps the keys."""
        getattr(self.transcript, f"action_{where}" if "page" in where else f"action_scroll_{where}")()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Show and allow only what can be done now."""
        conversation = self._session.conversation if self._session is not None else None
        match action:
            case "stop":
                return self.answering
            case "new_chat":
                return not self.answering
            case "retry":
                return not self.answering and conversation is not None and conversation.can_retry
            case "thoughts":
                return any(isinstance(piece, ThoughtPiece) for piece in self.transcript.pieces)
        return True
