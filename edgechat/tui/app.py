"""The Textual app.

Module-level imports here and in `chat.screen` delay the first frame (by 0.25 s, nearly all of it for
Textual), so everything else is imported afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar

from textual import events
from textual._context import active_message_pump
from textual.app import App
from textual.binding import Binding, BindingType
from textual.command import Provider
from textual.css.query import QueryError
from textual.driver import Driver
from textual.filter import LineFilter
from textual.screen import Screen
from textual.widget import MountError, Widget
from textual.worker import WorkerFailed, get_current_worker

from edgechat.base.errors import EdgechatError, SettingsError
from edgechat.tui.chat.screen import ChatScreen
from edgechat.tui.terminal.key_order import KeyQueue
from edgechat.tui.terminal.window import EndSignals, OutputFilter, TerminalWindow, restore_hang_up
from edgechat.tui.theme import STYLES, THEMES, apply

if TYPE_CHECKING:
    from edgechat.chat.session import SessionServices
    from edgechat.planner.request import PlanRequest
    from edgechat.settings.fields import PictureMode
    from edgechat.tui.chat.controller import ChatController
    from edgechat.tui.chat.views import ChatView
    from edgechat.tui.models.library import ModelLibrary
    from edgechat.tui.overlays.help import Part
    from edgechat.tui.transcript.images import TranscriptImages


_QUIT_AGAIN = 3.0
"""Seconds within which a second Ctrl+C quits."""


@dataclass(frozen=True, slots=True)
class StartOptions:
    """Options for starting the app."""

    model: str | None = None
    """A model's path or name, or None for the last model used."""
    last: bool = False
    """Whether to open the last conversation."""
    request: Callable[[], PlanRequest] | None = None
    """Builds the request for the model's plan after the first frame; None means the default request."""


def _commands() -> type[Provider]:
    from edgechat.tui.overlays.palette import CommandProvider

    return CommandProvider


class EdgechatApp(App[None]):
    """The terminal app."""

    TITLE = "edgechat"
    CSS = f"""
    ToastRack {{ dock: top; align: right top; margin: 1 1 0 0; max-height: 60%; }}
    Toast {{
        width: auto; max-width: 60%; margin: 0; padding: 0 1; background: $panel;
        &.-information {{ border: round $border-blurred; }}
        &.-warning {{ border: round $warning; }}
        &.-error {{ border: round $error; }}
    }}
    .-wide Toast {{ max-width: 60; }}
    {STYLES}
    """
    COMMANDS: ClassVar[set[type[Provider] | Callable[[], type[Provider]]]] = {_commands}  # replaces Textual's
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+o", "models", "Models", priority=True),
        Binding("ctrl+p", "command_palette", "Commands", priority=True),
        Binding("f1", "help", "Help", priority=True),
        Binding("f2", "settings", "Settings", show=False, priority=True),
        Binding("ctrl+q", "quit", "Quit", priority=True),
        Binding(
            "ctrl+c",
            "copy_or_stop",
            "Copy the selection; without one, stop the answer, clear the prompt, or (twice) quit",
            show=False,
            priority=True,
        ),
    ]

    def __init__(
        self,
        start: StartOptions | None = None,
        *,
        services: SessionServices | None = None,
        library: ModelLibrary | None = None,
        theme: str = "terminal",
        pictures: PictureMode = "auto",
    ) -> None:
        """services: the lower layers, by default edgechat's own. theme, pictures: see `settings.fields`.

        library: the models to offer; used only if `services` is given.
        """
        # Set here because Textual chooses its filters, including NO_COLOR's, before the theme is known.
        super().__init__(ansi_color=True)
        self._output_filter = OutputFilter()
        self.fault: Exception | None = None
        """The error that ended the app, or one raised while it was shutting down."""
        self.keys = KeyQueue(self, super().on_event)
        """Queue that all keys pass through."""
        self._quit_asked_at = -_QUIT_AGAIN
        """When Ctrl+C was last pressed with nothing to copy, stop or clear."""
        self.window = TerminalWindow(self._write_to_terminal)
        self._picture_mode = pictures
        start = start or StartOptions()
        self.chat = ChatScreen(partial(_controller, start, services, library), last=start.last)
        apply(self, theme)
        # Animated scrolling takes CPU time away from the model, and misbehaves when text is appended.
        self.animation_level = "none"

    def get_default_screen(self) -> Screen[None]:
        return self.chat

    def get_driver_class(self) -> type[Driver]:
        driver = super().get_driver_class()
        if driver.__name__ != "LinuxDriver":  # on Windows, or in tests
            return driver
        from edgechat.tui.terminal.input import TerminalDriver

        return TerminalDriver

    def get_line_filters(self) -> Sequence[LineFilter]:
        return [self._output_filter, *super().get_line_filters()]

    def on_mount(self) -> None:
        """Make every signal quit the same way, and redraw the screen after SIGTSTP."""
        self.app_resume_signal.subscribe(self, lambda _: self._draw_again())
        self.call_after_refresh(self._ask_for_pictures)
        if threading.current_thread() is threading.main_thread():
            self._signals = EndSignals(self.action_quit)

    def _ask_for_pictures(self) -> None:
        self._images.pictures.use(self._picture_mode)

    def _draw_again(self) -> None:
        self._images.pictures.forget()
        self.refresh(layout=True)

    def _write_to_terminal(self, sequence: str) -> None:
        if self._driver is not None and not self._driver.is_headless:
            self._driver.write(sequence)

    def _handle_exception(self, error: Exception) -> None:
        node: object = active_message_pump.get(None)
        if isinstance(error, WorkerFailed) and isinstance(error.error, Exception):
            error, node = error.error, get_current_worker().node
        if isinstance(error, (QueryError, MountError)) and self._is_closed(node):
            return
        self.fault = self.fault or error
        super()._handle_exception(error)

    def _is_closed(self, node: object) -> bool:
        """Return whether the screen of a node is closed or about to be, so that its widgets may be gone."""
        if self.return_code is not None or not self.is_running:
            return True
        return isinstance(node, Widget) and not any(
            one in self.screen_stack for one in node.ancestors_with_self
        )

    def _fatal_error(self) -> None:
        # Textual would print a traceback; here, the caller of `run_app` reports the error.
        if "_images" in self.__dict__:
            self._images.pictures.close()
        self.window.restore_title()
        self._close_messages_no_wait()

    async def on_event(self, event: events.Event) -> None:
        if isinstance(event, events.Key | events.Paste) and not event.is_forwarded and not self._is_opening:
            await self.keys.take(event)
        else:
            await super().on_event(event)

    @property
    def _is_opening(self) -> bool:
        return self.screen is self.chat and self.chat.is_opening

    @property
    def is_notifying(self) -> bool:
        """Whether any notification is visible."""
        return bool(self._notifications)

    def notify(self, message: str, **options: Any) -> None:
        """Show a notification unless it is already visible. At most two are visible at a time."""
        messages = [notification.message for notification in self._notifications]
        if message in messages:
            return
        if len(messages) > 1:
            self.clear_notifications()
        super().notify(message, **options)

    async def action_quit(self) -> None:
        """Save anything unsaved, then quit."""
        try:
            await self.chat.close_session()
        except EdgechatError as error:
            self.fault = error
        if "_images" in self.__dict__:
            await self._images.close()
        restore_hang_up()
        self.window.restore_title()
        self.exit()

    # Images shown by the transcript and by the screen that compares versions of a turn.

    @cached_property
    def _images(self) -> TranscriptImages:
        from edgechat.tui.transcript.images import TranscriptImages

        return TranscriptImages(self, self._driver, self.chat.library_of_images)

    def on_user_sheet_thumbnails_wanted(self, event: Any) -> None:
        self.run_worker(self._images.show_thumbnails(event.sheet, event.wanted), group="pictures")

    def on_user_sheet_picture_wanted(self, event: Any) -> None:
        self.run_worker(self._images.show_picture(event.sheet, event.wanted), group="pictures")

    def on_resize(self) -> None:
        if "_images" in self.__dict__:
            self._images.pictures.fit()

    def on_transcript_replaced(self) -> None:
        self._images.tidy()

    def on_terminal_reply(self, event: Any) -> None:
        self._images.pictures.take(event.text)

    async def action_copy_or_stop(self) -> None:
        """Copy the selection, or else stop the answer, clear the prompt or offer to quit, in that order."""
        in_field = getattr(self.focused, "selected_text", "")
        selected = in_field or self.screen.get_selected_text()
        if selected:
            self.copy_to_clipboard(selected)
            self.screen.clear_selection()
            self.notify("Copied", timeout=1.5)
        elif self.screen is self.chat and self.chat.answering:
            await self.chat.action_stop()
        elif self.screen is self.chat and self.chat.pane.clear():
            self.notify("Cleared. Ctrl+Z brings it back.", timeout=_QUIT_AGAIN)
        elif time.monotonic() - self._quit_asked_at < _QUIT_AGAIN:
            await self.action_quit()
        else:
            self._quit_asked_at = time.monotonic()
            self.notify("Press Ctrl+C again to quit.", timeout=_QUIT_AGAIN)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return action not in ("models", "command_palette") or self.screen is self.chat

    def action_models(self) -> None:
        self.chat.action_models()

    def action_command_palette(self) -> None:
        from edgechat.tui.overlays.palette import Palette

        if not self._is_open(Palette):
            self.push_screen(Palette())

    def action_help(self) -> None:
        from edgechat.tui.overlays.help import HelpScreen, commands, sections

        if isinstance(self.screen, HelpScreen):
            self.screen.dismiss()
        elif not self._is_open(HelpScreen):
            self.push_screen(HelpScreen(sections(parts(), self.screen), commands()))

    def action_settings(self) -> None:
        from edgechat.tui.settings.screen import SettingsScreen

        if not self._is_open(SettingsScreen):
            self.push_screen(SettingsScreen(), lambda _: self.chat.settings_changed())

    def _is_open(self, screen_class: type[Screen[None]]) -> bool:
        """Return whether a screen of this class is open, possibly underneath another one."""
        return any(isinstance(screen, screen_class) for screen in self.screen_stack)

    def on_settings_screen_changed(self, event: Any) -> None:
        apply(self, event.settings.theme)
        self._images.pictures.use(event.settings.pictures)

    async def set_theme(self, name: str) -> None:
        """Change the theme of the app and save it in settings.toml. Raises SettingsError."""
        from edgechat import settings

        if name not in THEMES:
            raise SettingsError(f"No such theme: {name!r}.", hint=f"Themes: {', '.join(THEMES)}.")
        apply(self, name)
        await asyncio.to_thread(settings.change, ("theme",), name)
        self.chat.settings_changed()


def parts() -> list[Part]:
    """Return the parts of the app, each with the classes that define its keys."""
    from edgechat.tui.chat.prompt.box import PromptBox
    from edgechat.tui.conversations.listing import ChatList
    from edgechat.tui.conversations.sidebar import SearchField
    from edgechat.tui.engine_room.room import EngineRoom
    from edgechat.tui.models.first_run import FirstRun
    from edgechat.tui.models.screen import ModelsScreen
    from edgechat.tui.overlays.consent import ConsentScreen
    from edgechat.tui.overlays.parameters import ParametersScreen
    from edgechat.tui.overlays.reading import PassageScreen
    from edgechat.tui.overlays.switches import DocumentsScreen, ToolsScreen
    from edgechat.tui.settings.screen import SettingsScreen
    from edgechat.tui.transcript.transcript import Transcript

    return [
        ("Everywhere", (EdgechatApp,)),
        ("The prompt", (PromptBox,)),
        ("The chat", (ChatScreen,)),
        ("The turns: Tab in the prompt, or a click", (Transcript,)),
        ("The conversations", (ChatList, SearchField)),
        ("The engine room", (EngineRoom,)),
        ("The models", (ModelsScreen,)),
        ("The first run", (FirstRun,)),
        ("The settings", (SettingsScreen,)),
        ("System prompt and parameters", (ParametersScreen,)),
        ("The tools", (ToolsScreen,)),
        ("A call of a tool", (ConsentScreen,)),
        ("The documents", (DocumentsScreen,)),
        ("A passage of a document", (PassageScreen,)),
    ]


def _controller(
    start: StartOptions, services: SessionServices | None, library: ModelLibrary | None, view: ChatView
) -> ChatController:
    # Imports SQLite and the engine, which takes 40 ms; the first frame must not wait for them.
    from edgechat.chat.generation_options import CommandLineOptions
    from edgechat.chat.session import ChatSession, SessionServices
    from edgechat.planner.request import DEFAULT_REQUEST
    from edgechat.tui.chat.controller import ChatController
    from edgechat.tui.models.library import ModelLibrary

    request = start.request() if start.request is not None else DEFAULT_REQUEST
    if services is None:
        library = ModelLibrary.real(request.backend, request.workers)
        services = SessionServices.real(request)
    session = ChatSession(services, start.model, options=CommandLineOptions(adapters=request.adapters))
    return ChatController(view, session, library, draft=request.draft)


def run_app(start: StartOptions) -> int:
    """Run the app and return its exit code.

    If an error ended the app, it is raised once the terminal has been restored.
    """
    from edgechat import settings

    loaded = settings.Settings()
    with contextlib.suppress(EdgechatError):  # the chat reports the error
        loaded = settings.load()
    app = EdgechatApp(start, theme=loaded.theme, pictures=loaded.pictures)
    app.run()
    if app.fault is not None:
        raise app.fault
    return app.return_code or 0
