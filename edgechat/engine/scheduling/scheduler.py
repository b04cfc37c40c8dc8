"""Who computes next: which sequences run, in which slot, and what the next batch holds.

There is no tensor here. A batch takes one pending token of every running sequence first, so that no
stream waits, and fills up with a chunk of a prompt as far as the cost of a call allows. What runs in the
background is computed while nobody waits for anything else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Seq

from edgechat.engine.backends.base import Backend, BatchPart, Interruption
from edgechat.engine.kv.prefix_cache import PrefixCache, Slot, common_prefix
from edgechat.engine.scheduling.call_cost import CallCost, even_share
from edgechat.engine.scheduling.sequence import Sequence

_HEADROOM = 32
"""Cells left for each sequence to grow before another joins, so that it is not preempted at once."""
_WORTH_WAITING = 64
"""Tokens that a sequence waits for another one to compute, where both begin alike."""
_SHIFT_SECONDS = 1.0
"""Seconds of prefill that a shift must save: what it gives is approximate."""
_LEAST_SHIFTED = 64
"""... or tokens, where nobody knows what one costs."""

Planned = list[tuple[Sequence, BatchPart]]


class Scheduler:
    """Waiting and running sequences over a backend's slots."""

    def __init__(self, backend: Backend) -> None:
        self.cost = CallCost()
        self.cache = PrefixCache(backend)
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self._backend = backend
        self.cells = backend.context
        """Cells to count with: fewer than the backend's context once it has run out earlier than that."""
        self.batches = [0] * backend.n_seq_max
        """Calls that computed one sequence, two, and so on."""
        self._prompts_turn = False
        self._crowded = False
        """The backend had no room for all that run: nobody joins them before one has ended."""

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to compute."""
        return not (self.waiting or self.running)

    @property
    def sequences(self) -> list[Sequence]:
        """All that are here, those that run first."""
        return [*self.running, *self.waiting]

    def find(self, request_id: str) -> Sequence | None:
        """Return the sequence of a request, if it is still here."""
        return next((one for one in self.sequences if one.generates and one.id == request_id), None)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence behind those of its priority."""
        if sequence.in_background:
            self.waiting.append(sequence)
            return
        ahead = sum(not one.in_background for one in self.waiting)
        self.waiting.insert(ahead, sequence)

    def plan(self) -> Planned:
        """Admit who is waiting, and return the parts of the next batch; none if there is nothing to do."""
        self._admit()
        now = [one for one in self.running if not one.in_background] or self.running
        streams = [one for one in now if one.n_pending == 1]
        prompts = [one for one in now if one.n_pending > 1]
        if not self._backend.capabilities.mixes:
            streams, prompts = self._take_turns(streams, prompts)
        planned = [self._part(sequence, 1) for sequence in streams]
        return self._within_cache(planned + self._chunks(prompts, len(streams)))

    def _chunks(self, prompts: list[Sequence], n_streams: int) -> Planned:
        """Return what the next call reads of prompts, beside so many streams.

        The prompt that has the least left gets half of it, where that is not the first one: a short prompt
        need not wait for the end of a long one, and a long one is not starved.
        """
        lone = self._can_interrupt(n_streams)
        wanted = self.cost.lone_tokens() if lone else self.cost.prompt_tokens(n_streams)
        left = max(min(wanted, self._backend.n_batch - n_streams), 1)
        if len(prompts) == 1:  # in calls of one size, as a small one at the end costs more for each token
            left = even_share(prompts[0].n_pending, left)
        planned: Planned = []
        if prompts and (shortest := min(prompts, key=lambda one: one.n_pending)) is not prompts[0]:
            planned.append(self._part(shortest, max(left // 2, 1)))
            left -= len(planned[0][1].tokens)
            prompts = [one for one in prompts if one is not shortest]
        for sequence in prompts:
            if left <= 0:
                break
            planned.append(self._part(sequence, left))
            left -= len(planned[-1][1].tokens)
        return planned

    def _can_interrupt(self, n_streams: int) -> bool:
        return not n_streams and self._backend.interruption is not None and self.cost.may_interrupt

    def interruptible(self, planned: Planned) -> Interruption | None:
        """Return what computes a batch that may be ended early: one that no stream waits for."""
        n_streams = sum(sequence.n_pending == 1 for sequence, _ in planned)
        return self._backend.interruption if self._can_interrupt(n_streams) else None

    def _admit(self) -> None:
        held_back: list[Sequence] = []
        try:
            while self.waiting:
                sequence = self.waiting[0]
                if self._is_held_off(sequence) or not self._can_join(sequence):
                    break
                if self._comes_soon(sequence):
                    held_back.append(self.waiting.popleft())
                    continue
                self._seat(sequence)
                self.running.append(self.waiting.popleft())
        finally:
            self.waiting.extendleft(reversed(held_back))

    def _is_held_off(self, sequence: Sequence) -> bool:
        """Say whether who runs has to end first."""
        ahead = [one for one in self.running if one.in_background <= sequence.in_background]
        return self._crowded and bool(ahead)

    def _can_join(self, sequence: Sequence) -> bool:
        """Say whether there is a slot and room for it; what runs in the background gives way."""
        while not (self.cache.has_free_slot and (not self.running or self._has_room(sequence))):
            behind = [one for one in self.running if one.in_background]
            if sequence.in_background or not behind:
                return False
            self.preempt(behind[-1])
        return True

    def _has_room(self, sequence: Sequence) -> bool:
        """Say whether the sequence's tokens fit beside those that run (idle slots give way)."""
        source, n = self.cache.best(sequence.tokens, len(sequence.tokens) - 1)
        shared = n if source is not None and source.busy else 0
        growing = sum(one.n_pending + _HEADROOM for one in self.running)
        wanted = self.cache.cells_of_busy() + growing + len(sequence.tokens) - shared + _HEADROOM
        return wanted <= self.cells

    def _comes_soon(self, sequence: Sequence) -> bool:
        """Say whether a running prompt is about to compute what this one begins with."""
        _, n = self.cache.best(sequence.tokens, len(sequence.tokens) - 1)
        return any(
            self._shares(one, sequence) >= n + _WORTH_WAITING
            for one in self.running
            if one.n_pending > 1 and one.in_background <= sequence.in_background
        )

    def _shares(self, ahead: Sequence, sequence: Sequence) -> int:
        """Return how many tokens a sequence will find that a running one has yet to compute."""
        n = min(common_prefix(ahead.tokens, sequence.tokens), len(sequence.tokens) - 1)
        if self._backend.capabilities.cuts:
            return n
        # Only where its slot is forked: at no other token can what it holds be gone on from.
        forks = ahead.slot is not None and ahead.slot.length < ahead.boundary <= n
        return ahead.boundary if forks and self.cache.has_free_slot else 0

    def _seat(self, sequence: Sequence) -> None:
        """Give the sequence a slot, with as much of its tokens in it as can be had."""
        slot, n = self._shifted(sequence) or self.cache.seat(
            sequence.tokens, whole=not sequence.generates, spent=sequence.spent
        )
        sequence.slot = slot
        slot.chat = sequence.request.chat
        if sequence.n_cached is None:
            sequence.n_cached = min(n, sequence.n_prompt)

    def _shifted(self, sequence: Sequence) -> tuple[Slot, int] | None:
        """Move cells instead of computing them again, where somebody waits behind a cut of the window."""
        if not (sequence.dropped and sequence.generates and self._backend.capabilities.shifts):
            return None
        seconds = self.cost.token_seconds
        least = int(_SHIFT_SECONDS / seconds) if seconds else _LEAST_SHIFTED
        found = self.cache.shift(sequence.tokens, least=max(least, 1))
        if found is None:
            return None
        slot, start = found
        sequence.n_shifted = max(0, min(slot.length, sequence.n_prompt) - start)
        if sequence.n_cached is not None:  # the cut came in the middle of the reply
            sequence.n_cached = max(sequence.n_cached, sequence.n_shifted)
        return slot, slot.length

    def _take_turns(
        self, streams: list[Sequence], prompts: list[Sequence]
    ) -> tuple[list[Sequence], list[Sequence]]:
        """For a backend that cannot mix: streams and one prompt alternate."""
        if not (streams and prompts):
            return self._next_of(streams), prompts[:1]
        self._prompts_turn = not self._prompts_turn
        return ([], prompts[:1]) if self._prompts_turn else (self._next_of(streams), [])

    def _next_of(self, streams: list[Sequence]) -> list[Sequence]:
        """Return the stream whose last token is the oldest."""
        return [min(streams, key=lambda one: one.last_token)] if streams else []

    def _part(self, sequence: Sequence, size: int) -> tuple[Sequence, BatchPart]:
        """Return the next tokens of a sequence, `size` at the most."""
        assert sequence.slot is not None
        start = sequence.slot.length
        stop = min(start + size, len(sequence.tokens))
        if not self._backend.capabilities.cuts and start < sequence.boundary:
            stop = min(stop, sequence.boundary)  # where the slot is forked
        last = stop == len(sequence.tokens)
        tokens = sequence.tokens[start:stop]
        return sequence, BatchPart(sequence.slot.id, start, tokens, int(last and sequence.generates))

    def _within_cache(self, planned: Planned) -> Planned:
        """Evict idle slots, then put the youngest back in the queue, until the batch finds free cells."""
        while planned:
            needed = sum(len(part.tokens) for _, part in planned)
            free = self.cells - self.cache.cells_used
            if needed <= free:
                break
            if self.cache.evict():
                continue
            if len(self.running) > 1:
                self.preempt(youngest := self._youngest())
                planned = [pair for pair in planned if pair[0] is not youngest]
            else:
                sequence, part = planned[0]
                planned = [self._part(sequence, len(part.tokens) - (needed - free))]
        return planned

    def spare(self, wanted: int) -> int:
        """Return how many cells are free, up to `wanted`; nothing gives way for them."""
        return min(self.cells - self.cache.cells_used, wanted)

    def _youngest(self) -> Sequence:
        """Return who gives way first of those that run."""
        return next((one for one in self.running[::-1] if one.in_background), self.running[-1])

    def computed(self, planned: Planned) -> None:
        """Note that the backend has computed a batch; drafted tokens count once they stand."""
        self.batches[min(len(planned), len(self.batches)) - 1] += 1
        for sequence, part in planned:
            slot = sequence.slot
            assert slot is not None
            n_drafted = len(sequence.draft.tokens) if sequence.draft else 0
            self.cache.extend(slot, part.tokens[: len(part.tokens) - n_drafted])
            if slot.length == sequence.boundary and not self._backend.capabilities.cuts:
                self.cache.fork(slot)

    def stood(self, sequence: Sequence, drafted: Seq[int], n_stood: int) -> None:
        """Keep so many of the drafted tokens that were computed, and take the others back."""
        slot = sequence.slot
        assert slot is not None
        n_rejected = len(drafted) - n_stood
        if n_rejected and not self._backend.rollback(slot.id, n_rejected):
            self._lost(slot)
            return
        self.cache.extend(slot, drafted[:n_stood])

    def interrupted(self, planned: Planned, n_kept: Seq[int | None]) -> None:
        """Note what a call has left in the cache that was ended early: so many tokens of each part."""
        for (sequence, part), n in zip(planned, n_kept, strict=True):
            slot = sequence.slot
            assert slot is not None
            if n is None:
                self._lost(slot)
            else:
                self.cache.extend(slot, part.tokens[:n])

    def _lost(self, slot: Slot) -> None:
        """What a slot holds is true no more: it is computed again."""
        chat = slot.chat
        self.cache.clear(slot)
        slot.chat = chat

    def make_room(self, planned: Planned) -> None:
        """The backend had no room for this batch: something idle goes, or who came last, as long as it can.

        It has fewer cells than it said where one alone finds no room. Where several run it need not be so:
        llama.cpp takes no cell back that an attention window has left behind while two sequences share it.
        """
        if self.cache.evict():
            return
        if len(self.running) > 1:
            self._crowded = True
            self.preempt(self._youngest())
            return
        needed = sum(len(part.tokens) for _, part in planned)
        self.cells = min(self.cells, self.cache.cells_used + needed) - 1

    def preempt(self, sequence: Sequence) -> None:
        """Take the slot away and put the sequence back in the queue; it loses nothing but time."""
        self.running.remove(sequence)
        assert sequence.slot is not None
        if not sequence.in_background:  # whose cells go last: the next turn may want them
            self.cache.clear(sequence.slot)
        self._release(sequence)
        if sequence.in_background:
            self.add(sequence)
        else:
            self.waiting.appendleft(sequence)

    def resume(self, sequence: Sequence) -> None:
        """The tokens of a sequence have changed: let it begin again from what is still true of it."""
        self.waiting.appendleft(sequence)

    def remove(self, sequence: Sequence, *, keep_cache: bool) -> None:
        """Take a sequence out; its slot keeps its tokens for who comes next with the same beginning."""
        if sequence in self.running:
            self.running.remove(sequence)
            self._crowded = False
        else:
            self.waiting.remove(sequence)
        if sequence.slot is not None:
            if not keep_cache:
                self.cache.clear(sequence.slot)
            self._release(sequence)

    def _release(self, sequence: Sequence) -> None:
        assert sequence.slot is not None
        self.cache.release(sequence.slot)
        sequence.slot = None
