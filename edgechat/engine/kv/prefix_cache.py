"""The prefix cache: which sequence of the backend holds which tokens, and who may go on from there.

A radix tree over token ids whose nodes are runs of cells. Slots (the backend's sequences) end at a node
and hold every cell on the way to it, so what two of them share is one node, and the sizes of the nodes are
what the cache really takes. Slots that no request runs in are its leaves to reuse, and to evict, the least
recently used first.

A model whose state cannot be cut has no use for a node inside the tree, only for the end of a slot; there
the scheduler forks a slot where a later prompt will part from this one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from edgechat.engine.backends.base import Backend
from edgechat.engine.snapshot import CacheStats

_PATTERN = 32
"""Tokens that have to agree for a run to be found again behind a cut."""


@dataclass(slots=True, eq=False)
class Node:
    """A run of cells, held by `n_slots` slots."""

    start: int
    """Position of its first token."""
    tokens: list[int]
    parent: Node | None
    n_slots: int
    children: list[Node] = field(default_factory=list)
    """Two of them may begin alike: the same text, computed twice at once."""

    @property
    def end(self) -> int:
        """Position behind its last token."""
        return self.start + len(self.tokens)


@dataclass(slots=True, eq=False)
class Slot:
    """A sequence of the backend's cache. What it holds ends at `tip`."""

    id: int
    tip: Node
    chat: str | None = None
    """The conversation it was filled for."""
    busy: bool = False
    """Whether a request runs in it."""
    approximate: bool = False
    """Whether cells of it were moved: what they hold was computed with tokens that are gone."""
    last_used: int = 0

    @property
    def length(self) -> int:
        """Tokens it holds."""
        return self.tip.end

    @property
    def path(self) -> list[Node]:
        """The nodes from the first token to the last."""
        found: list[Node] = []
        node: Node | None = self.tip
        while node is not None and node.parent is not None:
            found.append(node)
            node = node.parent
        return found[::-1]

    @property
    def tokens(self) -> list[int]:
        """The tokens it holds."""
        return [token for node in self.path for token in node.tokens]


class PrefixCache:
    """The slots of a backend, and the tree of what they hold."""

    def __init__(self, backend: Backend) -> None:
        self.stats = CacheStats()
        self.cells_used = 0
        """Cells that some slot holds."""
        self._backend = backend
        self._root = Node(0, [], None, 0)
        self.slots = [Slot(number, self._root) for number in range(backend.n_seq_max)]
        self._clock = 0

    @property
    def has_free_slot(self) -> bool:
        """Whether another request can be seated."""
        return any(not slot.busy for slot in self.slots)

    @property
    def cells(self) -> int:
        """Cells of the backend."""
        return self._backend.context

    def cells_of_busy(self) -> int:
        """Return the cells that running requests hold; the others give way."""
        seen = {id(node): node for slot in self.slots if slot.busy for node in slot.path}
        return sum(len(node.tokens) for node in seen.values())

    # What is there.

    def best(self, tokens: Sequence[int], limit: int) -> tuple[Slot | None, int]:
        """Return the slot that holds most of the first `limit` tokens in a way that can be gone on from.

        Of equals one that ends there, so that it can be taken over; (None, 0) where there is none.
        """
        best: tuple[int, bool, bool, int] = (0, False, False, 0)
        found: Slot | None = None
        for slot, shared in self._shared(tokens):
            n = self._usable(slot, min(shared, limit))
            key = (n, not slot.busy, n == slot.length, slot.last_used)
            if n and key > best:
                best, found = key, slot
        return found, best[0]

    def _shared(self, tokens: Sequence[int]) -> Iterator[tuple[Slot, int]]:
        """Yield the slots that begin as `tokens` do, with how many tokens they share."""
        reached: dict[int, int] = {}
        ahead = list(self._root.children)
        while ahead:
            node = ahead.pop()
            wanted = tokens[node.start : node.end]
            shared = common_prefix(wanted, node.tokens)
            if shared:
                reached[id(node)] = node.start + shared
                if shared == len(node.tokens):
                    ahead += node.children
        for slot in self.slots:
            if slot.approximate:
                continue
            node_: Node | None = slot.tip
            while node_ is not None and id(node_) not in reached:
                node_ = node_.parent
            if node_ is not None:
                yield slot, reached[id(node_)]

    def _usable(self, slot: Slot, shared: int) -> int:
        """Return how many of the shared tokens the backend can truly go on from."""
        if self._backend.capabilities.cuts or not shared or (shared == slot.length and not slot.busy):
            return shared
        return shared if self._backend.can_copy(slot.id, shared) else 0

    # Coming and going.

    def seat(
        self, tokens: Sequence[int], *, whole: bool = False, spent: Slot | None = None
    ) -> tuple[Slot, int]:
        """Return a slot for a sequence, busy from now on, and how many of its tokens it holds already.

        At least one token is left to compute (the cache holds no logits), unless `whole`. spent: a slot that
        is of no more use but for what it shares with this sequence. There must be a free slot.
        """
        spent = None if spent is None or spent.busy else spent
        source, n = self.best(tokens, len(tokens) - (not whole))
        slot, n = self._continued(source, n, spent) if source else (self._empty_slot(spent=spent), 0)
        slot.busy = True
        self.stats.hits += n > 0
        self.stats.misses += n == 0
        self.stats.reused_tokens += n
        return slot, n

    def _continued(self, source: Slot, n: int, spent: Slot | None) -> tuple[Slot, int]:
        """Take the source over, or else copy what is wanted of it."""
        target = self._least_needed(keep=source, spent=spent)
        if not source.busy:
            if n == source.length and (spent in (None, source) or not self._backend.can_copy(source.id, n)):
                return source, n
            # Where another slot has to go for the copy, it may be less to lose what follows in this one.
            lost = source.length if target is None else 0 if target is spent else target.length
            if (source is spent or source.length - n < lost) and self.truncate(source, n):
                return source, n
            if target is None:
                self.clear(source)
                return source, 0
        assert target is not None, "there must be a free slot"
        self._vacate(target, spent)
        self._copy(source, target, n)
        return target, n

    def _least_needed(self, *, keep: Slot | None = None, spent: Slot | None = None) -> Slot | None:
        """Return the free slot to empty first: one of no more use, an empty one, the least recently used."""
        free = [slot for slot in self.slots if not slot.busy and slot is not keep]
        return min(free, key=lambda one: (one is not spent, one.length > 0, one.last_used), default=None)

    def _vacate(self, slot: Slot, spent: Slot | None = None) -> None:
        self.stats.evictions += slot.length > 0 and slot is not spent
        self.clear(slot)

    def _empty_slot(self, spent: Slot | None = None) -> Slot:
        slot = self._least_needed(spent=spent)
        assert slot is not None, "there must be a free slot"
        self._vacate(slot, spent)
        return slot

    def fork(self, slot: Slot) -> Slot | None:
        """Keep what a slot holds now in another one, to be gone on from later; None if none is free."""
        if any(one is not slot and one.tip is slot.tip for one in self.slots):
            return None  # there is one that ends here
        kept = self._least_needed(keep=slot)
        if kept is None:
            return None
        self._vacate(kept)
        self._copy(slot, kept, slot.length)
        kept.chat = slot.chat
        self._touch(kept)
        return kept

    def _copy(self, source: Slot, target: Slot, n: int) -> None:
        self._backend.copy(source.id, target.id, n)
        target.tip = self._node_ending(source, n)
        for node in target.path:
            node.n_slots += 1

    def extend(self, slot: Slot, tokens: Sequence[int]) -> None:
        """Note that the backend has computed `tokens` at the end of a slot."""
        if not tokens:
            return
        self.cells_used += len(tokens)
        tip = slot.tip
        if tip.n_slots == 1 and tip.parent is not None:
            tip.tokens.extend(tokens)
        else:
            slot.tip = Node(tip.end, list(tokens), tip, 1)
            tip.children.append(slot.tip)

    def release(self, slot: Slot) -> None:
        """The request in a slot has ended. What the slot holds waits for who begins alike."""
        slot.busy = False
        self._touch(slot)
        if slot.approximate:
            self.clear(slot)

    def _touch(self, slot: Slot) -> None:
        self._clock += 1
        slot.last_used = self._clock

    def truncate(self, slot: Slot, length: int) -> bool:
        """Cut a slot down to its first `length` tokens; False, and no change, if that would be untrue."""
        if length >= slot.length:
            return True
        if not self._backend.truncate(slot.id, length):
            return False
        tip = self._node_ending(slot, length)
        self._let_go(slot, tip)
        slot.tip = tip
        return True

    def clear(self, slot: Slot) -> None:
        """Empty a slot."""
        self.truncate(slot, 0)
        slot.approximate, slot.chat = False, None

    def forget(self, chat: str) -> None:
        """Empty the free slots that were filled for a conversation."""
        for slot in self.slots:
            if slot.chat == chat and not slot.busy:
                self.clear(slot)

    def evict(self) -> bool:
        """Empty the free slot that was used longest ago; False if none holds anything."""
        held = [slot for slot in self.slots if not slot.busy and slot.length]
        if not held:
            return False
        self.stats.evictions += 1
        self.clear(min(held, key=lambda slot: slot.last_used))
        return True

    # A window that moves.

    def shift(self, tokens: Sequence[int], *, least: int) -> tuple[Slot, int] | None:
        """Take from the middle of a slot what `tokens` leaves out, if at least `least` are saved by it.

        Returns the slot, busy from now on, and where the gap was: the cells behind it have moved, so they
        are approximate and never found again. None: nothing was done.
        """
        slot, start = self.best(tokens, len(tokens) - 1)
        if slot is None or slot.busy or not 0 < start < slot.length:
            return None
        held = slot.tokens
        stop = _found(held, tokens[start : start + _PATTERN], start + 1)
        if stop is None or any(node.n_slots > 1 for node in slot.path if node.end > start):
            return None
        run = min(common_prefix(held[stop:], tokens[start:]), len(tokens) - 1 - start)
        if (
            run < least
            or not self.truncate(slot, stop + run)
            or not self._backend.shift(slot.id, start, stop)
        ):
            return None
        self._let_go(slot, tip := self._node_ending(slot, start))
        # Not among its parent's children: nobody else may find it.
        slot.tip = Node(start, list(tokens[start : start + run]), tip, 1)
        self.cells_used += run
        slot.approximate = slot.busy = True
        return slot, start

    # A state from elsewhere.

    def restore(self, tokens: Sequence[int], state: object) -> bool:
        """Fill a free slot with a saved state of `tokens`; False if the backend refuses it."""
        if not self.has_free_slot:
            return False
        slot = self._empty_slot()
        if not self._backend.restore(slot.id, state, len(tokens)):  # type: ignore[arg-type]
            return False
        self.extend(slot, tokens)
        self._touch(slot)
        return True

    # The tree.

    def _node_ending(self, slot: Slot, length: int) -> Node:
        """Return the node on a slot's path that ends at `length`, splitting one if need be."""
        node = slot.tip
        while node.start >= length and node.parent is not None:
            node = node.parent
        return node if node.end == length else self._split(node, length)

    def _split(self, node: Node, at: int) -> Node:
        """Part a node in two at a position, and return the upper one."""
        assert node.parent is not None
        upper = Node(node.start, node.tokens[: at - node.start], node.parent, node.n_slots, [node])
        if node in node.parent.children:  # else it is approximate, which its upper part is as well
            node.parent.children[node.parent.children.index(node)] = upper
        node.tokens = node.tokens[at - node.start :]
        node.start, node.parent = at, upper
        return upper

    def _let_go(self, slot: Slot, above: Node) -> None:
        """Count a slot out of the nodes below `above`; what nobody holds is free."""
        node = slot.tip
        while node is not above:
            assert node.parent is not None
            node.n_slots -= 1
            if not node.n_slots:
                self.cells_used -= len(node.tokens)
                if node in node.parent.children:
                    node.parent.children.remove(node)
            node = node.parent


def _found(held: Sequence[int], pattern: Sequence[int], start: int) -> int | None:
    """Return where `pattern` begins in `held` from `start` on."""
    if len(pattern) < _PATTERN:
        return None
    return next(
        (
            at
            for at in range(start, len(held) - len(pattern) + 1)
            if held[at] == pattern[0] and held[at : at + len(pattern)] == pattern
        ),
        None,
    )


def common_prefix(left: Sequence[object], right: Sequence[object]) -> int:
    """Return how long the common beginning of two lists, or two texts, is; in a few comparisons of slices."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
