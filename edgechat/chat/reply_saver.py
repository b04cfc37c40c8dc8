"""Saving a reply while it is generated, at least every half second."""

from __future__ import annotations

import asyncio
import time

import msgspec

from edgechat.base.errors import EdgechatError, StoreError
from edgechat.chat.records import Figures, Turn, TurnState
from edgechat.chat.storage.store import Store
from edgechat.engine.types import Delta, ErrorInfo, Finished, ModelInfo

FLUSH_SECONDS = 0.4


class ReplySaver:
    """The text of one streaming reply, and the task that saves it: first `begin`, last `end` or `rest`."""

    begun = False
    """Whether the turn is in the store, or being added."""
    save_error: StoreError | None = None
    """Why the text cannot be saved at the moment."""

    def __init__(self, store: Store, turn: Turn) -> None:
        self._store = store
        self._turn = turn
        self._content: list[str] = []
        self._thinking: list[str] = []
        self._thinking_tokens = 0
        self._thinking_began = 0.0
        self._thinking_seconds = 0.0
        self._changed = asyncio.Event()
        self._saver: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Add the empty turn to the store, and start the task. Raises StoreError."""
        self.begun = True
        try:
            await self._store.add_turn(self._turn)
        except StoreError:
            self.begun = False
            raise
        self._saver = asyncio.create_task(self._save_changes())

    @property
    def turn(self) -> Turn:
        """The reply so far."""
        return msgspec.structs.replace(
            self._turn, content="".join(self._content), thinking="".join(self._thinking)
        )

    def add(self, delta: Delta) -> None:
        """Add text."""
        if delta.thinking:
            now = time.monotonic()
            self._thinking_began = self._thinking_began or now
            self._thinking_seconds = now - self._thinking_began
            self._thinking_tokens = delta.tokens
            self._thinking.append(delta.text)
        else:
            self._content.append(delta.text)
        self._changed.set()

    async def rest(self) -> None:
        """Stop the task."""
        if self._saver is not None:
            self._saver.cancel()
            await asyncio.wait([self._saver])

    async def end(
        self,
        state: TurnState,
        model: ModelInfo | None,
        finished: Finished | None,
        error: EdgechatError | None,
    ) -> None:
        """Save the complete reply in its final state. Raises StoreError; `turn` is complete all the same.

        If this is cancelled, the store writes the final state later.
        """
        figures = Figures(
            reason=finished.reason if finished else None,
            usage=finished.usage if finished else None,
            timings=finished.timings if finished else None,
            context=model.context if model else 0,
            thinking_tokens=self._thinking_tokens,
            thinking_seconds=round(self._thinking_seconds, 1),
        )
        self._turn = msgspec.structs.replace(
            self.turn, state=state, figures=figures, error=ErrorInfo.of(error) if error else None
        )
        if self._saver is not None:
            self._saver.cancel()  # `rest` waits for it
        try:
            await self._store.update_turn(self._turn)
        finally:
            await self.rest()

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
