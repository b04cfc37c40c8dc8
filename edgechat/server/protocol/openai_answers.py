"""Answers to OpenAI chats: one or more choices, as a whole or in chunks. Shares code with completions."""

from __future__ import annotations

import time
from abc import abstractmethod
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from edgechat.engine.tool_calls.tools import constrained_tools, unenforceable
from edgechat.engine.types import ChatRequest, Finished, Sampling
from edgechat.server.documents import AskedDocuments, FileCitation, SourceBody, asked_documents, citations_of
from edgechat.server.protocol.answers import (
    Answer,
    AnswerBlock,
    Answers,
    BlockBegun,
    BlockGrown,
    Change,
    PromptDetails,
    TokenLogprob,
    data_event,
    logprob_of,
)
from edgechat.server.protocol.fields import GenerationBody, RequestedEffort
from edgechat.server.protocol.openai_chat import ChatBody
from edgechat.server.refusal import Refusal, openai_error
from edgechat.settings import SamplingDefaults

FinishReason = Literal["stop", "length", "tool_calls", "function_call"]
_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "context": "length",
    "tools": "tool_calls",
}
_DONE = data_event(b"[DONE]")


class CompletionDetails(msgspec.Struct, frozen=True):
    """The numbers of thinking tokens and of accepted and rejected draft tokens."""

    reasoning_tokens: int
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class UsageBody(msgspec.Struct, frozen=True, kw_only=True):
    """The token counts for all answers to a request. Each prompt is counted once."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class AnswerTimings(msgspec.Struct, frozen=True):
    """Extension: time to the first token in milliseconds, and tokens per second, for the first answer."""

    ttft_ms: float
    prompt_tps: float
    decode_tps: float


def timings_of(end: Finished) -> AnswerTimings:
    """Return the timings of an answer."""
    own = end.timings
    return AnswerTimings(round(own.ttft_ms, 3), round(own.prompt_tps, 2), round(own.decode_tps, 2))


class ChoiceAnswers(Answers):
    """One or more answers to a request, as chunks or as a list of choices."""

    def __init__(
        self,
        body: GenerationBody,
        asked: ChatRequest,
        *,
        think: bool | None = None,
        effort: RequestedEffort | None = None,
        prompts: int = 1,
        documents: AskedDocuments | None = None,
    ) -> None:
        """prompts: number of prompts in the request. Each gets the same number of consecutive answers.

        Raises Refusal for fields that contradict each other.
        """
        options = body.stream_options
        if options is not None and not body.stream:
            raise Refusal("stream_options requires stream: true.", param="stream_options")
        super().__init__(
            asked,
            model=body.model,
            streams=body.stream,
            think=think,
            effort=effort,
            n_choices=body.n_choices * prompts,
            lora=body.lora,
            documents=documents,
        )
        self._created = int(time.time())
        self._prompts = prompts
        self._wants_usage = options is not None and options.include_usage

    def end(self) -> bytes:
        """Return the end of a stream: the token counts, if the client wants them, and [DONE]."""
        return (data_event(self._chunk([], usage=self._usage())) if self._wants_usage else b"") + _DONE

    def failure(self, refusal: Refusal) -> bytes:
        """Return an error as the last chunk."""
        return data_event(openai_error(refusal))

    @property
    def tokens(self) -> tuple[int, int]:
        """Number of prompt and completion tokens in the finished answers."""
        usage = self._usage()
        return usage.prompt_tokens, usage.completion_tokens

    @abstractmethod
    def _chunk(self, choices: list[Any], **more: Any) -> bytes:
        """Encode a chunk."""

    def _usage(self) -> UsageBody:
        ends = self._ends
        each = max(1, len(ends) // self._prompts)
        runs = [ends[at : at + each] for at in range(0, len(ends), each)]
        prompt = sum(max(one.usage.prompt_tokens for one in run) for run in runs)
        cached = sum(min(one.usage.cached_tokens for one in run) for run in runs)
        written = sum(one.usage.completion_tokens for one in ends)
        thinking = sum(reply.thinking_tokens for reply in self._replies)
        drafts = [one.speculation for one in ends if one.speculation is not None]
        accepted = sum(one.accepted_tokens for one in drafts)
        drafted = sum(one.drafted_tokens for one in drafts)
        return UsageBody(
            prompt_tokens=prompt,
            completion_tokens=written,
            total_tokens=prompt + written,
            prompt_tokens_details=PromptDetails(cached),
            completion_tokens_details=CompletionDetails(thinking, accepted, drafted - accepted),
        )


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
    """The start of a tool call (with id, type and name), or more of its arguments."""

    index: int
    """The position of the call in the list of calls, starting at 0."""
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: PartOfFunction


class ChoiceLogprobs(msgspec.Struct, frozen=True):
    """The logprobs of the answer's tokens."""

    content: list[TokenLogprob]


class AnswerMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The model's message."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[AnswerCall] | UnsetType = UNSET
    function_call: CalledFunction | UnsetType = UNSET
    """Used instead of tool_calls if the client sent `functions`."""
    refusal: None = None
    annotations: list[FileCitation] | UnsetType = UNSET
    """The citations, if the request asks for documents."""


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
    """The citations in the whole answer, sent with its last part."""


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
    """Extension: the number of turns left out, if `overflow` is "window"."""
    unenforced: list[str] | UnsetType = UNSET
    """Extension: keywords in the tools' schemas that were not enforced."""
    sources: list[SourceBody] | UnsetType = UNSET
    """Extension: the sources of the passages that the model was given."""


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


class ChatAnswers(ChoiceAnswers):
    """The answers to one chat request."""

    id_prefix = "chatcmpl-"
    insists = True
    window_field = '"overflow": "window"'

    def __init__(self, body: ChatBody, think: bool | None) -> None:
        """think: the default from the settings. Raises Refusal."""
        super().__init__(
            body,
            body.engine_request(),
            think=think,
            effort=body.reasoning_effort,
            documents=asked_documents(body.docs),
        )
        self._body = body
        self._unenforced = unenforceable(constrained_tools(self._asked)) or UNSET

    def _sampling(self, defaults: SamplingDefaults, choice: int) -> Sampling:
        return self._body.sampling(defaults, choice)

    def whole(self) -> bytes:
        """Return the collected answers as JSON."""
        completion = ChatCompletion(
            id=self._id,
            created=self._created,
            model=self.model,
            choices=[self._choice(index, reply) for index, reply in enumerate(self._replies)],
            usage=self._usage(),
            timings=timings_of(self._ends[0]),
            truncated=max(end.usage.dropped_turns for end in self._ends) or UNSET,
            unenforced=self._unenforced,
            sources=self._sources,
        )
        return msgspec.json.encode(completion)

    def _begin(self) -> bytes:
        role = PartOfAnswer(role="assistant", content="")
        return b"".join(self._part(choice, role) for choice in range(self.n_choices))

    def _encode(self, choice: int, change: Change) -> bytes:
        match change:
            case BlockBegun(block=block) if block.call is not None:
                function = PartOfFunction(name=block.call.name, arguments=block.text)
                return self._call_part(choice, block, function, id=block.call.id, type="function")
            case BlockGrown(block=AnswerBlock(kind="call") as block, text=text):
                return self._call_part(choice, block, PartOfFunction(arguments=text))
            case BlockGrown(block=AnswerBlock(kind="thinking"), text=text):
                return self._part(choice, PartOfAnswer(reasoning_content=text))
            case BlockGrown(text=text, chances=chances):
                logprobs = ChoiceLogprobs(list(map(logprob_of, chances))) if chances else UNSET
                return self._part(choice, PartOfAnswer(content=text), logprobs=logprobs)
            case Finished():
                part = PartOfAnswer(annotations=self._citations(self._replies[choice]))
                return self._part(choice, part, end=change, finish_reason=self._reason(change))
        return b""

    def _call_part(self, choice: int, block: AnswerBlock, function: PartOfFunction, **begins: Any) -> bytes:
        if self._body.functions:
            return self._part(choice, PartOfAnswer(function_call=function))
        call = PartOfCall(index=block.number, function=function, **begins)
        return self._part(choice, PartOfAnswer(tool_calls=[call]))

    def _part(self, choice: int, part: PartOfAnswer, end: Finished | None = None, **more: Any) -> bytes:
        """Encode the new part of one answer. end: how the answer ended, if this is its last part."""
        choices = [ChoiceChunk(index=choice, delta=part, **more)]
        if end is None:
            return data_event(self._chunk(choices))
        chunk = self._chunk(
            choices,
            timings=timings_of(end),
            truncated=end.usage.dropped_turns or UNSET,
            unenforced=self._unenforced,
            sources=self._sources,
        )
        return data_event(chunk)

    def _chunk(self, choices: list[ChoiceChunk], **more: Any) -> bytes:
        chunk = ChatChunk(id=self._id, created=self._created, model=self.model, choices=choices, **more)
        return msgspec.json.encode(chunk)

    def _choice(self, index: int, reply: Answer) -> ChatChoice:
        assert reply.end is not None
        calls = [
            AnswerCall(id=call.id, function=CalledFunction(name=call.name, arguments=arguments))
            for call, arguments in reply.calls
        ]
        is_function = bool(calls and self._body.functions)
        return ChatChoice(
            index=index,
            message=AnswerMessage(
                content=reply.text or (None if calls else ""),
                reasoning_content=reply.thinking or UNSET,
                tool_calls=UNSET if is_function else calls or UNSET,
                function_call=calls[0].function if is_function else UNSET,
                annotations=self._citations(reply),
            ),
            logprobs=ChoiceLogprobs(list(map(logprob_of, reply.chances))) if self._body.logprobs else None,
            finish_reason=self._reason(reply.end),
        )

    def _reason(self, end: Finished) -> FinishReason:
        reason = _REASONS[end.reason]
        return "function_call" if reason == "tool_calls" and self._body.functions else reason

    def _citations(self, reply: Answer) -> list[FileCitation] | UnsetType:
        return UNSET if self.documents is None else citations_of(reply.text, self.passages)
