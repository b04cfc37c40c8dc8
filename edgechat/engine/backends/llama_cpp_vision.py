"""Images for a GGUF model: what libmtmd cuts and encodes, in the cells of the backend's sequences."""

# ruff: noqa: D102  (base.py documents the methods of its protocols)

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Protocol

from edgechat.base.errors import BadRequest
from edgechat.base.images.image import Pixels
from edgechat.engine.backends.base import CacheFull, EncodingStopped, Media
from edgechat.engine.backends.logits import Embeddings
from edgechat.engine.backends.media import MOST_CELLS, media_ids
from edgechat.native.handles import Context, Model
from edgechat.planner.plan import LoadPlan


class Cells(Protocol):
    """What a backend knows of its sequences."""

    n_batch: int

    def position_of(self, seq: int, index: int) -> int:
        """Return the position of the token at an index of a sequence."""

    def note_media(self, seq: int, start: int, media: Media) -> None:
        """Note that media have been computed at the end of a sequence of `start` tokens."""

    def truncate(self, seq: int, length: int) -> bool:
        """See `Backend.truncate`."""


class LlamaCppVision:
    """A projector beside a loaded model."""

    def __init__(self, plan: LoadPlan, backend: Cells, model: Model, context: Context) -> None:
        """Load the plan's projector. Raises LoadFailed, OutOfMemory or BackendMissing."""
        # Some builds are without libmtmd. A damaged file ends the process that loads it: first a child.
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
        self.sees = self._projector.sees

    def cut(self, pixels: Pixels, digest: str) -> list[tuple[int, ...] | Media]:
        from edgechat.native.multimodal.chunks import Bitmap, TextChunk

        with closing(Bitmap(pixels.width, pixels.height, pixels.rgb)) as bitmap:
            chunks = self._projector.tokenize([bitmap], bos=False, special=True)
        parts: list[tuple[int, ...] | Media] = []
        for chunk in chunks:
            if isinstance(chunk, TextChunk):
                parts.append(chunk.tokens)
                continue
            largest = min(MOST_CELLS, MOST_CELLS if chunk.causal else self._context.n_ubatch)
            if chunk.n_tokens > largest:
                for one in chunks:
                    if not isinstance(one, TextChunk):
                        one.close()
                raise BadRequest(
                    f"The image takes {chunk.n_tokens} tokens together, and this load computes {largest}.",
                    hint="Send a smaller image.",
                )
            content = f"{digest} {chunk.part} {self._projector.name}".encode()
            ids = media_ids(content, chunk.n_tokens, chunk.n_positions)
            parts.append(Media(ids, not chunk.causal, chunk))
        return parts

    def encode(self, media: Media, *, between: Callable[[], bool]) -> Embeddings:
        from edgechat.native.multimodal.chunks import MediaChunk
        from edgechat.native.multimodal.projector import Cancelled

        assert isinstance(media.piece, MediaChunk)
        try:
            return self._projector.encode(media.piece, between=between)
        except Cancelled:
            raise EncodingStopped from None

    def decode(self, seq: int, start: int, media: Media, embeddings: Embeddings) -> None:
        from edgechat.native.multimodal.chunks import MediaChunk

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
        from edgechat.native.multimodal.chunks import MediaChunk

        assert isinstance(media.piece, MediaChunk)
        media.piece.close()

    def close(self) -> None:
        """Free the projector."""
        self._projector.close()
