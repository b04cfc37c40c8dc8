"""Prefix cache: tracks which tokens each backend sequence holds, so that prompts can continue from them.

It is a radix tree over token ids whose nodes are runs of cells. A slot (a sequence in the backend) ends at a
node and holds every cell on the path to it. Slots share nodes, so the node sizes add up to the number of
cells in use. Slots without a running request are reused or evicted, least recently used first. Each set of
LoRA adapters has its own root, since cells computed with different adapters cannot be shared.

Some models have a state that cannot be truncated. With these, prompts can only continue from the end of a
slot or from a checkpoint: a copy of the state, taken where a later prompt may diverge. Checkpoints belong to
positions in the tree. Any slot that passes through a checkpoint can be rewound to it, and a checkpoint is
dropped together with its tokens.

Without flash kernels, attention processes every cell in the cache and then masks those that belong to other
sequences. Idle slots are therefore charged rent: the time that their cells cost other sequences. A slot is
dropped once its rent reaches the cost of recomputing it or of reading its saved state. This costs at most
twice as much as the best decision in hindsight (ski rental: Karlin et al. 1988, "Competitive Snoopy
Caching"). Slots are worth less when prompts rarely share a prefix with earlier ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from edgechat.engine.backends.base import AdapterSet, Backend, Checkpoint
from edgechat.engine.kv.snapshot import CacheStats
from edgechat.planner.plan import LoadPlan

_PATTERN = 32
"""Number of tokens that must match to detect where a prompt continues after a removed section."""
_FROM_DISK = 0.05
"""Seconds needed to read a state from disk, regardless of its size."""
_PRIOR = 2000
"""Initial value for the count of reused tokens."""


@dataclass(slots=True, eq=False)
class Node:
    """A run of cells, shared by `n_slots` slots."""

    start: int
    """Position of the run's first token."""
    tokens: list[int]
    parent: Node | None
    n_slots: int
    adapters: AdapterSet = ()
    """Root nodes only: the LoRA adapters used to compute the tree."""
    children: list[Node] = field(default_factory=list)
    """Two children may start with the same tokens if two requests computed the same text concurrently."""
    checkpoints: list[Checkpoint] = field(default_factory=list)
    """Checkpoints within this node's tokens, shortest first."""

    @property
    def end(self) -> int:
        """Position after the run's last token."""
        return self.start + len(self.tokens)


@dataclass(slots=True, eq=False)
class Slot:
    """A sequence in the backend. Its tokens end at the node `tip`."""

    id: int
    tip: Node
    chat: str | None = None
    """The chat whose tokens it holds."""
    busy: bool = False
    """Whether a running request is using it."""
    approximate: bool = False
    """Whether `shift` moved any of its cells. Those cells were computed with the removed tokens present."""
    forgotten: bool = False
    """Whether it must be cleared when its request ends."""
    last_used: int = 0
    saved: int = 0
    """Number of leading tokens whose state is on disk."""
    rent: float = 0.0
    """Seconds that its cells have cost other sequences since it was last used."""

    @property
    def n_own(self) -> int:
        """Number of cells that it shares with no other slot."""
        return sum(len(node.tokens) for node in self.path if node.n_slots == 1)

    @property
    def root(self) -> Node:
        """The root of the tree that contains its path."""
        node = self.tip
        while node.parent is not None:
            node = node.parent
        return node

    @property
    def length(self) -> int:
        """Number of tokens it holds."""
        return self.tip.end

    @property
    def path(self) -> list[Node]:
        """The nodes on the path from the first token to the last, excluding the root."""
        path: list[Node] = []
        node: Node | None = self.tip
        while node is not None and node.parent is not None:
            path.append(node)
            node = node.parent
        return path[::-1]

    @property
    def tokens(self) -> list[int]:
        """The tokens it holds."""
        return [token for node in self.path for token in node.tokens]

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """Checkpoints along its path, shortest first."""
        return [checkpoint for node in self.path for checkpoint in node.checkpoints]

    def checkpoint_at(self, length: int) -> Checkpoint | None:
        """Return the checkpoint after exactly `length` tokens, or None."""
        return next((one for one in self.checkpoints if one.length == length), None)


class Rent(NamedTuple):
    """Seconds that an idle cell costs other sequences."""

    decode: float
    """Cost per decoded token."""
    prefill: float
    """Cost per prompt token."""
    token: float
    """Seconds to recompute a prompt token, for comparison."""

    def of_call(self, n_decoded: int, n_read: int) -> float:
        """Return one cell's rent for a call with this many decoded tokens and prompt tokens."""
        return n_decoded * self.decode + n_read * self.prefill

    @classmethod
    def of(cls, plan: LoadPlan) -> Self | None:
        """Return the rent under a plan, or None if attention skips the cells of other sequences."""
        if plan.flash_attention or plan.forecast is None:
            return None
        forecast = plan.forecast
        return cls(forecast.decode_depth, forecast.prefill_depth, forecast.prefill)


class PrefixCache:
    """The slots of a backend, and the tree of tokens that they hold."""

    def __init__(self, backend: Backend) -> None:
        self.stats = CacheStats()
        self.cells_used = 0
        """Number of cells held by slots."""
        self.rent: Rent | None = None
        self._backend = backend
        root = Node(0, [], None, 0)
        self.slots = [Slot(number, root) for number in range(backend.n_seq_max)]
        self._clock = self._n_read = 0

    @property
    def has_free_slot(self) -> bool:
        """Whether a slot is available for another request."""
        return any(not slot.busy for slot in self.slots)

    @property
    def cells(self) -> int:
        """Total number of cells in the backend."""
        return self._backend.context

    def cells_of_busy(self) -> int:
        """Return the number of cells held by running requests. All other cells can be evicted."""
        seen = {id(node): node for slot in self.slots if slot.busy for node in slot.path}
        return sum(len(node.tokens) for node in seen.values())

    # Finding reusable tokens.

    def best(self, tokens: Sequence[int], limit: int, adapters: AdapterSet = ()) -> tuple[Slot | None, int]:
        """Return the slot that can reuse the longest prefix of the first `limit` tokens, and how long it is.

        Ties go to idle slots, then to slots that end exactly there and can be taken over. Returns (None, 0)
        if nothing is reusable.
        """
        best: tuple[int, bool, bool, int] = (0, False, False, 0)
        source: Slot | None = None
        for slot, shared in self._shared(tokens, adapters):
            n = self._usable(slot, min(shared, limit))
            key = (n, not slot.busy, n == slot.length, slot.last_used)
            if n and key > best:
                best, source = key, slot
        return source, best[0]

    def _shared(self, tokens: Sequence[int], adapters: AdapterSet) -> Iterator[tuple[Slot, int]]:
        """Yield each slot that shares a prefix with `tokens`, together with the length of that prefix."""
        reached: dict[int, int] = {}
        ahead = list(self._root(adapters).children)
        while ahead:
            node = ahead.pop()
            shared = common_prefix(tokens[node.start : node.end], node.tokens)
            if shared:
                reached[id(node)] = node.start + shared
                if shared == len(node.tokens):
                    ahead += node.children
        for slot in self.slots:
            if slot.approximate:
                continue
            last: Node | None = slot.tip
            while last is not None and id(last) not in reached:
                last = last.parent
            if last is not None:
                yield slot, reached[id(last)]

    def _usable(self, slot: Slot, shared: int) -> int:
        """Return how many of the shared tokens can actually be reused."""
        if self._backend.capabilities.cuts or not shared or (shared == slot.length and not slot.busy):
            return shared
        if self._backend.can_copy(slot.id, shared):
            return shared
        if slot.busy and not self._backend.can_copy(slot.id, slot.length):
            return 0
        return max((one.length for one in slot.checkpoints if one.length <= shared), default=0)

    # Filling and emptying slots.

    def seat(
        self,
        tokens: Sequence[int],
        adapters: AdapterSet = (),
        *,
        whole: bool = False,
        spent: Slot | None = None,
    ) -> tuple[Slot, int]:
        """Return a slot for a sequence, marked as busy, and how many of the tokens the slot already holds.

        Leaves at least one token to compute unless `whole` is true, since the cache does not store logits.
        Requires an available slot. spent: a slot that is only useful for the prefix it shares with this
        sequence.
        """
        spent = None if spent is None or spent.busy else spent
        source, n = self.best(tokens, len(tokens) - (not whole), adapters)
        slot, n = self._reuse(source, n, spent) if source else (self._empty_slot(adapters, spent), 0)
        slot.busy = True
        self.stats.hits += n > 0
        self.stats.misses += n == 0
        self.stats.reused_tokens += n
        return slot, n

    def _reuse(self, source: Slot, n: int, spent: Slot | None) -> tuple[Slot, int]:
        """Take over the source slot, or copy its first `n` tokens to another slot."""
        target = self._least_needed(keep=source, spent=spent)
        if not source.busy:
            copies = target is not None and self._backend.can_copy(source.id, source.length)
            if n == source.length and (spent in (None, source) or not copies):
                return source, n
            # Copying may evict another slot, which can lose more tokens than truncating this one.
            lost = source.length if target is None else 0 if target is spent else target.length
            if source is spent or source.length - n < lost or not copies:
                if not self.truncate(source, n):
                    self.clear(source)
                return source, source.length
        assert target is not None, "there must be a free slot"
        self._vacate(target, spent)
        self._copy(source, target, n)
        return target, target.length

    def _least_needed(self, *, keep: Slot | None = None, spent: Slot | None = None) -> Slot | None:
        """Return the idle slot to reuse: `spent`, then an empty one, then the least recently used one."""
        free = [slot for slot in self.slots if not slot.busy and slot is not keep]
        return min(free, key=lambda slot: (slot is not spent, slot.length > 0, slot.last_used), default=None)

    def _vacate(self, slot: Slot, spent: Slot | None = None) -> None:
        self.stats.evictions += slot.length > 0 and slot is not spent
        self.clear(slot)

    def _empty_slot(self, adapters: AdapterSet, spent: Slot | None = None) -> Slot:
        slot = self._least_needed(spent=spent)
        assert slot is not None, "there must be a free slot"
        self._vacate(slot, spent)
        slot.tip = self._root(adapters)
        return slot

    def _copy(self, source: Slot, target: Slot, n: int) -> None:
        """Copy the first `n` tokens to an empty slot, which stays empty if the backend cannot copy them."""
        checkpoint = None if self._backend.can_copy(source.id, n) else source.checkpoint_at(n)
        if not self._backend.copy(source.id, target.id, n if checkpoint is None else source.length):
            return
        if checkpoint is not None and not self._backend.rewind(target.id, checkpoint):
            return
        target.tip = self._node_ending(source, n)
        for node in target.path:
            node.n_slots += 1

    def extend(self, slot: Slot, tokens: Sequence[int]) -> None:
        """Record that the backend has appended `tokens` to a slot."""
        if not tokens:
            return
        self.cells_used += len(tokens)
        tip = slot.tip
        if tip.n_slots == 1 and tip.parent is not None:
            tip.tokens.extend(tokens)
        else:
            slot.tip = Node(tip.end, list(tokens), tip, 1)
            tip.children.append(slot.tip)

    def charge(self, n_decoded: int, n_read: int) -> None:
        """Charge idle slots rent for a call with this many tokens; clear those not worth keeping."""
        if self.rent is not None:
            self._n_read += n_read
            self._charge(self.rent, self.rent.of_call(n_decoded, n_read), 0.0)

    def make_way(self, n_decoded: int, n_read: int) -> None:
        """Clear idle slots whose rent would exceed their worth during calls with this many tokens.

        This is best done before those calls: their cost depends on the position of the last used cell, and
        cells do not move.
        """
        if self.rent is not None:
            self._charge(self.rent, 0.0, self.rent.of_call(n_decoded, n_read))

    def _charge(self, rent: Rent, now: float, soon: float) -> None:
        reused = self.stats.reused_tokens + _PRIOR
        chance = reused / (reused + self._n_read)
        for slot in self.slots:
            if slot.busy or not slot.length:
                continue
            n_own, restoring = slot.n_own, _FROM_DISK if slot.saved else 0.0
            slot.rent += n_own * now
            n_lost = min(n_own, slot.length - slot.saved)
            if slot.rent + n_own * soon > restoring + chance * n_lost * rent.token:
                self._vacate(slot)

    def release(self, slot: Slot) -> None:
        """Mark a finished request's slot as idle, keeping its tokens for prompts that start with them."""
        slot.busy = False
        self._touch(slot)
        if slot.approximate or slot.forgotten:
            self.clear(slot)
            slot.forgotten = False

    def _touch(self, slot: Slot) -> None:
        self._clock += 1
        slot.last_used, slot.rent = self._clock, 0.0

    def truncate(self, slot: Slot, length: int) -> bool:
        """Truncate a slot to its first `length` tokens.

        Returns False if the backend cannot do this. The slot is then unchanged, or empty if rewinding failed.
        """
        if length >= slot.length:
            return True
        cut = self._backend.truncate(slot.id, length)
        if not cut:
            checkpoint = slot.checkpoint_at(length)
            if checkpoint is None:
                return False
            cut = self._backend.rewind(slot.id, checkpoint)
        tip = self._node_ending(slot, length) if cut else slot.root
        self._detach(slot, tip)
        slot.tip, slot.saved = tip, min(slot.saved, tip.end)
        return cut

    def clear(self, slot: Slot) -> None:
        """Empty a slot."""
        self.truncate(slot, 0)
        slot.approximate, slot.chat = False, None

    def forget(self, chat: str) -> None:
        """Clear a chat's slots. Busy slots are cleared when their requests end."""
        for slot in self.slots:
            if slot.chat == chat and slot.busy:
                slot.forgotten = True
            elif slot.chat == chat:
                self.clear(slot)

    def evict(self) -> bool:
        """Clear the least recently used idle slot. Return False if there is nothing left to evict."""
        idle = [slot for slot in self.slots if not slot.busy and slot.length]
        if not idle:
            return False
        self.stats.evictions += 1
        self.clear(min(idle, key=lambda slot: slot.last_used))
        return True

    # Checkpoints.

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """All checkpoints in the tree."""
        nodes = {id(node): node for slot in self.slots for node in slot.path}
        return [checkpoint for node in nodes.values() for checkpoint in node.checkpoints]

    def checkpoint(self, slot: Slot) -> None:
        """Take a checkpoint at the end of a slot, if it fits into memory."""
        limit = self._backend.checkpoint_bytes
        if not (limit and slot.length) or slot.checkpoint_at(slot.length):
            return
        try:
            taken = self._backend.checkpoint(slot.id)
        except MemoryError:
            return
        if taken.n_bytes > limit:
            return
        self._add_checkpoint(slot.tip, taken)

    def _add_checkpoint(self, node: Node, taken: Checkpoint) -> None:
        """Add a checkpoint to a node, dropping others to stay within the memory limit."""
        limit = self._backend.checkpoint_bytes
        node.checkpoints = sorted([*node.checkpoints, taken], key=lambda one: one.length)
        while sum(one.n_bytes for one in self.checkpoints) > limit:
            self._drop_checkpoint(keep=taken)

    def _drop_checkpoint(self, keep: Checkpoint) -> None:
        """Drop the least useful checkpoint of the least recently used slot that has any.

        Without the checkpoint, a prompt edited after it must be recomputed from the previous checkpoint on.
        This extra cost matters less if many tokens follow, since they must be recomputed anyway.
        """
        kept: set[int] = set()
        found: list[tuple[Node, Checkpoint, float]] = []
        for slot in sorted(self.slots, key=lambda slot: (slot.busy, slot.last_used), reverse=True):
            before, own = 0, []
            for node in slot.path:
                for one in node.checkpoints:
                    if id(node) not in kept and one is not keep:
                        own.append((node, one, (one.length - before) / (slot.length - one.length + 1)))
                    before = one.length
            kept.update(id(node) for node in slot.path)
            found = own or found
        node, one, _ = min(found, key=lambda entry: entry[2])
        node.checkpoints.remove(one)

    # Moving the context window.

    def shift(
        self, tokens: Sequence[int], adapters: AdapterSet = (), *, least: int
    ) -> tuple[Slot, int] | None:
        """Remove from a slot a section that `tokens` lacks, if this makes at least `least` tokens reusable.

        Returns the slot, marked as busy, and the position of the gap, or None if nothing was changed. Cells
        after the gap are moved, which makes them approximate, so they are never shared.
        """
        slot, start = self.best(tokens, len(tokens) - 1, adapters)
        if slot is None or slot.busy or not 0 < start < slot.length:
            return None
        cached = slot.tokens
        stop = _find(cached, tokens[start : start + _PATTERN], start + 1)
        if stop is None or any(node.n_slots > 1 for node in slot.path if node.end > start):
            return None
        run = min(common_prefix(cached[stop:], tokens[start:]), len(tokens) - 1 - start)
        if (
            run < least
            or not self.truncate(slot, stop + run)
            or not self._backend.shift(slot.id, start, stop)
        ):
            return None
        self._detach(slot, tip := self._node_ending(slot, start))
        # Not added to the parent's children, so no other prompt can find it.
        slot.tip = Node(start, list(tokens[start : start + run]), tip, 1)
        self.cells_used += run
        slot.approximate = slot.busy = True
        return slot, start

    # Saved states.

    def restore(
        self,
        tokens: Sequence[int],
        state: object,
        checkpoint: Checkpoint | None = None,
        adapters: AdapterSet = (),
    ) -> bool:
        """Fill an available slot with the saved state of `tokens`.

        Returns False if no slot is available or the backend rejects the state. checkpoint: a checkpoint
        somewhere within the tokens.
        """
        if not self.has_free_slot:
            return False
        slot = self._empty_slot(adapters)
        if not self._backend.restore(slot.id, state, tokens):  # type: ignore[arg-type]
            return False
        self.extend(slot, tokens)
        slot.saved = slot.length
        if checkpoint is not None and checkpoint.n_bytes <= self._backend.checkpoint_bytes:
            self._add_checkpoint(self._node_ending(slot, checkpoint.length), checkpoint)
        self._touch(slot)
        return True

    # The tree.

    def _root(self, adapters: AdapterSet) -> Node:
        roots = (slot.root for slot in self.slots)
        found = next((root for root in roots if root.adapters == adapters), None)
        return found or Node(0, [], None, 0, adapters)

    def _node_ending(self, slot: Slot, length: int) -> Node:
        """Return the node on a slot's path that ends at `length`, splitting a node if necessary."""
        node = slot.tip
        while node.start >= length and node.parent is not None:
            node = node.parent
        return node if node.end == length else self._split(node, length)

    def _split(self, node: Node, at: int) -> Node:
        """Split a node at a position and return the upper half."""
        assert node.parent is not None
        upper = Node(node.start, node.tokens[: at - node.start], node.parent, node.n_slots, children=[node])
        upper.checkpoints = [one for one in node.checkpoints if one.length <= at]
        node.checkpoints = [one for one in node.checkpoints if one.length > at]
        if node in node.parent.children:  # false for approximate nodes and their upper halves
            node.parent.children[node.parent.children.index(node)] = upper
        node.tokens = node.tokens[at - node.start :]
        node.start, node.parent = at, upper
        return upper

    def _detach(self, slot: Slot, above: Node) -> None:
        """Remove a slot from all nodes below `above`, and drop nodes that no other slot holds."""
        node = slot.tip
        while node is not above:
            assert node.parent is not None
            node.n_slots -= 1
            if not node.n_slots:
                self.cells_used -= len(node.tokens)
                if node in node.parent.children:
                    node.parent.children.remove(node)
            node = node.parent


def _find(tokens: Sequence[int], pattern: Sequence[int], start: int) -> int | None:
    """Return the first index of `pattern` in `tokens` from `start` on, or None if missing or too short."""
    if len(pattern) < _PATTERN:
        return None
    for at in range(start, len(tokens) - len(pattern) + 1):
        if tokens[at] == pattern[0] and tokens[at : at + len(pattern)] == pattern:
            return at
    return None


def common_prefix(left: Sequence[object], right: Sequence[object]) -> int:
    """Return the length of the common prefix of two lists or strings, using binary search on slices."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
