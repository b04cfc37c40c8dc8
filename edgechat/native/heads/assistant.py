"""Gemma 4's drafter, which reads its target's KV cache and has none of its own.

It drafts all tokens at the position behind the target's last: each is told from the others by the hidden
state that it goes on from alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from edgechat.base.errors import LoadFailed
from edgechat.native.handles import Context, Model
from edgechat.native.heads.context import HeadContext, Rows
from edgechat.native.params import LoadParams


class AssistantContext(HeadContext):
    """The context of a drafter that shares its target's cache: nothing is read, cut or saved here."""

    stays = True

    def __init__(self, model: Model, params: LoadParams, target_model: Model, target: Context) -> None:
        """Allocate, and have the target keep its hidden states. Raises LoadFailed."""
        if target_model.architecture != "gemma4":  # llama.cpp crashes
            raise LoadFailed(f"Gemma 4's drafter cannot draft for {target_model.architecture} models.")
        super().__init__(model, params, target)

    def read(self, runs: Sequence[tuple[int, int, Sequence[int], int]], states: Rows) -> Rows | None:
        """See `HeadContext.read`; what comes before the last token of a run is in the target's cache."""
        drafting, keep, at = [], [], 0
        for seq, start, tokens, wanted in runs:
            at += len(tokens)
            if wanted:
                drafting.append((seq, start + len(tokens) - 1, tokens[-1:], 1))
                keep.append(at - 1)
        if not drafting:
            return np.empty((0, self.n_vocab), np.float32)
        return super().read(drafting, states[keep])

    def remove(self, seq: int, start: int) -> bool:
        """Leave the cells to the target."""
        return True

    def copy(self, source: int, target: int, stop: int) -> None:
        """Leave the cells to the target."""

    def shift(self, seq: int, start: int, stop: int) -> bool:
        """Leave the cells to the target."""
        return True

    def state(self, seq: int) -> npt.NDArray[np.uint8]:
        """Return nothing."""
        return np.empty(0, np.uint8)

    def set_state(self, seq: int, state: npt.NDArray[np.uint8]) -> bool:
        """Need nothing."""
        return not len(state)
