"""A reply: repeats requests until the model makes no more tool calls, and saves the text as it is generated.

`ReplyLoop` puts tool results into the next request; `ReplySaver` writes the text at least every half second.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import msgspec

from edgechat.base.errors import ChatBusy, EdgechatError, StoreError
from edgechat.chat.attachments import ChatImages
from edgechat.chat.messages import messages_of_rounds
from edgechat.chat.records import Figures, ToolRound, ToolUse, Turn, TurnState
from edgechat.chat.reply.calls import STOPPED, RoundOfCalls, ToolAccess, UseChanged
from edgechat.chat.storage.store import Store
from edgechat.engine.protocol import Engine
from edgechat.engine.types import (
    ChatRequest,
    Delta,
    ErrorInfo,
    Finished,
    Message,
    ModelInfo,
    RequestEvent,
    ToolCall,
    ToolCallArguments,
    ToolCallBegun,
)

ReplyEvent = RequestEvent | UseChanged
_CUT = "Not called: the reply ended before this call was complete."
_TOO_MANY = "Not called: this reply has reached the limit on tool calls."
_MOST_CALLS = 32
"""Maximum number of calls in one request."""
_LETTERS = 3
"""Minimum number of characters per token in nearly any text."""
FLUSH_SECONDS = 0.4
"""Seconds between writes of a reply."""


class ReplySaver:
    """The text and tool calls of a streaming reply, and the task that saves them.

    Call `begin` first, and `end`, `restore` or `rest` last.
    """

    def __init__(self, store: Store, turn: Turn, *, before: Turn | None = None) -> None:
        """turn: the reply so far. before: the reply as it was stored, if it is being continued."""
        self.begun = False
        """Whether the turn has been stored, or is being stored."""
        self.save_error: StoreError | None = None
        """Why the text cannot currently be saved, or None."""
        self.has_grown = False
        """Whether anything has been added."""
        self._store = store
        self._turn = turn
        self._before = before
        self._content = [turn.content]
        self._thinking = [turn.thinking]
        self._uses: list[ToolUse] = []
        self._thinking_tokens = 0
        self._thinking_began = 0.0
        self._thinking_seconds = 0.0
        self._changed = asyncio.Event()
        self._saver: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Store the reply as streaming, and start the task that saves it.

        Raises StoreError, and ChatBusy if another program has changed the reply to be continued.
        """
        self.begun = True
        adding = asyncio.create_task(self._add())
        cancellation: asyncio.CancelledError | None = None
        # Do not cancel `adding`: the store would drop a queued write, leaving the reply without a row.
        while not adding.done():
            try:
                await asyncio.wait([adding])
            except asyncio.CancelledError as exc:
                cancellation = exc
        self.begun = adding.exception() is None
        if cancellation is not None:
            raise cancellation
        adding.result()
        self._saver = asyncio.create_task(self._save_changes())

    @property
    def continues(self) -> bool:
        """Whether this continues a reply that ended early."""
        return self._before is not None

    @property
    def uses(self) -> tuple[ToolUse, ...]:
        """The calls since the last `end_round`."""
        return tuple(self._uses)

    @property
    def turn(self) -> Turn:
        """The reply so far."""
        content, thinking = "".join(self._content), "".join(self._thinking)
        if not self._uses:
            return msgspec.structs.replace(self._turn, content=content, thinking=thinking)
        part = ToolRound(
            uses=self.uses,
            content=content,
            thinking=thinking,
            thinking_tokens=self._thinking_tokens,
            thinking_seconds=round(self._thinking_seconds, 1),
        )
        return msgspec.structs.replace(self._turn, rounds=(*self._turn.rounds, part), content="", thinking="")

    def add(self, event: RequestEvent) -> None:
        """Add any text or call that an event contains."""
        match event:
            case Delta(thinking=True):
                now = time.monotonic()
                self._thinking_began = self._thinking_began or now
                self._thinking_seconds = now - self._thinking_began
                self._thinking_tokens = event.tokens
                self._thinking.append(event.text)
            case Delta():
                self._content.append(event.text)
            case ToolCallBegun(_, ToolCall(call_id, name, arguments)):
                self._uses.append(ToolUse(id=call_id, name=name, arguments=arguments))
            case ToolCallArguments(_, text) if self._uses:
                last = self._uses[-1]
                self._uses[-1] = msgspec.structs.replace(last, arguments=last.arguments + text)
            case _:
                return
        self._has_changed()

    def put(self, use: ToolUse) -> None:
        """Replace a call with its new state."""
        self._uses = [use if one.id == use.id else one for one in self._uses]
        self._has_changed()

    def end_round(self) -> None:
        """Start the next part of the reply, after the results of the calls so far."""
        self._turn = self.turn
        self._content, self._thinking, self._uses = [""], [""], []
        self._thinking_tokens, self._thinking_began, self._thinking_seconds = 0, 0.0, 0.0
        self._has_changed()

    def take_figures(self, model: ModelInfo | None, finished: Finished | None) -> None:
        """Add the figures for a request that has ended. finished: None if it was cut short."""
        figures = Figures(
            reason=finished.reason if finished else None,
            usage=finished.usage if finished else None,
            timings=finished.timings if finished else None,
            context=model.context if model else 0,
            thinking_tokens=self._thinking_tokens,
            thinking_seconds=round(self._thinking_seconds, 1),
            model=model.name if model else "",
        )
        if self._turn.figures is not None:
            figures = self._turn.figures.followed_by(figures)
        self._turn = msgspec.structs.replace(self._turn, figures=figures)

    async def end(self, state: TurnState, error: EdgechatError | None) -> None:
        """Save the reply in its final state. Even if this raises StoreError, `turn` is in that state.

        If this is cancelled, the store writes the final state later.
        """
        self._turn = msgspec.structs.replace(
            self.turn, state=state, error=ErrorInfo.of(error) if error else None
        )
        self._content, self._thinking, self._uses = [self._turn.content], [self._turn.thinking], []
        await self._save_last()

    async def restore(self) -> None:
        """Save the reply as it was before it was continued. Raises StoreError, as `end` does."""
        assert self._before is not None
        self._turn = self._before
        await self._save_last()

    async def rest(self) -> None:
        """Stop the task that saves the reply."""
        if self._saver is not None:
            self._saver.cancel()
            await asyncio.wait([self._saver])

    async def _add(self) -> None:
        if self._before is None:
            await self._store.add_turn(self._turn)
        elif not await self._store.resume_turn(self._before):
            raise ChatBusy(
                "Another edgechat has continued this conversation in the meantime.",
                hint="Open it again to see how.",
            )

    async def _save_last(self) -> None:
        if self._saver is not None:
            self._saver.cancel()  # `rest` waits for it
        try:
            await self._store.update_turn(self._turn)
        finally:
            await self.rest()

    def _has_changed(self) -> None:
        self.has_grown = True
        self._changed.set()

    async def _save_changes(self) -> None:
        while await self._changed.wait():
            self._changed.clear()
            try:
                await self._store.update_turn(self.turn)
                self.save_error = None
            except StoreError as exc:
                # Try again: a lock or a full disk may be temporary. If it is not, `end` raises the error.
                self.save_error = exc
                self._changed.set()
            await asyncio.sleep(FLUSH_SECONDS)


class ReplyLoop:
    """Runs a reply from its first request to its end, passing everything to the saver as it arrives."""

    def __init__(
        self,
        engine: Engine,
        saver: ReplySaver,
        access: ToolAccess,
        images: ChatImages,
        on_progress: Callable[[float], None] | None = None,
    ) -> None:
        """on_progress: receives the progress of loading the model."""
        self.finished: Finished | None = None
        """How the last request ended."""
        self.is_complete = False
        """Whether the reply has ended on its own."""
        self.begun = False
        """Whether any event has arrived."""
        self.engine = engine
        self._saver = saver
        self._access = access
        self._images = images
        self._on_progress = on_progress
        self._stopping = False
        self._request_id = ""
        self._calls: RoundOfCalls | None = None

    async def run(
        self, request: ChatRequest, messages: tuple[Message, ...]
    ) -> AsyncGenerator[ReplyEvent, None]:
        """Yield the events of all requests and calls. Raises the engine's errors.

        messages: the messages before the reply. `request` also contains those for the existing part of a
        reply that is being continued.
        """
        n_left = self._access.rounds
        if tools := self._access.offered:
            request = msgspec.structs.replace(request, tools=tools, most_calls=_MOST_CALLS)
        while not self._is_stopped():
            async with aclosing(self._request(request)) as events:
                async for event in events:
                    yield event
            if not self._saver.uses:
                return
            if self._is_stopped():  # too late to cancel the request, but not its calls
                self._leave_open(STOPPED)
                return
            if not n_left:
                self._leave_open(_TOO_MANY)
                self.is_complete = True
                return
            n_left -= 1
            async with aclosing(self._call()) as calls:
                async for change in calls:
                    yield change
            self._saver.end_round()
            turn = self._saver.turn
            find_image = await self._images.find([turn], self.engine.model)
            messages_now = (*messages, *messages_of_rounds(turn.rounds, find_image))
            request = msgspec.structs.replace(request, id=uuid.uuid4().hex, messages=messages_now)

    async def stop(self) -> bool:
        """Stop the reply and its running calls; return whether any event has arrived."""
        self._stopping = True
        if self.begun and self._calls is not None:
            self._calls.stop()
        elif self.begun:
            await self.engine.cancel(self._request_id)
        return self.begun

    def end_state(self, turn: Turn, error: EdgechatError | None) -> TurnState:
        """Return the final state of a reply."""
        if self.is_complete:
            return "complete"
        if self._stopping or (self.finished is not None and self.finished.reason == "cancelled"):
            return "stopped"
        return "interrupted" if error is None or turn.has_words else "failed"

    def _is_stopped(self) -> bool:  # mypy assumes that attributes do not change during an await
        return self._stopping

    async def _request(self, request: ChatRequest) -> AsyncGenerator[RequestEvent, None]:
        self._request_id, self.finished = request.id, None
        try:
            # If the consumer stops early, the stream is closed at once, which cancels the request.
            async with aclosing(self.engine.stream(request, self._on_progress)) as events:
                async for event in events:
                    self.begun = True
                    self._saver.add(event)
                    if isinstance(event, Finished):
                        self.finished = event
                        self.is_complete = event.reason not in ("cancelled", "tools")
                    yield event
        finally:
            self._saver.take_figures(self.engine.model, self.finished)
            if self._saver.uses and (self.finished is None or self.finished.reason != "tools"):
                self._leave_open(_CUT)

    async def _call(self) -> AsyncGenerator[UseChanged, None]:
        self._calls = RoundOfCalls(
            self._saver.turn.id,
            self._saver.uses,
            self._access,
            self._images,
            most=self._room * _LETTERS,
        )
        try:
            async with aclosing(self._calls.run()) as changes:
                async for change in changes:
                    self._saver.put(change.use)
                    yield change
        finally:
            self._calls = None

    @property
    def _room(self) -> int:
        """Token limit for a round's results: half the free context, but at least an eighth of the whole."""
        context = self.engine.model.context if self.engine.model is not None else 0
        usage = self.finished.usage if self.finished is not None else None
        used = usage.prompt_tokens + usage.completion_tokens if usage is not None else 0
        return max(context - used, context // 4) // 2

    def _leave_open(self, why: str) -> None:
        """End the current round without carrying out its calls."""
        for use in self._saver.uses:
            self._saver.put(msgspec.structs.replace(use, outcome="stopped", result=why))
        self._saver.end_round()
