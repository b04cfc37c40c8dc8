"""The importance matrix: for each column of a weight, the sum of the squares of what it was multiplied with.

As llama.cpp's `tools/imatrix` collects it: over chunks of a text, each computed by itself, from all matrix
multiplications with a weight of a layer; of experts (MUL_MAT_ID) each by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import llama_cpp.llama_cpp as lib
import numpy as np
import numpy.typing as npt

from edgechat.base.errors import DecodeFailed
from edgechat.native.handles import Context, Model
from edgechat.native.params import LoadParams
from edgechat.native.quantization import tensors
from edgechat.native.vocabulary import NativeVocabulary

_LEAST_ROWS = 16
"""Rows of a multiplication that counts, as in llama.cpp."""


@dataclass(slots=True)
class ActivationSums:
    """What was collected of each weight, by its name."""

    squares: dict[str, npt.NDArray[np.float64]] = field(default_factory=dict)
    """[n_matrices, n_columns]"""
    counts: dict[str, npt.NDArray[np.int64]] = field(default_factory=dict)
    """Rows that were multiplied: [n_matrices] of experts, else [1]."""
    failure: BaseException | None = None

    def on_operation(self, address: int, ask: bool) -> bool:
        """Answer `cb_eval`: whether the result of an operation is wanted, and then whether to go on."""
        tensor = tensors.at(address)
        if ask:
            return _counts(tensor)
        try:
            add = self._add_experts if tensors.operation(tensor.op) == "MUL_MAT_ID" else self._add
            add(tensor)
        except BaseException as error:  # which ctypes would print and forget
            self.failure = self.failure or error
        return self.failure is None

    def _add(self, tensor: Any) -> None:
        weight = tensor.src[0].contents
        x = tensors.read(tensor.src[1].contents, np.float32)
        n3, n2, n_rows, n_columns = x.shape
        w2, w3 = weight.ne[2], weight.ne[3]
        squares, counts = self._of(tensors.name_of(weight), w2 * w3, n_columns, 1)
        each = np.square(x).sum(2, dtype=np.float64)
        for i3 in range(n3):
            for i2 in range(n2):
                squares[i3 % w3 * w2 + i2 % w2] += each[i3, i2]
        counts += n3 * n2 * n_rows // (w2 * w3)

    def _add_experts(self, tensor: Any) -> None:
        weight = tensor.src[0].contents
        x = tensors.read(tensor.src[1].contents, np.float32)[0]  # [n_tokens, n_used or 1, n_columns]
        chosen = tensors.read(tensor.src[2].contents, np.int32)[0, 0]  # [n_tokens, n_used]
        n_experts = weight.ne[2]
        squares, counts = self._of(tensors.name_of(weight), n_experts, x.shape[2], n_experts)
        x = np.square(x)
        for slot in range(chosen.shape[1]):
            np.add.at(squares, chosen[:, slot], x[:, slot % x.shape[1]])
        counts += np.bincount(chosen.ravel(), minlength=n_experts)

    def _of(
        self, name: str, n_matrices: int, n_columns: int, n_counts: int
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        if name not in self.squares:
            self.squares[name] = np.zeros((n_matrices, n_columns))
            self.counts[name] = np.zeros(n_counts, np.int64)
        return self.squares[name], self.counts[name]


def _counts(tensor: Any) -> bool:
    operation = tensors.operation(tensor.op)
    if operation == "MUL_MAT_ID":
        return True
    if operation != "MUL_MAT":
        return False
    x = tensor.src[1].contents
    is_large = x.ne[1] >= _LEAST_ROWS and x.type == lib.GGML_TYPE_F32
    return is_large and tensors.name_of(tensor.src[0].contents).startswith("blk.")


class TextReader:
    """A loaded model and its context, of as many tokens as a chunk has."""

    def __init__(
        self,
        path: Path,
        load: LoadParams,
        *,
        writable: bool = False,
        on_operation: Callable[[int, bool], bool] | None = None,
    ) -> None:
        """Load a model, of whose placement and threads `load` decides. Raises LoadFailed."""
        tensors.check()
        self._stack = ExitStack()
        with ExitStack() as stack:
            model = Model(path, load, writable=writable)
            stack.callback(model.close)
            self._context = Context(model, load, on_operation=on_operation)
            stack.callback(self._context.close)
            self._vocabulary = NativeVocabulary(model)
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def chunks(self, text: str, length: int) -> list[list[int]]:
        """Return the whole chunks of a text, of `length` tokens, with BOS where the model has one."""
        tokens = self._vocabulary.whole(text)
        begin = self._vocabulary.tokenize("", bos=True, special=False)
        starts = range(0, len(tokens) - length + 1, length)
        return [begin + tokens[start + len(begin) : start + length] for start in starts]

    def logits(self, chunk: Sequence[int], n_rows: int) -> npt.NDArray[np.float32]:
        """Return the last rows of logits of a chunk [n_rows, n_vocab], valid until the next call."""
        self._context.clear()
        rows = self._context.decode([(0, 0, chunk, n_rows)])
        if rows is None:
            raise DecodeFailed(f"A chunk of {len(chunk)} tokens does not fit into the context.")
        return rows
