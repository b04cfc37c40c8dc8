"""Which tokens may come next in a reply that follows a grammar, by llguidance.

A constraint is a function of the reply's tokens so far: it takes in what is new of them, and goes back over
what was taken away, so drafts that were rejected need no care. Whether one token may come takes 10 us; all
that may, 5 to 300 us of a vocabulary of 152,000, and 2 ms inside a string whose pattern or length is limited.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from edgechat.engine.kv.prefix_cache import common_prefix
from edgechat.engine.reply.grammar import grammar_error

if TYPE_CHECKING:
    from llguidance import LLMatcher


class Constraint:
    """A grammar, and how far a reply has got in it. Raises SchemaError where that turns out too complex."""

    def __init__(self, matcher: LLMatcher, n_vocab: int, ends: Sequence[int]) -> None:
        """ends: the tokens that end a reply."""
        self._matcher = matcher
        self._n_vocab = n_vocab
        self._ends = frozenset(ends)
        self._consumed: list[int] = []
        self._bits = np.zeros((n_vocab + 32) // 32, np.uint32)  # one token more: see `_tokenizer`

    def mask(self, reply_tokens: Sequence[int]) -> npt.NDArray[np.bool_]:
        """Return which tokens may come after these: [n_vocab]. After one that ends a reply, as before it."""
        self._advance_to(reply_tokens)
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        self._check()
        bits = np.unpackbits(self._bits.view(np.uint8), count=self._n_vocab, bitorder="little")
        return bits.view(np.bool_)

    def allows(self, reply_tokens: Sequence[int], tokens: Sequence[int]) -> int:
        """Return how many of `tokens` may come after `said`, one behind the other."""
        self._advance_to(reply_tokens)
        n_allowed = int(self._matcher.validate_tokens(list(tokens)))
        self._check()
        return n_allowed

    def is_complete(self, reply_tokens: Sequence[int]) -> bool:
        """Say whether nothing may follow."""
        self._advance_to(reply_tokens)
        return bool(self._matcher.is_stopped())

    def _advance_to(self, reply_tokens: Sequence[int]) -> None:
        n = common_prefix(self._consumed, reply_tokens)
        if n < len(self._consumed):
            self._matcher.rollback(len(self._consumed) - n)
            del self._consumed[n:]
        new_tokens = list(itertools.takewhile(lambda token: token not in self._ends, reply_tokens[n:]))
        if new_tokens:
            self._matcher.consume_tokens(new_tokens)
            self._consumed += new_tokens
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise grammar_error(self._matcher.get_error())
