"""The plan held against the real load, buffer by buffer."""

from __future__ import annotations

from typing import Literal

import msgspec

from edgechat.native.buffers import Buffer

TOLERANCE, TOLERATED = 0.02, 32 * 2**20
"""Share of a buffer, and bytes: less than the larger of both is no difference."""


class Difference(msgspec.Struct, frozen=True):
    """A buffer that is not what was planned."""

    name: str
    """llama.cpp's name of its type."""
    what: Literal["weights", "cache", "compute"]
    planned: int
    """Bytes."""
    real: int


def differences(planned: tuple[Buffer, ...], real: tuple[Buffer, ...]) -> tuple[Difference, ...]:
    """Return where a load is not as planned by more than is tolerated; both by type of buffer."""
    before = {one.name: one for one in planned}
    after = {one.name: one for one in real}
    found: list[Difference] = []
    for name in sorted({*before, *after}):
        nothing = Buffer(name, is_host=True)
        old, new = before.get(name, nothing), after.get(name, nothing)
        pairs: tuple[tuple[Literal["weights", "cache", "compute"], int, int], ...] = (
            ("weights", old.weights, new.weights),
            ("cache", old.cache, new.cache),
            ("compute", old.compute, new.compute),
        )
        found += [
            Difference(name, what, a, b)
            for what, a, b in pairs
            if abs(a - b) > max(TOLERATED, TOLERANCE * max(a, b))
        ]
    return tuple(found)
