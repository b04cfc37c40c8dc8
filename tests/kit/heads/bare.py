"""Drafting with the bare library: a target, the context of its head, and nothing else.

with Bare(model) as run:
    text = prompt + run.target.greedy(prompt, 100)
    run.agreement(text, skip=len(prompt))                     with the right hidden states
    run.agreement(text, skip=len(prompt), change=shifted)     with those of the previous token
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

import llama_cpp.llama_cpp as api
import numpy as np
import numpy.typing as npt
from llama_cpp import llama_cpp_ext as ext

from tests.kit.reference import Logits, Reference

Hidden = npt.NDArray[np.float32]
"""Each token's hidden state, [tokens, n_embd]."""


def zeroed(hidden: Hidden) -> Hidden:
    """Return hidden states of zeros."""
    return np.zeros_like(hidden)


def shifted(hidden: Hidden) -> Hidden:
    """Return the hidden states shifted by one token."""
    return np.vstack([hidden[:1], hidden[:-1]])


def unchanged(hidden: Hidden) -> Hidden:
    """Return the hidden states as they are."""
    return hidden


class Bare:
    """A target, and the context of its head, which is in the same file or a separate one."""

    def __init__(
        self, path: Path, drafter: Path | None = None, *, kind: int = api.LLAMA_CONTEXT_TYPE_MTP
    ) -> None:
        both = {"n_ctx": 512, "n_seq_max": 1}
        self.target = Reference(path, load_mtp=True, **both)
        self.head = Reference(
            drafter or path,
            load_mtp=True,
            of=None if drafter else self.target,
            ctx_type=kind,
            ctx_other=self.target.ctx,
            **both,
        )
        self.n_heads = max(1, api.llama_model_n_layer_nextn(self.head.model))
        self.n_embd: int = api.llama_model_n_embd_out(self.target.model)
        ext.llama_set_embeddings_nextn(self.target.ctx, True, False)
        ext.llama_set_embeddings_nextn(self.head.ctx, True, True)

    def __enter__(self) -> Bare:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.head.close()
        self.target.close()

    def forget(self) -> None:
        """Empty the cache that the head reads."""
        self.head.clear()

    def targeted(self, text: Sequence[int]) -> tuple[Logits, Hidden]:
        """Return the target's logits and hidden states for a text."""
        self.target.clear()
        logits = self.target.decode(text)
        return logits, self._hidden(self.target, len(text))

    def headed(self, tokens: Sequence[int], hidden: Hidden, *, start: int = 0) -> tuple[Logits, Hidden]:
        """Return the head's logits and hidden states. hidden: for each token, the previous token's state."""
        n = len(tokens)
        batch = api.llama_batch_init(n, self.n_embd, 1)
        batch.token = ids = (api.llama_token * n)(*tokens)
        np.ctypeslib.as_array(batch.embd, (n, self.n_embd))[:] = hidden
        batch.n_tokens = n
        for i in range(n):
            batch.pos[i], batch.logits[i], batch.n_seq_id[i], batch.seq_id[i][0] = start + i, 1, 1, 0
        try:
            code = api.llama_decode(self.head.ctx, batch)
        finally:
            batch.token = None  # otherwise llama.cpp would free it, though it is ours
            api.llama_batch_free(batch)
        if code:
            raise RuntimeError(f"llama_decode of {list(ids)}: {code}")
        logits = np.ctypeslib.as_array(api.llama_get_logits(self.head.ctx), (n, self.head.n_vocab)).copy()
        return logits, self._hidden(self.head, n)

    def agreement(
        self, text: Sequence[int], *, skip: int, change: Callable[[Hidden], Hidden] = unchanged
    ) -> float:
        """Return how often the head's best token is the target's, starting at position `skip` in the text.

        change: a function applied to the hidden states that the head gets.
        """
        said, hidden = self.targeted(text)
        self.forget()
        guessed, _ = self.headed(text, change(before(hidden)))
        return float((said.argmax(1) == guessed.argmax(1))[skip:].mean())

    def agreement_of_drafts(self, text: Sequence[int], *, skip: int, n_draft: int = 3) -> list[float]:
        """Return how often the first, second, ... drafted token is right, if the ones before it are."""
        said, hidden = self.targeted(text)
        best, hidden = said.argmax(1), before(hidden)
        right, tried = [0] * n_draft, [0] * n_draft
        for at in range(skip, len(text) - n_draft, n_draft):
            drafted = self.draft(text[: at + 1], hidden[: at + 1], n_draft)
            for i, token in enumerate(drafted):
                tried[i] += 1
                if token != best[at + i]:
                    break
                right[i] += 1
        return [a / b for a, b in zip(right, tried, strict=True)]

    def draft(self, text: Sequence[int], hidden: Hidden, n: int) -> list[int]:
        """Return n tokens drafted after a text. hidden: as for `headed`, for all its tokens."""
        last = len(text) - 1
        self._fill(text[:-1], hidden[:-1])
        tokens, states = list(text[-1:]), hidden[-1:]
        for step in range(n):
            if self.n_heads > 1:  # this step's head has not seen the draft yet
                self._turn_to(step, cut=last)
                logits, behind = self.headed(tokens, states, start=last)
            else:
                logits, behind = self.headed(tokens[-1:], states[-1:], start=last + step)
            tokens.append(int(logits[-1].argmax()))
            states = np.vstack([states, behind[-1:]])
        self._turn_to(0, cut=last)
        return tokens[1:]

    def _fill(self, text: Sequence[int], hidden: Hidden) -> None:
        """Put a text into every head's cache."""
        for head in range(self.n_heads):
            self._turn_to(head, cut=0)
            self.headed(text, hidden)

    def _turn_to(self, head: int, *, cut: int) -> None:
        """Make this head the active one; drop the cache from position `cut` on."""
        api.llama_memory_seq_rm(self.head.memory, 0, cut, -1)
        ext.llama_set_nextn_layer_offset(self.head.ctx, head)

    def _hidden(self, run: Reference, n: int) -> Hidden:
        rows = ext.llama_get_embeddings_nextn(run.ctx)
        return np.ctypeslib.as_array(rows, (n, self.n_embd)).copy()


def before(hidden: Hidden) -> Hidden:
    """Return what the head gets for each token: the previous token's state, or zeros for the first."""
    return np.vstack([np.zeros_like(hidden[:1]), hidden[:-1]])
