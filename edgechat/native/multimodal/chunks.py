"""What a prompt is made of: text, and pictures and sounds before and after libmtmd has cut them up."""

from __future__ import annotations

import ctypes
import hashlib
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from edgechat.base.errors import BadRequest
from edgechat.base.images.image import MAX_PIXELS, MAX_SIDE
from edgechat.base.sound.sound import MAX_SECONDS, SAMPLE_BYTES
from edgechat.native.multimodal.library import lib

_PART_SECONDS = 30


class Medium:
    """A picture or a sound as libmtmd takes it, which calls both bitmaps; `id` is a hash of what is in it."""

    what: ClassVar[str]

    def __init__(self, native: lib.mtmd_bitmap_p | None, id: str) -> None:
        self.id = id
        self._pointer = native
        lib.mtmd_bitmap_set_id(self.pointer, id.encode())

    @property
    def pointer(self) -> lib.mtmd_bitmap_p:
        """The bitmap as libmtmd knows it; an error after close()."""
        if not self._pointer:
            raise ValueError("the bitmap is closed")
        return self._pointer

    def close(self) -> None:
        """Free the contents; what was made of them stays."""
        if self._pointer:
            lib.mtmd_bitmap_free(self._pointer)
            self._pointer = None


class Bitmap(Medium):
    """A picture."""

    what = "picture"

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
        pixels = ctypes.cast(ctypes.c_char_p(rgb), ctypes.POINTER(ctypes.c_uint8))
        native = lib.mtmd_bitmap_init(width, height, pixels)
        super().__init__(native, "" if rgb is None else _hash(b"%d x %d " % (width, height), rgb))


class Waveform(Medium):
    """A sound at the rate of the projector."""

    what = "sound"

    def __init__(self, pcm: bytes, rate: int) -> None:
        """Copy the samples, floats of 32 bits, with silence behind them where they are too few.

        Preprocessors cut sounds every 30 seconds, and assert, or leave nothing, where the rest is only some
        frames long: it gets half a second at least.
        """
        n = len(pcm) // SAMPLE_BYTES
        if not 0 < n <= MAX_SECONDS * rate or len(pcm) % SAMPLE_BYTES:
            raise ValueError(f"{len(pcm)} bytes are not samples of up to {MAX_SECONDS} seconds")
        rest = n % (_PART_SECONDS * rate)
        n_missing = max(0, rate // 2 - rest) if rest else 0
        samples = ctypes.cast(
            ctypes.c_char_p(pcm + bytes(n_missing * SAMPLE_BYTES)), ctypes.POINTER(ctypes.c_float)
        )
        native = lib.mtmd_bitmap_init_from_audio(n + n_missing, samples)
        super().__init__(native, _hash(b"%d Hz " % rate, pcm))


def _hash(shape: bytes, contents: bytes) -> str:
    digest = hashlib.blake2b(shape, digest_size=16)
    digest.update(contents)
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class TextChunk:
    """Tokens of text, some of them those that a model wants around pictures and sounds."""

    tokens: tuple[int, ...]


class MediaChunk:
    """A picture or a sound, or a part of one: `n_tokens` embeddings that `Projector.encode` makes of it.

    It stays useful when its contents are released: embeddings that were kept are decoded by its positions.
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
        self.what = "sound" if _is_sound(native) else "picture"
        first, second = (_positions(native, start, self.n_tokens) for start in (0, 1))
        n_numbers = 4 if mrope else 1
        self._first, self._step = first[:n_numbers], (second - first)[:n_numbers]
        self._pointer: lib.mtmd_input_chunk_p | None = lib.mtmd_input_chunk_copy(native)

    @property
    def pointer(self) -> lib.mtmd_input_chunk_p:
        """The chunk as libmtmd knows it; an error after close()."""
        if not self._pointer:
            raise ValueError("the contents of the chunk have been released")
        return self._pointer

    def positions(self, start: int) -> npt.NDArray[np.int32]:
        """Return where its embeddings are if the first is at `start`: [1 or, with M-RoPE, 4; n_tokens].

        Those four are time, row, column and nothing. All of an M-RoPE picture are at the same time, `start`;
        those of a sound follow each other in all four, as tokens do.
        """
        return self._first + start * self._step

    def close(self) -> None:
        """Release the contents."""
        if self._pointer:
            lib.mtmd_input_chunk_free(self._pointer)
            self._pointer = None


def _positions(native: lib.mtmd_input_chunk_p, start: int, n: int) -> npt.NDArray[np.int32]:
    """Return time, row, column and the fourth of each embedding, [4, n]."""
    if _is_sound(native):
        return np.tile(np.arange(start, start + n, dtype=np.int32), (4, 1))
    found = (lib.mtmd_decoder_pos * n)()
    tokens = lib.mtmd_input_chunk_get_tokens_image(native)
    lib.mtmd_helper_image_get_decoder_pos(tokens, start, found)
    time, column, row, fourth = np.frombuffer(bytearray(found), np.int32).reshape(n, 4).T
    return np.stack((time, row, column, fourth))


def _is_sound(native: lib.mtmd_input_chunk_p) -> bool:
    return bool(lib.mtmd_input_chunk_get_type(native) == lib.MTMD_INPUT_CHUNK_TYPE_AUDIO)
