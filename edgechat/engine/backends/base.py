"""Backend protocol, with logits, media ids and sets of adapters. Scheduling and sampling build on it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, Self

import numpy as np
import numpy.typing as npt

from edgechat.base.errors import DecodeFailed
from edgechat.base.images.image import Pixels
from edgechat.base.sound.sound import Samples
from edgechat.engine.types import Sampling
from edgechat.models.adapters.reading import AdapterUse, checked_scale
from edgechat.native.params import Buffer


class CacheFull(Exception):
    """There are no free cells for the batch; nothing was computed and the cache is unchanged."""


class EncodingStopped(Exception):
    """The embeddings of an image or a sound are no longer wanted."""


class Interrupted(Exception):
    """The call was interrupted: its last micro-batch is lost, earlier ones are valid."""

    def __init__(self, n_kept: tuple[int | None, ...]) -> None:
        """n_kept: cached tokens of each part; None if the whole sequence is lost."""
        super().__init__()
        self.n_kept = n_kept


@dataclass(frozen=True, slots=True)
class BatchPart:
    """Run of tokens of one sequence in a batch.

    The first token has position `start`, the current length of the sequence. Logits are computed for the last
    `n_logits` tokens: 0 for a chunk within a prompt, 1 to sample, k + 1 to verify k drafted tokens.
    """

    seq: int
    start: int
    tokens: Seq[int]
    n_logits: int
    n_candidates: int = 0
    """Number of highest logits needed in each row; others may be -inf. 0: all."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Capabilities of a backend. Using others is an error and never ignored."""

    mixes: bool
    """A batch may have parts of several sequences."""
    cuts: bool = True
    """Sequences can be cut and copied at any token; else only whole sequences can be copied and rewound."""
    shifts: bool = False
    """A part in the middle of a sequence can be removed, with an approximate result."""
    saves: bool = False
    """The state of a sequence can be saved and restored."""
    recomputes: bool = False
    """A rollback computes the remaining tokens of the call again."""


class Vocabulary(Protocol):
    """Tokens to bytes and back."""

    @property
    def size(self) -> int:
        """Number of tokens; the width of a row of logits."""

    @property
    def bos(self) -> str:
        """Text of the beginning-of-sequence token, or ''."""

    @property
    def eos(self) -> str:
        """Text of the end-of-sequence token, or ''."""

    def tokenize(self, text: str, *, bos: bool, special: bool) -> list[int]:
        """Return the ids of `text`.

        bos: prepend the beginning-of-sequence token if the model expects it and the text has none.
        special: parse control tokens in the text.
        """

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """Return the bytes of a token, perhaps part of a character; control tokens need `special`."""

    def control_texts(self) -> Iterable[str]:
        """Return the texts of control tokens."""

    def is_end(self, token: int) -> bool:
        """Return whether a token ends a reply."""

    def infill(self) -> tuple[int, int, int] | None:
        """Return the fill-in-the-middle tokens before prefix, suffix and middle.

        None for models that were not trained for it.
        """

    def misfit(self, other: Self) -> str:
        """Return why drafts cannot use the other vocabulary, '' if they can."""


class TokenDrawing(Protocol):
    """Sampling on the GPU, which computes the next token while the engine handles the last."""

    def next_token(self, part: BatchPart, sampling: Sampling, number: float) -> int:
        """Compute a run of one sequence and return the next token.

        It is the choice of `Sampler.choose`, without penalties. number: random number from 0 to 1. Raises
        CacheFull or DecodeFailed.
        """


class Interruption(Protocol):
    """Interruption of calls, so that prompts can be computed in large batches without delaying others."""

    def interrupt(self) -> None:
        """Interrupt the running call of `decode_interruptibly`, or the next calls. Thread-safe."""

    def clear_interrupt(self) -> None:
        """Let calls run to their end again. Check for the reason of the interrupt afterwards, not before."""

    def decode_interruptibly(self, parts: Seq[BatchPart]) -> Logits:
        """Compute a batch like `Backend.decode`; may raise Interrupted."""


@dataclass(frozen=True, slots=True, eq=False)
class Media:
    """An image or a sound, or a part of it, as cut by a projector."""

    ids: tuple[int, ...]
    """Ids that represent it among tokens, one for each cell; see `media_ids`."""
    whole: bool
    """Whether it must be computed in one call, since its cells attend to each other."""
    piece: object
    """Private to the backend."""


class MediaEncoder(Protocol):
    """Encodes images and audio."""

    sees: bool
    hears: bool
    sample_rate: int
    """Samples per second of input sounds."""

    def cut(self, contents: Pixels | Samples, digest: str) -> list[tuple[int, ...] | Media]:
        """Return the representation of an image or a sound in a prompt: surrounding tokens and media.

        digest: identifies the content. Thread-safe. Raises BadRequest for unsupported contents.
        """

    def encode(self, media: Media, *, between: Callable[[], bool]) -> Embeddings:
        """Return the embeddings of media [n_cells, n_embd]. Runs in a separate thread, one call at a time.

        between: called about every 0.05 seconds, and the backend may decode meanwhile. If it returns False,
        EncodingStopped is raised. Raises DecodeFailed.
        """

    def decode(self, seq: int, start: int, media: Media, embeddings: Embeddings) -> None:
        """Compute the cells of media at the end of a sequence, which has `start` tokens.

        Raises CacheFull or DecodeFailed; the sequence is then unchanged or empty.
        """

    def release(self, media: Media) -> None:
        """Free the data that `encode` needs. Thread-safe."""


class Adapters(Protocol):
    """LoRA adapters of a model, loaded on first use."""

    def resolve(self, wanted: Seq[AdapterUse]) -> AdapterSet:
        """Check the adapters of a request and return them as a set. Thread-safe.

        Raises NotAnAdapter, ModelFileError or DiskError.
        """

    def use(self, adapters: AdapterSet) -> None:
        """Use these adapters in following calls. Raises DecodeFailed; then no adapters are used."""


class DraftHead(Protocol):
    """Layers that draft from the model's hidden states: its own (MTP) or EAGLE-3's."""

    kind: Literal["mtp", "eagle3"]
    longest: int
    """Maximum tokens of a draft."""

    def can_draft(self, seq: int, length: int) -> bool:
        """Return whether it knows all `length` computed tokens of a sequence."""

    def begin(self, tokens: Seq[tuple[int, int]]) -> Logits:
        """Return the logits [n, n_vocab] after the next token of each sequence.

        tokens: pairs of a sequence and the token that its next call begins with; all must fit into one call.
        The rows are valid until the next call. Raises CacheFull or DecodeFailed.
        """

    def extend(self, tokens: Seq[tuple[int, int]]) -> Logits:
        """Return the logits after another token of each draft, for sequences of the last call."""


class Backend(Protocol):
    """A loaded model with its KV cache. Used by one thread, closed by its creator."""

    capabilities: Capabilities
    drawing: TokenDrawing | None
    """None: the engine samples from logits."""
    interruption: Interruption | None
    """None: calls cannot be interrupted."""
    media_encoder: MediaEncoder | None
    """None: the model has neither vision nor audio."""
    adapters: Adapters | None
    """None: LoRA adapters are not supported."""
    no_vision: str
    """Why its projector is not loaded; '' if it is or there is none."""
    head: DraftHead | None
    """None: there is no draft head."""
    no_head: str
    """Why the plan's draft head is not used; '' if it is or there is none."""
    vocabulary: Vocabulary
    context: int
    """Cells of the cache, shared by all sequences."""
    n_seq_max: int
    n_batch: int
    """Maximum tokens per call of `decode`."""
    n_outputs_max: int
    """Maximum rows of logits per call."""
    checkpoint_bytes: int
    """Memory limit for all checkpoints in bytes; 0: none are taken or needed."""
    rolls_back: int
    """Maximum tokens at the end of a call that can be rolled back; see `rollback`."""
    rolls_back_alone: bool
    """Whether a rollback requires a call without other sequences."""
    chat_template: str | None
    architecture: str
    n_params: int
    train_context: int
    buffers: tuple[Buffer, ...]
    """Allocated buffers, if known and predicted by the plan."""
    touched_bytes: int
    """Bytes of its buffers that were written while loading, without mapped files; 0 if unknown."""
    state_format: str
    """Properties besides the model's file that a saved state depends on: cache type, build etc."""

    def decode(self, parts: Seq[BatchPart]) -> Logits:
        """Compute a batch; return a row of logits for each requested token, in the order of the parts.

        The rows are valid until the next call. Raises CacheFull or DecodeFailed.
        """

    def truncate(self, seq: int, length: int) -> bool:
        """Cut a sequence to `length` tokens.

        Returns False if the architecture would give a wrong result; the sequence is then unchanged. Length 0
        always works.
        """

    def rollback(self, seq: int, count: int) -> bool:
        """Roll back the last `count` tokens of a sequence, fewer than the last call of `decode` computed.

        Possible once after a call, for up to `rolls_back` tokens. Returns False if the result would be wrong;
        the sequence is then unchanged.
        """

    def checkpoint(self, seq: int) -> Checkpoint:
        """Return the data that `rewind` needs to return to the current length. Raises MemoryError."""

    def rewind(self, seq: int, checkpoint: Checkpoint) -> bool:
        """Cut a sequence that begins with the tokens of a checkpoint to these tokens.

        The checkpoint may be from another sequence. Returns False, with the sequence empty, if the result
        would be wrong or cells are short.
        """

    def save_checkpoint(self, checkpoint: Checkpoint) -> npt.NDArray[np.uint8]:
        """Return the state of a checkpoint as bytes, which `rewind` accepts, too. Raises MemoryError."""

    def can_copy(self, source: int, length: int) -> bool:
        """Return whether the first `length` tokens of a sequence can be copied with a correct result."""

    def copy(self, source: int, target: int, length: int) -> bool:
        """Share the first `length` tokens of `source` with the empty sequence `target`, in the same cells.

        Only after `can_copy` returned True. Returns False, with `target` still empty, if there are no free
        cells for its windows.
        """

    def shift(self, seq: int, start: int, stop: int) -> bool:
        """Remove the tokens from `start` to `stop` from a sequence and move the rest.

        The result is approximate: the rest was computed with the removed tokens. Returns False if it is
        impossible; the sequence is then unchanged. Raises ValueError unless 0 < start < stop < length.
        """

    def save(self, seq: int) -> npt.NDArray[np.uint8]:
        """Return the state of a sequence, for a backend with the same model and format.

        Raises MemoryError if a copy would take more than half of the free memory.
        """

    def restore(self, seq: int, state: npt.NDArray[np.uint8], tokens: Seq[int]) -> bool:
        """Fill an empty sequence with a saved state of tokens; False, with it still empty, on failure.

        The state must come from `save`: llama.cpp hardly checks it.
        """

    def close(self) -> None:
        """Free the cache, then the model."""


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """Uncuttable state of a sequence: its windows and recurrent states at one length.

    Without keys and values of layers with full attention, which stay in the cache.
    """

    length: int
    """Number of tokens of the sequence when it was taken."""
    n_bytes: int
    state: object
    """Private to the backend, or the result of its `save_checkpoint`."""


Logits = npt.NDArray[np.float32]
Embeddings = npt.NDArray[np.float32]
Ids = npt.NDArray[np.intp]
Probabilities = npt.NDArray[np.float64]
Distribution = tuple[Ids, Probabilities]
"""Ids that may come next and their probabilities, which add up to 1."""


def broken_logits() -> DecodeFailed:
    """Return the error for NaN or infinite logits."""
    return DecodeFailed(
        "The model produced NaN or infinite logits; its weights may be damaged.",
        hint="Download the model again, or use another quantization.",
    )


_MEDIA, _FIRST = 1 << 30, 1 << 29
_HASH = _FIRST - 1
_BITS = 14
MOST_CELLS = (1 << _BITS) - 1
"""Maximum cells of a run."""
_KEY = 4
"""Number of ids that identify a run: 87 bits of hash and its sizes."""


@dataclass(frozen=True, slots=True)
class MediaRun:
    """Run of media ids in a list of tokens."""

    start: int
    n_cells: int
    n_positions: int

    @property
    def stop(self) -> int:
        """Index of the next token."""
        return self.start + self.n_cells


def is_media(token: int) -> bool:
    """Return whether an id represents a cell of an image or a sound."""
    return token >= _MEDIA


def media_ids(content: bytes, n_cells: int, n_positions: int) -> tuple[int, ...]:
    """Return ids for the cells of media. content: identifies the media and how they were cut.

    Raises ValueError for too many cells.
    """
    if not 1 < n_cells <= MOST_CELLS or not 0 < n_positions <= MOST_CELLS:
        raise ValueError(f"{n_cells} cells at {n_positions} positions cannot be told by ids")
    digest = hashlib.shake_128(content).digest(4 * n_cells)
    hashes = [int.from_bytes(digest[at : at + 4], "little") & _HASH for at in range(0, len(digest), 4)]
    first, rest = _MEDIA | _FIRST | hashes[0], [_MEDIA | one for one in hashes[2:]]
    return (first, _MEDIA | n_cells << _BITS | n_positions, *rest)


def key_of(ids: Sequence[int]) -> tuple[int, ...]:
    """Return the key of the run at the beginning of a list of ids."""
    return tuple(ids[:_KEY])


def media_runs(tokens: Sequence[int]) -> Iterator[MediaRun]:
    """Yield the runs of media in a list of tokens. A truncated run at the end counts as whole."""
    at, end = 0, len(tokens)
    if not end or max(tokens) < _MEDIA:
        return
    while at < end:
        if tokens[at] < _MEDIA or at + 1 >= end:
            at += 1
            continue
        sizes = tokens[at + 1]
        run = MediaRun(at, sizes >> _BITS & MOST_CELLS, sizes & MOST_CELLS)
        yield run
        at = max(run.stop, at + 1)


class Places:
    """Positions of the tokens of a sequence; with M-RoPE, media have fewer positions than cells."""

    def __init__(self, runs: Sequence[MediaRun] = ()) -> None:
        self.runs = list(runs)

    def position(self, index: int) -> int:
        """Return the position of the token at an index, which is not inside a run."""
        return index - sum(run.n_cells - run.n_positions for run in self.runs if run.stop <= index)

    def length(self, last_position: int) -> int:
        """Return the number of tokens, given the last position according to llama.cpp.

        For an M-RoPE image, that is its first position.
        """
        skipped = sum(run.n_cells - run.n_positions for run in self.runs)
        return max(last_position + 1 + skipped, self.runs[-1].stop) if self.runs else last_position + 1

    def is_inside(self, index: int) -> bool:
        """Return whether an index is inside a run, where nothing can be cut."""
        return any(run.start < index < run.stop for run in self.runs)

    def up_to(self, length: int) -> Places:
        """Return the places of the first `length` tokens."""
        return Places([run for run in self.runs if run.stop <= length])


_MARK_LENGTH = 4
_MARK = 1 << 31
"""Bit that neither tokens nor ids of media use."""


FileVersion = tuple[int, ...]
"""Inode, size and modification time, which identify a version of a file."""


@dataclass(frozen=True, slots=True, order=True)
class ActiveAdapter:
    """Adapter with its scale."""

    digest: str
    """Digest of the file's content."""
    scale: float
    path: str = field(compare=False)
    """Path of the GGUF file."""
    version: FileVersion = field(compare=False)
    """Version of the file when it was hashed."""


AdapterSet = tuple[ActiveAdapter, ...]
"""Adapters in a fixed order, without duplicates; empty for the plain model."""


def adapter_set(adapters: Iterable[ActiveAdapter]) -> AdapterSet:
    """Return the set of adapters: scales of equal adapters are added, adapters with scale 0 are left out.

    Raises NotAnAdapter if a sum is not a valid scale.
    """
    by_digest: dict[str, ActiveAdapter] = {}
    for adapter in adapters:
        same = by_digest.get(adapter.digest)
        by_digest[adapter.digest] = replace(adapter, scale=adapter.scale + same.scale) if same else adapter
    return tuple(sorted(adapter for adapter in by_digest.values() if checked_scale(adapter.scale)))


def mark_of(adapters: AdapterSet) -> tuple[int, ...]:
    """Return numbers to prepend to tokens computed with a set of adapters; () without adapters.

    The numbers, 124 bits of a hash, are not tokens: lists with different marks have no common prefix.
    """
    if not adapters:
        return ()
    key = repr([(adapter.digest, adapter.scale) for adapter in adapters]).encode()
    digest = hashlib.blake2b(key, digest_size=4 * _MARK_LENGTH).digest()
    return tuple(int.from_bytes(digest[at : at + 4], "little") | _MARK for at in range(0, len(digest), 4))
