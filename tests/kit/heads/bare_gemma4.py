"""Like bare.py, for gemma4's drafter: it reads its target's cache, and drafts at a single position."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import llama_cpp.llama_cpp as api
import numpy as np

from tests.kit.heads.bare import Bare, Hidden, before, unchanged


class BareGemma4(Bare):
    """A gemma4 and its drafter."""

    def forget(self) -> None:
        """Empty the target's cache."""
        self.target.clear()

    def agreement(
        self, text: Sequence[int], *, skip: int, change: Callable[[Hidden], Hidden] = unchanged
    ) -> float:
        """See `Bare.agreement`. The target's cache is cut back, so that the drafter sees only the past."""
        said, hidden = self.targeted(text)
        hidden, right = change(before(hidden)), 0
        for at in reversed(range(skip, len(text))):
            api.llama_memory_seq_rm(self.target.memory, 0, at, -1)
            guessed, _ = self.headed(text[at : at + 1], hidden[at], start=at)
            right += int(guessed[0].argmax() == said[at].argmax())
        return right / (len(text) - skip)

    def draft(self, text: Sequence[int], hidden: Hidden, n: int) -> list[int]:
        """Return n tokens drafted after a text."""
        self.targeted(text[:-1])
        tokens, state = list(text[-1:]), hidden[-1:]
        for _ in range(n):
            logits, state = self.headed(tokens[-1:], state, start=len(text) - 1)
            tokens.append(int(np.argmax(logits[0])))
        return tokens[1:]
