"""The body of POST /v1/messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from edgechat.engine.tool_calls.tools import check_choice, check_tools
from edgechat.engine.types import ChatRequest, Priority, Sampling, Tool
from edgechat.server.documents import Docs
from edgechat.server.protocol.anthropic.blocks import (
    CacheHint,
    MessageParam,
    TextBlock,
    ignored_blocks,
    messages_of,
)
from edgechat.server.protocol.lora import Lora
from edgechat.server.protocol.openai.generation import Model, Stop, Tokens, limit
from edgechat.server.protocol.schemas import SchemaText, answer_schema, errors_about, tool_of
from edgechat.server.protocol.strictness import Echoed, no_effect
from edgechat.server.protocol.thinking import RequestedEffort
from edgechat.server.refusal import Refusal
from edgechat.settings import SamplingDefaults


class MessagesTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool. Those that Anthropic's servers run have another `type`, and are left out."""

    type: str | None = None
    name: Annotated[str, Meta(min_length=1, max_length=256)]
    description: Annotated[str, Meta(max_length=65536)] | None = None
    input_schema: SchemaText | UnsetType = UNSET
    strict: bool | None = None
    cache_control: CacheHint = None

    @property
    def is_own(self) -> bool:
        """Whether the client runs it, as its schema says."""
        return self.type in (None, "custom")


class MessagesToolChoice(msgspec.Struct, frozen=True, kw_only=True):
    """Which tool is to be called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingParam(msgspec.Struct, frozen=True, kw_only=True):
    """Whether to think."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int | None, no_effect("Ignored: a model ends its thinking by itself.")] = None
    display: Echoed = None


class OutputFormat(msgspec.Struct, frozen=True, kw_only=True):
    """JSON that follows a schema."""

    type: Literal["json_schema"]
    schema: SchemaText | UnsetType = UNSET


class OutputOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How long to think, and the form of the answer."""

    effort: RequestedEffort | None = None
    format: OutputFormat | None = None


class CountBody(msgspec.Struct, frozen=True, kw_only=True):
    """What the model is given: the body of /v1/messages/count_tokens."""

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
        """The paths of what has no effect: blocks and tools of hosted services."""
        tools = (f"tools[{at}]" for at, tool in enumerate(self.tools or ()) if not tool.is_own)
        return (*ignored_blocks(self.messages), *tools)

    @property
    def think(self) -> bool | None:
        """Whether the model is to think; None: as it is used to."""
        kind = self.thinking.type if self.thinking is not None else None
        return {"enabled": True, "disabled": False}.get(kind or "")

    @property
    def effort(self) -> RequestedEffort | None:
        """How long to think."""
        return self.output_config.effort if self.output_config is not None else None

    def asked(self) -> ChatRequest:
        """Return what the engine is asked, but for what depends on the model. Raises Refusal."""
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
    """The number of tokens that a chat has for the model."""

    input_tokens: int


class MessagesBody(CountBody, frozen=True, kw_only=True):
    """A request for a message."""

    max_tokens: Annotated[Tokens | None, Meta(description="End after this many tokens.")] = None
    stream: bool | None = None
    stop_sequences: Annotated[
        Annotated[list[Stop], Meta(max_length=16)] | None,
        Meta(description="End before any of these texts: up to 16, of up to 256 characters each."),
    ] = None
    temperature: Annotated[float, Meta(ge=0, le=5)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    priority: Annotated[
        Priority | None,
        Meta(description="Extension: background requests run only while nothing else is waiting."),
    ] = None
    lora: Lora = None
    metadata: Annotated[dict[str, Any] | None, no_effect("Ignored: nothing is stored.")] = None
    service_tier: Annotated[str | None, no_effect("Ignored: there is one tier.", "auto", "standard_only")] = (
        None
    )
    thread: Annotated[
        dict[str, Any] | None, Meta(description="Refused: nothing is stored. Clients then send all messages.")
    ] = None
    compaction: Annotated[dict[str, Any] | None, Meta(description="Refused: nothing is summarized.")] = None
    container: Echoed = None
    context_management: Annotated[
        Raw | UnsetType, no_effect("Ignored: clients that set it leave out old results themselves.")
    ] = UNSET
    mcp_servers: Annotated[list[Any] | None, no_effect("Ignored: this server never uses the network.")] = None

    def asked(self) -> ChatRequest:
        """Return what the engine is asked, but for what depends on the model. Raises Refusal."""
        if self.thread is not None:  # what a client leaves out with it would be missing
            raise Refusal(
                "Conversations are not stored here: send all messages, without `thread`.",
                param="thread",
                code="thread_unsupported_request",
            )
        if self.compaction is not None:
            raise Refusal("Conversations are not summarized here: omit `compaction`.", param="compaction")
        return super().asked()

    @property
    def hints_cache(self) -> bool:
        """Whether the client wants a prefix of the prompt to be kept."""
        blocks = self.system if isinstance(self.system, list) else []
        if self.cache_control or any(one.cache_control for one in (*blocks, *(self.tools or ()))):
            return True
        contents = (one.content for one in self.messages if not isinstance(one.content, str))
        return any(b'"cache_control"' in bytes(block) for content in contents for block in content)

    def sampling(self, defaults: SamplingDefaults) -> Sampling:
        """Return how tokens are chosen."""
        sent = SamplingDefaults(temperature=self.temperature, top_p=self.top_p, top_k=self.top_k)
        return Sampling(**sent.over(defaults).given())

    @property
    def stops(self) -> tuple[str, ...]:
        """The texts before which the answer ends."""
        return tuple(stop for stop in self.stop_sequences or () if stop)

    @property
    def most_tokens(self) -> int | None:
        """After how many tokens to end. Raises Refusal."""
        return limit(self.max_tokens, None, "max_tokens")
