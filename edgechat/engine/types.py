"""Requests, replies and events: typed values, serialized without pickle and free of native types."""

from __future__ import annotations

from typing import Literal

import msgspec

from edgechat.base.errors import EdgechatError, by_name
from edgechat.base.images.image import Image
from edgechat.base.sound.sound import Sound
from edgechat.native.params import AdapterUse, Buffer

Role = Literal["system", "user", "assistant", "tool"]
FinishReason = Literal["stop", "length", "context", "cancelled", "tools"]
"""stop: the model ended the reply, or a stop string occurred. length: `max_tokens` was reached. context: the
cache is full. tools: the model ended the reply by calling tools.
"""
Overflow = Literal["window", "error"]
"""What to do when a conversation outgrows the context: leave out its oldest turns, or reject it."""
Priority = Literal["interactive", "background"]
ToolChoice = Literal["auto", "required"]
"""auto: the model may call tools. required: it must call at least one."""
Effort = Literal["low", "medium", "high"]
"""How long a model should think, if its template supports this setting."""
Source = Literal["model", "mtp", "eagle3", "ngram"]
"""Where drafts come from: a small model, the model's own layers, an EAGLE-3 head, or n-grams in the chat."""
LONGEST_DRAFT: dict[Source, int] = {"model": 8, "mtp": 8, "eagle3": 8, "ngram": 15}
"""Maximum draft lengths, in tokens. Copied text may match for longer; computed drafts diverge sooner."""
MediaFile = Image | Sound


class ToolCall(msgspec.Struct, frozen=True):
    """A tool call from the model. `arguments` is a JSON object as text, unless the model made a mistake."""

    id: str
    name: str
    arguments: str


class Tool(msgspec.Struct, frozen=True):
    """A function that a model may call."""

    name: str
    description: str = ""
    parameters: str = '{"type": "object", "properties": {}}'
    """JSON schema, as text."""
    strict: bool = False
    """Whether to enforce the schema even if calls are optional."""


class Message(msgspec.Struct, frozen=True):
    """A chat message, as passed to the template."""

    role: Role
    content: str
    thinking: str = ""
    calls: tuple[ToolCall, ...] = ()
    call_id: str = ""
    """For role 'tool': the id of the call that produced the result in `content`."""
    media: tuple[MediaFile, ...] = ()
    """In the order of their placeholders in `content`; see `edgechat.base.images.image.PLACE`."""


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling parameters, applied in llama.cpp's order: penalties, top-k, top-p, min-p, temperature."""

    temperature: float = 0.8
    """0 always takes the likeliest token."""
    top_k: int = 40
    """0 disables this filter. top_p and repetition_penalty are disabled by 1, the other filters by 0."""
    top_p: float = 0.95
    min_p: float = 0.05
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_window: int = 64
    """How many of the preceding tokens, including the prompt's, the penalties consider."""
    seed: int | None = None
    """None uses a new seed for each request."""
    bias: tuple[tuple[int, float], ...] = ()
    """(token, value) pairs. Each value is added to the token's logit before anything else happens."""


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a reply. Ids are never reused: late events of a cancelled request still carry its id."""

    id: str
    messages: tuple[Message, ...] = ()
    text: str | tuple[int, ...] | None = None
    """A raw prompt instead of messages, without a template, thinking or a sliding window."""
    suffix: str = ""
    """Text that comes after the reply, for fill-in-the-middle. `text` must then be a string."""
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = "auto"
    tool: str | None = None
    """The tool that must be called if tool_choice is 'required'; None allows any tool."""
    most_calls: int | None = None
    """How many calls a reply may have before it is ended; None means no limit."""
    schema: str | None = None
    """JSON schema, as text, for the answer. '{"type": "object"}' stands for any JSON object."""
    logprobs: int | None = None
    """Report the logprob of each token in the answer, along with this many of the likeliest tokens at its
    position. None reports no logprobs.
    """
    sampling: Sampling = Sampling()
    adapters: tuple[AdapterUse, ...] = ()
    """LoRA adapters, applied together."""
    sampling_set: tuple[str, ...] | None = None
    """The fields of `sampling` that were set explicitly. Only these are sent to a remote engine, which has
    its own defaults. None sends the fields that differ from edgechat's defaults.
    """
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    think: bool | None = None
    """Whether the model should think; None leaves it to the template."""
    effort: Effort | None = None
    """How long to think; only for models with `has_effort`."""
    date: str | None = None
    """The date for the template (ISO). It is fixed per chat, so that the cached prefix survives midnight."""
    chat: str | None = None
    """The conversation's id, for prewarming and for saving its state to disk. None does neither."""
    overflow: Overflow = "window"
    priority: Priority = "interactive"
    """Background requests run only while no other request is waiting."""


class Usage(msgspec.Struct, frozen=True):
    """A request's token counts. `cached_tokens` counts prompt tokens that did not have to be computed."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    dropped_turns: int = 0
    """How many turns were left out because they did not fit into the context."""
    shifted_tokens: int = 0
    """How many cached tokens a context shift has moved, which makes them approximate."""


class Timings(msgspec.Struct, frozen=True):
    """A request's timings, measured in the worker. Rates are in tokens per second; 0 means not measured."""

    ttft_ms: float
    """Time from the request's arrival to its first token."""
    prompt_tps: float
    decode_tps: float
    """Decoding rate after the first step, which may yield several drafted tokens."""


class SpeculationStats(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics on a request's drafts."""

    drafted_tokens: int
    """How many drafted tokens were verified."""
    accepted_tokens: int
    mean_length: float
    """Mean number of tokens in a draft."""
    speedup: float
    """Speed relative to plain decoding, including steps without a draft."""


class Difference(msgspec.Struct, frozen=True):
    """A buffer whose size differs from the plan."""

    name: str
    """llama.cpp's name for the buffer's type."""
    what: Literal["weights", "cache", "compute"]
    planned: int
    """In bytes."""
    real: int


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Information about the loaded model."""

    name: str
    architecture: str
    backend: str
    n_params: int
    context: int
    train_context: int
    can_switch_thinking: bool
    has_tools: bool = False
    """Whether the template supports tools. If not, a message tells the model about them."""
    has_effort: bool = False
    """Whether the template supports `Effort`."""
    sees: bool = False
    """Whether the model accepts images."""
    hears: bool = False
    """Whether the model accepts sounds."""
    no_vision: str = ""
    """Why it accepts neither images nor sounds although a projector is available; otherwise ''."""
    template: Literal["own", "chatml"]
    """chatml: the file has no template, so the most common one is used."""
    load_ms: float
    embedding: int = 0
    """Number of dimensions of an embedding model's vectors; 1 for a reranking model, 0 for a chat model."""
    memory_bytes: int = 0
    """The worker's resident memory after loading, in bytes."""
    buffers: tuple[Buffer, ...] = ()
    """The buffers that llama.cpp allocated; empty if unknown."""
    differences: tuple[Difference, ...] = ()
    drafters: tuple[str, ...] = ()
    """Names of the drafters, such as a model's name or 'n-grams'."""
    no_draft: str = ""
    """Why there is no drafter, or why a requested one is missing; otherwise ''."""


class ErrorInfo(msgspec.Struct, frozen=True):
    """An error, as sent through the pipe: class name, message and hint."""

    kind: str
    message: str
    hint: str | None = None

    @classmethod
    def of(cls, error: EdgechatError) -> ErrorInfo:
        """Convert an exception."""
        return cls(type(error).__name__, error.message, error.hint)

    def error(self) -> EdgechatError:
        """Return an exception of the original class."""
        return by_name(self.kind)(self.message, hint=self.hint)


# Messages to the worker.


class CachePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What the worker does with a chat's cache after a reply."""

    settle: bool = True
    """Whether to prewarm: compute the start of the next turn during idle time."""
    settle_on_battery: bool = True
    disk_bytes: int | None = None
    """Limit on the chat states saved to disk, in bytes. 0 saves none. None means 4 GiB, or a tenth of the
    free space if that is less.
    """
    grammars: bool = False
    """Whether to prepare for schemas while the model loads. Otherwise the first request with a schema has to
    wait for this, and all other requests may be delayed by up to 0.7 s.
    """


class Embed(msgspec.Struct, frozen=True, tag=True):
    """Embed each text or token list or, if `query` is set, score it as an answer to the query.

    Only for embedding and reranking models.
    """

    request_id: str
    texts: tuple[str | tuple[int, ...], ...]
    cut: bool = False
    """Whether to truncate texts that are too long instead of rejecting them."""
    query: str | None = None
    """The query for a reranking model; None for an embedding model."""


MOST_CHARACTERS = 2**20
"""Maximum length of text to translate: longer than any context, but tokenized within about a second."""
MOST_WITH_MARKS = 2**15
"""The limit when control tokens are parsed, which takes quadratic time if there are many."""
MOST_TOKENS = 2**17
"""Maximum number of tokens to translate."""

Translatable = str | tuple[int, ...] | ChatRequest
"""Text, tokens, or a chat request, which stands for its prompt."""


class Translate(msgspec.Struct, frozen=True, tag=True):
    """Tokenize text or a chat's prompt, or detokenize tokens."""

    request_id: str
    what: Translatable
    bos: bool = False
    """Whether to prepend the beginning-of-sequence token if the model expects it."""
    special: bool = False
    """Whether to parse control tokens in the text."""


# Messages from the worker.


class Dropped(msgspec.Struct, frozen=True, tag=True):
    """The number of turns left out because they do not fit: the oldest ones after any pinned turn."""

    request_id: str
    turns: int


class Prefill(msgspec.Struct, frozen=True, tag=True):
    """Prefill progress: `done` of `total` tokens are in the cache. In the last event, all of them are.

    `cached` tokens did not have to be computed.
    """

    request_id: str
    done: int
    total: int
    cached: int = 0


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Natural log probabilities of a token and of its alternatives, before filtering."""

    token: bytes
    logprob: float
    others: tuple[tuple[bytes, float], ...] = ()
    """The likeliest tokens at its position, likeliest first. The token itself may be among them."""


class Delta(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """More text: whole characters, never part of a stop string. `tokens` counts the reply's tokens so far."""

    request_id: str
    text: str
    thinking: bool
    tokens: int
    chances: tuple[TokenLogprobs, ...] = ()
    """Logprobs of the answer's tokens since the last Delta, if requested. `text` may then be empty."""


class ToolCallBegun(msgspec.Struct, frozen=True, tag=True):
    """The start of a tool call. `call` contains the arguments known so far."""

    request_id: str
    call: ToolCall
    tokens: int


class ToolCallArguments(msgspec.Struct, frozen=True, tag=True):
    """More of the last call's arguments, which may stay incomplete if the reply ends early."""

    request_id: str
    text: str
    tokens: int


class Finished(msgspec.Struct, frozen=True, tag=True):
    """The end of a reply."""

    request_id: str
    reason: FinishReason
    usage: Usage
    timings: Timings
    speculation: SpeculationStats | None = None
    """None if nothing was drafted."""
    stop_text: str | None = None
    """The requested stop string that ended the reply, if any."""

    @classmethod
    def cancelled(cls, request_id: str, prompt_tokens: int = 0) -> Finished:
        """Return the event that ends a request cancelled before its reply started."""
        return cls(request_id, "cancelled", Usage(prompt_tokens, 0, 0), Timings(0.0, 0.0, 0.0))


class Failed(msgspec.Struct, frozen=True, tag=True):
    """A request failed, or the load failed if `request_id` is None."""

    request_id: str | None
    error: ErrorInfo


class Persisted(msgspec.Struct, frozen=True, tag=True):
    """The answer to Persist."""

    chat: str | None


class Embedded(msgspec.Struct, frozen=True, tag=True):
    """The answer to Embed: for each text a vector of norm 1 (or 0), as little-endian 32-bit floats.

    With a query, there is a single number per text instead, which is higher for better answers.
    """

    request_id: str
    vectors: tuple[bytes, ...]
    tokens: int
    """Total for all texts."""


class Translated(msgspec.Struct, frozen=True, tag=True):
    """The answer to Translate. `text` is empty unless tokens were given."""

    request_id: str
    tokens: tuple[int, ...]
    text: bytes


class Prewarmed(msgspec.Struct, frozen=True, tag=True):
    """The cache now holds the first `tokens` tokens of the chat's next turn. Sent some time after Finished.

    Of these tokens, `computed` were not cached before.
    """

    request_id: str
    tokens: int
    computed: int


RequestEvent = Dropped | Prefill | Delta | ToolCallBegun | ToolCallArguments | Finished
"""Request events that front ends receive. Failed is raised as an exception instead."""
Event = RequestEvent | Failed | Persisted | Prewarmed | Embedded | Translated
