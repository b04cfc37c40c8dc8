"""Answers: base classes for all protocols, which collect events and encode them as a stream or as a whole."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import msgspec
from msgspec import UNSET, UnsetType

from edgechat.documents.library import Given
from edgechat.engine.types import (
    ChatRequest,
    Delta,
    Dropped,
    Finished,
    Prefill,
    Priority,
    RequestEvent,
    Sampling,
    TokenLogprobs,
    ToolCall,
    ToolCallArguments,
    ToolCallBegun,
)
from edgechat.server.documents import AskedDocuments, SourceBody, sources_of
from edgechat.server.pool.models import ServedModel
from edgechat.server.protocol.fields import LoraBody, RequestedEffort, thinking_of
from edgechat.server.refusal import Refusal
from edgechat.settings import SamplingDefaults

_LONGER = "to use a longer context, start the server with `edgechat serve --ctx`."
BlockKind = Literal["text", "thinking", "call"]


@dataclass(slots=True)
class AnswerBlock:
    """One piece of an answer: text, thinking or a tool call."""

    kind: BlockKind
    index: int
    """The position of the block in the answer."""
    number: int
    """The position of the block among blocks of the same kind."""
    call: ToolCall | None = None
    """The call, as announced at its start. Its arguments are the text of the block."""
    id: str = field(default_factory=lambda: secrets.token_hex(16))
    """The id of the block, for protocols in which blocks have one."""
    texts: list[str] = field(default_factory=list)
    chances: list[TokenLogprobs] = field(default_factory=list)
    is_open: bool = True
    """Whether more text can still be added to the block."""

    @property
    def text(self) -> str:
        """The text so far; for a call, its arguments."""
        return "".join(self.texts)


class BlockBegun(msgspec.Struct, frozen=True):
    """The start of a block. If it is a call, it may already contain some arguments."""

    block: AnswerBlock


class BlockGrown(msgspec.Struct, frozen=True):
    """More text for the last block."""

    block: AnswerBlock
    text: str
    chances: tuple[TokenLogprobs, ...] = ()


class BlockEnded(msgspec.Struct, frozen=True):
    """The end of a block."""

    block: AnswerBlock


Change = BlockBegun | BlockGrown | BlockEnded | Finished


class Answer:
    """One answer: its blocks, and how it ended."""

    def __init__(self) -> None:
        self.blocks: list[AnswerBlock] = []
        self.end: Finished | None = None
        self.thinking_tokens = 0

    def take(self, event: RequestEvent) -> Iterator[Change]:
        """Process an event and yield the resulting changes. Raises Refusal if the server was stopped."""
        match event:
            case Delta(text=text, thinking=thinking, chances=chances):
                if thinking:
                    self.thinking_tokens = event.tokens
                if not text and not chances:
                    return
                kind: BlockKind = "thinking" if thinking else "text"
                if not self.blocks or self.blocks[-1].kind != kind:
                    yield from self._begin(kind)
                yield self._grow(text, chances)
            case ToolCallBegun(call=call):
                yield from self._begin("call", call)
            case ToolCallArguments(text=text):
                yield self._grow(text)
            case Finished():
                if event.reason == "cancelled":
                    raise Refusal("The server was stopped during the answer.", status=503, code="stopped")
                self.end = event
                yield from self._close()
                yield event

    @property
    def text(self) -> str:
        """The text, excluding thinking and calls."""
        return "".join(block.text for block in self.blocks if block.kind == "text")

    @property
    def thinking(self) -> str:
        """The text of all thinking blocks."""
        return "".join(block.text for block in self.blocks if block.kind == "thinking")

    @property
    def calls(self) -> list[tuple[ToolCall, str]]:
        """The tool calls, each with its arguments."""
        return [(block.call, block.text) for block in self.blocks if block.call is not None]

    @property
    def chances(self) -> list[TokenLogprobs]:
        """The logprobs of the answer's tokens."""
        return [one for block in self.blocks if block.kind == "text" for one in block.chances]

    @property
    def is_cut(self) -> bool:
        """Whether the answer was cut short by a limit."""
        return self.end is not None and self.end.reason in ("length", "context")

    def _begin(self, kind: BlockKind, call: ToolCall | None = None) -> Iterator[Change]:
        yield from self._close()
        number = sum(block.kind == kind for block in self.blocks)
        block = AnswerBlock(kind, len(self.blocks), number, call)
        if call is not None and call.arguments:
            block.texts.append(call.arguments)
        self.blocks.append(block)
        yield BlockBegun(block)

    def _grow(self, text: str, chances: tuple[TokenLogprobs, ...] = ()) -> BlockGrown:
        block = self.blocks[-1]
        block.texts.append(text)
        block.chances += chances
        return BlockGrown(block, text, chances)

    def _close(self) -> Iterator[Change]:
        if self.blocks and self.blocks[-1].is_open:
            self.blocks[-1].is_open = False
            yield BlockEnded(self.blocks[-1])


class Answers(ABC):
    """The answers to one request as they grow, either streamed or collected and sent as a whole."""

    stream_type: ClassVar[str] = "text/event-stream"
    id_prefix: ClassVar[str]
    insists: ClassVar[bool] = False
    """Whether turning thinking on or off is an error for models that cannot do so; see `thinking_of`."""
    window_field: ClassVar[str] = ""
    """The field and value with which a client asks to leave old turns out of a prompt that is too long."""

    def __init__(
        self,
        asked: ChatRequest,
        *,
        model: str | None,
        streams: bool | None,
        think: bool | None = None,
        effort: RequestedEffort | None = None,
        n_choices: int = 1,
        lora: Sequence[LoraBody] | None = None,
        documents: AskedDocuments | None = None,
    ) -> None:
        """asked: the request, without the parts that depend on the model.

        think: the default from the settings. effort: how long to think, if the request specifies it. lora:
        the adapters listed in the request, if any.
        """
        self.requested_model = model or ""
        self.model = ""
        """The name of the model that answers, or '' until it is known."""
        self.streams = bool(streams)
        self.n_choices = n_choices
        self.lora = lora
        self.documents = documents
        self.passages: Sequence[Given] = ()
        """The document passages given to the model; empty until they are found."""
        self._asked = asked
        self._think = think
        self._effort: RequestedEffort | None = effort
        self._id = f"{self.id_prefix}{secrets.token_hex(16)}"
        self._replies = [Answer() for _ in range(n_choices)]
        self._has_begun = False
        self._prompt_tokens = 0
        self._cached_tokens = 0
        """Number of prompt tokens found in the cache, as known before the answer is complete."""

    @property
    def priority(self) -> Priority:
        """The priority of the request."""
        return self._asked.priority

    @property
    def shorter(self) -> str:
        """Advice on what to do if the prompt is too long."""
        if self.window_field and self._asked.overflow == "window":
            return f"The parts that cannot be left out are too long: shorten the last message; {_LONGER}"
        window = f"{self.window_field} leaves out the oldest turns; " if self.window_field else ""
        return f"Shorten it; {window}{_LONGER}"

    def request(self, served: ServedModel, choice: int) -> ChatRequest:
        """Return the request to the engine for one answer."""
        think, effort = thinking_of(
            served.model,
            think=self._asked.think,
            effort=self._effort,
            default=self._think,
            insists=self.insists,
        )
        defaults = served.plan.sampling_for(think)
        if self._asked.text is not None:
            # Recommended penalties are for chats, whereas a completion may have to repeat itself.
            think, effort, defaults = None, None, defaults.without_penalties()
        return msgspec.structs.replace(
            self._asked,
            id=f"{self._id}-{choice}",
            think=think,
            effort=effort,
            sampling=self._sampling(defaults, choice),
        )

    @abstractmethod
    def _sampling(self, defaults: SamplingDefaults, choice: int) -> Sampling:
        """Return the sampling options for one answer."""

    def send(self, choice: int, event: RequestEvent) -> bytes:
        """Encode an event for the stream. Raises Refusal if the server was stopped."""
        match event:
            case Prefill():
                self._prompt_tokens, self._cached_tokens = event.total, event.cached
                return b""
            case Dropped():
                return b""
        sent = b"" if self._has_begun else self._begin()
        self._has_begun = True
        for change in self._replies[choice].take(event):
            sent += self._encode(choice, change)
        return sent

    @abstractmethod
    def _begin(self) -> bytes:
        """Return the start of a stream."""

    @abstractmethod
    def _encode(self, choice: int, change: Change) -> bytes:
        """Encode a change to one answer for the stream."""

    def waiting(self) -> bytes:
        """Return bytes that keep the stream alive during a silence, or b"" to send nothing."""
        return b": waiting\n\n"

    async def settle(self) -> None:  # noqa: B027 - most have nothing to do
        """Finish pending work after the last event and before the end of the answer."""

    def end(self) -> bytes:
        """Return the bytes to send after the last event of a stream."""
        return b""

    @abstractmethod
    def failure(self, refusal: Refusal) -> bytes:
        """Return the bytes to send at the end of a stream that fails after it has started."""

    def take(self, choice: int, event: RequestEvent) -> None:
        """Collect an event for an answer that is sent as a whole. Raises Refusal, like `send`."""
        for _ in self._replies[choice].take(event):
            pass

    @abstractmethod
    def whole(self) -> bytes:
        """Return the collected answers as JSON."""

    @property
    def tokens(self) -> tuple[int, int]:
        """Number of prompt and completion tokens in the finished answers. A shared prompt is counted once."""
        usages = [end.usage for end in self._ends]
        prompt = max((usage.prompt_tokens for usage in usages), default=0)
        return prompt, sum(usage.completion_tokens for usage in usages)

    @property
    def _ends(self) -> list[Finished]:
        return [reply.end for reply in self._replies if reply.end is not None]

    @property
    def _sources(self) -> list[SourceBody] | UnsetType:
        """The sources of the passages, if the request asks for documents."""
        return UNSET if self.documents is None else sources_of(self.passages)


_ENDS_OF_LINES = tuple((mark.encode(), rf"\u{ord(mark):04x}".encode()) for mark in "\x85\u2028\u2029")
"""Unicode line breaks at which some clients (such as httpx) split strings, with their JSON escapes."""


def in_one_line(data: bytes) -> bytes:
    """Escape the characters that some clients treat as line breaks."""
    for mark, escaped in _ENDS_OF_LINES:
        data = data.replace(mark, escaped)
    return data


def data_event(data: bytes) -> bytes:
    """Return a server-sent event without a name. data: JSON without line breaks."""
    return b"data: " + in_one_line(data) + b"\n\n"


def named_event(name: str, data: bytes) -> bytes:
    """Return a server-sent event with a name. data: JSON without line breaks."""
    return b"event: " + name.encode() + b"\n" + data_event(data)


class TopLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """A token and its logprob, the natural logarithm of its probability."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob, frozen=True, kw_only=True):
    """The logprob of a token in the answer, and those of its alternatives."""

    top_logprobs: list[TopLogprob]


def logprob_of(chance: TokenLogprobs) -> TokenLogprob:
    """Return the logprobs of a token in OpenAI's format."""
    others = [_chance(token, logprob) for token, logprob in chance.others]
    own = _chance(chance.token, chance.logprob)
    return TokenLogprob(token=own.token, logprob=own.logprob, bytes=own.bytes, top_logprobs=others)


def _chance(token: bytes, logprob: float) -> TopLogprob:
    return TopLogprob(token=token.decode("utf-8", "replace"), logprob=logprob, bytes=list(token))


class PromptDetails(msgspec.Struct, frozen=True):
    """The number of prompt tokens found in the prefix cache."""

    cached_tokens: int
