"""How many tokens an answer was, and how long it took."""

from __future__ import annotations

import secrets
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from edgechat.engine.tool_calls.tools import constrained_tools, unenforceable
from edgechat.engine.types import (
    ChatRequest,
    Delta,
    Finished,
    RequestEvent,
    ToolCall,
    ToolCallArguments,
    ToolCallBegun,
)
from edgechat.server.documents import AskedDocuments, FileCitation, SourceBody, asked_documents, citations_of
from edgechat.server.pool.models import ServedModel
from edgechat.server.protocol.answers import (
    LONGER,
    Answers,
    PromptDetails,
    TokenLogprob,
    data_event,
    logprob_of,
)
from edgechat.server.protocol.fields import GenerationBody, thinking_of
from edgechat.server.protocol.openai_chat import ChatBody
from edgechat.server.refusal import Refusal, openai_error


class CompletionDetails(msgspec.Struct, frozen=True):
    """Tokens of the thinking, and drafted tokens that were accepted and rejected."""

    reasoning_tokens: int
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class UsageBody(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens of all answers to a request; the prompt counts once."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class AnswerTimings(msgspec.Struct, frozen=True):
    """Extension: milliseconds to the first token, and tokens per second, of the first answer."""

    ttft_ms: float
    prompt_tps: float
    decode_tps: float


def usage_of(ends: Sequence[Finished], *, reasoning: int = 0, prompts: int = 1) -> UsageBody:
    """Return the usage of `ends`, of which each run of len(ends) / prompts has one prompt."""
    each = max(1, len(ends) // prompts)
    runs = [ends[at : at + each] for at in range(0, len(ends), each)]
    prompt = sum(max(one.usage.prompt_tokens for one in run) for run in runs)
    cached = sum(min(one.usage.cached_tokens for one in run) for run in runs)
    written = sum(one.usage.completion_tokens for one in ends)
    drafts = [one.speculation for one in ends if one.speculation is not None]
    accepted = sum(one.accepted_tokens for one in drafts)
    drafted = sum(one.drafted_tokens for one in drafts)
    return UsageBody(
        prompt_tokens=prompt,
        completion_tokens=written,
        total_tokens=prompt + written,
        prompt_tokens_details=PromptDetails(cached),
        completion_tokens_details=CompletionDetails(reasoning, accepted, drafted - accepted),
    )


def timings_of(ends: Sequence[Finished]) -> AnswerTimings:
    """Return how long the first of them took."""
    first = ends[0].timings
    return AnswerTimings(round(first.ttft_ms, 3), round(first.prompt_tps, 2), round(first.decode_tps, 2))


FinishReason = Literal["stop", "length", "tool_calls", "function_call"]
"""How an answer ended, in OpenAI's words."""
REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "context": "length",
    "tools": "tool_calls",
}
_DONE = data_event(b"[DONE]")

Part = TypeVar("Part")
"""What is new of an answer."""


class ChoiceAnswers(Answers, Generic[Part]):
    """Several answers to one request, made of parts."""

    kind: ClassVar[str]
    """The prefix of their ids."""

    def __init__(
        self, body: GenerationBody, *, prompts: int = 1, documents: AskedDocuments | None = None
    ) -> None:
        """Raise Refusal for fields that contradict each other."""
        if body.stream_options is not None and not body.stream:
            raise Refusal("stream_options requires stream: true.", param="stream_options")
        super().__init__(
            model=body.model,
            streams=body.stream,
            priority=body.priority,
            n_choices=body.n_choices * prompts,
            lora=body.lora,
            documents=documents,
        )
        self._id = f"{self.kind}-{secrets.token_hex(12)}"
        self._created = int(time.time())
        self._prompts = prompts
        self._wants_usage = body.wants_usage
        self._taken: list[list[Part]] = [[] for _ in range(self.n_choices)]
        self._reasoning = [0] * self.n_choices
        """Tokens of the thinking."""

    def _begin(self) -> bytes:
        return b"".join(data_event(self._chunk([part])) for part in self._first_parts())

    def _send(self, choice: int, event: RequestEvent) -> bytes:
        part = self._part(choice, event)
        if part is None:
            return b""
        return data_event(self._chunk([part], event if isinstance(event, Finished) else None))

    def end(self) -> bytes:
        """Return what a stream ends with: the usage, if the client wants it."""
        return (data_event(self._chunk([], usage=self._usage())) if self._wants_usage else b"") + _DONE

    def failure(self, refusal: Refusal) -> bytes:
        """Return an error as the last chunk."""
        return data_event(openai_error(refusal))

    def take(self, choice: int, event: RequestEvent) -> None:
        """Collect an event of an answer that is sent as a whole. Raises Refusal as `send` does."""
        part = self._part(choice, event)
        if part is not None:
            self._taken[choice].append(part)

    @property
    def tokens(self) -> tuple[int, int]:
        """The prompt and completion tokens of the finished answers."""
        usage = self._usage()
        return usage.prompt_tokens, usage.completion_tokens

    def _part(self, choice: int, event: RequestEvent) -> Part | None:
        """Return the part for an event; None if clients are not told of it."""
        match event:
            case Delta():
                if event.thinking:
                    self._reasoning[choice] = event.tokens
                return self._text_part(choice, event)
            case Finished():
                self._finish(choice, event)
                return self._end_part(choice, REASONS[event.reason])
        return None

    @abstractmethod
    def _first_parts(self) -> list[Part]:
        """Return the parts that a stream begins with."""

    @abstractmethod
    def _text_part(self, choice: int, delta: Delta) -> Part:
        """Return the part for more text."""

    @abstractmethod
    def _end_part(self, choice: int, reason: FinishReason) -> Part:
        """Return the part for the end."""

    @abstractmethod
    def _chunk(
        self, parts: list[Part], end: Finished | None = None, *, usage: UsageBody | UnsetType = UNSET
    ) -> bytes:
        """Return the JSON of a chunk of parts. end: of their answer, in its last chunk."""

    def _usage(self) -> UsageBody:
        return usage_of(self._done(), reasoning=sum(self._reasoning), prompts=self._prompts)


class CalledFunction(msgspec.Struct, frozen=True, kw_only=True):
    """The function to call, and its arguments."""

    name: str
    arguments: str


class AnswerCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class PartOfFunction(msgspec.Struct, frozen=True, kw_only=True):
    """The function to call, or more of its arguments."""

    name: str | UnsetType = UNSET
    arguments: str


class PartOfCall(msgspec.Struct, frozen=True, kw_only=True):
    """The beginning of a tool call (with id, type and name), or more of its arguments."""

    index: int
    """The number of the call."""
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: PartOfFunction


class ChoiceLogprobs(msgspec.Struct, frozen=True):
    """The logprobs of the answer's tokens."""

    content: list[TokenLogprob]


class AnswerMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The message of the model."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[AnswerCall] | UnsetType = UNSET
    function_call: CalledFunction | UnsetType = UNSET
    """Instead of tool_calls, if `functions` were sent."""
    refusal: None = None
    annotations: list[FileCitation] | UnsetType = UNSET
    """What the answer cites, if documents were asked for."""


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One of the answers."""

    index: int
    message: AnswerMessage
    logprobs: ChoiceLogprobs | None = None
    finish_reason: FinishReason


class PartOfAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The new part of an answer."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[PartOfCall] | UnsetType = UNSET
    function_call: PartOfFunction | UnsetType = UNSET
    annotations: list[FileCitation] | UnsetType = UNSET
    """What the whole answer cites, in its last part."""


class ChoiceChunk(msgspec.Struct, frozen=True, kw_only=True):
    """The new part of one of the answers."""

    index: int
    delta: PartOfAnswer
    logprobs: ChoiceLogprobs | UnsetType = UNSET
    finish_reason: FinishReason | None = None


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """A chat completion."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageBody
    timings: AnswerTimings
    truncated: int | UnsetType = UNSET
    """Extension: the number of turns left out, if overflow is window."""
    unenforced: list[str] | UnsetType = UNSET
    """Extension: keywords of the tools' schemas that were not enforced."""
    sources: list[SourceBody] | UnsetType = UNSET
    """Extension: where the passages are from that the model was given."""


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True):
    """A chunk of a streamed chat completion."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChoiceChunk]
    usage: UsageBody | UnsetType = UNSET
    timings: AnswerTimings | UnsetType = UNSET
    truncated: int | UnsetType = UNSET
    unenforced: list[str] | UnsetType = UNSET
    sources: list[SourceBody] | UnsetType = UNSET


class ChatAnswers(ChoiceAnswers[ChoiceChunk]):
    """The answers to one request, as they grow."""

    kind = "chatcmpl"

    def __init__(self, body: ChatBody, think: bool | None) -> None:
        """think: what the settings say for models that can switch it. Raises Refusal."""
        super().__init__(body, documents=asked_documents(body.docs))
        self._body = body
        self._request = body.asked()
        self._think = think
        self._calls = [0] * self.n_choices
        self._texts: list[list[str]] = [[] for _ in range(self.n_choices)]
        """Those in which there may be citations."""
        self._unenforced = unenforceable(constrained_tools(self._request)) or UNSET

    @property
    def shorter(self) -> str:
        """Return what to do about a prompt that is too long."""
        if self._request.overflow == "window":
            return f"The parts that cannot be left out are too long: shorten the last message; {LONGER}"
        return f'Shorten it; "overflow": "window" leaves out the oldest turns; {LONGER}'

    def request(self, served: ServedModel, choice: int) -> ChatRequest:
        """Return what the engine is asked for one of them."""
        think, effort = thinking_of(
            served.model,
            think=self._request.think,
            effort=self._body.reasoning_effort,
            default=self._think,
        )
        return msgspec.structs.replace(
            self._request,
            id=f"{self._id}-{choice}",
            think=think,
            effort=effort,
            sampling=self._body.sampling(served.plan.sampling_for(think), choice),
        )

    def whole(self) -> bytes:
        """Return the answers that were taken."""
        ends = self._done()
        completion = ChatCompletion(
            id=self._id,
            created=self._created,
            model=self.model,
            choices=[self._join(index, taken) for index, taken in enumerate(self._taken)],
            usage=self._usage(),
            timings=timings_of(ends),
            truncated=max(end.usage.dropped_turns for end in ends) or UNSET,
            unenforced=self._unenforced,
            sources=self._sources,
        )
        return msgspec.json.encode(completion)

    def _first_parts(self) -> list[ChoiceChunk]:
        role = PartOfAnswer(role="assistant", content="")
        return [ChoiceChunk(index=at, delta=role) for at in range(self.n_choices)]

    def _part(self, choice: int, event: RequestEvent) -> ChoiceChunk | None:
        if isinstance(event, ToolCallBegun):
            return self._call_part(choice, event.call)
        if isinstance(event, ToolCallArguments):
            return self._arguments_part(choice, PartOfFunction(arguments=event.text))
        return super()._part(choice, event)

    def _text_part(self, choice: int, delta: Delta) -> ChoiceChunk:
        if delta.thinking:
            return ChoiceChunk(index=choice, delta=PartOfAnswer(reasoning_content=delta.text))
        if self.documents is not None:
            self._texts[choice].append(delta.text)
        logprobs = ChoiceLogprobs([logprob_of(token) for token in delta.chances]) if delta.chances else UNSET
        return ChoiceChunk(index=choice, delta=PartOfAnswer(content=delta.text), logprobs=logprobs)

    def _call_part(self, choice: int, call: ToolCall) -> ChoiceChunk:
        self._calls[choice] += 1
        function = PartOfFunction(name=call.name, arguments=call.arguments)
        return self._arguments_part(choice, function, id=call.id, type="function")

    def _arguments_part(self, choice: int, function: PartOfFunction, **begins: Any) -> ChoiceChunk:
        if self._body.functions:
            return ChoiceChunk(index=choice, delta=PartOfAnswer(function_call=function))
        part = PartOfCall(index=self._calls[choice] - 1, function=function, **begins)
        return ChoiceChunk(index=choice, delta=PartOfAnswer(tool_calls=[part]))

    def _end_part(self, choice: int, reason: FinishReason) -> ChoiceChunk:
        if reason == "tool_calls" and self._body.functions:
            reason = "function_call"
        part = PartOfAnswer(annotations=self._citations(choice))
        return ChoiceChunk(index=choice, delta=part, finish_reason=reason)

    def _citations(self, choice: int) -> list[FileCitation] | UnsetType:
        if self.documents is None:
            return UNSET
        return citations_of("".join(self._texts[choice]), self.passages)

    def _chunk(
        self, parts: list[ChoiceChunk], end: Finished | None = None, *, usage: UsageBody | UnsetType = UNSET
    ) -> bytes:
        chunk = ChatChunk(
            id=self._id,
            created=self._created,
            model=self.model,
            choices=parts,
            usage=usage,
            timings=UNSET if end is None else timings_of([end]),
            truncated=UNSET if end is None else end.usage.dropped_turns or UNSET,
            unenforced=UNSET if end is None else self._unenforced,
            sources=UNSET if end is None else self._sources,
        )
        return msgspec.json.encode(chunk)

    def _join(self, index: int, parts: Sequence[ChoiceChunk]) -> ChatChoice:
        """Put the parts of an answer together."""

        def joined(get: Callable[[PartOfAnswer], str | UnsetType]) -> str:
            return "".join(text for part in parts if (text := get(part.delta)) is not UNSET)

        content = joined(lambda delta: delta.content)
        thinking = joined(lambda delta: delta.reasoning_content)
        calls = _join_calls([call for part in parts for call in part.delta.tool_calls or ()])
        functions = [part.delta.function_call for part in parts if part.delta.function_call]
        logprobs = [token for part in parts if part.logprobs for token in part.logprobs.content]
        return ChatChoice(
            index=index,
            message=AnswerMessage(
                content=content if content or not (calls or functions) else None,
                reasoning_content=thinking or UNSET,
                tool_calls=calls or UNSET,
                function_call=_join_function(functions) if functions else UNSET,
                annotations=self._citations(index),
            ),
            logprobs=ChoiceLogprobs(logprobs) if self._body.logprobs else None,
            finish_reason=next(part.finish_reason for part in parts if part.finish_reason is not None),
        )


def _join_calls(parts: Sequence[PartOfCall]) -> list[AnswerCall]:
    """Put the parts of calls together."""
    functions: dict[int, list[PartOfFunction]] = {}
    for part in parts:
        functions.setdefault(part.index, []).append(part.function)
    return [
        AnswerCall(id=part.id, function=_join_function(functions[part.index]))
        for part in parts
        if part.id is not UNSET
    ]


def _join_function(parts: Sequence[PartOfFunction]) -> CalledFunction:
    """Put the parts of one call together."""
    name = "".join(part.name for part in parts if part.name is not UNSET)
    return CalledFunction(name=name, arguments="".join(part.arguments for part in parts))
