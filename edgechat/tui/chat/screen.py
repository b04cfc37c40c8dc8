"""The chat screen: conversations at the left, the engine room at the right, and between them the chat.

It turns keys and messages into calls of the ChatController, which shows things through the methods of
ChatView. What is not on the first frame is imported on first use.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Collection, Coroutine, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, cast

from textual import on, work
from textual.binding import Binding, BindingType

from edgechat.base.errors import EdgechatError
from edgechat.base.text import one_line
from edgechat.tui.chat.layout import ChatLayout
from edgechat.tui.chat.prompt.above import WaitingQuestions
from edgechat.tui.chat.prompt.box import PromptBox
from edgechat.tui.chat.prompt.pane import PromptPane
from edgechat.tui.theme import THEMES
from edgechat.tui.transcript.pieces import ThoughtPiece
from edgechat.tui.transcript.sheet import Sheet
from edgechat.tui.transcript.transcript import Transcript
from edgechat.tui.transcript.welcome import WelcomePiece, WelcomeSheet
from edgechat.tui.widgets.lines import NewLines

if TYPE_CHECKING:
    from edgechat.base.images.library import ImageLibrary
    from edgechat.chat.records import Attachment, Turn
    from edgechat.chat.session import ChatSession, SessionServices
    from edgechat.engine.types import Finished
    from edgechat.planner.plan import LoadPlan
    from edgechat.settings import Backend
    from edgechat.tools.consent import Answer, Question
    from edgechat.tui.chat.controller import ChatController
    from edgechat.tui.chat.conversation_view import ConversationView
    from edgechat.tui.chat.panels import Panels
    from edgechat.tui.chat.prompt.reading_time import ReadingTime
    from edgechat.tui.chat.views import Status, TranscriptView
    from edgechat.tui.models.library import ModelLibrary
    from edgechat.tui.overlays.parameters import Parameters


_ACTIONS = {
    "chats": "screen.conversations",
    "trash": "screen.trash",
    "model": "screen.switch_model",
    "models": "screen.models",
    "parameters": "screen.parameters",
    "tools": "screen.tools",
    "docs": "screen.documents",
    "thoughts": "screen.thoughts",
    "engine": "screen.engine_room",
    "settings": "app.settings",
    "help": "app.help",
    "quit": "app.quit",
}
"""The slash commands that are actions of the screen or the app."""
_TYPING = 1.0
"""Seconds without a key after which nobody is typing."""
_SAME_ACTION = {"new": "new_chat", "retry": "retry", "search": "search", "think": "switch_thinking"}
"""Of other slash commands: the actions that do the same."""


class ChatScreen(ChatLayout):
    """The chat with a model."""

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

    def __init__(
        self,
        services: SessionServices | None,
        model: str | None,
        *,
        last: bool,
        library: ModelLibrary | None,
        anyway: bool,
        draft: str | None,
        backend: Backend | None,
        vision: bool,
        adapters: tuple[str, ...] | None,
        workers: tuple[str, ...] | None,
    ) -> None:
        super().__init__()
        self._continues_last = last
        self._backend = backend
        self._vision = vision
        self._adapters = adapters
        self._workers = workers
        self._anyway = anyway
        self._draft_option = draft
        self._services = services
        self._library = library
        self._wanted_model = model
        self._controller: ChatController | None = None
        self._shown: ConversationView | None = None

    def on_mount(self) -> None:
        self.pane.library = self.library_of_images
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
            from edgechat.chat.generation_options import CommandLineOptions
            from edgechat.chat.session import ChatSession, SessionServices
            from edgechat.tui.chat.controller import ChatController
            from edgechat.tui.models.library import ModelLibrary

            services, library = self._services, self._library
            if services is None:
                library = ModelLibrary.real(self._backend, self._workers)
                services = SessionServices.real(
                    anyway=self._anyway,
                    draft=self._draft_option,
                    backend=self._backend,
                    vision=self._vision,
                    adapters=self._adapters,
                    workers=self._workers,
                )
            options = CommandLineOptions(adapters=self._adapters)
            session = ChatSession(services, self._wanted_model, options=options)
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
        self.pane.notice = self._notice
        self.prompt.variables = self._variables
        await self.controller.start(last=self._continues_last)
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
        return ConversationView(self.welcome if self._shown is None else WelcomePiece(self._plan))

    def show_transcript(self, transcript: TranscriptView, turn: str = "") -> None:
        if self._shown is not None:
            self.app.clear_notifications()  # they were about what was shown
            self._shown.hide()
        self._shown = cast("ConversationView", transcript)  # there are no others here
        self._shown.show_in(self.transcript, turn=turn)

    async def compare(self, versions: Sequence[Turn], shown: int) -> int | None:
        from edgechat.tui.overlays.reading import VersionsScreen

        return await self.app.push_screen_wait(VersionsScreen(versions, shown))

    async def ask_consent(self, question: Question, chat: str) -> Answer | None:
        from edgechat.chat.reply.calls import tool_name
        from edgechat.tui.overlays.consent import ConsentScreen

        screen = ConsentScreen(question, chat)
        answered = asyncio.get_running_loop().create_future()
        await self.app.push_screen(screen, answered.set_result)
        self.announce(f"The model asks whether it may call {tool_name(question.tool)}.")
        try:
            return await asyncio.shield(answered)
        finally:
            if not answered.done():
                screen.withdraw()

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
        self.pane.weigh_again()

    async def restore_panels(self) -> None:
        await self.panels.restore()

    async def run_screen_command(self, command: str, argument: str) -> None:
        match command:
            case "search":
                await self.panels.search(argument)
            case "find" if self._find(argument):
                self.transcript.focus(scroll_visible=False)
            case "find":
                raise EdgechatError(
                    f"“{one_line(argument, 60)}” is not in this conversation.",
                    hint="To search all conversations: Ctrl+F",
                )
            case "attach":
                await self.pane.attach_file(argument)
            case "image":
                await self.pane.attach_image(argument)
            case "editor":
                await self._edit_prompt()
            case "theme":
                await self.app.set_theme(argument)  # type: ignore[attr-defined]
            case _:
                await self.run_action(_ACTIONS[command])

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
        """Put one of the questions to begin with into the prompt."""
        self.controller.replace_prompt(question)
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
        self.controller.prompt_sent()
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
        self.run_in_background(self._edit_prompt())

    async def _edit_prompt(self) -> None:
        from edgechat.tui.terminal.programs import edit

        self.prompt.replace_text(await edit(self.app, self.prompt.text))
        self.prompt.focus()

    @on(PromptBox.Unfilled)
    def _show_unfilled(self, event: PromptBox.Unfilled) -> None:
        self.show_message(f"{event.variable} is not filled in. Enter sends it as it is.", seconds=6)

    @on(PromptPane.Changed)
    def _prompt_changed(self) -> None:
        self.controller.prompt_changed()

    def _arguments(self, command: str) -> Sequence[tuple[str, str]]:
        """Return what may follow a command, each with a few words about it."""
        from edgechat.tui.chat.command_handlers import arguments

        return [(name, "") for name in THEMES] if command == "theme" else arguments(self.controller, command)

    async def library_of_images(self) -> ImageLibrary:
        return (await self.session.store()).images

    @property
    def _plan(self) -> LoadPlan | None:
        """How the model that answers is loaded, or will be."""
        engine = self.session.loaded
        return engine.plan if engine is not None else self.session.plan

    @cached_property
    def _reading_time(self) -> ReadingTime:
        from edgechat.tui.chat.prompt.reading_time import ReadingTime

        return ReadingTime()

    def _notice(self, n: int, has_images: bool) -> str:
        """Return what there is to tell about a question of n tokens."""
        model = self.session.loaded.model if self.session.loaded is not None else None
        if self.controller.shown.tools and model is not None and not model.has_tools:
            return f"the template of {one_line(model.name, 30)} has no tools"
        if has_images and self.session.sees is False and self._plan is not None:
            return f"{one_line(self._plan.model_name, 40)} cannot see images"
        from edgechat.tui.chat.prompt.reading_time import notice

        shown, plan, unread = self.controller.shown, self._plan, self.controller.unread_tokens
        n, cached = n + unread, 0 if unread else shown.used or 0
        wait = self._reading_time.seconds(plan, n, cached) if plan is not None else 0.0
        return notice(n, wait, shown.context)

    def _variables(self) -> Collection[str]:
        from edgechat.tui.chat.prompt.box import variables_in

        return variables_in(self.session.settings.prompts.values())

    def run_command(self, name: str, argument: str = "") -> None:
        from edgechat.tui.chat.command_handlers import run_command

        self.run_in_background(run_command(self.controller, name, argument))

    def replace_prompt(self, text: str) -> None:
        """Put the beginning of a command into the prompt; Escape restores what was there."""
        self.controller.replace_prompt(text)

    def key_of(self, command: str) -> str:
        """Return the key that does the same as a slash command; empty if there is none."""
        from edgechat.tui.overlays.help import bindings_of, key_names

        action = _ACTIONS.get(command, _SAME_ACTION.get(command, "")).rpartition(".")[2]
        bindings = bindings_of(type(self), type(self.app))
        return next((key_names(binding) for binding in bindings if binding.action == action), "")

    @property
    def presets(self) -> list[str]:
        return list(self.session.settings.presets)

    @property
    def saved_prompts(self) -> list[str]:
        return list(self.session.settings.prompts)

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

    def action_take_back(self) -> None:
        self.controller.take_back()

    async def action_stop(self) -> None:
        """End the reply here; pressed again, or before it has begun, cancel it."""
        self.app.clear_notifications()
        await self.controller.shown.stop()

    def action_stop_reading(self) -> None:
        """Stop reading the documents that /docs adds."""
        self.controller.stop_reading()

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
        from edgechat.tui.chat.turn_actions import act

        act(self.controller, turn or self.transcript.current, what)

    def action_conversations(self) -> None:
        self._hold_keys_during(self.panels.toggle_sidebar())

    def action_trash(self) -> None:
        self._hold_keys_during(self.panels.show_trash())

    def action_find(self) -> None:
        """Let the user type what is to be found in this conversation."""
        self.replace_prompt("/find ")

    def _find(self, words: str, turn: str = "") -> bool:
        """Mark words in this conversation, and go to the first of them; return whether there are any."""
        from edgechat.tui.transcript.finding import Finder

        return self.transcript.find(Finder(words), turn=turn)

    def action_clear_find(self) -> None:
        self.transcript.find(None)

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

        downloads, current = self.controller.downloads, self.controller.current_model
        chosen = await self.app.push_screen_wait(ModelsScreen(downloads.library, downloads.pulls, current))
        if chosen is not None and chosen != current:
            await self.controller.switch_model(chosen)

    def action_switch_model(self) -> None:
        self.run_in_background(self._switch_model())

    async def _switch_model(self) -> None:
        from edgechat.tui.overlays.choosers import ModelName, ModelSwitcher

        controller, downloads = self.controller, self.controller.downloads
        current, names = controller.current_model, await downloads.switchable()
        models = [ModelName(name, note, is_here) for name, note, is_here in names]
        offered = downloads.offered
        chosen: ModelName | None = await self.app.push_screen_wait(ModelSwitcher(models, current))
        downloads.withdraw_offer(offered)
        if chosen is None or chosen.name == current:
            return
        if chosen.is_here:
            await controller.switch_model(chosen.name)
        else:
            downloads.pulls.start(chosen.name)

    def show_first_run(self) -> None:
        self.run_in_background(self._choose_first_model())

    async def _choose_first_model(self) -> None:
        await self._pause_in_typing()
        if self.controller.shown.is_answering or self.controller.shown.is_stored:
            return  # the guide was asked at once; the next start asks how to begin
        from edgechat.tui.models.first_run import FirstRun, FirstRunChoice
        from edgechat.tui.models.screen import ModelsScreen

        downloads = self.controller.downloads
        library, pulls = downloads.library, downloads.pulls
        first_run = FirstRun(library, pulls, lambda: ModelsScreen(library, pulls))
        chosen: FirstRunChoice | None = await self.app.push_screen_wait(first_run)
        if chosen is not None:
            if chosen.model != self.session.model:
                await self.controller.switch_model(chosen.model)
            else:
                await self.session.remember_model()
            self.controller.await_model(chosen.pull, chosen.follower)

    async def _pause_in_typing(self) -> None:
        """Wait until nobody types in the prompt: other screens have other uses for the keys."""
        typed = ""
        while typed != (typed := self.prompt.text):
            await asyncio.sleep(_TYPING)

    def action_use_stand_in(self) -> None:
        """Let the model answer that is offered instead."""
        self.run_in_background(self.controller.use_stand_in())

    def action_tools(self) -> None:
        self.run_in_background(self._choose_tools())

    async def _choose_tools(self) -> None:
        from edgechat.chat.parameters import set_tools
        from edgechat.chat.reply.calls import told_in_words
        from edgechat.tui.overlays.switches import ToolsScreen

        shown, session = self.controller.shown, self.session
        model = session.loaded.model if session.loaded is not None else None
        note = told_in_words(model.name) if model is not None and not model.has_tools else ""

        async def save(tools: tuple[str, ...]) -> None:
            await set_tools(session, shown, tools)

        known, open_tools = await session.tools.known(), session.tools.open
        screen = ToolsScreen(known, shown.tools, note=note, open_tools=open_tools, save=save)
        await self.app.push_screen_wait(screen)
        self.pane.weigh_again()

    def action_documents(self) -> None:
        self.run_in_background(self._choose_documents())

    async def _choose_documents(self) -> None:
        from edgechat.chat.parameters import set_documents
        from edgechat.documents.known import known_collections
        from edgechat.tui.overlays.switches import DocumentsScreen

        shown, session = self.controller.shown, self.session

        async def save(names: tuple[str, ...]) -> None:
            await set_documents(session, shown, names)

        known = await asyncio.to_thread(known_collections)
        await self.app.push_screen_wait(DocumentsScreen(known, shown.documents, save=save))

    def action_passage(self, number: int) -> None:
        """Show a passage that is cited in this conversation."""
        from edgechat.chat.attachments.documents import passages_in

        self.show_passages(list(passages_in(self.controller.shown.turns).values()), number)

    def show_passages(self, passages: Sequence[Attachment], number: int = 0) -> None:
        from edgechat.tui.overlays.reading import PassageScreen

        if passages:
            self.app.push_screen(PassageScreen(passages, number))

    def action_parameters(self) -> None:
        self.run_in_background(self._edit_parameters())

    async def _edit_parameters(self) -> None:
        from edgechat.chat.records import ChatSettings
        from edgechat.tui.overlays.parameters import ParametersScreen

        shown, session = self.controller.shown, self.session
        model = session.loaded.model if session.loaded is not None else None
        options = session.generation_options(ChatSettings(think=shown.settings.think))
        is_remote = session.plan is not None and session.plan.remote is not None

        async def save(chosen: Parameters) -> None:
            if chosen.system != shown.system:
                await shown.set_system(chosen.system)
            await shown.set_settings(chosen.settings)
            if chosen.save_as:
                await session.save_preset(chosen.save_as, chosen.system, chosen.settings)

        can_think = model is not None and model.can_switch_thinking
        presets = session.settings.presets
        await self.app.push_screen_wait(
            ParametersScreen(
                shown.system,
                shown.settings,
                presets,
                options.sampling,
                can_think=can_think,
                save=save,
                known=options.sampling_set if is_remote else None,
            )
        )

    # Messages of the sidebar; its class is not imported for them.

    def on_sidebar_chosen(self, event: Any) -> None:
        self.panels.uncover()
        self._hold_keys_during(self._open_hit(event.chat_id, event.turn_id or "", event.words))

    async def _open_hit(self, chat_id: str, turn: str, words: str) -> None:
        await self.controller.open(chat_id, turn)
        if words and turn:
            self._find(words, turn)

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
            case "stop_reading":
                return controller is not None and controller.is_reading and not self.answering
            case "clear_find":
                return self.transcript.is_finding
            case "take_back":
                return (
                    controller is not None and controller.is_awaiting_model and bool(controller.shown.waiting)
                )
            case "use_stand_in":
                return controller is not None and controller.offers_stand_in
            case "clear_toasts":
                return bool(self.app._notifications)
            case "turn":
                from edgechat.tui.chat.turn_actions import can

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
