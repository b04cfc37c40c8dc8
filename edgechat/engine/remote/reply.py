"""Remote reply: turns the lines of a streamed chat completion into a request's events.

    data: {"choices": [{"delta": {"content": "Hel"}, "finish_reason": null}]}
    data: {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2}}
    data: [DONE]

The server's values are not trusted: counts are bounded, and times are measured here.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from edgechat.base.errors import EdgechatError
from edgechat.engine.prompt.template import FAMILIES
from edgechat.engine.reply.reply import Reply
from edgechat.engine.types import (
    ChatRequest,
    Delta,
    Finished,
    FinishReason,
    Prefill,
    RequestEvent,
    Timings,
    TokenLogprobs,
    ToolCall,
    ToolCallArguments,
    ToolCallBegun,
    Usage,
)
from edgechat.models.remote.client import RemoteClient

_MOST_CALLS = 128
_MOST_NAME = 256
_MOST_TOKENS = 2**31 - 1
_MOST_RATE = 1e7
_MOST_IN_PIECE = 16
_LEAST_PIECES, _LEAST_SECONDS = 8, 0.1
_THINK = FAMILIES[-1]
"""The marks around most models' thoughts, for servers that do not remove them from the text."""


class _FunctionPart(msgspec.Struct, frozen=True):
    name: str | None = None
    arguments: str | None = None


class _CallPart(msgspec.Struct, frozen=True):
    index: int | None = None
    id: str | None = None
    function: _FunctionPart = _FunctionPart()


class _MessagePart(msgspec.Struct, frozen=True):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_CallPart] | None = None


class _Chance(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int] | None = None
    top_logprobs: list[_Chance] | None = None


class _LogprobsPart(msgspec.Struct, frozen=True):
    content: list[_Chance] | None = None


class _Choice(msgspec.Struct, frozen=True):
    delta: _MessagePart | None = None
    finish_reason: str | None = None
    logprobs: _LogprobsPart | None = None


class _Chunk(msgspec.Struct, frozen=True):
    choices: list[_Choice] | None = None
    usage: dict[str, Any] | None = None
    timings: dict[str, Any] | None = None
    prompt_progress: dict[str, Any] | None = None
    truncated: Any = None
    error: Any = None


_CHUNKS = msgspec.json.Decoder(_Chunk)


class RemoteReply:
    """A reply as it arrives. `feed` takes its lines; `finish` ends it."""

    def __init__(self, request: ChatRequest, client: RemoteClient, dropped: int = 0) -> None:
        """dropped: how many turns were already left out of the request."""
        self.is_over = False
        """Whether the reply has ended. If so, further lines are ignored."""
        self._request = request
        self._client = client
        self._text = Reply(request.stop, _THINK)  # Transformers includes the stop string
        self._begun = time.perf_counter()
        self._first = self._last = 0.0
        self._tokens = 0
        self._has_thought = False
        self._calls = 0
        self._call: tuple[int | None, str | None] = (None, None)
        self._has_arguments = False
        self._reason: str | None = None
        self._usage: dict[str, Any] = {}
        self._timings: dict[str, Any] = {}
        self._dropped = dropped

    def feed(self, line: bytes) -> list[RequestEvent]:
        """Return the events in a line. Raises EdgechatError if it is an error message or invalid."""
        if self.is_over or not line.startswith((b"data:", b"error:")):
            return []  # comments, event names and empty lines
        data = line.partition(b":")[2].strip()
        if data == b"[DONE]":
            self.is_over = True
            return []
        try:
            chunk = _CHUNKS.decode(data)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise self._client.failed("sent an invalid reply") from error
        if chunk.error is not None or line.startswith(b"error:"):
            raise self._failure(data)
        return list(self._events(chunk))

    def finish(self) -> list[RequestEvent]:
        """Return the last events. Raises EdgechatError if the reply was cut off."""
        if not self.is_over and self._reason is None:
            raise self._client.broken("closed the connection in the middle of its answer")
        return [*self._texts(self._text.finish()), self._finished(self._finish_reason)]

    def cancelled(self) -> Finished:
        """Return the event that ends a cancelled reply."""
        return self._finished("cancelled")

    @property
    def is_timed(self) -> bool:
        """Whether the reply was long enough to measure a meaningful speed."""
        return self._tokens >= _LEAST_PIECES and self._last - self._first >= _LEAST_SECONDS

    def _failure(self, data: bytes) -> EdgechatError:
        said = self._client.refusal(500, data).message.partition(": ")[2].rstrip(".")
        return self._client.broken(f"ended its answer with an error: {said}")

    def _events(self, chunk: _Chunk) -> Iterator[RequestEvent]:
        if chunk.usage:
            self._usage = chunk.usage
        if chunk.timings:
            self._timings = chunk.timings
        if isinstance(chunk.truncated, int):
            self._dropped = _count(chunk.truncated)
        if chunk.prompt_progress:
            yield from self._progress(chunk.prompt_progress)
        for choice in (chunk.choices or ())[:1]:
            if choice.delta is not None:
                yield from self._parts(choice.delta, choice.logprobs)
            self._reason = choice.finish_reason or self._reason

    def _progress(self, told: dict[str, Any]) -> Iterator[RequestEvent]:
        total, done, cached = (_count(told.get(name)) for name in ("total", "processed", "cache"))
        if total > 0 and done <= total:
            yield Prefill(self._request.id, done, total, min(cached, done))

    def _parts(self, delta: _MessagePart, logprobs: _LogprobsPart | None) -> Iterator[RequestEvent]:
        thought = delta.reasoning_content or delta.reasoning or ""
        if thought or delta.content or delta.tool_calls:
            self._note_token()
        if thought:
            yield self._delta(thought, thinking=True)
        if delta.content:
            chances = _chances(logprobs)
            events = self._texts(self._text.feed(delta.content.encode("utf-8", "replace")))
            if chances:
                events = events or [self._delta("", thinking=False)]
                events[-1] = msgspec.structs.replace(events[-1], chances=chances)
            yield from events
        for call in delta.tool_calls or ():
            yield from self._called(call)

    def _texts(self, pieces: Sequence[object]) -> list[Delta]:
        texts = (piece for piece in pieces if isinstance(piece, tuple))
        return [self._delta(text, thinking=thinking) for text, thinking in texts]

    def _delta(self, text: str, *, thinking: bool) -> Delta:
        self._has_thought |= thinking
        return Delta(self._request.id, text, thinking, self._tokens)

    def _called(self, call: _CallPart) -> Iterator[RequestEvent]:
        name, arguments = call.function.name or "", call.function.arguments or ""
        known_index, known_id = self._call
        is_other = call.index != known_index or (call.id or known_id) != known_id
        # If there are no ids, a name that follows arguments starts another call: some servers send each call
        # in one piece.
        is_next = bool(name) and not (call.id or known_id) and self._has_arguments
        is_new = self._calls == 0 or is_other or is_next
        if is_new:
            if not name or len(name) > _MOST_NAME or not name.isprintable():
                raise self._client.failed("sent a tool call without a name")
            most = self._request.most_calls or _MOST_CALLS
            if self._calls >= most:
                self.is_over, self._reason = True, "tool_calls"
                return
            yield from self._texts(self._text.finish() if self._calls == 0 else ())
            self._calls += 1
            self._call, self._has_arguments = (call.index, call.id), False
            # Use a new id, because a server may use the same ids in every reply.
            begun = ToolCall(f"call_{uuid.uuid4().hex[:24]}", name, "")
            yield ToolCallBegun(self._request.id, begun, self._tokens)
        if arguments:
            self._has_arguments = True
            yield ToolCallArguments(self._request.id, arguments, self._tokens)

    def _note_token(self) -> None:
        self._tokens += 1
        self._last = time.perf_counter()
        self._first = self._first or self._last

    @property
    def _finish_reason(self) -> FinishReason:
        if self._calls:
            return "tools"
        if self._reason == "length":
            limit = self._request.max_tokens
            return "length" if limit is not None and self._usage_now.completion_tokens >= limit else "context"
        return "stop"

    @property
    def _usage_now(self) -> Usage:
        told = self._usage
        details = told.get("prompt_tokens_details")
        prompt = _count(told.get("prompt_tokens"))
        cached = _count(details.get("cached_tokens")) if isinstance(details, dict) else 0
        cached = min(cached or _count(self._timings.get("cache_n")), prompt)
        # Each piece has at least one token, so a lower count from the server is wrong.
        written = max(_count(told.get("completion_tokens")), self._tokens)
        return Usage(prompt, cached, written, self._dropped)

    @property
    def _n_hidden(self) -> int:
        details = self._usage.get("completion_tokens_details")
        thought = _count(details.get("reasoning_tokens")) if isinstance(details, dict) else 0
        return 0 if self._has_thought else thought

    def _finished(self, reason: FinishReason) -> Finished:
        usage, told = self._usage_now, self._timings
        # Hidden thoughts are not timed, and even with drafts, a piece contains only so many tokens.
        n_timed = min(usage.completion_tokens - self._n_hidden, _MOST_IN_PIECE * self._tokens) - 1
        seconds = self._last - self._first
        return Finished(
            self._request.id,
            reason,
            usage,
            Timings(
                ttft_ms=1000 * (self._first - self._begun) if self._first else 0.0,
                prompt_tps=_rate(told.get("prompt_per_second", told.get("prompt_tps"))),
                decode_tps=n_timed / seconds if seconds > 0 and n_timed > 0 else 0.0,
            ),
        )


def _chances(logprobs: _LogprobsPart | None) -> tuple[TokenLogprobs, ...]:
    found = logprobs.content if logprobs is not None else None
    return tuple(TokenLogprobs(_bytes(one), one.logprob, _others(one)) for one in found or ())


def _others(chance: _Chance) -> tuple[tuple[bytes, float], ...]:
    return tuple((_bytes(other), other.logprob) for other in chance.top_logprobs or ())


def _bytes(chance: _Chance) -> bytes:
    try:
        return chance.token.encode("utf-8", "replace") if chance.bytes is None else bytes(chance.bytes)
    except ValueError:
        return chance.token.encode("utf-8", "replace")


def _count(value: Any) -> int:
    return value if type(value) is int and 0 <= value <= _MOST_TOKENS else 0


def _rate(value: Any) -> float:
    return float(value) if type(value) in (int, float) and 0 < value <= _MOST_RATE else 0.0
