"""An EAGLE-3 draft (Li et al. 2025, arXiv:2503.01840): a layer that reads what goes into three of another's.

An encoder makes one hidden state of the three. At each position the draft reads a token and the state of the
token before it, as the heads of `context.py` do; but it counts positions from the text's second token.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, Literal

import llama_cpp.llama_cpp as lib
import numpy as np

from edgechat.base.errors import DecodeFailed, LoadFailed
from edgechat.native import logs
from edgechat.native.batches import EmbeddingBatch
from edgechat.native.handles import DECODE_OK, Context, Model
from edgechat.native.heads.architectures import EAGLE_LAYERS, HANDS_OUT_INPUTS
from edgechat.native.heads.context import HeadContext, Rows
from edgechat.native.params import LoadParams

_LEAST_LOGIT = np.float32(-1e9)


class EagleContext(HeadContext):
    """The context of an EAGLE-3 draft. What callers say of places are indices of the text's tokens."""

    kind: Literal["mtp", "eagle3"] = "eagle3"

    def __init__(self, model: Model, params: LoadParams, target_model: Model, target: Context) -> None:
        """Allocate, and have the target keep what goes into three of its layers. Raises LoadFailed."""
        self._inputs = _Inputs()
        # After the last layer there is the state that heads read; no draft that is published asks for it.
        self._layers = self._inputs.layers(model)
        n_layers = target_model.n_layers
        self._target_width = int(lib.llama_model_n_embd(target_model.pointer))
        if target_model.architecture not in HANDS_OUT_INPUTS:
            raise LoadFailed(f"llama.cpp cannot draft for {target_model.architecture} models by EAGLE-3.")
        if len(self._layers) != EAGLE_LAYERS or not all(0 <= one < n_layers for one in self._layers):
            raise LoadFailed(
                f"The EAGLE-3 draft reads the layers {', '.join(map(str, self._layers))}, and its target has "
                f"{n_layers}."
            )
        if (width := model.meta("eagle3.target_hidden_size")) != str(self._target_width):
            raise LoadFailed(
                f"The EAGLE-3 draft reads hidden states of {width} numbers, and its target has "
                f"{self._target_width}."
            )
        super().__init__(model, params, target, of=lib.LLAMA_CONTEXT_TYPE_DEFAULT)

    def _keep_states(self, keep: bool) -> None:
        for layer in self._layers:
            self._inputs.keep(self._target.pointer, layer, keep)

    def target_states(self, n_tokens: int) -> Rows:
        """Return the states [n_tokens, width] that the encoder makes of the target's last call."""
        rows = [self._inputs.get(self._target.pointer, layer) for layer in self._layers]
        shape = n_tokens, self._target_width
        inputs = np.hstack([np.ctypeslib.as_array(row, shape) for row in rows])
        size = self.n_ubatch
        return np.concatenate([self._encoded(inputs[at : at + size]) for at in range(0, n_tokens, size)])

    def _encoded(self, inputs: Rows) -> Rows:
        # The encoder minds no positions, but llama.cpp wants them to go on from those of the cache.
        start = super().last_position(0) + 1
        positions = np.arange(start, start + len(inputs), dtype=np.int32)[None]
        batch = EmbeddingBatch(0, inputs, positions, all_rows=True)
        code = int(lib.llama_encode(self.pointer, batch.native))
        if code != DECODE_OK:
            raise DecodeFailed(f"llama.cpp could not encode for the draft (code {code}): {logs.cause()}")
        return self._states(self, len(inputs)).copy()

    # What is said in tokens of the text: the first has no position.

    def read(self, runs: Sequence[tuple[int, int, Sequence[int], int]], states: Rows) -> Rows | None:
        """See `HeadContext.read`."""
        moved, keep, at = [], np.ones(len(states), bool), 0
        for seq, start, tokens, wanted in runs:
            keep[at] = start > 0
            at += len(tokens)
            skipped = int(start == 0)
            if len(tokens) > skipped:
                moved.append((seq, max(start - 1, 0), tokens[skipped:], wanted))
        if not moved:
            return np.empty((0, self.n_vocab), np.float32)
        rows = super().read(moved, states[keep])
        # Tokens that the draft does not know have no logits.
        return None if rows is None else np.maximum(rows, _LEAST_LOGIT, out=rows)

    def remove(self, seq: int, start: int) -> bool:
        """See `Context.remove`."""
        return super().remove(seq, max(start - 1, 0))

    def copy(self, source: int, target: int, stop: int) -> None:
        """See `Context.copy`."""
        if stop != 1:
            super().copy(source, target, stop - 1 if stop > 0 else stop)

    def shift(self, seq: int, start: int, stop: int) -> bool:
        """See `Context.shift`."""
        return super().shift(seq, start - 1, stop - 1)

    def last_position(self, seq: int) -> int:
        """See `Context.last_position`."""
        return super().last_position(seq) + 1


class _Inputs:
    """Functions of llama-ext.h that llama-cpp-python does not bind."""

    def __init__(self) -> None:
        context = lib.llama_context_p_ctypes
        model = lib.llama_model_p_ctypes
        self.keep = _function(
            "llama_set_embeddings_layer_inp", "P13llama_contextjb", "@@YAXPEAUllama_context@@I_N@Z",
            [context, ctypes.c_uint32, ctypes.c_bool], None,
        )  # fmt: skip
        self.get = _function(
            "llama_get_embeddings_layer_inp", "P13llama_contextj", "@@YAPEAMPEAUllama_context@@I@Z",
            [context, ctypes.c_uint32], ctypes.POINTER(ctypes.c_float),
        )  # fmt: skip
        self._ids = _function(
            "llama_model_target_layer_ids", "PK11llama_model", "@@YAPEBHPEBUllama_model@@@Z",
            [model], ctypes.POINTER(ctypes.c_int32),
        )  # fmt: skip
        self._n_ids = _function(
            "llama_model_target_layer_ids_n", "PK11llama_model", "@@YAIPEBUllama_model@@@Z",
            [model], ctypes.c_uint32,
        )  # fmt: skip

    def layers(self, model: Model) -> list[int]:
        """Return which layers of the target a draft reads."""
        ids = self._ids(model.pointer)
        return [int(ids[at]) for at in range(self._n_ids(model.pointer))]


def _function(name: str, gnu: str, msvc: str, arguments: list[Any], result: Any) -> Callable[..., Any]:
    """Return a function that llama.cpp exports with a C++ name, which compilers spell in two ways."""
    for spelled in (f"_Z{len(name)}{name}{gnu}", f"?{name}{msvc}"):
        found: Any = getattr(lib._lib, spelled, None)
        if found is not None:
            found.argtypes, found.restype = arguments, result
            return found  # type: ignore[no-any-return]
    raise LoadFailed(
        "This build of llama.cpp cannot draft by EAGLE-3.",
        hint="Install llama-cpp-python as edgechat pins it, or draft otherwise: --draft ngram",
    )
