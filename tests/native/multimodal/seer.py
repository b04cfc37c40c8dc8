"""A minimal loop around a model with a projector, for comparison with edgechat's own."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from edgechat.native import logs
from edgechat.native.handles import Context, Model
from edgechat.native.multimodal.projector import (
    Bitmap,
    Chunk,
    MediaChunk,
    Medium,
    Projector,
    TextChunk,
    Waveform,
)
from edgechat.native.params import LoadParams
from edgechat.native.vocabulary import NativeVocabulary
from tests.kit.vision import PROMPT, RATE, Picture, SoundWave, hearing, seeing

Row = npt.NDArray[np.float32]
Part = str | Picture | SoundWave

NEAR = 0.02
"""For logits on a scale of 50: the effect of differently shaped batches, with an F16 cache."""


@dataclass
class Place:
    """How far a sequence has come. With M-RoPE, positions and cells are counted separately."""

    seq: int = 0
    position: int = 0
    cells: int = 0
    row: Row = field(default_factory=lambda: np.empty(0, np.float32))


class Seer:
    """A loaded model that sees or hears, with one context."""

    def __init__(self, kind: str, *, hears: bool = False, device: str = "", **params: Any) -> None:
        """device: the projector's; params: load parameters."""
        logs.install()
        eyes = hearing(kind) if hears else seeing(kind)
        self.causal = hears or kind != "windowed"
        load = LoadParams(**{"context": 2048, "n_outputs_max": 4, "threads": 1} | params)
        with ExitStack() as stack:
            self.model = stack.enter_context(closing(Model(eyes.model, load)))
            self.context = stack.enter_context(closing(Context(self.model, load)))
            self.projector = stack.enter_context(
                closing(Projector(eyes.projector, self.model, device=device))
            )
            self.vocabulary = NativeVocabulary(self.model)
            self._close = stack.pop_all().close

    def __enter__(self) -> Seer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def chunks(self, *parts: Part) -> list[Chunk]:
        """Return a prompt's chunks; their pixels are freed with the process."""
        chunks: list[Chunk] = []
        for part in parts:
            if isinstance(part, str):
                tokens = self.vocabulary.tokenize(part, bos=not chunks, special=True)
                found: list[Chunk] = [TextChunk(tuple(tokens))]
            else:
                with bitmap(part) as medium:
                    found = self.projector.tokenize(medium)
            for chunk in found:
                if chunks and isinstance(chunk, TextChunk) and isinstance(chunks[-1], TextChunk):
                    chunks[-1] = TextChunk(chunks[-1].tokens + chunk.tokens)
                else:
                    chunks.append(chunk)
        return chunks

    def read(self, chunks: Sequence[Chunk], place: Place, *, batch: int = 0) -> Place:
        """Compute chunks one after another, images in batches of `batch`; leave the last row in `place`."""
        for chunk in chunks:
            if isinstance(chunk, TextChunk):
                self._read_text(chunk.tokens, place)
            else:
                self.see(chunk, self.projector.encode(chunk), place, batch=batch)
        return place

    def _read_text(self, tokens: Sequence[int], place: Place) -> None:
        rows = self.context.decode([(place.seq, place.position, tokens, 1)])
        assert rows is not None
        place.row = rows[-1].copy()
        place.position += len(tokens)
        place.cells += len(tokens)

    def see(self, chunk: MediaChunk, embeddings: Row, place: Place, *, batch: int = 0) -> None:
        """Compute a chunk's embeddings."""
        positions = chunk.positions(place.position)
        step = batch or chunk.n_tokens
        for start in range(0, chunk.n_tokens, step):
            part = slice(start, start + step)
            rows = self.context.decode_embeddings(
                place.seq, embeddings[part], positions[:, part], causal=chunk.causal
            )
            assert rows is not None
        place.position += chunk.n_positions
        place.cells += chunk.n_tokens

    def write(self, place: Place, limit: int = 8) -> str:
        """Return the greedy answer to what has been read."""
        said = b""
        for _ in range(limit):
            token = int(place.row.argmax())
            if self.vocabulary.is_end(token):
                break
            said += self.vocabulary.piece(token)
            self._read_text([token], place)
        return said.decode()

    def ask(self, *pictures: Picture | SoundWave) -> str:
        """Return the answer to the question about pictures or sounds, starting with an empty cache."""
        self.context.clear()
        return self.write(self.read(self.chunks(PROMPT[0], *pictures, PROMPT[1]), Place())).strip()


def bitmap(picture: Picture | SoundWave) -> closing[Medium]:
    """Return a picture or sound in the form that libmtmd takes."""
    if picture.ndim == 1:
        return closing(Waveform(picture.tobytes(), RATE))
    height, width, _ = picture.shape
    return closing(Bitmap(width, height, picture.tobytes()))


def apart(one: Row, other: Row) -> float:
    """Return the largest difference between two rows of logits."""
    return float(np.abs(one - other).max())
