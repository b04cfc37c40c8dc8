"""A sequence's caches: mlx-lm's caches for all layers, cut and copied only if the result is correct.

mlx-lm's own `trim_prompt_cache` rejects every windowed cache that has wrapped around, and does not report how
far other caches can be cut back. This module keeps track of which tokens each cache still holds:

KVCache, QuantizedKVCache    all tokens: any cut is correct
WindowCache                  the last tokens, a few more than the window holds: a cut is correct if it leaves
                             the next token's window complete
StateCache                   a single state for all tokens: it can only return to a checkpoint; checkpoints
                             are cheap, since arrays are never modified
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import msgspec
import numpy as np
import numpy.typing as npt
from mlx.utils import tree_flatten, tree_map, tree_unflatten
from mlx_lm.models.cache import ArraysCache, KVCache, QuantizedKVCache, RotatingKVCache

from edgechat.base.errors import LoadFailed
from edgechat.engine.backends.base import Places
from edgechat.planner.estimate.footprint import GROUP

MORE = 32
"""Tokens that a windowed layer stores beyond its window, so that up to this many can always be cut."""


class WindowCache(RotatingKVCache):
    """A ring buffer for the last tokens. It is longer than the window, and masks expose only the window."""

    def __init__(self, window: int) -> None:
        super().__init__(max_size=window + MORE, keep=0)
        self.window = window

    def make_mask(self, N: int, window_size: int | None = None, return_array: bool = False) -> Any:
        """Return the mask for the next N tokens; called by mlx-lm's models."""
        shown = min(window_size or self.window, self.window)
        return super().make_mask(N, window_size=shown, return_array=return_array)

    def take_out(self, n: int) -> None:
        """Remove the last `n` tokens. The next token's window must remain complete."""
        length = self.offset - n
        keys, values = self._arrays
        if length < self.max_size:
            self.keys, self.values = (self._first_tokens(array, length, n) for array in (keys, values))
            self._idx = length
        elif self._idx == keys.shape[2]:  # in order, and possibly longer than the ring
            self._idx -= n
            end = max(self._idx, self.max_size)
            self.keys, self.values = keys[..., :end, :], values[..., :end, :]
        else:
            self._idx = (self._idx - n) % self.max_size
        self.offset = length

    @property
    def _arrays(self) -> tuple[mx.array, mx.array]:
        assert self.keys is not None
        assert self.values is not None
        return self.keys, self.values

    def _first_tokens(self, array: mx.array, length: int, n: int) -> mx.array:
        """Drop the last `n` tokens of an array and return the `length` tokens before them, in order.

        Until the ring is full, mlx-lm uses a token's position as its index. So tokens missing at the start
        are replaced with zeros, which are outside every window.
        """
        tokens: mx.array = self._temporal_order(array)[..., :-n, :]
        if (n_missing := length - tokens.shape[2]) > 0:
            shape = (*tokens.shape[:2], n_missing, tokens.shape[3])
            return mx.concatenate([mx.zeros(shape, tokens.dtype), tokens], axis=2)
        return tokens[..., -length:, :]


class StateCache(ArraysCache):
    """Recurrent state for models in mlx-lm and mlx-vlm."""

    cache: list[Any]

    def update_recurrent(
        self, index: int, length: int, update: Callable[[mx.array | None, None], tuple[mx.array, ...]]
    ) -> tuple[mx.array, mx.array]:
        """Let a layer compute its output and next state; called by mlx-vlm's models."""
        output, state, *_ = update(self.cache[index], None)
        self.cache[index] = state
        return output, state

    def update_window(self, index: int, source: mx.array, width: int, *, lengths: None = None) -> None:
        """Store the last columns of a convolution's input; called by mlx-vlm's models."""
        self.cache[index] = mx.contiguous(source[:, source.shape[1] - width :])


class SeenWhole:
    """Wraps a layer's cache for a call in which tokens attend to each other in both directions."""

    def __init__(self, cache: Any) -> None:
        self._cache = cache

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    def make_mask(self, N: int, window_size: int | None = None, return_array: bool = False) -> Any:
        """Return the mask for the N tokens: None, or a mask that also exposes the window before them."""
        if type(self._cache) is not WindowCache:
            return None
        mask = self._cache.make_mask(N, window_size=window_size, return_array=True)
        return mask | (mx.arange(mask.shape[-1]) >= mask.shape[-1] - N)


_BITS = {"q8_0": 8, "q4_0": 4}
_KNOWN = frozenset({KVCache, QuantizedKVCache, WindowCache, StateCache})


class CacheLayers:
    """The kinds of caches that a model's layers use."""

    def __init__(self, model: Any, cache_type: str) -> None:
        """cache_type: 'f16' means the model's own type. Raises LoadFailed for unknown kinds of caches."""
        self._model, self._bits = model, _BITS.get(cache_type)
        self._layout: list[list[tuple[str, tuple[int, ...]]]] = []
        caches = self.make()
        unknown = {type(cache) for cache in caches} - _KNOWN
        if unknown:
            names = ", ".join(sorted(kind.__name__ for kind in unknown))
            raise LoadFailed(
                f"This model uses a cache that edgechat does not support ({names}).",
                hint="Use a GGUF file of the model: --backend llama.cpp",
            )
        self.windows = frozenset(cache.window for cache in caches if type(cache) is WindowCache)
        """Window sizes, in tokens."""
        self.is_recurrent = any(type(cache) is StateCache for cache in caches)
        self.cuts = not (self.windows or self.is_recurrent)
        """Whether a sequence can be cut at any token."""

    def learn(self, caches: Caches) -> None:
        """Record the types and shapes of the arrays in non-empty caches."""
        self._layout = [_layout(one) for one in caches.all]

    def fit(self, caches: Caches) -> bool:
        """Return whether the arrays in `caches` have this model's types and shapes."""
        return [_layout(one) for one in caches.all] == self._layout

    def make(self) -> list[Any]:
        """Return empty caches, one for each layer that has a cache."""
        if hasattr(self._model, "make_cache"):
            caches = list(self._model.make_cache())
        else:
            caches = [KVCache() for _ in self._model.layers]
        return [self._edgechat_cache(cache) for cache in caches]

    def _edgechat_cache(self, cache: Any) -> Any:
        kind = type(cache).__name__  # mlx-vlm has its own copies of mlx-lm's classes
        if kind == "KVCache":
            cache = KVCache()
        elif kind == "RotatingKVCache":
            cache = RotatingKVCache(cache.max_size, cache.keep)
        elif kind == "ArraysCache":
            return StateCache(len(cache.cache))
        if type(cache) is RotatingKVCache and not cache.keep:
            return WindowCache(cache.max_size)
        # mlx-lm cannot quantize windowed layers, but these are small anyway.
        return QuantizedKVCache(GROUP, self._bits) if self._bits and type(cache) is KVCache else cache


class Caches:
    """The caches of one sequence."""

    def __init__(self, layers: CacheLayers) -> None:
        self.all = layers.make()
        self.length = 0
        self._layers = layers
        self.held = dict.fromkeys(layers.windows, 0)
        """Number of most recent tokens whose keys are still cached, keyed by window size."""
        self._checkpoint: tuple[int, list[list[Any]]] = (-1, [])
        """The length at the checkpoint, and the recurrent states at that point."""
        self.places = Places()

    @property
    def arrays(self) -> list[mx.array]:
        """The arrays in all layers' caches, whether or not they have been evaluated."""
        return [array for one in self.all for array in arrays_of(one)]

    def grew(self, n: int) -> None:
        """Record that one call of the model added `n` tokens."""
        self.length += n
        for window, held in self.held.items():
            size = window + MORE
            # A longer run is appended, so that the ring is still full for its first token.
            self.held[window] = min(held + 1, size) if n == 1 else min(held, size - 1) + n

    def checkpoint(self) -> None:
        """Remember the recurrent states, so that the sequence can later be cut back to its current length."""
        if self._layers.is_recurrent:
            states = [_contiguous(cache.cache) for cache in self.all if type(cache) is StateCache]
            mx.async_eval(states)
            self._checkpoint = self.length, states

    @property
    def checkpoint_at(self) -> int:
        """Length at the last checkpoint, or -1 if there is none."""
        return self._checkpoint[0]

    def can_cut(self, length: int) -> bool:
        """Return whether cutting to `length` tokens gives a correct result."""
        n = self.length - length
        if n <= 0:
            return n == 0
        if self.places.is_inside(length):
            return False
        if self._layers.is_recurrent and self._checkpoint[0] != length:
            return False
        return all(held - n >= min(length, window - 1) for window, held in self.held.items())

    def cut(self, length: int) -> None:
        """Cut the caches to `length` tokens. Call this only if `can_cut` returned True."""
        n = self.length - length
        if not n:
            return
        states = iter(self._checkpoint[1])
        for cache in self.all:
            if type(cache) is WindowCache:
                cache.take_out(n)
            elif type(cache) is StateCache:
                cache.cache = list(next(states))
            else:
                cache.trim(n)
        self.length, self.places = length, self.places.up_to(length)
        self.held = {window: held - n for window, held in self.held.items()}

    def uncut(self) -> Uncut:
        """Return the current windows and recurrent states, for `rewind`."""
        states = [_owned(cache) for cache in self.all if type(cache) in (WindowCache, StateCache)]
        mx.eval(states)
        return Uncut(self.length, dict(self.held), states)

    def rewind(self, uncut: Uncut) -> bool:
        """Return to the length at which `uncut` was taken.

        On failure, returns False and leaves the caches unusable.
        """
        kept = [cache for cache in self.all if type(cache) in (WindowCache, StateCache)]
        if self.length < uncut.length or uncut.held.keys() != self.held.keys():
            return False
        if len(kept) != len(uncut.states):
            return False
        try:
            for cache, state in zip(kept, uncut.states, strict=True):
                cache.state = _copied(state)
        except (TypeError, ValueError):  # from an invalid file
            return False
        for cache in self.all:
            if type(cache) not in (WindowCache, StateCache):
                cache.trim(self.length - uncut.length)
        if not self._layers.fit(self):
            return False
        self.length, self.held = uncut.length, dict(uncut.held)
        self.places = self.places.up_to(uncut.length)
        self._checkpoint = (-1, [])
        return True

    def resume(self, length: int, held: dict[int, int]) -> None:
        """Set the token counts of loaded contents. Raises ValueError if these belong to another model."""
        if held.keys() != self.held.keys() or not self._layers.fit(self):
            raise ValueError("these belong to another model")
        self.length, self.held = length, held

    def copy(self, length: int) -> Caches:
        """Return a copy with the first `length` tokens. Call this only if `can_cut` returned True.

        The copy and the original share memory until either continues, since arrays are copied on write.
        """
        caches = Caches(self._layers)
        for one, other in zip(self.all, caches.all, strict=True):
            other.state = _owned(one)
        caches.length, caches.held, caches._checkpoint = self.length, dict(self.held), self._checkpoint
        caches.places = self.places
        caches.cut(length)
        return caches


@dataclass(frozen=True, slots=True)
class Uncut:
    """The state, at a given length, of the layers that cannot be cut at arbitrary tokens."""

    length: int
    held: dict[int, int]
    states: list[Any]

    @property
    def n_bytes(self) -> int:
        """Total size of the arrays in bytes."""
        leaves: Any = tree_flatten(self.states)
        return sum(leaf.nbytes for _, leaf in leaves if isinstance(leaf, mx.array))


def arrays_of(cache: Any) -> list[mx.array]:
    """Return the arrays in a layer's cache."""
    leaves: Any = tree_flatten(cache.state)
    return [leaf for _, leaf in leaves if isinstance(leaf, mx.array)]


def _contiguous(states: list[Any]) -> list[Any]:
    """Return contiguous copies of recurrent states; slices would keep a whole prompt's arrays in memory."""
    return [state if state is None else mx.contiguous(state) for state in states]


def _owned(cache: Any) -> Any:
    """Return a layer's state as separate arrays, not shared with the cache."""
    if type(cache) is StateCache:
        return _contiguous(cache.cache), cache.left_padding, cache.lengths
    return _copied(cache.state)


def _layout(cache: Any) -> list[tuple[str, tuple[int, ...]]]:
    """Return the types and shapes of a layer's arrays, leaving out the number of tokens."""
    per_token = type(cache) is not StateCache
    return [
        (str(array.dtype), array.shape[:-2] + array.shape[-1:] if per_token else array.shape)
        for array in arrays_of(cache)
    ]


def _copied(state: Any) -> Any:
    """Return a state with copied arrays; writing to a shared array would change both states."""
    return tree_map(lambda leaf: mx.array(leaf) if isinstance(leaf, mx.array) else leaf, state)


_TABLE = "edgechat"
_NOT_OURS = (RuntimeError, ValueError, TypeError, KeyError, msgspec.MsgspecError)


class _Table(msgspec.Struct, frozen=True):
    """The values in a saved state that are not arrays."""

    length: int
    held: dict[int, int]
    kinds: list[str]
    """Class of each layer's cache; empty for a checkpoint."""
    rest: dict[str, int | None]
    """Numbers in the layers' states, with their keys from `tree_flatten`."""


def size_of(caches: Caches) -> int:
    """Return the approximate size of a packed state in bytes."""
    return sum(array.nbytes for array in caches.arrays)


def pack(caches: Caches) -> npt.NDArray[np.uint8]:
    """Return a sequence's caches as bytes, in safetensors format."""
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
    """Fill empty caches from a packed state.

    Returns False, leaving the caches unusable, if the state is invalid.
    """
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
    """Return a checkpoint packed by `pack_checkpoint`, or None if the bytes are invalid."""
    try:
        table, states = _unpacked(image)
        return Uncut(table.length, table.held, list(states))
    except _NOT_OURS:
        return None


def _kinds(caches: Caches) -> list[str]:
    return [type(cache).__name__ for cache in caches.all]


def _state(cache: Any) -> Any:
    """Return a layer's state without the unused space in its arrays."""
    if isinstance(cache, KVCache | QuantizedKVCache):
        return (*cache.keys_and_values(), *cache.state[2:])
    return cache.state
