"""Measures, in a loaded model, how much loss results from storing a tensor in a given type.

The loss grows with the error in the tensor's output, whatever type causes the error. The error is the sum of
the squared differences between the original and the quantized weights, with each column weighted by its
importance. It is computed for every type, on a sample of rows, but only one type is tried out in the model:
tensors of the same kind in neighboring layers are quantized, and the divergence of the model's predictions is
measured. The sensitivity of these tensors is the divergence divided by the error.
"""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgechat.bench.divergence import Floats, mean_divergence
from edgechat.models.formats.gguf import read_header
from edgechat.models.formats.header import ModelTensor
from edgechat.models.formats.quants import GgmlType
from edgechat.native import tensors
from edgechat.native.quantization import TextReader
from edgechat.native.tensors import rounded
from edgechat.quantize.mixtures import TensorOption, types_for

_SAMPLE = 1 << 18
"""Number of weights to sample per tensor."""
_PROBE_ERROR = 5e-3
"""Relative error to aim for when probing a group: low enough for losses to add up, but far above Q8_0's."""


class WeightAddresses:
    """Collects the addresses of a model's weights as operations use them."""

    def __init__(self, names: Sequence[str]) -> None:
        self._wanted = frozenset(names)
        self.found: dict[str, int] = {}

    def on_operation(self, address: int, _ask: bool) -> bool:
        """Handle a `cb_eval` callback. The operation's data is never requested."""
        tensor = tensors.at(address)
        for source in tensor.src[:2]:
            if source:
                name = source.contents.name.decode("utf-8", "replace")
                if name in self._wanted:
                    self.found[name] = ctypes.addressof(source.contents)
        return False


class Probe:
    """Probes the tensors of a loaded model whose weights are writable."""

    def __init__(
        self,
        reader: TextReader,
        addresses: WeightAddresses,
        weights: SourceWeights,
        importance: Mapping[str, Floats],
        chunks: Sequence[Sequence[int]],
        *,
        threads: int,
    ) -> None:
        self._reader, self._weights, self._importance = reader, weights, importance
        self._chunks, self._threads = chunks, threads
        self._base = [reader.logits(chunk, len(chunk) // 2).copy() for chunk in chunks]
        self._addresses = addresses.found  # filled in while the base's logits were computed

    def options(
        self, names: Sequence[str], n_groups: int, tell: Callable[[str, float], None]
    ) -> dict[str, list[TensorOption]]:
        """Return the possible types for each tensor, with the loss that each type would cause.

        tell: called with the current step and the fraction completed.
        """
        errors: dict[str, dict[GgmlType, float]] = {}
        for number, name in enumerate(names):
            tell("computing quantization errors", number / len(names))
            tensor = self._weights.tensors[name]
            kinds = types_for(tensor)
            sample = self._weights.floats(name, max(1, _SAMPLE * tensor.shape[1] // tensor.n_elements))
            errors[name] = {kind: self._error(name, sample, kind) for kind in kinds[:-1]}
            errors[name][kinds[-1]] = 0.0
        sensitivities: dict[str, float] = {}
        groups = list(_groups([name for name in names if name in self._addresses], n_groups))
        for number, group in enumerate(groups):
            tell("measuring the sensitivity of each group of tensors", number / len(groups))
            sensitivity = self._sensitivity(group, errors)
            sensitivities |= dict.fromkeys(group, sensitivity)
        # For tensors that no operation used (an unused expert, a head), assume average sensitivity.
        usual = float(np.median(list(sensitivities.values()))) if sensitivities else 1.0
        return {
            name: [
                TensorOption(kind.name, self._bytes(name, kind), sensitivities.get(name, usual) * error)
                for kind, error in errors[name].items()
            ]
            for name in names
        }

    def _error(self, name: str, sample: Floats, kind: GgmlType) -> float:
        """Return the squared error in a tensor's output, relative to the square of the output."""
        importance = self._importance_of(name, len(sample))
        difference = rounded(sample, kind, importance, self._threads) - sample
        weight = importance[:, None, :] if importance is not None else np.float32(1)
        scale = float((sample * sample * weight).sum(dtype=np.float64))
        return float((difference * difference * weight).sum(dtype=np.float64)) / max(scale, 1e-30)

    def _sensitivity(self, group: Sequence[str], errors: Mapping[str, Mapping[GgmlType, float]]) -> float:
        total = 0.0
        for name in group:
            kind = min(errors[name], key=lambda kind: _distance(errors[name][kind]))
            self._replace(name, kind)
            total += errors[name][kind]
        loss = self._loss()
        for name in group:
            tensors.write(tensors.at(self._addresses[name]), np.array(self._weights.raw(name)))
        return max(loss, 0.0) / max(total, 1e-12)

    def _replace(self, name: str, kind: GgmlType) -> None:
        weights = self._weights.floats(name)
        left = rounded(weights, kind, self._importance_of(name, len(weights)), self._threads)
        data = packed(left, self._weights.tensors[name].type)
        tensors.write(tensors.at(self._addresses[name]), data.reshape(-1))

    def _loss(self) -> float:
        losses = [
            mean_divergence(base, self._reader.logits(chunk, len(chunk) // 2))
            for chunk, base in zip(self._chunks, self._base, strict=True)
        ]
        return sum(losses) / len(losses)

    def _importance_of(self, name: str, n_matrices: int) -> Floats | None:
        importance = self._importance.get(name)
        return importance if importance is not None and len(importance) == n_matrices else None

    def _bytes(self, name: str, kind: GgmlType) -> int:
        return kind.row_bytes(self._weights.tensors[name].n_elements)


def _distance(error: float) -> float:
    return abs(math.log(max(error, 1e-12) / _PROBE_ERROR))


def _groups(names: Sequence[str], n_groups: int) -> Iterator[tuple[str, ...]]:
    """Yield about `n_groups` groups of tensors, each of the same kind and from neighboring layers."""
    size = max(1, -(-len(names) // n_groups))

    def kind_of(name: str) -> str:
        return re.sub(r"^blk\.\d+\.", "", name)

    def layer_of(name: str) -> int:
        layer = re.match(r"blk\.(\d+)\.", name)
        return int(layer[1]) if layer else -1

    for _, same in groupby(sorted(names, key=lambda name: (kind_of(name), layer_of(name))), key=kind_of):
        alike = tuple(same)
        yield from (alike[start : start + size] for start in range(0, len(alike), size))


UNQUANTIZED = (GgmlType.F32, GgmlType.F16, GgmlType.BF16)


class SourceWeights:
    """Memory-mapped weights from a GGUF file or its shards. All types must be in UNQUANTIZED."""

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
        """Return a memory map of a tensor's bytes."""
        path, offset = self._places[name]
        return np.memmap(path, np.uint8, "r", offset, (self.tensors[name].n_bytes,))

    def floats(self, name: str, n_rows: int = 0) -> Floats:
        """Return a tensor as an array of shape [n_matrices, n_rows, n_columns].

        n_rows: number of evenly spaced rows to return; 0 means all rows.
        """
        tensor = self.tensors[name]
        _, rows, *others = tensor.shape
        data = self.raw(name).reshape(int(np.prod(others, dtype=np.int64)), rows, -1)
        if 0 < n_rows < rows:
            data = data[:, np.linspace(0, rows - 1, n_rows).astype(np.int64)]
        return _floats(np.ascontiguousarray(data), tensor.type)


def packed(weights: Floats, kind: GgmlType) -> npt.NDArray[np.uint8]:
    """Encode weights in one of the types in UNQUANTIZED."""
    if kind is GgmlType.BF16:
        bits = weights.view(np.uint32)
        rounded = bits + (0x7FFF + (bits >> 16 & 1))
        return (rounded >> 16).astype(np.uint16).view(np.uint8)
    return weights.astype(np.float16 if kind is GgmlType.F16 else np.float32).view(np.uint8)


def _floats(data: npt.NDArray[np.uint8], kind: GgmlType) -> Floats:
    if kind is GgmlType.BF16:
        return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return data.view(np.float16 if kind is GgmlType.F16 else np.float32).astype(np.float32)
