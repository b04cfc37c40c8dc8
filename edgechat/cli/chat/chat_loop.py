"""A conversation on the command line: one answer, or line after line; for eyes, or for a screen reader."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field

from edgechat.chat.commands import sent
from edgechat.chat.conversation import Conversation
from edgechat.chat.generation_options import GenerationOptions
from edgechat.chat.storage.store import Store
from edgechat.cli.chat.answer import AnswerPrinter
from edgechat.cli.chat.conversation import ConversationChoice, offering_not_to_keep
from edgechat.cli.chat.event_loop import Background
from edgechat.cli.chat.screen_reader import SpokenAnswer, SpokenStatus
from edgechat.cli.chat.slash_commands import SlashCommands
from edgechat.cli.commands.chats import counted
from edgechat.cli.output.status import StatusLine
from edgechat.cli.terminal_io import as_text, complain, note
from edgechat.engine.types import ModelInfo, Overflow, Sampling
from edgechat.engine.worker.supervisor import EngineSupervisor
from edgechat.errors import EdgechatError
from edgechat.planner.drafting import asks_for_drafts
from edgechat.planner.plan import LoadPlan
from edgechat.settings import Backend, SamplingDefaults, Settings
from edgechat.text import one_line

_PROMPT = ">>> "
_STOPPING = 5.0
"""Seconds that the end of the program waits for an answer to stop."""


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

    def system_of(self, said: Settings) -> str | None:
        """Return the system prompt of a new conversation."""
        return said.system if self.system is None else self.system


@dataclass(frozen=True, slots=True)
class ChatServices:
    """What a conversation is held with."""

    options: RunOptions
    said: Settings
    store: Store
    background: Background
    plan_for: Callable[[str], LoadPlan]
    """From a model's name to its plan, what there is to know of which is told. Raises EdgechatError."""
    engine_for: Callable[[str, LoadPlan, Callable[[str], None]], EngineSupervisor]
    """From a model and its plan to its engine, which tells what it has to change about the plan."""
    spoken: bool = False
    """Whether a screen reader reads it aloud."""


class ChatLoop:
    """One run of the command: the engine, and the conversation that it answers in."""

    def __init__(self, services: ChatServices, model: str, plan: LoadPlan, talk: Conversation) -> None:
        self.services = services
        self.options = services.options
        self.model = model
        """Its name, as it was asked for."""
        self.talk = talk
        self.background = services.background
        self.status: StatusLine = SpokenStatus(sys.stderr) if services.spoken else StatusLine(sys.stderr)
        self.engine = services.engine_for(model, plan, self._tell)
        self.answering: asyncio.Task[None] | None = None

    def main(self, prompt: str | None) -> None:
        """Answer the prompt, or hold a conversation where there is none."""
        try:
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
        if self.services.spoken:
            self.status.say(f"{name} is ready. Type a question and press Enter. {hint}")
        else:
            print(f"{name}: {hint}", file=sys.stderr)
        if self.talk.n_messages:
            print(
                f"Going on with: {one_line(self.talk.chat.title)} ({counted(self.talk.n_messages)})",
                file=sys.stderr,
            )
        inside = SlashCommands(self)
        for line in self._lines():
            try:
                if not inside.obeys(line):
                    self._answer(sent(line))
            except EdgechatError as error:
                self.status.clear()
                complain(error.message, error.hint)
            if inside.ended:
                return

    def _lines(self) -> Iterator[str]:
        """Yield what is typed, without the lines that have nothing."""
        if not self.services.spoken:
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401  (line editing and history for input(), which move the cursor)
        while True:
            try:
                if self.services.spoken:  # where answers are piped on, it is no part of them
                    print("You: ", end="", file=sys.stderr, flush=True)
                line = as_text(input("" if self.services.spoken else _PROMPT))
            except EOFError:
                print(file=sys.stderr)
                return
            self.status.heard()
            if line.strip():
                yield line

    def begin(self) -> None:
        """Let the next question begin another conversation."""
        self._leave()
        self.talk = Conversation(
            self.services.store, self.model, front="run", system=self.options.system_of(self.services.said)
        )

    def go_on_with(self, talk: Conversation) -> None:
        """Let the next question go on with a stored conversation."""
        self._leave()
        self.talk = talk

    def use_model(self, name: str) -> None:
        """Let another model answer from now on; where it cannot be planned, the one so far stays."""
        plan = self.services.plan_for(name)
        self._leave()
        self.background.run(self.engine.close())
        self.engine, self.model = self.services.engine_for(name, plan, self._tell), name
        self._load()

    def _leave(self) -> None:
        if self.talk.kept_as is not None:
            self.background.run(self.engine.persist(self.talk.kept_as))

    # One answer.

    def _load(self) -> ModelInfo:
        known = self.engine.model
        if known is None:
            self.status.say(f"Loading {one_line(self.engine.plan.model_name)}.")
        self.status.show("starting the engine")
        model = self.background.run(self.engine.start(self._show_load))
        self.status.clear()
        if model.template == "chatml" and known is None:
            self._tell("the model brings no chat template; ChatML is used.")
        why = model.no_draft if asks_for_drafts(self.options.draft) else ""
        if why and known is None and why != self.engine.plan.no_draft:  # that was told before
            self._tell(why)
        return model

    def _tell(self, told: str) -> None:
        self.status.clear()
        note(told)

    def _show_load(self, progress: float) -> None:
        self.status.show(f"loading {self.engine.plan.model_name} {progress:.0%}")

    def _answer(self, prompt: str, *, alone: bool = False) -> None:
        """Stream one answer; whatever becomes of it is in the store. alone: nothing is asked after it."""
        model = self._load()
        answer = self._new_answer()
        try:
            with offering_not_to_keep(self.options.wanted):
                self.background.run(self._ask(prompt))
                self._wait_for(answer, self._manner(model), alone=alone)
        except EdgechatError as error:
            answer.end(self.engine.plan, model, self.talk.kept_as, error)
            raise
        answer.end(self.engine.plan, model, self.talk.kept_as)

    def _new_answer(self) -> AnswerPrinter:
        dropped, has_system = self.talk.dropped, self.talk.system is not None
        if isinstance(self.status, SpokenStatus) and not self.options.json:
            return SpokenAnswer(self.status, dropped=dropped, has_system=has_system)
        return AnswerPrinter(self.status, as_json=self.options.json, dropped=dropped, has_system=has_system)

    def _manner(self, model: ModelInfo) -> GenerationOptions:
        """How the reply is written: as the command line says, else the chat, else the settings."""
        options, said, chat = self.options, self.services.said, self.talk.chat.settings
        think = chat.think if options.think is None else options.think
        if think is None and model.can_switch_thinking:
            think = said.think  # a wish for the models that know it; on the others it is no error
        sampling = options.sampling.over(chat.sampling.over(self.engine.plan.sampling_for(think)))
        return GenerationOptions(
            sampling=Sampling(**sampling.given(), seed=options.seed),
            max_tokens=options.max_tokens,
            stop=options.stop,
            think=think,
            overflow=options.overflow or said.overflow,
        )

    async def _ask(self, prompt: str) -> None:
        await self.talk.use_model(self.model)
        known = self.talk.n_messages
        await self.talk.ask(prompt)
        more = self.talk.n_messages - known - 1
        if more > 0:
            self._tell(
                f"another edgechat has gone on with this conversation meanwhile: {counted(more)} more."
            )

    def _wait_for(self, answer: AnswerPrinter, manner: GenerationOptions, *, alone: bool) -> None:
        """Wait for the answer. In a conversation the first Ctrl+C stops it; else it ends the program."""
        streaming = self.background.begin(self._stream(answer, manner))
        try:
            streaming.result()
        except KeyboardInterrupt:
            if alone:
                raise
            self.background.begin(self._stop())
            streaming.result()

    async def _stream(self, answer: AnswerPrinter, manner: GenerationOptions) -> None:
        """Return when the answer has ended and is saved, however it came to its end."""
        self.answering = asyncio.create_task(self._take(answer, manner))
        await asyncio.wait([self.answering])
        if not self.answering.cancelled():
            self.answering.result()

    async def _take(self, answer: AnswerPrinter, manner: GenerationOptions) -> None:
        async with aclosing(self.talk.answer(self.engine, manner)) as events:
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
        try:
            if self.talk.kept_as is not None:
                self.status.show("saving the state of the conversation")
                await self.engine.persist(self.talk.kept_as)
        finally:
            await self.engine.close()
            if self.answering is not None:  # it ends with its engine; what went wrong with it has been told
                await asyncio.wait([self.answering])
                self.answering.cancelled() or self.answering.exception()
