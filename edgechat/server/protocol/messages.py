"""The messages of a chat, as OpenAI's clients send them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from edgechat.engine.types import Message, ToolCall
from edgechat.server.refusal import Refusal

NoValue = Annotated[None, Meta(description="Only null is taken: there is nothing of the kind here.")]
NoName = Annotated[
    None, Meta(description="Only null is taken: templates tell models no names; write it into the content.")
]
FunctionName = Annotated[str, Meta(pattern="^[a-zA-Z0-9_.-]{1,64}$")]
CallId = Annotated[str, Meta(min_length=1, max_length=128)]


class TextPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A piece of text. Images, sounds and files are refused: models are sent text alone."""

    type: Literal["text"]
    text: str


Content = str | Annotated[list[TextPart], Meta(min_length=1, max_length=1024)]


class Function(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was called, and with what: a JSON object, as text."""

    name: FunctionName
    arguments: str


class Call(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A call that the model wanted made."""

    id: CallId
    function: Function
    type: Literal["function"] = "function"
    index: int | None = None


class SystemMessage(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="role", tag="system", forbid_unknown_fields=True
):
    """What the model is told to be."""

    content: Content
    name: NoName = None


class DeveloperMessage(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="role", tag="developer", forbid_unknown_fields=True
):
    """The same, by its newer name."""

    content: Content
    name: NoName = None


class UserMessage(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="role", tag="user", forbid_unknown_fields=True
):
    """What somebody asks."""

    content: Content
    name: NoName = None


class AssistantMessage(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="role", tag="assistant", forbid_unknown_fields=True
):
    """What the model answered; an answer of this server can be sent back as it is."""

    content: Content | None = None
    reasoning_content: Annotated[str | None, Meta(description="Extension: the thinking before it.")] = None
    tool_calls: Annotated[list[Call], Meta(max_length=128)] | None = None
    name: NoName = None
    refusal: NoValue = None
    audio: NoValue = None
    function_call: NoValue = None
    annotations: Annotated[list[Any], Meta(max_length=0)] | None = None


class ToolMessage(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="role", tag="tool", forbid_unknown_fields=True
):
    """What a call gave."""

    content: Content
    tool_call_id: CallId
    name: Annotated[str | None, Meta(description="Not needed: the call has it.")] = None


ChatMessage = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage


def as_messages(sent: list[ChatMessage]) -> tuple[Message, ...]:
    """Return the messages as the engine takes them. Raises Refusal for results of no call."""
    made: set[str] = set()
    found = []
    for at, one in enumerate(sent):
        match one:
            case SystemMessage() | DeveloperMessage():
                found.append(Message("system", _text(one.content)))
            case UserMessage():
                found.append(Message("user", _text(one.content)))
            case AssistantMessage():
                calls = tuple(
                    ToolCall(call.id, call.function.name, call.function.arguments)
                    for call in one.tool_calls or ()
                )
                made |= {call.id for call in calls}
                if one.content is None and not calls and one.reasoning_content is None:
                    raise Refusal(
                        "An assistant's message has content or tool_calls.", param=f"messages[{at}]"
                    )
                thinking = one.reasoning_content or ""
                found.append(Message("assistant", _text(one.content or ""), thinking, calls))
            case ToolMessage():
                if one.tool_call_id not in made:
                    raise Refusal(
                        "A message of role tool answers a call of an assistant's message before it, by its "
                        "tool_call_id; there is no call of that id.",
                        param=f"messages[{at}].tool_call_id",
                    )
                found.append(Message("tool", _text(one.content), call_id=one.tool_call_id))
    return tuple(found)


def _text(content: str | list[TextPart]) -> str:
    return content if isinstance(content, str) else "\n".join(part.text for part in content)
