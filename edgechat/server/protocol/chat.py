"""A chat's answer: POST /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from edgechat.engine.types import ChatRequest, Overflow, Tool, ToolChoice
from edgechat.server.protocol.generation import Generation, Labels, Tokens
from edgechat.server.protocol.messages import ChatMessage, FunctionName, as_messages
from edgechat.server.protocol.schemas import schema_text
from edgechat.server.refusal import Refusal

NoSound = Annotated[None, Meta(description="Only null is taken: this server reads and writes text alone.")]
NoSearch = Annotated[None, Meta(description="Only null is taken: this server never uses the network.")]
NoPrediction = Annotated[
    None, Meta(description="Only null is taken: what the answer will be is guessed without being told.")
]
OldFunctions = Annotated[None, Meta(description="Only null is taken: send tools and tool_choice.")]


class FunctionTool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a model is told of a function; `parameters` is a JSON schema."""

    name: FunctionName
    description: Annotated[str, Meta(max_length=65536)] | None = None
    parameters: dict[str, Any] | None = None
    strict: Annotated[
        bool | None,
        Meta(
            description="Not needed: where tool_choice forces the call its arguments follow the schema; a "
            "call of the model's own choice has the arguments that it wrote."
        ),
    ] = None


class ToolBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A function that a model may want called."""

    type: Literal["function"]
    function: FunctionTool


class NamedFunction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of the tools."""

    name: FunctionName


class NamedTool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The tool that must be called."""

    type: Literal["function"]
    function: NamedFunction


class TextFormat(msgspec.Struct, frozen=True, tag_field="type", tag="text", forbid_unknown_fields=True):
    """Any text."""


class JsonObject(
    msgspec.Struct, frozen=True, tag_field="type", tag="json_object", forbid_unknown_fields=True
):
    """Any JSON object."""


class Schema(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A JSON schema that the answer follows, whether `strict` is said or not."""

    name: Annotated[str, Meta(pattern="^[a-zA-Z0-9_-]{1,64}$")]
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class JsonSchema(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="json_schema", forbid_unknown_fields=True
):
    """JSON that follows a schema."""

    json_schema: Schema


class ChatBody(Generation, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A chat to be answered."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=4096)]
    max_completion_tokens: Annotated[Tokens | None, Meta(description="End after so many tokens.")] = None
    logprobs: Annotated[bool | None, Meta(description="Tell how likely the answer's tokens were.")] = None
    top_logprobs: Annotated[
        Annotated[int, Meta(ge=0, le=20)] | None,
        Meta(description="... and so many others in the place of each; needs logprobs."),
    ] = None
    tools: Annotated[
        Annotated[list[ToolBody], Meta(max_length=128)] | None,
        Meta(description="Functions that the model may want called."),
    ] = None
    tool_choice: Annotated[
        Literal["none", "auto", "required"] | NamedTool | None,
        Meta(description="none: as without tools; required: one at least is called; or the one that is."),
    ] = None
    parallel_tool_calls: Annotated[
        bool | None, Meta(description="false: of several calls the first is handed out.")
    ] = None
    response_format: Annotated[
        TextFormat | JsonObject | JsonSchema | None,
        Meta(description="What the answer is; a grammar holds the model to it."),
    ] = None
    reasoning_effort: Annotated[
        Literal["none"] | None,
        Meta(description="Thinking is on or off here: none is think false; for on, send think true."),
    ] = None
    think: Annotated[
        bool | None,
        Meta(
            description="Extension: switch a reasoning model's thinking on or off; null: as the settings say."
        ),
    ] = None
    overflow: Annotated[
        Overflow,
        Meta(
            description="Extension: where the context is full, error refuses; window leaves out the oldest "
            "turns, and `truncated` says how many."
        ),
    ] = "error"
    modalities: Annotated[
        Annotated[list[Literal["text"]], Meta(min_length=1, max_length=1)] | None,
        Meta(description="Only text is written."),
    ] = None
    store: Annotated[
        Literal[False] | None, Meta(description="Answers are not kept here: only false is taken.")
    ] = None
    metadata: Annotated[
        Labels | None, Meta(description="Labels, which nothing here needs: nothing is stored.")
    ] = None
    safety_identifier: Annotated[
        Annotated[str, Meta(max_length=512)] | None, Meta(description="A label, as `user` is.")
    ] = None
    prompt_cache_key: Annotated[
        Annotated[str, Meta(max_length=512)] | None,
        Meta(description="Not needed: what prompts have in common is found by itself."),
    ] = None
    prompt_cache_retention: Annotated[
        Literal["in_memory"] | None, Meta(description="Prompts are kept in memory only.")
    ] = None
    service_tier: Annotated[
        Literal["auto", "default"] | None,
        Meta(description="There is one tier; the extension `priority` lets a request wait for others."),
    ] = None
    verbosity: Annotated[
        Literal["medium"] | None, Meta(description="Models have no such switch; say it in a message.")
    ] = None
    audio: NoSound = None
    prediction: NoPrediction = None
    web_search_options: NoSearch = None
    functions: OldFunctions = None
    function_call: OldFunctions = None

    def asked(self) -> ChatRequest:
        """Return what the engine is asked, but for what depends on the model. Raises Refusal."""
        self._check()
        named = self.tool_choice if isinstance(self.tool_choice, NamedTool) else None
        forced: ToolChoice = "required" if named or self.tool_choice == "required" else "auto"
        return ChatRequest(
            id="",
            messages=as_messages(self.messages),
            tools=() if self.tool_choice == "none" else tuple(map(_tool, self.tools or ())),
            tool_choice=forced,
            tool=named.function.name if named else None,
            schema=self._schema(),
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            max_tokens=self.max_completion_tokens or self.max_tokens,
            stop=self.stops,
            think=False if self.reasoning_effort == "none" else self.think,
            overflow=self.overflow,
            priority=self.priority or "interactive",
        )

    def _check(self) -> None:
        """Raise Refusal for fields that contradict each other."""
        if self.top_logprobs and not self.logprobs:
            raise Refusal("top_logprobs needs logprobs: true.", param="top_logprobs")
        if self.think and self.reasoning_effort == "none":
            raise Refusal("think: true and reasoning_effort: none contradict each other.", param="think")
        both = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(both) > 1:
            raise Refusal("max_tokens means max_completion_tokens; send one of them.", param="max_tokens")
        if self.stream_options is not None and not self.stream:
            raise Refusal("stream_options needs stream: true.", param="stream_options")
        names = [one.function.name for one in self.tools or ()]
        if len(set(names)) < len(names):
            raise Refusal("Two of the tools have one name.", param="tools")
        if self.tool_choice in (None, "none", "auto"):
            return
        if not names:
            raise Refusal("tool_choice needs tools.", param="tool_choice")
        if isinstance(self.tool_choice, NamedTool) and self.tool_choice.function.name not in names:
            raise Refusal("tool_choice names a function that is none of the tools.", param="tool_choice")

    def _schema(self) -> str | None:
        match self.response_format:
            case JsonObject():
                return schema_text({"type": "object"}, "response_format")
            case JsonSchema(json_schema=wanted):
                return schema_text(wanted.schema or {"type": "object"}, "response_format.json_schema.schema")
        return None


def _tool(sent: ToolBody) -> Tool:
    function = sent.function
    if not function.parameters:
        return Tool(function.name, function.description or "")
    return Tool(function.name, function.description or "", schema_text(function.parameters, "tools"))
