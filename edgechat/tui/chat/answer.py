"""One reply on its way from the engine to the screen."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING

from edgechat.chat.conversation import Conversation
from edgechat.chat.generation_options import GenerationOptions
from edgechat.chat.messages import not_sent
from edgechat.chat.records import Turn
from edgechat.engine.protocol import Engine
from edgechat.engine.types import Delta, Dropped, Finished, Prefill, RequestEvent
from edgechat.errors import EdgechatError
from edgechat.tui.transcript.live import LiveReply

if TYPE_CHECKING:
    from edgechat.tui.chat.conversation_view import ConversationView

_FRAME = 1 / 15
_SLOWEST_FRAME = 0.5
_IDLE_SHARE = 3
"""Painting takes at most one part in so many of the time, so that keys come through on a busy machine."""


class ReplyEvents:
    """Shows the events of one reply: text as pieces, the rest as what the talk is doing."""

    def __init__(self, talk: ConversationView, conversation: Conversation) -> None:
        self._talk = talk
        self._conversation = conversation
        self._live = LiveReply(talk)
        self._prompt_tokens = 0
        self._tokens = 0
        self._first_at: float | None = None
        """When the first token came; None before it, and once the engine has told its own figures."""
        self._trouble_told = False

    async def run(self, engine: Engine, manner: GenerationOptions) -> None:
        """Stream the reply to its end. Whatever that is, the pieces show it, errors included."""
        talk, conversation = self._talk, self._conversation
        before, dropped = len(conversation.turns), conversation.dropped
        problem: EdgechatError | None = None
        painting = asyncio.create_task(self._paint())
        talk.speedup = 0.0
        talk.tell("Waiting for the model")
        try:
            reply = conversation.answer(engine, manner, on_progress=self._show_load)
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
        self._talk.tell("Loading the model", share)

    def _take(self, event: RequestEvent, dropped: int) -> None:
        talk = self._talk
        match event:
            case Dropped(_, turns) if turns > dropped:
                talk.on_told(f"The context is full: {not_sent(turns)}.")
            case Prefill(_, done, total):
                self._prompt_tokens = total
                talk.tell(f"Reading {done:,} of {total:,} tokens", done / max(1, total))
            case Delta(_, _, thinking, tokens):
                self._first_at = self._first_at or time.monotonic()
                self._tokens = tokens
                self._live.take(event)
                talk.tell("Thinking" if thinking else "Writing")
            case Finished(_, _, usage, timings, speculation):
                self._prompt_tokens, self._tokens = usage.prompt_tokens, usage.completion_tokens
                self._first_at = None
                talk.speed = timings.decode_tps or talk.speed
                talk.speedup = speculation.speedup if speculation else 0.0
                talk.on_finished(event)

    async def _paint(self) -> None:
        """Show what has come a few times a second, less often where showing it is slow."""
        pause = _FRAME
        while True:
            await asyncio.sleep(pause)
            began = time.perf_counter()
            if self._live.paint():
                self._show_figures()
                self._tell_trouble()
                await self._talk.painted()
            cost = time.perf_counter() - began
            pause = min(_SLOWEST_FRAME, max(_FRAME, (_IDLE_SHARE - 1) * cost))

    def _show_figures(self) -> None:
        self._talk.used = self._prompt_tokens + self._tokens
        if self._first_at is not None and self._tokens > 1:
            elapsed = time.monotonic() - self._first_at
            if elapsed > _SLOWEST_FRAME:
                self._talk.speed = (self._tokens - 1) / elapsed
        self._talk.on_change(self._talk)

    def _tell_trouble(self) -> None:
        trouble, told = self._conversation.trouble, self._trouble_told
        self._trouble_told = trouble is not None
        if trouble is not None and not told:
            self._talk.on_told(f"{trouble.message} What comes now is not saved.")

    def _end(self, turn: Turn | None, problem: EdgechatError | None) -> None:
        told = turn is not None and turn.error is not None
        if turn is not None:
            self._live.finish(turn, self._conversation.branches(turn.id))
        if problem is not None and not told:
            self._talk.tell_problem(problem)
        self._talk.used = self._prompt_tokens + self._tokens or self._talk.used
