"""The running reply of an open conversation: its progress, and how its events are shown."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing, suppress
from functools import partial
from typing import TYPE_CHECKING

from edgechat.base.errors import EdgechatError
from edgechat.base.text import one_line
from edgechat.chat.conversation import Conversation
from edgechat.chat.messages import not_sent
from edgechat.chat.records import ToolUse, Turn
from edgechat.chat.reply.calls import UseChanged, name_of
from edgechat.chat.reply.reply import ReplyEvent
from edgechat.chat.session import ChatSession
from edgechat.engine.protocol import Engine
from edgechat.engine.remote.starting import LOG_BYTES, Starting
from edgechat.engine.types import Delta, Dropped, ErrorInfo, Finished, Prefill, ToolCallBegun
from edgechat.tools.consent import Permission
from edgechat.tui.chat.views import ChatView, TranscriptView

if TYPE_CHECKING:
    from edgechat.documents.indexing import Progress

_FRAME = 1 / 15
_SLOWEST_FRAME = 0.5
_PAUSE_PER_COST = 2
"""Length of the pause after painting, as a multiple of the time that painting took.

Painting thus takes at most a third of the time, and keys are handled even on a busy machine.
"""
_PROGRESS_EVERY = 0.1
"""Seconds between progress updates."""


def progress_on_loop(show: Callable[[str, float], None]) -> Callable[[Progress], None]:
    """Return a callback that other threads can call to show reading progress on this event loop."""
    loop, shown_at = asyncio.get_running_loop(), -_PROGRESS_EVERY

    def take(progress: Progress) -> None:
        nonlocal shown_at
        if progress.name and time.monotonic() - shown_at >= _PROGRESS_EVERY:
            shown_at = time.monotonic()
            text = f"Reading {progress.done + 1:,} of {progress.total:,} documents"
            with suppress(RuntimeError):  # the app has been closed
                loop.call_soon_threadsafe(show, text, progress.done / progress.total)

    return take


def load_shown(show: Callable[[str, float | None], None], engine: Engine) -> Callable[[float], None]:
    """Return a callback that shows loading progress, or the activity of a program that is starting."""
    if engine.plan.remote is None:
        return partial(show, "Loading the model")
    if engine.plan.program is None:
        waiting = f"Waiting for {engine.plan.remote.server}"
        return lambda _share: show(waiting, None)
    starting = Starting(engine.plan)
    return lambda share: show(starting.line(engine.log_tail(LOG_BYTES)), share or None)


class ReplyStatus:
    """A conversation's activity, and the statistics of its last reply."""

    def __init__(self, transcript: TranscriptView, on_change: Callable[[], None]) -> None:
        self.transcript = transcript
        self.activity: tuple[str, float | None, float | None] = ("", None, None)
        """See `Status`."""
        self.used: int | None = 0
        """Number of context tokens in use, or None if unknown."""
        self.speed = self.speedup = 0.0
        """The reply's tokens per second, and its speedup over plain decoding. Both are 0 if unknown."""
        self.changed = on_change
        """Callback for changes to the activity or the statistics."""

    def show_activity(self, activity: str, share: float | None = None, cached: float | None = None) -> None:
        """Show an activity; '' removes it. share: the fraction done, if known. cached: see `Status`."""
        self.activity = (activity, share, cached)
        self.changed()


class ReplyEvents:
    """Shows a reply's events: text in the transcript, the rest as activity and statistics."""

    def __init__(self, opened: ReplyStatus, view: ChatView, conversation: Conversation) -> None:
        self._opened = opened
        self._view = view
        self._conversation = conversation
        self._resumes = conversation.can_continue
        transcript = opened.transcript
        last = conversation.turns[-1]
        self._reply = transcript.resume_reply(last) if self._resumes else transcript.new_reply()
        self._prompt_tokens = 0
        self._tokens = 0
        self._running: dict[str, tuple[str, float]] = {}
        """Name and start time of each running call, keyed by id."""
        self._first_at: float | None = None
        """When the first token arrived; None before that, and once the engine has sent its timings."""
        self._warned_unsaved = False

    async def run(self, session: ChatSession, permission: Permission) -> EdgechatError | None:
        """Stream the reply to its end. If an error ends it, show and return the error.

        permission: decides whether a tool call is allowed.
        """
        opened, conversation = self._opened, self._conversation
        before, dropped = len(conversation.turns), conversation.dropped
        problem: EdgechatError | None = None
        painting = asyncio.create_task(self._paint())
        opened.speed = opened.speedup = 0.0
        has_tools = bool(session.chosen_tools(conversation.settings))
        opened.show_activity("Preparing the tools" if has_tools else "Waiting for the model")
        try:
            show_load = load_shown(opened.show_activity, await session.engine())
            reply = session.answer(conversation, permission=permission, on_progress=show_load)
            async with aclosing(reply) as events:
                async for event in events:
                    self._handle(event, dropped)
        except EdgechatError as exc:
            problem = exc
        finally:
            painting.cancel()
            with suppress(asyncio.CancelledError):
                await painting
            has_reply = self._resumes or len(conversation.turns) > before
            self._end(conversation.turns[-1] if has_reply else None, problem)
        return problem

    def _handle(self, event: ReplyEvent, dropped: int) -> None:
        opened = self._opened
        match event:
            case Dropped(_, turns) if turns > dropped:
                self._view.warn(f"The context is full: {not_sent(turns)}.")
            case Prefill(_, done, total, cached):
                self._prompt_tokens = total
                reading = f"Reading {done:,} of {total:,} tokens" + f", {cached:,} cached" * bool(cached)
                opened.show_activity(reading, done / max(1, total), cached / max(1, total))
            case Delta(_, _, thinking, tokens):
                self._first_at = self._first_at or time.monotonic()
                self._tokens = tokens
                self._reply.take(event)
                opened.show_activity("Thinking" if thinking else "Writing")
            case ToolCallBegun(_, call):
                opened.show_activity(f"Writing a call to {one_line(call.name, 60)}")
            case UseChanged(_, use, running, error):
                self._reply.take_use(event)
                self._show_calls(use, running=running)
                if error is not None:
                    self._view.show_error(error)
            case Finished(_, _, usage, timings, speculation):
                self._prompt_tokens, self._tokens = usage.prompt_tokens, usage.completion_tokens
                self._first_at = None
                opened.speed = timings.decode_tps
                opened.speedup = speculation.speedup if speculation else 0.0
                self._view.show_finished(event)

    def _show_calls(self, use: ToolUse, *, running: bool) -> None:
        """Show the latest running call as the activity, with its running time."""
        self._running.pop(use.id, None)
        if running:
            self._running[use.id] = (name_of(use), time.monotonic())
        if use.outcome != "open" and not self._running:
            self._opened.show_activity("Waiting for the model")
        self._show_running()

    def _show_running(self) -> None:
        if self._running:
            name, since = next(reversed(self._running.values()))
            elapsed = int(time.monotonic() - since)
            self._opened.show_activity(f"Calling {name}" + f", {elapsed} s" * bool(elapsed))

    async def _paint(self) -> None:
        """Show new text a few times a second, or less often on a slow terminal."""
        pause = _FRAME
        while True:
            await asyncio.sleep(pause)
            began = time.perf_counter()
            self._show_running()
            if self._reply.paint():
                self._show_figures()
                self._warn_if_unsaved()
                await self._opened.transcript.painted()
            cost = time.perf_counter() - began
            pause = min(_SLOWEST_FRAME, max(_FRAME, _PAUSE_PER_COST * cost))

    def _show_figures(self) -> None:
        self._opened.used = self._prompt_tokens + self._tokens
        if self._first_at is not None and self._tokens > 1:
            elapsed = time.monotonic() - self._first_at
            if elapsed > _SLOWEST_FRAME:
                self._opened.speed = (self._tokens - 1) / elapsed
        self._opened.changed()

    def _warn_if_unsaved(self) -> None:
        error = self._conversation.save_error
        if error is not None and not self._warned_unsaved:
            self._view.warn(f"{error.message} The rest of the answer is not being saved.")
        self._warned_unsaved = error is not None

    def _end(self, turn: Turn | None, problem: EdgechatError | None) -> None:
        if turn is not None:
            self._reply.finish(turn, self._conversation.branches(turn.id))
        if problem is not None and (turn is None or turn.error != ErrorInfo.of(problem)):
            self._opened.transcript.add_problem(problem)
        self._opened.used = self._prompt_tokens + self._tokens or self._opened.used
