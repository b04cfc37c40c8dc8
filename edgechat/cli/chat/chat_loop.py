"""A conversation on the command line: one answer, or line after line; for eyes, or for a screen reader."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Coroutine, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, TypeVar

from edgechat.base.errors import EdgechatError
from edgechat.base.text import one_line
from edgechat.chat.commands import question_text
from edgechat.chat.conversation import Conversation
from edgechat.chat.generation_options import CommandLineOptions
from edgechat.chat.import_export.export import counted
from edgechat.chat.records import Attachment
from edgechat.chat.session import ChatSession
from edgechat.cli.chat.answer import AnswerPrinter
from edgechat.cli.chat.conversation import ConversationChoice, offering_not_to_keep
from edgechat.cli.chat.event_loop import Background
from edgechat.cli.chat.screen_reader import SpokenAnswer, SpokenStatus
from edgechat.cli.chat.slash_commands import SlashCommands
from edgechat.cli.output.status import StatusLine
from edgechat.cli.terminal_io import as_text, complain, note
from edgechat.engine.protocol import Engine
from edgechat.engine.types import ModelInfo, Overflow
from edgechat.planner.drafting import asks_for_drafts
from edgechat.settings import Backend, SamplingDefaults, Settings

T = TypeVar("T")
_PROMPT = ">>> "
_STOPPING = 5.0
"""Seconds that the end of the program waits for an answer to stop."""
_SAVING = 10.0
"""Seconds that it then waits for the state of the conversation to be on disk."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What the command line said; None and empty mean that it said nothing."""

    model: str | None = None
    prompt: str | None = None
    system: str | None = None
    sampling: SamplingDefaults = field(default_factory=SamplingDefaults)
    seed: int | None = None
    max_tokens: int | None = None
    context: int | None = None
    stop: tuple[str, ...] = ()
    think: bool | None = None
    overflow: Overflow | None = None
    wanted: ConversationChoice = field(default_factory=ConversationChoice)
    json: bool = False
    draft: str | None = None
    backend: Backend | None = None
    anyway: bool = False
    screen_reader: bool = False
    converse: bool = False
    """Hold a conversation, also with lines that are piped in."""

    @property
    def generation(self) -> CommandLineOptions:
        """What of it is about how replies are generated."""
        return CommandLineOptions(
            sampling=self.sampling,
            seed=self.seed,
            max_tokens=self.max_tokens,
            stop=self.stop,
            think=self.think,
            overflow=self.overflow,
        )

    def system_of(self, said: Settings) -> str | None:
        """Return the system prompt of a new conversation."""
        return said.system if self.system is None else self.system


class ChatLoop:
    """One run of the command: a conversation, and the session that it is held in."""

    def __init__(
        self,
        session: ChatSession,
        talk: Conversation,
        options: RunOptions,
        background: Background,
        *,
        spoken: bool = False,
    ) -> None:
        """`session` has its engine already. spoken: whether a screen reader reads it aloud."""
        self.session = session
        self.store = background.run(session.store())
        self.talk = talk
        self.options = options
        self.background = background
        self.spoken = spoken
        self.status: StatusLine = SpokenStatus(sys.stderr) if spoken else StatusLine(sys.stderr)
        self.attachments: list[Attachment] = []
        """What is sent along with the next question."""
        self.answering: asyncio.Task[None] | None = None
        session.on_note = self._tell

    @property
    def engine(self) -> Engine:
        """The engine of the model that answers."""
        assert self.session.loaded is not None
        return self.session.loaded

    def main(self, prompt: str | None) -> None:
        """Answer the prompt, or hold a conversation where there is none."""
        try:
            self._tell_plan()
            if prompt is None:
                self._converse()
            else:
                self._answer(prompt, alone=True)
        finally:
            self.status.clear()
            self.background.run(self._end())
            self.status.clear()

    # Line after line.

    def _converse(self) -> None:
        self._load()
        hint = "/help lists commands, Ctrl+C stops an answer, Ctrl+D ends."
        name = one_line(self.engine.plan.model_name)
        if self.spoken:
            self.status.say(f"{name} is ready. Type a question and press Enter. {hint}")
        else:
            print(f"{name}: {hint}", file=sys.stderr)
        if self.talk.n_messages:
            print(
                f"Continuing: {one_line(self.talk.chat.title)} ({counted(self.talk.n_messages)})",
                file=sys.stderr,
            )
        inside = SlashCommands(self)
        for line in self._lines():
            try:
                if not inside.obeys(line):
                    self._answer(question_text(line))
            except EdgechatError as error:
                self.status.clear()
                complain(error.message, error.hint)
            if inside.ended:
                return

    def _lines(self) -> Iterator[str]:
        """Yield what is typed, without the lines that have nothing."""
        if not self.spoken:
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401  (line editing and history for input(), which move the cursor)
        while True:
            try:
                if self.spoken:  # where answers are piped on, it is no part of them
                    print("You: ", end="", file=sys.stderr, flush=True)
                line = as_text(input("" if self.spoken else _PROMPT))
            except EOFError:
                print(file=sys.stderr)
                return
            self.status.heard()
            if line.strip():
                yield line

    def begin(self) -> None:
        """Let the next question begin another conversation."""
        self._leave()
        self.talk = self.background.run(self.session.begin(self.options.system_of(self.session.settings)))

    def go_on_with(self, talk: Conversation) -> None:
        """Let the next question go on with a stored conversation."""
        self._leave()
        self.talk = talk

    def use_model(self, name: str) -> None:
        """Let another model answer from now on; where it cannot be planned, the one so far stays."""
        self.background.run(self.session.switch_model(name))
        self._tell_plan()
        self._load()

    def retry(self) -> None:
        """Regenerate the last reply; the present one stays as a branch."""
        self.talk.regenerate()
        try:
            self._answer(None)
        finally:
            self.talk.put_back()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine; return its result, or raise its error."""
        return self.background.run(work)

    def _leave(self) -> None:
        self.background.run(self.session.persist(self.talk))

    # One answer.

    def _load(self) -> ModelInfo:
        known = self.engine.model
        if known is None:
            self.status.say(f"Loading {one_line(self.engine.plan.model_name)}.")
        self.status.show("starting the engine")
        model = self.background.run(self.engine.start(self._show_load))
        self.status.clear()
        if model.template == "chatml" and known is None:
            self._tell("the model has no chat template; ChatML is used.")
        why = model.no_draft if asks_for_drafts(self.options.draft) else ""
        if why and known is None and why != self.engine.plan.no_draft:  # that was told before
            self._tell(why)
        return model

    def _tell_plan(self) -> None:
        """Tell what there is to know of the plan."""
        plan, options = self.engine.plan, self.options
        for told in plan.notes:
            self._tell(told)
        if plan.no_draft and asks_for_drafts(options.draft):
            self._tell(plan.no_draft)
        if options.context is not None and plan.context > options.context:
            wanted = f"it is {plan.context} instead of {options.context}"
            self._tell(f"A context is a multiple of 256 tokens; {wanted}.")

    def _tell(self, told: str) -> None:
        self.status.clear()
        note(told)

    def _show_load(self, progress: float) -> None:
        self.status.show(f"loading {self.engine.plan.model_name} {progress:.0%}")

    def _answer(self, prompt: str | None, *, alone: bool = False) -> None:
        """Stream one answer, to the last question if there is no prompt; whatever becomes of it is stored.

        alone: nothing is asked after it.
        """
        model = self._load()
        answer = self._new_answer()
        try:
            with offering_not_to_keep(self.options.wanted):
                if prompt is not None:
                    self.background.run(self._ask(prompt))
                self._wait_for(answer, alone=alone)
        except EdgechatError as error:
            answer.end(self.engine.plan, model, self.talk.state_id, error)
            raise
        answer.end(self.engine.plan, model, self.talk.state_id)

    def _new_answer(self) -> AnswerPrinter:
        dropped, has_system = self.talk.dropped, self.talk.system is not None
        if isinstance(self.status, SpokenStatus) and not self.options.json:
            return SpokenAnswer(self.status, dropped=dropped, has_system=has_system)
        return AnswerPrinter(self.status, as_json=self.options.json, dropped=dropped, has_system=has_system)

    async def _ask(self, prompt: str) -> None:
        known = self.talk.n_messages
        await self.talk.ask(prompt, self.attachments)
        self.attachments = []
        more = self.talk.n_messages - known - 1
        if more > 0:
            self._tell(
                f"another edgechat has continued this conversation in the meantime: {counted(more)} more."
            )

    def _wait_for(self, answer: AnswerPrinter, *, alone: bool) -> None:
        """Wait for the answer. In a conversation the first Ctrl+C stops it; else it ends the program."""
        streaming = self.background.begin(self._stream(answer))
        try:
            streaming.result()
        except KeyboardInterrupt:
            if alone:
                raise
            self.background.begin(self._stop())
            streaming.result()

    async def _stream(self, answer: AnswerPrinter) -> None:
        """Return when the answer has ended and is saved, however it came to its end."""
        self.answering = asyncio.create_task(self._take(answer))
        await asyncio.wait([self.answering])
        if not self.answering.cancelled():
            self.answering.result()

    async def _take(self, answer: AnswerPrinter) -> None:
        async with aclosing(self.session.answer(self.talk)) as events:
            async for event in events:
                answer.take(event)

    async def _stop(self) -> None:
        if self.answering is not None and not self.answering.done() and not await self.talk.stop():
            self.answering.cancel()

    async def _end(self) -> None:
        """Stop what is being written, put what was computed on disk, end the worker."""
        await self._stop()
        if self.answering is not None:
            await asyncio.wait([self.answering], timeout=_STOPPING)
        if self.talk.state_id is not None:
            self.status.show("saving the KV state of the conversation")
        await self.session.close_engine(_SAVING)
        if self.answering is not None:  # it ends with its engine; what went wrong with it has been told
            await asyncio.wait([self.answering])
            self.answering.cancelled() or self.answering.exception()
