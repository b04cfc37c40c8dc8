"""One reply on its way from the engine to the screen."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing, suppress
from typing import Protocol

from edgechat.base.errors import EdgechatError
from edgechat.chat.conversation import Conversation
from edgechat.chat.messages import not_sent
from edgechat.chat.records import Turn
from edgechat.chat.session import ChatSession
from edgechat.engine.types import Delta, Dropped, Finished, Prefill, RequestEvent
from edgechat.tui.chat.views import TranscriptView

_FRAME = 1 / 15
_SLOWEST_FRAME = 0.5
_IDLE_SHARE = 3
"""Painting takes at most one part in so many of the time, so that keys come through on a busy machine."""


class ReplyObserver(Protocol):
    """What is told how a reply comes along."""

    used: int
    speed: float
    speedup: float

    @property
    def transcript(self) -> TranscriptView:
        """Where the reply is shown."""

    def tell(self, words: str, share: float | None = None) -> None:
        """Say what is being done, and the share of it that is done, if known."""

    def changed(self) -> None:
        """One of the figures above has another value."""

    def warn(self, message: str) -> None:
        """Say something that does not belong to the transcript."""

    def finished(self, finished: Finished) -> None:
        """The engine has finished the reply."""


class ReplyEvents:
    """Shows the events of one reply: its text in the transcript, the rest as activity and figures."""

    def __init__(self, observer: ReplyObserver, conversation: Conversation) -> None:
        self._observer = observer
        self._conversation = conversation
        self._live = observer.transcript.new_reply()
        self._prompt_tokens = 0
        self._tokens = 0
        self._first_at: float | None = None
        """When the first token came; None before it, and once the engine has told its own figures."""
        self._trouble_told = False

    async def run(self, session: ChatSession) -> None:
        """Stream the reply to its end. Whatever that is, the transcript shows it, errors included."""
        observer, conversation = self._observer, self._conversation
        before, dropped = len(conversation.turns), conversation.dropped
        problem: EdgechatError | None = None
        painting = asyncio.create_task(self._paint())
        observer.speedup = 0.0
        observer.tell("Waiting for the model")
        try:
            reply = session.answer(conversation, on_progress=self._show_load)
            async with aclosing(reply) as events:
                async for event in events:
                    self._take(event, dropped)
        except EdgechatError as exc:
            problem = exc
        finally:
            painting.cancel()
            with suppress(asyncio.CancelledError):
                await painting
            self._end(conversation.turns[-1] if len(conversation.turns) > before else None, problem)

    def _show_load(self, share: float) -> None:
        self._observer.tell("Loading the model", share)

    def _take(self, event: RequestEvent, dropped: int) -> None:
        observer = self._observer
        match event:
            case Dropped(_, turns) if turns > dropped:
                observer.warn(f"The context is full: {not_sent(turns)}.")
            case Prefill(_, done, total):
                self._prompt_tokens = total
                observer.tell(f"Reading {done:,} of {total:,} tokens", done / max(1, total))
            case Delta(_, _, thinking, tokens):
                self._first_at = self._first_at or time.monotonic()
                self._tokens = tokens
                self._live.take(event)
                observer.tell("Thinking" if thinking else "Writing")
            case Finished(_, _, usage, timings, speculation):
                self._prompt_tokens, self._tokens = usage.prompt_tokens, usage.completion_tokens
                self._first_at = None
                observer.speed = timings.decode_tps or observer.speed
                observer.speedup = speculation.speedup if speculation else 0.0
                observer.finished(event)

    async def _paint(self) -> None:
        """Show what has come a few times a second, less often where showing it is slow."""
        pause = _FRAME
        while True:
            await asyncio.sleep(pause)
            began = time.perf_counter()
            if self._live.paint():
                self._show_figures()
                self._tell_trouble()
                await self._observer.transcript.painted()
            cost = time.perf_counter() - began
            pause = min(_SLOWEST_FRAME, max(_FRAME, (_IDLE_SHARE - 1) * cost))

    def _show_figures(self) -> None:
        self._observer.used = self._prompt_tokens + self._tokens
        if self._first_at is not None and self._tokens > 1:
            elapsed = time.monotonic() - self._first_at
            if elapsed > _SLOWEST_FRAME:
                self._observer.speed = (self._tokens - 1) / elapsed
        self._observer.changed()

    def _tell_trouble(self) -> None:
        trouble, told = self._conversation.trouble, self._trouble_told
        self._trouble_told = trouble is not None
        if trouble is not None and not told:
            self._observer.warn(f"{trouble.message} The rest of the answer is not being saved.")

    def _end(self, turn: Turn | None, problem: EdgechatError | None) -> None:
        told = turn is not None and turn.error is not None
        if turn is not None:
            self._live.finish(turn, self._conversation.branches(turn.id))
        if problem is not None and not told:
            self._observer.transcript.add_problem(problem)
        self._observer.used = self._prompt_tokens + self._tokens or self._observer.used
