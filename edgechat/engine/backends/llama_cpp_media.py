"""Images and audio for GGUF models: cut up and encoded by libmtmd, then decoded into a sequence's cells."""

# ruff: noqa: D102  (base.py documents the methods of its protocols)

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from edgechat.base.errors import BadRequest
from edgechat.base.images.image import Pixels
from edgechat.base.sound.sound import Samples
from edgechat.engine.backends.base import MOST_CELLS, CacheFull, Embeddings, EncodingStopped, Media, media_ids
from edgechat.native.handles import Context, Model
from edgechat.planner.companions import MOST_HEARD
from edgechat.planner.plan import LoadPlan

if TYPE_CHECKING:
    from edgechat.native.multimodal.projector import MediaChunk


_NAMES = {"picture": "image", "sound": "sound"}


class Cells(Protocol):
    """The backend methods needed to decode media."""

    n_batch: int

    def position_of(self, seq: int, index: int) -> int:
        """Return the position of the token at `index` in a sequence."""

    def note_media(self, seq: int, start: int, media: Media) -> None:
        """Record that media were appended to a sequence of `start` tokens."""

    def truncate(self, seq: int, length: int) -> bool:
        """See `Backend.truncate`."""


class LlamaCppMedia:
    """The projector of a loaded model."""

    def __init__(self, plan: LoadPlan, backend: Cells, model: Model, context: Context) -> None:
        """Load the plan's projector. Raises LoadFailed, OutOfMemory or BackendMissing."""
        # Some builds lack libmtmd. A damaged file would crash the process that loads it, so a child process
        # tries it first.
        from edgechat.native.multimodal.probe import probe
        from edgechat.native.multimodal.projector import Projector

        assert plan.projector is not None
        probe(Path(plan.projector.path), max_tokens=plan.projector.image_tokens)
        self._projector = Projector(
            Path(plan.projector.path),
            model,
            device=plan.projector.device,
            threads=plan.threads,
            max_tokens=plan.projector.image_tokens,
        )
        self._backend, self._context = backend, context
        self.sees, self.hears = self._projector.sees, self._projector.hears
        self.sample_rate = self._projector.sample_rate

    def cut(self, contents: Pixels | Samples, digest: str) -> list[tuple[int, ...] | Media]:
        from edgechat.native.multimodal.projector import Bitmap, Medium, TextChunk, Waveform

        medium: Medium
        if isinstance(contents, Pixels):
            medium = Bitmap(contents.width, contents.height, contents.rgb)
        else:
            medium = Waveform(contents.pcm, contents.rate)
        with closing(medium):
            chunks = self._projector.tokenize(medium)
        parts: list[tuple[int, ...] | Media] = []
        for chunk in chunks:
            if isinstance(chunk, TextChunk):
                parts.append(chunk.tokens)
                continue
            largest = self._largest(chunk)
            if not 1 < chunk.n_tokens <= largest:
                for one in chunks:
                    if not isinstance(one, TextChunk):
                        one.close()
                raise BadRequest(
                    f"The {_NAMES[chunk.what]} takes {chunk.n_tokens} tokens; with these settings, the "
                    f"model can process 2 to {largest} at once.",
                    hint="Send a smaller image." if chunk.what == "picture" else "Send it in parts.",
                )
            content = f"{digest} {chunk.part} {self._projector.name}".encode()
            ids = media_ids(content, chunk.n_tokens, chunk.n_positions)
            parts.append(Media(ids, not chunk.causal, chunk))
        return parts

    def _largest(self, chunk: MediaChunk) -> int:
        most = MOST_HEARD if chunk.what == "sound" else MOST_CELLS
        return most if chunk.causal else min(most, self._context.n_ubatch)

    def encode(self, media: Media, *, between: Callable[[], bool]) -> Embeddings:
        from edgechat.native.multimodal.projector import Cancelled, MediaChunk

        assert isinstance(media.piece, MediaChunk)
        try:
            return self._projector.encode(media.piece, between=between)
        except Cancelled:
            raise EncodingStopped from None

    def decode(self, seq: int, start: int, media: Media, embeddings: Embeddings) -> None:
        from edgechat.native.multimodal.projector import MediaChunk

        chunk = media.piece
        assert isinstance(chunk, MediaChunk)
        positions = chunk.positions(self._backend.position_of(seq, start))
        step = len(embeddings) if media.whole else self._backend.n_batch
        for at in range(0, len(embeddings), step):
            part = slice(at, at + step)
            rows = self._context.decode_embeddings(
                seq, embeddings[part], positions[:, part], causal=not media.whole
            )
            if rows is None:
                if at and not self._backend.truncate(seq, start):
                    self._backend.truncate(seq, 0)
                raise CacheFull
        self._backend.note_media(seq, start, media)

    def release(self, media: Media) -> None:
        from edgechat.native.multimodal.projector import MediaChunk

        assert isinstance(media.piece, MediaChunk)
        media.piece.close()

    def close(self) -> None:
        self._projector.close()
