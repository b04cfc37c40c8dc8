"""From the engine's events and errors to Ollama's answers, whole or line by line."""

from __future__ import annotations

import secrets
import time
from abc import abstractmethod
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType

from edgechat.engine.types import (
    ChatRequest,
    Delta,
    Finished,
    RequestEvent,
    ToolCall,
    ToolCallArguments,
    ToolCallBegun,
)
from edgechat.server.documents import AskedDocuments, SourceBody, asked_documents
from edgechat.server.pool.models import ServedModel
from edgechat.server.protocol.answers import OneAnswer, in_one_line
from edgechat.server.protocol.ollama.request import (
    GenerateBody,
    OllamaBody,
    OllamaChatBody,
    Options,
    model_of,
)
from edgechat.server.protocol.openai.logprobs import TokenLogprob, logprob_of
from edgechat.server.protocol.schemas import arguments_object
from edgechat.server.protocol.thinking import thinking_of
from edgechat.server.refusal import Refusal

DoneReason = Literal["stop", "length", "load", "unload"]
_NANOSECONDS = 1e9


class OllamaCalled(msgspec.Struct, frozen=True, kw_only=True):
    """The function to call, and its arguments: a JSON object."""

    name: str
    arguments: Raw
    index: int


class OllamaCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a tool."""

    id: str
    function: OllamaCalled


class OllamaAnswerMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The message of the model, or what is new of it."""

    role: Literal["assistant"] = "assistant"
    content: str
    thinking: str | UnsetType = UNSET
    tool_calls: list[OllamaCall] | UnsetType = UNSET


class OllamaLine(msgspec.Struct, frozen=True, kw_only=True):
    """What answers have in common. Durations are nanoseconds; they and the counts stand in the last line."""

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
    """Extension, in the last line: where the passages are from that the model was given."""


class GenerateLine(OllamaLine, frozen=True, kw_only=True):
    """A generated text, or a line of its stream."""

    response: str
    thinking: str | UnsetType = UNSET


class OllamaAnswers(OneAnswer[OllamaLine]):
    """The answer to one request, as it grows."""

    stream_type = "application/x-ndjson"

    def __init__(
        self,
        body: OllamaBody,
        asked: ChatRequest,
        think: bool | None,
        documents: AskedDocuments | None = None,
    ) -> None:
        """think: what the settings say for models that can switch it. Raises Refusal."""
        if body.top_logprobs and not body.logprobs:
            raise Refusal("top_logprobs requires logprobs: true.", param="top_logprobs")
        super().__init__(
            model=model_of(body.model),
            streams=body.stream is not False,
            priority=None,
            documents=documents,
        )
        self._body = body
        self._options = body.options or Options()
        self._think = think
        self._request = asked
        self._id = f"olla-{secrets.token_hex(12)}"
        self._began = time.monotonic()
        self._loaded = self._began
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._calls: list[OllamaCall] = []
        self._logprobs: list[TokenLogprob] = []
        self._open: tuple[ToolCall, list[str]] | None = None
        """The call that is being written, and its arguments so far."""

    def request(self, served: ServedModel, choice: int) -> ChatRequest:
        """Return what the engine is asked for."""
        self._loaded = time.monotonic()
        switch = self._body.think
        think, effort = thinking_of(
            served.model,
            think=switch if isinstance(switch, bool) else None,
            effort=switch if isinstance(switch, str) else None,
            default=self._think,
            insists=False,
        )
        is_raw = self._request.text is not None
        defaults = served.plan.sampling_for(think)
        return msgspec.structs.replace(
            self._request,
            id=self._id,
            max_tokens=self._options.most_tokens,
            logprobs=self._body.most_others,
            stop=self._options.stops,
            think=None if is_raw else think,
            effort=None if is_raw else effort,
            sampling=self._options.sampling(defaults.without_penalties() if is_raw else defaults),
        )

    def whole(self) -> bytes:
        """Return the answer."""
        line = self._line("".join(self._texts), "".join(self._thoughts), self._calls, self._ends[0])
        logprobs = self._logprobs if self._body.logprobs else UNSET
        return msgspec.json.encode(msgspec.structs.replace(line, logprobs=logprobs))

    def empty(self, reason: Literal["load", "unload"]) -> bytes:
        """Return the answer to a request that only loads or unloads the model."""
        line = msgspec.structs.replace(self._line(""), done=True, done_reason=reason)
        return msgspec.json.encode(line)

    def waiting(self) -> bytes:
        """Return nothing: there is no line that clients would skip."""
        return b""

    def failure(self, refusal: Refusal) -> bytes:
        """Return an error as the last line."""
        return in_one_line(error_body(refusal)) + b"\n"

    def _begin(self) -> bytes:
        return b""

    def _encode(self, told: OllamaLine) -> bytes:
        return in_one_line(msgspec.json.encode(told)) + b"\n"

    def _events(self, event: RequestEvent) -> list[OllamaLine]:
        """Take an event of the engine; return the lines that tell of it."""
        match event:
            case Delta(text=text, thinking=thinking, chances=chances):
                (self._thoughts if thinking else self._texts).append(text)
                told = [logprob_of(one) for one in chances]
                self._logprobs += told
                if not (text or told):
                    return []
                line = self._line("", text) if thinking else self._line(text)
                return [msgspec.structs.replace(line, logprobs=told or UNSET)]
            case ToolCallBegun(call=call):
                called = self._close_call()
                self._open = (call, [call.arguments])
                return called
            case ToolCallArguments(text=text):
                if self._open is not None:
                    self._open[1].append(text)
            case Finished():
                self._finish(0, event)
                return [*self._close_call(), self._line("", end=event)]
        return []

    def _close_call(self) -> list[OllamaLine]:
        """Return the line of the call that is complete now: its arguments are an object, and come whole."""
        if self._open is None:
            return []
        call, arguments = self._open
        self._open = None
        whole = arguments_object("".join(arguments))
        called = OllamaCalled(name=call.name, arguments=whole, index=len(self._calls))
        self._calls.append(OllamaCall(id=call.id, function=called))
        return [self._line("", calls=self._calls[-1:])]

    @abstractmethod
    def _line(
        self, text: str, thought: str = "", calls: list[OllamaCall] | None = None, end: Finished | None = None
    ) -> OllamaLine:
        """Return a line. end: of the answer, in its last line."""

    def _about(self, end: Finished | None) -> dict[str, Any]:
        now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        about: dict[str, Any] = {"model": self.model, "created_at": now, "done": end is not None}
        if end is None:
            return about
        usage, timings = end.usage, end.timings
        computed = usage.prompt_tokens - usage.cached_tokens
        return about | {
            "done_reason": "length" if end.reason in ("length", "context") else "stop",
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
        """Raise Refusal for what cannot be."""
        super().__init__(body, body.asked(), think, asked_documents(body.docs))

    def _line(
        self, text: str, thought: str = "", calls: list[OllamaCall] | None = None, end: Finished | None = None
    ) -> OllamaChatLine:
        message = OllamaAnswerMessage(content=text, thinking=thought or UNSET, tool_calls=calls or UNSET)
        sources = UNSET if end is None else self._sources
        return OllamaChatLine(message=message, sources=sources, **self._about(end))


class GenerateAnswers(OllamaAnswers):
    """The answer to a prompt."""

    def __init__(self, body: GenerateBody, think: bool | None) -> None:
        """Raise Refusal for what cannot be."""
        super().__init__(body, body.asked(), think)

    def _line(
        self, text: str, thought: str = "", calls: list[OllamaCall] | None = None, end: Finished | None = None
    ) -> GenerateLine:
        return GenerateLine(response=text, thinking=thought or UNSET, **self._about(end))


def _duration(tokens: int, rate: float) -> int:
    """Return how long tokens have taken, in nanoseconds."""
    return int(tokens / rate * _NANOSECONDS) if rate > 0 else 0


class OllamaError(msgspec.Struct, frozen=True):
    """The body of an error response, or the last line of a stream that fails."""

    error: str


def error_body(refusal: Refusal) -> bytes:
    """Return the JSON of a refusal."""
    return msgspec.json.encode(OllamaError(refusal.message))
