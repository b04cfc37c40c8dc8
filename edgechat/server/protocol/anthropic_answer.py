"""Answers in the Messages API, as a whole or as a stream of events."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType

from edgechat.engine.types import Finished, Sampling, Usage
from edgechat.server.documents import SourceBody, asked_documents
from edgechat.server.protocol.answers import (
    AnswerBlock,
    Answers,
    BlockBegun,
    BlockEnded,
    BlockGrown,
    Change,
    named_event,
)
from edgechat.server.protocol.anthropic import MessagesBody
from edgechat.server.protocol.fields import arguments_object
from edgechat.server.refusal import Refusal, anthropic_error
from edgechat.settings import SamplingDefaults

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
_REASONS: dict[str, StopReason] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "context": "max_tokens",
    "tools": "tool_use",
}
_DELTAS = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "call": ("input_json_delta", "partial_json"),
}
"""The type of a delta and the name of its text field, keyed by the kind of block."""
_SIGNATURE = "edgechat"
"""Signature of thinking blocks. Clients expect one; it is ignored when they send it back."""


class AnswerText(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="text"):
    """A text block."""

    text: str
    citations: None = None


class AnswerThinking(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="thinking"):
    """The thinking before the answer."""

    thinking: str
    signature: str


class AnswerToolUse(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="tool_use"):
    """A tool call."""

    id: str
    name: str
    input: Raw


class MessagesUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The token counts for a message. The first three add up to the whole prompt."""

    input_tokens: int
    cache_creation_input_tokens: int
    """Number of tokens computed for this request, if the client asks to cache a prefix."""
    cache_read_input_tokens: int
    """Number of tokens found in the prefix cache."""
    output_tokens: int


class AnswerBlocks(msgspec.Struct, frozen=True, kw_only=True):
    """A message from the model."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[AnswerText | AnswerThinking | AnswerToolUse]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessagesUsage
    sources: list[SourceBody] | UnsetType = UNSET
    """Extension: the sources of the passages that the model was given."""


class MessagesAnswers(Answers):
    """The message that answers a request."""

    id_prefix = "msg_"

    def __init__(self, body: MessagesBody, think: bool | None) -> None:
        """think: the default from the settings. Raises Refusal."""
        super().__init__(
            body.engine_request(),
            model=body.model,
            streams=body.stream,
            think=think,
            effort=body.effort,
            lora=body.lora,
            documents=asked_documents(body.docs),
        )
        self._body = body
        self._hints_cache = body.hints_cache

    def _sampling(self, defaults: SamplingDefaults, choice: int) -> Sampling:
        body = self._body
        sent = SamplingDefaults(temperature=body.temperature, top_p=body.top_p, top_k=body.top_k)
        return Sampling(**sent.over(defaults).given())

    def whole(self) -> bytes:
        """Return the message as JSON."""
        return msgspec.json.encode(self._message())

    def waiting(self) -> bytes:
        """Return a ping, because some clients time out on a stream without events."""
        return _event("ping")

    def failure(self, refusal: Refusal) -> bytes:
        """Return an error as the last event."""
        return named_event("error", anthropic_error(refusal))

    def _begin(self) -> bytes:
        prompt = Usage(self._prompt_tokens, self._cached_tokens, 0)
        return _event("message_start", message=self._message(prompt))

    def _encode(self, choice: int, change: Change) -> bytes:
        match change:
            case BlockBegun(block=block):
                begun = _event("content_block_start", index=block.index, content_block=_empty(block))
                return begun + (_delta(block, block.text) if block.text else b"")
            case BlockGrown(block=block, text=text):
                return _delta(block, text)
            case BlockEnded(block=block):
                ended = _event("content_block_stop", index=block.index)
                if block.kind != "thinking":
                    return ended
                signed = {"type": "signature_delta", "signature": _SIGNATURE}
                return _event("content_block_delta", index=block.index, delta=signed) + ended
            case Finished():
                message = self._message()
                stopped = {"stop_reason": message.stop_reason, "stop_sequence": message.stop_sequence}
                return _event("message_delta", delta=stopped, usage=message.usage) + _event("message_stop")

    def _message(self, usage: Usage | None = None) -> AnswerBlocks:
        """Return the message so far. usage: the token counts that are known before the message ends."""
        [reply] = self._replies
        stop = reply.end.stop_text if reply.end is not None else None
        reason = _REASONS[reply.end.reason] if reply.end is not None else None
        return AnswerBlocks(
            id=self._id,
            model=self.model,
            content=list(map(_whole, reply.blocks)),
            stop_reason="stop_sequence" if stop is not None else reason,
            stop_sequence=stop,
            usage=self._usage(usage or (reply.end.usage if reply.end is not None else Usage(0, 0, 0))),
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


def _empty(block: AnswerBlock) -> dict[str, Any]:
    """Return a block's empty form, which a stream sends when the block starts."""
    if block.call is not None:
        return {"type": "tool_use", "id": block.call.id, "name": block.call.name, "input": {}}
    if block.kind == "thinking":
        return {"type": "thinking", "thinking": "", "signature": ""}
    return {"type": "text", "text": ""}


def _whole(block: AnswerBlock) -> AnswerText | AnswerThinking | AnswerToolUse:
    if block.call is not None:
        return AnswerToolUse(id=block.call.id, name=block.call.name, input=arguments_object(block.text))
    if block.kind == "thinking":
        return AnswerThinking(thinking=block.text, signature=_SIGNATURE)
    return AnswerText(text=block.text)


def _delta(block: AnswerBlock, text: str) -> bytes:
    kind, field = _DELTAS[block.kind]
    return _event("content_block_delta", index=block.index, delta={"type": kind, field: text})


def _event(kind: str, **fields: Any) -> bytes:
    return named_event(kind, msgspec.json.encode({"type": kind, **fields}))
