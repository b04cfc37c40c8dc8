"""`edgechat run`: one question, or a conversation line by line. Answers to stdout, all else to stderr."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import threading
import uuid
from collections.abc import Coroutine
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import date
from typing import Any, TypeVar

import msgspec

from edgechat import settings
from edgechat.cli.edge import as_text, complain
from edgechat.cli.status import StatusLine
from edgechat.engine.process import EngineProcess
from edgechat.engine.types import (
    ChatRequest,
    Delta,
    ErrorInfo,
    Finished,
    Message,
    ModelInfo,
    Prefill,
    Sampling,
)
from edgechat.errors import EdgechatError
from edgechat.planner.plan import LoadPlan, as_json
from edgechat.planner.prepare import prepare
from edgechat.planner.wishes import Wishes
from edgechat.text import escaped_json, printable

T = TypeVar("T")

PIPED_LIMIT = 16 * 2**20
"""Bytes read from a pipe; more than any context holds."""
_PROMPT = ">>> "


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
    json: bool = False
    anyway: bool = False


@dataclass(slots=True)
class Answer:
    """An answer as it grows."""

    text: str = ""
    thinking: str = ""
    finished: Finished | None = None


def run(options: Options) -> int:
    """Run the command; return the exit code. Raises EdgechatError."""
    prompt = _whole_prompt(None if options.prompt == "-" else options.prompt)
    if prompt is None and options.json:
        raise EdgechatError("--json needs a prompt.", hint='Give one: edgechat run MODEL "PROMPT" --json')
    if prompt is not None and not prompt.strip():
        raise EdgechatError("The prompt is empty.", hint='Give one: edgechat run MODEL "PROMPT"')
    plan = prepare(options.model, Wishes(context=options.context, anyway=options.anyway))
    for note in plan.notes:
        _note(note)
    if options.context is not None and plan.context > options.context:
        _note(f"A context is a multiple of 256 tokens; it is {plan.context} instead of {options.context}.")
    _Run(options, plan).main(prompt)
    return 0


def _note(text: str) -> None:
    print(f"note: {printable(text)}", file=sys.stderr)


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
    """One run of the command: the engine, and the messages so far.

    The event loop has a thread of its own, so that the main thread is free for input() and for Ctrl+C.
    """

    def __init__(self, options: Options, plan: LoadPlan) -> None:
        self.options = options
        self.plan = plan
        self.messages = [Message("system", options.system)] if options.system else []
        self.status = StatusLine(sys.stderr)
        self.engine = EngineProcess(plan, idle_seconds=60 * settings.load().idle_minutes, on_note=self._tell)
        self.sampling = Sampling(**(plan.sampling.given() | options.sampling))
        self.loop = asyncio.new_event_loop()

    def main(self, prompt: str | None) -> None:
        """Answer `prompt`, or hold a conversation where there is none."""
        threading.Thread(target=self.loop.run_forever, daemon=True, name="engine").start()
        try:
            if prompt is None:
                self._converse()
            else:
                self._answer(prompt)
        finally:
            self.status.clear()
            self._begin(self.engine.close()).result()

    def _begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def _converse(self) -> None:
        self._load()
        print(f"{self.plan.model_name}: Ctrl+C stops an answer, Ctrl+D ends.", file=sys.stderr)
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
        model = self._begin(self.engine.start(self._show_load)).result()
        self.status.clear()
        if model.template == "chatml" and known is None:
            self._tell("the model brings no chat template; ChatML is used.")
        return model

    def _tell(self, note: str) -> None:
        self.status.clear()
        _note(note)

    def _show_load(self, progress: float) -> None:
        self.status.show(f"loading {self.plan.model_name} {progress:.0%}")

    def _answer(self, prompt: str) -> None:
        """Stream one answer and keep it; what came before a crash is kept as well."""
        model = self._load()
        self.messages.append(Message("user", prompt))
        answer = Answer()
        try:
            self._wait_for(answer)
        except EdgechatError as error:
            self._end(answer, model, error)
            raise
        finally:
            if answer.text:
                self.messages.append(Message("assistant", answer.text, answer.thinking))
            else:
                self.messages.pop()
        self._end(answer, model)

    def _wait_for(self, answer: Answer) -> None:
        """Wait for the answer. In a conversation the first Ctrl+C stops it; else it ends the program."""
        request_id = uuid.uuid4().hex
        streaming = self._begin(self._stream(request_id, answer))
        try:
            streaming.result()
        except KeyboardInterrupt:
            if self.options.prompt is not None or not sys.stdin.isatty():
                raise
            self._begin(self.engine.cancel(request_id))
            streaming.result()

    async def _stream(self, request_id: str, answer: Answer) -> None:
        request = ChatRequest(
            id=request_id,
            messages=tuple(self.messages),
            sampling=self.sampling,
            max_tokens=self.options.max_tokens,
            stop=self.options.stop,
            think=self.options.think,
            date=date.today().isoformat(),
        )
        async for event in self.engine.stream(request):
            match event:
                case Prefill(_, done, total):
                    self.status.show(f"reading the prompt {done}/{total} tokens")
                case Delta(_, text, thinking, tokens):
                    if thinking:
                        answer.thinking += text
                        self.status.show(f"thinking, {tokens} tokens")
                    else:
                        answer.text += text
                        self._print(text)
                case Finished():
                    answer.finished = event

    def _print(self, text: str) -> None:
        if not self.options.json:
            self.status.clear()
            sys.stdout.write(printable(text))
            sys.stdout.flush()

    def _end(self, answer: Answer, model: ModelInfo, error: EdgechatError | None = None) -> None:
        """Print what follows an answer, or what there is of one."""
        self.status.clear()
        if self.options.json:
            print(self._as_json(answer, model, error))
            return
        if answer.text and not answer.text.endswith("\n"):
            print(flush=True)
        if answer.finished is not None:
            self._print_timings(answer.finished)

    def _print_timings(self, finished: Finished) -> None:
        usage, timings = finished.usage, finished.timings
        ends = {"length": "stopped at --max-tokens", "context": "the context is full", "cancelled": "stopped"}
        parts = [
            f"{usage.completion_tokens} tokens",
            f"{timings.decode_tps:.1f} tokens/s",
            f"first token {timings.ttft_ms:.0f} ms",
            f"context {usage.prompt_tokens + usage.completion_tokens}/{self.plan.context}",
        ]
        if finished.reason in ends:
            parts.append(ends[finished.reason])
        print(" · ".join(parts), file=sys.stderr)

    def _as_json(self, answer: Answer, model: ModelInfo, error: EdgechatError | None) -> str:
        finished = answer.finished
        timings = {"load_ms": model.load_ms} | (msgspec.to_builtins(finished.timings) if finished else {})
        found = {
            "text": answer.text,
            "thinking": answer.thinking or None,
            "finish_reason": finished.reason if finished else None,
            "error": msgspec.to_builtins(ErrorInfo.of(error)) if error else None,
            "usage": msgspec.to_builtins(finished.usage) if finished else None,
            "timings": {name: round(value, 3) for name, value in timings.items()},
            "plan": as_json(self.engine.plan),
            "speculation": None,
        }
        return escaped_json(json.dumps(found, ensure_ascii=False))
