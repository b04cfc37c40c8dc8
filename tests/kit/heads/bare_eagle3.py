"""Like bare.py, for an EAGLE-3 draft, which reads the inputs of three of its target's layers."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as api
import numpy as np
from llama_cpp import llama_cpp_ext as ext

from tests.kit.heads.bare import Bare, Hidden
from tests.kit.heads.eagle3 import TARGET_LAYERS
from tests.kit.reference import Logits


def _function(names: tuple[str, ...], arguments: list[Any], result: Any) -> Any:
    """Return a function that llama.cpp exports under a C++ name, which depends on the compiler."""
    found = next(getattr(api._lib, name) for name in names if hasattr(api._lib, name))
    found.argtypes, found.restype = arguments, result
    return found


_set_layer_inputs = _function(
    (
        "_Z30llama_set_embeddings_layer_inpP13llama_contextjb",
        "?llama_set_embeddings_layer_inp@@YAXPEAUllama_context@@I_N@Z",
    ),
    [api.llama_context_p_ctypes, ctypes.c_uint32, ctypes.c_bool],
    None,
)
_get_layer_inputs = _function(
    (
        "_Z30llama_get_embeddings_layer_inpP13llama_contextj",
        "?llama_get_embeddings_layer_inp@@YAPEAMPEAUllama_context@@I@Z",
    ),
    [api.llama_context_p_ctypes, ctypes.c_uint32],
    ctypes.POINTER(ctypes.c_float),
)


class BareEagle3(Bare):
    """A target and its EAGLE-3 draft.

    Position p holds token p + 1 of the text, with the state of the token before it.
    """

    def __init__(self, path: Path, drafter: Path) -> None:
        super().__init__(path, drafter, kind=api.LLAMA_CONTEXT_TYPE_DEFAULT)
        ext.llama_set_embeddings_nextn(self.target.ctx, False, False)
        for layer in TARGET_LAYERS:
            _set_layer_inputs(self.target.ctx, layer, True)

    def targeted(self, text: Sequence[int]) -> tuple[Logits, Hidden]:
        """Return the target's logits for a text, and the states that the draft's encoder makes from it."""
        self.target.clear()
        logits, n = self.target.decode(text), len(text)
        rows = [_get_layer_inputs(self.target.ctx, layer) for layer in TARGET_LAYERS]
        features = np.hstack([np.ctypeslib.as_array(row, (n, self.n_embd)) for row in rows])
        return logits, self._encoded(features)

    def headed(self, tokens: Sequence[int], hidden: Hidden, *, start: int = 0) -> tuple[Logits, Hidden]:
        """Return the draft's logits and states; a text's first token, which has none, gets zeros."""
        if start:
            return super().headed(tokens, hidden, start=start - 1)
        logits, behind = super().headed(tokens[1:], hidden[1:])
        return np.vstack([np.zeros_like(logits[:1]), logits]), np.vstack([np.zeros_like(behind[:1]), behind])

    def _turn_to(self, head: int, *, cut: int) -> None:
        super()._turn_to(head, cut=max(0, cut - 1))

    def _encoded(self, features: Hidden) -> Hidden:
        n = len(features)
        batch = api.llama_batch_init(n, features.shape[1], 1)
        np.ctypeslib.as_array(batch.embd, features.shape)[:] = features
        batch.n_tokens = n
        # The encoder ignores positions, but llama.cpp requires them to continue those in the cache.
        start = api.llama_memory_seq_pos_max(self.head.memory, 0) + 1
        for i in range(n):
            batch.pos[i], batch.logits[i], batch.n_seq_id[i], batch.seq_id[i][0] = start + i, 1, 1, 0
        code = api.llama_encode(self.head.ctx, batch)
        api.llama_batch_free(batch)
        if code:
            raise RuntimeError(f"llama_encode: {code}")
        return self._hidden(self.head, n)
