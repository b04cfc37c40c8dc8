"""Chat templates: render messages to the text of a prompt, within limits on time and size."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
from msgspec.structs import replace

from edgechat.base.errors import SwitchUnknown, TemplateError
from edgechat.base.process.child import ChildLost, RestartingChild
from edgechat.engine.prompt.template_child import MEMORY_LIMIT, TIME_LIMIT, Render, Rendered
from edgechat.engine.tool_calls import history
from edgechat.engine.tool_calls.formats import format_of
from edgechat.engine.tool_calls.tools import template_tool
from edgechat.engine.types import Effort, Message, Tool

TEXT_LIMIT = 16 * 2**20
"""Maximum length of a prompt, in characters."""

# The most common format, for files without a template.
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_QUESTION = Message("user", "a")

# Template variables that control thinking.
_SWITCH = "enable_thinking"
_EFFORT = "reasoning_effort"


@dataclass(frozen=True, slots=True)
class Marks:
    """A model family's marks: those that open and close thoughts, and those that may surround answers.

    They are searched for in the reply's text, in which control tokens appear as text.
    """

    sign: str
    """Text by which the family's templates are recognized."""
    open: str
    close: str
    skip: tuple[str, ...] = ()
    """Marks around an answer that are part of neither the thought nor the answer."""


HARMONY_FINAL = "<|channel|>final<|message|>"

FAMILIES = (
    Marks(
        "<|channel|>analysis<|message|>",
        "<|channel|>analysis<|message|>",
        "<|end|>",
        ("<|start|>assistant", HARMONY_FINAL),
    ),
    Marks("<|channel>", "<|channel>thought", "<channel|>"),
    Marks("</think>", "<think>", "</think>"),
)


def template_process() -> RestartingChild:
    """Return the process that renders templates. Start it before loading the model: it takes a moment."""
    return RestartingChild("template", "chat templates", seconds=TIME_LIMIT, memory=MEMORY_LIMIT)


class ChatTemplate:
    """A template and the process that renders it, which is restarted after it exceeds a limit."""

    def __init__(
        self,
        source: str | None,
        *,
        bos: str = "",
        eos: str = "",
        stop: Sequence[str] = (),
        system: str = "",
        process: RestartingChild | None = None,
    ) -> None:
        """source: None for models without a template, which use ChatML.

        stop: additional stop strings. system: the default system prompt.
        """
        self.source = source or CHATML
        self.is_own = bool(source)
        # Models that do not know ChatML's end token may spell it out as text.
        self.stop = (*stop, *(() if source else ("<|im_end|>",)))
        self._system = system
        self.marks = next((family for family in FAMILIES if family.sign in self.source), None)
        self.calls = format_of(self.source)
        self.can_switch_thinking = _SWITCH in self.source
        self.has_effort = _EFFORT in self.source
        self._special = {"bos_token": bos, "eos_token": eos}
        self._process = process or template_process()
        self._takes_later_system: bool | None = None

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Tool] = (),
        think: bool | None = None,
        effort: Effort | None = None,
        date: str | None = None,
        generation_prompt: bool = True,
        guard: Callable[[Any], Any] = lambda value: value,
    ) -> str:
        """Return the prompt for `messages`. guard: applied to messages and tools before rendering.

        Raises TemplateError, SchemaError for tools that cannot be described, or SwitchUnknown if the template
        does not support `think` (for models that never think, False is accepted).
        """
        if think is not None and not self.can_switch_thinking and (think or self.marks):
            raise SwitchUnknown(
                "This model's chat template has no switch for thinking.",
                hint="Omit --think and --no-think.",
            )
        messages = history.with_cut_calls(self._with_system(messages))
        if has_later_rules(messages) and not self._accepts_later_system():
            messages = history.with_rules_first(messages)
        if self.calls.told:
            messages = history.in_words(messages, tools, ruled=not tools or self._accepts_system)
        variables: dict[str, Any] = {
            "messages": guard(history.as_dicts(messages, self.calls)),
            "add_generation_prompt": generation_prompt,
            "tools": None if self.calls.told or not tools else guard([template_tool(tool) for tool in tools]),
            **self._special,
        }
        if think is not None:
            variables[_SWITCH] = think
        if effort is not None:
            variables[_EFFORT] = effort
        answer = self._ask(Render(self.source, variables, date))
        if answer.error is not None and any(message.calls for message in messages):
            variables["messages"] = guard(history.as_dicts(messages, self.calls, text_arguments=True))
            second = self._ask(Render(self.source, variables, date))
            answer = answer if second.error is not None else second
        if answer.error is not None:
            raise _rejected(answer.error, answer.line)
        if len(answer.text) > TEXT_LIMIT:
            raise _overrun(f"produced {len(answer.text)} characters")
        return answer.text

    def _with_system(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Add the model's default system prompt to the messages, unless they already have a system prompt."""
        if not self._system or any(message.role == "system" for message in messages):
            return messages
        if self._accepts_system:
            return [Message("system", self._system), *messages]
        at = next((at for at, message in enumerate(messages) if message.role == "user"), None)
        if at is None:
            return messages
        question = replace(messages[at], content=f"{self._system}\n\n{messages[at].content}")
        return [*messages[:at], question, *messages[at + 1 :]]

    @cached_property
    def _accepts_system(self) -> bool:
        try:
            self.render((Message("system", "a"), _QUESTION))
        except TemplateError:
            return False
        return True

    def _accepts_later_system(self) -> bool:
        """Return True if the template renders later system messages in place."""
        if self._takes_later_system is None:
            chat = [
                Message("user", "xyzzy"),
                Message("system", "plugh"),
                Message("assistant", "a"),
                _QUESTION,
            ]
            self._takes_later_system = True  # assume so during the probe
            try:
                text = self.render(chat)
                self._takes_later_system = 0 <= text.find("xyzzy") < text.find("plugh")
            except TemplateError:
                self._takes_later_system = False
        return self._takes_later_system

    def _ask(self, request: Render) -> Rendered:
        """Return the process's answer. Raises TemplateError if the process exceeded a limit or died."""
        try:
            answer = self._process.ask(msgspec.msgpack.encode(request))
        except ChildLost as lost:
            died = "exceeded the memory limit and was stopped"
            raise _overrun(died if str(lost) == "died" else str(lost)) from lost
        return msgspec.msgpack.decode(answer, type=Rendered)

    def close(self) -> None:
        """End the process."""
        self._process.close()


def _rejected(error: str, line: int | None) -> TemplateError:
    if line is None:
        return TemplateError(
            f"The model's chat template rejected these messages: {error}",
            hint="Some models do not accept a system prompt, or require strictly alternating turns.",
        )
    return TemplateError(
        f"The model's chat template failed on these messages in line {line}: {error}",
        hint="The template does not expect such messages, or has a bug; a newer copy of the model may have "
        "a better one.",
    )


def _overrun(what: str) -> TemplateError:
    return TemplateError(
        f"The model's chat template {what}.",
        hint="The file may be malicious or damaged: use a copy of the model from another source.",
    )


def has_later_rules(messages: Sequence[Message]) -> bool:
    """Return True if a system message comes after a message with another role."""
    return any(
        after.role == "system" and before.role != "system" for before, after in itertools.pairwise(messages)
    )


def begins_reply(messages: Sequence[Message]) -> bool:
    """Return True if the last message is the start of the reply, or at least of its thought."""
    last = messages[-1] if messages else None
    if last is None or last.role != "assistant" or last.calls:
        return False
    return bool(last.content or last.thinking)


def begins_answer(messages: Sequence[Message]) -> bool:
    """Return True if the last message is the start of an answer, not only of its thinking."""
    return begins_reply(messages) and bool(messages[-1].content)
