"""The body of POST /v1/chat/completions: tools, options, and messages, including earlier answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from edgechat.engine.tool_calls.tools import check_choice, check_tools
from edgechat.engine.types import ChatRequest, Message, Overflow, Tool, ToolCall
from edgechat.server.documents import Docs
from edgechat.server.media import Part, image_at, message_of, sound_of
from edgechat.server.protocol.body import Echoed, no_effect
from edgechat.server.protocol.fields import (
    GenerationBody,
    Labels,
    Others,
    SchemaText,
    Tokens,
    allowed_tools,
    answer_schema,
    errors_about,
    limit,
    tool_of,
)
from edgechat.server.refusal import Refusal

Name = Annotated[
    str | None,
    no_effect("Accepted and ignored: chat templates do not support names; include them in the content."),
]
FunctionName = Annotated[str, Meta(pattern="^[a-zA-Z0-9_.-]{1,64}$")]
CallId = Annotated[str, Meta(min_length=1, max_length=128)]


class ContentPart(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """A part of a message. Files are refused, because no model here can read them."""

    cache_control: Echoed = None


class TextPart(ContentPart, frozen=True, kw_only=True, tag="text"):
    """A text part."""

    text: str
    annotations: Echoed = None

    @property
    def plain_text(self) -> str:
        """The text of this part."""
        return self.text


class InputTextPart(TextPart, frozen=True, kw_only=True, tag="input_text"):
    """A text part, under the name that the Responses API uses."""


class OutputTextPart(TextPart, frozen=True, kw_only=True, tag="output_text"):
    """A text part of an answer, under the name that the Responses API uses."""


class RefusalPart(ContentPart, frozen=True, kw_only=True, tag="refusal"):
    """A refusal by the model."""

    refusal: str

    @property
    def plain_text(self) -> str:
        """The text of this part."""
        return self.refusal


class ImageUrl(msgspec.Struct, frozen=True, kw_only=True):
    """The location of an image."""

    url: Annotated[
        str,
        Meta(
            description="A data URL with base64; or an http(s) URL, which `edgechat serve --fetch-images` "
            "fetches."
        ),
    ]
    detail: Annotated[str | None, no_effect("Ignored: each model has its own resolution.", "auto")] = None


class ImagePart(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="image_url"):
    """An image, for models that can see."""

    image_url: ImageUrl | str
    cache_control: Echoed = None

    @property
    def url(self) -> str:
        """The URL of the image."""
        return self.image_url if isinstance(self.image_url, str) else self.image_url.url


class InputAudio(msgspec.Struct, frozen=True, kw_only=True):
    """An audio clip."""

    data: Annotated[str, Meta(description="Base64 of a WAV, MP3 or FLAC file, up to half an hour.")]
    format: Annotated[
        Literal["wav", "mp3", "flac"],
        Meta(description="wav, mp3 or flac; the format is detected from the file."),
    ]


class AudioPart(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="input_audio"):
    """An audio clip, for models that can hear."""

    input_audio: InputAudio
    cache_control: Echoed = None


_MostParts = Meta(max_length=1024)
Content = str | Annotated[list[TextPart | InputTextPart | OutputTextPart | RefusalPart], _MostParts]
MediaContent = (
    str
    | Annotated[
        list[TextPart | InputTextPart | OutputTextPart | RefusalPart | ImagePart | AudioPart], _MostParts
    ]
)
"""Content that can include images and audio."""


class FunctionBody(msgspec.Struct, frozen=True, kw_only=True):
    """The function that was called, and its arguments as a JSON object, a string, or null if there are none.

    Other fields are ignored.
    """

    name: FunctionName
    arguments: str | dict[str, Any] | None = None

    def call(self, id: str) -> ToolCall:
        """Return the call in the form that the engine expects."""
        if self.arguments is None or isinstance(self.arguments, str):
            return ToolCall(id, self.name, self.arguments or "{}")
        return ToolCall(id, self.name, msgspec.json.encode(self.arguments).decode())


class ToolCallBody(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call by the model. Additional fields are allowed."""

    id: CallId
    function: FunctionBody
    type: Literal["function"] = "function"
    index: int | None = None


class MessageBody(msgspec.Struct, frozen=True, kw_only=True, tag_field="role"):
    """A message, including the fields that clients store along with its content."""

    name: Name = None
    id: Echoed = None
    cache_control: Echoed = None
    provider_specific_fields: Echoed = None


class SystemMessage(MessageBody, frozen=True, kw_only=True, tag="system"):
    """A system prompt."""

    content: Content


class DeveloperMessage(MessageBody, frozen=True, kw_only=True, tag="developer"):
    """A system prompt, under the newer name for its role."""

    content: Content


class UserMessage(MessageBody, frozen=True, kw_only=True, tag="user"):
    """A message from the user."""

    content: MediaContent


class AssistantMessage(MessageBody, frozen=True, kw_only=True, tag="assistant"):
    """An answer from the model, either as it was sent or with fields that clients have added."""

    content: Content | UnsetType | None = UNSET
    reasoning_content: Annotated[
        str | None, Meta(description="Extension: the thinking before the content.")
    ] = None
    reasoning: Annotated[
        str | None, Meta(description="Another name for reasoning_content, which takes precedence.")
    ] = None
    reasoning_details: Echoed = None
    tool_calls: Annotated[list[ToolCallBody], Meta(max_length=128)] | None = None
    function_call: Annotated[
        FunctionBody | None, Meta(description="The older form of tool_calls: one call.")
    ] = None
    refusal: Annotated[str | None, Meta(description="A refusal in place of the content.")] = None
    audio: Annotated[None, Meta(description="Only null is accepted: answers are text.")] = None
    images: Annotated[
        Annotated[list[Any], Meta(max_length=0)] | None,
        Meta(description="Only empty values are accepted: answers are text."),
    ] = None
    prefix: Annotated[Literal[False] | None, Meta(description="Only false is accepted.")] = None
    annotations: Echoed = None


class ToolMessage(MessageBody, frozen=True, kw_only=True, tag="tool"):
    """The result of a tool call."""

    content: MediaContent | None
    tool_call_id: CallId
    name: Annotated[str | None, Meta(description="Ignored: the call has the name.")] = None


class FunctionMessage(MessageBody, frozen=True, kw_only=True, tag="function"):
    """The result of a function_call."""

    content: Content | None
    name: FunctionName


ChatMessage = (
    SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage | FunctionMessage
)


def as_messages(sent: list[ChatMessage]) -> tuple[Message, ...]:
    """Return the messages for the engine. Raises Refusal for a result without a call."""
    made: set[str] = set()
    functions: dict[str, str] = {}
    """The id given to the last function_call for each function, keyed by the function's name."""
    found = []
    for at, one in enumerate(sent):
        match one:
            case SystemMessage() | DeveloperMessage():
                found.append(Message("system", _text(one.content)))
            case UserMessage():
                found.append(message_of("user", _parts(one.content, at)))
            case AssistantMessage():
                answer = _answer(one, at)
                made |= {call.id for call in answer.calls}
                if one.function_call is not None:
                    functions[one.function_call.name] = answer.calls[-1].id
                found.append(answer)
            case ToolMessage():
                if one.tool_call_id not in made:
                    raise Refusal(
                        "A message with role tool must have the tool_call_id of a call in an earlier "
                        "assistant message; no call has this id.",
                        param=f"messages[{at}].tool_call_id",
                    )
                found.append(message_of("tool", _parts(one.content or "", at), call_id=one.tool_call_id))
            case FunctionMessage():
                if one.name not in functions:
                    raise Refusal(
                        "A message with role function must have the name of an earlier function_call; no "
                        "call has this name.",
                        param=f"messages[{at}].name",
                    )
                found.append(Message("tool", _text(one.content), call_id=functions[one.name]))
    return tuple(found)


def _answer(sent: AssistantMessage, at: int) -> Message:
    calls = [call.function.call(call.id) for call in sent.tool_calls or ()]
    if sent.function_call is not None:
        calls.append(sent.function_call.call(f"function_call-{at}"))
    thinking = sent.reasoning_content or sent.reasoning or ""
    if sent.content is UNSET and not (calls or thinking or sent.refusal):
        raise Refusal("An assistant message must have content or tool_calls.", param=f"messages[{at}]")
    said = "" if sent.content is UNSET else _text(sent.content)
    return Message("assistant", said or sent.refusal or "", thinking, tuple(calls))


def _parts(content: MediaContent, at: int) -> Iterator[Part]:
    if isinstance(content, str):
        yield content
        return
    for number, part in enumerate(content):
        where = f"messages[{at}].content[{number}]"
        if isinstance(part, ImagePart):
            yield image_at(part.url, f"{where}.image_url")
        elif isinstance(part, AudioPart):
            yield sound_of(part.input_audio.data, f"{where}.input_audio")
        else:
            yield part.plain_text


def _text(content: Content | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part.plain_text for part in content)


class FunctionTool(msgspec.Struct, frozen=True, kw_only=True):
    """A function as described to the model; `parameters` is a JSON schema."""

    name: FunctionName
    description: Annotated[str, Meta(max_length=65536)] | None = None
    parameters: SchemaText | UnsetType = UNSET
    strict: Annotated[
        bool | None,
        Meta(
            description="true: calls that the model makes on its own follow the schema too; calls forced by "
            "tool_choice always do. Keywords that no grammar can enforce (uniqueItems, propertyNames, not, "
            "contains, patterns with lookaround) are ignored, and `unenforced` in the answer names them."
        ),
    ] = None
    cache_control: Echoed = None


class ToolBody(msgspec.Struct, frozen=True, kw_only=True):
    """A function that the model can call."""

    type: Literal["function"]
    function: FunctionTool
    cache_control: Echoed = None


class NamedFunction(msgspec.Struct, frozen=True, kw_only=True):
    """The name of a tool."""

    name: FunctionName


class NamedTool(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="function"):
    """The tool that must be called."""

    function: NamedFunction

    @property
    def name(self) -> str:
        """The name of the function to call."""
        return self.function.name


class AllowedTools(msgspec.Struct, frozen=True, kw_only=True):
    """A subset of the tools, and whether one of them must be called."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Meta(min_length=1, max_length=128)]


class AllowedChoice(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="type",
    tag="allowed_tools",
    forbid_unknown_fields=True,
):
    """The tools that may be called. All others are ignored."""

    allowed_tools: AllowedTools


class TextFormat(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """Allows any text."""


class JsonObject(msgspec.Struct, frozen=True, tag_field="type", tag="json_object"):
    """Requires a JSON object, optionally one that conforms to a schema, as in llama.cpp's server."""

    schema: SchemaText | UnsetType = UNSET


class Schema(msgspec.Struct, frozen=True, kw_only=True):
    """A JSON schema for the answer, with or without `strict`."""

    name: Annotated[str, Meta(pattern="^[a-zA-Z0-9_-]{1,64}$")]
    schema: SchemaText | UnsetType = UNSET
    description: str | None = None
    strict: bool | None = None


class JsonSchema(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="json_schema"):
    """Requires JSON that conforms to a schema."""

    json_schema: Schema


class TemplateSwitches(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Chat template arguments, as accepted by other servers."""

    enable_thinking: bool | None = None


class ChatBody(GenerationBody, frozen=True, kw_only=True):
    """A chat completion request."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=4096)]
    max_completion_tokens: Annotated[
        Tokens | None, Meta(description="End after this many tokens; -1: when the context is full.")
    ] = None
    logprobs: Annotated[bool | None, Meta(description="Return the logprobs of the answer's tokens.")] = None
    top_logprobs: Annotated[
        Others | None,
        Meta(description="... and of this many alternatives for each; requires logprobs."),
    ] = None
    tools: Annotated[
        Annotated[list[ToolBody], Meta(max_length=128)] | None,
        Meta(description="Functions that the model can call."),
    ] = None
    tool_choice: Annotated[
        Literal["none", "auto", "required"] | NamedTool | AllowedChoice | None,
        Meta(
            description="none: no tools; required: at least one call; or the function to call, or the "
            "allowed functions."
        ),
    ] = None
    parallel_tool_calls: Annotated[
        bool | None, Meta(description="false: the answer ends after its first call.")
    ] = None
    response_format: Annotated[
        TextFormat | JsonObject | JsonSchema | None,
        Meta(description="The format of the answer, which a grammar enforces."),
    ] = None
    reasoning_effort: Annotated[
        Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None,
        no_effect(
            "none and minimal mean think: false, the others think: true, unless `think` is given. Models "
            "with levels of thinking (gpt-oss) get low, medium or high; xhigh means high. For models "
            "without a switch, values other than none have no effect.",
            *("none", "minimal", "low", "medium", "high"),
        ),
    ] = None
    think: Annotated[
        bool | None,
        Meta(
            description="Extension: switch a reasoning model's thinking on or off; null: as in the settings."
        ),
    ] = None
    chat_template_kwargs: Annotated[
        TemplateSwitches | None,
        Meta(description="Extension: enable_thinking, the name used by other servers, means `think`."),
    ] = None
    docs: Docs = None
    overflow: Annotated[
        Overflow,
        Meta(
            description="Extension: when the context is full, error refuses the request; window leaves out "
            "the oldest turns and returns their number as `truncated`."
        ),
    ] = "error"
    modalities: Annotated[
        Annotated[list[Literal["text"]], Meta(min_length=1, max_length=1)] | None,
        Meta(description="Only text is supported."),
    ] = None
    store: Annotated[bool | None, no_effect("Ignored: answers are never stored.", False)] = None
    metadata: Annotated[Labels | None, Meta(description="Ignored: nothing is stored.")] = None
    safety_identifier: Annotated[
        Annotated[str, Meta(max_length=512)] | None, Meta(description="Ignored, like `user`.")
    ] = None
    prompt_cache_key: Annotated[
        Annotated[str, Meta(max_length=512)] | None,
        Meta(description="Ignored: common prefixes of prompts are found automatically."),
    ] = None
    prompt_cache_retention: Annotated[
        Literal["in_memory", "in-memory", "24h"] | None,
        no_effect("Ignored: prompts are cached in memory only.", "in_memory", "in-memory"),
    ] = None
    service_tier: Annotated[
        Literal["auto", "default", "flex", "scale", "priority"] | None,
        no_effect("Ignored: there is only one tier; see the extension `priority`.", "auto", "default"),
    ] = None
    verbosity: Annotated[
        Literal["low", "medium", "high"] | None,
        no_effect("Ignored: local models do not have this option.", "medium"),
    ] = None
    audio: Annotated[None, Meta(description="Only null is accepted: this server supports only text.")] = None
    prediction: Annotated[
        None, Meta(description="Only null is accepted: predictions are made without it.")
    ] = None
    web_search_options: Annotated[
        dict[str, Any] | None, no_effect("Ignored: this server does not search the web.")
    ] = None
    functions: Annotated[
        Annotated[list[FunctionTool], Meta(max_length=128)] | None,
        Meta(description="The older form of `tools`; answers then use function_call."),
    ] = None
    function_call: Annotated[
        Literal["none", "auto"] | NamedFunction | None, Meta(description="The older form of tool_choice.")
    ] = None

    def engine_request(self) -> ChatRequest:
        """Return the request to the engine, without the parts that depend on the model. Raises Refusal."""
        self._check()
        chosen = self._choice()
        named = chosen.name if isinstance(chosen, NamedTool | NamedFunction) else None
        request = ChatRequest(
            id="",
            messages=as_messages(self.messages),
            tools=() if chosen == "none" else self._tools(),
            tool_choice="required" if named or chosen == "required" else "auto",
            tool=named,
            most_calls=1 if self.functions or self.parallel_tool_calls is False else None,
            schema=self._schema(),
            logprobs=int(self.top_logprobs or 0) if self.logprobs else None,
            max_tokens=self._most_tokens(),
            stop=self.stops,
            think=self._think(),
            overflow=self.overflow,
            priority=self.priority or "interactive",
        )
        with errors_about("tool_choice" if self.functions is None else "function_call"):
            check_choice(request)
        return request

    @property
    def overruled(self) -> tuple[str, ...]:
        """Fields that have no effect because others take precedence."""
        limits = {self.max_tokens, self.max_completion_tokens} - {None}
        return (("max_tokens",) if len(limits) > 1 else ()) + super().overruled

    def _choice(self) -> str | NamedTool | NamedFunction | None:
        """Return the tool choice, from the current field or the older one."""
        if isinstance(self.tool_choice, AllowedChoice):
            return self.tool_choice.allowed_tools.mode
        return self.tool_choice if self.functions is None else self.function_call

    def _check(self) -> None:
        """Raise Refusal for fields that contradict each other."""
        if self.top_logprobs and not self.logprobs:
            raise Refusal("top_logprobs requires logprobs: true.", param="top_logprobs")
        if self.functions is not None and (self.tools or self.tool_choice is not None):
            raise Refusal("functions and tools are the same field; send one of them.", param="functions")
        if self.functions is None and self.function_call is not None:
            raise Refusal("function_call requires functions.", param="function_call")
        if self._think() and self.reasoning_effort == "none":
            raise Refusal("think: true and reasoning_effort: none contradict each other.", param="think")

    def _most_tokens(self) -> int | None:
        if self.max_completion_tokens is None:
            return limit(self.max_tokens, None, "max_tokens")
        return limit(self.max_completion_tokens, None, "max_completion_tokens")

    def _think(self) -> bool | None:
        switched = self.chat_template_kwargs.enable_thinking if self.chat_template_kwargs else None
        if len({self.think, switched} - {None}) > 1:
            raise Refusal(
                "think and chat_template_kwargs.enable_thinking are the same field; send one of them.",
                param="think",
            )
        return switched if self.think is None else self.think

    def _tools(self) -> tuple[Tool, ...]:
        with errors_about("tools" if self.functions is None else "functions"):
            functions = self.functions or [one.function for one in self.tools or ()]
            found = tuple(
                tool_of(one.name, one.description, one.parameters, strict=one.strict) for one in functions
            )
            check_tools(found)
        if not isinstance(self.tool_choice, AllowedChoice):
            return found
        return allowed_tools(found, {one.name for one in self.tool_choice.allowed_tools.tools})

    def _schema(self) -> str | None:
        match self.response_format:
            case JsonObject(schema=sent) | JsonSchema(json_schema=Schema(schema=sent)):
                return answer_schema(sent, "response_format")
        return None
