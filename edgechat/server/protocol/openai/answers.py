"""What OpenAI's endpoints for chats and completions have in common: parts of several choices, in chunks."""

from __future__ import annotations

import secrets
import time
from abc import abstractmethod
from typing import ClassVar, Generic, Literal, TypeVar

from msgspec import UNSET, UnsetType

from edgechat.engine.types import Delta, Finished, RequestEvent
from edgechat.server.documents import AskedDocuments
from edgechat.server.protocol.answers import Answers, data_event
from edgechat.server.protocol.openai.generation import GenerationBody
from edgechat.server.protocol.openai.usage import UsageBody, usage_of
from edgechat.server.refusal import Refusal

FinishReason = Literal["stop", "length", "tool_calls", "function_call"]
"""How an answer ended, in OpenAI's words."""
REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "context": "length",
    "tools": "tool_calls",
}
_DONE = data_event(b"[DONE]")

Part = TypeVar("Part")
"""What is new of an answer."""


class ChoiceAnswers(Answers, Generic[Part]):
    """Several answers to one request, made of parts."""

    kind: ClassVar[str]
    """The prefix of their ids."""

    def __init__(
        self, body: GenerationBody, *, prompts: int = 1, documents: AskedDocuments | None = None
    ) -> None:
        """Raise Refusal for fields that contradict each other."""
        if body.stream_options is not None and not body.stream:
            raise Refusal("stream_options requires stream: true.", param="stream_options")
        super().__init__(
            model=body.model,
            streams=body.stream,
            priority=body.priority,
            n_choices=body.n_choices * prompts,
            lora=body.lora,
            documents=documents,
        )
        self._id = f"{self.kind}-{secrets.token_hex(12)}"
        self._created = int(time.time())
        self._prompts = prompts
        self._wants_usage = body.wants_usage
        self._taken: list[list[Part]] = [[] for _ in range(self.n_choices)]
        self._reasoning = [0] * self.n_choices
        """Tokens of the thinking."""

    def _begin(self) -> bytes:
        return b"".join(data_event(self._chunk([part])) for part in self._first_parts())

    def _send(self, choice: int, event: RequestEvent) -> bytes:
        part = self._part(choice, event)
        if part is None:
            return b""
        return data_event(self._chunk([part], event if isinstance(event, Finished) else None))

    def end(self) -> bytes:
        """Return what a stream ends with: the usage, if the client wants it."""
        return (data_event(self._chunk([], usage=self._usage())) if self._wants_usage else b"") + _DONE

    def failure(self, refusal: Refusal) -> bytes:
        """Return an error as the last chunk."""
        return data_event(refusal.body())

    def take(self, choice: int, event: RequestEvent) -> None:
        """Collect an event of an answer that is sent as a whole. Raises Refusal as `send` does."""
        part = self._part(choice, event)
        if part is not None:
            self._taken[choice].append(part)

    @property
    def tokens(self) -> tuple[int, int]:
        """The prompt and completion tokens of the finished answers."""
        usage = self._usage()
        return usage.prompt_tokens, usage.completion_tokens

    def _part(self, choice: int, event: RequestEvent) -> Part | None:
        """Return the part for an event; None if clients are not told of it."""
        match event:
            case Delta():
                if event.thinking:
                    self._reasoning[choice] = event.tokens
                return self._text_part(choice, event)
            case Finished():
                self._finish(choice, event)
                return self._end_part(choice, REASONS[event.reason])
        return None

    @abstractmethod
    def _first_parts(self) -> list[Part]:
        """Return the parts that a stream begins with."""

    @abstractmethod
    def _text_part(self, choice: int, delta: Delta) -> Part:
        """Return the part for more text."""

    @abstractmethod
    def _end_part(self, choice: int, reason: FinishReason) -> Part:
        """Return the part for the end."""

    @abstractmethod
    def _chunk(
        self, parts: list[Part], end: Finished | None = None, *, usage: UsageBody | UnsetType = UNSET
    ) -> bytes:
        """Return the JSON of a chunk of parts. end: of their answer, in its last chunk."""

    def _usage(self) -> UsageBody:
        return usage_of(self._done(), reasoning=sum(self._reasoning), prompts=self._prompts)
