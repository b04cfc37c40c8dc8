"""The scores of a text's tokens, kept in the cache folder chunk by chunk, so that a measurement is resumed.

    b"edgechat scores 1\\n", then float64 tokens per second, then for each chunk float32 [4, n]

Its name is a hash of everything that the scores depend on. What was not written to its end is cut off.
"""

from __future__ import annotations

import contextlib
import os
from hashlib import blake2b
from pathlib import Path

import numpy as np

from edgechat.base import paths
from edgechat.base.errors import DiskError
from edgechat.bench.divergence import Floats

_MAGIC = b"edgechat scores 1\n"
_HEADER_BYTES = len(_MAGIC) + 8
_MOST_FILES = 200
"""Files that are kept, a few hundred kB each; the oldest go first."""


class ScoreFile:
    """The scores of one model with one text."""

    def __init__(self, path: Path, n_scored: int) -> None:
        """n_scored: tokens of a chunk."""
        self._path = path
        self._chunk_bytes = 4 * 4 * n_scored
        self._n_scored = n_scored

    @property
    def n_chunks(self) -> int:
        """Chunks that are complete."""
        try:
            return max(0, self._path.stat().st_size - _HEADER_BYTES) // self._chunk_bytes
        except OSError:
            return 0

    @property
    def tokens_per_second(self) -> float:
        """The speed of decoding one token after another; 0 if nothing has been measured."""
        data = self._read(_HEADER_BYTES)
        return float(np.frombuffer(data, "<f8", 1, len(_MAGIC))[0]) if data.startswith(_MAGIC) else 0.0

    def begin(self, tokens_per_second: float) -> None:
        """Make an empty file. Raises DiskError."""
        try:
            paths.replace(self._path, _MAGIC + np.array([tokens_per_second], "<f8").tobytes())
        except OSError as error:
            raise self._error(error) from error

    def append(self, scores: Floats) -> None:
        """Add the scores [4, n] of the next chunk. Raises DiskError."""
        try:
            with self._path.open("r+b") as file:
                file.seek(_HEADER_BYTES + self.n_chunks * self._chunk_bytes)
                file.truncate()
                file.write(scores.astype("<f4").tobytes())
        except OSError as error:
            raise self._error(error) from error

    def scores(self, most_chunks: int | None = None) -> Floats:
        """Return the scores [4, n] of all tokens, or those of the first chunks."""
        n_chunks = self.n_chunks if most_chunks is None else min(most_chunks, self.n_chunks)
        data = self._read(_HEADER_BYTES + n_chunks * self._chunk_bytes)[_HEADER_BYTES:]
        chunks = np.frombuffer(data, "<f4").reshape(-1, 4, self._n_scored)
        return np.ascontiguousarray(chunks.transpose(1, 0, 2)).reshape(4, -1)

    def _read(self, size: int) -> bytes:
        try:
            with self._path.open("rb") as file:
                return file.read(size)
        except OSError:
            return b""

    def _error(self, error: OSError) -> DiskError:
        return DiskError(f"The scores so far cannot be stored: {error.strerror or error}.")


def score_path(*parts: bytes) -> Path:
    """Return where the scores belong that depend on `parts`. Raises FolderError or DiskError."""
    digest = blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    folder = paths.cache_dir() / "quality"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise DiskError(f"{folder} cannot be made: {error.strerror or error}.") from error
    return folder / f"{digest.hexdigest()}.scores"


def drop_oldest() -> None:
    """Remove the scores that were measured longest ago, if there are many."""
    with contextlib.suppress(OSError):
        files = sorted((paths.cache_dir() / "quality").glob("*.scores"), key=os.path.getmtime)
        for path in files[:-_MOST_FILES]:
            path.unlink()
