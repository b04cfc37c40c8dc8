"""What one sequence holds: mlx-lm's caches of all layers, cut and copied only where the result is true.

mlx-lm's own `trim_prompt_cache` refuses every windowed cache that has gone round, and nothing tells how far
back the others may go. Here it is known which tokens are still there:

KVCache, QuantizedKVCache    all: any cut is true
Window                       the last ones, and some more than a window: a cut is true while the next token's
                             window is complete
ArraysCache                  a state of all: only back to where it was kept, which costs nothing, for the
                             arrays are never written to
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, KVCache, QuantizedKVCache, RotatingKVCache

from edgechat.base.errors import LoadFailed
from edgechat.planner.estimate.mlx import GROUP

_BITS = {"q8_0": 8, "q4_0": 4}
MORE = 32
"""Tokens that a windowed layer keeps beyond its window: so many can always be taken back."""


class WindowCache(RotatingKVCache):
    """A ring of the last tokens that is longer than the window; its masks show the window alone."""

    def __init__(self, window: int) -> None:
        super().__init__(max_size=window + MORE, keep=0)
        self.window = window

    def make_mask(self, N: int, window_size: int | None = None, return_array: bool = False) -> Any:
        """Return the mask for N more tokens, as mlx-lm's models ask for it."""
        shown = min(window_size or self.window, self.window)
        return super().make_mask(N, window_size=shown, return_array=return_array)

    def take_out(self, n: int) -> None:
        """Take the last `n` tokens out, of which the next token's window is left."""
        length = self.offset - n
        keys, values = self._arrays
        if length < self.max_size:
            self.keys, self.values = (self._first(array, length, n) for array in (keys, values))
            self._idx = length
        elif self._idx == keys.shape[2]:  # from old to new, and perhaps longer than the ring
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

    def _first(self, array: mx.array, length: int, n: int) -> mx.array:
        """Return the array of `length` tokens, in their order, without the last `n`.

        Before the ring is full mlx-lm takes a token's place for its number: where the first ones have gone,
        anything may stand for them, for no window reaches there.
        """
        found: mx.array = self._temporal_order(array)[..., :-n, :]
        if (gone := length - found.shape[2]) > 0:
            shape = (*found.shape[:2], gone, found.shape[3])
            return mx.concatenate([mx.zeros(shape, found.dtype), found], axis=2)
        return found[..., -length:, :]


_KNOWN = frozenset({KVCache, QuantizedKVCache, WindowCache, ArraysCache})


class CacheLayers:
    """How the layers of a model keep what they have read."""

    def __init__(self, model: Any, cache_type: str) -> None:
        """cache_type: 'f16' is the model's own. Raises LoadFailed for ways that are not known here."""
        self._model, self._bits = model, _BITS.get(cache_type)
        self._looks: list[list[tuple[str, tuple[int, ...]]]] = []
        found = self.make()
        odd = {type(one) for one in found} - _KNOWN
        if odd:
            names = ", ".join(sorted(kind.__name__ for kind in odd))
            raise LoadFailed(
                f"This model uses a cache that edgechat does not support ({names}).",
                hint="Use a GGUF file of the model: --backend llama.cpp",
            )
        self.windows = frozenset(one.window for one in found if type(one) is WindowCache)
        """Tokens that windowed layers see."""
        self.is_recurrent = any(type(one) is ArraysCache for one in found)
        self.cuts = not (self.windows or self.is_recurrent)
        """Whether a sequence can be cut at any token."""

    def learn(self, caches: Caches) -> None:
        """Note what the arrays of caches that hold something look like."""
        self._looks = [_looks(one) for one in caches.all]

    def fit(self, caches: Caches) -> bool:
        """Say whether the arrays of these caches could be such as this model makes."""
        return [_looks(one) for one in caches.all] == self._looks

    def make(self) -> list[Any]:
        """Return empty caches, one for each layer that keeps something."""
        if hasattr(self._model, "make_cache"):
            found = list(self._model.make_cache())
        else:
            found = [KVCache() for _ in self._model.layers]
        return [self._as_here(one) for one in found]

    def _as_here(self, cache: Any) -> Any:
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
        self._kept: tuple[int, list[list[Any]]] = (-1, [])
        """Recurrent states at an earlier length."""

    @property
    def arrays(self) -> list[mx.array]:
        """What is yet to be computed, or has been."""
        return [array for one in self.all for array in arrays_of(one)]

    def grew(self, n: int) -> None:
        """Note that one call of the model has added `n` tokens."""
        self.length += n
        for window, held in self.held.items():
            size = window + MORE
            # A longer run is put behind what is there, so that its first token finds a whole ring too.
            self.held[window] = min(held + 1, size) if n == 1 else min(held, size - 1) + n

    def keep(self) -> None:
        """Remember the recurrent states, so that the sequence can be cut to where it is now."""
        if self._layers.is_recurrent:
            found = [_alone(one.cache) for one in self.all if type(one) is ArraysCache]
            mx.async_eval(found)
            self._kept = self.length, found

    @property
    def kept_at(self) -> int:
        """The length at which they were remembered; -1 for never."""
        return self._kept[0]

    def can_cut(self, length: int) -> bool:
        """Say whether the first `length` tokens can be gone on from as if nothing had followed."""
        n = self.length - length
        if n <= 0:
            return n == 0
        if self._layers.is_recurrent and self._kept[0] != length:
            return False
        return all(held - n >= min(length, window - 1) for window, held in self.held.items())

    def cut(self, length: int) -> None:
        """Cut down to `length` tokens, where `can_cut` says yes."""
        n = self.length - length
        if not n:
            return
        states = iter(self._kept[1])
        for one in self.all:
            if type(one) is WindowCache:
                one.take_out(n)
            elif type(one) is ArraysCache:
                one.cache = list(next(states))
            else:
                one.trim(n)
        self.length = length
        self.held = {window: held - n for window, held in self.held.items()}

    def resume(self, length: int, held: dict[int, int]) -> None:
        """Note that the layers have been given what others held. ValueError where these cannot be theirs."""
        if held.keys() != self.held.keys() or not self._layers.fit(self):
            raise ValueError("these are of another model")
        self.length, self.held = length, held

    def copy(self, length: int) -> Caches:
        """Return caches of the first `length` tokens, where `can_cut` says yes.

        They share their memory with these until one of both goes on: arrays are copied when written to.
        """
        found = Caches(self._layers)
        for one, other in zip(self.all, found.all, strict=True):
            if type(one) is ArraysCache:
                other.cache = _alone(one.cache)
            else:
                other.state = _renewed(one.state)
        found.length, found.held, found._kept = self.length, dict(self.held), self._kept
        found.cut(length)
        return found


def arrays_of(cache: Any) -> list[mx.array]:
    """Return the arrays of one layer's cache."""
    found: list[mx.array] = []
    ahead = [cache.state]
    while ahead:
        one = ahead.pop()
        if isinstance(one, mx.array):
            found.append(one)
        elif isinstance(one, list | tuple):
            ahead += one
    return found


def _alone(states: list[Any]) -> list[Any]:
    """Return recurrent states in memory of their own: some are slices that hold a whole prompt's."""
    return [one if one is None else mx.contiguous(one) for one in states]


def _looks(cache: Any) -> list[tuple[str, tuple[int, ...]]]:
    """Return types and shapes of a layer's arrays, whatever the number of tokens in them."""
    per_token = type(cache) is not ArraysCache
    return [
        (str(one.dtype), one.shape[:-2] + one.shape[-1:] if per_token else one.shape)
        for one in arrays_of(cache)
    ]


def _renewed(state: Any) -> Any:
    """Return a state with arrays of its own: writing to an array in Python changes all who hold it."""
    if isinstance(state, mx.array):
        return mx.array(state)
    if isinstance(state, list):
        return [_renewed(one) for one in state]
    if isinstance(state, tuple):
        return tuple(_renewed(one) for one in state)
    return state
