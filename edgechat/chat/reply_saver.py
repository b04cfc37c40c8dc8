"""Saving a reply while it is generated, at least every half second."""

from __future__ import annotations

import asyncio
import time

import msgspec

from edgechat.base.errors import ChatBusy, EdgechatError, StoreError
from edgechat.chat.records import Figures, Turn, TurnState
from edgechat.chat.storage.store import Store
from edgechat.engine.types import Delta, ErrorInfo, Finished, ModelInfo

FLUSH_SECONDS = 0.4


class ReplySaver:
    """The text of one streaming reply, and the task that saves it.

    First `begin`, last `end`, `restore` or `rest`.
    """

    begun = False
    """Whether the turn is in the store, or being added."""
    save_error: StoreError | None = None
    """Why the text cannot be saved at the moment."""

    def __init__(self, store: Store, turn: Turn, *, before: Turn | None = None) -> None:
        """turn: the reply so far. before: as it was stored, if it is continued."""
        self._store = store
        self._turn = turn
        self._before = before
        self._content = [turn.content]
        self._thinking = [turn.thinking]
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
        try:
            if self._before is None:
                await self._store.add_turn(self._turn)
            elif not await self._store.resume_turn(self._before):
                raise ChatBusy(
                    "Another edgechat has continued this conversation in the meantime.",
                    hint="Open it again to see how.",
                )
        except (StoreError, ChatBusy):
            self.begun = False
            raise
        self._saver = asyncio.create_task(self._save_changes())

    @property
    def continues(self) -> bool:
        """Whether a reply is continued that had ended early."""
        return self._before is not None

    @property
    def has_grown(self) -> bool:
        """Whether text was added."""
        return len(self._content) + len(self._thinking) > 2

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
            model=model.name if model else "",
        )
        if self._turn.figures is not None:
            figures = self._turn.figures.followed_by(figures)
        self._turn = msgspec.structs.replace(
            self.turn, state=state, figures=figures, error=ErrorInfo.of(error) if error else None
        )
        await self._save_last()

    async def restore(self) -> None:
        """Save a reply as it was before it was to be continued. Raises StoreError, as `end` does."""
        assert self._before is not None
        self._turn = self._before
        await self._save_last()

    async def _save_last(self) -> None:
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
