"""Who computes next: which sequences run, in which slot, and what the next batch holds.

There is no tensor here. A batch takes one pending token of every running sequence first, so that no
stream waits, and fills up with a chunk of a prompt as far as the cost of a call allows.
"""

from __future__ import annotations

from collections import deque

from edgechat.engine.backends.base import Backend, Part
from edgechat.engine.cost import CallCost
from edgechat.engine.sequence import Sequence, Slot, common_prefix

_HEADROOM = 32
"""Cells left for each sequence to grow before another joins, so that it is not preempted at once."""

Planned = list[tuple[Sequence, Part]]


class Scheduler:
    """Waiting and running sequences over a backend's slots."""

    def __init__(self, backend: Backend) -> None:
        self.cost = CallCost()
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self._backend = backend
        self._free = [Slot(number) for number in range(backend.n_seq_max)]
        self.cells = backend.context
        """Cells to count with: fewer than the backend's context once it has run out earlier than that."""
        self._clock = 0
        self._prompts_turn = False

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to compute."""
        return not (self.waiting or self.running)

    def find(self, request_id: str) -> Sequence | None:
        """Return the sequence of a request, if it is still here."""
        return next((one for one in (*self.running, *self.waiting) if one.id == request_id), None)

    def plan(self) -> Planned:
        """Admit who is waiting, and return the parts of the next batch; none if there is nothing to do."""
        self._admit()
        allowed = min(self._backend.n_batch, self.cost.tokens_within_limit())
        streams = [one for one in self.running if one.n_pending == 1]
        prompts = [one for one in self.running if one.n_pending > 1]
        if not self._backend.capabilities.mixes:
            streams, prompts = self._take_turns(streams, prompts)
        planned = [_part(sequence, 1) for sequence in streams]
        left = max(allowed - len(planned), 1)
        for sequence in prompts:
            size = min(sequence.n_pending, left)
            planned.append(_part(sequence, size))
            left -= size
            if left <= 0:
                break
        return self._within_cache(planned)

    def _admit(self) -> None:
        while self.waiting and self._free:
            if self.running and not self._has_room(self.waiting[0]):
                return
            sequence = self.waiting.popleft()
            self._seat(sequence)
            self.running.append(sequence)

    def _has_room(self, sequence: Sequence) -> bool:
        """Say whether the sequence's tokens fit beside those that run (idle slots give way)."""
        wanted = sum(len(one.tokens) + _HEADROOM for one in (*self.running, sequence))
        return wanted <= self.cells

    def _seat(self, sequence: Sequence) -> None:
        """Give the sequence the slot that mostly holds a prefix of it, or an empty one, or the oldest."""

        def worth(slot: Slot) -> tuple[int, bool, int]:
            shared = common_prefix(slot.tokens, sequence.tokens)
            # All chats begin alike: a few tokens shared are no reason to cut another chat's cache.
            return (shared if 2 * shared >= len(slot.tokens) else 0, not slot.tokens, -slot.last_used)

        slot = max(self._free, key=worth)
        self._free.remove(slot)
        # At least one token is computed: the cache holds no logits.
        shared = min(common_prefix(slot.tokens, sequence.tokens), len(sequence.tokens) - 1)
        if shared < len(slot.tokens) and not self._backend.truncate(slot.id, shared):
            shared = 0
            self._backend.truncate(slot.id, 0)
        del slot.tokens[shared:]
        sequence.slot = slot
        if sequence.n_cached is None:
            sequence.n_cached = shared

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

    def _within_cache(self, planned: Planned) -> Planned:
        """Drop idle slots, then put the youngest back in the queue, until the batch finds free cells."""
        while planned:
            needed = sum(len(part.tokens) for _, part in planned)
            used = sum(len(one.slot.tokens) for one in self.running if one.slot)
            idle = sum(len(slot.tokens) for slot in self._free)
            if used + idle + needed <= self.cells:
                break
            if idle:
                self.drop_idle()
            elif len(self.running) > 1:
                youngest = self.running[-1]
                self.preempt(youngest)
                planned = [pair for pair in planned if pair[0] is not youngest]
            else:
                sequence, part = planned[0]
                planned = [_part(sequence, len(part.tokens) - (used + needed - self.cells))]
        return planned

    def lower_cells(self, planned: Planned) -> None:
        """The backend had no room for this batch, so it has fewer cells than it said."""
        used = sum(len(slot.tokens) for slot in self._free)
        used += sum(len(one.slot.tokens) for one in self.running if one.slot)
        self.cells = min(self.cells, used + sum(len(part.tokens) for _, part in planned)) - 1

    def drop_idle(self) -> bool:
        """Empty the idle slot that was used longest ago; False if there is none with tokens."""
        held = [slot for slot in self._free if slot.tokens]
        if not held:
            return False
        self._empty(min(held, key=lambda slot: slot.last_used))
        return True

    def preempt(self, sequence: Sequence) -> None:
        """Take the slot away and put the sequence first in the queue; it loses nothing but time."""
        self.running.remove(sequence)
        assert sequence.slot is not None
        self._empty(sequence.slot)
        self._release(sequence)
        self.waiting.appendleft(sequence)

    def remove(self, sequence: Sequence, *, keep_cache: bool) -> None:
        """Take a sequence out; its slot keeps its tokens for who comes next with the same beginning."""
        if sequence in self.running:
            self.running.remove(sequence)
        else:
            self.waiting.remove(sequence)
        if sequence.slot is not None:
            if not keep_cache:
                self._empty(sequence.slot)
            self._release(sequence)

    def _release(self, sequence: Sequence) -> None:
        assert sequence.slot is not None
        self._clock += 1
        sequence.slot.last_used = self._clock
        self._free.append(sequence.slot)
        sequence.slot = None

    def _empty(self, slot: Slot) -> None:
        self._backend.truncate(slot.id, 0)
        slot.tokens.clear()


def _part(sequence: Sequence, size: int) -> tuple[Sequence, Part]:
    assert sequence.slot is not None
    start = len(sequence.slot.tokens)
    tokens = sequence.tokens[start : start + size]
    return sequence, Part(sequence.slot.id, start, tokens, int(start + size == len(sequence.tokens)))
