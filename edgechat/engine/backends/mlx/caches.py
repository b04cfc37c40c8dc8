"""The caches of one sequence: mlx-lm's, of all layers, cut and copied only where the result is correct.

mlx-lm's own `trim_prompt_cache` refuses every windowed cache that has gone round, and nothing tells how far
back the others may go. Here it is known which tokens are still there:

KVCache, QuantizedKVCache    all: any cut is true
Window                       the last ones, and some more than a window: a cut is true while the next token's
                             window is complete
StateCache                   a state of all: only back to where it was kept, which costs nothing, for the
                             arrays are never written to
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map
from mlx_lm.models.cache import KVCache, QuantizedKVCache, RotatingKVCache

from edgechat.base.errors import LoadFailed
from edgechat.engine.backends.base import Places
from edgechat.engine.backends.mlx.layer_caches import MORE, StateCache, WindowCache
from edgechat.planner.estimate.footprint import GROUP

_BITS = {"q8_0": 8, "q4_0": 4}
_KNOWN = frozenset({KVCache, QuantizedKVCache, WindowCache, StateCache})


class CacheLayers:
    """The kinds of caches that the layers of a model have."""

    def __init__(self, model: Any, cache_type: str) -> None:
        """cache_type: 'f16' is the model's own. Raises LoadFailed for unknown kinds of caches."""
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
        """Tokens that windowed layers see."""
        self.is_recurrent = any(type(cache) is StateCache for cache in caches)
        self.cuts = not (self.windows or self.is_recurrent)
        """Whether a sequence can be cut at any token."""

    def learn(self, caches: Caches) -> None:
        """Note types and shapes of the arrays of caches that are not empty."""
        self._layout = [_layout(one) for one in caches.all]

    def fit(self, caches: Caches) -> bool:
        """Say whether the arrays of these caches have the types and shapes of this model's."""
        return [_layout(one) for one in caches.all] == self._layout

    def make(self) -> list[Any]:
        """Return empty caches, one for each layer that keeps something."""
        if hasattr(self._model, "make_cache"):
            caches = list(self._model.make_cache())
        else:
            caches = [KVCache() for _ in self._model.layers]
        return [self._edgechat_cache(cache) for cache in caches]

    def _edgechat_cache(self, cache: Any) -> Any:
        kind = type(cache).__name__  # mlx-vlm has copies of mlx-lm's
        if kind == "KVCache":
            cache = KVCache()
        elif kind == "RotatingKVCache":
            cache = RotatingKVCache(cache.max_size, cache.keep)
        elif kind == "ArraysCache":
            return StateCache(len(cache.cache))
        if type(cache) is RotatingKVCache and not cache.keep:
            return WindowCache(cache.max_size)
        # Windowed layers cannot be quantized in mlx-lm; they are small.
        return QuantizedKVCache(GROUP, self._bits) if self._bits and type(cache) is KVCache else cache


class Caches:
    """The caches of one sequence."""

    def __init__(self, layers: CacheLayers) -> None:
        self.all = layers.make()
        self.length = 0
        """Tokens they hold."""
        self._layers = layers
        self.held = dict.fromkeys(layers.windows, 0)
        """By window, the last tokens whose keys its layers still have."""
        self._checkpoint: tuple[int, list[list[Any]]] = (-1, [])
        """Recurrent states at an earlier length."""
        self.places = Places()
        """Where the tokens are."""

    @property
    def arrays(self) -> list[mx.array]:
        """The arrays of all layers, computed or not."""
        return [array for one in self.all for array in arrays_of(one)]

    def grew(self, n: int) -> None:
        """Note that one call of the model has added `n` tokens."""
        self.length += n
        for window, held in self.held.items():
            size = window + MORE
            # A longer run is put behind what is there, so that its first token finds a whole ring too.
            self.held[window] = min(held + 1, size) if n == 1 else min(held, size - 1) + n

    def checkpoint(self) -> None:
        """Remember the recurrent states, so that the sequence can be cut to where it is now."""
        if self._layers.is_recurrent:
            states = [_contiguous(cache.cache) for cache in self.all if type(cache) is StateCache]
            mx.async_eval(states)
            self._checkpoint = self.length, states

    @property
    def checkpoint_at(self) -> int:
        """The length at the last checkpoint; -1 before the first one."""
        return self._checkpoint[0]

    def can_cut(self, length: int) -> bool:
        """Say whether the first `length` tokens can be gone on from as if nothing had followed."""
        n = self.length - length
        if n <= 0:
            return n == 0
        if self.places.is_inside(length):
            return False
        if self._layers.is_recurrent and self._checkpoint[0] != length:
            return False
        return all(held - n >= min(length, window - 1) for window, held in self.held.items())

    def cut(self, length: int) -> None:
        """Cut down to `length` tokens, where `can_cut` says yes."""
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
        """Return windows and recurrent states as they are now, for `rewind`."""
        states = [_owned(cache) for cache in self.all if type(cache) in (WindowCache, StateCache)]
        mx.eval(states)
        return Uncut(self.length, dict(self.held), states)

    def rewind(self, uncut: Uncut) -> bool:
        """Cut down to where `uncut` was taken of these tokens; False, and they are unusable, if not."""
        kept = [cache for cache in self.all if type(cache) in (WindowCache, StateCache)]
        if self.length < uncut.length or uncut.held.keys() != self.held.keys():
            return False
        if len(kept) != len(uncut.states):
            return False
        try:
            for cache, state in zip(kept, uncut.states, strict=True):
                cache.state = _copied(state)
        except (TypeError, ValueError):  # from a file
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
        """Note that the layers have been given the contents of others. ValueError if these do not fit."""
        if held.keys() != self.held.keys() or not self._layers.fit(self):
            raise ValueError("these are of another model")
        self.length, self.held = length, held

    def copy(self, length: int) -> Caches:
        """Return caches of the first `length` tokens, where `can_cut` says yes.

        They share their memory with these until one of both goes on: arrays are copied when written to.
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
    """The layers that cannot be cut to any length, as they were at one."""

    length: int
    held: dict[int, int]
    states: list[Any]

    @property
    def n_bytes(self) -> int:
        """Size of the arrays."""
        leaves: Any = tree_flatten(self.states)
        return sum(leaf.nbytes for _, leaf in leaves if isinstance(leaf, mx.array))


def arrays_of(cache: Any) -> list[mx.array]:
    """Return the arrays of one layer's cache."""
    leaves: Any = tree_flatten(cache.state)
    return [leaf for _, leaf in leaves if isinstance(leaf, mx.array)]


def _contiguous(states: list[Any]) -> list[Any]:
    """Return recurrent states in memory of their own: some are slices that hold a whole prompt's."""
    return [state if state is None else mx.contiguous(state) for state in states]


def _owned(cache: Any) -> Any:
    """Return the state of a layer in arrays of its own."""
    if type(cache) is StateCache:
        return _contiguous(cache.cache), cache.left_padding, cache.lengths
    return _copied(cache.state)


def _layout(cache: Any) -> list[tuple[str, tuple[int, ...]]]:
    """Return types and shapes of a layer's arrays, whatever the number of tokens in them."""
    per_token = type(cache) is not StateCache
    return [
        (str(array.dtype), array.shape[:-2] + array.shape[-1:] if per_token else array.shape)
        for array in arrays_of(cache)
    ]


def _copied(state: Any) -> Any:
    """Return a state with arrays of its own: a write to a shared array would change both."""
    return tree_map(lambda leaf: mx.array(leaf) if isinstance(leaf, mx.array) else leaf, state)
