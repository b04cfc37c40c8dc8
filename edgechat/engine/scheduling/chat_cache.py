"""What happens to a chat's cache between its turns: it is prewarmed, saved, restored and dropped.

Prewarming: a template rarely renders a longer chat as the old text plus more (thinking is stripped, the
system prompt moves, old turns leave the window), so after a reply the cache is not what the next prompt
begins with. In idle time the scheduler computes, in the background, what every possible next turn begins
with; a new turn interrupts that at any chunk and continues from there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

import msgspec

from edgechat.device.load import on_battery
from edgechat.engine.backends.base import AdapterSet, Backend, Checkpoint, mark_of, media_runs
from edgechat.engine.kv.prefix_cache import Node, Slot, common_prefix
from edgechat.engine.kv.snapshot import StatesOnDisk
from edgechat.engine.kv.state_files import Cut, SavedState, check_id
from edgechat.engine.kv.state_store import KVStateStore, done_future, worth_saving
from edgechat.engine.sampling import Sampler
from edgechat.engine.scheduling.preparation import Preparation, fault
from edgechat.engine.scheduling.scheduler import Scheduler
from edgechat.engine.scheduling.sequence import Sequence
from edgechat.engine.types import CachePolicy, ChatRequest, Event, Message, Persisted, Prewarmed, Sampling

_LOG = logging.getLogger(__name__)
_CHATS = 32
"""Chats whose last turn is remembered; beyond that, the oldest is saved to disk."""
WORTH_READING = 32
"""Tokens that a saved state must have beyond those in memory to be read."""
LEAVE_SECONDS = 0.25
"""Seconds of prefill that saving must spare, for a chat that is left ..."""
PREWARMED_SECONDS = 2.0
"""... and for one that has been prewarmed, which may continue at any moment."""


@dataclass(slots=True)
class CachedChat:
    """The last turn of a chat."""

    request: ChatRequest
    reply: Message
    saved: list[int]
    """The tokens whose state is on disk."""
    slot: Slot | None
    """Where it ran ..."""
    tip: Node | None
    """... and where that ended; if the slot has another tip, its content has changed."""
    to_prewarm: bool
    adapters: AdapterSet = ()
    next_prompt: Future[list[int]] | None = None
    """What every next turn begins with, once it was asked for; [] if that is not known."""

    @property
    def spent(self) -> Slot | None:
        """The slot, if it has not been reused since."""
        return self.slot if self.slot is not None and self.slot.tip is self.tip else None


@dataclass(slots=True, eq=False)
class _Saving:
    """A state to be written to disk."""

    chat: str
    cached: CachedChat
    least_seconds: float
    """Of prefill that it must spare."""
    writing: Future[bool] | None = None
    """None while the next prompt is being prepared."""
    slot: Slot | None = None
    """Whose state is being written ..."""
    tip: Node | None = None
    """... as it was."""

    @property
    def is_written(self) -> bool:
        """Whether the state is on disk: not cancelled, refused, or lost to a fault of the disk's thread."""
        done = self.writing
        if done is None or not done.done() or done.cancelled() or done.exception() is not None:
            return False
        return done.result()


class ChatCache:
    """The chats of an engine, from the end of one turn to the beginning of the next."""

    def __init__(
        self,
        scheduler: Scheduler,
        backend: Backend,
        next_prompt: Callable[[ChatRequest, Message, int], list[int]],
        preparation: Preparation,
        cache_policy: CachePolicy,
        states: KVStateStore | None,
    ) -> None:
        """next_prompt: returns the tokens that every next turn of a chat begins with, given its last request
        and reply and the cells of the context; [] if they are not known.
        """
        self._scheduler = scheduler
        self._backend = backend
        self._prepare_next = next_prompt
        self._preparation = preparation
        self._cache_policy = cache_policy
        self._states = states if backend.capabilities.saves else None
        self._chats: dict[str, CachedChat] = {}
        self._saving: list[_Saving] = []
        self._leaving: list[tuple[str | None, list[_Saving]]] = []

    @property
    def is_idle(self) -> bool:
        """Whether nothing is to be done for any chat."""
        unprepared = any(saving.writing is None for saving in self._saving)
        return not (self._leaving or unprepared or self._next_to_prewarm())

    @property
    def is_waiting(self) -> bool:
        """Whether everything to be done waits for the disk or for a prepared prompt."""
        chat = self._next_to_prewarm()
        prepared = self._chats[chat].next_prompt if chat is not None else None
        prepares = prepared is not None and not prepared.done()
        return prepares or (bool(self._saving) and chat is None)

    @property
    def chats(self) -> dict[str, ChatRequest]:
        """The last request of each chat that is remembered, the most recent last."""
        return {chat: cached.request for chat, cached in self._chats.items()}

    def on_disk(self) -> StatesOnDisk | None:
        """Return what the states on disk take, as last counted; None before that."""
        return self._states.usage() if self._states is not None else None

    # A turn begins and ends.

    def begin(self, sequence: Sequence) -> None:
        """Queue a turn, after reading a saved state that begins alike if that is worth it.

        Raises ValueError for a chat whose id cannot be that of a state.
        """
        if self._states is not None and sequence.request.chat is not None:
            check_id(sequence.request.chat)
        self._interrupt(sequence.request.chat)
        mark = mark_of(sequence.adapters)
        found = self._found(sequence, mark)
        if self._states is None or found is None:
            self._scheduler.add(sequence)
            return
        state, then = self._states.load(found, mark=mark), partial(self._take, sequence)
        self._preparation.wait_for(state, sequence.request, then, sequence, reads=found)

    def end(self, request: ChatRequest, reply: Message, slot: Slot | None, adapters: AdapterSet = ()) -> None:
        """Remember a turn that has ended in this slot; its chat is prewarmed in idle time."""
        chat = request.chat
        if chat is None or request.priority == "background" or not (reply.content or reply.calls):
            return
        old = self._chats.pop(chat, None)
        saved, tip = old.saved if old and old.adapters == adapters else [], slot.tip if slot else None
        self._chats[chat] = CachedChat(
            request, reply, saved, slot, tip, to_prewarm=self._cache_policy.settle, adapters=adapters
        )
        if len(self._chats) > _CHATS:
            self._save(oldest := next(iter(self._chats)), LEAVE_SECONDS)
            del self._chats[oldest]

    def _interrupt(self, chat: str | None) -> None:
        """Stop prewarming a chat. What has been computed stays in the cache."""
        if chat is None:
            return
        if (cached := self._chats.get(chat)) is not None:
            cached.to_prewarm = False
        for sequence in self._scheduler.sequences:
            if not sequence.generates and sequence.request.chat == chat:
                self._scheduler.remove(sequence, keep_cache=True)

    # Idle time.

    def poll(self) -> list[Event]:
        """Continue saving, and prewarm a chat if no request runs or waits."""
        chat = self._next_to_prewarm()
        if chat is not None and self._scheduler.is_idle and not self._preparation.n_waiting:
            self._prewarm(chat)
        self._write_prepared()
        done = [leaving for leaving in self._leaving if not set(leaving[1]) & set(self._saving)]
        self._leaving = [leaving for leaving in self._leaving if leaving not in done]
        return [Persisted(chat) for chat, _ in done]

    def _next_to_prewarm(self) -> str | None:
        return next((chat for chat, cached in reversed(self._chats.items()) if cached.to_prewarm), None)

    def _prewarm(self, chat: str) -> None:
        """Have the next prompt of a chat prepared and, in a later call, computed."""
        cached = self._chats[chat]
        if cached.next_prompt is None and not self._cache_policy.settle_on_battery and on_battery():
            cached.to_prewarm = False
            return
        prepared = self._next_prompt(cached)
        if prepared.done():
            cached.to_prewarm = False
            if tokens := prepared.result():
                self._scheduler.add(_prewarming(cached, tokens))

    def _next_prompt(self, cached: CachedChat) -> Future[list[int]]:
        """Return what every next turn of a chat begins with, prepared in the background."""
        if cached.next_prompt is None:
            work = partial(self._prepare_next, cached.request, cached.reply, self._scheduler.cells)
            cached.next_prompt = self._preparation.submit(work)
        return cached.next_prompt

    def prewarmed(self, sequence: Sequence) -> list[Event]:
        """Finish the prewarming of a chat: its cache holds what its next turn begins with."""
        chat = sequence.request.chat
        assert chat is not None
        self._scheduler.remove(sequence, keep_cache=True)
        self._save(chat, PREWARMED_SECONDS)
        n_cached = sequence.n_cached or 0
        return [Prewarmed(sequence.id, len(sequence.tokens), len(sequence.tokens) - n_cached)]

    # The disk.

    def persist(self, chat: str | None) -> None:
        """Save a chat's state to disk (None: every chat's); `poll` returns Persisted when that is done."""
        _LOG.info("prefix cache: %s", self._scheduler.cache.stats)
        chats = list(self._chats) if chat is None else [chat] if chat in self._chats else []
        for leaving in chats:
            self._interrupt(leaving)
            self._save(leaving, LEAVE_SECONDS)
        self._leaving.append((chat, list(self._saving)))

    def forget(self, chat: str) -> None:
        """Delete everything kept of a chat."""
        self._interrupt(chat)
        for sequence in self._scheduler.sequences:
            if sequence.request.chat == chat:
                sequence.request = msgspec.structs.replace(sequence.request, chat=None)
        self._chats.pop(chat, None)
        self._saving = [saving for saving in self._saving if saving.chat != chat]
        self._scheduler.cache.forget(chat)
        if self._states is not None:
            self._states.forget(chat)

    def _save(self, chat: str, least_seconds: float) -> None:
        """Save what is cached of the chat's next prompt, if that spares enough time."""
        cached = self._chats.get(chat)
        if self._states is not None and cached is not None:
            self._saving.append(_Saving(chat, cached, least_seconds))
            self._write_prepared()

    def _write_prepared(self) -> None:
        """Begin to write the states whose next prompt has been prepared."""
        for saving in self._saving:
            if saving.writing is None and (prepared := self._next_prompt(saving.cached)).done():
                try:
                    saving.writing = self._write(saving, prepared.result()) or done_future(False)
                except Exception as error:  # the chat works without a saved state
                    fault(error)
                    saving.writing = done_future(False)
        for saving in self._saving:
            slot = saving.slot
            if slot is not None and slot.tip is saving.tip and saving.is_written:
                slot.saved = len(saving.cached.saved)
        self._saving = [
            saving for saving in self._saving if saving.writing is None or not saving.writing.done()
        ]

    def _write(self, saving: _Saving, tokens: list[int]) -> Future[bool] | None:
        """Begin to write a state; None if that is not worth it or not possible."""
        chat, cached = saving.chat, saving.cached
        slot, n = self._scheduler.cache.best(tokens, len(tokens), cached.adapters)
        if self._states is None or slot is None or slot.busy:
            return None
        if n < slot.length and slot is not cached.spent:
            return None  # another chat with the same beginning, which would be cut
        unsaved = n - common_prefix(cached.saved, tokens[:n])
        if unsaved * self._scheduler.cost.token_seconds < saving.least_seconds:
            return None
        if not self._scheduler.cache.truncate(slot, n):
            return None
        try:
            state, cut = self._backend.save(slot.id), self._first_cut(slot)
        except MemoryError:
            _LOG.warning("the state of chat %s is not saved: memory is short", chat)
            return None
        if not self._is_faster_read(len(state), n):
            return None
        cached.saved = tokens[:n]
        saving.slot, saving.tip = slot, slot.tip
        return self._states.save(chat, cached.saved, state, cut, mark=mark_of(cached.adapters))

    def _first_cut(self, slot: Slot) -> Cut | None:
        """Return the first checkpoint worth going back to: other chats share system prompt and tools."""
        for one in slot.checkpoints:
            if WORTH_READING <= one.length < slot.length:
                return Cut(one.length, self._backend.save_checkpoint(one))
        return None

    def _found(self, sequence: Sequence, mark: tuple[int, ...]) -> str | None:
        """Return the chat whose saved state has the most of a prompt, if reading is faster than computing."""
        if self._states is None:
            return None
        limit = len(sequence.tokens) - 1
        _, here = self._scheduler.cache.best(sequence.tokens, limit, sequence.adapters)
        if len(sequence.tokens) < here + WORTH_READING:
            return None
        found = self._states.find(sequence.tokens, whole=not self._backend.capabilities.cuts, mark=mark)
        if found is None or found.shared < here + WORTH_READING:
            return None
        # All of it must be read, which was found to be worth it when it was saved.
        spared = found.shared - here
        if 2 * spared < found.tokens and not self._is_faster_read(found.size, spared):
            return None
        return found.chat

    def _is_faster_read(self, size: int, tokens: int) -> bool:
        """Say whether to read a state of so many bytes takes less time than to compute so many tokens."""
        assert self._states is not None
        seconds, bandwidth = self._scheduler.cost.token_seconds, self._states.bandwidth
        return worth_saving(size, tokens, seconds_per_token=seconds, bandwidth=bandwidth)

    def _take(self, sequence: Sequence, _: ChatRequest, state: Future[SavedState | None]) -> list[Event]:
        """Put a state into the cache, and queue the turn that waited for it."""
        try:
            saved = state.result()
            if saved is not None:
                self._restore(sequence, saved)
        except Exception as error:  # the turn works without it
            fault(error)
        self._scheduler.add(sequence)
        return []

    def _restore(self, sequence: Sequence, saved: SavedState) -> None:
        shared = common_prefix(saved.tokens, sequence.tokens)
        cut = saved.cut if saved.cut is not None and not self._backend.capabilities.cuts else None
        if cut is not None and cut.length <= shared < len(saved.tokens):
            shared = cut.length
        elif shared < len(saved.tokens) and not self._backend.capabilities.cuts:
            return
        limit = len(sequence.tokens) - 1
        _, here = self._scheduler.cache.best(sequence.tokens, limit, sequence.adapters)
        if shared < here + WORTH_READING:
            return
        cache = self._scheduler.cache
        if cache.cells_of_busy() + len(saved.tokens) > self._scheduler.cells:
            return
        while cache.cells_used + len(saved.tokens) > self._scheduler.cells and cache.evict():
            pass
        checkpoint = None if cut is None else Checkpoint(cut.length, cut.state.nbytes, cut.state)
        cache.restore(saved.tokens, saved.state, checkpoint, sequence.adapters)

    def close(self) -> None:
        """Finish writing states."""
        if self._states is not None:
            self._states.close()


def _prewarming(cached: CachedChat, tokens: list[int]) -> Sequence:
    """Return the sequence that computes `tokens` into the cache."""
    greedy = Sampling(temperature=0)
    return Sequence(
        request=msgspec.structs.replace(cached.request, messages=(), priority="background", sampling=greedy),
        tokens=tokens,
        n_prompt=len(tokens),
        media=tuple(media_runs(tokens)),
        sampler=Sampler(greedy),
        arrived=0.0,
        adapters=cached.adapters,
        spent=cached.spent,
    )
