"""Scheduler: decides which sequences run, which slots they use and what the next batch computes.

A batch first takes one pending token from every running stream, so that no stream has to wait, and is then
filled up with prompt chunks until it reaches the cost limit for a call. Background sequences only run while
nothing else is waiting. Sequences with different sets of LoRA adapters take turns, since a call can only use
one set.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Seq
from itertools import pairwise

from edgechat.base.errors import DecodeFailed
from edgechat.engine.backends.base import AdapterSet, Backend, BatchPart, Interruption, MediaRun, is_media
from edgechat.engine.kv.prefix_cache import PrefixCache, Slot, common_prefix
from edgechat.engine.scheduling.call_cost import TILE, CallCost
from edgechat.engine.scheduling.sequence import Sequence

_HEADROOM = 32
"""Number of cells that must be free for each running sequence to grow before another one joins."""
_REPLY = 200
"""Expected number of tokens in a reply."""
_WORTH_WAITING = 64
"""Minimum number of tokens a sequence must save by waiting until another one has computed them."""
_LEAST_APART = 32
"""Number of tokens always allowed between a checkpoint and a boundary; they cost about as much as a call."""
TURN = 4
"""Number of calls after which sequences with a different set of adapters get their turn.

Switching takes time, since llama.cpp then plans its buffers again.
"""
SHIFT_SECONDS = 1.0
"""Minimum seconds of prefill that a shift must save, since its result is only approximate."""
_LEAST_SHIFTED = 64
"""Minimum number of tokens that a shift must save while their cost is unknown."""

Planned = list[tuple[Sequence, BatchPart]]


class Scheduler:
    """The waiting and running sequences of a backend."""

    def __init__(self, backend: Backend) -> None:
        self.cost = CallCost()
        self.cache = PrefixCache(backend)
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self._backend = backend
        self.cells = backend.context
        """Number of usable cells; fewer than the backend's context if it has run out of cells before."""
        self.batches = [0] * backend.n_seq_max
        """Number of calls that computed one sequence, two sequences, and so on."""
        self.is_encoded: Callable[[Sequence, MediaRun], bool] = lambda _sequence, _run: True
        """Whether a sequence's media have been encoded. Until then, the sequence waits."""
        self._prompts_turn = self._media_turn = False
        self._turns: list[AdapterSet] = []
        """Adapter sets of the running sequences. The first set has the current turn."""
        self._turn_left = TURN
        """Number of calls left in the current turn."""
        self._n_streams = 0
        """Number of running streams, including any that are not part of the next call."""
        self._crowded = False
        """Whether the backend ran out of room for running sequences. No more can join until one has ended."""

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to compute."""
        return not (self.waiting or self.running)

    @property
    def sequences(self) -> list[Sequence]:
        """All sequences, running ones first."""
        return [*self.running, *self.waiting]

    def find(self, request_id: str) -> Sequence | None:
        """Return a request's sequence, or None if it has none."""
        return next((seq for seq in self.sequences if seq.generates and seq.id == request_id), None)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence behind all others of the same priority."""
        if sequence.in_background:
            self.waiting.append(sequence)
            return
        ahead = sum(not waiting.in_background for waiting in self.waiting)
        self.waiting.insert(ahead, sequence)

    def plan(self) -> Planned:
        """Admit waiting sequences and return the next batch, or [] if there is nothing to do."""
        self._admit()
        able = [seq for seq in self.running if not self._waits_for_media(seq)]
        active = [seq for seq in able if not seq.in_background] or able
        shown = [seq for seq in active if seq.is_at_media]
        active = [seq for seq in active if not seq.is_at_media]
        self._media_turn = bool(shown) and (not active or not self._media_turn)
        if self._media_turn:  # media are computed in separate calls
            return self._within_cache([self._part(shown[0], 1)])
        self._n_streams = sum(seq.n_pending == 1 for seq in active)
        active = self._with_equal_adapters(active)
        streams = [seq for seq in active if seq.n_pending == 1]
        prompts = [seq for seq in active if seq.n_pending > 1]
        if not self._backend.capabilities.mixes:
            streams, prompts = self._take_turns(streams, prompts)
        planned = [self._part(sequence, 1) for sequence in streams]
        return self._within_cache(planned + self._chunks(prompts, len(streams)))

    def _with_equal_adapters(self, sequences: list[Sequence]) -> list[Sequence]:
        """Return the sequences that use the set of adapters whose turn it is."""
        sets = list(dict.fromkeys(seq.adapters for seq in sequences))
        if len(sets) <= 1:
            return sequences
        before = self._turns[:1]
        self._turns = [one for one in self._turns if one in sets]
        self._turns += [one for one in sets if one not in self._turns]
        if self._turns[:1] != before:
            self._turn_left = TURN
        elif not self._turn_left:
            self._turns.append(self._turns.pop(0))
            self._turn_left = TURN
        self._turn_left -= 1
        return [seq for seq in sequences if seq.adapters == self._turns[0]]

    def _waits_for_media(self, sequence: Sequence) -> bool:
        run = sequence.next_media if sequence.is_at_media else None
        return run is not None and not self.is_encoded(sequence, run)

    def media(self) -> list[tuple[Sequence, MediaRun]]:
        """Return images and sounds of running sequences that are not in the cache yet, most urgent first."""
        return [
            (seq, run)
            for seq in sorted(self.running, key=lambda seq: seq.in_background)
            for run in seq.media
            if seq.slot is not None and run.start >= seq.slot.length
        ]

    def _chunks(self, prompts: list[Sequence], n_streams: int) -> Planned:
        """Return the prompt chunks for the next batch, which also computes `n_streams` streams.

        If the shortest prompt is not the first, it gets half of the tokens. It then does not have to wait for
        a long prompt, and the long prompt does not starve.
        """
        if not prompts or (n_streams and self.cost.is_late(n_streams)):
            return []
        n_left, most = sum(seq.n_pending for seq in prompts), self._backend.n_batch - n_streams
        lone = self._can_interrupt()
        wanted = self.cost.lone_tokens() if lone else self.cost.prompt_tokens(self._n_streams, n_left)
        left = max(min(wanted, most), 1)
        # A chunk smaller than a tile would be slow by itself.
        if 0 < n_left - left < TILE <= min(left + n_streams, most):
            left = n_left if n_left <= most else n_left - TILE
        planned: Planned = []
        if (shortest := min(prompts, key=lambda seq: seq.n_pending)) is not prompts[0]:
            planned.append(self._part(shortest, max(left // 2, 1)))
            left -= len(planned[0][1].tokens)
            prompts = [seq for seq in prompts if seq is not shortest]
        for sequence in prompts:
            if left <= 0:
                break
            planned.append(self._part(sequence, left))
            left -= len(planned[-1][1].tokens)
        return planned

    def _can_interrupt(self) -> bool:
        return not self._n_streams and self._backend.interruption is not None and self.cost.may_interrupt

    def interruptible(self, planned: Planned) -> Interruption | None:
        """Return the interruption to use while decoding a batch, or None if it must not be interrupted."""
        streams = any(sequence.n_pending == 1 for sequence, _ in planned)
        return self._backend.interruption if not streams and self._can_interrupt() else None

    def _admit(self) -> None:
        held_back: list[Sequence] = []
        try:
            while self.waiting:
                sequence = self.waiting[0]
                ahead = [seq for seq in self.running if seq.in_background <= sequence.in_background]
                if (self._crowded and ahead) or not self._can_join(sequence):
                    break
                if self._comes_soon(sequence):
                    held_back.append(self.waiting.popleft())
                    continue
                self._seat(sequence)
                self.running.append(self.waiting.popleft())
        finally:
            self.waiting.extendleft(reversed(held_back))

    def _can_join(self, sequence: Sequence) -> bool:
        """Return whether a sequence can get a slot and cells. May preempt background sequences."""
        while not (self.cache.has_free_slot and (not self.running or self._has_room(sequence))):
            in_background = [seq for seq in self.running if seq.in_background]
            if sequence.in_background or not in_background:
                return False
            self.preempt(in_background[-1])
        return True

    def _has_room(self, sequence: Sequence) -> bool:
        """Return whether a sequence fits alongside the running ones, given that idle slots can be evicted."""
        source, n = self.cache.best(sequence.tokens, len(sequence.tokens) - 1, sequence.adapters)
        shared = n if source is not None and source.busy else 0
        growing = sum(seq.n_pending + _HEADROOM for seq in self.running)
        wanted = self.cache.cells_of_busy() + growing + len(sequence.tokens) - shared + _HEADROOM
        return wanted <= self.cells

    def _comes_soon(self, sequence: Sequence) -> bool:
        """Return whether a running prompt is about to compute the beginning of this sequence."""
        _, n = self.cache.best(sequence.tokens, len(sequence.tokens) - 1, sequence.adapters)
        return any(
            self._n_shared(seq, sequence) >= n + _WORTH_WAITING
            for seq in self.running
            if seq.n_pending > 1
            and seq.in_background <= sequence.in_background
            and seq.adapters == sequence.adapters
        )

    def _n_shared(self, ahead: Sequence, sequence: Sequence) -> int:
        """Return how many tokens a sequence can reuse once `ahead` has computed its prompt."""
        n = min(common_prefix(ahead.tokens, sequence.tokens), len(sequence.tokens) - 1)
        if self._backend.capabilities.cuts:
            return n
        return max((latest for _, latest in ahead.checkpoints if latest <= n), default=0)

    def _seat(self, sequence: Sequence) -> None:
        """Assign a sequence the slot with the most reusable tokens."""
        slot, n = self._shifted(sequence) or self.cache.seat(
            sequence.tokens, sequence.adapters, whole=not sequence.generates, spent=sequence.spent
        )
        sequence.slot = slot
        slot.chat = sequence.request.chat
        self.cache.make_way(_REPLY if sequence.generates else 0, len(sequence.tokens) - n)
        if self._backend.checkpoint_bytes:
            self.cache.checkpoint(slot)  # at the end of a reply, since the question after it may be edited
            sequence.checkpoints = checkpoints_of(sequence.boundaries, slot.length, len(sequence.tokens))
        if sequence.n_cached is None:
            sequence.n_cached = min(n, sequence.n_prompt)

    def _shifted(self, sequence: Sequence) -> tuple[Slot, int] | None:
        """Try to shift cached cells if the window has moved, so that they need not be recomputed.

        Returns the slot and its length, or None if nothing was shifted.
        """
        if not (sequence.dropped and sequence.generates and self._backend.capabilities.shifts):
            return None
        seconds = self.cost.token_seconds
        least = int(SHIFT_SECONDS / seconds) if seconds else _LEAST_SHIFTED
        shifted = self.cache.shift(sequence.tokens, sequence.adapters, least=max(least, 1))
        if shifted is None:
            return None
        slot, start = shifted
        sequence.n_shifted = max(0, min(slot.length, sequence.n_prompt) - start)
        if sequence.n_cached is not None:  # the window moved during the reply
            sequence.n_cached = max(sequence.n_cached, sequence.n_shifted)
        return slot, slot.length

    def _take_turns(
        self, streams: list[Sequence], prompts: list[Sequence]
    ) -> tuple[list[Sequence], list[Sequence]]:
        """Alternate between one stream and one prompt, for backends that cannot mix them in a batch."""
        oldest = sorted(streams, key=lambda seq: seq.last_token)[:1]
        if not (streams and prompts):
            return oldest, prompts[:1]
        self._prompts_turn = not self._prompts_turn
        return ([], prompts[:1]) if self._prompts_turn else (oldest, [])

    def _part(self, sequence: Sequence, size: int) -> tuple[Sequence, BatchPart]:
        """Return up to `size` of a sequence's next tokens. Images and sounds are not split."""
        assert sequence.slot is not None
        start = sequence.slot.length
        run = sequence.next_media
        if run is not None and run.start == start:
            return sequence, BatchPart(sequence.slot.id, start, sequence.tokens[start : run.stop], 0)
        latest = next((at for _, at in sequence.checkpoints if at > start), len(sequence.tokens))
        stop = min(start + size, latest, run.start if run is not None else latest)
        last = stop == len(sequence.tokens)
        tokens = sequence.tokens[start:stop]
        n_logits = int(last and sequence.generates)
        return sequence, BatchPart(sequence.slot.id, start, tokens, n_logits, sequence.n_candidates)

    def _within_cache(self, planned: Planned) -> Planned:
        """Make room for a batch by evicting idle slots and then preempting the youngest sequences."""
        while planned:
            needed = sum(len(part.tokens) for _, part in planned)
            free = self.n_free
            if needed <= free:
                break
            if self.cache.evict():
                continue
            if len(self.running) > 1:
                self.preempt(youngest := self._youngest())
                planned = [pair for pair in planned if pair[0] is not youngest]
            else:
                sequence, part = planned[0]
                if is_media(part.tokens[0]):
                    raise DecodeFailed(
                        "An image or a sound does not fit into the context.", hint="Try --ctx."
                    )
                planned = [self._part(sequence, len(part.tokens) - (needed - free))]
        return planned

    @property
    def n_free(self) -> int:
        """Number of cells that are free without evicting anything."""
        return self.cells - self.cache.cells_used

    def _youngest(self) -> Sequence:
        """Return the running sequence to preempt first."""
        return next((seq for seq in self.running[::-1] if seq.in_background), self.running[-1])

    def computed(self, planned: Planned) -> None:
        """Record that the backend has computed a batch. Drafted tokens only count once they are accepted."""
        self.batches[min(len(planned), len(self.batches)) - 1] += 1
        n_tokens = sum(len(part.tokens) for _, part in planned)
        n_decoded = sum(part.n_logits for _, part in planned)
        self.cache.charge(n_decoded, n_tokens - n_decoded)
        for sequence, part in planned:
            slot = sequence.slot
            assert slot is not None
            n_drafted = len(sequence.draft.tokens) if sequence.draft else 0
            self.cache.extend(slot, part.tokens[: len(part.tokens) - n_drafted])
            self._take_checkpoint(sequence, len(part.tokens))

    def _take_checkpoint(self, sequence: Sequence, size: int) -> None:
        """Take any checkpoint that is due if another call of this size would pass its latest position."""
        assert sequence.slot is not None
        length = sequence.slot.length
        due = [(first, latest) for first, latest in sequence.checkpoints if first <= length <= latest]
        if any(length + size > latest for _, latest in due):
            self.cache.checkpoint(sequence.slot)
            sequence.checkpoints = tuple(one for one in sequence.checkpoints if one not in due)
        if sequence.checkpoints and sequence.checkpoints[0][1] <= length:  # an interrupted call passed it
            sequence.checkpoints = sequence.checkpoints[1:]

    def accept_draft(self, sequence: Sequence, drafted: Seq[int], n_accepted: int) -> None:
        """Keep the first `n_accepted` drafted tokens and roll back the rest."""
        slot = sequence.slot
        assert slot is not None
        n_rejected = len(drafted) - n_accepted
        if n_rejected and not self._backend.rollback(slot.id, n_rejected):
            self._lost(slot)
            return
        self.cache.extend(slot, drafted[:n_accepted])

    def interrupted(self, planned: Planned, n_kept: Seq[int | None]) -> None:
        """Record how many tokens of each part an interrupted call cached.

        n_kept: None for a part whose slot is now invalid.
        """
        for (sequence, part), n in zip(planned, n_kept, strict=True):
            slot = sequence.slot
            assert slot is not None
            if n is None:
                self._lost(slot)
            else:
                self.cache.extend(slot, part.tokens[:n])

    def _lost(self, slot: Slot) -> None:
        """Clear a slot whose contents are invalid, but keep it assigned to its chat."""
        chat = slot.chat
        self.cache.clear(slot)
        slot.chat = chat

    def make_room(self, planned: Planned) -> None:
        """Evict a slot or preempt the youngest sequence after the backend had no room for a batch.

        If a single sequence does not fit, the backend must have fewer cells than it reported. With several
        sequences, this does not follow: llama.cpp does not free cells outside an attention window while
        sequences share them.
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
        """Release a sequence's slot and put the sequence back in the queue. The sequence only loses time."""
        self.running.remove(sequence)
        assert sequence.slot is not None
        if not sequence.in_background:  # a prewarmed chat's cells stay, since its next turn may need them
            self.cache.clear(sequence.slot)
        self._release(sequence)
        if sequence.in_background:
            self.add(sequence)
        else:
            self.waiting.appendleft(sequence)

    def resume(self, sequence: Sequence) -> None:
        """Requeue a sequence whose tokens have changed. It reuses all of its cache that is still valid."""
        self.waiting.appendleft(sequence)

    def remove(self, sequence: Sequence, *, keep_cache: bool) -> None:
        """Remove a sequence.

        keep_cache: whether later prompts that start the same way may reuse its slot.
        """
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
        sequence.slot, sequence.checkpoints = None, ()


def checkpoints_of(boundaries: Seq[int], start: int, end: int) -> tuple[tuple[int, int], ...]:
    """Return where to take checkpoints in a prompt computed from `start` on, as (first, latest) positions.

    One checkpoint is always at the last boundary, and there are as few others as possible. After an edit at
    any boundary, the tokens between the preceding checkpoint and the boundary are recomputed along with the
    tokens after it. The former must be at most a quarter as many, or cost no more than a call. Each
    checkpoint can be taken anywhere in a range, so short calls need not end exactly at boundaries.
    """
    ahead = [at for at in boundaries if at > start]
    chosen, covered = [(at, at) for at in ahead[-1:]], 0
    for at, before in pairwise([*ahead[-2::-1], start]):
        covered = covered or at
        first = covered - max((end - covered) // 4, _LEAST_APART)
        if before < first:
            chosen.append((first, at))
            covered = 0
    return tuple(chosen[::-1])
