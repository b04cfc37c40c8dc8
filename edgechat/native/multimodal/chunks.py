"""What a prompt with pictures is made of: text, and bitmaps before and after libmtmd has cut them up."""

from __future__ import annotations

import ctypes
import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgechat.base.errors import BadRequest
from edgechat.base.images.image import MAX_PIXELS, MAX_SIDE
from edgechat.native.multimodal.library import lib


class Bitmap:
    """A picture as libmtmd takes it; `id` is a hash of its pixels."""

    def __init__(self, width: int, height: int, rgb: bytes | None) -> None:
        """Copy the pixels, three bytes each, row by row. Without any it is good for counting only.

        Raises BadRequest for what no picture can be.
        """
        if not (0 < width <= MAX_SIDE and 0 < height <= MAX_SIDE and width * height <= MAX_PIXELS):
            raise BadRequest(
                f"A picture of {width} x {height} pixels cannot be shown to a model.",
                hint=f"Scale it down to {MAX_PIXELS // 1_000_000} megapixels, {MAX_SIDE} a side, or less.",
            )
        if rgb is not None and len(rgb) != width * height * 3:
            raise ValueError(f"{len(rgb)} bytes are not {width} x {height} pixels of RGB")
        self.id = "" if rgb is None else _hash(width, height, rgb)
        pixels = ctypes.cast(ctypes.c_char_p(rgb), ctypes.POINTER(ctypes.c_uint8))
        self._pointer: lib.mtmd_bitmap_p | None = lib.mtmd_bitmap_init(width, height, pixels)
        lib.mtmd_bitmap_set_id(self.pointer, self.id.encode())

    @property
    def pointer(self) -> lib.mtmd_bitmap_p:
        """The bitmap as libmtmd knows it; an error after close()."""
        if not self._pointer:
            raise ValueError("the bitmap is closed")
        return self._pointer

    def close(self) -> None:
        """Free the pixels; what was made of them stays."""
        if self._pointer:
            lib.mtmd_bitmap_free(self._pointer)
            self._pointer = None


def _hash(width: int, height: int, rgb: bytes) -> str:
    digest = hashlib.blake2b(b"%d x %d " % (width, height), digest_size=16)
    digest.update(rgb)
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class TextChunk:
    """Tokens of text, some of them those that a model wants around pictures."""

    tokens: tuple[int, ...]


class MediaChunk:
    """A picture, or a tile of a large one: `n_tokens` embeddings that `Projector.encode` makes of it.

    It stays useful when its pixels are released: embeddings that were kept are decoded by its positions.
    """

    def __init__(self, native: lib.mtmd_input_chunk_p, *, causal: bool, mrope: bool) -> None:
        """Copy the chunk, which belongs to the list that it is in."""
        self.id = (lib.mtmd_input_chunk_get_id(native) or b"").decode()
        """The id of the bitmap it was made of; '' for counting."""
        self.part = 0
        """Its number among the chunks of that bitmap."""
        self.n_tokens = int(lib.mtmd_input_chunk_get_n_tokens(native))
        """Cells of the KV cache."""
        self.n_positions = int(lib.mtmd_input_chunk_get_n_pos(native))
        """How much further on the next token is: fewer than `n_tokens` with M-RoPE."""
        self.causal = causal
        """False: its tokens see each other, and belong into one micro-batch."""
        first, second = (_positions(native, start, self.n_tokens) for start in (0, 1))
        n_numbers = 4 if mrope else 1
        self._first, self._step = first[:n_numbers], (second - first)[:n_numbers]
        self._pointer: lib.mtmd_input_chunk_p | None = lib.mtmd_input_chunk_copy(native)

    @property
    def pointer(self) -> lib.mtmd_input_chunk_p:
        """The chunk as libmtmd knows it; an error after close()."""
        if not self._pointer:
            raise ValueError("the pixels of the chunk have been released")
        return self._pointer

    def positions(self, start: int) -> npt.NDArray[np.int32]:
        """Return where its embeddings are if the first is at `start`: [1 or, with M-RoPE, 4; n_tokens].

        Those four are time, row, column and nothing. All of an M-RoPE picture are at the same time, `start`.
        """
        return self._first + start * self._step

    def close(self) -> None:
        """Release the pixels."""
        if self._pointer:
            lib.mtmd_input_chunk_free(self._pointer)
            self._pointer = None


def _positions(native: lib.mtmd_input_chunk_p, start: int, n: int) -> npt.NDArray[np.int32]:
    """Return time, row, column and the fourth of each embedding, [4, n]."""
    found = (lib.mtmd_decoder_pos * n)()
    tokens = lib.mtmd_input_chunk_get_tokens_image(native)
    lib.mtmd_helper_image_get_decoder_pos(tokens, start, found)
    time, column, row, fourth = np.frombuffer(bytearray(found), np.int32).reshape(n, 4).T
    return np.stack((time, row, column, fourth))
