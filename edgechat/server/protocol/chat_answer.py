"""From the engine's events to a chat's answer, whole or in chunks; both are made of the same parts."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from edgechat.engine.types import Called, ChatRequest, Delta, Finished, RequestEvent, TokenChance
from edgechat.server.models import Served
from edgechat.server.protocol.chat import ChatBody
from edgechat.server.protocol.ending import FinishReason, reason_of
from edgechat.server.protocol.usage import AnswerTimings, Usage, timings_of, usage_of


class CalledFunction(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be called, and with what; of a stream the part that is new."""

    name: str | UnsetType = UNSET
    arguments: str


class AnswerCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that the model wants made."""

    index: int | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: CalledFunction


class Chance(msgspec.Struct, frozen=True, kw_only=True):
    """How likely a token was in its place: the natural logarithm."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(Chance, frozen=True, kw_only=True):
    """A token of the answer, and others in its place."""

    top_logprobs: list[Chance]


class ChoiceLogprobs(msgspec.Struct, frozen=True):
    """How likely the answer's tokens were."""

    content: list[TokenLogprob]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What the model says."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[AnswerCall] | UnsetType = UNSET
    refusal: None = None


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """One of the answers."""

    index: int
    message: Answer
    logprobs: ChoiceLogprobs | None = None
    finish_reason: FinishReason


class PartOfAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What is new of an answer."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[AnswerCall] | UnsetType = UNSET


class ChoiceChunk(msgspec.Struct, frozen=True, kw_only=True):
    """What is new of one of the answers."""

    index: int
    delta: PartOfAnswer
    logprobs: ChoiceLogprobs | UnsetType = UNSET
    finish_reason: FinishReason | None = None


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """The answers."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[Choice]
    usage: Usage
    timings: AnswerTimings
    truncated: int | UnsetType = UNSET
    """Extension: turns of the chat that were left out, where that was allowed and necessary."""


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True):
    """What is new."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChoiceChunk]
    usage: Usage | UnsetType = UNSET
    timings: AnswerTimings | UnsetType = UNSET
    truncated: int | UnsetType = UNSET


class ChatAnswers:
    """The answers to one request, as they grow."""

    def __init__(self, body: ChatBody, think: bool | None) -> None:
        """think: what the settings say for models that can switch it. Raises Refusal."""
        self.n_choices = body.n_choices
        self.model = ""
        """What answers, once that is known."""
        self._body = body
        self._asked = body.asked()
        self._think = think
        self._id = f"chatcmpl-{secrets.token_hex(12)}"
        self._created = int(time.time())
        self._parts = [_Parts(index, body) for index in range(self.n_choices)]
        self._taken: list[list[ChoiceChunk]] = [[] for _ in range(self.n_choices)]

    def request(self, served: Served, choice: int) -> ChatRequest:
        """Return what the engine is asked for one of them."""
        think = self._asked.think
        if think is None and served.model.can_switch_thinking:
            think = self._think
        sampling = self._body.sampling(served.plan.sampling_for(think), choice)
        return msgspec.structs.replace(self._asked, id=f"{self._id}-{choice}", think=think, sampling=sampling)

    def begin(self) -> list[bytes]:
        """Return the chunks that a stream begins with."""
        role = PartOfAnswer(role="assistant", content="")
        return [self._chunk(ChoiceChunk(index=at, delta=role)) for at in range(self.n_choices)]

    def chunks(self, choice: int, event: RequestEvent) -> list[bytes]:
        """Return what a stream tells of an event. Raises Refusal for an answer that was cut short."""
        part = self._parts[choice].of(event)
        return [] if part is None else [self._chunk(part, event if isinstance(event, Finished) else None)]

    def end(self) -> list[bytes]:
        """Return the chunks that a stream ends with."""
        if not self._body.wants_usage:
            return []
        envelope = ChatChunk(
            id=self._id, created=self._created, model=self.model, choices=[], usage=self._usage()
        )
        return [msgspec.json.encode(envelope)]

    def take(self, choice: int, event: RequestEvent) -> None:
        """Note an event of an answer that is sent as a whole. Raises Refusal as `chunks` does."""
        part = self._parts[choice].of(event)
        if part is not None:
            self._taken[choice].append(part)

    def whole(self) -> bytes:
        """Return the answers that were taken."""
        ends = self._ends()
        return msgspec.json.encode(
            ChatCompletion(
                id=self._id,
                created=self._created,
                model=self.model,
                choices=[_whole(index, taken) for index, taken in enumerate(self._taken)],
                usage=self._usage(),
                timings=timings_of(ends),
                truncated=max(end.usage.dropped_turns for end in ends) or UNSET,
            )
        )

    def _chunk(self, part: ChoiceChunk, end: Finished | None = None) -> bytes:
        return msgspec.json.encode(
            ChatChunk(
                id=self._id,
                created=self._created,
                model=self.model,
                choices=[part],
                timings=timings_of([end]) if end else UNSET,
                truncated=(end.usage.dropped_turns or UNSET) if end else UNSET,
            )
        )

    def _ends(self) -> list[Finished]:
        return [one.end for one in self._parts if one.end is not None]

    def _usage(self) -> Usage:
        return usage_of(self._ends(), reasoning=sum(one.reasoning for one in self._parts))


class _Parts:
    """Makes the parts of one answer."""

    def __init__(self, index: int, body: ChatBody) -> None:
        self.end: Finished | None = None
        self.reasoning = 0
        """Tokens of the thinking."""
        self._index = index
        self._most_calls = 1 if body.parallel_tool_calls is False else None
        self._calls = 0

    def of(self, event: RequestEvent) -> ChoiceChunk | None:
        """Return what is new; None where nothing of it is told."""
        match event:
            case Delta(thinking=True):
                self.reasoning = event.tokens
                return self._part(PartOfAnswer(reasoning_content=event.text))
            case Delta():
                chances = [_logprob(one) for one in event.chances]
                part = PartOfAnswer(content=event.text)
                return self._part(part, ChoiceLogprobs(chances) if chances else UNSET)
            case Called():
                return self._call(event)
            case Finished():
                self.end = event
                return ChoiceChunk(index=self._index, delta=PartOfAnswer(), finish_reason=reason_of(event))
        return None

    def _part(self, part: PartOfAnswer, logprobs: ChoiceLogprobs | UnsetType = UNSET) -> ChoiceChunk:
        return ChoiceChunk(index=self._index, delta=part, logprobs=logprobs)

    def _call(self, event: Called) -> ChoiceChunk | None:
        call = event.call
        first = bool(call.id)
        self._calls += first
        if self._most_calls is not None and self._calls > self._most_calls:
            return None
        told = AnswerCall(
            index=self._calls - 1,
            id=call.id if first else UNSET,
            type="function" if first else UNSET,
            function=CalledFunction(name=call.name if first else UNSET, arguments=call.arguments),
        )
        return self._part(PartOfAnswer(tool_calls=[told]))


def _whole(index: int, parts: Sequence[ChoiceChunk]) -> Choice:
    """Put the parts of an answer together."""

    def joined(get: Callable[[PartOfAnswer], str | UnsetType]) -> str:
        return "".join(text for part in parts if (text := get(part.delta)) is not UNSET)

    content, thought = joined(lambda one: one.content), joined(lambda one: one.reasoning_content)
    calls: list[AnswerCall] = []
    for part in parts:
        for call in part.delta.tool_calls or ():
            if call.id is not UNSET:
                calls.append(msgspec.structs.replace(call, index=UNSET))
            else:
                last = calls[-1].function
                more = msgspec.structs.replace(last, arguments=last.arguments + call.function.arguments)
                calls[-1] = msgspec.structs.replace(calls[-1], function=more)
    chances = [one for part in parts if part.logprobs for one in part.logprobs.content]
    ends = [part.finish_reason for part in parts if part.finish_reason is not None]
    return Choice(
        index=index,
        message=Answer(
            content=content if content or not calls else None,
            reasoning_content=thought or UNSET,
            tool_calls=calls or UNSET,
        ),
        logprobs=ChoiceLogprobs(chances) if chances else None,
        finish_reason=ends[0],
    )


def _logprob(chance: TokenChance) -> TokenLogprob:
    others = [_chance(token, logprob) for token, logprob in chance.others]
    own = _chance(chance.token, chance.logprob)
    return TokenLogprob(token=own.token, logprob=own.logprob, bytes=own.bytes, top_logprobs=others)


def _chance(token: bytes, logprob: float) -> Chance:
    return Chance(token=token.decode("utf-8", "replace"), logprob=logprob, bytes=list(token))
