"""Saving a reply while it is generated, at least every half second."""

from __future__ import annotations

import asyncio
import time

import msgspec

from edgechat.base.errors import ChatBusy, EdgechatError, StoreError
from edgechat.chat.records import Figures, ToolRound, ToolUse, Turn, TurnState
from edgechat.chat.storage.store import Store
from edgechat.engine.types import (
    Delta,
    ErrorInfo,
    Finished,
    ModelInfo,
    RequestEvent,
    ToolCall,
    ToolCallArguments,
    ToolCallBegun,
)

FLUSH_SECONDS = 0.4


class ReplySaver:
    """The text and the calls of one streaming reply, and the task that saves them.

    First `begin`, last `end`, `restore` or `rest`.
    """

    begun = False
    """Whether the turn is in the store, or being added."""
    save_error: StoreError | None = None
    """Why the text cannot be saved at the moment."""
    has_grown = False
    """Whether anything was added."""

    def __init__(self, store: Store, turn: Turn, *, before: Turn | None = None) -> None:
        """turn: the reply so far. before: as it was stored, if it is continued."""
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
        """Save that the reply is being generated, and start the task.

        Raises StoreError, and ChatBusy if another program has changed what is to be continued.
        """
        self.begun = True
        adding = asyncio.create_task(self._add())
        cancellation: asyncio.CancelledError | None = None
        # If it were cancelled with this, the store would drop a write that waits, and the reply had no row.
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
        """Whether a reply is continued that had ended early."""
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
        """Add the text or the call of an event, if it has any."""
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
        """Replace a call by its new state."""
        self._uses = [use if one.id == use.id else one for one in self._uses]
        self._has_changed()

    def end_round(self) -> None:
        """Begin the next part of the reply, after the results of the calls so far."""
        self._turn = self.turn
        self._content, self._thinking, self._uses = [""], [""], []
        self._thinking_tokens, self._thinking_began, self._thinking_seconds = 0, 0.0, 0.0
        self._has_changed()

    def take_figures(self, model: ModelInfo | None, finished: Finished | None) -> None:
        """Add the figures of a request that is over; finished: None if it did not end by itself."""
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
        """Save the complete reply in its final state. Raises StoreError; `turn` is complete all the same.

        If this is cancelled, the store writes the final state later.
        """
        self._turn = msgspec.structs.replace(
            self.turn, state=state, error=ErrorInfo.of(error) if error else None
        )
        self._content, self._thinking, self._uses = [self._turn.content], [self._turn.thinking], []
        await self._save_last()

    async def restore(self) -> None:
        """Save a reply as it was before it was to be continued. Raises StoreError, as `end` does."""
        assert self._before is not None
        self._turn = self._before
        await self._save_last()

    async def rest(self) -> None:
        """Stop the task."""
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
                # Try again: a lock or a full disk may be temporary. If not, `end` raises it as well.
                self.save_error = exc
                self._changed.set()
            await asyncio.sleep(FLUSH_SECONDS)
