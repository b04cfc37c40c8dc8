"""The chat template of a model: messages in, prompt text out, with the work bounded in time and size."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any, BinaryIO, cast

import msgspec
import psutil

from edgechat import frames, spawn
from edgechat.engine import thinking
from edgechat.engine.template_child import Render, Rendered
from edgechat.engine.types import Message
from edgechat.errors import EngineError, SwitchUnknown, TemplateError

MEMORY_LIMIT = 512 * 2**20
"""Bytes that a template's process may take; an honest one takes 30 MB."""
TIME_LIMIT = 3.0
"""Seconds for one rendering; an honest one takes milliseconds."""
TEXT_LIMIT = 16 * 2**20
"""Characters of a prompt."""
_WATCH_EVERY = 0.02
_START_LIMIT = 20.0

# For files that bring no template: the format that most models have seen.
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class TemplateProcess:
    """The rendering process, and a thread that reads its answers so that waiting can end.

    It takes a moment to start: make it before the model is loaded.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(spawn.command("template"), **spawn.options(sys.stderr))
        self._answers: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._ready = False
        threading.Thread(target=self._read, daemon=True, name="template").start()

    def _read(self) -> None:
        incoming = cast(BinaryIO, self._process.stdout)
        try:
            while (payload := frames.read(incoming)) is not None:
                self._answers.put(payload)
        except (OSError, ValueError, frames.BrokenFrame):
            pass
        self._answers.put(None)

    def ask(self, request: Render) -> Rendered:
        """Return the answer; TemplateError if the process grew, hung or died over it."""
        assert self._process.stdin is not None
        if not self._ready:
            self._wait_until_ready()
        try:
            self._process.stdin.write(frames.pack(msgspec.msgpack.encode(request)))
            self._process.stdin.flush()
        except (OSError, frames.BrokenFrame) as error:
            raise _overrun("could not be handed the messages") from error
        return msgspec.msgpack.decode(self._answer(time.monotonic() + TIME_LIMIT), type=Rendered)

    def _wait_until_ready(self) -> None:
        try:
            self._answer(time.monotonic() + _START_LIMIT)
        except TemplateError as error:  # no template has been sent yet: the fault is ours
            raise EngineError(
                f"The process for chat templates did not start (exit code {self._process.poll()}).",
                hint="Look into the engine's log, and report what it says.",
            ) from error
        self._ready = True

    def _answer(self, deadline: float) -> bytes:
        while True:
            try:
                payload = self._answers.get(timeout=_WATCH_EVERY)
            except queue.Empty:
                self._watch(deadline)
                continue
            if payload is None:
                raise _overrun("took more memory than a template may, and was stopped")
            return payload

    def _watch(self, deadline: float) -> None:
        if time.monotonic() > deadline:
            raise _overrun(f"was still running after {TIME_LIMIT:.0f} seconds")
        try:
            used = psutil.Process(self._process.pid).memory_info().rss
        except psutil.Error:
            return  # it has just died: the reader is about to say so
        if used > MEMORY_LIMIT:
            raise _overrun(f"took {used // 2**20} MiB of memory")

    def close(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


class ChatTemplate:
    """A template and the process that renders it, which is started again after an overrun."""

    def __init__(
        self, source: str | None, *, bos: str = "", eos: str = "", process: TemplateProcess | None = None
    ) -> None:
        """`source` None means that the model brings none: ChatML is used."""
        self.source = source or CHATML
        self.is_own = bool(source)
        # A model that does not know ChatML's end token may write it out.
        self.stop = () if source else ("<|im_end|>",)
        self.marks = thinking.marks_of(self.source)
        self.can_switch_thinking = thinking.can_switch(self.source)
        self._special = {"bos_token": bos, "eos_token": eos}
        self._process = process

    def render(
        self,
        messages: Sequence[Message],
        *,
        think: bool | None = None,
        date: str | None = None,
        generation_prompt: bool = True,
    ) -> str:
        """Return the prompt for `messages`. Raises TemplateError, or SwitchUnknown for `think`."""
        if think is not None and not self.can_switch_thinking:
            raise SwitchUnknown(
                "This model's chat template has no switch for thinking.",
                hint="Leave --think and --no-think away.",
            )
        variables: dict[str, Any] = {
            "messages": [_as_dict(message) for message in messages],
            "add_generation_prompt": generation_prompt,
            "tools": None,
            **self._special,
            **thinking.switch(think),
        }
        answer = self._ask(Render(self.source, variables, date))
        if answer.error is not None:
            raise TemplateError(
                f"The model's chat template refused these messages: {answer.error}",
                hint="Some models want no system prompt, or strictly alternating turns.",
            )
        if len(answer.text) > TEXT_LIMIT:
            raise _overrun(f"wrote {len(answer.text)} characters")
        return answer.text

    def _ask(self, request: Render) -> Rendered:
        if self._process is None:
            self._process = TemplateProcess()
        try:
            return self._process.ask(request)
        except (TemplateError, EngineError):
            self.close()
            raise

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.close()
            self._process = None


def _as_dict(message: Message) -> dict[str, str]:
    fields = {"role": message.role, "content": message.content}
    # Templates that keep thoughts read them from here; the others never look.
    return fields | {"reasoning_content": message.thinking} if message.thinking else fields


def _overrun(what: str) -> TemplateError:
    return TemplateError(
        f"The model's chat template {what}.",
        hint="The file may be hostile or damaged: use a copy of the model from another source.",
    )
