"""The caches of single layers: mlx-lm's, with what cutting, mlx-vlm's models and pictures ask of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, RotatingKVCache

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
            self.keys, self.values = (self._first_tokens(array, length, n) for array in (keys, values))
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

    def _first_tokens(self, array: mx.array, length: int, n: int) -> mx.array:
        """Return the array of `length` tokens, in their order, without the last `n`.

        Before the ring is full mlx-lm takes a token's place for its number: where the first ones have gone,
        anything may stand for them, for no window reaches there.
        """
        tokens: mx.array = self._temporal_order(array)[..., :-n, :]
        if (n_missing := length - tokens.shape[2]) > 0:
            shape = (*tokens.shape[:2], n_missing, tokens.shape[3])
            return mx.concatenate([mx.zeros(shape, tokens.dtype), tokens], axis=2)
        return tokens[..., -length:, :]


class StateCache(ArraysCache):
    """A recurrent state, as mlx-lm's models and mlx-vlm's keep it."""

    cache: list[Any]

    def update_recurrent(
        self, index: int, length: int, update: Callable[[mx.array | None, None], tuple[mx.array, ...]]
    ) -> tuple[mx.array, mx.array]:
        """Let a layer compute its output and its next state from the last one, as mlx-vlm's models ask."""
        output, state, *_ = update(self.cache[index], None)
        self.cache[index] = state
        return output, state

    def update_window(self, index: int, source: mx.array, width: int, *, lengths: None = None) -> None:
        """Keep the last columns of what a convolution has read."""
        self.cache[index] = mx.contiguous(source[:, source.shape[1] - width :])


class SeenWhole:
    """A layer's cache in a call whose tokens see each other, the later ones too."""

    def __init__(self, cache: Any) -> None:
        self._cache = cache

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    def make_mask(self, N: int, window_size: int | None = None, return_array: bool = False) -> Any:
        """Return the mask for the N tokens: none, or a window before them."""
        if type(self._cache) is not WindowCache:
            return None
        mask = self._cache.make_mask(N, window_size=window_size, return_array=True)
        return mask | (mx.arange(mask.shape[-1]) >= mask.shape[-1] - N)
