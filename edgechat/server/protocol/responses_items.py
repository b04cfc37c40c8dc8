"""The input to POST /v1/responses: messages, calls, results and thinking, including earlier answers."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Raw

from edgechat.engine.types import Message, ToolCall
from edgechat.server.media import UNREAD, Part, image_at, message_of, sound_of
from edgechat.server.protocol.body import Echoed, decode, kind_of, no_effect
from edgechat.server.refusal import Refusal

JOINT = "__"
"""Separator between the namespace and the function in the name that the model sees."""
_OPAQUE = "edgechat:"
"""Prefix of `encrypted_content`, which is only base64: it just has to be opaque to clients."""
CallId = Annotated[str, Meta(min_length=1, max_length=128)]


class ItemAudio(msgspec.Struct, frozen=True, kw_only=True):
    """An audio clip, as in chat completions."""

    data: Annotated[str, Meta(description="Base64 of a WAV, MP3 or FLAC file, up to half an hour.")]
    format: Literal["wav", "mp3", "flac"]


class ItemPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a message or a result: text, an image (input_image) or an audio clip (input_audio)."""

    type: str
    text: str | None = None
    image_url: Annotated[
        str | None,
        Meta(
            description="A data URL with base64; or an http(s) URL, which `edgechat serve --fetch-images` "
            "fetches."
        ),
    ] = None
    detail: Annotated[str | None, no_effect("Ignored: each model has its own resolution.", "auto")] = None
    input_audio: ItemAudio | None = None
    refusal: str | None = None
    annotations: Echoed = None
    logprobs: Echoed = None


Parts = str | Annotated[list[ItemPart], Meta(max_length=1024)]


class MessageItem(msgspec.Struct, frozen=True, kw_only=True):
    """A message with any role. Text parts can be of several types. Only users can send images and audio."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Parts
    id: Echoed = None
    status: Echoed = None
    phase: Echoed = None


class CallItem(msgspec.Struct, frozen=True, kw_only=True):
    """A function call or, if it has an `input`, a custom tool call."""

    type: Literal["function_call", "custom_tool_call"]
    call_id: CallId
    name: Annotated[str, Meta(max_length=256)]
    namespace: Annotated[str, Meta(max_length=256)] | None = None
    arguments: str | None = None
    input: str = ""
    id: Echoed = None
    status: Echoed = None

    @property
    def call(self) -> ToolCall:
        """The call, in the form that the engine expects."""
        name = f"{self.namespace}{JOINT}{self.name}" if self.namespace else self.name
        if self.type == "function_call":
            return ToolCall(self.call_id, name, self.arguments or "{}")
        return ToolCall(self.call_id, name, msgspec.json.encode({"input": self.input}).decode())


class CallOutputItem(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a call."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: CallId
    output: Parts | None
    id: Echoed = None
    status: Echoed = None


class ReasoningText(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of thinking."""

    text: str
    type: str = "reasoning_text"


class ReasoningItem(msgspec.Struct, frozen=True, kw_only=True):
    """The thinking before an answer or a call."""

    type: Literal["reasoning"]
    content: list[ReasoningText] | None = None
    encrypted_content: str | None = None
    summary: Echoed = None
    id: Echoed = None
    status: Echoed = None

    @property
    def thought(self) -> str:
        """The thinking that the client sent back, or ''."""
        if self.content:
            return "".join(part.text for part in self.content)
        return opened(self.encrypted_content or "")


class ReferenceItem(msgspec.Struct, frozen=True, kw_only=True):
    """A reference to an item of a stored response."""

    type: Literal["item_reference"]
    id: Annotated[str, Meta(max_length=256)]


@dataclass(frozen=True, slots=True)
class Earlier:
    """Items from earlier responses that a request refers to."""

    items: tuple[Raw, ...] = ()
    """Items in the conversation that the request continues."""
    referenced: Mapping[str, Raw] = field(default_factory=dict)
    """Items that the input refers to, keyed by id."""

    @property
    def size(self) -> int:
        """The total size of the items, in bytes."""
        return sum(len(bytes(item)) for item in (*self.items, *self.referenced.values()))


NOTHING: Final = Earlier()
_KINDS: dict[str, type[MessageItem | CallItem | CallOutputItem | ReasoningItem]] = {
    "message": MessageItem,
    "function_call": CallItem,
    "custom_tool_call": CallItem,
    "function_call_output": CallOutputItem,
    "custom_tool_call_output": CallOutputItem,
    "reasoning": ReasoningItem,
}
_REFERENCE = "item_reference"
_TEXTS = ("input_text", "output_text", "text", "refusal")


def sealed(thought: str) -> str:
    """Encode thinking as `encrypted_content`, for agents that send back this field instead of the text."""
    return _OPAQUE + base64.b64encode(thought.encode()).decode()


def opened(sent: str) -> str:
    """Decode the thinking in an `encrypted_content` field, or return '' if another server created it."""
    if not sent.startswith(_OPAQUE):
        return ""
    try:
        return base64.b64decode(sent.removeprefix(_OPAQUE), validate=True).decode()
    except (binascii.Error, ValueError):
        return ""


def ignored_items(sent: str | Sequence[Raw]) -> list[str]:
    """Return the paths of ignored items, such as searches by a hosted service."""
    items = [] if isinstance(sent, str) else sent
    return [f"input[{at}]" for at, item in enumerate(items) if _kind(item, at) not in (*_KINDS, _REFERENCE)]


def references_of(sent: str | Sequence[Raw]) -> dict[str, str]:
    """Return the ids of the stored items that an input refers to, keyed by the path of each reference."""
    items = [] if isinstance(sent, str) else sent
    paths = {f"input[{at}]": item for at, item in enumerate(items) if _kind(item, at) == _REFERENCE}
    return {where: decode(item, ReferenceItem, where).id for where, item in paths.items()}


def items_of(sent: str | Sequence[Raw], earlier: Earlier) -> list[Raw]:
    """Return the items in an input, with each reference replaced by the item it refers to."""
    if isinstance(sent, str):
        return [Raw(msgspec.json.encode({"type": "message", "role": "user", "content": sent}))]
    return [
        earlier.referenced[decode(item, ReferenceItem).id] if _kind(item, at) == _REFERENCE else item
        for at, item in enumerate(sent)
    ]


def messages_of(
    instructions: str | None, sent: str | Sequence[Raw], earlier: Earlier = NOTHING
) -> tuple[Message, ...]:
    """Return the messages for the engine: the conversation that the input continues, then the input.

    Consecutive thinking, text and calls are merged into one message. So are the instructions and the first
    system and developer messages, because many templates accept only one system message. Raises Refusal.
    """
    found: list[Message] = []
    system = [instructions] if instructions else []
    made: set[str] = set()
    for where, item in _located(sent, earlier):
        kind = kind_of(item, where) or "message"
        if kind in _KINDS:
            _add(found, decode(item, _KINDS[kind], where), where, made, system)
    return (*([Message("system", "\n\n".join(system))] if system else []), *found)


def _located(sent: str | Sequence[Raw], earlier: Earlier) -> Iterator[tuple[str, Raw]]:
    """Yield all items in a conversation, each with its path."""
    yield from (("previous_response_id", item) for item in earlier.items)
    yield from ((f"input[{at}]", item) for at, item in enumerate(items_of(sent, earlier)))


def _kind(item: Raw, at: int) -> str:
    return kind_of(item, f"input[{at}]") or "message"


def _add(
    found: list[Message],
    item: MessageItem | CallItem | CallOutputItem | ReasoningItem,
    where: str,
    made: set[str],
    system: list[str],
) -> None:
    """Add an item to the messages in `found`, or to the leading system texts in `system`."""
    last = found[-1] if found and found[-1].role == "assistant" else None
    match item:
        case MessageItem(role="assistant"):
            text = _text(item.content, f"{where}.content")
            if last is not None and not last.content and not last.calls:
                found[-1] = msgspec.structs.replace(last, content=text)
            else:
                found.append(Message("assistant", text))
        case MessageItem(role="user"):
            found.append(message_of("user", _parts(item.content, f"{where}.content", media=True)))
        case MessageItem():
            text = _text(item.content, f"{where}.content")
            if found:
                found.append(Message("system", text))
            else:
                system.append(text)
        case CallItem():
            made.add(item.call_id)
            call = item.call
            if last is not None:
                found[-1] = msgspec.structs.replace(last, calls=(*last.calls, call))
            else:
                found.append(Message("assistant", "", calls=(call,)))
        case CallOutputItem():
            if item.call_id not in made:
                raise Refusal(
                    "The result of a call must have the call_id of an earlier call; no call has this one.",
                    param=f"{where}.call_id",
                )
            parts = _parts(item.output or "", f"{where}.output", media=True, unread=UNREAD)
            found.append(message_of("tool", parts, call_id=item.call_id))
        case ReasoningItem():
            if item.thought:
                found.append(Message("assistant", "", item.thought))


def _text(content: Parts, where: str) -> str:
    return message_of("user", _parts(content, where)).content


def _parts(content: Parts, where: str, *, media: bool = False, unread: str | None = None) -> Iterator[Part]:
    """Yield the parts of a message.

    media: allow images and audio. unread: text that replaces other parts; if None, other parts are refused.
    """
    if isinstance(content, str):
        yield content
        return
    for at, part in enumerate(content):
        text = part.refusal if part.type == "refusal" else part.text
        if part.type in _TEXTS and text is not None:
            yield text
        elif media and part.type == "input_image" and part.image_url is not None:
            yield image_at(part.image_url, f"{where}[{at}].image_url")
        elif media and part.type == "input_audio" and part.input_audio is not None:
            yield sound_of(part.input_audio.data, f"{where}[{at}].input_audio")
        elif unread is not None:
            yield unread
        else:
            raise Refusal(
                f"{where}[{at}]: only text is supported, plus images and audio in user messages; files "
                "are not.",
                param=f"{where}[{at}]",
                code="invalid_value",
            )
