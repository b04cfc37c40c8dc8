"""The chat screen: conversations at the left, the engine room at the right, and between them the chat.

It turns keys and messages into calls of the ChatController, which shows things through the methods of
ChatView. What is not on the first frame is imported on first use.
"""

from __future__ import annotations

import gc
from collections.abc import Coroutine, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, cast

from textual import on, work
from textual.binding import Binding, BindingType

from edgechat.tui.chat.layout import ChatLayout
from edgechat.tui.chat.prompt.box import PromptBox
from edgechat.tui.chat.prompt.pane import PromptPane
from edgechat.tui.theme import THEMES
from edgechat.tui.transcript.pieces import ThoughtPiece, WelcomePiece
from edgechat.tui.transcript.sheet import Sheet

if TYPE_CHECKING:
    from edgechat.chat.session import ChatSession, SessionServices
    from edgechat.engine.types import Finished
    from edgechat.settings import Backend
    from edgechat.tui.chat.controller import ChatController
    from edgechat.tui.chat.conversation_view import ConversationView
    from edgechat.tui.chat.panels import Panels
    from edgechat.tui.chat.views import Status, TranscriptView
    from edgechat.tui.models.library import ModelLibrary
    from edgechat.tui.overlays.parameters import Parameters


_ACTIONS = {
    "chats": "screen.conversations",
    "trash": "screen.trash",
    "models": "screen.models",
    "parameters": "screen.parameters",
    "thoughts": "screen.thoughts",
    "engine": "screen.engine_room",
    "settings": "app.settings",
    "help": "app.help",
    "quit": "app.quit",
}
"""The slash commands that are actions of the screen or the app."""


class ChatScreen(ChatLayout):
    """The chat with a model."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "restore_prompt", "Cancel"),
        Binding("escape", "stop", "Stop"),
        Binding("escape", "to_prompt", "Back"),
        Binding("escape", "clear_toasts", "Close the message", show=False),
        Binding("ctrl+r", "retry", "Retry"),
        Binding("ctrl+n", "new_chat", "New chat"),
        Binding("ctrl+b", "conversations", "Chats"),
        Binding("ctrl+f", "search", "Search", priority=True),
        Binding("ctrl+g", "engine_room", "Engine"),
        Binding("ctrl+t", "thoughts", "Thinking"),
        Binding("f3", "switch_thinking", "Think on or off", show=False),
        Binding("f4", "parameters", "System prompt and parameters", show=False),
        Binding("ctrl+up", "turns", "To the turns", show=False, priority=True),
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
        self._draft_option = draft
        self._services = services
        self._library = library
        self._wanted_model = model
        self._controller: ChatController | None = None
        self._shown: ConversationView | None = None

    def on_mount(self) -> None:
        self.show_welcome()
        self.call_after_refresh(self._start)

    def focus_text(self) -> None:
        """Focus the prompt, for text that is typed or pasted elsewhere."""
        self.panels.uncover()
        if not self.prompt.focusable:
            self.app.stylesheet.update(self)  # which is otherwise delayed until the app is idle
        self.set_focus(self.prompt)

    @property
    def controller(self) -> ChatController:
        """What the screen shows, and what its keys do."""
        if self._controller is None:
            # This imports SQLite and the engine: 40 ms that the first frame does not wait for.
            from edgechat.chat.session import ChatSession, SessionServices
            from edgechat.tui.chat.controller import ChatController
            from edgechat.tui.models.library import ModelLibrary

            services, library = self._services, self._library
            if services is None:
                library = ModelLibrary.real(self._backend)
                services = SessionServices.real(
                    anyway=self._anyway, draft=self._draft_option, backend=self._backend
                )
            session = ChatSession(services, self._wanted_model)
            self._controller = ChatController(self, session, library, draft=self._draft_option)
        return self._controller

    @property
    def session(self) -> ChatSession:
        return self.controller.session

    @cached_property
    def panels(self) -> Panels:
        from edgechat.tui.chat.panels import Panels

        return Panels(self, self.controller)

    @property
    def answering(self) -> bool:
        """Whether a reply is being generated in the conversation that is shown."""
        return self._controller is not None and self._controller.shown.is_answering

    @work(group="start")
    async def _start(self) -> None:
        self.pane.arguments = self._arguments
        await self.controller.start()
        # What is loaded by now stays: searching it for garbage would delay a key by 40 ms.
        gc.collect()
        gc.freeze()

    async def close_session(self) -> None:
        """Save replies, prompts and KV states, end the worker, and close the store."""
        if self._controller is not None:
            await self._controller.close()

    # ChatView.

    def new_transcript(self, *, is_new: bool) -> ConversationView:
        from edgechat.tui.chat.conversation_view import ConversationView

        if not is_new:
            return ConversationView()
        # The first one's is on the screen already.
        return ConversationView(self.welcome if self._shown is None else WelcomePiece())

    def show_transcript(self, transcript: TranscriptView, turn: str = "") -> None:
        if self._shown is not None:
            self._shown.hide()
        self._shown = cast("ConversationView", transcript)  # there are no others here
        self._shown.show_in(self.transcript, turn=turn)

    def show_status(self, status: Status) -> None:
        super().show_status(status)
        self.panels.show_speed(status)

    def show_finished(self, finished: Finished) -> None:
        self.panels.show_reply(finished)

    def refresh_chat(self) -> None:
        self.pane.is_busy = self.answering
        if not self.answering:
            self.prompt.border_subtitle = ""
        self.panels.refresh()
        self.refresh_bindings()

    def show_loaded(self) -> None:
        self.panels.show_model()

    async def restore_panels(self) -> None:
        await self.panels.restore()

    async def run_screen_command(self, command: str, argument: str) -> None:
        match command:
            case "search":
                await self.panels.search(argument)
            case "attach":
                self.pane.attach_file(argument)
            case "theme":
                self.app.set_theme(argument)  # type: ignore[attr-defined]
            case _:
                await self.run_action(_ACTIONS[command])

    # The prompt.

    @on(PromptPane.Asked)
    def _ask(self, event: PromptPane.Asked) -> None:
        self.controller.ask(event.text, list(event.attachments))

    @on(PromptPane.Refused)
    def _show_busy(self) -> None:
        self.prompt.border_subtitle = "still answering · Esc stops"

    @on(PromptPane.AttachFailed)
    def _show_attach_error(self, event: PromptPane.AttachFailed) -> None:
        self.show_error(event.error)

    @on(PromptPane.Commanded)
    def _run_typed_command(self, event: PromptPane.Commanded) -> None:
        self.controller.prompt_sent()
        self.run_command(event.name, event.argument)

    @on(Sheet.CodeCopied)
    def _copy_code(self, event: Sheet.CodeCopied) -> None:
        self.copy(event.code)
        self.show_message("Copied the code", seconds=1.5)

    @on(PromptBox.WantsHistory)
    def _show_history(self) -> None:
        self.run_in_background(self.controller.show_history())

    @on(PromptPane.Changed)
    def _prompt_changed(self) -> None:
        self.controller.prompt_changed()

    def _arguments(self, command: str) -> Sequence[tuple[str, str]]:
        """Return what may follow a command, each with a few words about it."""
        from edgechat.tui.chat.command_handlers import arguments

        return [(name, "") for name in THEMES] if command == "theme" else arguments(self.controller, command)

    def run_command(self, name: str, argument: str = "") -> None:
        from edgechat.tui.chat.command_handlers import run_command

        self.run_in_background(run_command(self.controller, name, argument))

    def replace_prompt(self, text: str) -> None:
        """Put the beginning of a command into the prompt; Escape restores what was there."""
        self.controller.replace_prompt(text)

    @property
    def presets(self) -> list[str]:
        return list(self.session.settings.presets)

    # Keys.

    def _hold_keys_during(self, task: Coroutine[Any, Any, object]) -> None:
        """Run what moves the focus, and hold keys back meanwhile; an error is shown."""
        end = self.app.keys.hold()  # type: ignore[attr-defined]

        async def done() -> None:
            try:
                await task
            finally:
                end()

        self.run_in_background(done())

    def action_restore_prompt(self) -> None:
        self.controller.restore_prompt()

    async def action_stop(self) -> None:
        """End the reply here; pressed again, or before it has begun, cancel it."""
        self.app.clear_notifications()
        await self.controller.shown.stop()

    def action_clear_toasts(self) -> None:
        self.app.clear_notifications()

    def action_retry(self) -> None:
        self.run_command("retry")

    def action_new_chat(self) -> None:
        self.controller.begin_new()

    def action_thoughts(self) -> None:
        self.transcript.toggle_thoughts()

    @on(PromptBox.WantsTurns)
    def action_turns(self) -> None:
        if self.transcript.turns:
            self.transcript.focus(scroll_visible=False)

    def action_to_prompt(self) -> None:
        self.app.clear_notifications()
        self.panels.uncover()
        self.prompt.focus()

    def action_turn(self, what: str) -> None:
        from edgechat.tui.chat.turn_actions import act

        act(self.controller, self.transcript.current, what)

    def action_conversations(self) -> None:
        self._hold_keys_during(self.panels.toggle_sidebar())

    def action_trash(self) -> None:
        self._hold_keys_during(self.panels.show_trash())

    def action_search(self) -> None:
        self._hold_keys_during(self.panels.search(""))

    def action_engine_room(self) -> None:
        self._hold_keys_during(self.panels.toggle_room())

    def action_switch_thinking(self) -> None:
        from edgechat.tui.chat.command_handlers import next_thinking

        self.run_in_background(next_thinking(self.controller))

    def action_undo_delete(self) -> None:
        from edgechat.tui.chat.stored_conversations import undo_delete

        self.run_in_background(undo_delete(self.controller, focus=self.focused is self.prompt))

    def action_scroll(self, where: str) -> None:
        """Scroll the transcript while the prompt keeps the focus."""
        getattr(self.transcript, f"action_{where}" if "page" in where else f"action_scroll_{where}")()

    # Other screens.

    def settings_changed(self) -> None:
        self.run_in_background(self.session.read_settings())

    def action_models(self) -> None:
        self.run_in_background(self._choose_model())

    async def _choose_model(self) -> None:
        from edgechat.tui.models.screen import ModelsScreen

        downloads, model = self.controller.downloads, self.session.model
        chosen = await self.app.push_screen_wait(ModelsScreen(downloads.library, downloads.pulls, model))
        if chosen is not None and chosen != self.session.model:
            await self.controller.switch_model(chosen)

    def show_first_run(self) -> None:
        self.run_in_background(self._choose_first_model())

    async def _choose_first_model(self) -> None:
        from edgechat.tui.models.first_run import FirstRun, FirstRunChoice
        from edgechat.tui.models.screen import ModelsScreen

        downloads = self.controller.downloads
        library, pulls = downloads.library, downloads.pulls
        first_run = FirstRun(library, pulls, lambda: ModelsScreen(library, pulls))
        chosen: FirstRunChoice | None = await self.app.push_screen_wait(first_run)
        if chosen is not None:
            downloads.awaited = chosen.pull
            if chosen.model != self.session.model:
                await self.controller.switch_model(chosen.model)

    def action_parameters(self) -> None:
        self.run_in_background(self._edit_parameters())

    async def _edit_parameters(self) -> None:
        from edgechat.chat.records import ChatSettings
        from edgechat.tui.overlays.parameters import ParametersScreen

        shown, session = self.controller.shown, self.session
        model = session.loaded.model if session.loaded is not None else None
        defaults = session.generation_options(ChatSettings(think=shown.settings.think)).sampling

        async def save(chosen: Parameters) -> None:
            if chosen.system != shown.system:
                await shown.set_system(chosen.system)
            await shown.set_settings(chosen.settings)
            if chosen.save_as:
                await session.save_preset(chosen.save_as, chosen.system, chosen.settings)

        can_think = model is not None and model.can_switch_thinking
        presets = session.settings.presets
        await self.app.push_screen_wait(
            ParametersScreen(shown.system, shown.settings, presets, defaults, can_think=can_think, save=save)
        )

    # Messages of the sidebar; its class is not imported for them.

    def on_sidebar_chosen(self, event: Any) -> None:
        self.panels.uncover()
        self._hold_keys_during(self.controller.open(event.chat_id, event.turn_id or ""))

    def on_sidebar_renamed(self, event: Any) -> None:
        from edgechat.tui.chat.stored_conversations import rename

        self._change_list(rename(self.controller, event.chat_id, event.title))

    def on_sidebar_pinned(self, event: Any) -> None:
        from edgechat.tui.chat.stored_conversations import pin

        self._change_list(pin(self.controller, event.chat_id, event.pinned))

    def on_sidebar_deleted(self, event: Any) -> None:
        from edgechat.tui.chat.stored_conversations import delete

        self._change_list(delete(self.controller, event.chat_id, ask=True))

    def on_sidebar_restored(self, event: Any) -> None:
        from edgechat.tui.chat.stored_conversations import restore

        self.panels.uncover()
        self._hold_keys_during(self._then_refresh_list(restore(self.controller, event.chat_id)))

    def on_sidebar_purged(self, event: Any) -> None:
        from edgechat.tui.chat.stored_conversations import purge

        self._change_list(purge(self.controller, event.chat_id))

    def on_sidebar_exported(self, event: Any) -> None:
        from edgechat.tui.chat.stored_conversations import export

        self.run_in_background(export(self.controller, event.chat_id))

    def on_sidebar_closed(self) -> None:
        self.action_to_prompt()

    def _change_list(self, task: Coroutine[Any, Any, None]) -> None:
        self.run_in_background(self._then_refresh_list(task))

    async def _then_refresh_list(self, task: Coroutine[Any, Any, None]) -> None:
        await task
        self.panels.refresh()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        controller, typing = self._controller, self.focused is self.prompt
        match action:
            case "restore_prompt":
                return controller is not None and controller.has_prompt_aside and typing
            case "stop":
                return self.answering
            case "clear_toasts":
                return bool(self.app._notifications)
            case "turn":
                from edgechat.tui.chat.turn_actions import can

                return can(self.controller, self.transcript.current, str(parameters[0]))
            case "retry":
                return controller is not None and controller.shown.can_retry
            case "thoughts":
                return any(isinstance(piece, ThoughtPiece) for piece in self.transcript.pieces)
            case "undo_delete":
                deleted = controller is not None and bool(controller.deleted)
                return deleted and not (typing and bool(self.prompt.text))
            case "to_prompt":
                return not typing
            case "turns":
                return typing
        return True
