"""What a backend is: its protocol, logits, media and adapters. Scheduling and sampling are above it."""

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
    """The batch found no free cells; nothing was computed and the cache is as before."""


class EncodingStopped(Exception):
    """The embeddings of an image or a sound are not wanted any more."""


class Interrupted(Exception):
    """The call has been ended early: its last micro-batch is lost, what came before it is valid."""

    def __init__(self, n_kept: tuple[int | None, ...]) -> None:
        """n_kept: tokens of each part that are in the cache now; None where the whole sequence is lost."""
        super().__init__()
        self.n_kept = n_kept


@dataclass(frozen=True, slots=True)
class BatchPart:
    """A run of tokens of one sequence inside a batch.

    The first token takes position `start`, which is the sequence's present length. Logits are wanted for
    the last `n_logits` tokens: 0 for a chunk inside a prompt, 1 to sample, k + 1 to verify k drafts.
    """

    seq: int
    start: int
    tokens: Seq[int]
    n_logits: int
    n_candidates: int = 0
    """How many of the highest logits of each row matter: the others may be -inf. 0: all matter."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend can do. To ask for more is an error, and never ignored."""

    mixes: bool
    """One batch may hold parts of several sequences."""
    cuts: bool = True
    """Sequences can be cut and copied at any token; else whole ones are copied, and rewound."""
    shifts: bool = False
    """A part can be taken out of the middle of a sequence, which is approximate."""
    saves: bool = False
    """The state of a sequence can be saved and restored."""
    recomputes: bool = False
    """A rollback computes again what stays of the call."""


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

        bos: put the beginning-of-sequence token in front, if the model wants one and the text has none.
        special: read control tokens written in the text as such.
        """

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """Return the bytes of a token, perhaps part of a character; control tokens only with `special`."""

    def control_texts(self) -> Iterable[str]:
        """Return the texts that are tokens only where `tokenize` is asked for control tokens."""

    def is_end(self, token: int) -> bool:
        """Say whether this token ends a generation."""

    def infill(self) -> tuple[int, int, int] | None:
        """Return the tokens before a prefix, before a suffix, and before what belongs between them.

        None for a model that was not trained to fill in.
        """

    def misfit(self, other: Self) -> str:
        """Return why a draft cannot come in tokens of another vocabulary, as what is wrong with it; or ''."""


class TokenDrawing(Protocol):
    """Sampling on the GPU, which computes the next token while the engine handles the last one."""

    def next_token(self, part: BatchPart, sampling: Sampling, number: float) -> int:
        """Compute a run of one sequence and return the token that comes after it.

        It is what `Sampler.choose` takes, without penalties; number: from 0 to 1, what the draw falls upon.
        Raises CacheFull, or DecodeFailed.
        """


class Interruption(Protocol):
    """Ending a call early, so that prompts can be read in large batches without keeping others waiting."""

    def interrupt(self) -> None:
        """End the running call of `decode_interruptibly`, or the next ones; from any thread."""

    def clear_interrupt(self) -> None:
        """Let calls run to their end again. Look for the reason of the interrupt after this, not before."""

    def decode_interruptibly(self, parts: Seq[BatchPart]) -> Logits:
        """Compute a batch; see `Backend.decode`. Raises Interrupted, too."""


@dataclass(frozen=True, slots=True, eq=False)
class Media:
    """An image or a sound, or a part of one, as a projector has cut it."""

    ids: tuple[int, ...]
    """What stands for it among tokens, one for each cell; see media.py."""
    whole: bool
    """Whether all of it must be in one call, since its cells see each other."""
    piece: object
    """The backend's own."""


class MediaEncoder(Protocol):
    """What shows images to a model, or plays sounds to it."""

    sees: bool
    hears: bool
    sample_rate: int
    """Of the sounds that it takes, in a second."""

    def cut(self, contents: Pixels | Samples, digest: str) -> list[tuple[int, ...] | Media]:
        """Return what stands for an image or a sound in a prompt: tokens of text around it, and its media.

        digest: identifies it. Any thread. Raises BadRequest for what the model cannot take.
        """

    def encode(self, media: Media, *, between: Callable[[], bool]) -> Embeddings:
        """Return the embeddings of media [n_cells, n_embd]; in a thread of its own, one at a time.

        between: called every 0.05 seconds or so; meanwhile the backend may decode. False ends the encoding
        with EncodingStopped. Raises DecodeFailed.
        """

    def decode(self, seq: int, start: int, media: Media, embeddings: Embeddings) -> None:
        """Compute the cells of media at the end of a sequence, which has `start` tokens.

        Raises CacheFull or DecodeFailed; the sequence then ends there, or is empty.
        """

    def release(self, media: Media) -> None:
        """Free what `encode` needs of it. Any thread."""


class Adapters(Protocol):
    """LoRA adapters of a model, loaded when they are first used."""

    def resolve(self, wanted: Seq[AdapterUse]) -> AdapterSet:
        """Return what a request is computed with, all of which fits the model. Any thread.

        Raises NotAnAdapter, ModelFileError or DiskError.
        """

    def use(self, adapters: AdapterSet) -> None:
        """Compute the calls that follow with these. Raises DecodeFailed; they are then without adapters."""


class DraftHead(Protocol):
    """Layers that draft from the hidden states that a model's calls leave: its own (MTP), or EAGLE-3's."""

    kind: Literal["mtp", "eagle3"]
    longest: int
    """Tokens of a draft."""

    def can_draft(self, seq: int, length: int) -> bool:
        """Say whether it knows all `length` tokens that have been computed of a sequence."""

    def begin(self, tokens: Seq[tuple[int, int]]) -> Logits:
        """Return logits [n, n_vocab] of what may follow the next token of each sequence.

        tokens: sequences and the tokens that their next call will begin with; they have room for one call
        together. The rows are valid until the next call. Raises CacheFull or DecodeFailed.
        """

    def extend(self, tokens: Seq[tuple[int, int]]) -> Logits:
        """Return the logits after another token of each draft, for some of the sequences of the last call."""


class Backend(Protocol):
    """A loaded model with its KV cache. Used by one thread; closed by its creator."""

    capabilities: Capabilities
    drawing: TokenDrawing | None
    """None: the engine chooses tokens, from logits."""
    interruption: Interruption | None
    """None: calls cannot be ended early."""
    media_encoder: MediaEncoder | None
    """None: the model neither sees nor hears."""
    adapters: Adapters | None
    """None: it takes no LoRA adapters."""
    no_vision: str
    """Why its projector is not loaded; '' if it is, or if there is none."""
    head: DraftHead | None
    """None: no layers of the model itself draft."""
    no_head: str
    """Why they do not although the plan has them; '' if they do, or if there are none."""
    vocabulary: Vocabulary
    context: int
    """Cells of the cache, shared by all sequences."""
    n_seq_max: int
    n_batch: int
    """Tokens that one call of `decode` may hold."""
    n_outputs_max: int
    """Rows of logits that one call may ask for."""
    checkpoint_bytes: int
    """Bytes of memory that all checkpoints may take; 0: none are taken, or needed."""
    rolls_back: int
    """Tokens at the end of what one call has computed that can be taken back; see `rollback`."""
    rolls_back_alone: bool
    """Only where the call has computed nothing of other sequences."""
    chat_template: str | None
    architecture: str
    n_params: int
    train_context: int
    buffers: tuple[Buffer, ...]
    """What it has allocated, if it can tell and the plan predicted it."""
    touched_bytes: int
    """Bytes of its buffers that loading has filled, without mapped files; 0 if it cannot tell."""
    state_format: str
    """What a saved state depends on beside the model's file: cache type, build and the like."""

    def decode(self, parts: Seq[BatchPart]) -> Logits:
        """Compute a batch; return one row of logits for each wanted token, in the order of the parts.

        The rows are valid until the next call. Raises CacheFull, or DecodeFailed.
        """

    def truncate(self, seq: int, length: int) -> bool:
        """Cut a sequence down to `length` tokens.

        False means that the result would be wrong (facts of the architecture, not of the call); the
        sequence is then unchanged. Length 0 always works.
        """

    def rollback(self, seq: int, count: int) -> bool:
        """Take back the last `count` tokens of a sequence, fewer than the last call of `decode` gave it.

        Once after a call, and up to `rolls_back` tokens, on every architecture that says so. False means that
        the result would be wrong; the sequence is then unchanged.
        """

    def checkpoint(self, seq: int) -> Checkpoint:
        """Return what `rewind` needs to come back to where a sequence is now. Raises MemoryError."""

    def rewind(self, seq: int, checkpoint: Checkpoint) -> bool:
        """Cut a sequence that begins with the tokens of the checkpoint down to these.

        The checkpoint may be of another sequence. False, and the sequence is empty, where the result would
        be wrong or cells are short.
        """

    def save_checkpoint(self, checkpoint: Checkpoint) -> npt.NDArray[np.uint8]:
        """Return a checkpoint's state as bytes, which `rewind` takes in its place. Raises MemoryError."""

    def can_copy(self, source: int, length: int) -> bool:
        """Say whether the first `length` tokens of a sequence can be copied with a correct result."""

    def copy(self, source: int, target: int, length: int) -> bool:
        """Let `target`, which is empty, hold the first `length` tokens of `source` too, in the same cells.

        Only after `can_copy` has returned True. False, and `target` stays empty, where its windows find no
        cells of their own.
        """

    def shift(self, seq: int, start: int, stop: int) -> bool:
        """Take the tokens from `start` to `stop` out of a sequence and move the rest down.

        The result is approximate: the rest was computed with what has gone. False if it cannot be done;
        the sequence is then unchanged. ValueError unless 0 < start < stop < length.
        """

    def save(self, seq: int) -> npt.NDArray[np.uint8]:
        """Return the state of a sequence, to be restored by a backend of the same model and format.

        Raises MemoryError where a copy of it would take more than half of the memory that is free.
        """

    def restore(self, seq: int, state: npt.NDArray[np.uint8], tokens: Seq[int]) -> bool:
        """Fill an empty sequence with a saved state of these tokens; False, and it stays empty, where not.

        The state must come from `save`: llama.cpp checks little of it.
        """

    def close(self) -> None:
        """Free the cache, then the model."""


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """What cutting cannot bring back of a sequence: its windows and recurrent states at one length.

    Keys and values of layers with full attention are not part of it: they stay in the cache.
    """

    length: int
    """Tokens of the sequence when it was taken."""
    n_bytes: int
    state: object
    """The backend's own, or what its `save_checkpoint` made of that."""


Logits = npt.NDArray[np.float32]
Embeddings = npt.NDArray[np.float32]
Ids = npt.NDArray[np.intp]
Probabilities = npt.NDArray[np.float64]
Distribution = tuple[Ids, Probabilities]
"""The ids that may come next and their probabilities, which add up to 1."""


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
"""Cells that one run may have."""
_KEY = 4
"""Ids by which a run is recognized: 87 bits of hash and its sizes."""


@dataclass(frozen=True, slots=True)
class MediaRun:
    """A run of media ids in a list of tokens."""

    start: int
    n_cells: int
    n_positions: int

    @property
    def stop(self) -> int:
        """Where the next token is."""
        return self.start + self.n_cells


def is_media(token: int) -> bool:
    """Say whether an id stands for a cell of an image or a sound."""
    return token >= _MEDIA


def media_ids(content: bytes, n_cells: int, n_positions: int) -> tuple[int, ...]:
    """Return the ids of the cells of media. content: what identifies them, and how they were cut.

    Raises ValueError for more cells than ids can tell.
    """
    if not 1 < n_cells <= MOST_CELLS or not 0 < n_positions <= MOST_CELLS:
        raise ValueError(f"{n_cells} cells at {n_positions} positions cannot be told by ids")
    digest = hashlib.shake_128(content).digest(4 * n_cells)
    hashes = [int.from_bytes(digest[at : at + 4], "little") & _HASH for at in range(0, len(digest), 4)]
    first, rest = _MEDIA | _FIRST | hashes[0], [_MEDIA | one for one in hashes[2:]]
    return (first, _MEDIA | n_cells << _BITS | n_positions, *rest)


def key_of(ids: Sequence[int]) -> tuple[int, ...]:
    """Return what identifies a run, given its ids or more than those."""
    return tuple(ids[:_KEY])


def media_runs(tokens: Sequence[int]) -> Iterator[MediaRun]:
    """Yield the runs of media in a list of tokens. A run that is cut off at the end counts as whole."""
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
    """Where the tokens of a sequence are: positions, which with M-RoPE are fewer than cells."""

    def __init__(self, runs: Sequence[MediaRun] = ()) -> None:
        self.runs = list(runs)

    def position(self, index: int) -> int:
        """Return the position of the token at an index, which is not inside of a run."""
        return index - sum(run.n_cells - run.n_positions for run in self.runs if run.stop <= index)

    def length(self, last_position: int) -> int:
        """Return how many tokens there are, given the last position that llama.cpp tells.

        That of an M-RoPE image is where it begins.
        """
        skipped = sum(run.n_cells - run.n_positions for run in self.runs)
        return max(last_position + 1 + skipped, self.runs[-1].stop) if self.runs else last_position + 1

    def is_inside(self, index: int) -> bool:
        """Say whether an index is inside of a run, where nothing can be cut."""
        return any(run.start < index < run.stop for run in self.runs)

    def up_to(self, length: int) -> Places:
        """Return the places of the first `length` tokens."""
        return Places([run for run in self.runs if run.stop <= length])


_MARK_LENGTH = 4
_MARK = 1 << 31
"""A bit that neither tokens nor the ids of media have."""


FileVersion = tuple[int, ...]
"""What changes when a file is replaced."""


@dataclass(frozen=True, slots=True, order=True)
class ActiveAdapter:
    """An adapter with the scale that it is applied with."""

    digest: str
    """Of its file's content."""
    scale: float
    path: str = field(compare=False)
    """Of the GGUF file."""
    version: FileVersion = field(compare=False)
    """Of the file when it was hashed."""


AdapterSet = tuple[ActiveAdapter, ...]
"""In a fixed order, none twice; empty: the model as it is."""


def adapter_set(adapters: Iterable[ActiveAdapter]) -> AdapterSet:
    """Return the set of some adapters: scales of the same one add up, and those with scale 0 are left out.

    Raises NotAnAdapter where a sum is no valid scale.
    """
    by_digest: dict[str, ActiveAdapter] = {}
    for adapter in adapters:
        same = by_digest.get(adapter.digest)
        by_digest[adapter.digest] = replace(adapter, scale=adapter.scale + same.scale) if same else adapter
    return tuple(sorted(adapter for adapter in by_digest.values() if checked_scale(adapter.scale)))


def mark_of(adapters: AdapterSet) -> tuple[int, ...]:
    """Return numbers that no token has, to be put before tokens that were computed with a set; none for none.

    124 bits of a hash: lists of tokens that begin with different marks have no common prefix.
    """
    if not adapters:
        return ()
    key = repr([(adapter.digest, adapter.scale) for adapter in adapters]).encode()
    digest = hashlib.blake2b(key, digest_size=4 * _MARK_LENGTH).digest()
    return tuple(int.from_bytes(digest[at : at + 4], "little") | _MARK for at in range(0, len(digest), 4))
