"""The messages of a chat, as OpenAI's clients send them, and send back what they were answered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from edgechat.engine.types import Message, ToolCall
from edgechat.server.media import Part, image_at, message_of, sound_of
from edgechat.server.protocol.strictness import Echoed, no_effect
from edgechat.server.refusal import Refusal

NoContent = Annotated[
    Annotated[list[Any], Meta(max_length=0)] | None,
    Meta(description="Only empty values are accepted: answers are text."),
]
Name = Annotated[
    str | None,
    no_effect("Accepted and ignored: chat templates have no names; write them into the content."),
]
FunctionName = Annotated[str, Meta(pattern="^[a-zA-Z0-9_.-]{1,64}$")]
CallId = Annotated[str, Meta(min_length=1, max_length=128)]


class ContentPart(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """A part of a message. Files are refused: no model here can read them."""

    cache_control: Echoed = None

    @property
    def said(self) -> str:
        """The text of it."""
        raise NotImplementedError


class TextPart(ContentPart, frozen=True, kw_only=True, tag="text"):
    """A text part."""

    text: str
    annotations: Echoed = None

    @property
    def said(self) -> str:
        """The text of it."""
        return self.text


class InputTextPart(TextPart, frozen=True, kw_only=True, tag="input_text"):
    """A text part, by its name in the Responses API."""


class OutputTextPart(TextPart, frozen=True, kw_only=True, tag="output_text"):
    """A text part of an answer, by its name in the Responses API."""


class RefusalPart(ContentPart, frozen=True, kw_only=True, tag="refusal"):
    """A refusal of the model."""

    refusal: str

    @property
    def said(self) -> str:
        """The text of it."""
        return self.refusal


class ImageUrl(msgspec.Struct, frozen=True, kw_only=True):
    """Where an image is."""

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
        """Where it is."""
        return self.image_url if isinstance(self.image_url, str) else self.image_url.url


class InputAudio(msgspec.Struct, frozen=True, kw_only=True):
    """A sound."""

    data: Annotated[str, Meta(description="Base64 of a WAV, MP3 or FLAC file, up to half an hour.")]
    format: Annotated[
        Literal["wav", "mp3", "flac"], Meta(description="wav, mp3 or flac; the file itself decides.")
    ]


class AudioPart(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="input_audio"):
    """A sound, for models that can hear."""

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
"""Content that may have images and sounds."""


class FunctionBody(msgspec.Struct, frozen=True, kw_only=True):
    """The function that was called, and its arguments: a JSON object, or its text; null for none.

    Other fields are ignored.
    """

    name: FunctionName
    arguments: str | dict[str, Any] | None = None

    def call(self, id: str) -> ToolCall:
        """Return the call as the engine takes it."""
        if self.arguments is None or isinstance(self.arguments, str):
            return ToolCall(id, self.name, self.arguments or "{}")
        return ToolCall(id, self.name, msgspec.json.encode(self.arguments).decode())


class ToolCallBody(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call of the model. It can have other fields."""

    id: CallId
    function: FunctionBody
    type: Literal["function"] = "function"
    index: int | None = None


class MessageBody(msgspec.Struct, frozen=True, kw_only=True, tag_field="role"):
    """A message, with the fields that clients keep with its content."""

    name: Name = None
    id: Echoed = None
    cache_control: Echoed = None
    provider_specific_fields: Echoed = None


class SystemMessage(MessageBody, frozen=True, kw_only=True, tag="system"):
    """A system prompt."""

    content: Content


class DeveloperMessage(MessageBody, frozen=True, kw_only=True, tag="developer"):
    """A system prompt, by its newer name."""

    content: Content


class UserMessage(MessageBody, frozen=True, kw_only=True, tag="user"):
    """A message of the user."""

    content: MediaContent


class AssistantMessage(MessageBody, frozen=True, kw_only=True, tag="assistant"):
    """An answer of the model, as it was sent or with fields that clients have added."""

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
    images: NoContent = None
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
    """Return the messages as the engine takes them. Raises Refusal for results of no call."""
    made: set[str] = set()
    functions: dict[str, str] = {}
    """The ids of the last function_call of each name, which have none of their own."""
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
    """Yield the parts of a message that may have images and sounds."""
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
            yield part.said


def _text(content: Content | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part.said for part in content)
