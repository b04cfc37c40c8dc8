"""Chat screen: the conversations on the left, the chat, and the engine room on the right.

It turns keys and messages into calls to the ChatController, which displays everything through ChatView.
Whatever the first frame does not need is imported on first use.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Collection, Coroutine, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from textual import events, on, work
from textual.binding import Binding, BindingType
from textual.content import Content

from edgechat.base.text import one_line
from edgechat.tui.chat.layout import ChatLayout
from edgechat.tui.chat.prompt.above import WaitingQuestions
from edgechat.tui.chat.prompt.box import PromptBox, variables_in
from edgechat.tui.chat.prompt.pane import PromptPane
from edgechat.tui.theme import THEMES
from edgechat.tui.transcript.pieces import ThoughtPiece
from edgechat.tui.transcript.sheet import Sheet
from edgechat.tui.transcript.transcript import Transcript
from edgechat.tui.transcript.welcome import WelcomePiece, WelcomeSheet
from edgechat.tui.widgets.lines import NewLines

if TYPE_CHECKING:
    from edgechat.base.images.image import ImageLibrary
    from edgechat.chat.records import Attachment, Turn
    from edgechat.chat.session import ChatSession
    from edgechat.engine.types import Finished
    from edgechat.planner.plan import LoadPlan
    from edgechat.tools.consent import Answer, Question
    from edgechat.tui.chat.controller import ChatController
    from edgechat.tui.chat.panels import Panels
    from edgechat.tui.chat.prompt.reading_time import ReadingTime
    from edgechat.tui.chat.views import ChatView, Status
    from edgechat.tui.transcript.turns import ConversationView


_TYPING = 1.0
"""Seconds without a key press after which the user is considered to have stopped typing."""


class ChatScreen(ChatLayout):
    """The chat screen: its keys, its commands and the screens it opens."""

    AUTO_FOCUS = ""  # setting it would let later keys overtake earlier ones
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "restore_prompt", "Cancel"),
        Binding("escape", "stop", "Stop"),
        Binding("escape", "stop_reading", "Stop reading"),
        Binding("escape", "take_back", "Take back"),
        Binding("escape", "to_prompt", "Back"),
        Binding("escape", "clear_find", "Clear the marks", show=False),
        Binding("escape", "clear_toasts", "Close the message", show=False),
        Binding("ctrl+r", "retry", "Retry"),
        Binding("ctrl+n", "new_chat", "New chat"),
        Binding("ctrl+b", "conversations", "Chats"),
        Binding("ctrl+f", "search", "Search", priority=True),
        Binding("ctrl+g", "engine_room", "Engine"),
        Binding("ctrl+t", "thoughts", "Thinking"),
        Binding("f3", "switch_thinking", "Think on or off", show=False),
        Binding("f5", "switch_model", "Switch the model", show=False),
        Binding("f8", "use_stand_in", "Use it"),
        Binding("f4", "parameters", "System prompt and parameters", show=False),
        Binding("f9", "tools", "Tools", show=False),
        Binding("ctrl+up", "turns", "To the turns", show=False, priority=True),
        Binding("ctrl+z", "undo_delete", "Undo the deletion", show=False, priority=True),
        Binding("pageup", "scroll('page_up')", "Page up", show=False),
        Binding("pagedown", "scroll('page_down')", "Page down", show=False),
        Binding("ctrl+home", "scroll('home')", "To the beginning", show=False),
        Binding("ctrl+end", "scroll('end')", "To the end", show=False),
    ]

    def __init__(self, make_controller: Callable[[ChatView], ChatController], *, last: bool = False) -> None:
        """make_controller: called after the first frame. last: whether to show the last conversation."""
        super().__init__()
        self._make_controller = make_controller
        self._controller: ChatController | None = None
        self._continues_last = last
        self._early: list[events.Key | events.Paste] | None = []
        """Keys typed before the prompt is focused, or None after that."""

    def on_mount(self) -> None:
        """Show the welcome text, then open the prompt and start the controller."""
        self.pane.library = self.library_of_images
        self.transcript.add(self._welcome)
        # Runs after any keys already in the terminal or queued for the app.
        self.call_after_refresh(self.app.call_later, self._open_prompt)
        self.call_after_refresh(self._start)

    def _open_prompt(self) -> None:
        self.set_focus(self.prompt)
        early, self._early = self._early or [], None
        self.prompt.replay(early)

    def _forward_event(self, event: events.Event) -> None:
        if self._early is not None and isinstance(event, events.Key | events.Paste):
            self._early.append(event)
        else:
            super()._forward_event(event)

    @property
    def is_opening(self) -> bool:
        """Whether keys are still held back for the prompt because it has not been focused yet."""
        return self._early is not None

    def focus_text(self) -> None:
        """Focus the prompt to receive text typed or pasted elsewhere."""
        self.panels.uncover()
        if not self.prompt.focusable:
            self.app.stylesheet.update(self)  # otherwise delayed until the app is idle
        self.set_focus(self.prompt)

    @property
    def controller(self) -> ChatController:
        """The chat's controller, created on first use."""
        if self._controller is None:
            self._controller = self._make_controller(self)
        return self._controller

    @property
    def session(self) -> ChatSession:
        return self.controller.session

    @cached_property
    def panels(self) -> Panels:
        from edgechat.tui.chat.panels import Panels

        return Panels(self, self.controller)

    @property
    def _plan(self) -> LoadPlan | None:
        """The plan for the current model, whether or not it is loaded."""
        engine = self.session.loaded
        return engine.plan if engine is not None else self.session.plan

    @cached_property
    def _reading_time(self) -> ReadingTime:
        from edgechat.tui.chat.prompt.reading_time import ReadingTime

        return ReadingTime()

    @property
    def answering(self) -> bool:
        """Whether a reply is being generated in the conversation on screen."""
        return self._controller is not None and self._controller.shown.is_answering

    @work(group="start")
    async def _start(self) -> None:
        self.pane.arguments = self._arguments
        self.pane.notice = self._notice
        self.prompt.variables = self._variables
        await self.controller.start(last=self._continues_last)
        # Whatever is loaded by now stays loaded; scanning it for garbage would delay keys by 40 ms.
        gc.collect()
        gc.freeze()

    async def close_session(self) -> None:
        """Save replies, prompts and KV states, stop the worker, and close the store."""
        if self._controller is not None:
            await self._controller.close()

    # The rest of `ChatView`.

    def new_transcript(self, *, is_new: bool) -> ConversationView:
        from edgechat.tui.transcript.turns import ConversationView

        if not is_new:
            return ConversationView()
        # The first conversation's start page is already on screen.
        return ConversationView(self._welcome if self._shown is None else WelcomePiece(self._plan))

    def announce(self, message: str) -> None:
        if self.session.settings.notify and not self.app.app_focus:
            self.app.window.announce(message)  # type: ignore[attr-defined]

    def _show_title(self) -> None:
        shown = self.controller.shown
        title = shown.conversation.chat.title if shown.conversation is not None else ""
        name = f"{title} – edgechat" if title else "edgechat"
        self.app.window.show_title(name, is_busy=bool(self.controller.answering))  # type: ignore[attr-defined]

    def show_status(self, status: Status) -> None:
        super().show_status(status)
        self._show_title()
        self.panels.show_speed(status)

    def show_finished(self, finished: Finished) -> None:
        self.panels.show_reply(finished)
        if self._plan is not None:
            self._reading_time.measure(self._plan, finished)

    def refresh_chat(self) -> None:
        self._show_title()
        self.panels.refresh()
        self.refresh_bindings()

    def show_loaded(self) -> None:
        self.panels.show_model()
        self.pane.weigh()

    async def restore_panels(self) -> None:
        await self.panels.restore()

    async def search(self, words: str) -> None:
        await self.panels.search(words)

    # Questions to the user.

    async def confirm(self, question: str, *, yes: str, no: str) -> bool:
        from edgechat.tui.widgets.dialogs import ConfirmDialog

        return await self.app.push_screen_wait(ConfirmDialog(Content(question), yes=yes, no=no))

    async def choose_model(self, title: str, models: Sequence[tuple[str, str]]) -> str | None:
        from edgechat.tui.overlays.model_switcher import ModelName, ModelSwitcher

        names = [ModelName(*known) for known in models]
        chosen: ModelName | None = await self.app.push_screen_wait(ModelSwitcher(names, None, title))
        return chosen.name if chosen is not None else None

    async def compare(self, versions: Sequence[Turn], shown: int) -> int | None:
        from edgechat.tui.overlays.reading import VersionsScreen

        return await self.app.push_screen_wait(VersionsScreen(versions, shown))

    async def ask_consent(self, question: Question, chat: str) -> Answer | None:
        from edgechat.chat.reply.calls import tool_name
        from edgechat.tui.overlays.consent import ask_consent

        self.announce(f"The model asks whether it may call {tool_name(question.tool)}.")
        return await ask_consent(self.app, question, chat)

    # The prompt.

    @on(PromptPane.Asked)
    def _ask(self, event: PromptPane.Asked) -> None:
        number, questions = event.text.strip(), self._shown.questions if self._shown is not None else ()
        if number in map(str, range(1, len(questions) + 1)) and not event.attachments and not event.images:
            self._take_question(questions[int(number) - 1])
        else:
            self.app.clear_notifications()
            self.controller.ask(event.text, event.attachments, event.images)

    @on(WelcomeSheet.Chosen)
    def _question_clicked(self, event: WelcomeSheet.Chosen) -> None:
        self._take_question(event.question)

    def _take_question(self, question: str) -> None:
        self.controller.prompt.replace(question)
        self.refresh_chat()

    @on(PromptBox.TakesBack)
    def _take_back_last(self) -> None:
        self.controller.take_back()

    @on(WaitingQuestions.Recalled)
    def _take_back(self, event: WaitingQuestions.Recalled) -> None:
        self.controller.take_back(event.number)

    @on(PromptPane.AttachFailed)
    def _show_attach_error(self, event: PromptPane.AttachFailed) -> None:
        self.show_error(event.error)

    @on(PromptPane.Commanded)
    def _run_typed_command(self, event: PromptPane.Commanded) -> None:
        self.controller.prompt.sent()
        self.run_command(event.name, event.argument)

    @on(Sheet.CodeCopied)
    def _copy_code(self, event: Sheet.CodeCopied) -> None:
        self.copy(event.code)
        self.show_message("Copied the code", seconds=1.5)

    @on(PromptBox.WantsHistory)
    def _show_history(self) -> None:
        self.run_in_background(self.controller.show_history())

    @on(PromptBox.WantsEditor)
    def _open_editor(self) -> None:
        self.run_in_background(self.edit_prompt())

    @on(PromptBox.Unfilled)
    def _show_unfilled(self, event: PromptBox.Unfilled) -> None:
        self.show_message(f"{event.variable} is not filled in. Enter sends it anyway.", seconds=6)

    @on(PromptPane.Changed)
    def _prompt_changed(self) -> None:
        self.controller.prompt_changed()

    def _arguments(self, command: str) -> Sequence[tuple[str, str]]:
        from edgechat.tui.chat.commands import arguments

        return [(name, "") for name in THEMES] if command == "theme" else arguments(self.controller, command)

    async def library_of_images(self) -> ImageLibrary:
        return (await self.session.store()).images

    def _notice(self, n: int, has_images: bool) -> str:
        """Return a note about a question of n tokens: its reading time, or a feature that the model lacks."""
        model = self.session.loaded.model if self.session.loaded is not None else None
        if self.controller.shown.tools and model is not None and not model.has_tools:
            return f"{one_line(model.name, 30)}'s template does not support tools"
        if has_images and self.session.sees is False and self._plan is not None:
            return f"{one_line(self._plan.model_name, 40)} cannot see images"
        from edgechat.tui.chat.prompt.reading_time import notice

        shown, plan, unread = self.controller.shown, self._plan, self.controller.unread_tokens
        n, cached = n + unread, 0 if unread else shown.used or 0
        wait = self._reading_time.seconds(plan, n, cached) if plan is not None else 0.0
        return notice(n, wait, shown.context)

    def _variables(self) -> Collection[str]:
        return variables_in(self.session.settings.prompts.values())

    def run_command(self, name: str, argument: str = "") -> None:
        from edgechat.tui.chat.commands import run_command

        self.run_in_background(run_command(self.controller, name, argument))

    def replace_prompt(self, text: str) -> None:
        """Put the start of a command into the prompt; Escape restores the previous content."""
        self.controller.prompt.replace(text)

    def key_of(self, command: str) -> str:
        """Return the key that has the same effect as a slash command, or '' if there is none."""
        from edgechat.tui.chat.commands import ACTIONS
        from edgechat.tui.overlays.help import bindings_of, key_names

        action = ACTIONS.get(command, "").rpartition(".")[2]
        bindings = bindings_of(type(self), type(self.app))
        return next((key_names(binding) for binding in bindings if binding.action == action), "")

    # Keys.

    def _hold_keys_during(self, task: Coroutine[Any, Any, object]) -> None:
        """Run a coroutine that moves the focus, holding back keys until it is done. Errors are shown."""
        end = self.app.keys.hold()  # type: ignore[attr-defined]

        async def done() -> None:
            try:
                await task
            finally:
                end()

        self.run_in_background(done())

    def action_restore_prompt(self) -> None:
        self.controller.prompt.restore()

    def action_take_back(self) -> None:
        self.controller.take_back()

    async def action_stop(self) -> None:
        """Stop the reply; cancel it if it has no text yet, or if the key is pressed again."""
        self.app.clear_notifications()
        await self.controller.shown.stop()

    def action_stop_reading(self) -> None:
        """Stop reading the documents that /docs is adding."""
        self.controller.documents.stop()

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

    @on(Transcript.Unread)
    def _show_unread(self, event: Transcript.Unread) -> None:
        self.query_one(NewLines).show(event.lines)

    @on(NewLines.Wanted)
    def _show_new_lines(self) -> None:
        self.transcript.anchor()

    def action_to_prompt(self) -> None:
        self.app.clear_notifications()
        self.panels.uncover()
        self.transcript.find(None)
        self.prompt.focus()

    def action_turn(self, what: str, turn: str = "") -> None:
        """Run an action on a turn, by default the current one."""
        from edgechat.tui.chat.commands import act

        act(self.controller, turn or self.transcript.current, what)

    def action_conversations(self) -> None:
        self._hold_keys_during(self.panels.toggle_sidebar())

    def action_trash(self) -> None:
        self._hold_keys_during(self.panels.show_trash())

    def action_find(self) -> None:
        self.replace_prompt("/find ")

    def action_clear_find(self) -> None:
        self.transcript.find(None)

    def action_search(self) -> None:
        self._hold_keys_during(self.panels.search(""))

    def action_engine_room(self) -> None:
        self._hold_keys_during(self.panels.toggle_room())

    def action_switch_thinking(self) -> None:
        from edgechat.tui.chat.commands import next_thinking

        self.run_in_background(next_thinking(self.controller))

    def action_undo_delete(self) -> None:
        from edgechat.tui.chat.commands import undo_delete

        self.run_in_background(undo_delete(self.controller, focus=self.focused is self.prompt))

    def action_scroll(self, where: str) -> None:
        """Scroll the transcript, leaving the focus in the prompt."""
        getattr(self.transcript, f"action_{where}" if "page" in where else f"action_scroll_{where}")()

    # Other screens.

    def settings_changed(self) -> None:
        self.run_in_background(self.session.read_settings())

    def action_models(self) -> None:
        self.run_in_background(self._choose_model())

    async def _choose_model(self) -> None:
        from edgechat.tui.models.screen import ModelsScreen

        models = self.controller.models
        current = models.current
        chosen = await self.app.push_screen_wait(ModelsScreen(models.library, models.pulls, current))
        if chosen is not None and chosen != current:
            await self.controller.switch_model(chosen)

    def action_switch_model(self) -> None:
        self.run_in_background(self._switch_model())

    async def _switch_model(self) -> None:
        from edgechat.tui.overlays.model_switcher import ModelName, ModelSwitcher

        choice = self.controller.models
        current = choice.current
        models = [ModelName(*known) for known in await choice.switchable()]
        offered = choice.offered
        chosen: ModelName | None = await self.app.push_screen_wait(ModelSwitcher(models, current))
        choice.withdraw_offer(offered)
        if chosen is None or chosen.name == current:
            return
        if chosen.is_here:
            await self.controller.switch_model(chosen.name)
        else:
            choice.pulls.start(chosen.name)

    def action_use_stand_in(self) -> None:
        self.run_in_background(self.controller.use_stand_in())

    def action_tools(self) -> None:
        self.run_in_background(self._choose_tools())

    async def _choose_tools(self) -> None:
        from edgechat.tui.overlays.switches import choose_tools

        await choose_tools(self.app, self.session, self.controller.shown)
        self.pane.weigh()

    def action_documents(self) -> None:
        from edgechat.tui.overlays.switches import choose_documents

        self.run_in_background(choose_documents(self.app, self.session, self.controller.shown))

    def action_passage(self, number: int) -> None:
        from edgechat.chat.attachments import passages_in

        self.show_passages(list(passages_in(self.controller.shown.turns).values()), number)

    def show_passages(self, passages: Sequence[Attachment], number: int = 0) -> None:
        from edgechat.tui.overlays.reading import PassageScreen

        if passages:
            self.app.push_screen(PassageScreen(passages, number))

    def show_first_run(self) -> None:
        self.run_in_background(self._choose_first_model())

    async def _choose_first_model(self) -> None:
        await self._pause_in_typing()
        if self.controller.shown.is_answering or self.controller.shown.is_stored:
            return  # the guide has been asked; offer the choice at the next start
        from edgechat.tui.models.first_run import FirstRun, FirstRunChoice
        from edgechat.tui.models.screen import ModelsScreen

        models = self.controller.models
        library, pulls = models.library, models.pulls
        first_run = FirstRun(library, pulls, lambda: ModelsScreen(library, pulls))
        chosen: FirstRunChoice | None = await self.app.push_screen_wait(first_run)
        if chosen is not None:
            if chosen.model != self.session.model:
                await self.controller.switch_model(chosen.model)
            else:
                await self.session.remember_model()
            models.wait_for(chosen.pull, chosen.follower)

    async def _pause_in_typing(self) -> None:
        """Wait for a pause in typing, since other screens use the keys differently."""
        typed = ""
        while typed != (typed := self.prompt.text):
            await asyncio.sleep(_TYPING)

    def action_parameters(self) -> None:
        from edgechat.tui.overlays.parameters import edit_parameters

        self.run_in_background(edit_parameters(self.app, self.session, self.controller.shown))

    # The list of conversations, whose class is imported only when it is shown.

    def on_chat_list_requested(self, event: Any) -> None:
        match event.action:
            case "close":
                self.action_to_prompt()
            case "open":
                self.panels.uncover()
                chat_id, turn = event.row.key
                self._hold_keys_during(self._open_at(chat_id, turn, event.text))
            case "restore":
                self.panels.uncover()
                self._hold_keys_during(self._change_stored(event))
            case _:
                self.run_in_background(self._change_stored(event))

    async def _open_at(self, chat_id: str, turn: str, words: str) -> None:
        await self.controller.open(chat_id, turn)
        if words and turn:
            self._find(words, turn)

    async def _change_stored(self, event: Any) -> None:
        from edgechat.tui.chat.commands import change

        await change(self.controller, event.action, event.row.chat, event.text)
        self.panels.refresh()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        controller, typing = self._controller, self.focused is self.prompt
        match action:
            case "restore_prompt":
                return controller is not None and controller.prompt.has_aside and typing
            case "stop":
                return self.answering
            case "stop_reading":
                return controller is not None and controller.documents.is_reading and not self.answering
            case "clear_find":
                return self.transcript.is_finding
            case "take_back":
                return (
                    controller is not None
                    and controller.models.is_awaiting
                    and bool(controller.shown.waiting)
                )
            case "use_stand_in":
                return controller is not None and controller.models.stand_in is not None
            case "clear_toasts":
                return bool(self.app.is_notifying)  # type: ignore[attr-defined]
            case "turn":
                from edgechat.tui.chat.commands import can

                what, *turn = map(str, parameters)
                return can(self.controller, turn[0] if turn else self.transcript.current, what)
            case "retry":
                return controller is not None and controller.shown.can_retry
            case "thoughts":
                return any(isinstance(piece, ThoughtPiece) for piece in self.transcript.pieces)
            case "undo_delete":
                deleted = controller is not None and bool(controller.deleted)
                return deleted and not (typing and bool(self.prompt.text or self.prompt.is_cleared))
            case "to_prompt":
                return not typing
            case "turns":
                return typing
        return True
