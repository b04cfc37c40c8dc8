"""llama.cpp backend for text and embeddings, with LoRA adapters.

On some architectures, llama.cpp's cache operations return True even though the result is wrong. For example,
if a sequence is cut back to a point before its attention window, the model continues without the keys that
were dropped. So `truncate` makes its own check (see `_can_cut`) and returns False if the result would be
wrong.
"""

# ruff: noqa: D102  (base.py documents the methods of its protocols)

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import psutil

from edgechat.base.errors import BackendMissing, DecodeFailed, LoadFailed, NotAnAdapter
from edgechat.base.text import mebibytes, one_line
from edgechat.engine.backends.base import (
    ActiveAdapter,
    Adapters,
    AdapterSet,
    BatchPart,
    CacheFull,
    Capabilities,
    Checkpoint,
    DraftHead,
    FileVersion,
    Interrupted,
    Interruption,
    Logits,
    Media,
    MediaEncoder,
    Places,
    TokenDrawing,
    Vocabulary,
    adapter_set,
    media_runs,
)
from edgechat.engine.backends.llama_cpp_head import LlamaCppHead, open_head
from edgechat.models.adapters.peft import open_adapter
from edgechat.models.adapters.reading import CONFIG, WEIGHTS, checked_scale
from edgechat.models.formats.gguf import read_model
from edgechat.models.formats.header import ModelHeader
from edgechat.native import breakdown, logs
from edgechat.native.handles import Aborted, AdapterPointer, Context, Model, build
from edgechat.native.params import AdapterUse, Buffer, counted_once, is_mapped, with_head
from edgechat.native.vocabulary import NativeVocabulary
from edgechat.planner.plan import LoadPlan


class LlamaCppModel:
    """A loaded model and its context."""

    def __init__(
        self, plan: LoadPlan, on_progress: Callable[[float], None] | None, *, must_decode: bool
    ) -> None:
        """Load the plan's model. must_decode: raise LoadFailed if it is an encoder, which cannot chat."""
        logs.install()
        with ExitStack() as stack:
            self._model = Model(Path(plan.model_path), plan, on_progress=on_progress)
            stack.callback(self._model.close)
            if must_decode and not self._model.can_decode:
                raise LoadFailed(
                    f"{plan.model_name} is an embedding model (an encoder) and cannot chat.",
                    hint="Choose a chat model; `edgechat run guide` always works.",
                )
            self._context = Context(self._model, plan)
            stack.callback(self._context.close)
            self._close = stack.pop_all().close
        self.n_seq_max = plan.n_seq_max
        self.architecture = self._model.architecture
        self.n_params = self._model.n_params
        self.train_context = self._model.train_context
        self.buffers: tuple[Buffer, ...] = ()
        self.touched_bytes = 0
        # If the plan has buffers, the planner has read them from this library's map in another process, so
        # reading the map here is safe.
        if plan.buffers and breakdown.has_map():
            allocated = breakdown.from_map(self._model, self._context).buffers
            self.buffers = counted_once(allocated, sum(buffer.weights for buffer in plan.buffers))
            # Compute buffers are not written to until the first batches; mapped weights are pages of the
            # file.
            own = (one.cache + (0 if is_mapped(one) else one.weights) for one in allocated if one.is_host)
            self.touched_bytes = sum(own)

    def close(self) -> None:
        """Free the context, then the model."""
        self._close()


class LlamaCppBackend(LlamaCppModel):
    """A GGUF model that generates text."""

    def __init__(self, plan: LoadPlan, on_progress: Callable[[float], None] | None = None) -> None:
        super().__init__(plan, on_progress, must_decode=True)
        self.vocabulary: Vocabulary = NativeVocabulary(self._model, plan.end_tokens)
        self.context = self._context.n_ctx
        self.chat_template = self._model.chat_template
        self._window = self._model.window
        # With several micro-batches per batch, llama.cpp silently loses keys within the window (seen with two
        # sequences).
        self.n_batch = min(plan.n_batch, plan.n_ubatch) if self._window else plan.n_batch
        self._recurrent = self._model.has_recurrent_state
        self.n_outputs_max = plan.n_outputs_max or self.n_batch
        self.rolls_back = self._context.n_snapshots if self._recurrent else self.n_batch
        # Sequences whose recurrent state was rolled back. llama.cpp only applies the rollback in its next
        # call with the sequence: a copy made before that would get the old state, or abort.
        self._rolled_back: set[int] = set()
        # The sequence that the last call computed alone, and the number of tokens it computed. In calls with
        # several sequences, llama.cpp moves states without the snapshots taken in the same call.
        self._alone = (-1, 0)
        self.rolls_back_alone = self._recurrent
        # For sequences with images whose cells share positions (M-RoPE).
        self._places: dict[int, Places] = {}
        cuts = not (self._recurrent or self._window)
        shifts = cuts and self._context.can_shift
        self.checkpoint_bytes = 0 if cuts else plan.checkpoint_bytes
        self.drawing: TokenDrawing | None = None
        # Accelerators cannot be interrupted, and an aborted call would leave a recurrent state half updated.
        self.interruption: Interruption | None = None if self._recurrent or plan.devices else self
        self.capabilities = Capabilities(mixes=True, cuts=cuts, shifts=shifts, saves=True)
        self.state_format = f"llama.cpp {build()} {plan.cache_type} {plan.attention}"
        self.adapters: Adapters | None = LlamaCppAdapters(self._model, self._context, plan.model_path)
        self.media_encoder: MediaEncoder | None = None
        self.no_vision = ""
        self._head: LlamaCppHead | None = None
        self.no_head = ""
        try:
            self._load_extras(plan)
        except BaseException:
            self.close()
            raise
        self.head: DraftHead | None = self._head

    def _load_extras(self, plan: LoadPlan) -> None:
        """Load the plan's projector and draft head. The model also works without them."""
        try:
            self.media_encoder = self._load_projector(plan)
        except (BackendMissing, LoadFailed) as error:
            self.no_vision = error.message
        try:
            self._head = self._load_head(plan)
        except LoadFailed as error:
            self.no_head = error.message

    def _load_head(self, plan: LoadPlan) -> LlamaCppHead | None:
        opened = open_head(plan, self._model, self._context)
        if opened is None:
            return None
        context, close = opened
        self._close_first(close)
        if self.buffers and plan.mtp:
            allocated = breakdown.from_map(self._model, context).buffers
            more = tuple(buffer for buffer in allocated if buffer.cache or buffer.compute)
            self.buffers = with_head(self.buffers, more)
            self.touched_bytes += sum(buffer.cache for buffer in more if buffer.is_host)
        self.state_format += f" {plan.draft.model_name} {plan.draft.file_bytes}" if plan.draft else " mtp"
        return LlamaCppHead(context)

    def _close_first(self, close: Callable[[], None]) -> None:
        """Arrange for `close` to run before anything opened so far is closed."""
        close_rest = self._close

        def close_all() -> None:
            close()
            close_rest()

        self._close = close_all

    def _load_projector(self, plan: LoadPlan) -> MediaEncoder | None:
        """Load the projector for images and audio, if the plan has one on this machine."""
        if plan.projector is None or not plan.projector.path:
            return None
        from edgechat.engine.backends.llama_cpp_media import LlamaCppMedia

        encoder = LlamaCppMedia(plan, self, self._model, self._context)
        self._close_first(encoder.close)
        if self.touched_bytes and not plan.projector.device:
            self.touched_bytes += plan.projector.weights_bytes
        self.state_format += f" {Path(plan.projector.path).name} {Path(plan.projector.path).stat().st_size}"
        return encoder

    def decode(self, parts: Sequence[BatchPart]) -> Logits:
        return self._decode(parts)

    def _decode(self, parts: Sequence[BatchPart], *, abortable: bool = False) -> Logits:
        runs = [
            (part.seq, self.position_of(part.seq, part.start), part.tokens, part.n_logits) for part in parts
        ]
        wanted = [part.n_candidates for part in parts if part.n_logits]
        n_candidates = max(wanted) if all(wanted) and wanted else 0
        rows = self._context.decode(runs, n_candidates=n_candidates, abortable=abortable)
        if rows is None:
            raise CacheFull
        if self._head is not None:
            self._head.computed(parts)
        self._rolled_back.difference_update(part.seq for part in parts)
        self._alone = (parts[0].seq, len(parts[0].tokens)) if len(parts) == 1 else (-1, 0)
        return rows

    def decode_interruptibly(self, parts: Sequence[BatchPart]) -> Logits:
        try:
            return self._decode(parts, abortable=True)
        except Aborted:
            raise Interrupted(tuple(self._kept(part) for part in parts)) from None

    def _kept(self, part: BatchPart) -> int | None:
        """Return how many of a part's tokens an aborted call cached, or None if the sequence is lost."""
        length = self._length(part.seq)
        if length < part.start or (length and not self._can_cut(part.seq, length)):
            self.truncate(part.seq, 0)
            return None
        if self._head is not None:
            self._head.missed(part.seq, part.start, part.tokens[: length - part.start])
        return length - part.start

    def interrupt(self) -> None:
        self._context.abort()

    def clear_interrupt(self) -> None:
        self._context.clear_abort()

    def truncate(self, seq: int, length: int) -> bool:
        if length > 0 and not self._can_cut(seq, length):
            return False
        if not length:
            self._forget_calls(seq)
        return self._remove(seq, length)

    def position_of(self, seq: int, index: int) -> int:
        """Return the position of the token at `index` in a sequence."""
        return self._places[seq].position(index) if seq in self._places else index

    def _length(self, seq: int) -> int:
        last = self._context.last_position(seq)
        return self._places[seq].length(last) if seq in self._places else last + 1

    def _remove(self, seq: int, length: int) -> bool:
        """Cut a sequence; return False if llama.cpp refuses."""
        if not self._context.remove(seq, self.position_of(seq, length)):
            return False
        if self._head is not None:
            self._head.truncate(seq, length)
        self._keep_places(seq, self._places.get(seq, Places()).up_to(length))
        return True

    def _keep_places(self, seq: int, places: Places) -> None:
        """Record where a sequence's media are, if they affect positions."""
        if any(run.n_positions != run.n_cells for run in places.runs):
            self._places[seq] = places
        else:
            self._places.pop(seq, None)

    def note_media(self, seq: int, start: int, media: Media) -> None:
        """Record that media cells were appended to a sequence of `start` tokens."""
        run = next(media_runs(media.ids))
        places = self._places.get(seq, Places())
        self._keep_places(seq, Places([*places.runs, replace(run, start=start)]))
        if self._head is not None:
            self._head.stop(seq)
        self._forget_calls(seq)

    def _forget_calls(self, seq: int) -> None:
        """Record that the recurrent state of a sequence was replaced."""
        self._rolled_back.discard(seq)
        self._alone = (-1, 0)

    def rollback(self, seq: int, count: int) -> bool:
        length = self._length(seq) - count
        if not self._recurrent:
            return self.truncate(seq, length)
        (alone, computed), self._alone = self._alone, (-1, 0)
        # llama.cpp would accept more, then continue from a stale state.
        if seq != alone or not 0 < count <= min(self.rolls_back, computed - 1):
            return False
        if not self._remove(seq, length):
            return False
        self._rolled_back.add(seq)
        return True

    def checkpoint(self, seq: int) -> Checkpoint:
        state = self._context.partial_state(seq)
        return Checkpoint(self._length(seq), state.nbytes, state)

    def rewind(self, seq: int, checkpoint: Checkpoint) -> bool:
        length, state = checkpoint.length, checkpoint.state
        assert isinstance(state, np.ndarray)
        self._forget_calls(seq)
        rewound = (
            self._context.set_partial_state(seq, state)
            and self._remove(seq, length)
            and self._length(seq) == length
            and (self._recurrent or self._can_cut(seq, length))
        )
        if not rewound:
            self._remove(seq, 0)
        return rewound

    def save_checkpoint(self, checkpoint: Checkpoint) -> npt.NDArray[np.uint8]:
        assert isinstance(checkpoint.state, np.ndarray)
        return checkpoint.state

    def can_copy(self, source: int, length: int) -> bool:
        if source in self._rolled_back:
            return False
        return length == self._length(source) or self._can_cut(source, length)

    def copy(self, source: int, target: int, length: int) -> bool:
        whole = length == self._length(source)
        # For recurrent states, llama.cpp only accepts -1, not even the length of the whole sequence.
        self._context.copy(source, target, -1 if whole else self.position_of(source, length))
        self._keep_places(target, self._places.get(source, Places()).up_to(length))
        if self._head is not None:
            self._head.copy(source, target, length)
        # llama.cpp reuses cells outside the window only if a single sequence holds them, so they are not
        # shared.
        try:
            return not self._window or self.rewind(target, self.checkpoint(target))
        except MemoryError:
            return not self._remove(target, 0)

    def shift(self, seq: int, start: int, stop: int) -> bool:
        length = self._length(seq)
        if not 0 < start < stop < length:
            raise ValueError(f"tokens {start} to {stop} are not in the middle of {length}")
        # llama.cpp's own shift always succeeds, but gives wrong logits on models with a window.
        if not self.capabilities.shifts:
            return False
        shifted = self._context.shift(seq, start, stop)
        if shifted and self._head is not None:
            self._head.shift(seq, start, stop)
        return shifted

    def save(self, seq: int) -> npt.NDArray[np.uint8]:
        state = self._context.state(seq)
        if self._head is None:
            return state
        size = np.array([len(state)], np.uint64).view(np.uint8)
        return np.concatenate((size, state, self._head.save(seq)))

    def restore(self, seq: int, state: npt.NDArray[np.uint8], tokens: Sequence[int]) -> bool:
        of_head = np.empty(0, np.uint8)
        if self._head is not None:
            size = int(state[:8].view(np.uint64)[0])
            state, of_head = state[8 : 8 + size], state[8 + size :]
        self._keep_places(seq, Places(list(media_runs(tokens))))
        restored = self._context.set_state(seq, state) and self._length(seq) == len(tokens)
        if not restored:
            self._remove(seq, 0)
        elif self._head is not None:
            self._head.restore(seq, of_head, len(tokens))
        return restored

    def _can_cut(self, seq: int, length: int) -> bool:
        if self._recurrent or (seq in self._places and self._places[seq].is_inside(length)):
            return False
        # The next token attends to the whole window, so all its positions must be present.
        return not self._window or self._context.first_position(seq) <= max(0, length - self._window)


class LlamaCppEmbedder(LlamaCppModel):
    """A GGUF model for embeddings or reranking, which stores nothing between calls."""

    def __init__(self, plan: LoadPlan, on_progress: Callable[[float], None] | None = None) -> None:
        super().__init__(plan, on_progress, must_decode=False)
        self.vocabulary = NativeVocabulary(self._model)
        # An encoder has a fixed number of learned positions, and llama.cpp aborts beyond them.
        self.longest = min(self._context.n_ctx, self.train_context or self._context.n_ctx)
        """Maximum tokens per text."""
        self.n_batch = plan.n_batch
        """Maximum tokens per call, which may contain up to `n_seq_max` texts."""
        self.reranks = plan.reranks
        self.rerank_template = self._model.rerank_template if plan.reranks else None
        self.dimensions = 1 if plan.reranks else self._context.n_embd

    def embed(self, texts: Sequence[Sequence[int]]) -> Logits:
        """Return a vector of norm 1 (or 0) for each tokenized text [n, dimensions]. Raises DecodeFailed.

        For a reranking model, return a score for each pair [n, 1] instead. Several texts must fit into one
        call; a single text may be longer, and is then computed in parts.
        """
        self._context.clear()
        if len(texts) == 1:
            (text,) = texts
            for start in range(0, len(text), self.n_batch):
                vectors = self._context.embed([(0, start, text[start : start + self.n_batch])])
        else:
            vectors = self._context.embed([(seq, 0, text) for seq, text in enumerate(texts)])
        if not np.isfinite(vectors).all():
            raise DecodeFailed(
                "The model produced NaN or infinite values.",
                hint="Try another text, or another quantization.",
            )
        if self.reranks:
            return vectors[:, :1]
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        return (vectors / np.where(norms > 0, norms, 1)).astype(np.float32)


MOST_USED = 4
"""Maximum adapters per request: llama.cpp's graphs for some architectures have no room for many more."""
MOST_LOADED = 16
"""Maximum adapters in memory; the least recently used are freed."""


@dataclass(frozen=True, slots=True)
class _Checked:
    """The file or folder of an adapter that was found to fit the model."""

    source: FileVersion
    adapter: ActiveAdapter
    """The adapter with scale 1."""


class LlamaCppAdapters:
    """LoRA adapters for one model: checked when a request names them, loaded on first use, then cached."""

    def __init__(self, model: Model, context: Context, model_path: str) -> None:
        self._model, self._context = model, context
        self._model_path = model_path
        self._lock = threading.Lock()
        self._checked: dict[str, _Checked] = {}
        """Keyed by the path of the file or folder."""
        self._loaded: dict[str, AdapterPointer] = {}
        """Keyed by digest, least recently used first."""
        self._used: AdapterSet = ()

    @cached_property
    def _header(self) -> ModelHeader:
        return read_model(Path(self._model_path))

    def resolve(self, wanted: Sequence[AdapterUse]) -> AdapterSet:
        if len(wanted) > MOST_USED:
            raise NotAnAdapter(f"{len(wanted)} adapters at once are too many; the limit is {MOST_USED}.")
        with self._lock:
            return adapter_set(self._resolved(one) for one in wanted)

    def _resolved(self, wanted: AdapterUse) -> ActiveAdapter:
        scale, path = checked_scale(wanted.scale), Path(wanted.path)
        try:
            checked, source = self._checked.get(wanted.path), _source_version(path)
            if checked is None or checked.source != source or not os.path.exists(checked.adapter.path):
                file = open_adapter(path, self._header).path
                version = _version(file)
                checked = _Checked(source, ActiveAdapter(_digest(file), 1.0, str(file), version))
                self._checked[wanted.path] = checked
        except OSError as error:
            why = error.strerror or error
            raise NotAnAdapter(f"The adapter {one_line(wanted.path)} cannot be read: {why}.") from error
        return replace(checked.adapter, scale=scale)

    def use(self, adapters: AdapterSet) -> None:
        if adapters == self._used:
            return
        needed = {adapter.digest for adapter in adapters}
        missing = [adapter for adapter in adapters if adapter.digest not in self._loaded]
        if missing:
            self._make_room(needed, len(missing))
        for adapter in missing:
            self._loaded[adapter.digest] = self._load(adapter)
        for adapter in adapters:
            self._loaded[adapter.digest] = self._loaded.pop(adapter.digest)
        self._context.use_adapters([(self._loaded[one.digest], one.scale) for one in adapters])
        self._used = adapters

    def _make_room(self, needed: set[str], n_more: int) -> None:
        """Remove all adapters from the context and free the least recently used ones."""
        self._context.use_adapters([])
        self._used = ()
        for digest in [digest for digest in self._loaded if digest not in needed]:
            if len(self._loaded) + n_more <= MOST_LOADED:
                break
            self._model.free_adapter(self._loaded.pop(digest))

    def _load(self, adapter: ActiveAdapter) -> AdapterPointer:
        """Load an adapter. Raises DecodeFailed if its file has changed since it was checked."""
        path = Path(adapter.path)
        try:
            size = path.stat().st_size
            if size > psutil.virtual_memory().available // 2:
                raise DecodeFailed(
                    f"There is not enough memory for the adapter {path.name} ({mebibytes(size)})."
                )
            if _version(path) != adapter.version:
                raise DecodeFailed(f"The adapter {path.name} has changed.", hint="Send the request again.")
            return self._model.load_adapter(path)
        except (LoadFailed, OSError) as error:
            raise DecodeFailed(f"The adapter {path.name} cannot be loaded: {error}") from error


def _source_version(path: Path) -> FileVersion:
    return _version(path / CONFIG) + _version(path / WEIGHTS) if path.is_dir() else _version(path)


def _version(path: Path) -> FileVersion:
    status = os.stat(path)
    return status.st_ino, status.st_size, status.st_mtime_ns


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
