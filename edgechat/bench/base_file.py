"""The base files of llama.cpp's llama-perplexity (`--kl-divergence-base`): a text's tokens and predictions.

b"_logits_", then int32 n_ctx, n_vocab, n_chunks, and the tokens [n_chunks, n_ctx]
for each chunk, rows of 16-bit numbers for the tokens that are scored: see `divergence.coded`
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgechat.base.errors import BadRequest, DiskError
from edgechat.base.paths import UNFINISHED
from edgechat.base.text import mebibytes
from edgechat.bench.divergence import Codes, row_codes

_MAGIC = b"_logits_"
_HEADER_BYTES = len(_MAGIC) + 12
_MOST_CONTEXT, _MOST_VOCABULARY, _MOST_CHUNKS = 1 << 20, 1 << 22, 1 << 24


class BaseFile:
    """A base file that was made before; nothing in it is believed."""

    def __init__(self, path: Path) -> None:
        """Map it. Raises BadRequest."""
        try:
            size = path.stat().st_size
            with path.open("rb") as file:
                header = file.read(_HEADER_BYTES)
        except OSError as error:
            raise BadRequest(f"{path.name} cannot be read: {error.strerror or error}.") from error
        if len(header) < _HEADER_BYTES or not header.startswith(_MAGIC):
            raise BadRequest(
                f"{path.name} is not a base file of llama-perplexity.",
                hint="--save-base FILE makes one, as does llama-perplexity --kl-divergence-base FILE.",
            )
        self.n_ctx, self.n_vocab, self.n_chunks = np.frombuffer(header, "<i4", offset=len(_MAGIC)).tolist()
        if not (
            4 <= self.n_ctx <= _MOST_CONTEXT
            and 1 <= self.n_vocab <= _MOST_VOCABULARY
            and 1 <= self.n_chunks <= _MOST_CHUNKS
        ):
            raise BadRequest(f"{path.name} is damaged: its header makes no sense.")
        self._n_rows = scored(self.n_ctx)
        n_tokens = self.n_ctx * self.n_chunks
        n_codes = self.n_chunks * self._n_rows * row_codes(self.n_vocab)
        if size < _HEADER_BYTES + 4 * n_tokens + 2 * n_codes:
            raise BadRequest(f"{path.name} ends early: it was not written to its end.")
        tokens = np.memmap(path, "<i4", "r", _HEADER_BYTES, (self.n_chunks, self.n_ctx))
        if tokens.min() < 0 or tokens.max() >= self.n_vocab:
            raise BadRequest(f"{path.name} is damaged: it has tokens that are not in its vocabulary.")
        self.tokens: npt.NDArray[np.int32] = np.array(tokens)
        """[n_chunks, n_ctx]"""
        shape = (self.n_chunks, self._n_rows, row_codes(self.n_vocab))
        self._rows = np.memmap(path, "<u2", "r", _HEADER_BYTES + 4 * n_tokens, shape)

    def rows(self, chunk: int, start: int, count: int) -> Codes:
        """Return rows of a chunk, from `start` on."""
        return np.asarray(self._rows[chunk, start : start + count])


class BaseFileWriter:
    """Writes a base file under another name until it is complete."""

    def __init__(self, path: Path, tokens: npt.NDArray[np.int32], n_vocab: int) -> None:
        """Begin. tokens: [n_chunks, n_ctx]. Raises DiskError."""
        self._path, self._part = path, _part(path)
        n_chunks, n_ctx = tokens.shape
        self._check_disk(file_bytes(n_ctx, n_vocab, n_chunks))
        header = np.array([n_ctx, n_vocab, n_chunks], "<i4").tobytes()
        try:
            self._file = self._part.open("wb")
            self._file.write(_MAGIC + header + tokens.astype("<i4").tobytes())
        except OSError as error:
            raise self._error(error) from error

    def _check_disk(self, size: int) -> None:
        try:
            free = shutil.disk_usage(self._path.absolute().parent).free
        except OSError as error:
            raise self._error(error) from error
        if size > free:
            raise DiskError(
                f"{self._path.name} would take {mebibytes(size)}, and {mebibytes(free)} are free.",
                hint="Score fewer chunks, for example --chunks 16.",
            )

    def write(self, rows: Codes) -> None:
        """Append rows. Raises DiskError."""
        try:
            self._file.write(rows.astype("<u2", copy=False).data)
        except OSError as error:
            raise self._error(error) from error

    def finish(self) -> None:
        """Give the file its name. Raises DiskError."""
        try:
            self._file.close()
            os.replace(self._part, self._path)
        except OSError as error:
            raise self._error(error) from error

    def _error(self, error: OSError) -> DiskError:
        return DiskError(f"{self._path.name} cannot be written: {error.strerror or error}.")


def remove_unfinished(path: Path) -> None:
    """Remove what a writer has left that was killed; nothing where it has finished."""
    with contextlib.suppress(OSError):
        _part(path).unlink()


def _part(path: Path) -> Path:
    return path.with_name(f"{UNFINISHED}{path.name}")


def scored(n_ctx: int) -> int:
    """Return the number of tokens of a chunk that are scored: those after its first half but the first."""
    return n_ctx - 1 - n_ctx // 2


def file_bytes(n_ctx: int, n_vocab: int, n_chunks: int) -> int:
    """Return the size of a base file."""
    return _HEADER_BYTES + n_chunks * (4 * n_ctx + 2 * scored(n_ctx) * row_codes(n_vocab))
