"""A place that a sequence can be brought back to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """What cutting cannot bring back of a sequence: its windows and recurrent states at one length.

    Keys and values of layers with full attention are not part of it: they stay in the cache.
    """

    length: int
    """Tokens of the sequence when it was taken."""
    n_bytes: int
    state: object
    """The backend's own, or what its `save_checkpoint` made of that."""
