"""One reply on its way from the engine to the screen."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing, suppress

from edgechat.chat.conversation import Conversation
from edgechat.chat.engine import Manner
from edgechat.chat.records import Turn
from edgechat.engine.types import Delta, Dropped, Finished, Prefill, RequestEvent
from edgechat.errors import EdgechatError
from edgechat.tui.activity import Activity
from edgechat.tui.session import AppEngine
from edgechat.tui.status import StatusBar
from edgechat.tui.transcript.live import LiveReply
from edgechat.tui.transcript.pieces import ProblemPiece
from edgechat.tui.transcript.transcript import Transcript
from edgechat.tui.transcript.turns import dropped_note

_FRAME = 1 / 15
_SLOWEST_FRAME = 0.5
_IDLE_SHARE = 3
"""Painting takes at most one part in so many of the time, so that keys come through on a busy machine."""


class Answer:
    """Shows the events of one reply: text in the transcript, the rest in the activity line and the footer."""

    def __init__(self, transcript: Transcript, activity: Activity, status: StatusBar) -> None:
        self._transcript = transcript
        self._activity = activity
        self._status = status
        self._live = LiveReply(transcript)
        self._prompt_tokens = 0
        self._tokens = 0
        self._dropped = 0
        self._first_at = 0.0

    async def run(self, conversation: Conversation, engine: AppEngine, manner: Manner) -> None:
        """Stream the reply to its end. Whatever that is, it is on the screen afterwards, errors included."""
        before, self._dropped = len(conversation.turns), conversation.dropped
        problem: EdgechatError | None = None
        painting = asyncio.create_task(self._paint())
        self._activity.show("Waiting for the model")
        self._status.speedup = 0.0
        try:
            reply = conversation.answer(engine, manner, on_progress=self._show_load)
            async with aclosing(reply) as events:
                async for event in events:
                    self._take(event)
        except EdgechatError as exc:
            problem = exc
        finally:
            painting.cancel()
            with suppress(asyncio.CancelledError):
                await painting
            turn = conversation.turns[-1] if len(conversation.turns) > before else None
            if self._transcript.is_running:
                self._end(turn, problem)

    def _show_load(self, share: float) -> None:
        self._activity.show("Loading the model", share)

    def _take(self, event: RequestEvent) -> None:
        match event:
            case Dropped(_, turns) if turns > self._dropped:
                self._transcript.add(dropped_note(turns))
            case Prefill(_, done, total):
                self._prompt_tokens = total
                self._activity.show(f"Reading {done:,} of {total:,} tokens", done / max(1, total))
            case Delta(_, _, thinking, tokens):
                self._first_at = self._first_at or time.monotonic()
                self._tokens = tokens
                self._live.take(event)
                self._activity.show("Thinking" if thinking else "Writing")
            case Finished(_, _, usage, timings, speculation):
                self._prompt_tokens, self._tokens = usage.prompt_tokens, usage.completion_tokens
                self._status.speed = timings.decode_tps or self._status.speed
                self._status.speedup = speculation.speedup if speculation else 0.0

    async def _paint(self) -> None:
        """Show what has come a few times a second, less often where showing it is slow."""
        pause = _FRAME
        while True:
            await asyncio.sleep(pause)
            began = time.perf_counter()
            if self._live.paint():
                self._show_figures()
                await self._transcript.wait_for_refresh()
            cost = time.perf_counter() - began
            pause = min(_SLOWEST_FRAME, max(_FRAME, (_IDLE_SHARE - 1) * cost))

    def _show_figures(self) -> None:
        self._status.used = self._prompt_tokens + self._tokens
        elapsed = time.monotonic() - self._first_at
        if self._tokens > 1 and elapsed > _SLOWEST_FRAME:
            self._status.speed = (self._tokens - 1) / elapsed

    def _end(self, turn: Turn | None, problem: EdgechatError | None) -> None:
        told = turn is not None and turn.error is not None
        if turn is not None:
            self._live.finish(turn)
        if problem is not None and not told:
            self._transcript.add(ProblemPiece(problem.message, problem.hint))
        self._status.used = self._prompt_tokens + self._tokens or self._status.used
        self._activity.clear()
