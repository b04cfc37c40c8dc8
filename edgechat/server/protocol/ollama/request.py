"""The bodies of POST /api/chat and /api/generate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from edgechat.engine.tool_calls.tools import check_tools
from edgechat.engine.types import ChatRequest, Message, Sampling, ToolCall
from edgechat.server.documents import Docs
from edgechat.server.media import Part, image_of, message_of
from edgechat.server.protocol.openai.generation import (
    Factor,
    Model,
    Others,
    Penalty,
    Seed,
    Stop,
    Whole,
    seed_of,
)
from edgechat.server.protocol.schemas import SchemaText, answer_schema, errors_about, tool_of
from edgechat.server.protocol.strictness import no_effect
from edgechat.server.refusal import Refusal
from edgechat.settings import SamplingDefaults

Images = Annotated[
    Annotated[list[str], Meta(max_length=256)] | None,
    Meta(description="Image files in base64, for models that can see; they come before the text."),
]
_AT_ONCE = (0, "0", "0s", "0m", "0h")
KeepAlive = Annotated[
    str | float | None,
    no_effect(
        "0 unloads the model once all answers that it writes are complete. "
        "Otherwise ignored: settings.toml says after how long a model is unloaded.",
        *_AT_ONCE,
    ),
]
Thinking = Annotated[
    bool | Literal["low", "medium", "high", "max"] | None,
    Meta(description="Whether to think, or how long. Models that cannot switch it do as they are used to."),
]
_MOST_TOKENS = 2**31 - 1
_SCHEMA_OF_TEXT = b'"json"'


def unloads(keep_alive: str | float | None) -> bool:
    """Return whether a model is to be unloaded once nothing is left to answer, as `ollama stop` asks for."""
    return keep_alive in _AT_ONCE


def model_of(sent: str | None) -> str:
    """Return the name of a model without the tag that Ollama's clients add where there is none."""
    return (sent or "").removesuffix(":latest")


class OllamaFunction(msgspec.Struct, frozen=True, kw_only=True):
    """A function; `parameters` is a JSON schema."""

    name: str
    description: str | None = None
    parameters: SchemaText | UnsetType = UNSET


class OllamaTool(msgspec.Struct, frozen=True, kw_only=True):
    """A function that the model can call."""

    type: str = "function"
    function: OllamaFunction


class CalledBefore(msgspec.Struct, frozen=True, kw_only=True):
    """The function of an earlier call."""

    name: str
    arguments: Annotated[Raw, Meta(extra_json_schema={"type": ["object", "null"]})] | UnsetType = UNSET

    def __post_init__(self) -> None:
        if self.text != "null" and not self.text.lstrip().startswith("{"):
            raise ValueError("The arguments of a call are an object")

    @property
    def text(self) -> str:
        """The arguments; 'null' for none."""
        return "null" if isinstance(self.arguments, UnsetType) else bytes(self.arguments).decode()


class CallBefore(msgspec.Struct, frozen=True, kw_only=True):
    """An earlier call of the model."""

    function: CalledBefore
    id: str | None = None


class OllamaMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a chat."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    images: Images = None
    tool_calls: Annotated[list[CallBefore], Meta(max_length=128)] | None = None
    tool_name: Annotated[str | None, Meta(description="Of a result: the function that was called.")] = None
    tool_call_id: str | None = None


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How text is generated; options of how a model is loaded are ignored."""

    temperature: Annotated[float, Meta(ge=0, le=5)] | None = None
    top_k: Whole | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repeat_penalty: Factor | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    seed: Seed | None = None
    stop: Stop | Annotated[list[Stop], Meta(max_length=16)] | None = None
    num_predict: Annotated[
        float | None, Meta(description="End after this many tokens; negative: when the context is full.")
    ] = None
    num_ctx: Annotated[
        int | None, no_effect("Ignored: `edgechat serve --ctx` says with which context models are loaded.")
    ] = None

    def sampling(self, defaults: SamplingDefaults) -> Sampling:
        """Return how tokens are chosen."""
        sent = SamplingDefaults(
            temperature=self.temperature,
            top_k=None if self.top_k is None else int(self.top_k),
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repeat_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
        )
        return Sampling(**sent.over(defaults).given(), seed=seed_of(self.seed))

    @property
    def stops(self) -> tuple[str, ...]:
        """The texts before which the answer ends."""
        sent = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(stop for stop in sent if stop)

    @property
    def most_tokens(self) -> int | None:
        """After how many tokens to end; None: when the context is full."""
        if self.num_predict is None or self.num_predict <= 0:
            return None
        return min(max(1, int(self.num_predict)), _MOST_TOKENS)


class OllamaBody(msgspec.Struct, frozen=True, kw_only=True):
    """What chats and plain generation have in common."""

    model: Model = None
    stream: Annotated[bool | None, Meta(description="Send the text as it is generated; the default.")] = None
    format: Annotated[
        Raw | UnsetType,
        Meta(
            description='"json": any JSON object; or a JSON schema.',
            extra_json_schema={"type": ["string", "object", "null"]},
        ),
    ] = UNSET
    options: Options | None = None
    think: Thinking = None
    keep_alive: KeepAlive = None
    logprobs: Annotated[bool | None, Meta(description="Return the logprobs of the answer's tokens.")] = None
    top_logprobs: Annotated[
        Others | None,
        Meta(description="... and of this many alternatives for each; requires logprobs."),
    ] = None

    @property
    def most_others(self) -> int | None:
        """How many alternatives of each token to tell; None: no logprobs."""
        return int(self.top_logprobs or 0) if self.logprobs else None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to answer: clients send that to load a model, or to unload it."""
        raise NotImplementedError

    @property
    def schema(self) -> str | None:
        """The schema of the answer. Raises Refusal."""
        sent = b"" if self.format is UNSET else bytes(self.format).strip()
        if sent in (b"", b"null", b'""'):
            return None
        if sent == _SCHEMA_OF_TEXT:
            return answer_schema(None, "format")
        return answer_schema(Raw(sent), "format")


class OllamaChatBody(OllamaBody, frozen=True, kw_only=True):
    """A chat."""

    messages: Annotated[list[OllamaMessage], Meta(max_length=4096)] = []
    tools: Annotated[list[OllamaTool], Meta(max_length=128)] | None = None
    docs: Docs = None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to answer."""
        return not self.messages

    def asked(self) -> ChatRequest:
        """Return what the engine is asked, but for what depends on the model. Raises Refusal."""
        with errors_about("tools"):
            functions = [tool.function for tool in self.tools or ()]
            tools = tuple(tool_of(one.name, one.description, one.parameters) for one in functions)
            check_tools(tools)
        messages = _messages_of(self.messages)
        return ChatRequest(id="", messages=messages, tools=tools, schema=self.schema, overflow="window")


class GenerateBody(OllamaBody, frozen=True, kw_only=True):
    """A prompt, which is the first message of a chat unless `raw` is true or it has a `suffix`."""

    prompt: str = ""
    suffix: str | None = None
    system: str | None = None
    raw: Annotated[bool | None, Meta(description="The prompt is text to continue, as it is.")] = None
    images: Images = None
    template: Annotated[str | None, no_effect("Ignored: a model has its own template.")] = None
    context: Annotated[list[int] | None, no_effect("Ignored: common prefixes are found without it.")] = None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to answer."""
        return not (self.prompt or self.suffix or self.images)

    @property
    def is_raw(self) -> bool:
        """Whether the prompt is text to continue."""
        return bool(self.raw or self.suffix)

    def asked(self) -> ChatRequest:
        """Return what the engine is asked, but for what depends on the model. Raises Refusal."""
        if self.is_raw:
            if self.images:
                raise Refusal("Only prompts of a chat can have images: omit raw and suffix.", param="images")
            return ChatRequest(
                id="", text=self.prompt, suffix=self.suffix or "", schema=self.schema, overflow="error"
            )
        system = (Message("system", self.system),) if self.system else ()
        messages = (*system, message_of("user", _parts(self.prompt, self.images, "images")))
        return ChatRequest(id="", messages=messages, schema=self.schema, overflow="window")


def _messages_of(sent: Sequence[OllamaMessage]) -> tuple[Message, ...]:
    """Return a chat as the engine takes it. Raises Refusal for results of no call.

    Calls need no ids here: a result belongs to the first call of its name that has none yet.
    """
    found: list[Message] = []
    waiting: dict[str, str] = {}
    """The calls without a result: their names, by id."""
    for at, message in enumerate(sent):
        text = message.content or ""
        if message.images and message.role in ("system", "assistant"):
            raise Refusal("Only messages of the user and of tools can have images.", param=f"messages[{at}]")
        if message.role == "assistant":
            calls = tuple(
                ToolCall(call.id or f"call_{at}_{number}", call.function.name, call.function.text)
                for number, call in enumerate(message.tool_calls or ())
            )
            waiting |= {call.id: call.name for call in calls}
            found.append(Message("assistant", text, message.thinking or "", calls))
        elif message.role == "tool":
            parts = _parts(text, message.images, f"messages[{at}].images")
            found.append(message_of("tool", parts, call_id=_call_of(message, at, waiting)))
        else:
            parts = _parts(text, message.images, f"messages[{at}].images")
            found.append(message_of(message.role, parts))
    return tuple(found)


def _parts(text: str, images: Sequence[str] | None, at: str) -> list[Part]:
    """Return the parts of a message: images, then text."""
    return [*(image_of(sent, f"{at}[{number}]") for number, sent in enumerate(images or ())), text]


def _call_of(message: OllamaMessage, at: int, waiting: dict[str, str]) -> str:
    """Return the id of the call that a message is the result of, which waits no longer."""
    named = (id for id, name in waiting.items() if message.tool_name in (None, name))
    found = message.tool_call_id if message.tool_call_id in waiting else next(named, None)
    if found is None:
        raise Refusal(
            "A message with role tool must follow a call; no call without a result fits it.",
            param=f"messages[{at}]",
        )
    del waiting[found]
    return found
