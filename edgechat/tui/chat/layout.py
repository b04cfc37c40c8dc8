"""Layout of the chat screen, and the ChatView methods that only display something."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, cast

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widgets import Static

from edgechat.base.errors import EdgechatError
from edgechat.base.text import one_line
from edgechat.tui.chat.prompt.box import PromptBox
from edgechat.tui.chat.prompt.pane import PromptPane
from edgechat.tui.transcript.transcript import Transcript
from edgechat.tui.transcript.welcome import WelcomePiece
from edgechat.tui.widgets.dialogs import AppScreen
from edgechat.tui.widgets.key_bar import KeyBar
from edgechat.tui.widgets.lines import Activity, NewLines, StatusBar

if TYPE_CHECKING:
    from edgechat.planner.plan import LoadPlan
    from edgechat.tui.chat.views import Status, TranscriptView
    from edgechat.tui.transcript.turns import ConversationView


_MAX_MESSAGE = 240
"""Maximum number of characters in a message beside the chat."""


class ChatLayout(AppScreen[None]):
    """The widgets of the chat screen. `ChatScreen` implements the rest of `ChatView`."""

    DEFAULT_CSS = """
    ChatLayout {
        #columns { height: 1fr; }
        #chat { width: 1fr; }
        /* As wide as the transcript's pieces, beside a column for the scroll bar. */
        #foot { height: auto; align-horizontal: center; padding-right: 1; }
        #foot > * { max-width: 104; }
        #above { height: 1; }
        #activity { width: 1fr; }
        #notice { display: none; height: auto; max-height: 3; padding: 0 1; color: $accent; }
        Sidebar, EngineRoom { display: none; height: 1fr; }
        &.-listing Sidebar { display: block; width: 27%; min-width: 30; max-width: 48; }
        &.-inspecting EngineRoom { display: block; width: 48; }
        &.-wide EngineRoom { border-left: vkey $divider; }
        &.-narrow.-listing EngineRoom { display: none; }
        &.-narrow.-listing Sidebar { width: 1fr; max-width: 100%; }
        &.-narrow.-inspecting EngineRoom, &.-normal.-inspecting EngineRoom { width: 1fr; }
        /* Of a chat that is covered, the keys stay. */
        &.-narrow.-listing, &.-narrow.-inspecting, &.-normal.-inspecting {
            #chat { dock: bottom; width: 100%; height: auto; }
            #foot > * { max-width: 100%; }
            Transcript, Activity, PromptPane, StatusBar { display: none; }
        }
        &.-low PromptBox { max-height: 4; }
        &.-low Chips, &.-tiny Chips { height: 1; }
        &.-low Completions { max-height: 5; }
        &.-tiny Completions { max-height: 2; border: none; }
        &.-low FooterSheet, &.-tiny FooterSheet { display: none; }
        &.-tiny PromptBox { max-height: 1; border: none; }
        &.-tiny StatusBar { display: none; }
        &.-tiny #notice { max-height: 1; }
    }
    """
    VERTICAL_BREAKPOINTS = [(0, "-tiny"), (8, "-low"), (16, "-high")]  # noqa: RUF012  (as in Screen)

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (90, "-normal"), (130, "-wide")]  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self._shown: ConversationView | None = None
        self._welcome = WelcomePiece()
        """The start page of the first new conversation."""

    def compose(self) -> ComposeResult:
        with Horizontal(id="columns"), Vertical(id="chat"):
            yield Transcript(id="transcript")
            with Vertical(id="foot"):
                with Horizontal(id="above"):
                    yield Activity(id="activity")
                    yield NewLines(id="new-lines")
                yield Static(id="notice", markup=False)
                yield PromptPane(id="pane")
                yield StatusBar(id="status")
                yield KeyBar(id="keys")

    @property
    def transcript(self) -> Transcript:
        return self.query_one(Transcript)

    @property
    def pane(self) -> PromptPane:
        return self.query_one(PromptPane)

    @property
    def prompt(self) -> PromptBox:
        return self.query_one(PromptBox)

    @property
    def status(self) -> StatusBar:
        return self.query_one(StatusBar)

    @property
    def is_open(self) -> bool:
        return self.is_attached

    def run_in_background(self, work: Coroutine[Any, Any, object], *, ignore_errors: bool = False) -> None:
        async def run() -> None:
            try:
                await work
            except EdgechatError as error:
                if not ignore_errors:
                    self.show_error(error)

        self.run_worker(run(), group="background", exit_on_error=not ignore_errors)

    def show_message(self, message: str, *, warning: bool = False, seconds: float = 5) -> None:
        self.notify(message, severity="warning" if warning else "information", timeout=seconds, markup=False)

    def clear_messages(self) -> None:
        self.app.clear_notifications()

    def warn(self, message: str) -> None:
        self.show_message(message, warning=True, seconds=8)

    def show_error(self, error: EdgechatError) -> None:
        message = one_line(error.message, _MAX_MESSAGE)
        message += f"\n{one_line(error.hint, _MAX_MESSAGE // 2)}" if error.hint else ""
        self.notify(message, severity="error", timeout=10, markup=False)

    def point_at(self, turn: str) -> None:
        self.transcript.point_at(turn)

    def toggle_thought(self, turn: str) -> None:
        self.transcript.toggle_thoughts(turn)

    def show_model(self, plan: LoadPlan) -> None:
        self.status.model = plan.model_name

    def show_notice(self, text: str) -> None:
        notice = self.query_one("#notice", Static)
        if text != str(notice.content):
            notice.update(text)
            notice.display = bool(text)

    def show_downloads(self, line: str) -> None:
        self.status.pulling = line

    @property
    def clipboard(self) -> str:
        return self.app.clipboard

    def copy(self, text: str) -> None:
        self.app.copy_to_clipboard(text)

    def show_transcript(self, transcript: TranscriptView, turn: str = "") -> None:
        if self._shown is not None:
            self.app.clear_notifications()  # they were about the previous conversation
            self._shown.hide()
        self._shown = cast("ConversationView", transcript)  # there is no other implementation here
        self._shown.show_in(self.transcript, turn=turn)

    def show_status(self, status: Status) -> None:
        line = self.query_one(Activity)
        activity, share, cached = status.activity
        if activity:
            line.show(activity, share, cached)
        else:
            line.clear()
        bar = self.status
        bar.used, bar.speed, bar.speedup, bar.think = status.used, status.speed, status.speedup, status.think
        bar.has_tools = bool(status.tools)
        bar.adapters = tuple(status.adapters)
        bar.context = status.context or bar.context

    def find(self, words: str) -> bool:
        found = self._find(words)
        if found:
            self.transcript.focus(scroll_visible=False)
        return found

    async def edit_prompt(self) -> None:
        from edgechat.tui.terminal.programs import edit

        self.prompt.replace_text(await edit(self.app, self.prompt.text))
        self.prompt.focus()

    async def set_theme(self, name: str) -> None:
        await self.app.set_theme(name)  # type: ignore[attr-defined]

    def _find(self, words: str, turn: str = "") -> bool:
        """Highlight words in this conversation and go to the first match; return whether there is one."""
        from edgechat.tui.transcript.pieces import Finder

        return self.transcript.find(Finder(words), turn=turn)
