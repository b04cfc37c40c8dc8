"""`edgechat run`: one question, or a conversation line by line. Answers to stdout, all else to stderr."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import sys
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from edgechat import settings
from edgechat.chat.conversation import Conversation
from edgechat.chat.engine import Manner
from edgechat.chat.upkeep import upkeep
from edgechat.cli.answer import Answer
from edgechat.cli.background import Background
from edgechat.cli.chats import counted
from edgechat.cli.edge import as_text, complain, note
from edgechat.cli.kept import Wanted, conversation, offering_not_to_keep, open_store
from edgechat.cli.status import StatusLine
from edgechat.engine.process import EngineProcess
from edgechat.engine.types import ModelInfo, Overflow, Sampling, Upkeep
from edgechat.errors import EdgechatError, ModelNotFound
from edgechat.planner.drafting import asks_for_drafts
from edgechat.planner.plan import LoadPlan
from edgechat.planner.prepare import prepare
from edgechat.planner.wishes import Wishes
from edgechat.settings import Settings
from edgechat.text import printable

PIPED_LIMIT = 16 * 2**20
"""Bytes read from a pipe; more than any context holds."""
_PROMPT = ">>> "
_STOPPING = 5.0
"""Seconds that the end of the program waits for an answer to stop."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line said; None and empty mean that it said nothing."""

    model: str
    prompt: str | None = None
    system: str | None = None
    sampling: dict[str, Any] = field(default_factory=dict)
    max_tokens: int | None = None
    context: int | None = None
    stop: tuple[str, ...] = ()
    think: bool | None = None
    overflow: Overflow | None = None
    wanted: Wanted = field(default_factory=Wanted)
    json: bool = False
    draft: str | None = None
    anyway: bool = False


def run(options: Options) -> int:
    """Run the command; return the exit code. Raises EdgechatError."""
    prompt = _whole_prompt(None if options.prompt == "-" else options.prompt)
    going_on = options.wanted.as_option
    if prompt is None and options.json:
        raise EdgechatError("--json needs a prompt.", hint='Give one: edgechat run MODEL "PROMPT" --json')
    if prompt is not None and not prompt.strip():
        raise EdgechatError("The prompt is empty.", hint=f'Give one: edgechat run MODEL "PROMPT"{going_on}')
    said = settings.load()
    background = Background()
    with offering_not_to_keep(options.wanted):
        store = background.run(open_store(keep=options.wanted.keep))
    try:
        talk = background.run(conversation(store, options.wanted, options.model, options.system))
        plan = _plan(options, talk)
        _Run(replace(options, prompt=prompt), said, plan, talk, background).main()
    finally:
        background.run(store.close())
    return 0


def _plan(options: Options, talk: Conversation) -> LoadPlan:
    """Plan the load, and tell what there is to know of it."""
    try:
        wishes = Wishes(context=options.context, draft=options.draft, anyway=options.anyway)
        plan = prepare(options.model, wishes)
    except ModelNotFound as error:
        if options.wanted.is_new or options.prompt is not None:
            raise
        # Whoever goes on easily forgets that the model comes first.
        words = ["edgechat", "run", talk.chat.model, options.model]
        meant = shlex.join(words) + options.wanted.as_option
        raise ModelNotFound(error.message, hint=f"Did you mean: {meant}") from error
    for told in plan.notes:
        note(told)
    if plan.no_draft and asks_for_drafts(options.draft):
        note(plan.no_draft)
    if options.context is not None and plan.context > options.context:
        note(f"A context is a multiple of 256 tokens; it is {plan.context} instead of {options.context}.")
    return plan


def _whole_prompt(prompt: str | None) -> str | None:
    """Return the prompt with what is piped in after it; None where a person is there to type."""
    if sys.stdin is None or sys.stdin.isatty():
        return prompt
    piped = sys.stdin.buffer.read(PIPED_LIMIT + 1)
    if len(piped) > PIPED_LIMIT:
        raise EdgechatError(
            f"More than {PIPED_LIMIT // 2**20} MiB were piped in, which no context holds.",
            hint="Pipe in only the part that matters.",
        )
    text = piped.decode("utf-8", "replace")
    return "\n\n".join(part for part in (prompt, text) if part) if prompt or text else prompt or ""


class _Run:
    """One run of the command: the engine, and the conversation that it answers in."""

    def __init__(
        self, options: Options, said: Settings, plan: LoadPlan, talk: Conversation, background: Background
    ) -> None:
        self.options = options
        self.talk = talk
        self.background = background
        self.status = StatusLine(sys.stderr)
        self.manner = Manner(
            sampling=Sampling(**(plan.sampling.given() | options.sampling)),
            max_tokens=options.max_tokens,
            stop=options.stop,
            think=options.think,
            overflow=options.overflow or said.overflow,
        )
        self.engine = EngineProcess(
            plan,
            idle_seconds=60 * said.idle_minutes,
            upkeep=_upkeep(options, said),
            on_note=self._tell,
        )
        self.answering: asyncio.Task[None] | None = None

    def main(self) -> None:
        """Answer the prompt, or hold a conversation where there is none."""
        try:
            if self.options.prompt is None:
                self._converse()
            else:
                self._answer(self.options.prompt)
        finally:
            self.status.clear()
            self.background.run(self._end())
            self.status.clear()

    def _converse(self) -> None:
        self._load()
        print(f"{self.engine.plan.model_name}: Ctrl+C stops an answer, Ctrl+D ends.", file=sys.stderr)
        if not self.options.wanted.is_new:
            title = printable(self.talk.chat.title)
            print(f"Going on with: {title} ({counted(self.talk.n_messages)})", file=sys.stderr)
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  (line editing and history for input())
        while True:
            try:
                line = as_text(input(_PROMPT))
            except EOFError:
                print(file=sys.stderr)
                return
            if not line.strip():
                continue
            try:
                self._answer(line)
            except EdgechatError as error:
                self.status.clear()
                complain(error.message, error.hint)

    def _load(self) -> ModelInfo:
        self.status.show("starting the engine")
        known = self.engine.model
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

    def _answer(self, prompt: str) -> None:
        """Stream one answer; whatever becomes of it is in the store."""
        model = self._load()
        answer = Answer(
            self.status,
            as_json=self.options.json,
            dropped=self.talk.dropped,
            has_system=self.talk.system is not None,
        )
        try:
            with offering_not_to_keep(self.options.wanted):
                self.background.run(self._ask(prompt))
                self._wait_for(answer)
        except EdgechatError as error:
            answer.end(self.engine.plan, model, self.talk.kept_as, error)
            raise
        answer.end(self.engine.plan, model, self.talk.kept_as)

    async def _ask(self, prompt: str) -> None:
        await self.talk.use_model(self.options.model)
        known = self.talk.n_messages
        await self.talk.ask(prompt)
        more = self.talk.n_messages - known - 1
        if more > 0:
            self._tell(
                f"another edgechat has gone on with this conversation meanwhile: {counted(more)} more."
            )

    def _wait_for(self, answer: Answer) -> None:
        """Wait for the answer. In a conversation the first Ctrl+C stops it; else it ends the program."""
        streaming = self.background.begin(self._stream(answer))
        try:
            streaming.result()
        except KeyboardInterrupt:
            if self.options.prompt is not None:
                raise
            self.background.begin(self._stop())
            streaming.result()

    async def _stream(self, answer: Answer) -> None:
        """Return when the answer has ended and is saved, however it came to its end."""
        self.answering = asyncio.create_task(self._take(answer))
        await asyncio.wait([self.answering])
        if not self.answering.cancelled():
            self.answering.result()

    async def _take(self, answer: Answer) -> None:
        async with aclosing(self.talk.answer(self.engine, self.manner)) as events:
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
                await self.engine.leave(self.talk.kept_as)
        finally:
            await self.engine.close()
            if self.answering is not None:  # it ends with its engine; what went wrong with it has been told
                await asyncio.wait([self.answering])
                self.answering.cancelled() or self.answering.exception()


def _upkeep(options: Options, said: Settings) -> Upkeep:
    chosen = upkeep(said)
    if not options.wanted.keep:
        chosen = msgspec.structs.replace(chosen, disk_bytes=0)
    # After one question nobody waits for the next.
    return chosen if options.prompt is None else msgspec.structs.replace(chosen, settle=False)
