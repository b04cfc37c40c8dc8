"""Messages made of blocks: texts, calls, results and thinking, as clients send them, or send them back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw

from edgechat.engine.types import Message, ToolCall
from edgechat.server.http.refusal import Refusal
from edgechat.server.protocol.decoding import UNREAD, decode, kind_of
from edgechat.server.protocol.strictness import Echoed

BlockId = Annotated[str, Meta(min_length=1, max_length=128)]
CacheHint = Annotated[
    dict[str, Any] | None,
    Meta(description="A hint that what stands before it comes again. Common prefixes are found without it."),
]


class TextBlock(msgspec.Struct, frozen=True, kw_only=True):
    """A text."""

    type: Literal["text"] = "text"
    text: str
    cache_control: CacheHint = None
    citations: Echoed = None


class ThinkingBlock(msgspec.Struct, frozen=True, kw_only=True):
    """The thinking before an answer. The signature is not looked at."""

    type: Literal["thinking"]
    thinking: str
    signature: Echoed = None


class ToolUseBlock(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a tool."""

    type: Literal["tool_use"]
    id: BlockId
    name: Annotated[str, Meta(max_length=256)]
    input: Annotated[Raw, Meta(description="The arguments.", extra_json_schema={"type": "object"})]
    cache_control: CacheHint = None


class ToolResultBlock(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a call: text."""

    type: Literal["tool_result"]
    tool_use_id: BlockId
    content: str | Annotated[list[Raw], Meta(max_length=1024)] | None = None
    is_error: bool | None = None
    cache_control: CacheHint = None


class MessageParam(msgspec.Struct, frozen=True, kw_only=True):
    """A message of the user or of the model. Blocks of other types, of hosted tools, are left out."""

    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[Raw], Meta(max_length=4096)]


Block = TextBlock | ThinkingBlock | ToolUseBlock | ToolResultBlock
_KINDS: dict[str, type[Block]] = {
    "text": TextBlock,
    "thinking": ThinkingBlock,
    "tool_use": ToolUseBlock,
    "tool_result": ToolResultBlock,
}
_UNSEEN = ("image", "document", "audio", "video")
"""Blocks that no answer can do without."""


_ATTRIBUTION = "x-anthropic-billing-header:"
"""The beginning of a block with an id of the request, by Claude Code: all after it would be read anew."""


def messages_of(
    system: str | Sequence[TextBlock] | None, sent: Sequence[MessageParam]
) -> tuple[Message, ...]:
    """Return a chat as the engine takes it. Raises Refusal."""
    blocks = [TextBlock(text=system)] if isinstance(system, str) else system or ()
    rules = "\n\n".join(block.text for block in blocks if not block.text.startswith(_ATTRIBUTION))
    found = [Message("system", rules)] if rules else []
    made: set[str] = set()
    for at, message in enumerate(sent):
        if message.role == "assistant":
            found.append(_answer(message, f"messages.{at}", made))
        else:
            found += _said(message, f"messages.{at}", made)
    return tuple(found)


def ignored_blocks(sent: Sequence[MessageParam]) -> list[str]:
    """Return the paths of blocks that have no meaning here."""
    return [
        f"messages[{at}].content[{number}]"
        for at, message in enumerate(sent)
        if not isinstance(message.content, str)
        for number, block in enumerate(message.content)
        if kind_of(block, f"messages[{at}].content[{number}]") not in _KINDS
    ]


def _answer(message: MessageParam, where: str, made: set[str]) -> Message:
    texts, thoughts, calls = [], [], []
    for block in _blocks(message.content, where):
        match block:
            case TextBlock(text=text):
                texts.append(text)
            case ThinkingBlock(thinking=thinking):
                thoughts.append(thinking)
            case ToolUseBlock():
                made.add(block.id)
                calls.append(ToolCall(block.id, block.name, bytes(block.input).decode()))
            case ToolResultBlock():
                raise Refusal("Results of tools belong into a message of the user.", param=where)
    return Message("assistant", "".join(texts), "".join(thoughts), tuple(calls))


def _said(message: MessageParam, where: str, made: set[str]) -> list[Message]:
    """Return what one message of the user says: the results of calls first, then the text."""
    results, texts = [], []
    for block in _blocks(message.content, where):
        match block:
            case TextBlock(text=text):
                texts.append(text)
            case ToolResultBlock():
                results.append(_result(block, where, made))
            case _:
                raise Refusal("Calls and thinking belong into a message of the assistant.", param=where)
    role = message.role
    said = [Message(role, "\n".join(texts))] if texts or not results else []
    return [*results, *said]


def _result(block: ToolResultBlock, where: str, made: set[str]) -> Message:
    if block.tool_use_id not in made:
        raise Refusal(
            "A tool_result must have the tool_use_id of an earlier call; no call has this one.",
            param=where,
        )
    parts = _blocks(block.content or "", where, unread=UNREAD)
    texts = [part.text for part in parts if isinstance(part, TextBlock)]
    text = "\n".join(texts)
    if block.is_error and not text.lower().startswith("error"):
        text = f"Error: {text}"
    return Message("tool", text, call_id=block.tool_use_id)


def _blocks(content: str | Sequence[Raw], where: str, *, unread: str | None = None) -> list[Block]:
    """Return the blocks that have a meaning here. unread: stands for what no model here can see, which is
    refused without it.
    """
    if isinstance(content, str):
        return [TextBlock(text=content)]
    found: list[Block] = []
    for at, block in enumerate(content):
        path = f"{where}.content.{at}"
        kind = kind_of(block, path)
        if kind in _UNSEEN and unread is not None:
            found.append(TextBlock(text=unread))
        elif kind in _UNSEEN:
            raise Refusal(
                f"{path}: only text is supported: no images, audio or files.",
                param=path,
                code="invalid_value",
            )
        elif kind in _KINDS:
            found.append(decode(block, _KINDS[kind], path))
    return found
