"""Images for an MLX model: what mlx-vlm cuts and encodes, in the caches of the backend's sequences."""

# ruff: noqa: D102  (base.py documents the methods of its protocols)

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Protocol

import mlx.core as mx
from PIL import Image

from edgechat.base.errors import BadRequest, DecodeFailed
from edgechat.base.images.image import Pixels
from edgechat.base.sound.sound import Samples
from edgechat.engine.backends.base import MOST_CELLS, Embeddings, EncodingStopped, Media, media_ids
from edgechat.engine.backends.mlx.families import Arrays
from edgechat.engine.backends.mlx.seeing import Offsets, VlmModel

_LONGEST = 200
"""Times its width: scaled up, a longer picture would take gigabytes."""


class MediaReader(Protocol):
    """What a backend does with media."""

    def read_media(
        self, seq: int, start: int, media: Media, embeddings: Embeddings, offsets: Offsets
    ) -> None:
        """Compute a run of cells at the end of a sequence; see `MediaEncoder.decode`.

        offsets: where they are, from the position after the tokens there.
        """


class MlxVision:
    """The tower of a loaded model."""

    sees, hears, sample_rate = True, False, 0

    def __init__(self, model: VlmModel, folder: Path, backend: MediaReader, most_cells: int) -> None:
        """most_cells: tokens that an image of any size is brought to; 0: what its processor says."""
        self._model, self._backend, self._most_cells = model, backend, most_cells
        self._name, self._cutting = folder.name, threading.Lock()
        self._device, self._owner = mx.default_device(), threading.get_ident()

    def cut(self, contents: Pixels | Samples, digest: str) -> list[tuple[int, ...] | Media]:
        assert isinstance(contents, Pixels)
        pixels = contents
        if max(pixels.width, pixels.height) > _LONGEST * min(pixels.width, pixels.height):
            size = f"{pixels.width}x{pixels.height}"
            raise BadRequest(f"The image is too long for its width: {size}.", hint="Send a part of it.")
        image = Image.frombytes("RGB", (pixels.width, pixels.height), pixels.rgb)
        try:
            with self._cutting:  # tokenizers of several threads get into each other's way
                tokens, arrays = self._model.process(image, self._most_cells)
            return list(self._parts(tokens, arrays, digest))
        except BadRequest:
            raise
        except Exception as error:  # processors raise whatever a wrong file leads to
            why = " ".join(str(error).split())[:200]
            raise BadRequest(f"This model cannot take the image: {why}", hint="Send another one.") from error

    def _parts(
        self, tokens: list[int | None], arrays: Arrays, digest: str
    ) -> Iterator[tuple[int, ...] | Media]:
        number = 0
        for is_cell, group in groupby(tokens, lambda token: token is None):
            run = list(group)
            if not is_cell:
                yield tuple(token for token in run if token is not None)
                continue
            if len(run) > MOST_CELLS:
                raise BadRequest(
                    f"The image takes {len(run)} tokens together; {MOST_CELLS} are possible.",
                    hint="Send a smaller image.",
                )
            piece = self._model.family.piece(arrays, number)
            content = f"{digest} {number} {self._name}".encode()
            n_positions = int(self._model.offsets(len(run), piece).max()) + 1
            yield Media(media_ids(content, len(run), n_positions), self._model.sees_itself, piece)
            number += 1

    def encode(self, media: Media, *, between: Callable[[], bool]) -> Embeddings:
        def pause() -> None:
            if not between():
                raise EncodingStopped

        assert isinstance(media.piece, dict)
        mx.set_default_device(self._device)
        self._model.pause = pause
        try:
            pause()
            return self._model.embed(len(media.ids), media.piece)
        except (RuntimeError, ValueError, MemoryError) as error:
            raise DecodeFailed(
                f"MLX could not encode the image: {' '.join(str(error).split())[:300]}",
                hint="Send it again, or a smaller one.",
            ) from error
        finally:
            self._model.pause = lambda: None
            if threading.get_ident() != self._owner:
                mx.clear_streams()  # this thread's, which ends

    def decode(self, seq: int, start: int, media: Media, embeddings: Embeddings) -> None:
        assert isinstance(media.piece, dict)
        offsets = self._model.offsets(len(media.ids), media.piece)
        self._backend.read_media(seq, start, media, embeddings, offsets)

    def release(self, media: Media) -> None:
        """Nothing: the pixels are arrays."""
