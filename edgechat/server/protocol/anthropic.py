"""The body of POST /v1/messages: tools, options, and messages made of blocks, including earlier answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from edgechat.engine.tool_calls.tools import check_choice, check_tools
from edgechat.engine.types import ChatRequest, Message, Tool, ToolCall
from edgechat.server.documents import Docs
from edgechat.server.media import UNREAD, Part, SentImage, image_at, image_of, message_of
from edgechat.server.protocol.body import Echoed, decode, kind_of, no_effect
from edgechat.server.protocol.fields import (
    Lora,
    Model,
    RequestedEffort,
    RequestedPriority,
    SchemaText,
    Stop,
    Tokens,
    answer_schema,
    errors_about,
    limit,
    stops_of,
    tool_of,
)
from edgechat.server.refusal import Refusal

BlockId = Annotated[str, Meta(min_length=1, max_length=128)]
CacheHint = Annotated[
    dict[str, Any] | None,
    Meta(
        description="A hint that everything before it will be sent again. Common prefixes are found "
        "without it."
    ),
]


class TextBlock(msgspec.Struct, frozen=True, kw_only=True):
    """A text block."""

    type: Literal["text"] = "text"
    text: str
    cache_control: CacheHint = None
    citations: Echoed = None


class Base64Source(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="base64"):
    """An image file, whose format is detected from its data."""

    data: str
    media_type: str | None = None

    def image(self, at: str) -> SentImage:
        """Return the image."""
        return image_of(self.data, at)


class UrlSource(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="url"):
    """A data URL, or an http(s) URL that is fetched if the server runs with `--fetch-images`."""

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
    """The text of a document."""

    data: str
    media_type: Echoed = None

    @property
    def text(self) -> str:
        """The text."""
        return self.data


class TextContent(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="content"):
    """A document split into pieces."""

    content: str | Annotated[list[TextBlock], Meta(max_length=4096)]

    @property
    def text(self) -> str:
        """The text of all pieces together."""
        return self.content if isinstance(self.content, str) else "\n".join(one.text for one in self.content)


class DocumentBlock(msgspec.Struct, frozen=True, kw_only=True):
    """A text document. The model also reads its title and context."""

    type: Literal["document"]
    source: PlainText | TextContent
    title: str | None = None
    context: str | None = None
    citations: Echoed = None
    cache_control: CacheHint = None

    @property
    def text(self) -> str:
        """The title, context and text."""
        return "\n\n".join(filter(None, (self.title, self.context, self.source.text)))


class SearchResultBlock(msgspec.Struct, frozen=True, kw_only=True):
    """A result of a search run by the client. The model also reads its title and source."""

    type: Literal["search_result"]
    source: str
    title: str
    content: Annotated[list[TextBlock], Meta(max_length=4096)]
    citations: Echoed = None
    cache_control: CacheHint = None

    @property
    def text(self) -> str:
        """The title, source and text."""
        return "\n\n".join(filter(None, (self.title, self.source, *(one.text for one in self.content))))


class CompactionBlock(msgspec.Struct, frozen=True, kw_only=True):
    """A summary that replaces earlier messages. The model reads it as text."""

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
    """The thinking before an answer. The signature is ignored."""

    type: Literal["thinking"]
    thinking: str
    signature: Echoed = None


class ToolUseBlock(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call."""

    type: Literal["tool_use"]
    id: BlockId
    name: Annotated[str, Meta(max_length=256)]
    input: Annotated[Raw, Meta(description="The arguments.", extra_json_schema={"type": "object"})]
    cache_control: CacheHint = None


class ToolResultBlock(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a tool call: text and images."""

    type: Literal["tool_result"]
    tool_use_id: BlockId
    content: str | Annotated[list[Raw], Meta(max_length=1024)] | None = None
    is_error: bool | None = None
    cache_control: CacheHint = None


class MessageParam(msgspec.Struct, frozen=True, kw_only=True):
    """A message from the user or the model. Blocks of other types, for hosted tools, are dropped."""

    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[Raw], Meta(max_length=4096)]


class _Sourced(msgspec.Struct, frozen=True):
    source: Raw = Raw(b"{}")


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
"""Prefix of a block in which Claude Code sends a request id, which would defeat the prefix cache."""


def messages_of(
    system: str | Sequence[TextBlock] | None, sent: Sequence[MessageParam]
) -> tuple[Message, ...]:
    """Return the messages for the engine. Raises Refusal."""
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
    """Return the paths of the blocks that are ignored."""
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
                raise Refusal("Tool results and images belong in a user message.", param=where)
    return Message("assistant", "".join(texts), "".join(thoughts), tuple(calls))


def _said(message: MessageParam, where: str, made: set[str]) -> list[Message]:
    """Convert a user's message to one message per tool result, followed by one for everything else."""
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
                raise Refusal("Images belong in a user message.", param=where)
            case _:
                raise Refusal("Tool calls and thinking belong in an assistant message.", param=where)
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
    """Yield the blocks of known types, each with its path.

    unread: text that replaces files; if None, files are refused.
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
                    f"{path}: only text and images are supported, not audio or files.",
                    param=path,
                    code="invalid_value",
                )
            yield path, TextBlock(text=unread)
        elif kind in _READ_AS_TEXT:
            yield path, TextBlock(text=decode(block, _READ_AS_TEXT[kind], path).text)
        elif kind in _KINDS:
            yield path, decode(block, _KINDS[kind], path)


def _is_file(kind: str, block: Raw, path: str) -> bool:
    """Return True if a block is a file, which must be refused rather than ignored."""
    if kind == "document":
        source = decode(block, _Sourced, path).source
        return kind_of(source, f"{path}.source") not in ("text", "content")
    return kind in ("audio", "video")


class MessagesTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool. Tools that run on Anthropic's servers have a different `type`, and are dropped."""

    type: str | None = None
    name: Annotated[str, Meta(min_length=1, max_length=256)]
    description: Annotated[str, Meta(max_length=65536)] | None = None
    input_schema: SchemaText | UnsetType = UNSET
    strict: bool | None = None
    cache_control: CacheHint = None

    @property
    def is_own(self) -> bool:
        """Whether the tool is run by the client, not by a hosted service."""
        return self.type in (None, "custom")


class MessagesToolChoice(msgspec.Struct, frozen=True, kw_only=True):
    """Which tool to call."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingParam(msgspec.Struct, frozen=True, kw_only=True):
    """Whether to think."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int | None, no_effect("Ignored: the model decides when to stop thinking.")] = (
        None
    )
    display: Echoed = None


class OutputFormat(msgspec.Struct, frozen=True, kw_only=True):
    """Requires JSON that conforms to a schema."""

    type: Literal["json_schema"]
    schema: SchemaText | UnsetType = UNSET


class OutputOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How long to think, and the format of the answer."""

    effort: RequestedEffort | None = None
    format: OutputFormat | None = None


class CountBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of /v1/messages/count_tokens: everything that the model reads."""

    model: Model = None
    messages: Annotated[list[MessageParam], Meta(min_length=1, max_length=8192)]
    system: str | Annotated[list[TextBlock], Meta(max_length=256)] | None = None
    tools: Annotated[list[MessagesTool], Meta(max_length=512)] | None = None
    tool_choice: MessagesToolChoice | None = None
    thinking: ThinkingParam | None = None
    output_config: OutputOptions | None = None
    output_format: OutputFormat | None = None
    cache_control: CacheHint = None
    docs: Docs = None

    @property
    def overruled(self) -> tuple[str, ...]:
        """Paths of fields that have no effect: blocks and tools for hosted services."""
        tools = (f"tools[{at}]" for at, tool in enumerate(self.tools or ()) if not tool.is_own)
        return (*ignored_blocks(self.messages), *tools)

    @property
    def think(self) -> bool | None:
        """Whether the model thinks, or None for the default."""
        kind = self.thinking.type if self.thinking is not None else None
        return {"enabled": True, "disabled": False}.get(kind or "")

    @property
    def effort(self) -> RequestedEffort | None:
        """How long to think."""
        return self.output_config.effort if self.output_config is not None else None

    def engine_request(self) -> ChatRequest:
        """Return the request to the engine, without the parts that depend on the model. Raises Refusal."""
        choice = self.tool_choice or MessagesToolChoice(type="auto")
        with errors_about("tools"):
            tools = tuple(self._tools())
            check_tools(tools)
        request = ChatRequest(
            id="",
            messages=messages_of(self.system, self.messages),
            tools=() if choice.type == "none" else tools,
            tool_choice="required" if choice.type in ("any", "tool") else "auto",
            tool=choice.name if choice.type == "tool" else None,
            most_calls=1 if choice.disable_parallel_tool_use else None,
            schema=self._schema(),
            think=self.think,
            overflow="error",
        )
        with errors_about("tool_choice"):
            check_choice(request)
        return request

    def _tools(self) -> Iterator[Tool]:
        for tool in self.tools or ():
            if tool.is_own:
                yield tool_of(tool.name, tool.description, tool.input_schema, strict=tool.strict)

    def _schema(self) -> str | None:
        options = self.output_config.format if self.output_config is not None else None
        sent = options or self.output_format
        return None if sent is None else answer_schema(sent.schema, "output_config.format")


class TokenCount(msgspec.Struct, frozen=True):
    """The number of tokens that the model reads for a chat."""

    input_tokens: int


class MessagesBody(CountBody, frozen=True, kw_only=True):
    """The body of /v1/messages."""

    max_tokens: Annotated[Tokens | None, Meta(description="End after this many tokens.")] = None
    stream: bool | None = None
    stop_sequences: Annotated[
        Annotated[list[Stop], Meta(max_length=16)] | None,
        Meta(description="End before any of these strings: up to 16, of up to 256 characters each."),
    ] = None
    temperature: Annotated[float, Meta(ge=0, le=5)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    priority: RequestedPriority = None
    lora: Lora = None
    metadata: Annotated[dict[str, Any] | None, no_effect("Ignored: nothing is stored.")] = None
    service_tier: Annotated[
        str | None, no_effect("Ignored: there is only one tier.", "auto", "standard_only")
    ] = None
    thread: Annotated[
        dict[str, Any] | None, Meta(description="Refused: nothing is stored. Clients then send all messages.")
    ] = None
    compaction: Annotated[dict[str, Any] | None, Meta(description="Refused: nothing is summarized.")] = None
    container: Echoed = None
    context_management: Annotated[
        Raw | UnsetType, no_effect("Ignored: clients that set it leave out old results themselves.")
    ] = UNSET
    mcp_servers: Annotated[list[Any] | None, no_effect("Ignored: this server never uses the network.")] = None

    def engine_request(self) -> ChatRequest:
        """Return the request to the engine, without the parts that depend on the model. Raises Refusal."""
        if self.thread is not None:  # the client would omit earlier messages
            raise Refusal(
                "Conversations are not stored here: send all messages, without `thread`.",
                param="thread",
                code="thread_unsupported_request",
            )
        if self.compaction is not None:
            raise Refusal("Conversations are not summarized here: omit `compaction`.", param="compaction")
        return msgspec.structs.replace(
            super().engine_request(),
            max_tokens=limit(self.max_tokens, None, "max_tokens"),
            stop=stops_of(self.stop_sequences),
            priority=self.priority or "interactive",
        )

    @property
    def hints_cache(self) -> bool:
        """Whether the client asks to cache a prefix."""
        blocks = self.system if isinstance(self.system, list) else []
        if self.cache_control or any(one.cache_control for one in (*blocks, *(self.tools or ()))):
            return True
        contents = (one.content for one in self.messages if not isinstance(one.content, str))
        return any(b'"cache_control"' in bytes(block) for content in contents for block in content)
