"""What happens to a chat between its turns: its cache is settled, saved, restored and given up.

Settling: a template rarely renders a longer chat as the old text plus more (thoughts are stripped, the
system prompt moves, old turns leave the window), so after a reply the cache is not what the next prompt
begins with. In idle time the keeper has the scheduler compute, in the background, what every possible next
turn begins with; a new turn interrupts that at any chunk and goes on from as far as it came.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

import msgspec

from edgechat.device.load import on_battery
from edgechat.engine.backends.base import Backend
from edgechat.engine.kv.prefix_cache import Node, Slot, common_prefix
from edgechat.engine.kv.state_file import SavedState
from edgechat.engine.kv.state_store import KVStateStore, worth_saving
from edgechat.engine.sampling import Sampler
from edgechat.engine.scheduling.preparation import Preparation, explained, fault
from edgechat.engine.scheduling.scheduler import Scheduler
from edgechat.engine.scheduling.sequence import Sequence
from edgechat.engine.snapshot import StatesOnDisk
from edgechat.engine.types import CachePolicy, ChatRequest, Event, Message, Persisted, Prewarmed, Sampling

_LOG = logging.getLogger(__name__)
_CHATS = 32
"""Chats whose last turn is remembered; one more, and the oldest is put on disk."""
_WORTH_READING = 32
"""Tokens more than there are in memory, for a saved state to be read."""
_LEAVE_SECONDS = 0.25
"""Of prefill that would be lost; for less a chat that is left is not written to disk ..."""
_SETTLE_SECONDS = 2.0
"""... and neither is one that has settled, which may come back at any moment."""


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
    """... and where that ended; something else is there if the slot has another tip by now."""
    settles: bool
    """Whether it is still to be settled."""
    next_prompt: Future[list[int]] | None = None
    """What every next turn begins with, once somebody has asked for it; nothing where no one can say."""

    @property
    def spent(self) -> Slot | None:
        """The slot, if nobody else has taken it since."""
        return self.slot if self.slot is not None and self.slot.tip is self.tip else None


@dataclass(slots=True, eq=False)
class _Saving:
    """A state on its way to the disk."""

    chat: str
    kept: CachedChat
    least_seconds: float
    """Of prefill that would be lost without it."""
    writing: Future[bool] | None = None
    """None while it is not known yet what the next turn begins with."""


class ChatCache:
    """The chats of an engine, from the end of one turn to the beginning of the next."""

    def __init__(
        self,
        scheduler: Scheduler,
        backend: Backend,
        beginning: Callable[[ChatRequest, Message, int], list[int]],
        preparation: Preparation,
        cache_policy: CachePolicy,
        states: KVStateStore | None,
    ) -> None:
        """beginning: makes the tokens that every next turn of a chat begins with, after its last request and
        reply, in a context of so many cells; none where nobody can say.
        """
        self._scheduler = scheduler
        self._backend = backend
        self._beginning = beginning
        self._preparation = preparation
        self._cache_policy = cache_policy
        self._states = states if backend.capabilities.saves else None
        self._kept: dict[str, CachedChat] = {}
        self._reading: list[tuple[Sequence, Future[SavedState | None]]] = []
        self._saving: list[_Saving] = []
        self._leaving: list[tuple[str | None, list[_Saving]]] = []

    @property
    def is_idle(self) -> bool:
        """Whether nothing is to be done for any chat."""
        unprepared = any(one.writing is None for one in self._saving)
        return not (self._reading or self._leaving or unprepared or self._next_to_settle())

    @property
    def is_waiting(self) -> bool:
        """Whether all that is to be done is the disk's, or that of the thread that prepares prompts."""
        chat = self._next_to_settle()
        prepared = self._kept[chat].next_prompt if chat is not None else None
        prepares = prepared is not None and not prepared.done()
        return bool(self._reading) or prepares or (bool(self._saving) and chat is None)

    @property
    def n_waiting(self) -> int:
        """Requests whose state is being read."""
        return len(self._reading)

    @property
    def chats(self) -> dict[str, ChatRequest]:
        """The last request of each chat that is remembered, that which ended last behind the others."""
        return {chat: kept.request for chat, kept in self._kept.items()}

    def on_disk(self) -> StatesOnDisk | None:
        """Return what the states on disk take, as it was counted last; None before that."""
        return self._states.usage() if self._states is not None else None

    # A turn begins and ends.

    def begins(self, sequence: Sequence) -> None:
        """A turn of a chat has come: queue it, once the chat's state has been read if that is worth it."""
        self._interrupt(sequence.request.chat)
        reading = self._read(sequence)
        if reading is None:
            self._scheduler.add(sequence)
        else:
            self._reading.append((sequence, reading))

    def give_up(self, request_id: str) -> Sequence | None:
        """Return the sequence of a request whose state is still being read, and do not wait for it."""
        found = next((pair for pair in self._reading if pair[0].id == request_id), None)
        if found is None:
            return None
        self._reading.remove(found)
        return found[0]

    def ended(self, request: ChatRequest, reply: Message, slot: Slot | None) -> None:
        """A turn has ended in this slot with a reply: its chat is settled when there is time."""
        chat = request.chat
        if chat is None or request.priority == "background" or not (reply.content or reply.calls):
            return
        old = self._kept.pop(chat, None)
        saved, tip = old.saved if old else [], slot.tip if slot else None
        self._kept[chat] = CachedChat(request, reply, saved, slot, tip, settles=self._cache_policy.settle)
        if len(self._kept) > _CHATS:
            self._save(oldest := next(iter(self._kept)), _LEAVE_SECONDS)
            del self._kept[oldest]

    def _interrupt(self, chat: str | None) -> None:
        """Settle a chat no further. What has been computed of it stays in the cache."""
        if chat is None:
            return
        if (kept := self._kept.get(chat)) is not None:
            kept.settles = False
        for one in self._scheduler.sequences:
            if not one.generates and one.request.chat == chat:
                self._scheduler.remove(one, keep_cache=True)

    # Idle time.

    def look_around(self) -> list[Event]:
        """Take what the disk has answered; begin to settle a chat where nothing else is to be done."""
        for pair in [pair for pair in self._reading if pair[1].done()]:
            self._reading.remove(pair)
            self._take(*pair)
        chat = self._next_to_settle()
        if chat is not None and self._scheduler.is_idle and not self._reading:
            self._settle(chat)
        self._write_prepared()
        left = [one for one in self._leaving if not set(one[1]) & set(self._saving)]
        for one in left:
            self._leaving.remove(one)
        return [Persisted(chat) for chat, _ in left]

    def _next_to_settle(self) -> str | None:
        return next((chat for chat, kept in reversed(self._kept.items()) if kept.settles), None)

    def _settle(self, chat: str) -> None:
        """Have the next prompt of a chat prepared, and then computed."""
        kept = self._kept[chat]
        if kept.next_prompt is None and not self._cache_policy.settle_on_battery and on_battery():
            kept.settles = False
            return
        prepared = self._next_prompt(kept)
        if prepared.done():
            kept.settles = False
            if tokens := prepared.result():
                self._scheduler.add(_settling(kept, tokens))

    def _next_prompt(self, kept: CachedChat) -> Future[list[int]]:
        """Return what every next turn of a chat begins with, which is prepared beside what runs."""
        if kept.next_prompt is None:
            work = partial(self._tokens, kept.request, kept.reply, self._scheduler.cells)
            kept.next_prompt = self._preparation.submit(work)
        return kept.next_prompt

    def _tokens(self, request: ChatRequest, reply: Message, cells: int) -> list[int]:
        try:
            return self._beginning(request, reply, cells)
        except Exception as error:  # a chat that cannot be settled is none the worse
            explained(error)
            return []

    def settled(self, sequence: Sequence) -> list[Event]:
        """A chat's cache holds what its next turn begins with."""
        chat = sequence.request.chat
        assert chat is not None
        self._scheduler.remove(sequence, keep_cache=True)
        self._save(chat, _SETTLE_SECONDS)
        n_cached = sequence.n_cached or 0
        return [Prewarmed(sequence.id, len(sequence.tokens), len(sequence.tokens) - n_cached)]

    # The disk.

    def persist(self, chat: str | None) -> None:
        """Put a chat's state on disk, or every chat's; `look_around` tells when that is done."""
        _LOG.info("prefix cache: %s", self._scheduler.cache.stats)
        chats = list(self._kept) if chat is None else [chat] if chat in self._kept else []
        for one in chats:
            self._interrupt(one)
            self._save(one, _LEAVE_SECONDS)
        self._leaving.append((chat, list(self._saving)))

    def forget(self, chat: str) -> None:
        """Keep nothing of a chat that is deleted."""
        self._interrupt(chat)
        for one in (*self._scheduler.sequences, *(sequence for sequence, _ in self._reading)):
            if one.request.chat == chat:
                one.request = msgspec.structs.replace(one.request, chat=None)
        self._kept.pop(chat, None)
        self._saving = [one for one in self._saving if one.chat != chat]
        self._scheduler.cache.forget(chat)
        if self._states is not None:
            self._states.forget(chat)

    def _save(self, chat: str, least_seconds: float) -> None:
        """Write what the chat's next turn begins with, as far as it is there, if that saves enough time."""
        kept = self._kept.get(chat)
        if self._states is not None and kept is not None:
            self._saving.append(_Saving(chat, kept, least_seconds))
            self._write_prepared()

    def _write_prepared(self) -> None:
        """Begin to write each state of which it is known what of it the next turn begins with."""
        for one in self._saving:
            if one.writing is None and (prepared := self._next_prompt(one.kept)).done():
                try:
                    one.writing = self._write(one, prepared.result()) or _nothing()
                except Exception as error:  # a chat that cannot be saved is none the worse
                    fault(error)
                    one.writing = _nothing()
        self._saving = [one for one in self._saving if one.writing is None or not one.writing.done()]

    def _write(self, saving: _Saving, tokens: list[int]) -> Future[bool] | None:
        """Begin to write a state; None where that is not worth it, or not possible."""
        chat, kept = saving.chat, saving.kept
        slot, n = self._scheduler.cache.best(tokens, len(tokens))
        if self._states is None or slot is None or slot.busy:
            return None
        if n < slot.length and slot is not kept.spent:
            return None  # another chat's, which begins alike: it would be cut
        unsaved = n - common_prefix(kept.saved, tokens[:n])
        if unsaved * self._scheduler.cost.token_seconds < saving.least_seconds:
            return None
        if not self._scheduler.cache.truncate(slot, n):
            return None
        try:
            state = self._backend.save(slot.id)
        except MemoryError:
            _LOG.warning("the state of chat %s is not saved: memory is short", chat)
            return None
        seconds, bandwidth = self._scheduler.cost.token_seconds, self._states.bandwidth
        if not worth_saving(len(state), n, seconds_per_token=seconds, bandwidth=bandwidth):
            return None
        kept.saved = tokens[:n]
        return self._states.save(chat, kept.saved, state)

    def _read(self, sequence: Sequence) -> Future[SavedState | None] | None:
        """Begin to read a chat's state, where it has more of the prompt than there is in memory."""
        chat = sequence.request.chat
        if self._states is None or chat is None:
            return None
        _, here = self._scheduler.cache.best(sequence.tokens, len(sequence.tokens) - 1)
        head = self._states.peek(chat)
        if head is None or min(head.tokens, len(sequence.tokens)) < here + _WORTH_READING:
            return None
        return self._states.load(chat)

    def _take(self, sequence: Sequence, reading: Future[SavedState | None]) -> None:
        """Put what was read into the cache, and queue the turn that waited for it."""
        try:
            saved = reading.result()
            if saved is not None and sequence.request.chat is not None:
                self._restore(sequence, saved)
        except Exception as error:  # without it everything is computed
            fault(error)
        self._scheduler.add(sequence)

    def _restore(self, sequence: Sequence, saved: SavedState) -> None:
        shared = common_prefix(saved.tokens, sequence.tokens)
        cuts = self._backend.capabilities.cuts
        _, here = self._scheduler.cache.best(sequence.tokens, len(sequence.tokens) - 1)
        if shared < here + _WORTH_READING or not (cuts or shared == len(saved.tokens)):
            return
        cache = self._scheduler.cache
        if cache.cells_of_busy() + len(saved.tokens) > self._scheduler.cells:
            return
        while cache.cells_used + len(saved.tokens) > self._scheduler.cells and cache.evict():
            pass
        cache.restore(saved.tokens, saved.state)

    def close(self) -> None:
        """Finish what is being written."""
        if self._states is not None:
            self._states.close()


def _settling(kept: CachedChat, tokens: list[int]) -> Sequence:
    """Return the sequence that brings `tokens` into the cache."""
    quiet = Sampling(temperature=0)
    return Sequence(
        request=msgspec.structs.replace(kept.request, messages=(), priority="background", sampling=quiet),
        tokens=tokens,
        n_prompt=len(tokens),
        sampler=Sampler(quiet),
        arrived=0.0,
        spent=kept.spent,
    )


def _nothing() -> Future[bool]:
    done: Future[bool] = Future()
    done.set_result(False)
    return done
