"""The weights of a GGUF file, or of the shards of one, as numbers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgechat.models.formats.gguf import read_header
from edgechat.models.formats.header import ModelTensor
from edgechat.models.formats.quants import GgmlType

Floats = npt.NDArray[np.float32]
UNQUANTIZED = (GgmlType.F32, GgmlType.F16, GgmlType.BF16)


class SourceWeights:
    """Reads tensors whose type is one of UNQUANTIZED; nothing is held in memory."""

    def __init__(self, paths: Iterable[Path]) -> None:
        """Read the headers of all shards. Raises ModelFileError."""
        self._places: dict[str, tuple[Path, int]] = {}
        self.tensors: dict[str, ModelTensor] = {}
        for path in paths:
            header = read_header(path)
            for tensor in header.tensors:
                self.tensors[tensor.name] = tensor
                self._places[tensor.name] = path, header.data_offset + tensor.offset

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """Return the bytes of a tensor, mapped."""
        path, offset = self._places[name]
        return np.memmap(path, np.uint8, "r", offset, (self.tensors[name].n_bytes,))

    def floats(self, name: str, n_rows: int = 0) -> Floats:
        """Return a tensor as [n_matrices, n_rows, n_columns], or so many of its rows, evenly chosen."""
        tensor = self.tensors[name]
        _, rows, *others = tensor.shape
        data = self.raw(name).reshape(int(np.prod(others, dtype=np.int64)), rows, -1)
        if 0 < n_rows < rows:
            data = data[:, np.linspace(0, rows - 1, n_rows).astype(np.int64)]
        return _floats(np.ascontiguousarray(data), tensor.type)


def packed(weights: Floats, kind: GgmlType) -> npt.NDArray[np.uint8]:
    """Return the bytes of weights in one of the types that are UNQUANTIZED."""
    if kind is GgmlType.BF16:
        bits = weights.view(np.uint32)
        rounded = bits + (0x7FFF + (bits >> 16 & 1))
        return (rounded >> 16).astype(np.uint16).view(np.uint8)
    return weights.astype(np.float16 if kind is GgmlType.F16 else np.float32).view(np.uint8)


def _floats(data: npt.NDArray[np.uint8], kind: GgmlType) -> Floats:
    if kind is GgmlType.BF16:
        return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return data.view(np.float16 if kind is GgmlType.F16 else np.float32).astype(np.float32)
