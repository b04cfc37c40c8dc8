"""What a request, a reply and its events are made of: typed values, no pickle, nothing native."""

from __future__ import annotations

from typing import Literal

import msgspec

from edgechat.base.errors import EdgechatError, by_name
from edgechat.native.buffers import Buffer
from edgechat.planner.estimate.actual_load import Difference

Role = Literal["system", "user", "assistant", "tool"]
FinishReason = Literal["stop", "length", "context", "cancelled", "tools"]
"""stop: the model ended or a stop string came; length: max_tokens; context: the cache is full; tools: the
model ended, and wants tools called."""
Overflow = Literal["window", "error"]
"""Where a conversation outgrows the context: leave its oldest turns out, or refuse it."""
Priority = Literal["interactive", "background"]
ToolChoice = Literal["auto", "required"]
"""auto: the model may call tools, or answer; required: it calls one at least."""
Effort = Literal["low", "medium", "high"]
"""How long a model thinks, where its template has such a switch."""


class ToolCall(msgspec.Struct, frozen=True):
    """What a model wants called. `arguments` is a JSON object, as text, or what a model took for one."""

    id: str
    name: str
    arguments: str


class Tool(msgspec.Struct, frozen=True):
    """A function that a model may want called."""

    name: str
    description: str = ""
    parameters: str = '{"type": "object", "properties": {}}'
    """A JSON schema, as text."""
    strict: bool = False
    """Hold a call of the model's own choice to the schema, too."""


class Message(msgspec.Struct, frozen=True):
    """One message of a chat as the template gets it. `thinking` is the reasoning before an answer."""

    role: Role
    content: str
    thinking: str = ""
    calls: tuple[ToolCall, ...] = ()
    """Of an assistant: the tools that it wanted called."""
    call_id: str = ""
    """Of a tool: the call that `content` is the result of."""


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How a token is chosen. The order is llama.cpp's: penalties, top-k, top-p, min-p, temperature."""

    temperature: float = 0.8
    """0 takes the likeliest token."""
    top_k: int = 40
    """0 switches the filter off, as do top_p 1, min_p 0, repetition_penalty 1 and the other penalties 0."""
    top_p: float = 0.95
    min_p: float = 0.05
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_window: int = 64
    """How many of the last tokens, the prompt's included, the penalties look at."""
    seed: int | None = None
    """The same seed gives the same text again; None takes a new one each time."""
    bias: tuple[tuple[int, float], ...] = ()
    """What is added to the logits of some tokens, before everything else."""


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One turn to be answered. The `id` is used once: late events of a cancelled request still carry it."""

    id: str
    messages: tuple[Message, ...] = ()
    text: str | tuple[int, ...] | None = None
    """What is gone on with instead of messages, as it is: no template, no thinking, no window."""
    suffix: str = ""
    """What comes behind the text: the reply is what belongs between them. Both are read as plain text."""
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = "auto"
    tool: str | None = None
    """The one of `tools` that must be called, where tool_choice is 'required'; None: any."""
    most_calls: int | None = None
    """The reply ends after so many calls; None: any number."""
    schema: str | None = None
    """A JSON schema, as text, that the answer follows; '{"type": "object"}' is any JSON object."""
    logprobs: int | None = None
    """Tell how likely each token of the answer was, and so many others in its place; None: nothing of it."""
    sampling: Sampling = Sampling()
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    think: bool | None = None
    """Switch the model's thinking on or off; None leaves it to the template."""
    effort: Effort | None = None
    """How long to think; only of models that `has_effort`."""
    date: str | None = None
    """The day the template prints (ISO), frozen per chat so that its prefix does not change at midnight."""
    chat: str | None = None
    """The conversation: its state is kept warm for its next turn, and on disk. None keeps nothing on disk."""
    overflow: Overflow = "window"
    priority: Priority = "interactive"
    """What runs in the background is computed only while nobody waits for anything else."""


class Usage(msgspec.Struct, frozen=True):
    """Tokens of one request. `cached_tokens` of the prompt were not computed again."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    dropped_turns: int = 0
    """Turns of the conversation that the prompt left out, because the context does not hold them."""
    shifted_tokens: int = 0
    """Of the cached ones, those that were moved there after a cut: what they hold is approximate."""


class Timings(msgspec.Struct, frozen=True):
    """Of one request, as the worker saw it. Rates are tokens per second, 0 where nothing was timed."""

    ttft_ms: float
    """From the request's arrival to its first token."""
    prompt_tps: float
    decode_tps: float
    """Of the tokens after the first step, which may bring several where they are drafted."""


class SpeculationStats(msgspec.Struct, frozen=True, kw_only=True):
    """What drafts did for one request."""

    drafted_tokens: int
    """Tokens that were guessed and verified."""
    accepted_tokens: int
    mean_length: float
    """Tokens of a draft, of the steps that had one."""
    speedup: float
    """Tokens per second over what plain decoding gives at the same moment; steps without a draft count."""


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What was loaded."""

    name: str
    architecture: str
    backend: str
    n_params: int
    context: int
    train_context: int
    can_switch_thinking: bool
    has_effort: bool = False
    """Its template tells it how long to think."""
    template: Literal["own", "chatml"]
    """chatml: the file brought no template, so the commonest one is used."""
    load_ms: float
    embedding: int = 0
    """Numbers of an embedding, of a model that makes those and cannot chat; 0 for others."""
    memory_bytes: int = 0
    """Resident memory of the worker after the load."""
    buffers: tuple[Buffer, ...] = ()
    """What llama.cpp has allocated; empty where that is not known."""
    differences: tuple[Difference, ...] = ()
    """Where that is not what was planned."""
    drafters: tuple[str, ...] = ()
    """Who drafts for it: the name of a model, 'n-grams'."""
    no_draft: str = ""
    """Why nobody does, or not all that were asked for."""


class ErrorInfo(msgspec.Struct, frozen=True):
    """An error as it crosses the pipe: the name of its class, and what it says."""

    kind: str
    message: str
    hint: str | None = None

    @classmethod
    def of(cls, error: EdgechatError) -> ErrorInfo:
        """Return what the pipe carries of an error."""
        return cls(type(error).__name__, error.message, error.hint)

    def error(self) -> EdgechatError:
        """Return the error again, of the class it was."""
        return by_name(self.kind)(self.message, hint=self.hint)


# To the worker.


class CachePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What the worker does with a chat when its reply has ended."""

    settle: bool = True
    """Compute in idle time what the next turn will begin with."""
    settle_on_battery: bool = True
    disk_bytes: int | None = None
    """What the states of chats may take on disk; 0 keeps none, None is 4 GiB or a tenth of what is free."""
    grammars: bool = False
    """Make ready for answers that follow a schema while the model loads; else the first one waits for it, and
    for up to 0.7 s of it so does everybody else."""


class Embed(msgspec.Struct, frozen=True, tag=True):
    """Make an embedding of each text (or its tokens); only of a model made for that."""

    request_id: str
    texts: tuple[str | tuple[int, ...], ...]


class Translate(msgspec.Struct, frozen=True, tag=True):
    """Make tokens of a text, or a text of tokens."""

    request_id: str
    what: str | tuple[int, ...]
    bos: bool = False
    """Put the beginning-of-sequence token in front, if the model wants one."""
    special: bool = False
    """Read control tokens written in the text as such."""


# From the worker.


class Dropped(msgspec.Struct, frozen=True, tag=True):
    """So many of the chat's oldest turns (after the pinned ones) are not sent: the context is too short."""

    request_id: str
    turns: int


class Prefill(msgspec.Struct, frozen=True, tag=True):
    """The prompt is being read: `done` of `total` tokens are in the cache."""

    request_id: str
    done: int
    total: int


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """How likely a token was, before anything was filtered: natural logarithms of probabilities."""

    token: bytes
    logprob: float
    others: tuple[tuple[bytes, float], ...] = ()
    """The likeliest tokens in its place, itself included where it is one of them, the likeliest first."""


class Delta(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """More text. Whole characters, never part of a stop string; `tokens` so far in this reply."""

    request_id: str
    text: str
    thinking: bool
    tokens: int
    chances: tuple[TokenLogprobs, ...] = ()
    """Of the answer's tokens since the last Delta, where the request wants logprobs; `text` may be empty."""


class ToolCallBegun(msgspec.Struct, frozen=True, tag=True):
    """The model wants a tool called; `call` has as much of the arguments as is known by now."""

    request_id: str
    call: ToolCall
    tokens: int


class ToolCallArguments(msgspec.Struct, frozen=True, tag=True):
    """More of the last call's arguments. Where the reply ends before they do, there is no more of them."""

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
    """None where nothing was drafted."""


class Failed(msgspec.Struct, frozen=True, tag=True):
    """A request failed, or (with no request_id) the load did."""

    request_id: str | None
    error: ErrorInfo


class Persisted(msgspec.Struct, frozen=True, tag=True):
    """The answer to Persist."""

    chat: str | None


class Embedded(msgspec.Struct, frozen=True, tag=True):
    """The answer to Embed: 32-bit floats of the length 1 (or 0), little-endian, for each text."""

    request_id: str
    vectors: tuple[bytes, ...]
    tokens: int
    """Of all texts together."""


class Translated(msgspec.Struct, frozen=True, tag=True):
    """The answer to Translate; `text` is that of tokens."""

    request_id: str
    tokens: tuple[int, ...]
    text: bytes


class Prewarmed(msgspec.Struct, frozen=True, tag=True):
    """Some time after Finished: the cache holds the `tokens` that the chat's next turn begins with.

    `computed` of them had to be computed for it. Nobody has to wait for this.
    """

    request_id: str
    tokens: int
    computed: int


RequestEvent = Dropped | Prefill | Delta | ToolCallBegun | ToolCallArguments | Finished
"""What a front end sees of its request; a Failed arrives as an exception."""
Event = RequestEvent | Failed | Persisted | Prewarmed | Embedded | Translated
"""What an engine says of its requests and chats."""
