"""The backend protocol that scheduling and sampling build on, with its types, media ids and adapter sets."""

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
from edgechat.models.adapters.reading import checked_scale
from edgechat.native.params import AdapterUse, Buffer


class CacheFull(Exception):
    """The cache has no free cells for the batch; nothing was computed and the cache is unchanged."""


class EncodingStopped(Exception):
    """Encoding stopped early because the embeddings are no longer needed."""


class Interrupted(Exception):
    """The call was interrupted: its last micro-batch is lost, but earlier ones are valid."""

    def __init__(self, n_kept: tuple[int | None, ...]) -> None:
        """n_kept: number of tokens still cached for each part, or None if the whole sequence is lost."""
        super().__init__()
        self.n_kept = n_kept


@dataclass(frozen=True, slots=True)
class BatchPart:
    """A run of tokens from one sequence in a batch.

    The first token has position `start`, the current length of the sequence. Logits are computed for the last
    `n_logits` tokens: 0 for a chunk within a prompt, 1 to sample, k + 1 to verify k drafted tokens.
    """

    seq: int
    start: int
    tokens: Seq[int]
    n_logits: int
    n_candidates: int = 0
    """Number of top logits needed in each row; 0 means all. The rest may be -inf."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The features a backend supports. Using an unsupported one is an error; it is never silently ignored."""

    mixes: bool
    """Whether a batch may combine parts of several sequences."""
    cuts: bool = True
    """Whether sequences can be cut and copied at any token. If not, they are only copied whole or rewound."""
    shifts: bool = False
    """Whether a part can be removed from the middle of a sequence, with an approximate result."""
    saves: bool = False
    """Whether the state of a sequence can be saved and restored."""
    recomputes: bool = False
    """Whether a rollback recomputes the remaining tokens of the call."""


class Vocabulary(Protocol):
    """Converts text to tokens, and tokens to bytes."""

    @property
    def size(self) -> int:
        """Number of tokens, which is also the width of a row of logits."""

    @property
    def bos(self) -> str:
        """Text of the beginning-of-sequence token, or '' if there is none."""

    @property
    def eos(self) -> str:
        """Text of the end-of-sequence token, or '' if there is none."""

    def tokenize(self, text: str, *, bos: bool, special: bool) -> list[int]:
        """Return the token ids of `text`.

        bos: prepend the beginning-of-sequence token if the model expects it and `text` lacks it.
        special: parse control tokens in the text.
        """

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """Return a token's bytes, which may be only part of a character.

        special: return the text of control tokens, which otherwise have no bytes.
        """

    def control_texts(self) -> Iterable[str]:
        """Return the texts of the control tokens."""

    def is_end(self, token: int) -> bool:
        """Return whether a token ends a reply."""

    def infill(self) -> tuple[int, int, int] | None:
        """Return the fill-in-the-middle tokens that precede the prefix, the suffix and the middle.

        Returns None if the model was not trained for infilling.
        """

    def misfit(self, other: Self) -> str:
        """Return why models that use `other` cannot draft for models that use this vocabulary, or ''."""


class TokenDrawing(Protocol):
    """Samples on the GPU, which can then compute the next token while the engine handles the previous one."""

    def next_token(self, part: BatchPart, sampling: Sampling, number: float) -> int:
        """Compute a run of tokens from one sequence and return the next token.

        This is the token that `Sampler.choose` would return without penalties. number: a random number
        between 0 and 1. Raises CacheFull or DecodeFailed.
        """


class Interruption(Protocol):
    """Interrupts calls, so that prompts can be computed in large batches without delaying other requests."""

    def interrupt(self) -> None:
        """Interrupt current and later `decode_interruptibly` calls until `clear_interrupt`. Thread-safe."""

    def clear_interrupt(self) -> None:
        """Let calls run to completion again.

        Check the reason for the interrupt only after calling this, so that a new one is not missed.
        """

    def decode_interruptibly(self, parts: Seq[BatchPart]) -> Logits:
        """Compute a batch like `Backend.decode`, but raise Interrupted if interrupted."""


@dataclass(frozen=True, slots=True, eq=False)
class Media:
    """An image, a sound or a piece of either, as cut up by a projector."""

    ids: tuple[int, ...]
    """Ids that represent the media in a list of tokens, one per cell; see `media_ids`."""
    whole: bool
    """Whether it must be computed in one call because its cells attend to each other."""
    piece: object
    """Private to the backend."""


class MediaEncoder(Protocol):
    """Encodes images and audio."""

    sees: bool
    hears: bool
    sample_rate: int
    """Sample rate of input audio, in Hz."""

    def cut(self, contents: Pixels | Samples, digest: str) -> list[tuple[int, ...] | Media]:
        """Return what to insert into a prompt for an image or a sound: media and the tokens around them.

        digest: identifies the content. Thread-safe. Raises BadRequest for unsupported contents.
        """

    def encode(self, media: Media, *, between: Callable[[], bool]) -> Embeddings:
        """Return the embeddings of media [n_cells, n_embd]. Runs in a separate thread, one call at a time.

        between: callback, called about every 0.05 seconds, during which the backend may decode. If it returns
        False, EncodingStopped is raised. Raises DecodeFailed if encoding fails.
        """

    def decode(self, seq: int, start: int, media: Media, embeddings: Embeddings) -> None:
        """Compute the cells for media and append them to a sequence of `start` tokens.

        Raises CacheFull or DecodeFailed, leaving the sequence either unchanged or empty.
        """

    def release(self, media: Media) -> None:
        """Free the data that `encode` needs. Thread-safe."""


class Adapters(Protocol):
    """LoRA adapters for a model, loaded on first use."""

    def resolve(self, wanted: Seq[AdapterUse]) -> AdapterSet:
        """Check the adapters in a request and return them as a set. Thread-safe.

        Raises NotAnAdapter, ModelFileError or DiskError.
        """

    def use(self, adapters: AdapterSet) -> None:
        """Use these adapters in all later calls. After DecodeFailed, no adapters are in use."""


class DraftHead(Protocol):
    """Layers that draft from the model's hidden states (MTP or EAGLE-3)."""

    kind: Literal["mtp", "eagle3"]
    longest: int
    """Maximum tokens per draft."""

    def can_draft(self, seq: int, length: int) -> bool:
        """Return whether the head has received all `length` computed tokens of a sequence."""

    def begin(self, tokens: Seq[tuple[int, int]]) -> Logits:
        """Start drafts and return the logits [n, n_vocab] that follow each sequence's next token.

        tokens: (sequence, next token) pairs, which must all fit into one call. The rows are valid until the
        next call. Raises CacheFull or DecodeFailed.
        """

    def extend(self, tokens: Seq[tuple[int, int]]) -> Logits:
        """Append a token to each draft from the last call and return the logits that follow it."""


class Backend(Protocol):
    """A loaded model and its KV cache. Used by one thread and closed by its creator."""

    capabilities: Capabilities
    drawing: TokenDrawing | None
    """None if the engine samples from logits instead."""
    interruption: Interruption | None
    """None if calls cannot be interrupted."""
    media_encoder: MediaEncoder | None
    """None if the model supports neither vision nor audio."""
    adapters: Adapters | None
    """None if LoRA adapters are not supported."""
    no_vision: str
    """Why the projector was not loaded, or '' if it was loaded or there is none."""
    head: DraftHead | None
    """None if there is no draft head."""
    no_head: str
    """Why the plan's draft head is not used, or '' if it is used or the plan has none."""
    vocabulary: Vocabulary
    context: int
    """Number of cells in the cache, shared by all sequences."""
    n_seq_max: int
    n_batch: int
    """Maximum tokens per call to `decode`."""
    n_outputs_max: int
    """Maximum rows of logits per call."""
    checkpoint_bytes: int
    """Memory limit for all checkpoints, in bytes; 0 if checkpoints are not taken or not needed."""
    rolls_back: int
    """Maximum number of tokens that can be rolled back after a call; see `rollback`."""
    rolls_back_alone: bool
    """Whether only calls with a single sequence can be rolled back."""
    chat_template: str | None
    architecture: str
    n_params: int
    train_context: int
    buffers: tuple[Buffer, ...]
    """Allocated buffers; empty if they are unknown or the plan does not predict them."""
    touched_bytes: int
    """Number of buffer bytes written to during loading, excluding mapped files; 0 if unknown."""
    state_format: str
    """What a saved state depends on besides the model file: the cache type, the build and so on."""

    def decode(self, parts: Seq[BatchPart]) -> Logits:
        """Compute a batch and return a row of logits for each requested token, in the order of the parts.

        The rows are valid until the next call. Raises CacheFull or DecodeFailed.
        """

    def truncate(self, seq: int, length: int) -> bool:
        """Cut a sequence to `length` tokens.

        Returns False, leaving the sequence unchanged, if the result would be wrong on this architecture. A
        length of 0 always works.
        """

    def rollback(self, seq: int, count: int) -> bool:
        """Roll back the last `count` tokens of a sequence.

        The last `decode` call must have computed more tokens than that. Possible once after each call, for
        up to `rolls_back` tokens. Returns False, leaving the sequence unchanged, if the result would be
        wrong.
        """

    def checkpoint(self, seq: int) -> Checkpoint:
        """Return a checkpoint from which `rewind` can restore the current length. Raises MemoryError."""

    def rewind(self, seq: int, checkpoint: Checkpoint) -> bool:
        """Cut a sequence back to a checkpoint. The sequence must begin with the checkpoint's tokens.

        The checkpoint may come from another sequence. Returns False, leaving the sequence empty, if the
        result would be wrong or there are too few free cells.
        """

    def save_checkpoint(self, checkpoint: Checkpoint) -> npt.NDArray[np.uint8]:
        """Return a checkpoint's state as bytes, which `rewind` also accepts. Raises MemoryError."""

    def can_copy(self, source: int, length: int) -> bool:
        """Return whether copying the first `length` tokens of a sequence gives a correct result."""

    def copy(self, source: int, target: int, length: int) -> bool:
        """Make the empty sequence `target` share the cells of the first `length` tokens of `source`.

        Call this only if `can_copy` returned True. Returns False, leaving `target` empty, if there are not
        enough free cells for its attention windows.
        """

    def shift(self, seq: int, start: int, stop: int) -> bool:
        """Remove the tokens from `start` to `stop` from a sequence and close the gap.

        The result is approximate, since the later tokens were computed while the removed ones were present.
        Returns False, leaving the sequence unchanged, if this is impossible. Raises ValueError unless 0 <
        start < stop < length.
        """

    def save(self, seq: int) -> npt.NDArray[np.uint8]:
        """Return a sequence's state, which any backend with the same model and format can restore.

        Raises MemoryError if a copy would take more than half of the free memory.
        """

    def restore(self, seq: int, state: npt.NDArray[np.uint8], tokens: Seq[int]) -> bool:
        """Fill an empty sequence with the saved state of `tokens`.

        On failure, returns False and leaves the sequence empty. The state must come from `save`, since
        llama.cpp does little to validate it.
        """

    def close(self) -> None:
        """Free the cache, then the model."""


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """The part of a sequence's state that cannot be cut: windows and recurrent states at a given length.

    The keys and values of layers with full attention are not included, since they stay in the cache.
    """

    length: int
    """Length of the sequence, in tokens, when the checkpoint was taken."""
    n_bytes: int
    state: object
    """Private to the backend, or the result of its `save_checkpoint`."""


Logits = npt.NDArray[np.float32]
Embeddings = npt.NDArray[np.float32]
Ids = npt.NDArray[np.intp]
Probabilities = npt.NDArray[np.float64]
Distribution = tuple[Ids, Probabilities]
"""The ids of possible next tokens, and their probabilities, which add up to 1."""


def broken_logits() -> DecodeFailed:
    """Return the error to raise for NaN or infinite logits."""
    return DecodeFailed(
        "The model produced NaN or infinite logits; its weights may be damaged.",
        hint="Download the model again, or use another quantization.",
    )


_MEDIA, _FIRST = 1 << 30, 1 << 29
_HASH = _FIRST - 1
_BITS = 14
MOST_CELLS = (1 << _BITS) - 1
"""Maximum cells per run."""
_KEY = 4
"""Number of ids in a run's key. They hold 87 bits of a hash and the run's sizes."""


@dataclass(frozen=True, slots=True)
class MediaRun:
    """A run of media ids in a list of tokens."""

    start: int
    n_cells: int
    n_positions: int

    @property
    def stop(self) -> int:
        """Index of the first token after the run."""
        return self.start + self.n_cells


def is_media(token: int) -> bool:
    """Return whether an id represents a cell of an image or a sound."""
    return token >= _MEDIA


def media_ids(content: bytes, n_cells: int, n_positions: int) -> tuple[int, ...]:
    """Return ids that represent the cells of media.

    content: identifies the media and how they were cut up. Raises ValueError if there are too many cells.
    """
    if not 1 < n_cells <= MOST_CELLS or not 0 < n_positions <= MOST_CELLS:
        raise ValueError(f"{n_cells} cells at {n_positions} positions cannot be represented by ids")
    digest = hashlib.shake_128(content).digest(4 * n_cells)
    hashes = [int.from_bytes(digest[at : at + 4], "little") & _HASH for at in range(0, len(digest), 4)]
    first, rest = _MEDIA | _FIRST | hashes[0], [_MEDIA | one for one in hashes[2:]]
    return (first, _MEDIA | n_cells << _BITS | n_positions, *rest)


def key_of(ids: Sequence[int]) -> tuple[int, ...]:
    """Return the key of the run at the start of a list of ids."""
    return tuple(ids[:_KEY])


def media_runs(tokens: Sequence[int]) -> Iterator[MediaRun]:
    """Yield the media runs in a list of tokens. A run cut off at the list's end keeps its full length."""
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
    """The positions of a sequence's tokens; with M-RoPE, media have fewer positions than cells."""

    def __init__(self, runs: Sequence[MediaRun] = ()) -> None:
        self.runs = list(runs)

    def position(self, index: int) -> int:
        """Return the position of the token at `index`, which must not be inside a run."""
        return index - sum(run.n_cells - run.n_positions for run in self.runs if run.stop <= index)

    def length(self, last_position: int) -> int:
        """Return the number of tokens, given the last position that llama.cpp reports.

        If the last token belongs to an M-RoPE image, llama.cpp reports the image's first position.
        """
        skipped = sum(run.n_cells - run.n_positions for run in self.runs)
        return max(last_position + 1 + skipped, self.runs[-1].stop) if self.runs else last_position + 1

    def is_inside(self, index: int) -> bool:
        """Return whether an index is inside a media run, where a sequence cannot be cut."""
        return any(run.start < index < run.stop for run in self.runs)

    def up_to(self, length: int) -> Places:
        """Return the `Places` of the first `length` tokens."""
        return Places([run for run in self.runs if run.stop <= length])


_MARK_LENGTH = 4
_MARK = 1 << 31
"""A bit that neither tokens nor media ids use."""


FileVersion = tuple[int, ...]
"""Inode, size and modification time, which together identify a version of a file."""


@dataclass(frozen=True, slots=True, order=True)
class ActiveAdapter:
    """An adapter and its scale."""

    digest: str
    """Digest of the file's contents."""
    scale: float
    path: str = field(compare=False)
    """Path of the GGUF file."""
    version: FileVersion = field(compare=False)
    """Version of the file when it was hashed."""


AdapterSet = tuple[ActiveAdapter, ...]
"""Adapters in a fixed order, without duplicates; empty if the model is used without adapters."""


def adapter_set(adapters: Iterable[ActiveAdapter]) -> AdapterSet:
    """Return adapters as a set, adding up the scales of duplicates and dropping adapters whose scale is 0.

    Raises NotAnAdapter if a sum is not a valid scale.
    """
    by_digest: dict[str, ActiveAdapter] = {}
    for adapter in adapters:
        same = by_digest.get(adapter.digest)
        by_digest[adapter.digest] = replace(adapter, scale=adapter.scale + same.scale) if same else adapter
    return tuple(sorted(adapter for adapter in by_digest.values() if checked_scale(adapter.scale)))


def mark_of(adapters: AdapterSet) -> tuple[int, ...]:
    """Return the mark to prepend to tokens computed with a set of adapters, or () if the set is empty.

    Its numbers hold 124 bits of a hash and are not real tokens, so lists with different marks never have a
    common prefix.
    """
    if not adapters:
        return ()
    key = repr([(adapter.digest, adapter.scale) for adapter in adapters]).encode()
    digest = hashlib.blake2b(key, digest_size=4 * _MARK_LENGTH).digest()
    return tuple(int.from_bytes(digest[at : at + 4], "little") | _MARK for at in range(0, len(digest), 4))
