"""Vectors as they are stored: a quarter of their size, and as near to each other as before, nearly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Vectors = npt.NDArray[np.float32]


_BLOCK = 1 << 14
"""Vectors that are made floats at a time."""


def packed(vectors: Vectors) -> bytes:
    """Return vectors (n, d) of length 1 (or 0) as n records of d signed bytes.

    The largest number of each becomes 127; what that is a multiple of follows from the length, which is 1.
    Records may be cut apart and put together.
    """
    import numpy as np

    largest = np.abs(vectors).max(axis=1, initial=0.0, keepdims=True)
    return np.rint(vectors * (127 / np.where(largest > 0, largest, 1))).astype(np.int8).tobytes()


def unpacked(data: bytes, n: int, d: int) -> Vectors:
    """Return the vectors (n, d). Raises ValueError if the data has another size."""
    import numpy as np

    vectors = np.frombuffer(data, np.int8).reshape(n, d).astype(np.float32)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    lengths[lengths == 0] = 1
    vectors /= lengths
    return vectors


class VectorIndex:
    """The vectors of a collection in memory, a byte a number, by which those nearest to another are found."""

    def __init__(self, ids: Sequence[int], data: bytes) -> None:
        """data: the packed vectors of `ids`, one after the other."""
        import numpy as np

        size = len(data) // len(ids) if ids else 0
        self._ids = np.array(ids, np.int64)
        self._rows = np.frombuffer(data, np.int8).reshape(len(ids), size)
        lengths = np.sqrt(np.einsum("nd,nd->n", self._rows, self._rows, dtype=np.int32).astype(np.float32))
        self._lengths = np.where(lengths > 0, lengths, 1)

    def __len__(self) -> int:
        return len(self._ids)

    def nearest(self, vector: Vectors, limit: int) -> list[int]:
        """Return the ids of the vectors nearest to one (d,), the nearest first; none if lengths differ."""
        import numpy as np

        if not len(self) or vector.shape != self._rows.shape[1:]:
            return []
        blocks = (self._rows[at : at + _BLOCK] for at in range(0, len(self), _BLOCK))
        scores = np.concatenate([block.astype(np.float32) @ vector for block in blocks]) / self._lengths
        limit = min(limit, len(scores))
        best = np.argpartition(-scores, limit - 1)[:limit]
        return [int(self._ids[at]) for at in best[np.argsort(-scores[best], kind="stable")]]
