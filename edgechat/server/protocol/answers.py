"""What the answers to requests have in common, whatever the endpoint."""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from typing import ClassVar, Generic, Literal, TypeVar

from msgspec import UNSET, UnsetType

from edgechat.engine.types import ChatRequest, Delta, Finished, Priority, RequestEvent
from edgechat.server.http.refusal import Refusal
from edgechat.server.pool.models import ServedModel
from edgechat.server.protocol.generation import GenerationBody
from edgechat.server.protocol.usage import UsageBody, usage_of

FinishReason = Literal["stop", "length", "tool_calls", "function_call"]
"""How an answer ended, in OpenAI's words."""
_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "context": "length",
    "tools": "tool_calls",
}

Part = TypeVar("Part")
"""What is new of an answer."""
LONGER = "to use a longer context, start the server with `edgechat serve --ctx`."


class Answers(ABC, Generic[Part]):
    """The answers to one request, as they grow: sent in chunks, or collected and sent as a whole."""

    kind: ClassVar[str]
    """The prefix of their ids."""

    def __init__(self, body: GenerationBody, *, prompts: int = 1) -> None:
        """Raise Refusal for fields that contradict each other."""
        if body.stream_options is not None and not body.stream:
            raise Refusal("stream_options requires stream: true.", param="stream_options")
        self.requested_model = body.model or ""
        """The name that the request gives."""
        self.model = ""
        """The name of the model that answers, once it is known."""
        self.streams = bool(body.stream)
        self.priority: Priority = body.priority or "interactive"
        self.n_choices = body.n_choices * prompts
        self._id = f"{self.kind}-{secrets.token_hex(12)}"
        self._created = int(time.time())
        self._prompts = prompts
        self._wants_usage = body.wants_usage
        self._taken: list[list[Part]] = [[] for _ in range(self.n_choices)]
        self._ends: list[Finished | None] = [None] * self.n_choices
        self._reasoning = [0] * self.n_choices
        """Tokens of the thinking."""

    @property
    @abstractmethod
    def shorter(self) -> str:
        """Return advice for a prompt that is too long."""

    @abstractmethod
    def request(self, served: ServedModel, choice: int) -> ChatRequest:
        """Return the engine's request for one answer."""

    def begin(self) -> list[bytes]:
        """Return the chunks that a stream begins with."""
        return [self._chunk([part]) for part in self._first_parts()]

    def chunks(self, choice: int, event: RequestEvent) -> list[bytes]:
        """Return the chunks for an event. Raises Refusal for an answer that was cut short."""
        part = self._part(choice, event)
        return [] if part is None else [self._chunk([part], event if isinstance(event, Finished) else None)]

    def end(self) -> list[bytes]:
        """Return the chunks that a stream ends with."""
        return [self._chunk([], usage=self._usage())] if self._wants_usage else []

    def take(self, choice: int, event: RequestEvent) -> None:
        """Collect an event of an answer that is sent as a whole. Raises Refusal as `chunks` does."""
        part = self._part(choice, event)
        if part is not None:
            self._taken[choice].append(part)

    @abstractmethod
    def whole(self) -> bytes:
        """Return the collected answers as JSON."""

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
                self._ends[choice] = event
                return self._end_part(choice, reason_of(event))
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

    def _done(self) -> list[Finished]:
        return [end for end in self._ends if end is not None]

    def _usage(self) -> UsageBody:
        return usage_of(self._done(), reasoning=sum(self._reasoning), prompts=self._prompts)


def reason_of(end: Finished) -> FinishReason:
    """Return why an answer ended. Raises Refusal for one that the server has cut short."""
    if end.reason == "cancelled":
        raise Refusal("The server was stopped during the answer.", status=503, code="stopped")
    return _REASONS[end.reason]
