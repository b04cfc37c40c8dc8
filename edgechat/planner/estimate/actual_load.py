"""The plan held against the real load, buffer by buffer."""

from __future__ import annotations

from typing import Literal

import msgspec

from edgechat.native.params import Buffer

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
    before, after = _by_name(planned), _by_name(real)
    candidates: list[Difference] = []
    for name in sorted({*before, *after}):
        empty = Buffer(name, is_host=True)
        old, new = before.get(name, empty), after.get(name, empty)
        candidates += (
            Difference(name, "weights", old.weights, new.weights),
            Difference(name, "cache", old.cache, new.cache),
            Difference(name, "compute", old.compute, new.compute),
        )
    return tuple(filter(_is_notable, candidates))


def _by_name(buffers: tuple[Buffer, ...]) -> dict[str, Buffer]:
    """Return buffers by their names, with all plain weights in RAM in one.

    Those that stay in RAM are pinned for a GPU (CUDA_Host) in the dry run, and mapped (CPU) in the real load.
    """
    found = {buffer.name: buffer for buffer in buffers}
    for buffer in buffers:
        if buffer.is_host and buffer.name.endswith("_Host"):
            ram = found.get("CPU", Buffer("CPU", is_host=True))
            found["CPU"] = msgspec.structs.replace(ram, weights=ram.weights + buffer.weights)
            found[buffer.name] = msgspec.structs.replace(buffer, weights=0)
    return found


def _is_notable(difference: Difference) -> bool:
    planned, real = difference.planned, difference.real
    return abs(planned - real) > max(TOLERATED, TOLERANCE * max(planned, real))
