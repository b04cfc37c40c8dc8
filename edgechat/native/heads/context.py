"""The layers of a model that predict further tokens (MTP), in a context of their own.

Such a head reads each token together with the hidden state that the model had after the token before it; what
it computes is a guess of the token that comes next, and the hidden state to go on from. llama.cpp hands the
hidden states out by functions of llama-ext.h.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import accumulate
from types import ModuleType
from typing import Literal

import llama_cpp.llama_cpp as lib
import numpy as np
import numpy.typing as npt

from edgechat.base.errors import LoadFailed
from edgechat.native.batches import pointer
from edgechat.native.handles import Context, Model
from edgechat.native.heads.architectures import CHAINED, HANDS_OUT_ALL
from edgechat.native.params import LoadParams

Rows = npt.NDArray[np.float32]


class HeadContext(Context):
    """The context of a head. It must be closed before its target."""

    kind: Literal["mtp", "eagle3"] = "mtp"
    stays = False
    """Whether all tokens of a draft take one position."""

    def __init__(
        self, model: Model, params: LoadParams, target: Context, *, of: int = lib.LLAMA_CONTEXT_TYPE_MTP
    ) -> None:
        """Allocate, and have the target keep its hidden states. Raises LoadFailed.

        model: the one whose layers these are. params: the target's.
        """
        self._functions = _functions()
        self._target = target
        self.width = int(lib.llama_model_n_embd_out(model.pointer))
        """Numbers of a hidden state."""
        self.n_layers = 1 if self.stays else max(1, int(lib.llama_model_n_layer_nextn(model.pointer)))
        """Layers; where there are several, each predicts one token further than the one before."""
        if self.n_layers > 1 and model.architecture not in CHAINED:
            raise LoadFailed(
                f"{model.architecture} models draft with one layer of their own, and this one has "
                f"{self.n_layers}."
            )
        super().__init__(model, params.of_head(), target=target, kind=of)
        if self.n_vocab != target.n_vocab:
            self.close()
            raise LoadFailed(f"The draft knows {self.n_vocab} tokens, and its target {target.n_vocab}.")
        # Beside its own rows: the target's, a copy of these for whoever reads them, and one in a micro-batch.
        self.output_bytes += 4 * self.width * (self.n_seq_max + 2 * target.n_batch + self.n_ubatch)
        self._keep_states(True)
        self.hands_out_all = model.architecture in HANDS_OUT_ALL
        """Whether a call may have tokens whose logits are not wanted beside others: if not, the hidden states
        of the others are not handed out."""
        self._functions.llama_set_embeddings_nextn(self.pointer, True, not self.hands_out_all)
        self._ends: list[int] = []

    def _keep_states(self, keep: bool) -> None:
        """Have the target keep what the head reads, or no more."""
        self._functions.llama_set_embeddings_nextn(self._target.pointer, keep, False)

    def target_states(self, n_tokens: int) -> Rows:
        """Return the hidden states [n_tokens, width] after each token of the target's last call.

        They are valid until its next one.
        """
        return self._states(self._target, n_tokens)

    def own_states(self) -> Rows:
        """Return the hidden states [runs, width] after each run of the last call here; a copy."""
        states = self._states(self, self._ends[-1] + 1 if self.hands_out_all else len(self._ends))
        return states[self._ends] if self.hands_out_all else states.copy()

    def _states(self, context: Context, n: int) -> Rows:
        first = self._functions.llama_get_embeddings_nextn(context.pointer)
        return np.ctypeslib.as_array(first, (n, self.width))

    def read(self, runs: Sequence[tuple[int, int, Sequence[int], int]], states: Rows) -> Rows | None:
        """Compute runs of tokens as `decode` does, each beside the hidden state before it [n, width]."""
        n_rows = self._batch.fill(runs)
        rows = np.ascontiguousarray(states, np.float32)
        if rows.shape != (self._batch.native.n_tokens, self.width):
            raise ValueError(f"{self._batch.native.n_tokens} tokens have hidden states of {rows.shape}")
        self._batch.native.embd = pointer(rows, ctypes.c_float)
        self._ends = [end - 1 for end in accumulate(len(run[2]) for run in runs)]
        return self._decode(self._batch.native, n_rows, abortable=False)

    def choose_layer(self, index: int) -> None:
        """Have the calls that come computed by one of several layers."""
        self._functions.llama_set_nextn_layer_offset(self.pointer, index)

    def close(self) -> None:
        """Free the cache and the buffers; the target keeps its hidden states no more."""
        if self._pointer:
            self._keep_states(False)
        super().close()


def _functions() -> ModuleType:
    """Return the bindings of llama-ext.h. Raises LoadFailed where this build does not export it."""
    try:
        from llama_cpp import llama_cpp_ext
    except (ImportError, AttributeError) as error:
        raise LoadFailed(
            "This build of llama.cpp cannot draft with a model's own layers (MTP).",
            hint="Install llama-cpp-python as edgechat pins it, or draft otherwise: --draft ngram",
        ) from error
    return llama_cpp_ext
