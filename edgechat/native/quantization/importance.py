"""The importance matrix: for each column of a weight, the sum of the squares of what it was multiplied with.

As llama.cpp's `tools/imatrix` collects it: over chunks of a text, each computed by itself, from all matrix
multiplications with a weight of a layer; of experts (MUL_MAT_ID) each by itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import llama_cpp.llama_cpp as lib
import numpy as np
import numpy.typing as npt

from edgechat.native.quantization import tensors

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
