"""What one call of llama.cpp computes: a llama_batch over arrays of our own."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import llama_cpp.llama_cpp as lib
import numpy as np
import numpy.typing as npt


class TokenBatch:
    """Runs of tokens of several sequences; filled anew for each call, with a few slices."""

    def __init__(self, capacity: int) -> None:
        self._token = np.zeros(capacity, np.int32)
        self._position = np.zeros(capacity, np.int32)
        self._n_seq = np.ones(capacity, np.int32)
        self._seq = np.zeros(capacity, np.int32)
        self._wanted = np.zeros(capacity, np.int8)
        self._seq_pointers = _addresses(self._seq)
        self.native = _native(self._position, self._n_seq, self._seq_pointers, self._wanted)
        self.native.token = pointer(self._token, ctypes.c_int32)

    def fill(self, runs: Sequence[tuple[int, int, Sequence[int], int]]) -> int:
        """Lay out runs of (sequence, start position, tokens, wanted rows); return how many are wanted."""
        at = n_rows = 0
        for seq, start, tokens, wanted in runs:
            end = at + len(tokens)
            if end > len(self._token):
                raise ValueError(f"a batch of {end} tokens is over the limit of {len(self._token)}")
            self._token[at:end] = tokens
            self._position[at:end] = range(start, start + len(tokens))
            self._seq[at:end] = seq
            self._wanted[at:end] = 0
            self._wanted[end - wanted : end] = 1
            n_rows += wanted
            at = end
        self.native.n_tokens = at
        return n_rows


class EmbeddingBatch:
    """Embeddings of one sequence in place of tokens. A call takes either: they cannot be mixed."""

    def __init__(
        self,
        seq: int,
        embeddings: npt.NDArray[np.float32],
        positions: npt.NDArray[np.int32],
        *,
        last_row: bool = False,
        all_rows: bool = False,
    ) -> None:
        """Lay out embeddings [n, n_embd] at positions [1 or 4, n]; no row is wanted, the last, or all."""
        (n, n_embd), (n_numbers, n_positions) = embeddings.shape, positions.shape
        if n != n_positions:
            raise ValueError(f"{n} embeddings have {n_positions} positions")
        self.shape = n_numbers, n_embd
        """Numbers of a position and of an embedding."""
        self._embedding = np.ascontiguousarray(embeddings, np.float32)
        self._position = np.ascontiguousarray(positions, np.int32)
        self._n_seq = np.ones(n, np.int32)
        self._seq = np.full(n, seq, np.int32)
        self._wanted = np.full(n, all_rows, np.int8)
        self._wanted[n - 1 :] |= last_row
        self._seq_pointers = _addresses(self._seq)
        self.native = _native(self._position, self._n_seq, self._seq_pointers, self._wanted)
        self.native.embd = pointer(self._embedding, ctypes.c_float)
        self.native.n_tokens = n


def pointer(array: npt.NDArray[Any], kind: Any) -> Any:
    """Return the address of an array's numbers as a C pointer to one kind of them."""
    return ctypes.cast(ctypes.c_void_p(array.ctypes.data), ctypes.POINTER(kind))


def _addresses(numbers: npt.NDArray[np.int32]) -> npt.NDArray[np.uintp]:
    """Return the address of each: of the list of the one sequence that a token belongs to."""
    addresses: npt.NDArray[np.uintp] = numbers.ctypes.data + 4 * np.arange(len(numbers), dtype=np.uintp)
    return addresses


def _native(
    position: npt.NDArray[np.int32],
    n_seq: npt.NDArray[np.int32],
    seq_pointers: npt.NDArray[np.uintp],
    wanted: npt.NDArray[np.int8],
) -> lib.llama_batch:
    native = lib.llama_batch()
    native.pos = pointer(position, ctypes.c_int32)
    native.n_seq_id = pointer(n_seq, ctypes.c_int32)
    native.seq_id = pointer(seq_pointers, ctypes.POINTER(ctypes.c_int32))
    native.logits = pointer(wanted, ctypes.c_int8)
    return native
