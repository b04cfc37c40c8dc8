"""Importance matrices in llama-imatrix's GGUF format.

For each weight tensor, NAME.in_sum2 contains the sums of squared activations, and NAME.counts the number of
rows summed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgechat.base.errors import ModelFileError
from edgechat.bench.divergence import Floats
from edgechat.models.formats.gguf import aligned, read_header
from edgechat.models.formats.header import GgufArray, ModelHeader, ModelTensor, Value
from edgechat.models.formats.quants import GgmlType
from edgechat.models.formats.skeleton import encoded_header

_SUMS, _COUNTS = ".in_sum2", ".counts"
_ALIGNMENT = 32
_CHUNKS, _CHUNK_SIZE, _DATASETS = "imatrix.chunk_count", "imatrix.chunk_size", "imatrix.datasets"


@dataclass(frozen=True, slots=True)
class ImportanceMatrix:
    """Sums of squared activations, with information on how they were collected."""

    squares: Mapping[str, Floats]
    """Arrays of shape [n_matrices, n_columns], keyed by weight name."""
    counts: Mapping[str, Floats]
    """The number of rows added to each sum, with shape [n_matrices], or [1] if all matrices have the same."""
    dataset: str
    """The name of the text that the activations came from."""
    n_chunks: int
    chunk_size: int

    def importance(self) -> dict[str, Floats]:
        """Return the mean squares for the quantizer, keyed by weight name. Unused experts get 1."""
        means: dict[str, Floats] = {}
        for name, squares in self.squares.items():
            counts = self.counts[name][:, None]
            means[name] = np.where(counts > 0, squares / np.maximum(counts, 1), np.float32(1))
        return means


def write_imatrix(matrix: ImportanceMatrix, path: Path) -> None:
    """Write a matrix to a file. Raises OSError."""
    metadata: dict[str, Value] = {
        "general.type": "imatrix",
        _DATASETS: GgufArray("string", 1, (matrix.dataset,)),
        _CHUNKS: matrix.n_chunks,
        _CHUNK_SIZE: matrix.chunk_size,
    }
    arrays: dict[str, Floats] = {}
    for name in sorted(matrix.squares):
        arrays[name + _SUMS] = matrix.squares[name].astype(np.float32)
        arrays[name + _COUNTS] = matrix.counts[name].astype(np.float32)[:, None]
    table: list[ModelTensor] = []
    at = 0
    for name, array in arrays.items():
        n_matrices, n_columns = array.shape
        shape = (n_columns, n_matrices) if n_matrices > 1 else (n_columns,)
        table.append(ModelTensor(name, shape, GgmlType.F32, at, array.nbytes))
        at += aligned(array.nbytes, _ALIGNMENT)
    with path.open("wb") as file:
        file.write(encoded_header(metadata, table, _ALIGNMENT, path.name))
        for array in arrays.values():
            file.write(bytes(-file.tell() % _ALIGNMENT))
            file.write(array.astype("<f4").tobytes())
        file.write(bytes(-file.tell() % _ALIGNMENT))


def read_imatrix(path: Path) -> ImportanceMatrix:
    """Read a matrix from an untrusted file. Raises ModelFileError."""
    header = read_header(path)
    if header.text("general.type") != "imatrix":
        raise _damaged(path, "it is not an importance matrix")
    arrays = {tensor.name: _array(path, header, tensor) for tensor in header.tensors}
    squares = {name.removesuffix(_SUMS): array for name, array in arrays.items() if name.endswith(_SUMS)}
    counts = {name.removesuffix(_COUNTS): array for name, array in arrays.items() if name.endswith(_COUNTS)}
    if squares.keys() != counts.keys() or not squares:
        raise _damaged(path, "its sums and counts do not match")
    for name, array in squares.items():
        if len(counts[name].ravel()) not in (1, len(array)):
            raise _damaged(path, f"it has {counts[name].size} counts for {len(array)} matrices")
    datasets = header.metadata.get(_DATASETS)
    names = datasets.values if isinstance(datasets, GgufArray) and datasets.values else ("",)
    n_chunks, size = header.metadata.get(_CHUNKS), header.metadata.get(_CHUNK_SIZE)
    if not isinstance(n_chunks, int) or not isinstance(size, int):
        raise _damaged(path, "it does not say how much text it covers")
    flat = {name: array.ravel() for name, array in counts.items()}
    return ImportanceMatrix(squares, flat, str(names[0]), n_chunks, size)


def _array(path: Path, header: ModelHeader, tensor: ModelTensor) -> Floats:
    if tensor.type is not GgmlType.F32:
        raise _damaged(path, f"{tensor.name} is not in F32")
    offset = header.data_offset + tensor.offset
    data = np.fromfile(path, "<f4", tensor.n_elements, offset=offset).astype(np.float32)
    if not np.isfinite(data).all():
        raise _damaged(path, f"{tensor.name} has values that are not finite")
    return data.reshape(-1, tensor.shape[0] if tensor.shape else 1)


def _damaged(path: Path, why: str) -> ModelFileError:
    return ModelFileError(
        f"{path.name} cannot be used as an importance matrix: {why}.",
        hint="To create one: `edgechat quantize MODEL --imatrix TEXT --save-imatrix FILE`",
    )
