"""Batches of tokens or embeddings for llama.cpp's calls, and top candidates instead of all logits.

With a vocabulary of 150,000 tokens, a row of logits takes 600 kB, or 50 ms at 100 Mbit/s, while top-k
sampling needs only a few dozen logits. llama.cpp can let a device select the top candidates (its "backend
sampling"); the sampling itself is the same everywhere (`engine/sampling.py`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Sequence
from typing import Any

import llama_cpp.llama_cpp as lib
import numpy as np
import numpy.typing as npt

from edgechat.native.params import CANDIDATES_FROM, N_CANDIDATES, LoadParams

_BYTES = 12
"""Bytes per token of the vocabulary: llama.cpp reserves a logit, a probability and an id."""


class TokenBatch:
    """A batch of token runs from several sequences, refilled for each call by a few slice assignments."""

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
        """Lay out runs of (sequence, start position, tokens, wanted rows); return the number of rows."""
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
    """A batch of embeddings from one sequence; a call takes either embeddings or tokens."""

    def __init__(
        self,
        seq: int,
        embeddings: npt.NDArray[np.float32],
        positions: npt.NDArray[np.int32],
        *,
        all_rows: bool = False,
    ) -> None:
        """Lay out embeddings [n, n_embd] at positions [1 or 4, n].

        all_rows: whether logits are wanted for all rows or for none.
        """
        (n, n_embd), (n_numbers, n_positions) = embeddings.shape, positions.shape
        if n != n_positions:
            raise ValueError(f"{n} embeddings have {n_positions} positions")
        self.shape = n_numbers, n_embd
        """How many numbers make up a position, and how many an embedding."""
        self._embedding = np.ascontiguousarray(embeddings, np.float32)
        self._position = np.ascontiguousarray(positions, np.int32)
        self._n_seq = np.ones(n, np.int32)
        self._seq = np.full(n, seq, np.int32)
        self._wanted = np.full(n, all_rows, np.int8)
        self._seq_pointers = _addresses(self._seq)
        self.native = _native(self._position, self._n_seq, self._seq_pointers, self._wanted)
        self.native.embd = pointer(self._embedding, ctypes.c_float)
        self.native.n_tokens = n


def sends_candidates(params: LoadParams, n_layers: int, n_vocab: int) -> bool:
    """Return True if another machine computes so many logits that it should send only candidates."""
    makes_logits = params.gpu_layers > n_layers and params.devices[-1].startswith("RPC")
    return bool(params.rpc) and makes_logits and n_vocab >= CANDIDATES_FROM and not params.embeddings


class Candidates:
    """Samplers, one per sequence in a context, that let a device select candidates. Must be closed."""

    def __init__(self, n_seq_max: int, n_rows: int, n_vocab: int) -> None:
        self._n_vocab = n_vocab
        self._chains: dict[int, Any] = {seq: _chain() for seq in range(n_seq_max)}
        configs = (lib.llama_sampler_seq_config * n_seq_max)()
        for seq, chain in self._chains.items():
            configs[seq] = lib.llama_sampler_seq_config(seq, ctypes.cast(chain, ctypes.c_void_p))
        self._configs = configs
        self.bytes = (_BYTES * n_vocab + 4) * n_rows
        """Size of llama.cpp's buffer for the candidates."""

    def configure(self, native: Any) -> None:
        """Add the samplers to the parameters of a new context, so that it reserves buffer space for them."""
        native.samplers, native.n_samplers = self._configs, len(self._configs)
        native.n_outputs_max_per_seq = 0

    def use(self, context: Any, seqs: Collection[int], *, wanted: bool) -> None:
        """Switch these sequences to candidates (`wanted`) or to all logits. Takes several milliseconds."""
        for seq in seqs:
            if wanted == (seq in self._chains):
                continue
            if wanted:
                self._chains[seq] = _chain()
            lib.llama_set_sampler(context, seq, self._chains.get(seq) if wanted else None)
            if not wanted:
                lib.llama_sampler_free(self._chains.pop(seq))

    def rows(self, context: Any, n_rows: int) -> npt.NDArray[np.float32]:
        """Return rows [n_rows, n_vocab] with the candidates' logits and -inf elsewhere."""
        rows = np.full((n_rows, self._n_vocab), -np.inf, np.float32)
        for row, at in zip(rows, range(-n_rows, 0), strict=True):
            n = lib.llama_get_sampled_logits_count_ith(context, at)
            ids = _numbers(lib.llama_get_sampled_candidates_ith(context, at), ctypes.c_int32, n)
            row[ids] = _numbers(lib.llama_get_sampled_logits_ith(context, at), ctypes.c_float, n)
        return rows

    def close(self) -> None:
        """Free the samplers. The context must be freed first."""
        while self._chains:
            lib.llama_sampler_free(self._chains.popitem()[1])


def _chain() -> Any:
    """Return a chain with a single sampler, to be used by one context."""
    chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
    lib.llama_sampler_chain_add(chain, lib.llama_sampler_init_top_k(N_CANDIDATES))
    return chain


def _numbers(pointer: Any, kind: Any, n: int) -> npt.NDArray[Any]:
    """Return a view of a C array as a numpy array, valid until the next call."""
    return np.frombuffer((kind * n).from_address(ctypes.addressof(pointer.contents)), kind)


def pointer(array: npt.NDArray[Any], kind: Any) -> Any:
    """Return a C pointer to an array's data."""
    return ctypes.cast(ctypes.c_void_p(array.ctypes.data), ctypes.POINTER(kind))


def _addresses(numbers: npt.NDArray[np.int32]) -> npt.NDArray[np.uintp]:
    """Return the address of each number: llama.cpp expects a list of sequences per token."""
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
