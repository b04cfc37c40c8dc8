"""Files used to measure quality (the text, base files and scores), and the child process's messages."""

from __future__ import annotations

import contextlib
import lzma
import os
import shutil
from hashlib import blake2b
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from edgechat.base import paths
from edgechat.base.errors import BadRequest, DiskError
from edgechat.base.paths import UNFINISHED
from edgechat.base.text import mebibytes, one_line
from edgechat.bench.divergence import Codes, Floats, row_codes
from edgechat.bench.process import BenchFailure, BenchProgress
from edgechat.planner.plan import LoadPlan

_MAGIC = b"edgechat scores 1\n"
_HEADER_BYTES = len(_MAGIC) + 8
_MOST_FILES = 200
"""Maximum number of score files to keep. Each takes up a few hundred kB, and the oldest are removed first."""


class ScoreFile:
    r"""The scores of one model on one text, cached on disk so that an interrupted measurement can resume.

        b"edgechat scores 1\n", then tokens per second as a float64, then float32 [4, n] for each chunk

    The file is named after a hash of everything that affects the scores. An incomplete chunk at the end is
    discarded.
    """

    def __init__(self, path: Path, n_scored: int) -> None:
        """n_scored: the number of tokens scored in each chunk."""
        self._path = path
        self._chunk_bytes = 4 * 4 * n_scored
        self._n_scored = n_scored

    @property
    def n_chunks(self) -> int:
        """The number of complete chunks in the file."""
        try:
            return max(0, self._path.stat().st_size - _HEADER_BYTES) // self._chunk_bytes
        except OSError:
            return 0

    @property
    def tokens_per_second(self) -> float:
        """Speed of decoding tokens one at a time, or 0 if it has not been measured."""
        data = self._read(_HEADER_BYTES)
        return float(np.frombuffer(data, "<f8", 1, len(_MAGIC))[0]) if data.startswith(_MAGIC) else 0.0

    def begin(self, tokens_per_second: float) -> None:
        """Create the file. Raises DiskError."""
        try:
            paths.replace(self._path, _MAGIC + np.array([tokens_per_second], "<f8").tobytes())
        except OSError as error:
            raise self._error(error) from error

    def append(self, scores: Floats) -> None:
        """Append the scores [4, n] of the next chunk. Raises DiskError."""
        try:
            with self._path.open("r+b") as file:
                file.seek(_HEADER_BYTES + self.n_chunks * self._chunk_bytes)
                file.truncate()
                file.write(scores.astype("<f4").tobytes())
        except OSError as error:
            raise self._error(error) from error

    def scores(self, most_chunks: int | None = None) -> Floats:
        """Return the scores [4, n] of all tokens, or only of those in the first `most_chunks` chunks."""
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
    """Return the path of the score file named after a hash of `parts`. Raises FolderError or DiskError."""
    digest = blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    folder = paths.cache_dir() / "quality"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise DiskError(f"{folder} cannot be created: {error.strerror or error}.") from error
    return folder / f"{digest.hexdigest()}.scores"


def drop_oldest() -> None:
    """Remove the oldest score files if there are too many."""
    with contextlib.suppress(OSError):
        files = sorted((paths.cache_dir() / "quality").glob("*.scores"), key=os.path.getmtime)
        for path in files[:-_MOST_FILES]:
            path.unlink()


SHIPPED = "quality.txt.xz"
_MOST_BYTES = 64 << 20


def shipped_text() -> Path:
    """Return the path to the text shipped with edgechat."""
    return paths.shipped(SHIPPED)


def read_text(path: Path) -> str:
    """Return a file's text without the final newline, as llama.cpp's tools read it.

    Raises BadRequest.
    """
    name = one_line(path.name)
    try:
        data = paths.read_bytes(path, _MOST_BYTES)
    except OSError as error:
        raise BadRequest(f"{name} cannot be read: {error.strerror or error}.") from error
    if path == shipped_text():
        data = lzma.decompress(data)
    if b"\0" in data[:4096]:
        raise BadRequest(f"{name} is not a text file.", hint="Give a plain-text file in UTF-8.")
    return data.decode("utf-8", "replace").removesuffix("\n")


_BASE_MAGIC = b"_logits_"
_BASE_HEADER_BYTES = len(_BASE_MAGIC) + 12
_MOST_CONTEXT, _MOST_VOCABULARY, _MOST_CHUNKS = 1 << 20, 1 << 22, 1 << 24


class BaseFile:
    """An untrusted base file: the tokens of a text and a model's predictions for them.

    Such files are written by llama-perplexity --kl-divergence-base. They start with b"_logits_", followed by
    n_ctx, n_vocab and n_chunks (int32 each), and the tokens [n_chunks, n_ctx]. Then come the rows for the
    scored tokens of each chunk. A row consists of 16-bit numbers; see `divergence.coded`.
    """

    def __init__(self, path: Path) -> None:
        """Memory-map the file. Raises BadRequest."""
        try:
            size = path.stat().st_size
            with path.open("rb") as file:
                header = file.read(_BASE_HEADER_BYTES)
        except OSError as error:
            raise BadRequest(f"{path.name} cannot be read: {error.strerror or error}.") from error
        if len(header) < _BASE_HEADER_BYTES or not header.startswith(_BASE_MAGIC):
            raise BadRequest(
                f"{path.name} is not a base file from llama-perplexity.",
                hint="To create one: --save-base FILE, or llama-perplexity --kl-divergence-base FILE.",
            )
        self.n_ctx, self.n_vocab, self.n_chunks = np.frombuffer(
            header, "<i4", offset=len(_BASE_MAGIC)
        ).tolist()
        if not (
            4 <= self.n_ctx <= _MOST_CONTEXT
            and 1 <= self.n_vocab <= _MOST_VOCABULARY
            and 1 <= self.n_chunks <= _MOST_CHUNKS
        ):
            raise BadRequest(f"{path.name} is damaged: its header makes no sense.")
        self._n_rows = scored(self.n_ctx)
        n_tokens = self.n_ctx * self.n_chunks
        n_codes = self.n_chunks * self._n_rows * row_codes(self.n_vocab)
        if size < _BASE_HEADER_BYTES + 4 * n_tokens + 2 * n_codes:
            raise BadRequest(f"{path.name} is incomplete.")
        tokens = np.memmap(path, "<i4", "r", _BASE_HEADER_BYTES, (self.n_chunks, self.n_ctx))
        if tokens.min() < 0 or tokens.max() >= self.n_vocab:
            raise BadRequest(f"{path.name} is damaged: it has tokens that are not in its vocabulary.")
        self.tokens: npt.NDArray[np.int32] = np.array(tokens)
        """Shape: [n_chunks, n_ctx]."""
        shape = (self.n_chunks, self._n_rows, row_codes(self.n_vocab))
        self._rows = np.memmap(path, "<u2", "r", _BASE_HEADER_BYTES + 4 * n_tokens, shape)

    def rows(self, chunk: int, start: int, count: int) -> Codes:
        """Return `count` rows of a chunk, starting at `start`."""
        return np.asarray(self._rows[chunk, start : start + count])


class BaseFileWriter:
    """Writes a base file under a temporary name, and renames it once it is complete."""

    def __init__(self, path: Path, tokens: npt.NDArray[np.int32], n_vocab: int) -> None:
        """Create the file. tokens: [n_chunks, n_ctx]. Raises DiskError."""
        self._path, self._part = path, _part(path)
        n_chunks, n_ctx = tokens.shape
        self._check_disk(file_bytes(n_ctx, n_vocab, n_chunks))
        header = np.array([n_ctx, n_vocab, n_chunks], "<i4").tobytes()
        try:
            self._file = self._part.open("wb")
            self._file.write(_BASE_MAGIC + header + tokens.astype("<i4").tobytes())
        except OSError as error:
            raise self._error(error) from error

    def _check_disk(self, size: int) -> None:
        try:
            free = shutil.disk_usage(self._path.absolute().parent).free
        except OSError as error:
            raise self._error(error) from error
        if size > free:
            raise DiskError(
                f"{self._path.name} needs {mebibytes(size)}, but only {mebibytes(free)} is free.",
                hint="Score fewer chunks, for example --chunks 16.",
            )

    def write(self, rows: Codes) -> None:
        """Append rows. Raises DiskError."""
        try:
            self._file.write(rows.astype("<u2", copy=False).data)
        except OSError as error:
            raise self._error(error) from error

    def finish(self) -> None:
        """Rename the file to its final name. Raises DiskError."""
        try:
            self._file.close()
            os.replace(self._part, self._path)
        except OSError as error:
            raise self._error(error) from error

    def _error(self, error: OSError) -> DiskError:
        return DiskError(f"{self._path.name} cannot be written: {error.strerror or error}.")


def remove_unfinished(path: Path) -> None:
    """Remove the temporary file that a writer leaves behind if it is killed."""
    with contextlib.suppress(OSError):
        _part(path).unlink()


def _part(path: Path) -> Path:
    return path.with_name(f"{UNFINISHED}{path.name}")


def scored(n_ctx: int) -> int:
    """Return how many tokens of each chunk are scored: those in the second half, except the first."""
    return n_ctx - 1 - n_ctx // 2


def file_bytes(n_ctx: int, n_vocab: int, n_chunks: int) -> int:
    """Return the size of a base file in bytes."""
    return _BASE_HEADER_BYTES + n_chunks * (4 * n_ctx + 2 * scored(n_ctx) * row_codes(n_vocab))


class ScoredModel(msgspec.Struct, frozen=True):
    """A model to score, and where to store its scores."""

    label: str
    """The model's name in progress reports, such as 'Q4_K_M'."""
    plan: LoadPlan
    scores: str


class QualityTask(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """A request to score a text with one or more models, all loaded at the same time."""

    text: str
    """Path to the text."""
    n_ctx: int
    """Number of tokens per chunk."""
    n_chunks: int
    """Number of chunks to score; 0 means the whole text."""
    models: tuple[ScoredModel, ...]
    has_base: bool = False
    """Whether the first model is the base for the others."""
    base_file: str = ""
    """Path to stored predictions to compare with. If given, their tokens are used instead of the text."""
    save_base: str = ""
    """Path where the first model's predictions are saved."""


class Scored(msgspec.Struct, frozen=True, tag=True):
    """The child process's answer once it has scored the text."""

    n_chunks: int


ScoringAnswer = Scored | BenchProgress | BenchFailure
