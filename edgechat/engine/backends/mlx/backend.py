"""MLX backend: safetensors models on an Apple GPU, or on any processor for tests.

Each sequence has its own caches, so a call computes a single sequence and the engine alternates between
sequences. A copy shares its arrays with the original until one of them continues. MLX evaluates lazily:
logits that are not needed are never computed, and work on a token can start before the previous one has been
read (see `next_token`).
"""

# ruff: noqa: D102  (base.py documents the methods of its protocols)

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import psutil
from mlx_lm.utils import maybe_set_recommended_wired_limit

from edgechat.base.errors import DecodeFailed, EdgechatError
from edgechat.engine.backends.base import (
    Adapters,
    BatchPart,
    CacheFull,
    Capabilities,
    Checkpoint,
    DraftHead,
    Embeddings,
    Interruption,
    Logits,
    Media,
    MediaEncoder,
    Places,
    TokenDrawing,
    Vocabulary,
    broken_logits,
    media_runs,
)
from edgechat.engine.backends.mlx.caches import (
    MORE,
    CacheLayers,
    Caches,
    SeenWhole,
    Uncut,
    pack,
    pack_checkpoint,
    size_of,
    unpack,
    unpack_checkpoint,
)
from edgechat.engine.backends.mlx.folder import FolderVocabulary, load_errors
from edgechat.engine.backends.mlx.vision import MlxVision, Offsets, VlmModel, load_model
from edgechat.engine.types import Sampling
from edgechat.models.formats.mlx.config import read_config
from edgechat.models.formats.mlx.contents import read_model
from edgechat.models.local.files import CONFIG
from edgechat.native.params import Buffer
from edgechat.planner.plan import LoadPlan

_SHORT = 32  # up to this many tokens are computed at once, even if not all of their logits are needed
_LEAST_CACHE = 64 * 2**20
_CLEAR_EVERY = 256  # number of calls after which MLX's memory cache is cleared, as in mlx-lm


_BELOW_ONE = 1 - 2**-24
BROKEN = -1
"""A token id that indicates invalid logits."""


@dataclass(slots=True)
class _Predicted:
    """A token that was decoded before the engine requested it."""

    logits: mx.array
    """Logits that follow the token [n_vocab]."""
    token: int = BROKEN
    """The token's id, or BROKEN until it has been read."""


@dataclass(slots=True)
class _Sequence:
    """A sequence and its caches. Its length does not count a token that was decoded ahead."""

    caches: Caches
    predicted: _Predicted | None = None
    run: list[int] = field(default_factory=list)
    """Tokens that the last call computed after the caches' checkpoint."""

    @property
    def length(self) -> int:
        return self.caches.length - (self.predicted is not None)

    def drop_predicted(self) -> None:
        """Remove the token that was decoded ahead from the caches."""
        if self.predicted is not None:
            self.predicted = None
            self.caches.cut(self.caches.length - 1)


class MlxBackend:
    """An MLX model, which computes one sequence at a time."""

    def __init__(self, plan: LoadPlan, on_progress: Callable[[float], None] | None = None) -> None:
        """Load the model in the plan's folder. Raises LoadFailed, OutOfMemory or ModelFileError."""
        folder = Path(plan.model_path)
        header = read_model(folder)  # rejects invalid folders
        on_gpu = bool(plan.devices) and mx.metal.is_available()
        mx.set_default_device(mx.gpu if on_gpu else mx.cpu)
        if plan.memory:  # a draft model's plan is part of its target's plan
            # MLX keeps freed memory for reuse, without limit by default; the plan allows for this much.
            mx.set_cache_limit(max(plan.compute_bytes, _LEAST_CACHE))
        if on_gpu:
            maybe_set_recommended_wired_limit()
        config = read_config(folder / CONFIG)
        self._model: Any
        self._model, self.no_vision = load_model(plan, config, header.path, on_progress)
        with load_errors(header.path):
            self._layers = CacheLayers(self._model, plan.cache_type)
            n_vocab = self._probe()
        self.vocabulary: Vocabulary = FolderVocabulary(folder, n_vocab, config)
        self.context = plan.context
        self.n_seq_max = plan.n_seq_max
        self.n_batch = plan.n_batch
        self.n_outputs_max = plan.n_outputs_max or plan.n_batch
        self.rolls_back = self.n_batch if self._layers.cuts else MORE - 1
        self.rolls_back_alone = False
        self.checkpoint_bytes = 0 if self._layers.cuts else plan.checkpoint_bytes
        self.chat_template = header.chat_template
        self.architecture, self.n_params = header.architecture, header.n_params
        self.train_context = header.number("context_length", 0)
        self.buffers: tuple[Buffer, ...] = ()
        self.touched_bytes = 0
        self.capabilities = Capabilities(
            mixes=False, cuts=self._layers.cuts, saves=True, recomputes=self._layers.is_recurrent
        )
        self.drawing: TokenDrawing | None = self
        self.interruption: Interruption | None = None
        self.head: DraftHead | None = None
        self.no_head = ""
        self.state_format = f"mlx {version('mlx')} mlx-lm {version('mlx-lm')} {plan.cache_type}"
        self.adapters: Adapters | None = None
        self.media_encoder: MediaEncoder | None = None
        if isinstance(self._model, VlmModel):
            self.state_format += f" mlx-vlm {version('mlx-vlm')}"
            if plan.projector is not None:
                self.media_encoder = MlxVision(self._model, folder, self, plan.projector.image_tokens)
        self._sequences: dict[int, _Sequence] = {}
        self._n_calls = 0

    def _probe(self) -> int:
        """Compute a token and return the width of a row of logits."""
        caches = Caches(self._layers)
        logits = self._model(mx.array([[0]]), cache=caches.all)
        mx.eval(logits)
        self._layers.learn(caches)
        return int(logits.shape[-1])

    # Computing.

    def decode(self, parts: Sequence[BatchPart]) -> Logits:
        """Compute a batch; see `Backend.decode`. Raises ValueError unless there is exactly one part."""
        (part,) = parts
        with self._computing(part):
            rows = self._rows(part)
            if part.n_logits:
                return np.array(rows[-part.n_logits :].astype(mx.float32))
            mx.eval(self._sequences[part.seq].caches.arrays)
            return np.empty((0, self.vocabulary.size), np.float32)

    def next_token(self, part: BatchPart, sampling: Sampling, number: float) -> int:
        """Return the next token, and start decoding it before its id is read, so that the GPU stays busy.

        The token decoded ahead is removed again if the engine continues with a different one.
        """
        with self._computing(part):
            row = self._rows(part)[-1].astype(mx.float32)
            chosen = draw(row, sampling, number)
            mx.async_eval(chosen)
            sequence = self._sequences[part.seq]
            if self._used < self.context:
                sequence.caches.checkpoint()
                following = self._forward(sequence.caches, chosen.reshape(1))[-1]
                mx.async_eval(following)
                sequence.predicted = _Predicted(following)
            token = int(chosen.item())  # type: ignore[arg-type]
            if token == BROKEN:
                raise broken_logits()
        if sequence.predicted is not None:
            sequence.predicted.token = token
        return token

    def _rows(self, part: BatchPart) -> mx.array:
        """Compute a run and return logits [n, n_vocab] for its last tokens, at least `n_logits` rows."""
        sequence = self._sequences.setdefault(part.seq, _Sequence(Caches(self._layers)))
        tokens, rows = list(part.tokens), []
        predicted, caches = sequence.predicted, sequence.caches
        if predicted is not None and predicted.token == tokens[0]:
            sequence.predicted, rows = None, [predicted.logits[None]]
            del tokens[0]
        else:
            sequence.drop_predicted()
        n_last = len(tokens)
        if n_last > _SHORT:  # tokens that might be rolled back are computed in one call, after a checkpoint
            n_last = max(part.n_logits, _SHORT * self._layers.is_recurrent)
        if first := tokens[: len(tokens) - n_last]:
            self._forward(caches, mx.array(first))
            mx.eval(caches.arrays)
            mx.clear_cache()
        if last := tokens[len(first) :]:
            caches.checkpoint()
            sequence.run = last
            rows.append(self._forward(caches, mx.array(last)))
        return mx.concatenate(rows) if len(rows) > 1 else rows[0] if rows else mx.zeros((0, 1))

    def _forward(self, caches: Caches, tokens: mx.array) -> mx.array:
        """Return lazy logits [n, n_vocab] for tokens [n] that follow those in the caches."""
        where = {}
        if isinstance(self._model, VlmModel):
            where = self._model.at(caches.places.position(caches.length) + np.arange(len(tokens)))
        logits: mx.array = self._model(tokens[None], cache=caches.all, **where)[0]
        caches.grew(len(tokens))
        return logits

    def read_media(
        self, seq: int, start: int, media: Media, embeddings: Embeddings, offsets: Offsets
    ) -> None:
        """Compute an image's cells and append them to a sequence; see `vision.py`."""
        model = self._model
        assert isinstance(model, VlmModel)
        with self._computing(BatchPart(seq, start, media.ids, 0)):
            sequence = self._sequences.setdefault(seq, _Sequence(Caches(self._layers)))
            sequence.drop_predicted()
            sequence.run, caches = [], sequence.caches
            shown = [SeenWhole(cache) for cache in caches.all] if media.whole else caches.all
            positions = offsets + caches.places.position(start)
            step = len(media.ids) if media.whole else self.n_batch
            for at in range(0, len(media.ids), step):
                cells, options = model.shown(embeddings[at : at + step])
                model(cells, cache=shown, **options, **model.at(positions[..., at : at + step]))
                caches.grew(cells.shape[1])
                mx.eval(caches.arrays)
            mx.clear_cache()
            (run,) = media_runs(media.ids)
            caches.places = Places([*caches.places.runs, replace(run, start=start)])

    @contextmanager
    def _computing(self, part: BatchPart) -> Iterator[None]:
        """Raise CacheFull if the part does not fit; drop the whole sequence if MLX fails."""
        sequence = self._sequences.get(part.seq)
        length, held = (sequence.length, sequence.caches.length) if sequence else (0, 0)
        if part.start != length:
            raise ValueError(f"position {part.start} does not follow the {length} tokens there")
        # The token decoded ahead is either among these tokens or dropped.
        if self._used - (held - length) + len(part.tokens) > self.context:
            raise CacheFull
        self._n_calls += 1
        if self._n_calls % _CLEAR_EVERY == 0:
            mx.clear_cache()
        try:
            yield
        except (EdgechatError, RuntimeError, ValueError, MemoryError) as error:
            self._sequences.pop(part.seq, None)
            if isinstance(error, EdgechatError):
                raise
            raise DecodeFailed(
                f"MLX could not compute a batch: {' '.join(str(error).split())[:300]}",
                hint="Send the message again; if it fails again, try a shorter context or another model.",
            ) from error

    # Cached sequences.

    @property
    def _used(self) -> int:
        return sum(one.caches.length for one in self._sequences.values())

    def truncate(self, seq: int, length: int) -> bool:
        sequence = self._sequences.get(seq)
        if not length or sequence is None:
            self._sequences.pop(seq, None)
            return not length
        sequence.drop_predicted()
        if not sequence.caches.can_cut(length):
            return False
        sequence.caches.cut(length)
        return True

    def rollback(self, seq: int, count: int) -> bool:
        """Roll back a sequence; see `Backend.rollback`.

        A recurrent state is reset to its value before the call, and the remaining tokens are computed again.
        """
        sequence = self._sequences[seq]
        length, caches, start = sequence.length - count, sequence.caches, sequence.caches.checkpoint_at
        if not self._layers.is_recurrent:
            return self.truncate(seq, length)
        if start + len(sequence.run) != caches.length or length < start or not caches.can_cut(start):
            return False
        caches.cut(start)
        again, sequence.run = sequence.run[: length - start], []
        if again:
            with self._computing(BatchPart(seq, start, again, 0)):
                self._forward(caches, mx.array(again))
                mx.eval(caches.arrays)
        return True

    def can_copy(self, source: int, length: int) -> bool:
        sequence = self._sequences.get(source)
        return sequence is not None and sequence.caches.can_cut(length)

    def copy(self, source: int, target: int, length: int) -> bool:
        self._sequences[target] = _Sequence(self._sequences[source].caches.copy(length))
        return True

    def checkpoint(self, seq: int) -> Checkpoint:
        sequence = self._sequences[seq]
        sequence.drop_predicted()
        try:
            uncut = sequence.caches.uncut()
        except RuntimeError as error:  # MLX raises this when it runs out of memory
            raise MemoryError from error
        return Checkpoint(uncut.length, uncut.n_bytes, uncut)

    def rewind(self, seq: int, checkpoint: Checkpoint) -> bool:
        sequence, uncut = self._sequences[seq], checkpoint.state
        if isinstance(uncut, np.ndarray):
            uncut = unpack_checkpoint(uncut)
        sequence.drop_predicted()
        sequence.run = []
        if not isinstance(uncut, Uncut) or not sequence.caches.rewind(uncut):
            del self._sequences[seq]
            return False
        return True

    def save_checkpoint(self, checkpoint: Checkpoint) -> npt.NDArray[np.uint8]:
        if isinstance(checkpoint.state, np.ndarray):  # from a file
            return checkpoint.state
        assert isinstance(checkpoint.state, Uncut)
        try:
            return pack_checkpoint(checkpoint.state)
        except RuntimeError as error:  # MLX raises this when it runs out of memory
            raise MemoryError from error

    def shift(self, seq: int, start: int, stop: int) -> bool:
        """Return False: cached keys depend on their positions."""
        length = self._sequences[seq].length
        if not 0 < start < stop < length:
            raise ValueError(f"tokens {start} to {stop} are not in the middle of {length}")
        return False

    def save(self, seq: int) -> npt.NDArray[np.uint8]:
        sequence = self._sequences[seq]
        if 2 * size_of(sequence.caches) > psutil.virtual_memory().available // 2:
            raise MemoryError
        try:
            return pack(sequence.caches.copy(sequence.length))
        except RuntimeError as error:  # MLX raises this when it runs out of memory
            raise MemoryError from error

    def restore(self, seq: int, state: npt.NDArray[np.uint8], tokens: Sequence[int]) -> bool:
        caches, length = Caches(self._layers), len(tokens)
        if self._used + length > self.context or not unpack(state, caches, length):
            return False
        caches.places = Places(list(media_runs(tokens)))
        self._sequences[seq] = _Sequence(caches)
        return True

    def close(self) -> None:
        """Free the caches, then the model."""
        self._sequences.clear()
        for holder in (self, self.media_encoder):  # the engine still holds a reference to the latter
            vars(holder or self).pop("_model", None)
        vars(self).pop("_layers", None)
        self.drawing = self.media_encoder = None
        mx.clear_cache()


def draw(logits: mx.array, sampling: Sampling, number: float) -> mx.array:
    """Return the token [] that a number between 0 and 1 selects, or BROKEN. logits: a row [n_vocab].

    This is the sampling from `engine/sampling.py` as an MLX graph: fetching a row of logits would interrupt
    the pipeline in which the GPU computes one token while Python prepares the next. The filters, their order
    and the random number are the same as in that module. The token is also the same, except in near-ties,
    since this function computes in 32 bits. Penalties are not applied, since they depend on tokens that only
    the CPU has.
    """
    if sampling.temperature <= 0:
        token, highest = logits.argmax(), logits.max()
    else:
        token, highest = _sample(logits, sampling, number)
    # The maximum is NaN if any logit is.
    return mx.where(mx.isfinite(highest), token.astype(mx.int32), BROKEN)


def _sample(logits: mx.array, sampling: Sampling, number: float) -> tuple[mx.array, mx.array]:
    """Return a token and the highest logit. Each operation runs as a separate kernel, so use few of them."""
    highest = logits.max()
    ids, values = _candidates(logits, sampling)
    weights = mx.exp(values - highest)
    kept: mx.array | None = None  # every filter keeps at least the first candidate
    if sampling.top_p < 1:
        kept = (mx.cumsum(weights) < sampling.top_p * weights.sum()).sum() + 1
    if sampling.min_p > 0:
        likely = (weights >= sampling.min_p).sum()
        kept = likely if kept is None else mx.minimum(kept, likely)
    chances = weights ** (1 / sampling.temperature)
    if kept is not None:
        chances = mx.where(mx.arange(len(weights)) < kept, chances, 0.0)
    if ids is not None:
        order = mx.argsort(ids)
        ids, chances = ids[order], chances[order]
    reached = mx.cumsum(chances)
    # Keep the number below 1, even in 32 bits, since there is no token past the end.
    at = mx.minimum((reached <= min(number, _BELOW_ONE) * reached[-1]).sum(), len(weights) - 1)
    return (at if ids is None else ids[at]), highest


def _candidates(logits: mx.array, sampling: Sampling) -> tuple[mx.array | None, mx.array]:
    """Return the candidates' ids and logits, most likely first; or None and all logits, ordered by id."""
    n = len(logits)
    if 0 < sampling.top_k < n:
        ids = mx.argpartition(logits, n - sampling.top_k)[n - sampling.top_k :]
        values = logits[ids]
        order = mx.argsort(-values)
        return ids[order], values[order]
    if sampling.top_p >= 1 and sampling.min_p <= 0:
        return None, logits
    ids = mx.argsort(-logits)
    return ids, logits[ids]
