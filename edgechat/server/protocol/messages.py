"""The messages of a chat, as OpenAI's clients send them, and send back what they were answered."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from edgechat.engine.types import Message, ToolCall
from edgechat.server.http.refusal import Refusal
from edgechat.server.protocol.strictness import Echoed, taken

NoContent = Annotated[
    Annotated[list[Any], Meta(max_length=0)] | None,
    Meta(description="Only what is empty is taken: models are sent text alone."),
]
Name = Annotated[
    str | None,
    taken("Taken, and told no model: templates have no place for names; write them into the content."),
]
FunctionName = Annotated[str, Meta(pattern="^[a-zA-Z0-9_.-]{1,64}$")]
CallId = Annotated[str, Meta(min_length=1, max_length=128)]


class ContentPart(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", forbid_unknown_fields=True):
    """A piece of a message. Images, sounds and files are refused: models are sent text alone."""

    cache_control: Echoed = None

    @property
    def said(self) -> str:
        """The text of it."""
        raise NotImplementedError


class TextPart(ContentPart, frozen=True, kw_only=True, tag="text", forbid_unknown_fields=True):
    """A piece of text."""

    text: str
    annotations: Echoed = None

    @property
    def said(self) -> str:
        """The text of it."""
        return self.text


class InputTextPart(TextPart, frozen=True, kw_only=True, tag="input_text", forbid_unknown_fields=True):
    """The same, as OpenAI's other protocol calls it."""


class OutputTextPart(TextPart, frozen=True, kw_only=True, tag="output_text", forbid_unknown_fields=True):
    """The same, of an answer."""


class RefusalPart(ContentPart, frozen=True, kw_only=True, tag="refusal", forbid_unknown_fields=True):
    """What a model said in place of an answer."""

    refusal: str

    @property
    def said(self) -> str:
        """The text of it."""
        return self.refusal


Content = (
    str
    | Annotated[
        list[TextPart | InputTextPart | OutputTextPart | RefusalPart],
        Meta(max_length=1024),
    ]
)


class FunctionBody(msgspec.Struct, frozen=True, kw_only=True):
    """What was called, and with what: a JSON object, or its text. What clients add is taken."""

    name: FunctionName
    arguments: str | dict[str, Any]

    def call(self, id: str) -> ToolCall:
        """Return the call as the engine takes it."""
        if isinstance(self.arguments, str):
            return ToolCall(id, self.name, self.arguments)
        return ToolCall(id, self.name, msgspec.json.encode(self.arguments).decode())


class ToolCallBody(msgspec.Struct, frozen=True, kw_only=True):
    """A call that the model wanted made. What clients add is taken."""

    id: CallId
    function: FunctionBody
    type: Literal["function"] = "function"
    index: int | None = None


class MessageBody(msgspec.Struct, frozen=True, kw_only=True, tag_field="role", forbid_unknown_fields=True):
    """A message, with what clients keep beside its content."""

    name: Name = None
    id: Echoed = None
    cache_control: Echoed = None
    provider_specific_fields: Echoed = None


class SystemMessage(MessageBody, frozen=True, kw_only=True, tag="system", forbid_unknown_fields=True):
    """What the model is told to be."""

    content: Content


class DeveloperMessage(MessageBody, frozen=True, kw_only=True, tag="developer", forbid_unknown_fields=True):
    """The same, by its newer name."""

    content: Content


class UserMessage(MessageBody, frozen=True, kw_only=True, tag="user", forbid_unknown_fields=True):
    """What somebody asks."""

    content: Content


class AssistantMessage(MessageBody, frozen=True, kw_only=True, tag="assistant", forbid_unknown_fields=False):
    """What the model answered, as it was or with whatever clients have added to it."""

    content: Content | UnsetType | None = UNSET
    reasoning_content: Annotated[str | None, Meta(description="Extension: the thinking before it.")] = None
    reasoning: Annotated[
        str | None, Meta(description="The same, as other servers call it; reasoning_content goes first.")
    ] = None
    reasoning_details: Echoed = None
    tool_calls: Annotated[list[ToolCallBody], Meta(max_length=128)] | None = None
    function_call: Annotated[
        FunctionBody | None, Meta(description="The same, as it was before tools: one call.")
    ] = None
    refusal: Annotated[
        str | None, Meta(description="What was said in place of an answer, where there is no content.")
    ] = None
    audio: Annotated[None, Meta(description="Only null is taken: models are sent text alone.")] = None
    images: NoContent = None
    prefix: Annotated[
        Literal[False] | None, Meta(description="Only false is taken: an answer is not begun for the model.")
    ] = None
    annotations: Echoed = None


class ToolMessage(MessageBody, frozen=True, kw_only=True, tag="tool", forbid_unknown_fields=True):
    """What a call gave."""

    content: Content
    tool_call_id: CallId
    name: Annotated[str | None, Meta(description="Not needed: the call has it.")] = None


class FunctionMessage(MessageBody, frozen=True, kw_only=True, tag="function", forbid_unknown_fields=True):
    """What a function_call gave."""

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
                found.append(Message("user", _text(one.content)))
            case AssistantMessage():
                answer = _answer(one, at)
                made |= {call.id for call in answer.calls}
                if one.function_call is not None:
                    functions[one.function_call.name] = answer.calls[-1].id
                found.append(answer)
            case ToolMessage():
                if one.tool_call_id not in made:
                    raise Refusal(
                        "A message of role tool answers a call of an assistant's message before it, by its "
                        "tool_call_id; there is no call of that id.",
                        param=f"messages[{at}].tool_call_id",
                    )
                found.append(Message("tool", _text(one.content), call_id=one.tool_call_id))
            case FunctionMessage():
                if one.name not in functions:
                    raise Refusal(
                        "A message of role function answers a function_call before it, by its name; there is "
                        "no call of that name.",
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
        raise Refusal("An assistant's message has content or tool_calls.", param=f"messages[{at}]")
    said = "" if sent.content is UNSET else _text(sent.content)
    return Message("assistant", said or sent.refusal or "", thinking, tuple(calls))


def _text(content: Content | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part.said for part in content)
