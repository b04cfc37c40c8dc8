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
"""stop: the model ended the reply, or a stop string occurred; length: `max_tokens` was reached; context: the
cache is full; tools: the model ended the reply by calling tools.
"""
Overflow = Literal["window", "error"]
"""What to do if a conversation outgrows the context: leave out its oldest turns, or reject it."""
Priority = Literal["interactive", "background"]
ToolChoice = Literal["auto", "required"]
"""auto: the model may call tools; required: it must call at least one."""
Effort = Literal["low", "medium", "high"]
"""How long a model thinks, if its template supports it."""
Source = Literal["model", "mtp", "eagle3", "ngram"]
"""Where drafts come from: a small model, the model's own layers, an EAGLE-3 head, or the chat's n-grams."""
LONGEST_DRAFT: dict[Source, int] = {"model": 8, "mtp": 8, "eagle3": 8, "ngram": 15}
"""In tokens. Copied text may match for longer; computed drafts diverge sooner."""
MediaFile = Image | Sound
"""An image or sound in a message."""


class ToolCall(msgspec.Struct, frozen=True):
    """A tool call by the model. `arguments` is a JSON object as text, unless the model made a mistake."""

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
    """Enforce the schema even if calls are optional."""


class Message(msgspec.Struct, frozen=True):
    """A chat message, as passed to the template."""

    role: Role
    content: str
    thinking: str = ""
    calls: tuple[ToolCall, ...] = ()
    call_id: str = ""
    """For role 'tool': the id of the call whose result is in `content`."""
    media: tuple[MediaFile, ...] = ()
    """In the order of their placeholders in `content`; see `edgechat.base.images.image.PLACE`."""


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling parameters, applied in llama.cpp's order: penalties, top-k, top-p, min-p, temperature."""

    temperature: float = 0.8
    """0 always takes the likeliest token."""
    top_k: int = 40
    """0 disables this filter. For top_p and repetition_penalty, 1 does; for the other filters, 0."""
    top_p: float = 0.95
    min_p: float = 0.05
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_window: int = 64
    """Number of preceding tokens, including the prompt's, that the penalties consider."""
    seed: int | None = None
    """None: a new seed for each request."""
    bias: tuple[tuple[int, float], ...] = ()
    """(token, value) pairs: each value is added to the token's logit before anything else."""


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a reply. Ids are never reused: late events of a cancelled request still carry its id."""

    id: str
    messages: tuple[Message, ...] = ()
    text: str | tuple[int, ...] | None = None
    """Raw prompt instead of messages: no template, no thinking, no window."""
    suffix: str = ""
    """Text that comes after the reply, for filling in the middle; `text` must then be a string."""
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = "auto"
    tool: str | None = None
    """Name of the tool that must be called if tool_choice is 'required'; None: any."""
    most_calls: int | None = None
    """Number of calls after which the reply ends; None: no limit."""
    schema: str | None = None
    """JSON schema, as text, for the answer; '{"type": "object"}' is any JSON object."""
    logprobs: int | None = None
    """Report the logprob of each token of the answer, and of this many of the likeliest tokens in its place.
    None: report neither.
    """
    sampling: Sampling = Sampling()
    adapters: tuple[AdapterUse, ...] = ()
    """LoRA adapters, applied together."""
    sampling_set: tuple[str, ...] | None = None
    """Fields of `sampling` that were set explicitly. Only these are sent to a remote engine, which has its
    own defaults. None: the fields that differ from our defaults.
    """
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    think: bool | None = None
    """Switch thinking on or off; None: the template's default."""
    effort: Effort | None = None
    """How long to think; only for models with `has_effort`."""
    date: str | None = None
    """Date for the template (ISO), fixed per chat so that its cached prefix survives midnight."""
    chat: str | None = None
    """Id of the conversation, for prewarming and saving its state to disk. None: do neither."""
    overflow: Overflow = "window"
    priority: Priority = "interactive"
    """Background requests run only while no other request is waiting."""


class Usage(msgspec.Struct, frozen=True):
    """A request's token counts. Of the prompt's tokens, `cached_tokens` did not have to be computed."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    dropped_turns: int = 0
    """Turns left out because they did not fit into the context."""
    shifted_tokens: int = 0
    """Cached tokens that a context shift has moved, which makes them approximate."""


class Timings(msgspec.Struct, frozen=True):
    """A request's timings, measured in the worker. Rates are tokens per second; 0 if nothing was timed."""

    ttft_ms: float
    """Time from the request's arrival to its first token."""
    prompt_tps: float
    decode_tps: float
    """Decoding rate after the first step, which may yield several drafted tokens."""


class SpeculationStats(msgspec.Struct, frozen=True, kw_only=True):
    """A request's draft statistics."""

    drafted_tokens: int
    """Drafted tokens that were verified."""
    accepted_tokens: int
    mean_length: float
    """Mean number of tokens in a draft."""
    speedup: float
    """Speed relative to plain decoding, including steps without a draft."""


class Difference(msgspec.Struct, frozen=True):
    """A buffer whose size differs from the plan."""

    name: str
    """llama.cpp's name for its type."""
    what: Literal["weights", "cache", "compute"]
    planned: int
    """Bytes."""
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
    """Whether the template supports tools; if not, a message tells the model about them."""
    has_effort: bool = False
    """Whether the template supports `Effort`."""
    sees: bool = False
    """Whether the model accepts images."""
    hears: bool = False
    """Whether the model accepts sounds."""
    no_vision: str = ""
    """Why it accepts neither although a projector is available; else ''."""
    template: Literal["own", "chatml"]
    """chatml: the file has no template, so the most common template is used."""
    load_ms: float
    embedding: int = 0
    """Dimensions of an embedding model; 1 for a reranking model. 0 for models that can chat."""
    memory_bytes: int = 0
    """Resident memory of the worker after loading."""
    buffers: tuple[Buffer, ...] = ()
    """Buffers allocated by llama.cpp; empty if unknown."""
    differences: tuple[Difference, ...] = ()
    """Buffers whose size differs from the plan."""
    drafters: tuple[str, ...] = ()
    """Names of the drafters, such as a model's name or 'n-grams'."""
    no_draft: str = ""
    """Why there is no drafter or a requested drafter is missing; else ''."""


class ErrorInfo(msgspec.Struct, frozen=True):
    """An error to send through the pipe: class name, message and hint."""

    kind: str
    message: str
    hint: str | None = None

    @classmethod
    def of(cls, error: EdgechatError) -> ErrorInfo:
        """Convert an error."""
        return cls(type(error).__name__, error.message, error.hint)

    def error(self) -> EdgechatError:
        """Return an error of the original class."""
        return by_name(self.kind)(self.message, hint=self.hint)


# To the worker.


class CachePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How the worker treats a chat's cache after a reply."""

    settle: bool = True
    """Prewarm: compute the beginning of the next turn in idle time."""
    settle_on_battery: bool = True
    disk_bytes: int | None = None
    """Limit on saved chat states. 0 saves none; None: 4 GiB, or a tenth of the free space if that is less."""
    grammars: bool = False
    """Prepare for schemas while the model loads. Otherwise the first request with a schema waits for this,
    and all other requests may be delayed by up to 0.7 s.
    """


class Embed(msgspec.Struct, frozen=True, tag=True):
    """Compute an embedding of each text or token list, or its score as an answer to `query`, if set.

    Only for embedding and reranking models.
    """

    request_id: str
    texts: tuple[str | tuple[int, ...], ...]
    cut: bool = False
    """Truncate texts that are too long instead of rejecting them."""
    query: str | None = None
    """For a reranking model; None for an embedding model."""


MOST_CHARACTERS = 2**20
"""Maximum length of text to translate: more than contexts hold, and tokenized within about a second."""
MOST_WITH_MARKS = 2**15
"""The same if control tokens are parsed, which takes quadratic time if there are many."""
MOST_TOKENS = 2**17
"""Maximum number of tokens to translate."""

Translatable = str | tuple[int, ...] | ChatRequest
"""Text, tokens, or a chat request, which stands for its prompt."""


class Translate(msgspec.Struct, frozen=True, tag=True):
    """Tokenize text or a chat's prompt, or detokenize tokens."""

    request_id: str
    what: Translatable
    bos: bool = False
    """Prepend the beginning-of-sequence token if the model expects it."""
    special: bool = False
    """Parse control tokens in the text."""


# From the worker.


class Dropped(msgspec.Struct, frozen=True, tag=True):
    """How many of the oldest turns, after pinned ones, are not sent because they do not fit."""

    request_id: str
    turns: int


class Prefill(msgspec.Struct, frozen=True, tag=True):
    """Prefill progress: `done` of `total` tokens are in the cache; all of them in the last event.

    `cached` tokens did not have to be computed.
    """

    request_id: str
    done: int
    total: int
    cached: int = 0


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Natural log probabilities of a token and of alternatives, before any filter."""

    token: bytes
    logprob: float
    others: tuple[tuple[bytes, float], ...] = ()
    """The likeliest tokens in its place, likeliest first; may include the token itself."""


class Delta(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """More text: whole characters, never part of a stop string. `tokens` counts the reply's tokens so far."""

    request_id: str
    text: str
    thinking: bool
    tokens: int
    chances: tuple[TokenLogprobs, ...] = ()
    """Logprobs of the answer's tokens since the last Delta, if requested; `text` may then be empty."""


class ToolCallBegun(msgspec.Struct, frozen=True, tag=True):
    """The beginning of a tool call; `call` holds the arguments known so far."""

    request_id: str
    call: ToolCall
    tokens: int


class ToolCallArguments(msgspec.Struct, frozen=True, tag=True):
    """More of the last call's arguments, which may remain incomplete if the reply ends early."""

    request_id: str
    text: str
    tokens: int


class Finished(msgspec.Struct, frozen=True, tag=True):
    """End of a reply."""

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
        """Return the end of a request that was cancelled before its reply began."""
        return cls(request_id, "cancelled", Usage(prompt_tokens, 0, 0), Timings(0.0, 0.0, 0.0))


class Failed(msgspec.Struct, frozen=True, tag=True):
    """Failure of a request, or of the load if `request_id` is None."""

    request_id: str | None
    error: ErrorInfo


class Persisted(msgspec.Struct, frozen=True, tag=True):
    """Answer to Persist."""

    chat: str | None


class Embedded(msgspec.Struct, frozen=True, tag=True):
    """Answer to Embed: a vector of length 1 (or 0) for each text, as little-endian 32-bit floats.

    With a query: a single number per text, higher for better answers.
    """

    request_id: str
    vectors: tuple[bytes, ...]
    tokens: int
    """Total for all texts."""


class Translated(msgspec.Struct, frozen=True, tag=True):
    """Answer to Translate; `text` is empty unless tokens were given."""

    request_id: str
    tokens: tuple[int, ...]
    text: bytes


class Prewarmed(msgspec.Struct, frozen=True, tag=True):
    """Sent some time after Finished: the cache holds the first `tokens` tokens of the chat's next turn.

    Of these, `computed` were not cached before.
    """

    request_id: str
    tokens: int
    computed: int


RequestEvent = Dropped | Prefill | Delta | ToolCallBegun | ToolCallArguments | Finished
"""Request events that front ends receive; Failed is raised as an exception instead."""
Event = RequestEvent | Failed | Persisted | Prewarmed | Embedded | Translated
