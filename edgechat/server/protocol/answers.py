"""What every protocol makes of the engine's events: server-sent events, lines, or a whole answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import ClassVar, Generic, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from edgechat.documents.library import Given
from edgechat.engine.types import (
    ChatRequest,
    Dropped,
    Finished,
    Prefill,
    Priority,
    RequestEvent,
    TokenLogprobs,
)
from edgechat.server.documents import AskedDocuments, SourceBody, sources_of
from edgechat.server.pool.models import ServedModel
from edgechat.server.protocol.fields import LoraBody
from edgechat.server.refusal import Refusal

Told = TypeVar("Told")
LONGER = "to use a longer context, start the server with `edgechat serve --ctx`."


class Answers(ABC):
    """The answers to one request, as they grow: sent in pieces, or collected and sent as a whole."""

    stream_type: ClassVar[str] = "text/event-stream"
    """The media type of a stream."""

    def __init__(
        self,
        *,
        model: str | None,
        streams: bool | None,
        priority: Priority | None,
        n_choices: int = 1,
        lora: Sequence[LoraBody] | None = None,
        documents: AskedDocuments | None = None,
    ) -> None:
        self.requested_model = model or ""
        """The name that the request gives."""
        self.model = ""
        """The name of the model that answers, once it is known."""
        self.streams = bool(streams)
        self.priority: Priority = priority or "interactive"
        self.n_choices = n_choices
        self.lora = lora
        """The adapters that the request lists; None: it does not."""
        self.documents = documents
        """What the request asks of documents."""
        self.passages: Sequence[Given] = ()
        """Those of documents that the model is given, once they are found."""
        self._ends: list[Finished | None] = [None] * n_choices
        self._has_begun = False
        self._prompt_tokens = 0
        self._cached_tokens = 0
        """Tokens of the prompt that are not computed again, as far as it is known before the end."""

    @property
    def shorter(self) -> str:
        """Return advice for a prompt that is too long."""
        return f"Shorten it; {LONGER}"

    @abstractmethod
    def request(self, served: ServedModel, choice: int) -> ChatRequest:
        """Return the engine's request for one answer."""

    def send(self, choice: int, event: RequestEvent) -> bytes:
        """Return what a stream tells of an event. Raises Refusal for an answer that was cut short."""
        match event:
            case Prefill():
                self._note_prompt(event)
                return b""
            case Dropped():
                return b""
        beginning = b"" if self._has_begun else self._begin()
        self._has_begun = True
        return beginning + self._send(choice, event)

    @abstractmethod
    def _begin(self) -> bytes:
        """Return what a stream begins with."""

    @abstractmethod
    def _send(self, choice: int, event: RequestEvent) -> bytes:
        """Return what a stream tells of an event of the answer itself."""

    def waiting(self) -> bytes:
        """Return what is sent where nothing else is for long; empty where the protocol has nothing for it."""
        return b": waiting\n\n"

    async def settle(self) -> None:  # noqa: B027 - most have nothing to do
        """Do what must be done between the last event and the end, which may tell of it."""

    @abstractmethod
    def end(self) -> bytes:
        """Return what a stream ends with."""

    @abstractmethod
    def failure(self, refusal: Refusal) -> bytes:
        """Return what a stream ends with where it fails after its beginning."""

    @abstractmethod
    def take(self, choice: int, event: RequestEvent) -> None:
        """Collect an event of an answer that is sent as a whole. Raises Refusal as `send` does."""

    @abstractmethod
    def whole(self) -> bytes:
        """Return the collected answers as JSON."""

    @property
    def tokens(self) -> tuple[int, int]:
        """The prompt and completion tokens of the finished answers; the prompt of several counts once."""
        usages = [end.usage for end in self._done()]
        prompt = max((usage.prompt_tokens for usage in usages), default=0)
        return prompt, sum(usage.completion_tokens for usage in usages)

    @property
    def _sources(self) -> list[SourceBody] | UnsetType:
        """Where the passages of documents are from, if the request has asked for any."""
        return UNSET if self.documents is None else sources_of(self.passages)

    def _done(self) -> list[Finished]:
        return [end for end in self._ends if end is not None]

    def _note_prompt(self, event: Prefill) -> None:
        self._prompt_tokens, self._cached_tokens = event.total, event.cached

    def _finish(self, choice: int, end: Finished) -> None:
        """Remember how an answer ended. Raises Refusal for one that the server has cut short."""
        if end.reason == "cancelled":
            raise Refusal("The server was stopped during the answer.", status=503, code="stopped")
        self._ends[choice] = end


class OneAnswer(Answers, Generic[Told]):
    """The answer where there is only one, of which events tell, the last one of its end."""

    def take(self, choice: int, event: RequestEvent) -> None:
        """Collect an event. Raises Refusal for an answer that was cut short."""
        for _ in self._events(event):
            pass

    def end(self) -> bytes:
        """Return nothing: the last event has told of the end."""
        return b""

    def _send(self, choice: int, event: RequestEvent) -> bytes:
        return b"".join(map(self._encode, self._events(event)))

    @abstractmethod
    def _events(self, event: RequestEvent) -> Iterable[Told]:
        """Take an event of the engine; return those that tell of it."""

    @abstractmethod
    def _encode(self, told: Told) -> bytes:
        """Return an event as it is sent."""


_ENDS_OF_LINES = tuple((mark.encode(), rf"\u{ord(mark):04x}".encode()) for mark in "\x85\u2028\u2029")
"""Where clients that cut text as Unicode says (httpx does) end a line, and how JSON escapes it."""


def in_one_line(data: bytes) -> bytes:
    """Return JSON without line ends as one line for every client."""
    for mark, escaped in _ENDS_OF_LINES:
        data = data.replace(mark, escaped)
    return data


def data_event(data: bytes) -> bytes:
    """Return an event without a name. data: JSON without line ends."""
    return b"data: " + in_one_line(data) + b"\n\n"


def named_event(name: str, data: bytes) -> bytes:
    """Return an event with a name. data: JSON without line ends."""
    return b"event: " + name.encode() + b"\n" + data_event(data)


class TopLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """A token and its logprob, the natural logarithm of its probability."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob, frozen=True, kw_only=True):
    """The logprob of a token of the answer, and of its alternatives."""

    top_logprobs: list[TopLogprob]


def logprob_of(chance: TokenLogprobs) -> TokenLogprob:
    """Return the logprobs of a token as clients get them."""
    others = [_chance(token, logprob) for token, logprob in chance.others]
    own = _chance(chance.token, chance.logprob)
    return TokenLogprob(token=own.token, logprob=own.logprob, bytes=own.bytes, top_logprobs=others)


def _chance(token: bytes, logprob: float) -> TopLogprob:
    return TopLogprob(token=token.decode("utf-8", "replace"), logprob=logprob, bytes=list(token))


class PromptDetails(msgspec.Struct, frozen=True):
    """Prompt tokens that were found in the prefix cache."""

    cached_tokens: int
