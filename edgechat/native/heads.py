"""Contexts for layers that draft from a model's hidden states: MTP, EAGLE-3 and Gemma 4's drafter.

An MTP head reads each token together with the model's hidden state after the previous token. It predicts the
next token and computes the hidden state to continue from. An EAGLE-3 draft (Li et al. 2025, arXiv:2503.01840)
has an encoder that merges the inputs of three of the target's layers into a state of this kind, and it counts
positions from the text's second token. Gemma 4's drafter has no KV cache of its own. It reads its target's,
and drafts all tokens at the position after the target's last token; only the hidden state differs from one
token to the next. llama.cpp returns hidden states through functions in llama-ext.h.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from itertools import accumulate
from types import ModuleType
from typing import Any, Literal

import llama_cpp.llama_cpp as lib
import numpy as np
import numpy.typing as npt

from edgechat.base.errors import DecodeFailed, LoadFailed
from edgechat.native import ggml, logs
from edgechat.native.batches import EmbeddingBatch, pointer
from edgechat.native.handles import DECODE_OK, Context, Model
from edgechat.native.params import CHAINED, EAGLE_LAYERS, HANDS_OUT_ALL, HANDS_OUT_INPUTS, LoadParams

Rows = npt.NDArray[np.float32]


class HeadContext(Context):
    """The context in which a draft head runs. It must be closed before its target."""

    kind: Literal["mtp", "eagle3"] = "mtp"
    stays = False
    """Whether all tokens in a draft have the same position."""

    def __init__(
        self, model: Model, params: LoadParams, target: Context, *, of: int = lib.LLAMA_CONTEXT_TYPE_MTP
    ) -> None:
        """Allocate the context and make the target store its hidden states. Raises LoadFailed.

        model: the model that contains the head's layers. params: the target's parameters.
        """
        self._functions = _functions()
        self._target = target
        self.width = int(lib.llama_model_n_embd_out(model.pointer))
        """Size of a hidden state."""
        self.n_layers = 1 if self.stays else max(1, int(lib.llama_model_n_layer_nextn(model.pointer)))
        """Number of layers. If there are several, each predicts one token further than the one before."""
        if self.n_layers > 1 and model.architecture not in CHAINED:
            raise LoadFailed(
                f"{model.architecture} models draft with one layer, but this one has {self.n_layers}."
            )
        super().__init__(model, params.of_head(), target=target, kind=of)
        if self.n_vocab != target.n_vocab:
            self.close()
            raise LoadFailed(
                f"The draft's vocabulary has {self.n_vocab} tokens, but its target's has {target.n_vocab}."
            )
        # In addition to its own rows, space is needed for the target's rows, a copy of these to read from,
        # and the rows of a micro-batch.
        self.output_bytes += 4 * self.width * (self.n_seq_max + 2 * target.n_batch + self.n_ubatch)
        self._keep_states(True)
        self.hands_out_all = model.architecture in HANDS_OUT_ALL
        """Whether all tokens in a call get hidden states. If False, only tokens whose logits are wanted get
        them.
        """
        self._functions.llama_set_embeddings_nextn(self.pointer, True, not self.hands_out_all)
        self._ends: list[int] = []

    def _keep_states(self, keep: bool) -> None:
        """Make the target start or stop storing the states that the head reads."""
        self._functions.llama_set_embeddings_nextn(self._target.pointer, keep, False)

    def target_states(self, n_tokens: int) -> Rows:
        """Return the hidden states [n_tokens, width] after each token in the target's last call.

        They are valid until its next call.
        """
        return self._states(self._target, n_tokens)

    def own_states(self) -> Rows:
        """Return a copy of the hidden states [runs, width] after each run in this context's last call."""
        states = self._states(self, self._ends[-1] + 1 if self.hands_out_all else len(self._ends))
        return states[self._ends] if self.hands_out_all else states.copy()

    def _states(self, context: Context, n: int) -> Rows:
        first = self._functions.llama_get_embeddings_nextn(context.pointer)
        return np.ctypeslib.as_array(first, (n, self.width))

    def read(self, runs: Sequence[tuple[int, int, Sequence[int], int]], states: Rows) -> Rows | None:
        """Decode runs of tokens as `decode` does, given the hidden state before each token [n, width]."""
        n_rows = self._batch.fill(runs)
        rows = np.ascontiguousarray(states, np.float32)
        if rows.shape != (self._batch.native.n_tokens, self.width):
            raise ValueError(f"{self._batch.native.n_tokens} tokens have hidden states of {rows.shape}")
        self._batch.native.embd = pointer(rows, ctypes.c_float)
        self._ends = [end - 1 for end in accumulate(len(run[2]) for run in runs)]
        return self._decode(self._batch.native, n_rows, abortable=False)

    def choose_layer(self, index: int) -> None:
        """Choose which layer later calls use, if there are several."""
        self._functions.llama_set_nextn_layer_offset(self.pointer, index)

    def close(self) -> None:
        """Free the cache and the buffers, and make the target stop storing its hidden states."""
        if self._pointer:
            self._keep_states(False)
        super().close()


def _functions() -> ModuleType:
    """Return the bindings for llama-ext.h. Raises LoadFailed if this build lacks them."""
    try:
        from llama_cpp import llama_cpp_ext
    except (ImportError, AttributeError) as error:
        raise LoadFailed(
            "This build of llama.cpp cannot draft with a model's own layers (MTP).",
            hint="Install the version of llama-cpp-python that edgechat pins, or use another drafter: "
            "--draft ngram",
        ) from error
    return llama_cpp_ext


_LEAST_LOGIT = np.float32(-1e9)


class EagleContext(HeadContext):
    """The context of an EAGLE-3 draft. Its methods take positions as indices into the text's tokens."""

    kind: Literal["mtp", "eagle3"] = "eagle3"

    def __init__(self, model: Model, params: LoadParams, target_model: Model, target: Context) -> None:
        """Allocate the context and make the target store the inputs of three of its layers.

        Raises LoadFailed.
        """
        self._inputs = _Inputs()
        # The state after the last layer would also be possible, but no published draft uses it.
        self._layers = self._inputs.layers(model)
        n_layers = target_model.n_layers
        self._target_width = int(lib.llama_model_n_embd(target_model.pointer))
        if target_model.architecture not in HANDS_OUT_INPUTS:
            raise LoadFailed(f"llama.cpp cannot draft for {target_model.architecture} models with EAGLE-3.")
        if len(self._layers) != EAGLE_LAYERS or not all(0 <= one < n_layers for one in self._layers):
            raise LoadFailed(
                f"The EAGLE-3 draft reads layers {', '.join(map(str, self._layers))}, but its target has "
                f"{n_layers} layers."
            )
        if (width := model.meta("eagle3.target_hidden_size")) != str(self._target_width):
            raise LoadFailed(
                f"The EAGLE-3 draft reads hidden states of {width} numbers, but its target's have "
                f"{self._target_width}."
            )
        super().__init__(model, params, target, of=lib.LLAMA_CONTEXT_TYPE_DEFAULT)

    def _keep_states(self, keep: bool) -> None:
        for layer in self._layers:
            self._inputs.keep(self._target.pointer, layer, keep)

    def target_states(self, n_tokens: int) -> Rows:
        """Return the states [n_tokens, width] that the encoder computes from the target's last call."""
        rows = [self._inputs.get(self._target.pointer, layer) for layer in self._layers]
        shape = n_tokens, self._target_width
        inputs = np.hstack([np.ctypeslib.as_array(row, shape) for row in rows])
        size = self.n_ubatch
        return np.concatenate([self._encoded(inputs[at : at + size]) for at in range(0, n_tokens, size)])

    def _encoded(self, inputs: Rows) -> Rows:
        # The encoder ignores positions, but llama.cpp requires them to follow on from those in the cache.
        start = super().last_position(0) + 1
        positions = np.arange(start, start + len(inputs), dtype=np.int32)[None]
        batch = EmbeddingBatch(0, inputs, positions, all_rows=True)
        code = int(lib.llama_encode(self.pointer, batch.native))
        if code != DECODE_OK:
            raise DecodeFailed(f"llama.cpp could not encode for the draft (code {code}): {logs.cause()}")
        return self._states(self, len(inputs)).copy()

    # Positions below are indices into the text's tokens. The first token has no position in this context.

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
        # Tokens that are not in the draft's vocabulary have no logits.
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
    """Functions in llama-ext.h that llama-cpp-python does not bind."""

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
        """Return the target layers that a draft reads."""
        ids = self._ids(model.pointer)
        return [int(ids[at]) for at in range(self._n_ids(model.pointer))]


def _function(name: str, gnu: str, msvc: str, arguments: list[Any], result: Any) -> Callable[..., Any]:
    """Return a C++ function, whose name GCC and MSVC mangle differently."""
    found: Any = ggml.exported(f"_Z{len(name)}{name}{gnu}", f"?{name}{msvc}")
    if found is None:
        raise LoadFailed(
            "This build of llama.cpp cannot draft with EAGLE-3.",
            hint="Install the version of llama-cpp-python that edgechat pins, or use another drafter: "
            "--draft ngram",
        )
    found.argtypes, found.restype = arguments, result
    return found  # type: ignore[no-any-return]


class AssistantContext(HeadContext):
    """Context of a drafter that uses its target's cache: there is nothing to read, truncate or save."""

    stays = True

    def __init__(self, model: Model, params: LoadParams, target_model: Model, target: Context) -> None:
        """Allocate the context and make the target store its hidden states. Raises LoadFailed."""
        if target_model.architecture != "gemma4":  # llama.cpp would crash
            raise LoadFailed(f"Gemma 4's drafter cannot draft for {target_model.architecture} models.")
        super().__init__(model, params, target)

    def read(self, runs: Sequence[tuple[int, int, Sequence[int], int]], states: Rows) -> Rows | None:
        """See `HeadContext.read`. All but the last token of a run are already in the target's cache."""
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
        """Do nothing: the cells belong to the target."""
        return True

    def copy(self, source: int, target: int, stop: int) -> None:
        """Do nothing: the cells belong to the target."""

    def shift(self, seq: int, start: int, stop: int) -> bool:
        """Do nothing: the cells belong to the target."""
        return True

    def state(self, seq: int) -> npt.NDArray[np.uint8]:
        """Return an empty state."""
        return np.empty(0, np.uint8)

    def set_state(self, seq: int, state: npt.NDArray[np.uint8]) -> bool:
        """Accept an empty state."""
        return not len(state)
