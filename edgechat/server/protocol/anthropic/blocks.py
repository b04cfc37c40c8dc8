"""Messages made of blocks: texts, calls, results and thinking, as clients send them, or send them back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw

from edgechat.engine.types import Message, ToolCall
from edgechat.server.media import UNREAD, Part, SentImage, image_at, image_of, message_of
from edgechat.server.protocol.decoding import decode, kind_of
from edgechat.server.protocol.strictness import Echoed
from edgechat.server.refusal import Refusal

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


class Base64Source(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="base64"):
    """The file of an image, whose format is looked up in it."""

    data: str
    media_type: str | None = None

    def image(self, at: str) -> SentImage:
        """Return the image."""
        return image_of(self.data, at)


class UrlSource(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="url"):
    """A data URL; or an http(s) URL, which `edgechat serve --fetch-images` fetches."""

    url: str

    def image(self, at: str) -> SentImage:
        """Return the image. Raises Refusal."""
        return image_at(self.url, at)


class ImageBlock(msgspec.Struct, frozen=True, kw_only=True):
    """An image, for models that can see."""

    type: Literal["image"]
    source: Base64Source | UrlSource
    cache_control: CacheHint = None


class PlainText(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="text"):
    """A document's text."""

    data: str
    media_type: Echoed = None

    @property
    def text(self) -> str:
        """The text."""
        return self.data


class TextContent(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="content"):
    """A document in pieces."""

    content: str | Annotated[list[TextBlock], Meta(max_length=4096)]

    @property
    def text(self) -> str:
        """The texts of all pieces."""
        return self.content if isinstance(self.content, str) else "\n".join(one.text for one in self.content)


class DocumentBlock(msgspec.Struct, frozen=True, kw_only=True):
    """A document that is text: it is read as a text with its title."""

    type: Literal["document"]
    source: PlainText | TextContent
    title: str | None = None
    context: str | None = None
    citations: Echoed = None
    cache_control: CacheHint = None

    @property
    def text(self) -> str:
        """Title, context and text."""
        return "\n\n".join(filter(None, (self.title, self.context, self.source.text)))


class SearchResultBlock(msgspec.Struct, frozen=True, kw_only=True):
    """What the client's own search has found: it is read as a text with its title and source."""

    type: Literal["search_result"]
    source: str
    title: str
    content: Annotated[list[TextBlock], Meta(max_length=4096)]
    citations: Echoed = None
    cache_control: CacheHint = None

    @property
    def text(self) -> str:
        """Title, source and text."""
        return "\n\n".join(filter(None, (self.title, self.source, *(one.text for one in self.content))))


class CompactionBlock(msgspec.Struct, frozen=True, kw_only=True):
    """A summary that stands for earlier messages: it is read as a text."""

    type: Literal["compaction"]
    content: str | None = None
    encrypted_content: Echoed = None
    signature: Echoed = None
    tool_changes: Echoed = None
    cache_control: CacheHint = None

    @property
    def text(self) -> str:
        """The summary, or ''."""
        return self.content or ""


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
    """The result of a call: text and images."""

    type: Literal["tool_result"]
    tool_use_id: BlockId
    content: str | Annotated[list[Raw], Meta(max_length=1024)] | None = None
    is_error: bool | None = None
    cache_control: CacheHint = None


class MessageParam(msgspec.Struct, frozen=True, kw_only=True):
    """A message of the user or of the model. Blocks of other types, of hosted tools, are left out."""

    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[Raw], Meta(max_length=4096)]


class _Source(msgspec.Struct, frozen=True):
    type: str = ""


class _Sourced(msgspec.Struct, frozen=True):
    source: _Source = _Source()


Block = TextBlock | ImageBlock | ThinkingBlock | ToolUseBlock | ToolResultBlock
_KINDS: dict[str, type[Block]] = {
    "text": TextBlock,
    "image": ImageBlock,
    "thinking": ThinkingBlock,
    "tool_use": ToolUseBlock,
    "tool_result": ToolResultBlock,
}
_READ_AS_TEXT: dict[str, type[DocumentBlock | SearchResultBlock | CompactionBlock]] = {
    "document": DocumentBlock,
    "search_result": SearchResultBlock,
    "compaction": CompactionBlock,
}
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
        if kind_of(block, f"messages[{at}].content[{number}]") not in (*_KINDS, *_READ_AS_TEXT)
    ]


def _answer(message: MessageParam, where: str, made: set[str]) -> Message:
    texts, thoughts, calls = [], [], []
    for _, block in _located(message.content, where):
        match block:
            case TextBlock(text=text):
                texts.append(text)
            case ThinkingBlock(thinking=thinking):
                thoughts.append(thinking)
            case ToolUseBlock():
                made.add(block.id)
                calls.append(ToolCall(block.id, block.name, bytes(block.input).decode()))
            case ToolResultBlock() | ImageBlock():
                raise Refusal("Results of tools and images belong into a message of the user.", param=where)
    return Message("assistant", "".join(texts), "".join(thoughts), tuple(calls))


def _said(message: MessageParam, where: str, made: set[str]) -> list[Message]:
    """Return what one message of the user says: the results of calls first, then the rest."""
    results: list[Message] = []
    parts: list[Part] = []
    for at, block in _located(message.content, where):
        match block:
            case TextBlock(text=text):
                parts.append(text)
            case ImageBlock(source=source) if message.role == "user":
                parts.append(source.image(at))
            case ToolResultBlock():
                results.append(_result(block, at, made))
            case ImageBlock():
                raise Refusal("Images belong into a message of the user.", param=where)
            case _:
                raise Refusal("Calls and thinking belong into a message of the assistant.", param=where)
    said = [message_of(message.role, parts)] if parts or not results else []
    return [*results, *said]


def _result(block: ToolResultBlock, where: str, made: set[str]) -> Message:
    if block.tool_use_id not in made:
        raise Refusal(
            "A tool_result must have the tool_use_id of an earlier call; no call has this one.",
            param=where,
        )
    parts: list[Part] = []
    for at, part in _located(block.content or "", where, unread=UNREAD):
        if isinstance(part, TextBlock):
            parts.append(part.text)
        elif isinstance(part, ImageBlock):
            parts.append(part.source.image(at))
    result = message_of("tool", parts, call_id=block.tool_use_id)
    if block.is_error and not result.content.lower().startswith("error"):
        return msgspec.structs.replace(result, content=f"Error: {result.content}")
    return result


def _located(
    content: str | Sequence[Raw], where: str, *, unread: str | None = None
) -> Iterator[tuple[str, Block]]:
    """Yield the blocks that have a meaning here, each with its path.

    unread: stands for what no model here can read, which is refused without it.
    """
    if isinstance(content, str):
        yield where, TextBlock(text=content)
        return
    for at, block in enumerate(content):
        path = f"{where}.content.{at}"
        kind = kind_of(block, path)
        if _is_file(kind, block, path):
            if unread is None:
                raise Refusal(
                    f"{path}: only text and images are supported: no audio or files.",
                    param=path,
                    code="invalid_value",
                )
            yield path, TextBlock(text=unread)
        elif kind in _READ_AS_TEXT:
            yield path, TextBlock(text=decode(block, _READ_AS_TEXT[kind], path).text)
        elif kind in _KINDS:
            yield path, decode(block, _KINDS[kind], path)


def _is_file(kind: str, block: Raw, path: str) -> bool:
    """Return whether a block is what no answer can do without, and no model here can read."""
    if kind == "document":
        return decode(block, _Sourced, path).source.type not in ("text", "content")
    return kind in ("audio", "video")
