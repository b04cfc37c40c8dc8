"""The Textual app: one screen, the terminal's own colours, and a clean way out.

What is imported here and in `screen` stands between the user and the first frame (0.25 s, nearly all of it
Textual); everything else comes after it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, ClassVar

from textual.app import App
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.worker import WorkerFailed

from edgechat.errors import EdgechatError
from edgechat.tui.screen import ChatScreen
from edgechat.tui.signals import EndSignals, heed_hang_up
from edgechat.tui.theme import TERMINAL

if TYPE_CHECKING:
    from edgechat.tui.session import Services


class EdgechatApp(App[None]):
    """edgechat in a terminal. `services` are the layers below, edgechat's own where none are given."""

    TITLE = "edgechat"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+q", "quit", "Quit", priority=True),
        Binding("ctrl+c", "copy_or_quit", show=False, priority=True),
    ]

    def __init__(
        self,
        model: str | None = None,
        *,
        anyway: bool = False,
        draft: str | None = None,
        services: Services | None = None,
    ) -> None:
        """anyway: load the model although it does not seem to fit. draft: see `planner.wishes`."""
        # Said here already: Textual picks its filters (NO_COLOR's too) before the theme is known.
        super().__init__(ansi_color=True)
        self.fault: Exception | None = None
        """What ended the app if not the user, or went wrong as it ended."""
        self._chat = ChatScreen(services, model, anyway=anyway, draft=draft)
        self.register_theme(TERMINAL)
        self.theme = TERMINAL.name
        # Scrolling that glides takes the processor from the model, and races with text that moves.
        self.animation_level = "none"

    def get_default_screen(self) -> Screen[None]:
        """Return the chat."""
        return self._chat

    def on_mount(self) -> None:
        """Leave by the same door whatever tells us to, and come back from a stop (SIGTSTP) with a picture."""
        self.app_resume_signal.subscribe(self, lambda _: self.refresh(layout=True))
        if threading.current_thread() is threading.main_thread():
            self._signals = EndSignals(self.action_quit)

    def _handle_exception(self, error: Exception) -> None:
        if isinstance(error, WorkerFailed) and isinstance(error.error, Exception):
            error = error.error
        self.fault = self.fault or error
        super()._handle_exception(error)

    def _fatal_error(self) -> None:
        # Textual's own fills the terminal with a traceback; what is to be said is said by `run_app`'s caller.
        self._close_messages_no_wait()

    async def action_quit(self) -> None:
        """Save what is being written, then end."""
        try:
            await self._chat.wind_down()
        except EdgechatError as error:
            self.fault = error
        heed_hang_up()
        self.exit()

    async def action_copy_or_quit(self) -> None:
        """Ctrl+C: copy what is selected; nothing is, so end."""
        selected = self._chat.prompt.selected_text or self._chat.get_selected_text()
        if not selected:
            await self.action_quit()
            return
        self.copy_to_clipboard(selected)
        self._chat.clear_selection()
        self.notify("Copied", timeout=1.5)


def run_app(model: str | None = None, *, anyway: bool = False, draft: str | None = None) -> int:
    """Open the chat with a model (a path, a name; None takes the last one), and return the exit code.

    Raises what ended the app if it was no door of its own; the terminal is restored by then.
    """
    app = EdgechatApp(model, anyway=anyway, draft=draft)
    app.run()
    if app.fault is not None:
        raise app.fault
    return app.return_code or 0
