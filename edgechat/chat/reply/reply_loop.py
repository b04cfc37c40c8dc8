"""Requests replies until one calls no tool any more: the results of the calls go into the next request."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Protocol

import msgspec

from edgechat.chat.messages import messages_of_rounds
from edgechat.chat.records import ToolUse, Turn
from edgechat.chat.reply.calls import STOPPED, RoundOfCalls, ToolAccess, UseChanged
from edgechat.chat.reply.images import ChatImages
from edgechat.engine.protocol import Engine
from edgechat.engine.types import ChatRequest, Finished, Message, ModelInfo, RequestEvent

ReplyEvent = RequestEvent | UseChanged
_CUT = "Not called: the reply ended before this call was complete."
_TOO_MANY = "Not called: this reply has called tools as often as one may."
_MOST_CALLS = 32
"""Of one reply of the model."""
_LETTERS = 3
"""Of a token, at least, in nearly all texts."""


class ReplyRecord(Protocol):
    """What takes down a reply; see `ReplySaver`."""

    @property
    def uses(self) -> tuple[ToolUse, ...]:
        """The calls since the last `end_round`."""

    @property
    def turn(self) -> Turn:
        """The reply so far."""

    def add(self, event: RequestEvent) -> None:
        """Add the text or the call of an event, if it has any."""

    def put(self, use: ToolUse) -> None:
        """Replace a call by its new state."""

    def end_round(self) -> None:
        """Begin the next part of the reply, after the results of the calls so far."""

    def take_figures(self, model: ModelInfo | None, finished: Finished | None) -> None:
        """Add the figures of a request that is over."""


class ReplyLoop:
    """One reply, from its first request to its end; everything is given to the saver as it comes."""

    def __init__(
        self,
        engine: Engine,
        saver: ReplyRecord,
        access: ToolAccess,
        images: ChatImages,
        on_progress: Callable[[float], None] | None = None,
    ) -> None:
        """on_progress: receives the progress of a load."""
        self.finished: Finished | None = None
        """How the last request ended."""
        self.is_complete = False
        """Whether the reply has ended by itself."""
        self.begun = False
        """Whether there has been an event."""
        self.stopping = False
        """Whether `stop` was called."""
        self.engine = engine
        self._saver = saver
        self._access = access
        self._images = images
        self._on_progress = on_progress
        self._request_id = ""
        self._calls: RoundOfCalls | None = None

    async def run(
        self, request: ChatRequest, messages: tuple[Message, ...]
    ) -> AsyncGenerator[ReplyEvent, None]:
        """Yield the events of all requests and calls. Raises the engine's errors.

        messages: those before the reply. Of a reply that is continued, `request` has its rounds and its
        beginning behind them.
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
            if self._is_stopped():  # too late for the request, in time for what it calls
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

    def _is_stopped(self) -> bool:  # unlike an attribute, known to change during an await
        return self.stopping

    async def stop(self) -> None:
        """End the reply here."""
        self.stopping = True
        if self._calls is not None:
            self._calls.stop()
        else:
            await self.engine.cancel(self._request_id)

    async def _request(self, request: ChatRequest) -> AsyncGenerator[RequestEvent, None]:
        self._request_id, self.finished = request.id, None
        try:
            # If the reader leaves early, the stream is closed at once, which cancels the request.
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
        """Tokens that the results of a round may take: half of what is left, but an eighth of the context."""
        context = self.engine.model.context if self.engine.model is not None else 0
        usage = self.finished.usage if self.finished is not None else None
        used = usage.prompt_tokens + usage.completion_tokens if usage is not None else 0
        return max(context - used, context // 4) // 2

    def _leave_open(self, why: str) -> None:
        """End the reply with calls that are not carried out."""
        for use in self._saver.uses:
            self._saver.put(msgspec.structs.replace(use, outcome="stopped", result=why))
        self._saver.end_round()
