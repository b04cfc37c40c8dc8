"""The caches of a sequence as bytes, and back: one safetensors image of all layers' arrays."""

from __future__ import annotations

import io
from typing import Any

import mlx.core as mx
import msgspec
import numpy as np
import numpy.typing as npt
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.models.cache import KVCache, QuantizedKVCache

from edgechat.engine.backends.mlx.caches import Caches, Uncut

_TABLE = "edgechat"
_NOT_OURS = (RuntimeError, ValueError, TypeError, KeyError, msgspec.MsgspecError)


class _Table(msgspec.Struct, frozen=True):
    """What is not an array."""

    length: int
    held: dict[int, int]
    kinds: list[str]
    """Class of each layer's cache; none of a checkpoint."""
    rest: dict[str, int | None]
    """Numbers in the layers' states, by their place there."""


def size_of(caches: Caches) -> int:
    """Return about the bytes that `pack` gives."""
    return sum(array.nbytes for array in caches.arrays)


def pack(caches: Caches) -> npt.NDArray[np.uint8]:
    """Return the caches of a sequence as bytes."""
    return _packed([_state(one) for one in caches.all], caches.length, caches.held, _kinds(caches))


def pack_checkpoint(uncut: Uncut) -> npt.NDArray[np.uint8]:
    """Return a checkpoint as bytes."""
    return _packed(uncut.states, uncut.length, uncut.held, [])


def _packed(states: list[Any], length: int, held: dict[int, int], kinds: list[str]) -> npt.NDArray[np.uint8]:
    leaves = dict(tree_flatten(states))
    arrays = {place: leaf for place, leaf in leaves.items() if isinstance(leaf, mx.array)}
    rest = {place: leaf for place, leaf in leaves.items() if place not in arrays}
    image = io.BytesIO()
    table = _Table(length, held, kinds, rest)
    mx.save_safetensors(image, arrays, {_TABLE: msgspec.json.encode(table).decode()})
    return np.frombuffer(image.getbuffer(), np.uint8)


def _unpacked(image: npt.NDArray[np.uint8]) -> tuple[_Table, Any]:
    loaded: Any = mx.load(io.BytesIO(image.tobytes()), format="safetensors", return_metadata=True)
    arrays, metadata = loaded
    table = msgspec.json.decode(metadata[_TABLE], type=_Table)
    return table, tree_unflatten([*arrays.items(), *table.rest.items()])


def unpack(image: npt.NDArray[np.uint8], caches: Caches, length: int) -> bool:
    """Fill empty caches with what `pack` gave; False, with the caches unusable, if it is something else."""
    try:
        table, states = _unpacked(image)
        if table.length != length or table.kinds != _kinds(caches):
            return False
        for cache, state in zip(caches.all, states, strict=True):
            cache.state = state
        caches.resume(length, table.held)
        mx.eval(caches.arrays)
    except _NOT_OURS:
        return False
    return True


def unpack_checkpoint(image: npt.NDArray[np.uint8]) -> Uncut | None:
    """Return what `pack_checkpoint` packed; None if it is something else."""
    try:
        table, states = _unpacked(image)
        return Uncut(table.length, table.held, list(states))
    except _NOT_OURS:
        return None


def _kinds(caches: Caches) -> list[str]:
    return [type(cache).__name__ for cache in caches.all]


def _state(cache: Any) -> Any:
    """Return the state of a layer, without the room that its arrays have for more tokens."""
    if isinstance(cache, KVCache | QuantizedKVCache):
        return (*cache.keys_and_values(), *cache.state[2:])
    return cache.state
