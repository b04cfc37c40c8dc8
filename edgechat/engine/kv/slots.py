"""The sequences of a cache, as the tree of what they hold sees them."""

from __future__ import annotations

from dataclasses import dataclass, field

from edgechat.engine.backends.base import AdapterSet, Checkpoint


@dataclass(slots=True, eq=False)
class Node:
    """A run of cells, held by `n_slots` slots."""

    start: int
    """Position of its first token."""
    tokens: list[int]
    parent: Node | None
    n_slots: int
    adapters: AdapterSet = ()
    """Of a root: the LoRA adapters that all below it was computed with."""
    children: list[Node] = field(default_factory=list)
    """Two may begin alike: the same text, computed twice at the same time."""
    checkpoints: list[Checkpoint] = field(default_factory=list)
    """Behind its tokens, the shortest first."""

    @property
    def end(self) -> int:
        """Position after its last token."""
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
    """Whether cells were moved by `shift`: they were computed with tokens that are gone."""
    forgotten: bool = False
    """Whether nothing of it may be kept when its request ends."""
    last_used: int = 0
    saved: int = 0
    """How many of its first tokens have their state on disk."""
    rent: float = 0.0
    """Seconds that its cells have cost others since it was used."""

    @property
    def n_own(self) -> int:
        """Number of its cells that no other slot holds."""
        return sum(len(node.tokens) for node in self.path if node.n_slots == 1)

    @property
    def root(self) -> Node:
        """The node above all of its tokens."""
        node = self.tip
        while node.parent is not None:
            node = node.parent
        return node

    @property
    def length(self) -> int:
        """Number of its tokens."""
        return self.tip.end

    @property
    def path(self) -> list[Node]:
        """The nodes from the first token to the last."""
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
        """Where it can go back to, the shortest first."""
        return [checkpoint for node in self.path for checkpoint in node.checkpoints]

    def checkpoint_at(self, length: int) -> Checkpoint | None:
        """Return the checkpoint of so many tokens, if there is one."""
        return next((one for one in self.checkpoints if one.length == length), None)
