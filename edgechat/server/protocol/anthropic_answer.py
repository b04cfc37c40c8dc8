"""From the engine's events and errors to a message, whole or as the events of a stream."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType

from edgechat.engine.types import (
    ChatRequest,
    Delta,
    Finished,
    RequestEvent,
    ToolCall,
    ToolCallArguments,
    ToolCallBegun,
    Usage,
)
from edgechat.server.documents import SourceBody, asked_documents
from edgechat.server.pool.models import ServedModel
from edgechat.server.protocol.answers import OneAnswer, named_event
from edgechat.server.protocol.anthropic import MessagesBody
from edgechat.server.protocol.fields import arguments_object, thinking_of
from edgechat.server.refusal import Refusal, anthropic_error

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
_REASONS: dict[str, StopReason] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "context": "max_tokens",
    "tools": "tool_use",
}
_SIGNATURE = "edgechat"
"""Of each thought, since clients expect one; it is not looked at when it comes back."""


class AnswerText(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="text"):
    """A text."""

    text: str
    citations: None = None


class AnswerThinking(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="thinking"):
    """The thinking before the answer."""

    thinking: str
    signature: str


class AnswerToolUse(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="tool_use"):
    """A call of a tool."""

    id: str
    name: str
    input: Raw


class MessagesUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens of a message. The prompt's are the sum of the first three."""

    input_tokens: int
    cache_creation_input_tokens: int
    """Computed now and kept for later requests, if the client has asked for that."""
    cache_read_input_tokens: int
    """Found in the prefix cache."""
    output_tokens: int


class AnswerBlocks(msgspec.Struct, frozen=True, kw_only=True):
    """A message of the model."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[AnswerText | AnswerThinking | AnswerToolUse]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessagesUsage
    sources: list[SourceBody] | UnsetType = UNSET
    """Extension: where the passages are from that the model was given."""


class _Block:
    """A block while it is written."""

    kind = "text"

    def __init__(self) -> None:
        self._texts: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._texts)

    def add(self, text: str) -> dict[str, Any]:
        """Add text; return the delta."""
        self._texts.append(text)
        return {"type": "text_delta", "text": text}

    def begun(self) -> dict[str, Any]:
        """Return the block as it begins."""
        return {"type": "text", "text": ""}

    def last_delta(self) -> dict[str, Any] | None:
        """Return what is said before its end."""
        return None

    def whole(self) -> AnswerText | AnswerThinking | AnswerToolUse:
        return AnswerText(text=self.text)


class _ThinkingBlock(_Block):
    kind = "thinking"

    def add(self, text: str) -> dict[str, Any]:
        self._texts.append(text)
        return {"type": "thinking_delta", "thinking": text}

    def begun(self) -> dict[str, Any]:
        return {"type": "thinking", "thinking": "", "signature": ""}

    def last_delta(self) -> dict[str, Any] | None:
        return {"type": "signature_delta", "signature": _SIGNATURE}

    def whole(self) -> AnswerThinking:
        return AnswerThinking(thinking=self.text, signature=_SIGNATURE)


class _ToolUseBlock(_Block):
    kind = "tool_use"

    def __init__(self, call: ToolCall) -> None:
        super().__init__()
        self._call = call

    def add(self, text: str) -> dict[str, Any]:
        self._texts.append(text)
        return {"type": "input_json_delta", "partial_json": text}

    def begun(self) -> dict[str, Any]:
        return {"type": "tool_use", "id": self._call.id, "name": self._call.name, "input": {}}

    def whole(self) -> AnswerToolUse:
        return AnswerToolUse(id=self._call.id, name=self._call.name, input=arguments_object(self.text))


class MessagesAnswers(OneAnswer[dict[str, Any]]):
    """The message that answers one request, as it grows."""

    def __init__(self, body: MessagesBody, think: bool | None) -> None:
        """think: what the settings say for models that can switch it. Raises Refusal."""
        super().__init__(
            model=body.model,
            streams=body.stream,
            priority=body.priority,
            lora=body.lora,
            documents=asked_documents(body.docs),
        )
        self._body = body
        self._think = think
        self._request = body.asked()
        self._limit = body.most_tokens
        self._hints_cache = body.hints_cache
        self._id = f"msg_{secrets.token_hex(12)}"
        self._blocks: list[_Block] = []
        self._is_open = False
        """Whether the last block is being written."""

    def request(self, served: ServedModel, choice: int) -> ChatRequest:
        """Return what the engine is asked for."""
        body = self._body
        think, effort = thinking_of(
            served.model, think=body.think, effort=body.effort, default=self._think, insists=False
        )
        return msgspec.structs.replace(
            self._request,
            id=self._id,
            max_tokens=self._limit,
            stop=body.stops,
            think=think,
            effort=effort,
            sampling=body.sampling(served.plan.sampling_for(think)),
            priority=self.priority,
        )

    def whole(self) -> bytes:
        """Return the message."""
        return msgspec.json.encode(self._message())

    def waiting(self) -> bytes:
        """Return a ping, since clients with a limit for silence count events alone."""
        return _told({"type": "ping"})

    def failure(self, refusal: Refusal) -> bytes:
        """Return an error as the last event."""
        return named_event("error", anthropic_error(refusal))

    def _begin(self) -> bytes:
        prompt = Usage(self._prompt_tokens, self._cached_tokens, 0)
        return _told({"type": "message_start", "message": self._message(prompt)})

    def _encode(self, told: dict[str, Any]) -> bytes:
        return _told(told)

    def _events(self, event: RequestEvent) -> Iterator[dict[str, Any]]:
        """Take an event of the engine; yield those that tell of it."""
        match event:
            case Delta(text=text, thinking=thinking):
                if not text:
                    return
                kind = _ThinkingBlock if thinking else _Block
                if not self._is_open or type(self._blocks[-1]) is not kind:
                    yield from self._add(kind())
                yield self._delta(self._blocks[-1].add(text))
            case ToolCallBegun(call=call):
                yield from self._add(_ToolUseBlock(call))
                if call.arguments:
                    yield self._delta(self._blocks[-1].add(call.arguments))
            case ToolCallArguments(text=text):
                yield self._delta(self._blocks[-1].add(text))
            case Finished():
                self._finish(0, event)
                yield from self._close()
                message = self._message()
                stopped = {"stop_reason": message.stop_reason, "stop_sequence": message.stop_sequence}
                yield {"type": "message_delta", "delta": stopped, "usage": message.usage}
                yield {"type": "message_stop"}

    def _add(self, block: _Block) -> Iterator[dict[str, Any]]:
        yield from self._close()
        self._blocks.append(block)
        self._is_open = True
        yield {"type": "content_block_start", "index": self._index, "content_block": block.begun()}

    def _close(self) -> Iterator[dict[str, Any]]:
        """End the block that is being written, if there is one."""
        if not self._is_open:
            return
        if (last := self._blocks[-1].last_delta()) is not None:
            yield self._delta(last)
        self._is_open = False
        yield {"type": "content_block_stop", "index": self._index}

    @property
    def _index(self) -> int:
        return len(self._blocks) - 1

    def _delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}

    def _message(self, usage: Usage | None = None) -> AnswerBlocks:
        """Return the message as it is now. usage: before its end."""
        end = self._ends[0]
        reason = _REASONS[end.reason] if end is not None else None
        stop = end.stop_text if end is not None else None
        return AnswerBlocks(
            id=self._id,
            model=self.model,
            content=[block.whole() for block in self._blocks],
            stop_reason="stop_sequence" if stop is not None else reason,
            stop_sequence=stop,
            usage=self._usage(usage or (end.usage if end is not None else Usage(0, 0, 0))),
            sources=self._sources,
        )

    def _usage(self, usage: Usage) -> MessagesUsage:
        computed = usage.prompt_tokens - usage.cached_tokens
        return MessagesUsage(
            input_tokens=0 if self._hints_cache else computed,
            cache_creation_input_tokens=computed if self._hints_cache else 0,
            cache_read_input_tokens=usage.cached_tokens,
            output_tokens=usage.completion_tokens,
        )


def _told(event: dict[str, Any]) -> bytes:
    return named_event(event["type"], msgspec.json.encode(event))
