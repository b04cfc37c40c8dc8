"""Chat on the command line: either a single answer, or a conversation that is typed line by line."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import TYPE_CHECKING

from edgechat import settings
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
from edgechat.chat.attachments import MOST, keep_image, read, read_image
from edgechat.chat.commands import question_text
from edgechat.chat.conversation import Conversation, nothing_to_continue
from edgechat.chat.import_export.export import counted
from edgechat.chat.parameters import add_documents
from edgechat.chat.records import AttachedImage, Attachment
from edgechat.chat.reply.calls import told_in_words
from edgechat.chat.session import ChatSession
from edgechat.cli.chat.answers import AnswerPrinter, SpokenAnswer, SpokenStatus
from edgechat.cli.chat.conversation import Background, RunOptions, hinting_at_no_store
from edgechat.cli.chat.tool_consent import CommandLinePermission, TerminalQuestions, can_ask, unknown_names
from edgechat.cli.terminal_io import StatusLine, as_text, can_render, complain, is_interactive, note
from edgechat.engine.protocol import Engine
from edgechat.engine.remote.starting import LOG_BYTES, Starting
from edgechat.engine.types import ModelInfo
from edgechat.planner.listing import ModelRow, rows
from edgechat.planner.placement.drafting import asks_for_drafts
from edgechat.planner.prepare import overview
from edgechat.planner.ranking.ranking import SurveyOverview
from edgechat.planner.ranking.suggestions import local_model, seeing_model
from edgechat.planner.request import PlanRequest, with_settings
from edgechat.settings import Backend
from edgechat.tools.consent import Answer, Question

if TYPE_CHECKING:
    from edgechat.documents.indexing import Progress

_PROMPT = ">>> "
_RECENT = 100
"""Number of past questions to load into the input history."""
_STOP_SECONDS = 5.0
"""Seconds to wait at exit for a running answer to stop."""
_SAVE_SECONDS = 10.0
"""Additional seconds to wait for the KV state to be saved."""


class ChatLoop:
    """One run of the command, with a conversation and the session that it belongs to."""

    def __init__(
        self,
        session: ChatSession,
        conversation: Conversation,
        options: RunOptions,
        background: Background,
        *,
        spoken: bool = False,
    ) -> None:
        """session: must already have an engine. spoken: whether the output is meant for a screen reader."""
        self.session = session
        self.store = background.run(session.store())
        self.conversation = conversation
        self.options = options
        self.background = background
        self.spoken = spoken
        self.status: StatusLine = SpokenStatus(sys.stderr) if spoken else StatusLine(sys.stderr)
        self.attachments: list[Attachment] = []
        self.images: list[AttachedImage] = []
        """Images to send along with the next question, in addition to `attachments`."""
        self.ended = False
        """Whether the conversation should end. Set by a command."""
        self._answer_task: asyncio.Task[None] | None = None
        self._unknown_names: list[str] = []
        session.on_note = self._note

    @property
    def _renders(self) -> bool:
        """Whether to render Markdown in answers."""
        return can_render(sys.stdout) and not (self.spoken or self.options.json or self.options.raw)

    @property
    def engine(self) -> Engine:
        """The engine that runs the current model."""
        assert self.session.loaded is not None
        return self.session.loaded

    def main(self, prompt: str | None, run_command: Callable[[str], bool]) -> None:
        """Answer the prompt, or hold a conversation if the prompt is None.

        run_command: runs a line if it is a command, and returns whether it was one.
        """
        try:
            self._note_plan()
            for image in self.options.images:
                self.attach_image(image)
            if prompt is None:
                self._run_interactively(run_command)
            else:
                self._answer(prompt, is_only=True)
        finally:
            self.status.clear()
            self.background.run(self._end())
            self.status.clear()

    def attach_image(self, source: str | bytes) -> AttachedImage:
        """Attach an image to the next question, given its path or its bytes.

        Raises ImageError, CannotSee, or AttachmentError if there are too many attachments.
        """
        self.check_sees()
        library = self.store.images
        image = (
            read_image(library, source)
            if isinstance(source, str)
            else keep_image(library, source, "standard input")
        )
        if image not in self.images:
            self._check_room()
            self.images.append(image)
        return image

    def attach_file(self, path: str) -> Attachment:
        """Attach the text of a file to the next question. Raises AttachmentError."""
        self._check_room()
        self.attachments.append(read(path))
        return self.attachments[-1]

    def _check_room(self) -> None:
        if len(self.images) + len(self.attachments) >= MOST:
            raise AttachmentError(
                f"A question can have at most {MOST} attachments.", hint="Send these first."
            )

    def check_sees(self) -> None:
        """Raise CannotSee if the model does not support images, with a hint that suggests one that does."""
        try:
            self.background.run(self.session.check_sees())
        except CannotSee as error:
            self.status.show("looking for a model that sees")
            hint = _seeing_hint(self.options.request.backend, in_conversation=self.options.prompt is None)
            self.status.clear()
            parts = filter(None, (error.hint, hint))
            raise CannotSee(error.message, hint=" ".join(parts) or None) from error

    # The conversation, line by line.

    def _run_interactively(self, run_command: Callable[[str], bool]) -> None:
        try:
            self._load()
        except (
            RemoteUnreachable,
            RemoteDenied,
        ) as error:  # the user can still switch models with /model
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
        for line in self._lines():
            try:
                if not run_command(line):
                    self._answer(question_text(line))
            except EdgechatError as error:
                self.status.clear()
                complain(error.message, error.hint)
            if self.ended:
                return

    @property
    def _edits(self) -> bool:
        """Whether to read questions with the line editor, which needs to move the cursor."""
        return is_interactive() and not (self.spoken or os.environ.get("TERM") == "dumb")

    def _lines(self) -> Iterator[str]:
        """Yield each question or command that the user types, skipping blank lines."""
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
        if self.spoken:  # to stderr, since stdout may be piped to another program
            print("You: ", end="", file=sys.stderr, flush=True)
        return input("" if self.spoken else _PROMPT)

    def add_documents(self, path: str) -> str:
        """Add a folder or file to the conversation's documents. Ctrl+C stops reading.

        Returns a sentence that describes the result. Raises EdgechatError.
        """
        adding = add_documents(self.session, self.conversation, path, self._show_reading)
        reading = self.background.begin(adding)
        try:
            return reading.result()
        except KeyboardInterrupt:
            reading.cancel()
            return "Stopped. The documents read so far are kept; run the same command to continue."
        finally:
            self.status.clear()

    def start_conversation(self) -> None:
        """Start a new conversation, which will contain the next question."""
        self.background.run(self.session.persist(self.conversation))
        system = self.options.new_system(self.session.settings)
        self.conversation = self.background.run(self.session.begin(system))

    def continue_conversation(self, conversation: Conversation) -> None:
        """Switch to a stored conversation, which the next question will continue."""
        self.background.run(self.session.persist(self.conversation))
        self.conversation = conversation

    def switch_model(self, name: str) -> None:
        """Switch to another model. If no plan can be made for it, the current one stays loaded."""
        self.background.run(self.session.switch_model(name))
        self._note_plan()
        self._load()

    def retry(self) -> None:
        """Generate the last reply again, keeping the old one as a branch."""
        self.conversation.regenerate()
        try:
            if self.conversation.turns[-1].images:
                self.check_sees()
            self._answer(None)
        finally:
            self.conversation.put_back()

    def continue_reply(self) -> None:
        """Continue a reply that was cut off. Raises ChatNotFound if the last reply is complete."""
        if not self.conversation.can_continue:
            raise nothing_to_continue()
        self._answer(None)

    # Answers.

    def _load(self) -> ModelInfo:
        is_first_load = self.engine.model is None
        if is_first_load:
            self.status.say(f"Loading {one_line(self.engine.plan.model_name)}.")
        self.status.show("starting the engine")
        starting = Starting(self.engine.plan) if self.engine.plan.program is not None else None
        start = self.background.begin(self.engine.start(partial(self._show_load, starting)))
        if self._renders:
            import edgechat.cli.chat.rendered  # noqa: F401  (takes 0.3 s, so do it while the model loads)
        try:
            model = start.result()
        except LoadFailed as error:
            raise self._with_local_hint(error) from error
        self.status.clear()
        if is_first_load:
            if model.template == "chatml":
                self._note("the model has no chat template; ChatML is used.")
            # A reason given by the plan has already been printed.
            if asks_for_drafts(self.options.request.draft) and model.no_draft not in (
                "",
                self.engine.plan.no_draft,
            ):
                self._note(model.no_draft)
        return model

    def _with_local_hint(self, error: LoadFailed) -> LoadFailed:
        """Add a hint that suggests a local model to an error from another server."""
        if self.engine.plan.remote is not None:
            hint = _local_hint(in_conversation=self.options.prompt is None)
            error = type(error)(error.message, hint="\n  ".join(filter(None, (error.hint, hint))) or None)
        return error

    def _note_plan(self) -> None:
        plan, options = self.engine.plan, self.options
        for text in plan.notes:
            self._note(text)
        if plan.no_draft and asks_for_drafts(options.request.draft):
            self._note(plan.no_draft)
        asked = options.request.context
        if asked is not None and plan.context > asked:
            difference = f"it is {plan.context} instead of {asked}"
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
        """Stream one answer and store it, even if it is stopped or fails.

        prompt: None to answer the last question again, or to continue a reply. is_only: whether this is the
        only question, after which the program exits.
        """
        model = self._load()
        if self.session.chosen_tools(self.conversation.settings) and not model.has_tools:
            self._note(told_in_words(model.name))
        if self.images:  # the user may have switched with /model to one that cannot see
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
            self._note(f"another edgechat has added {counted(more)} to this conversation in the meantime.")

    async def _passages(self, prompt: str) -> list[Attachment]:
        """Return the passages in the conversation's documents that are relevant to a prompt."""
        try:
            return await self.session.passages(self.conversation, prompt, self._show_reading)
        finally:
            self.status.clear()

    def _show_reading(self, progress: Progress) -> None:
        self.status.show(f"reading {progress.done:,} of {progress.total:,} documents: {progress.name}")

    def _wait_for(self, printer: AnswerPrinter, *, is_only: bool) -> None:
        """Wait for the answer to end. Ctrl+C stops the answer or, if it is the only one, ends the program."""
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
        """Stream the answer until it has ended, for whatever reason, and been saved."""
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
            printer.flush()  # also after Ctrl+C

    def _note_unknown_names(self) -> None:
        """Print the names given to --yes that match no chosen tool, unless they were printed last time."""
        unknown = unknown_names(self.options.yes, self.session.chosen_tools(self.conversation.settings))
        if unknown and unknown != self._unknown_names:
            self.status.clear()
            note(f"--yes {', '.join(map(one_line, unknown))} has no effect: no such tools are chosen.")
        self._unknown_names = unknown

    async def _stop(self) -> None:
        task = self._answer_task
        if task is not None and not task.done() and not await self.conversation.stop():
            task.cancel()

    async def _end(self) -> None:
        """Stop the answer, save the KV state and shut down the worker."""
        await self._stop()
        if self._answer_task is not None:
            await asyncio.wait([self._answer_task], timeout=_STOP_SECONDS)
        if self.conversation.state_id is not None:
            self.status.show("saving the KV state of the conversation")
        await self.session.close_engine(_SAVE_SECONDS)
        if self._answer_task is not None:  # it ends when its engine does, and its error has been reported
            await asyncio.wait([self._answer_task])
            self._answer_task.cancelled() or self._answer_task.exception()


def _seeing_hint(backend: Backend | None, *, in_conversation: bool) -> str | None:
    """Return a hint that suggests a model that can see images and fits this machine, or None."""

    def rated(listed: Sequence[ModelRow]) -> SurveyOverview:
        sound = [row.model for row in listed if not row.glance.damage]
        return overview(sound, with_settings(PlanRequest(backend=backend), settings.load()))

    with suppress(EdgechatError):  # the original error matters more than any error in this search
        seeing = seeing_model(rows, rated)
        if seeing is not None:
            name = shlex.quote(seeing.name)
            use = f"/model {seeing.name}" if in_conversation else f"edgechat run {name} …"
            return f"{seeing.sentence} {use if seeing.is_here else f'edgechat pull {name}'}"
    return None


def _local_hint(*, in_conversation: bool) -> str | None:
    """Return a hint that suggests a local model that fits this machine, or None."""
    with suppress(EdgechatError):
        found = local_model(rows())
        if found is not None:
            use = f"/model {found.name}" if in_conversation else f"edgechat run {shlex.quote(found.name)} …"
            return f"{found.sentence} {use}"
    return None
