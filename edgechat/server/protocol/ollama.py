"""Ollama's API: requests and answers for /api/chat, /api/generate, /api/embed and /api/embeddings."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from edgechat.engine.tool_calls.tools import check_tools
from edgechat.engine.types import (
    ChatRequest,
    Embedded,
    Finished,
    Message,
    Sampling,
    ToolCall,
)
from edgechat.server.documents import AskedDocuments, Docs, SourceBody, asked_documents
from edgechat.server.media import Part, image_of, message_of
from edgechat.server.pool.models import ServedModel
from edgechat.server.protocol.answers import (
    AnswerBlock,
    Answers,
    BlockEnded,
    BlockGrown,
    Change,
    TokenLogprob,
    in_one_line,
    logprob_of,
)
from edgechat.server.protocol.body import no_effect
from edgechat.server.protocol.fields import (
    Factor,
    Model,
    Others,
    Penalty,
    SchemaText,
    Seed,
    Stop,
    Whole,
    answer_schema,
    arguments_object,
    errors_about,
    seed_of,
    stops_of,
    tool_of,
    vector_json,
)
from edgechat.server.refusal import Refusal, ollama_error
from edgechat.settings import SamplingDefaults

Images = Annotated[
    Annotated[list[str], Meta(max_length=256)] | None,
    Meta(description="Image files in base64, for models that can see; they come before the text."),
]
_AT_ONCE = (0, "0", "0s", "0m", "0h")
KeepAlive = Annotated[
    str | float | None,
    no_effect(
        "0 unloads the model once all its answers are complete. "
        "Other values are ignored: settings.toml sets when an idle model is unloaded.",
        *_AT_ONCE,
    ),
]
Thinking = Annotated[
    bool | Literal["low", "medium", "high", "max"] | None,
    Meta(description="Whether to think, or how long. Models that cannot turn it on or off behave as usual."),
]
_MOST_TOKENS = 2**31 - 1


def unloads(keep_alive: str | float | None) -> bool:
    """Return True if the client asks to unload the model after its last answer, as `ollama stop` does."""
    return keep_alive in _AT_ONCE


def model_of(sent: str | None) -> str:
    """Return a model's name without the default tag that Ollama's clients append."""
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
    """The function and arguments of an earlier call."""

    name: str
    arguments: Annotated[Raw, Meta(extra_json_schema={"type": ["object", "null"]})] | UnsetType = UNSET

    def __post_init__(self) -> None:
        if self.text != "null" and not self.text.lstrip().startswith("{"):
            raise ValueError("The arguments of a call must be an object")

    @property
    def text(self) -> str:
        """The arguments as JSON, or 'null' if there are none."""
        return "null" if isinstance(self.arguments, UnsetType) else bytes(self.arguments).decode()


class CallBefore(msgspec.Struct, frozen=True, kw_only=True):
    """An earlier call by the model."""

    function: CalledBefore
    id: str | None = None


class OllamaMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message in a chat."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    images: Images = None
    tool_calls: Annotated[list[CallBefore], Meta(max_length=128)] | None = None
    tool_name: Annotated[str | None, Meta(description="For a result: the function that was called.")] = None
    tool_call_id: str | None = None


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Generation options. Options that affect how a model is loaded are ignored."""

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
        int | None, no_effect("Ignored: `edgechat serve --ctx` sets the context of models.")
    ] = None

    def sampling(self, defaults: SamplingDefaults) -> Sampling:
        """Return the sampling options."""
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
    def most_tokens(self) -> int | None:
        """Maximum number of tokens, or None for as many as the context holds."""
        if self.num_predict is None or self.num_predict <= 0:
            return None
        return min(max(1, int(self.num_predict)), _MOST_TOKENS)


class OllamaBody(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that chats and plain generation have in common."""

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

    def _request(self, **fields: Any) -> ChatRequest:
        """Return the request to the engine, without the parts that depend on the model. Raises Refusal."""
        options = self.options or Options()
        return ChatRequest(
            id="",
            schema=self._schema(),
            logprobs=int(self.top_logprobs or 0) if self.logprobs else None,
            max_tokens=options.most_tokens,
            stop=stops_of(options.stop),
            think=self.think if isinstance(self.think, bool) else None,
            **fields,
        )

    def _schema(self) -> str | None:
        sent = b"" if self.format is UNSET else bytes(self.format).strip()
        if sent in (b"", b"null", b'""'):
            return None
        if sent == b'"json"':
            return answer_schema(None, "format")
        return answer_schema(Raw(sent), "format")


class OllamaChatBody(OllamaBody, frozen=True, kw_only=True):
    """The body of /api/chat."""

    messages: Annotated[list[OllamaMessage], Meta(max_length=4096)] = []
    tools: Annotated[list[OllamaTool], Meta(max_length=128)] | None = None
    docs: Docs = None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to answer, because the client only wants to load or unload the model."""
        return not self.messages

    def engine_request(self) -> ChatRequest:
        """Return the request to the engine, without the parts that depend on the model. Raises Refusal."""
        with errors_about("tools"):
            functions = [tool.function for tool in self.tools or ()]
            tools = tuple(tool_of(one.name, one.description, one.parameters) for one in functions)
            check_tools(tools)
        messages = _messages_of(self.messages)
        return self._request(messages=messages, tools=tools, overflow="window")


class GenerateBody(OllamaBody, frozen=True, kw_only=True):
    """The body of /api/generate.

    The prompt becomes the first message of a chat, unless `raw` is true or there is a `suffix`.
    """

    prompt: str = ""
    suffix: str | None = None
    system: str | None = None
    raw: Annotated[
        bool | None, Meta(description="The prompt is text to continue; no chat template is applied.")
    ] = None
    images: Images = None
    template: Annotated[str | None, no_effect("Ignored: a model has its own template.")] = None
    context: Annotated[list[int] | None, no_effect("Ignored: common prefixes are found without it.")] = None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to answer, because the client only wants to load or unload the model."""
        return not (self.prompt or self.suffix or self.images)

    def engine_request(self) -> ChatRequest:
        """Return the request to the engine, without the parts that depend on the model. Raises Refusal."""
        if self.raw or self.suffix:
            if self.images:
                raise Refusal("Only chat prompts can have images: omit raw and suffix.", param="images")
            return self._request(text=self.prompt, suffix=self.suffix or "", overflow="error")
        system = (Message("system", self.system),) if self.system else ()
        messages = (*system, message_of("user", _parts(self.prompt, self.images, "images")))
        return self._request(messages=messages, overflow="window")


def _messages_of(sent: Sequence[OllamaMessage]) -> tuple[Message, ...]:
    """Return the messages for the engine. Raises Refusal for a result without a call.

    Calls do not need ids: a result is matched to its function's first call that has no result yet.
    """
    found: list[Message] = []
    waiting: dict[str, str] = {}
    """Names of the calls that have no result yet, keyed by id."""
    for at, message in enumerate(sent):
        text = message.content or ""
        if message.images and message.role in ("system", "assistant"):
            raise Refusal("Only user and tool messages can have images.", param=f"messages[{at}]")
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
    """Return the parts of a message: images first, then text."""
    return [*(image_of(sent, f"{at}[{number}]") for number, sent in enumerate(images or ())), text]


def _call_of(message: OllamaMessage, at: int, waiting: dict[str, str]) -> str:
    """Return the id of the call that a result belongs to, and remove the call from `waiting`."""
    named = (id for id, name in waiting.items() if message.tool_name in (None, name))
    found = message.tool_call_id if message.tool_call_id in waiting else next(named, None)
    if found is None:
        raise Refusal(
            "A message with role tool must follow a call; no call that needs a result matches it.",
            param=f"messages[{at}]",
        )
    del waiting[found]
    return found


_MOST_EMBEDDED = 2048
_VECTOR: dict[str, Any] = {"type": "array", "items": {"type": "number"}}


class EmbedBody(msgspec.Struct, frozen=True, kw_only=True):
    """Texts to embed."""

    model: Model = None
    input: str | Annotated[list[str], Meta(min_length=1, max_length=_MOST_EMBEDDED)]
    truncate: Annotated[
        bool | None,
        Meta(description="Shorten texts that are too long; otherwise, they are refused."),
    ] = None
    dimensions: Annotated[
        int | None, Meta(description="Only the model's own number of dimensions is accepted.")
    ] = None
    options: Options | None = None
    keep_alive: KeepAlive = None

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts. Raises Refusal if one is empty."""
        texts = (self.input,) if isinstance(self.input, str) else tuple(self.input)
        if not all(texts):
            raise Refusal("An empty text has no embedding.", param="input")
        return texts


class EmbedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The embeddings, in the same order as the texts. Durations are in nanoseconds."""

    model: str
    embeddings: Annotated[list[Raw], Meta(extra_json_schema={"items": _VECTOR})]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class EmbeddingsBody(msgspec.Struct, frozen=True, kw_only=True):
    """A text to embed, in the format of older clients."""

    model: Model = None
    prompt: str
    options: Options | None = None
    keep_alive: KeepAlive = None


class EmbeddingsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The embedding of a text, or [] if the text is empty."""

    embedding: Annotated[Raw, Meta(extra_json_schema=_VECTOR)]


def embed_answer(model: str, embedded: Embedded, *, total: float, load: float) -> bytes:
    """Return the answer as JSON. Call it in a thread, because encoding many vectors takes a second.

    total, load: durations in seconds.
    """
    return msgspec.json.encode(
        EmbedAnswer(
            model=model,
            embeddings=[vector_json(vector) for vector in embedded.vectors],
            total_duration=int(total * 1e9),
            load_duration=int(load * 1e9),
            prompt_eval_count=embedded.tokens,
        )
    )


DoneReason = Literal["stop", "length", "load", "unload"]
_REASONS: dict[str, DoneReason] = {"stop": "stop", "length": "length", "context": "length", "tools": "stop"}
_NANOSECONDS = 1e9


class OllamaCalled(msgspec.Struct, frozen=True, kw_only=True):
    """The function to call, and its arguments as a JSON object."""

    name: str
    arguments: Raw
    index: int


class OllamaCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call."""

    id: str
    function: OllamaCalled


class OllamaAnswerMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The model's message, or the new part of it."""

    role: Literal["assistant"] = "assistant"
    content: str
    thinking: str | UnsetType = UNSET
    tool_calls: list[OllamaCall] | UnsetType = UNSET


class OllamaLine(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that all answers have in common.

    Durations are in nanoseconds. Only the last line has durations and counts.
    """

    model: str
    created_at: str
    done: bool
    done_reason: DoneReason | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET
    logprobs: list[TokenLogprob] | UnsetType = UNSET


class OllamaChatLine(OllamaLine, frozen=True, kw_only=True):
    """An answer in a chat, or a line of its stream."""

    message: OllamaAnswerMessage
    sources: list[SourceBody] | UnsetType = UNSET
    """Extension, in the last line: the sources of the passages that the model was given."""


class GenerateLine(OllamaLine, frozen=True, kw_only=True):
    """Generated text: the whole answer, or one line of a streamed answer."""

    response: str
    thinking: str | UnsetType = UNSET


class OllamaAnswers(Answers):
    """The answer to one request, as a whole or line by line."""

    stream_type = "application/x-ndjson"
    id_prefix = "olla-"

    def __init__(
        self,
        body: OllamaChatBody | GenerateBody,
        asked: ChatRequest,
        think: bool | None,
        documents: AskedDocuments | None = None,
    ) -> None:
        """think: the default from the settings. Raises Refusal."""
        if body.top_logprobs and not body.logprobs:
            raise Refusal("top_logprobs requires logprobs: true.", param="top_logprobs")
        super().__init__(
            asked,
            model=model_of(body.model),
            streams=body.stream is not False,
            think=think,
            effort=body.think if isinstance(body.think, str) else None,
            documents=documents,
        )
        self.body = body
        self._began = time.monotonic()
        self._loaded = self._began

    def request(self, served: ServedModel, choice: int) -> ChatRequest:
        """Return the request to the engine."""
        self._loaded = time.monotonic()
        return super().request(served, choice)

    def _sampling(self, defaults: SamplingDefaults, choice: int) -> Sampling:
        return (self.body.options or Options()).sampling(defaults)

    def whole(self) -> bytes:
        """Return the answer as JSON."""
        [reply] = self._replies
        calls = [_called(block) for block in reply.blocks if block.kind == "call"]
        logprobs = list(map(logprob_of, reply.chances)) if self.body.logprobs else UNSET
        line = self._line(reply.text, reply.thinking, calls, end=reply.end, logprobs=logprobs)
        return msgspec.json.encode(line)

    def empty(self, reason: Literal["load", "unload"]) -> bytes:
        """Return the answer to a request that only loads or unloads the model."""
        line = msgspec.structs.replace(self._line(""), done=True, done_reason=reason)
        return msgspec.json.encode(line)

    def waiting(self) -> bytes:
        """Return nothing: the format has no keep-alive line that clients would ignore."""
        return b""

    def failure(self, refusal: Refusal) -> bytes:
        """Return an error as the last line."""
        return in_one_line(ollama_error(refusal)) + b"\n"

    def _begin(self) -> bytes:
        return b""

    def _encode(self, choice: int, change: Change) -> bytes:
        match change:
            case BlockGrown(block=block, text=text, chances=chances) if block.kind != "call":
                words = ("", text) if block.kind == "thinking" else (text, "")
                line = self._line(*words, logprobs=list(map(logprob_of, chances)) or UNSET)
            case BlockEnded(block=block) if block.kind == "call":
                line = self._line("", calls=[_called(block)])  # arguments are sent whole, as an object
            case Finished():
                line = self._line("", end=change)
            case _:
                return b""
        return in_one_line(msgspec.json.encode(line)) + b"\n"

    def _line(
        self,
        text: str,
        thought: str = "",
        calls: list[OllamaCall] | None = None,
        *,
        end: Finished | None = None,
        logprobs: list[TokenLogprob] | UnsetType = UNSET,
    ) -> OllamaLine:
        """Return a line. end: how the answer ended, if this is its last line."""
        about = self._about(end) | {"logprobs": logprobs}
        message = OllamaAnswerMessage(content=text, thinking=thought or UNSET, tool_calls=calls or UNSET)
        return self._line_of(message, about)

    @abstractmethod
    def _line_of(self, message: OllamaAnswerMessage, about: dict[str, Any]) -> OllamaLine:
        """Return a line in the format of this answer. about: the fields that all formats have in common."""

    def _about(self, end: Finished | None) -> dict[str, Any]:
        now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        about: dict[str, Any] = {"model": self.model, "created_at": now, "done": end is not None}
        if end is None:
            return about
        usage, timings = end.usage, end.timings
        computed = usage.prompt_tokens - usage.cached_tokens
        return about | {
            "done_reason": _REASONS[end.reason],
            "total_duration": int((time.monotonic() - self._began) * _NANOSECONDS),
            "load_duration": int((self._loaded - self._began) * _NANOSECONDS),
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": _duration(computed, timings.prompt_tps),
            "eval_count": usage.completion_tokens,
            "eval_duration": _duration(usage.completion_tokens, timings.decode_tps),
        }


class OllamaChatAnswers(OllamaAnswers):
    """The answer in a chat."""

    def __init__(self, body: OllamaChatBody, think: bool | None) -> None:
        """Raises Refusal if the request is not valid."""
        super().__init__(body, body.engine_request(), think, asked_documents(body.docs))

    def _line_of(self, message: OllamaAnswerMessage, about: dict[str, Any]) -> OllamaChatLine:
        sources = self._sources if about["done"] else UNSET
        return OllamaChatLine(message=message, sources=sources, **about)


class GenerateAnswers(OllamaAnswers):
    """The answer to a prompt."""

    def __init__(self, body: GenerateBody, think: bool | None) -> None:
        """Raises Refusal if the request is not valid."""
        super().__init__(body, body.engine_request(), think)

    def _line_of(self, message: OllamaAnswerMessage, about: dict[str, Any]) -> GenerateLine:
        return GenerateLine(response=message.content, thinking=message.thinking, **about)


def _called(block: AnswerBlock) -> OllamaCall:
    assert block.call is not None
    arguments = arguments_object(block.text)
    called = OllamaCalled(name=block.call.name, arguments=arguments, index=block.number)
    return OllamaCall(id=block.call.id, function=called)


def _duration(tokens: int, rate: float) -> int:
    """Return how long generating or reading tokens took, in nanoseconds. rate: tokens per second."""
    return int(tokens / rate * _NANOSECONDS) if rate > 0 else 0
