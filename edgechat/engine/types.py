"""Requests, replies and events: typed values without pickle or native types."""

from __future__ import annotations

from typing import Literal

import msgspec

from edgechat.base.errors import EdgechatError, by_name
from edgechat.base.images.image import Image
from edgechat.base.sound.sound import Sound
from edgechat.models.adapters.use import AdapterUse
from edgechat.native.buffers import Buffer

Role = Literal["system", "user", "assistant", "tool"]
FinishReason = Literal["stop", "length", "context", "cancelled", "tools"]
"""stop: the model ended the reply, or a stop string came; length: max_tokens; context: the cache is full;
tools: the model ended the reply, and calls tools."""
Overflow = Literal["window", "error"]
"""When a conversation outgrows the context: leave its oldest turns out, or reject it."""
Priority = Literal["interactive", "background"]
ToolChoice = Literal["auto", "required"]
"""auto: the model may call tools; required: it calls at least one."""
Effort = Literal["low", "medium", "high"]
"""How long a model thinks, if its template has such a switch."""
MediaFile = Image | Sound
"""What a message shows or plays to a model, besides its text."""


class ToolCall(msgspec.Struct, frozen=True):
    """A call by the model. `arguments` is a JSON object, as text, unless the model made a mistake."""

    id: str
    name: str
    arguments: str


class Tool(msgspec.Struct, frozen=True):
    """A function that a model may call."""

    name: str
    description: str = ""
    parameters: str = '{"type": "object", "properties": {}}'
    """A JSON schema, as text."""
    strict: bool = False
    """Enforce the schema also on calls that are not required."""


class Message(msgspec.Struct, frozen=True):
    """One message of a chat as the template gets it."""

    role: Role
    content: str
    thinking: str = ""
    calls: tuple[ToolCall, ...] = ()
    call_id: str = ""
    """Of a tool: the call that `content` is the result of."""
    media: tuple[MediaFile, ...] = ()
    """In the order of their places in `content`, see `edgechat.base.images.image.PLACE`."""


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling parameters, applied in llama.cpp's order: penalties, top-k, top-p, min-p, temperature."""

    temperature: float = 0.8
    """0 takes the likeliest token."""
    top_k: int = 40
    """0 turns the filter off, as do top_p 1, min_p 0, repetition_penalty 1 and the other penalties 0."""
    top_p: float = 0.95
    min_p: float = 0.05
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_window: int = 64
    """Number of preceding tokens, the prompt's included, that the penalties consider."""
    seed: int | None = None
    """None takes a new one each time."""
    bias: tuple[tuple[int, float], ...] = ()
    """Values that are added to the logits of some tokens, before everything else."""


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for one reply. The `id` is used once: late events of a cancelled request still carry it."""

    id: str
    messages: tuple[Message, ...] = ()
    text: str | tuple[int, ...] | None = None
    """A raw prompt instead of messages: no template, no thinking, no window."""
    suffix: str = ""
    """Text that follows: the reply fills in what belongs before it. `text` is then plain text, too."""
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = "auto"
    tool: str | None = None
    """Which of `tools` must be called if tool_choice is 'required'; None: any."""
    most_calls: int | None = None
    """The reply ends after so many calls; None: no limit."""
    schema: str | None = None
    """A JSON schema, as text, that the answer follows; '{"type": "object"}' is any JSON object."""
    logprobs: int | None = None
    """Report the logprob of each token of the answer, and of so many of the likeliest; None: neither."""
    sampling: Sampling = Sampling()
    adapters: tuple[AdapterUse, ...] = ()
    """LoRA adapters, applied together."""
    sampling_set: tuple[str, ...] | None = None
    """The fields of `sampling` that someone has set: a remote engine is sent these, and has its own defaults
    for the others. None: those that differ from ours."""
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    think: bool | None = None
    """Switch the model's thinking on or off; None leaves it to the template."""
    effort: Effort | None = None
    """How long to think; only for models that `has_effort`."""
    date: str | None = None
    """The date that the template prints (ISO); fixed per chat, so that its prefix survives midnight."""
    chat: str | None = None
    """The conversation, which is prewarmed and whose state is saved to disk. None: neither."""
    overflow: Overflow = "window"
    priority: Priority = "interactive"
    """Background requests are computed only while nothing else waits."""


class Usage(msgspec.Struct, frozen=True):
    """Tokens of one request. `cached_tokens` of the prompt were not computed again."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    dropped_turns: int = 0
    """Turns that the prompt left out because they do not fit the context."""
    shifted_tokens: int = 0
    """Cached tokens that were moved by a shift, and are approximate."""


class Timings(msgspec.Struct, frozen=True):
    """Of one request, measured in the worker. Rates are tokens per second, 0 if nothing was timed."""

    ttft_ms: float
    """From the request's arrival to its first token."""
    prompt_tps: float
    decode_tps: float
    """Of the tokens after the first step, which may bring several drafted ones."""


class SpeculationStats(msgspec.Struct, frozen=True, kw_only=True):
    """The drafts of one request."""

    drafted_tokens: int
    """Drafted tokens that were verified."""
    accepted_tokens: int
    mean_length: float
    """Mean tokens of a draft."""
    speedup: float
    """Speed relative to plain decoding at the same time, steps without a draft included."""


class Difference(msgspec.Struct, frozen=True):
    """A buffer whose size differs from the plan."""

    name: str
    """llama.cpp's name of its type."""
    what: Literal["weights", "cache", "compute"]
    planned: int
    """Bytes."""
    real: int


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The loaded model."""

    name: str
    architecture: str
    backend: str
    n_params: int
    context: int
    train_context: int
    can_switch_thinking: bool
    has_tools: bool = False
    """Whether its template has tools; other models are told in words what they may call."""
    has_effort: bool = False
    """Whether its template has a switch for how long to think."""
    sees: bool = False
    """Whether messages may have images."""
    hears: bool = False
    """Whether messages may have sounds."""
    no_vision: str = ""
    """Why it does neither, if it could with a projector that is here; else ''."""
    template: Literal["own", "chatml"]
    """chatml: the file has no template, so the most common one is used."""
    load_ms: float
    embedding: int = 0
    """Dimensions of an embedding, for embedding models, which cannot chat; 0 for others, 1 for scores."""
    memory_bytes: int = 0
    """Resident memory of the worker after the load."""
    buffers: tuple[Buffer, ...] = ()
    """What llama.cpp has allocated; empty if unknown."""
    differences: tuple[Difference, ...] = ()
    """Deviations of that from the plan."""
    drafters: tuple[str, ...] = ()
    """Its drafters: the name of a model, 'n-grams'."""
    no_draft: str = ""
    """Why there is no drafter, or a requested one is missing; else ''."""


class ErrorInfo(msgspec.Struct, frozen=True):
    """An error on the pipe: the name of its class, its message and its hint."""

    kind: str
    message: str
    hint: str | None = None

    @classmethod
    def of(cls, error: EdgechatError) -> ErrorInfo:
        """Convert an error for the pipe."""
        return cls(type(error).__name__, error.message, error.hint)

    def error(self) -> EdgechatError:
        """Return the error, of its original class."""
        return by_name(self.kind)(self.message, hint=self.hint)


# To the worker.


class CachePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What the worker does with a chat's cache after a reply."""

    settle: bool = True
    """Prewarm: compute in idle time what the next turn will begin with."""
    settle_on_battery: bool = True
    disk_bytes: int | None = None
    """Limit for the states of chats on disk; 0 saves none, None is 4 GiB or a tenth of what is free."""
    grammars: bool = False
    """Prepare for schemas while the model loads; else the first request with one waits for it, and for up to
    0.7 s all others, too."""


class Embed(msgspec.Struct, frozen=True, tag=True):
    """Compute an embedding of each text (or its tokens); only with an embedding model.

    Or, with a reranking model, the score of each text as an answer to a query.
    """

    request_id: str
    texts: tuple[str | tuple[int, ...], ...]
    cut: bool = False
    """Take what fits of a text that is too long, instead of refusing it."""
    query: str | None = None
    """For a reranking model; None for an embedding model."""


Translatable = str | tuple[int, ...] | ChatRequest
"""A text, tokens, or a chat, of which the prompt is meant."""


class Translate(msgspec.Struct, frozen=True, tag=True):
    """Tokenize a text or the prompt of a chat, or detokenize tokens."""

    request_id: str
    what: Translatable
    bos: bool = False
    """Put the beginning-of-sequence token in front, if the model wants one."""
    special: bool = False
    """Convert the texts of control tokens to control tokens."""


# From the worker.


class Dropped(msgspec.Struct, frozen=True, tag=True):
    """The chat's oldest turns (after the pinned ones) that are not sent because they do not fit."""

    request_id: str
    turns: int


class Prefill(msgspec.Struct, frozen=True, tag=True):
    """The prompt is being read: `done` of `total` tokens are in the cache, all of them in the last one.

    `cached` of them did not have to be computed.
    """

    request_id: str
    done: int
    total: int
    cached: int = 0


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Natural logarithms of the probabilities of a token and its alternatives, before any filter."""

    token: bytes
    logprob: float
    others: tuple[tuple[bytes, float], ...] = ()
    """The likeliest tokens in its place, itself included if it is one of them, the likeliest first."""


class Delta(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """More text: whole characters, never part of a stop string. `tokens`: of the reply so far."""

    request_id: str
    text: str
    thinking: bool
    tokens: int
    chances: tuple[TokenLogprobs, ...] = ()
    """Logprobs of the answer's tokens since the last Delta, if requested; `text` may be empty."""


class ToolCallBegun(msgspec.Struct, frozen=True, tag=True):
    """The beginning of a tool call; `call` has the arguments as far as they are known."""

    request_id: str
    call: ToolCall
    tokens: int


class ToolCallArguments(msgspec.Struct, frozen=True, tag=True):
    """More of the last call's arguments, which may be incomplete if the reply ends early."""

    request_id: str
    text: str
    tokens: int


class Finished(msgspec.Struct, frozen=True, tag=True):
    """The reply is complete."""

    request_id: str
    reason: FinishReason
    usage: Usage
    timings: Timings
    speculation: SpeculationStats | None = None
    """None if nothing was drafted."""
    stop_text: str | None = None
    """The stop string of the request that ended the reply, if one did."""


class Failed(msgspec.Struct, frozen=True, tag=True):
    """A request failed, or (with no request_id) the load did."""

    request_id: str | None
    error: ErrorInfo


class Persisted(msgspec.Struct, frozen=True, tag=True):
    """The answer to Persist."""

    chat: str | None


class Embedded(msgspec.Struct, frozen=True, tag=True):
    """The answer to Embed: a vector of length 1 (or 0) for each text, as little-endian 32-bit floats.

    To one with a query: a single number for each text, which is higher for better answers.
    """

    request_id: str
    vectors: tuple[bytes, ...]
    tokens: int
    """Of all texts together."""


class Translated(msgspec.Struct, frozen=True, tag=True):
    """The answer to Translate; `text` is the text of given tokens, else empty."""

    request_id: str
    tokens: tuple[int, ...]
    text: bytes


class Prewarmed(msgspec.Struct, frozen=True, tag=True):
    """Some time after Finished: the cache holds the `tokens` that the chat's next turn begins with.

    `computed` of them were not cached before.
    """

    request_id: str
    tokens: int
    computed: int


RequestEvent = Dropped | Prefill | Delta | ToolCallBegun | ToolCallArguments | Finished
"""Events of a request that a front end sees; Failed is raised as an exception."""
Event = RequestEvent | Failed | Persisted | Prewarmed | Embedded | Translated
