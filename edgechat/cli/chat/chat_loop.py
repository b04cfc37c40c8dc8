"""A conversation on the command line: one answer, or many, line by line; also for a screen reader."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from edgechat.base.errors import (
    AttachmentError,
    CannotSee,
    EdgechatError,
    LoadFailed,
    RemoteDenied,
    RemoteUnreachable,
    StoreError,
)
from edgechat.base.text import one_line
from edgechat.chat.attachments.images import keep_image, read_image
from edgechat.chat.attachments.reading import MOST
from edgechat.chat.commands import question_text
from edgechat.chat.conversation import Conversation, nothing_to_continue
from edgechat.chat.generation_options import CommandLineOptions
from edgechat.chat.import_export.export import counted
from edgechat.chat.parameters import add_documents
from edgechat.chat.records import AttachedImage, Attachment
from edgechat.chat.reply.showing import told_in_words
from edgechat.chat.session import ChatSession
from edgechat.cli.chat.answer import AnswerPrinter
from edgechat.cli.chat.conversation import ConversationChoice, hinting_at_no_store
from edgechat.cli.chat.event_loop import Background
from edgechat.cli.chat.screen_reader import SpokenAnswer, SpokenStatus
from edgechat.cli.chat.slash_commands import SlashCommands
from edgechat.cli.chat.tool_consent import CommandLinePermission, TerminalQuestions, can_ask, unknown_names
from edgechat.cli.output.layout import can_render
from edgechat.cli.output.status import StatusLine
from edgechat.cli.terminal_io import as_text, complain, is_interactive, note
from edgechat.engine.protocol import Engine
from edgechat.engine.remote.starting import LOG_BYTES, Starting
from edgechat.engine.types import ModelInfo
from edgechat.planner.drafting import asks_for_drafts
from edgechat.settings import Backend, RuntimeQuant, Settings
from edgechat.tools.consent import Answer, Question

if TYPE_CHECKING:
    from edgechat.documents.indexing import Progress

_PROMPT = ">>> "
_RECENT = 100
"""Earlier questions that the arrow keys find."""
_STOP_SECONDS = 5.0
"""How long the end of the program waits for an answer to stop."""
_SAVE_SECONDS = 10.0
"""How long it then waits for the KV state of the conversation to be on disk."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of the command line; None means that one was not given."""

    model: str | None = None
    prompt: str | None = None
    images: Sequence[str | bytes] = ()
    """Files, or what was piped in, to be sent with the first question."""
    system: str | None = None
    generation: CommandLineOptions = field(default_factory=CommandLineOptions)
    context: int | None = None
    choice: ConversationChoice = field(default_factory=ConversationChoice)
    json: bool = False
    raw: bool = False
    """Print answers as the model writes them, in a terminal too."""
    draft: str | None = None
    backend: Backend | None = None
    runtime_quant: RuntimeQuant | None = None
    vision: bool = True
    workers: tuple[str, ...] | None = None
    tools: str | None = None
    """What the model may call, as it is typed: see `chat_tools.choice`."""
    yes: Sequence[str] = ()
    """The tools that are called without a question: see `NamedPermission`."""
    anyway: bool = False
    screen_reader: bool = False
    interactive: bool = False
    """Hold a conversation, even if lines are piped in."""

    def new_system(self, settings: Settings) -> str | None:
        """Return the system prompt of a new conversation."""
        return settings.system if self.system is None else self.system


class ChatLoop:
    """One run of the command: a conversation, and the session that it is held in."""

    def __init__(
        self,
        session: ChatSession,
        conversation: Conversation,
        options: RunOptions,
        background: Background,
        *,
        spoken: bool = False,
    ) -> None:
        """`session` has its engine already. spoken: whether a screen reader reads the output aloud."""
        self.session = session
        self.store = background.run(session.store())
        self.conversation = conversation
        self.options = options
        self.background = background
        self.spoken = spoken
        self.status: StatusLine = SpokenStatus(sys.stderr) if spoken else StatusLine(sys.stderr)
        self.attachments: list[Attachment] = []
        self.images: list[AttachedImage] = []
        """What is sent with the next question, as `attachments` is."""
        self._answer_task: asyncio.Task[None] | None = None
        self._unknown_names: list[str] = []
        session.on_note = self._note

    @property
    def _renders(self) -> bool:
        """Whether the Markdown of answers is rendered."""
        return can_render(sys.stdout) and not (self.spoken or self.options.json or self.options.raw)

    @property
    def engine(self) -> Engine:
        """The engine of the current model."""
        assert self.session.loaded is not None
        return self.session.loaded

    def main(self, prompt: str | None) -> None:
        """Answer the prompt, or hold a conversation where there is none."""
        try:
            self._note_plan()
            for image in self.options.images:
                self.attach_image(image)
            if prompt is None:
                self._run_interactively()
            else:
                self._answer(prompt, is_only=True)
        finally:
            self.status.clear()
            self.background.run(self._end())
            self.status.clear()

    def attach_image(self, source: str | bytes) -> AttachedImage:
        """Send an image along with the next question: a file, or the bytes of one. Raises ImageError.

        Raises also CannotSee, and AttachmentError if there are too many.
        """
        self.check_sees()
        library = self.store.images
        image = (
            read_image(library, source)
            if isinstance(source, str)
            else keep_image(library, source, "standard input")
        )
        if image not in self.images:
            if len(self.images) + len(self.attachments) >= MOST:
                raise AttachmentError(
                    f"A question can have at most {MOST} attachments.", hint="Send these first."
                )
            self.images.append(image)
        return image

    def check_sees(self) -> None:
        """Raise CannotSee if the model takes no images, with a hint at one that does."""
        try:
            self.background.run(self.session.check_sees())
        except CannotSee as error:
            from edgechat.cli.chat.seeing import seeing_hint  # it imports the planner

            self.status.show("looking for a model that sees")
            hint = seeing_hint(self.options.backend, in_conversation=self.options.prompt is None)
            self.status.clear()
            parts = filter(None, (error.hint, hint))
            raise CannotSee(error.message, hint=" ".join(parts) or None) from error

    # A conversation, line by line.

    def _run_interactively(self) -> None:
        try:
            self._load()
        except (
            RemoteUnreachable,
            RemoteDenied,
        ) as error:  # which /model can change
            self.status.clear()
            complain(error.message, error.hint)
        lines = "Alt+Enter begins another line, " * self._edits
        hint = f"/help lists commands, {lines}Ctrl+C stops an answer, Ctrl+D ends."
        name = one_line(self.engine.plan.model_name)
        if self.spoken:
            state = "is ready" if self.engine.model is not None else "does not answer yet"
            self.status.say(f"{name} {state}. Type a question and press Enter. {hint}")
        else:
            print(f"{name}: {hint}", file=sys.stderr)
        if self.conversation.n_messages:
            title, count = one_line(self.conversation.chat.title), counted(self.conversation.n_messages)
            print(f"Continuing: {title} ({count})", file=sys.stderr)
        commands = SlashCommands(self)
        for line in self._lines():
            try:
                if not commands.run(line):
                    self._answer(question_text(line))
            except EdgechatError as error:
                self.status.clear()
                complain(error.message, error.hint)
            if commands.ended:
                return

    @property
    def _edits(self) -> bool:
        """Whether questions are typed in an editor, which moves the cursor, and not line by line."""
        return is_interactive() and not (self.spoken or os.environ.get("TERM") == "dumb")

    def _lines(self) -> Iterator[str]:
        """Yield what is typed, a question or a command at a time, without blank ones."""
        read = self._read_line
        if self._edits:
            from edgechat.cli.chat.line_editor import QuestionPrompt

            asked = list[str]()
            with contextlib.suppress(StoreError):
                asked = self.background.run(self.store.recent_questions(_RECENT))
            read = QuestionPrompt(asked).read
        while True:
            try:
                line = as_text(read())
            except EOFError:
                print(file=sys.stderr)
                return
            self.status.heard()
            if line.strip():
                yield line

    def _read_line(self) -> str:
        if self.spoken:  # on stderr, since stdout may be piped to another program
            print("You: ", end="", file=sys.stderr, flush=True)
        return input("" if self.spoken else _PROMPT)

    def add_documents(self, path: str) -> str:
        """Read a folder or file, and search it in this conversation; Ctrl+C stops that.

        Returns a sentence about it. Raises EdgechatError.
        """
        adding = add_documents(self.session, self.conversation, path, self._show_reading)
        reading = self.background.begin(adding)
        try:
            return reading.result()
        except KeyboardInterrupt:
            reading.cancel()
            return "Stopped. What has been read is kept; the same command goes on."
        finally:
            self.status.clear()

    def start_conversation(self) -> None:
        """Start a new conversation with the next question."""
        self.background.run(self.session.persist(self.conversation))
        system = self.options.new_system(self.session.settings)
        self.conversation = self.background.run(self.session.begin(system))

    def continue_conversation(self, conversation: Conversation) -> None:
        """Continue a stored conversation with the next question."""
        self.background.run(self.session.persist(self.conversation))
        self.conversation = conversation

    def switch_model(self, name: str) -> None:
        """Switch to another model; if it cannot be planned, the current one stays."""
        self.background.run(self.session.switch_model(name))
        self._note_plan()
        self._load()

    def retry(self) -> None:
        """Regenerate the last reply; the present one stays as a branch."""
        self.conversation.regenerate()
        try:
            if self.conversation.turns[-1].images:
                self.check_sees()
            self._answer(None)
        finally:
            self.conversation.put_back()

    def continue_reply(self) -> None:
        """Continue the last reply where it ended early. Raises ChatNotFound if it did not."""
        if not self.conversation.can_continue:
            raise nothing_to_continue()
        self._answer(None)

    # One answer.

    def _load(self) -> ModelInfo:
        is_first_load = self.engine.model is None
        if is_first_load:
            self.status.say(f"Loading {one_line(self.engine.plan.model_name)}.")
        self.status.show("starting the engine")
        starting = Starting(self.engine.plan) if self.engine.plan.program is not None else None
        start = self.background.begin(self.engine.start(partial(self._show_load, starting)))
        if self._renders:
            import edgechat.cli.chat.rendered  # noqa: F401  (0.3 s, which pass while the model loads)
        try:
            model = start.result()
        except LoadFailed as error:
            raise self._with_local_hint(error) from error
        self.status.clear()
        if is_first_load:
            if model.template == "chatml":
                self._note("the model has no chat template; ChatML is used.")
            # A reason that is the plan's has been printed with it.
            if asks_for_drafts(self.options.draft) and model.no_draft not in ("", self.engine.plan.no_draft):
                self._note(model.no_draft)
        return model

    def _with_local_hint(self, error: LoadFailed) -> LoadFailed:
        """Return an error of another server with a hint at a model of this machine."""
        if self.engine.plan.remote is not None:
            from edgechat.cli.chat.seeing import local_hint  # it imports the planner

            hint = local_hint(in_conversation=self.options.prompt is None)
            error = type(error)(error.message, hint="\n  ".join(filter(None, (error.hint, hint))) or None)
        return error

    def _note_plan(self) -> None:
        """Print what users may want to know about the plan."""
        plan, options = self.engine.plan, self.options
        for text in plan.notes:
            self._note(text)
        if plan.no_draft and asks_for_drafts(options.draft):
            self._note(plan.no_draft)
        if options.context is not None and plan.context > options.context:
            difference = f"it is {plan.context} instead of {options.context}"
            self._note(f"A context is a multiple of 256 tokens; {difference}.")

    def _note(self, text: str) -> None:
        self.status.clear()
        note(text)

    def _show_load(self, starting: Starting | None, progress: float) -> None:
        plan = self.engine.plan
        if starting is not None:
            self.status.show(starting.line(self.engine.log_tail(LOG_BYTES)))
        elif plan.remote is not None:
            self.status.show(f"waiting for {plan.remote.server}")
        else:
            self.status.show(f"loading {plan.model_name} {progress:.0%}")

    def _answer(self, prompt: str | None, *, is_only: bool = False) -> None:
        """Stream one answer; however it ends, it is stored.

        prompt: None for an answer to the last question, or for the rest of one that ended early. is_only: no
        other question follows.
        """
        model = self._load()
        if self.session.chosen_tools(self.conversation.settings) and not model.has_tools:
            self._note(told_in_words(model.name))
        if self.images:  # the model may be another one by now
            self.check_sees()
        printer = self._new_printer()
        try:
            with hinting_at_no_store(self.options.choice):
                if prompt is not None:
                    self.background.run(self._ask(prompt))
                printer.passages = [
                    file for turn in self.conversation.turns for file in turn.attachments if file.source
                ]
                self._wait_for(printer, is_only=is_only)
        except EdgechatError as error:
            printer.end(self.engine.plan, model, self.conversation.state_id, error)
            raise
        printer.end(self.engine.plan, model, self.conversation.state_id)

    def _new_printer(self) -> AnswerPrinter:
        dropped, has_system = self.conversation.dropped, self.conversation.system is not None
        if isinstance(self.status, SpokenStatus) and not self.options.json:
            return SpokenAnswer(self.status, dropped=dropped, has_system=has_system)
        if self._renders:
            from edgechat.cli.chat.rendered import RenderedAnswer

            return RenderedAnswer(self.status, dropped=dropped, has_system=has_system)
        return AnswerPrinter(self.status, as_json=self.options.json, dropped=dropped, has_system=has_system)

    async def _ask(self, prompt: str) -> None:
        before = self.conversation.n_messages
        passages = await self._passages(prompt)
        await self.conversation.ask(prompt, [*passages, *self.attachments], self.images)
        self.attachments, self.images = [], []
        more = self.conversation.n_messages - before - 1
        if more > 0:
            self._note(
                f"another edgechat has continued this conversation in the meantime: {counted(more)} more."
            )

    async def _passages(self, prompt: str) -> list[Attachment]:
        """Return what helps to answer from the documents of the conversation."""
        try:
            return await self.session.passages(self.conversation, prompt, self._show_reading)
        finally:
            self.status.clear()

    def _show_reading(self, progress: Progress) -> None:
        self.status.show(f"reading {progress.done:,} of {progress.total:,} documents: {progress.name}")

    def _wait_for(self, printer: AnswerPrinter, *, is_only: bool) -> None:
        """Wait for the answer. In a conversation, Ctrl+C stops it; otherwise, Ctrl+C ends the program."""
        questions = TerminalQuestions()
        answer = self.background.begin(self._stream(printer, questions))
        try:
            questions.answer_until_done(answer)
            answer.result()
        except KeyboardInterrupt:
            if is_only:
                raise
            self.background.begin(self._stop())
            answer.result()

    async def _stream(self, printer: AnswerPrinter, questions: TerminalQuestions) -> None:
        """Return when the answer has ended, for whatever reason, and is saved."""
        self._answer_task = asyncio.create_task(self._print_events(printer, questions))
        await asyncio.wait([self._answer_task])
        if not self._answer_task.cancelled():
            self._answer_task.result()

    async def _print_events(self, printer: AnswerPrinter, questions: TerminalQuestions) -> None:
        async def ask(question: Question) -> Answer:
            printer.flush()
            self.status.clear()
            return await questions.ask(question)

        chat_id = self.conversation.chat.id
        asking = await self.session.tools.asking(chat_id, ask) if can_ask() else None
        permission = CommandLinePermission(self.options.yes, asking)
        self._note_unknown_names()
        try:
            reply = self.session.answer(self.conversation, permission=permission)
            async with aclosing(reply) as events:
                async for event in events:
                    printer.take(event)
        finally:
            printer.flush()  # Ctrl+C too

    def _note_unknown_names(self) -> None:
        """Say once which names of --yes permit nothing."""
        unknown = unknown_names(self.options.yes, self.session.chosen_tools(self.conversation.settings))
        if unknown and unknown != self._unknown_names:
            self.status.clear()
            note(f"--yes {', '.join(map(one_line, unknown))} permits nothing: no such tools are chosen.")
        self._unknown_names = unknown

    async def _stop(self) -> None:
        task = self._answer_task
        if task is not None and not task.done() and not await self.conversation.stop():
            task.cancel()

    async def _end(self) -> None:
        """Stop the answer, save the KV state, end the worker."""
        await self._stop()
        if self._answer_task is not None:
            await asyncio.wait([self._answer_task], timeout=_STOP_SECONDS)
        if self.conversation.state_id is not None:
            self.status.show("saving the KV state of the conversation")
        await self.session.close_engine(_SAVE_SECONDS)
        if self._answer_task is not None:  # it ends with its engine, and its error has been reported
            await asyncio.wait([self._answer_task])
            self._answer_task.cancelled() or self._answer_task.exception()
