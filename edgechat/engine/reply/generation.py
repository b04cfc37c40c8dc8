"""Generation: a request whose reply is being generated, with its text, calls and logprobs."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import ClassVar

from msgspec.structs import replace

from edgechat.engine.backends.base import Logits, Vocabulary
from edgechat.engine.prompt.template import ChatTemplate, begins_answer
from edgechat.engine.reply.reply import Piece, Reply, ReplyPart, Shown
from edgechat.engine.sampling import logprobs
from edgechat.engine.scheduling.sequence import Sequence
from edgechat.engine.tool_calls.splitter import ArgumentsText, Splitter
from edgechat.engine.tool_calls.tools import constrained_tools, kinds_of
from edgechat.engine.types import (
    ChatRequest,
    Delta,
    Event,
    FinishReason,
    Message,
    TokenLogprobs,
    ToolCall,
    ToolCallArguments,
    ToolCallBegun,
)


@dataclass(slots=True, eq=False, kw_only=True)
class Generation(Sequence):
    """A sequence whose reply is being generated."""

    generates: ClassVar[bool] = True

    reply: Reply
    logprobs: Logprobs | None = None
    """Logprobs of the reply's tokens, if requested."""
    drawn: int | None = None
    """The next token, if the backend has sampled it."""
    pieces: list[Piece] = field(default_factory=list)
    """The text of the reply so far."""
    calls: list[ToolCall] = field(default_factory=list)
    """The calls so far, without their arguments."""
    arguments: list[list[str]] = field(default_factory=list)

    def extend(self, token: int, piece: bytes) -> list[Event]:
        """Add a token and its bytes. Returns events for the text that is now complete."""
        self.tokens.append(token)
        shown = self.reply.feed(piece)
        if self.logprobs is not None:
            self.logprobs.track(self.reply)
        return self._events(shown)

    def finish(self, reason: FinishReason) -> list[Event]:
        """End the reply. Returns events for text that was held back."""
        return self._events(self.reply.finish(cut=reason != "stop"))

    def _events(self, shown: list[Shown]) -> list[Event]:
        self.pieces += [item for item in shown if not isinstance(item, ToolCall | ArgumentsText)]
        logprobs = self.logprobs.take_shown(self.reply) if self.logprobs is not None else ()
        events: list[Event] = []
        for item in shown:
            if isinstance(item, ToolCall):
                self.calls.append(item)
                self.arguments.append([])
                events.append(ToolCallBegun(self.id, item, self.n_generated))
                continue
            if isinstance(item, ArgumentsText):
                self.arguments[-1].append(item.text)
                events.append(ToolCallArguments(self.id, item.text, self.n_generated))
                continue
            text, thinking = item
            shown_logprobs, logprobs = ((), logprobs) if thinking else (logprobs, ())
            events.append(Delta(self.id, text, thinking, self.n_generated, shown_logprobs))
        return events

    def message(self) -> Message:
        """Return the reply as a message to include in the next turn's prompt."""
        answer = "".join(text for text, thinking in self.pieces if not thinking)
        thought = "".join(text for text, thinking in self.pieces if thinking)
        calls = (
            replace(call, arguments="".join(pieces))
            for call, pieces in zip(self.calls, self.arguments, strict=True)
        )
        return Message("assistant", answer, thought, tuple(calls))


PlacedLogprobs = tuple[int, TokenLogprobs]
"""A token's position in the answer, in characters, and its logprobs."""


class Logprobs:
    """Logprobs of a reply's tokens, returned along with the text in which each token begins.

    There are no logprobs for thoughts, calls or text that is never shown (marks, text after a stop string).
    """

    def __init__(self, vocabulary: Vocabulary, others: int) -> None:
        """others: how many of the likeliest tokens to report along with each token."""
        self._vocabulary = vocabulary
        self._others = others
        self._computed: deque[TokenLogprobs] = deque()
        self._undecided: list[PlacedLogprobs] = []
        self._ready: deque[PlacedLogprobs] = deque()
        self._n_answer = self._n_calls = 0

    def compute(self, rows: Logits, tokens: Seq[int]) -> None:
        """Compute the logprobs of the next tokens from the logits [n, n_vocab] they were sampled from."""
        self._computed.clear()  # some may be left over if turns were dropped
        for row, token in zip(rows, tokens, strict=False):
            chance, likeliest = logprobs(row, token, self._others)
            others = tuple((self._text(other), value) for other, value in likeliest)
            self._computed.append(TokenLogprobs(self._text(token), chance, others))

    def _text(self, token: int) -> bytes:
        return self._vocabulary.piece(token) or self._vocabulary.piece(token, special=True)

    def track(self, reply: Reply) -> None:
        """Record that the next token was added to the reply."""
        self._undecided.append((self._n_answer, self._computed.popleft()))
        self._n_answer = reply.n_answer
        if reply.in_call:
            return
        if reply.n_calls > self._n_calls:  # the undecided tokens were part of a call
            self._n_calls = reply.n_calls
            while self._ready and self._ready[-1][0] >= reply.n_shown:  # whitespace before the call
                self._ready.pop()
        elif reply.where is ReplyPart.ANSWER:
            self._ready += self._undecided
        elif reply.where is not ReplyPart.THINKING and reply.is_holding:
            return  # this may be the start of a mark, or of an answer
        self._undecided.clear()

    def take_shown(self, reply: Reply) -> tuple[TokenLogprobs, ...]:
        """Return the logprobs of tokens that begin in the text shown since this was last called."""
        logprobs: list[TokenLogprobs] = []
        while self._ready and self._ready[0][0] < reply.n_shown:
            logprobs.append(self._ready.popleft()[1])
        return tuple(logprobs)


def reply_of(request: ChatRequest, template: ChatTemplate, *, thinking: bool) -> Reply:
    """Return an empty reply for a request. thinking: whether the prompt already opens the thought."""
    if request.text is not None:
        return Reply(request.stop)
    calls = None
    if request.tools:
        calls = Splitter(
            template.calls,
            kinds_of(request.tools),
            forced=request.tool_choice == "required",
            marked=bool(constrained_tools(request)),
            most=request.most_calls,
        )
    marks = None if begins_answer(request.messages) else template.marks
    return Reply(request.stop, marks, ends=template.stop, thinking=thinking, calls=calls)
