"""Manages the cached state of chats between turns: prewarms, saves, restores and drops it.

Prewarming: templates rarely render a longer chat as the old text followed by new text, because thinking is
stripped, the system prompt moves or old turns leave the window. After a reply, the cache therefore does not
match the next prompt. While the engine is idle, the common prefix of all possible next prompts is computed in
the background. A new turn can interrupt this after any chunk and continue from there.
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
"""Number of chats whose last turn is remembered. Beyond that, the oldest is saved to disk and forgotten."""
WORTH_READING = 32
"""How many more tokens a saved state must cover than the cache in memory to be worth reading."""
LEAVE_SECONDS = 0.25
"""Minimum seconds of prefill that saving must avoid when a chat is closed."""
PREWARMED_SECONDS = 2.0
"""Like LEAVE_SECONDS, but for a prewarmed chat, which may continue at any moment."""


@dataclass(slots=True)
class CachedChat:
    """The last turn of a chat."""

    request: ChatRequest
    reply: Message
    saved: list[int]
    """Tokens whose state is on disk."""
    slot: Slot | None
    """The slot used for the turn."""
    tip: Node | None
    """The slot's tip after the turn. If the slot has a different tip now, its contents have changed."""
    to_prewarm: bool
    adapters: AdapterSet = ()
    next_prompt: Future[list[int]] | None = None
    """Common prefix of all possible next prompts, or [] if unknown; None until it is requested."""

    @property
    def spent(self) -> Slot | None:
        """The slot, or None if it has been reused since."""
        return self.slot if self.slot is not None and self.slot.tip is self.tip else None


@dataclass(slots=True, eq=False)
class _Saving:
    """A state that is being saved to disk."""

    chat: str
    cached: CachedChat
    least_seconds: float
    """Minimum seconds of prefill that saving must avoid."""
    writing: Future[bool] | None = None
    """None until the next prompt has been prepared."""
    slot: Slot | None = None
    """The slot whose state is being written."""
    tip: Node | None = None
    """The slot's tip when writing started."""

    @property
    def is_written(self) -> bool:
        done = self.writing
        if done is None or not done.done() or done.cancelled() or done.exception() is not None:
            return False
        return done.result()


class ChatCache:
    """The chats of an engine, from the end of one turn to the start of the next."""

    def __init__(
        self,
        scheduler: Scheduler,
        backend: Backend,
        next_prompt: Callable[[ChatRequest, Message, int], list[int]],
        preparation: Preparation,
        cache_policy: CachePolicy,
        states: KVStateStore | None,
    ) -> None:
        """next_prompt: returns the common prefix of all possible next prompts in a chat, or [] if unknown.

        It is called with the chat's last request, the reply and the number of cells in the context.
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
        """Whether there is nothing left to do for any chat."""
        unprepared = any(saving.writing is None for saving in self._saving)
        return not (self._leaving or unprepared or self._next_to_prewarm())

    @property
    def is_waiting(self) -> bool:
        """Whether all remaining work is waiting for the disk or for a prompt to be prepared."""
        chat = self._next_to_prewarm()
        prepared = self._chats[chat].next_prompt if chat is not None else None
        prepares = prepared is not None and not prepared.done()
        return prepares or (bool(self._saving) and chat is None)

    @property
    def chats(self) -> dict[str, ChatRequest]:
        """The last request in each remembered chat, most recent last."""
        return {chat: cached.request for chat, cached in self._chats.items()}

    def on_disk(self) -> StatesOnDisk | None:
        """Return the most recent count of the states on disk, or None before the first count."""
        return self._states.usage() if self._states is not None else None

    # Start and end of a turn.

    def begin(self, sequence: Sequence) -> None:
        """Queue a turn, first reading a saved state that shares a prefix with it if that is worthwhile.

        Raises ValueError if the chat id is malformed.
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
        """Remember a finished turn and its slot. The chat is prewarmed once the engine is idle."""
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
        """Stop prewarming a chat. Tokens that have already been computed stay in the cache."""
        if chat is None:
            return
        if (cached := self._chats.get(chat)) is not None:
            cached.to_prewarm = False
        for sequence in self._scheduler.sequences:
            if not sequence.generates and sequence.request.chat == chat:
                self._scheduler.remove(sequence, keep_cache=True)

    # Idle time.

    def poll(self) -> list[Event]:
        """Continue saving, and prewarm a chat if no request is running or waiting."""
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
        """Prepare the next prompt of a chat. Once it is ready, another call to this method queues it."""
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
        """Return the common prefix of all possible next prompts, which is prepared in the background."""
        if cached.next_prompt is None:
            work = partial(self._prepare_next, cached.request, cached.reply, self._scheduler.cells)
            cached.next_prompt = self._preparation.submit(work)
        return cached.next_prompt

    def prewarmed(self, sequence: Sequence) -> list[Event]:
        """Finish prewarming a chat, now that the cache holds the beginning of its next prompt."""
        chat = sequence.request.chat
        assert chat is not None
        self._scheduler.remove(sequence, keep_cache=True)
        self._save(chat, PREWARMED_SECONDS)
        n_cached = sequence.n_cached or 0
        return [Prewarmed(sequence.id, len(sequence.tokens), len(sequence.tokens) - n_cached)]

    # Disk.

    def persist(self, chat: str | None) -> None:
        """Save a chat, or all chats if `chat` is None, to disk. When done, `poll` returns Persisted."""
        _LOG.info("prefix cache: %s", self._scheduler.cache.stats)
        chats = list(self._chats) if chat is None else [chat] if chat in self._chats else []
        for leaving in chats:
            self._interrupt(leaving)
            self._save(leaving, LEAVE_SECONDS)
        self._leaving.append((chat, list(self._saving)))

    def forget(self, chat: str) -> None:
        """Delete a chat's cached state from memory and disk."""
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
        """Save the cached part of a chat's next prompt if that avoids enough prefill."""
        cached = self._chats.get(chat)
        if self._states is not None and cached is not None:
            self._saving.append(_Saving(chat, cached, least_seconds))
            self._write_prepared()

    def _write_prepared(self) -> None:
        """Start writing each state whose next prompt has been prepared."""
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
        """Start writing a state. Return None if this is impossible or not worthwhile."""
        chat, cached = saving.chat, saving.cached
        slot, n = self._scheduler.cache.best(tokens, len(tokens), cached.adapters)
        if self._states is None or slot is None or slot.busy:
            return None
        if n < slot.length and slot is not cached.spent:
            return None  # the slot belongs to another chat with the same beginning and would be truncated
        unsaved = n - common_prefix(cached.saved, tokens[:n])
        if unsaved * self._scheduler.cost.token_seconds < saving.least_seconds:
            return None
        if not self._scheduler.cache.truncate(slot, n):
            return None
        try:
            state, cut = self._backend.save(slot.id), self._first_cut(slot)
        except MemoryError:
            _LOG.warning("the state of chat %s was not saved: not enough memory", chat)
            return None
        if not self._is_faster_read(len(state), n):
            return None
        cached.saved = tokens[:n]
        saving.slot, saving.tip = slot, slot.tip
        return self._states.save(chat, cached.saved, state, cut, mark=mark_of(cached.adapters))

    def _first_cut(self, slot: Slot) -> Cut | None:
        """Return the first useful checkpoint, which lets other chats share the system prompt and tools."""
        for one in slot.checkpoints:
            if WORTH_READING <= one.length < slot.length:
                return Cut(one.length, self._backend.save_checkpoint(one))
        return None

    def _found(self, sequence: Sequence, mark: tuple[int, ...]) -> str | None:
        """Return the chat whose saved state covers most of a prompt, if that state is worth reading."""
        if self._states is None:
            return None
        limit = len(sequence.tokens) - 1
        _, here = self._scheduler.cache.best(sequence.tokens, limit, sequence.adapters)
        if len(sequence.tokens) < here + WORTH_READING:
            return None
        found = self._states.find(sequence.tokens, whole=not self._backend.capabilities.cuts, mark=mark)
        if found is None or found.shared < here + WORTH_READING:
            return None
        # A state has to be read in full. That was found to be worthwhile when it was saved, so check again
        # only if less than half of it is useful.
        spared = found.shared - here
        if 2 * spared < found.tokens and not self._is_faster_read(found.size, spared):
            return None
        return found.chat

    def _is_faster_read(self, size: int, tokens: int) -> bool:
        """Return True if reading a state of `size` bytes is faster than computing `tokens` tokens."""
        assert self._states is not None
        seconds, bandwidth = self._scheduler.cost.token_seconds, self._states.bandwidth
        return worth_saving(size, tokens, seconds_per_token=seconds, bandwidth=bandwidth)

    def _take(self, sequence: Sequence, _: ChatRequest, state: Future[SavedState | None]) -> list[Event]:
        """Restore a saved state and queue the turn that was waiting for it."""
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
        """Finish writing pending states."""
        if self._states is not None:
            self._states.close()


def _prewarming(cached: CachedChat, tokens: list[int]) -> Sequence:
    """Return a background sequence that computes `tokens` into the cache."""
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
