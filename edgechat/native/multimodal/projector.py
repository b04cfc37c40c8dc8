"""A projector (mmproj), which turns images and audio into embeddings for its text model.

A prompt becomes chunks of text, images and audio. An encoder's cost grows with the number of patches; for
attention, it grows with the square of that number. Times in seconds, in F16 on two cores of an EPYC:

    SigLIP 400M (Gemma 3: 4,096 patches for any image)                                   50
    Qwen3-VL-4B's, by side length in pixels: 256; 512; 768; 1024; 1472                   1.4; 6; 16; 40; 130
    SigLIP 93M (SmolVLM2), per tile of 512 x 512 pixels, of up to 17                     1.7
"""

from __future__ import annotations

import ctypes
import hashlib
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import llama_cpp.llama_cpp as llama
import numpy as np
import numpy.typing as npt
import psutil

from edgechat.base.errors import BadRequest, DecodeFailed, LoadFailed, OutOfMemory
from edgechat.base.images.image import MAX_PIXELS, MAX_SIDE
from edgechat.base.sound.sound import MAX_SECONDS, SAMPLE_BYTES
from edgechat.native import ggml, logs
from edgechat.native.handles import Model
from edgechat.native.multimodal.library import lib

_PART_SECONDS = 30


class Medium:
    """An image or sound; libmtmd calls both of them bitmaps. `id` is a hash of the contents."""

    what: ClassVar[str]

    def __init__(self, native: lib.mtmd_bitmap_p | None, id: str) -> None:
        self.id = id
        self._pointer = native
        lib.mtmd_bitmap_set_id(self.pointer, id.encode())

    @property
    def pointer(self) -> lib.mtmd_bitmap_p:
        """Pointer to the bitmap, as returned by libmtmd. Raises ValueError after close()."""
        if not self._pointer:
            raise ValueError("the bitmap is closed")
        return self._pointer

    def close(self) -> None:
        """Free the contents. Chunks cut from them remain valid."""
        if self._pointer:
            lib.mtmd_bitmap_free(self._pointer)
            self._pointer = None


class Bitmap(Medium):
    """An image."""

    what = "picture"

    def __init__(self, width: int, height: int, rgb: bytes | None) -> None:
        """Copy the pixels, three bytes each, row by row.

        Without pixels (None), the bitmap can only be used to count tokens. Raises BadRequest for an
        impossible size.
        """
        if not (0 < width <= MAX_SIDE and 0 < height <= MAX_SIDE and width * height <= MAX_PIXELS):
            raise BadRequest(
                f"A picture of {width} x {height} pixels cannot be used.",
                hint=f"Scale it down to at most {MAX_PIXELS // 1_000_000} megapixels and {MAX_SIDE} pixels "
                "per side.",
            )
        if rgb is not None and len(rgb) != width * height * 3:
            raise ValueError(f"{len(rgb)} bytes are not {width} x {height} pixels of RGB")
        pixels = ctypes.cast(ctypes.c_char_p(rgb), ctypes.POINTER(ctypes.c_uint8))
        native = lib.mtmd_bitmap_init(width, height, pixels)
        super().__init__(native, "" if rgb is None else _hash(b"%d x %d " % (width, height), rgb))


class Waveform(Medium):
    """A sound at the projector's sample rate."""

    what = "sound"

    def __init__(self, pcm: bytes, rate: int) -> None:
        """Copy the samples (32-bit floats), padding them with silence if there are too few.

        Preprocessors cut sounds every 30 seconds, and fail or return nothing if only a few frames remain, so
        the remainder is padded to at least half a second.
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
    """Text tokens, including any that a model expects around images and sounds."""

    tokens: tuple[int, ...]


class MediaChunk:
    """An image or a sound, or part of one, that `Projector.encode` turns into `n_tokens` embeddings.

    It remains useful after its contents are freed: its positions are needed to decode cached embeddings.
    """

    def __init__(self, native: lib.mtmd_input_chunk_p, *, causal: bool, mrope: bool) -> None:
        """Copy a chunk from libmtmd's list of chunks."""
        self.id = (lib.mtmd_input_chunk_get_id(native) or b"").decode()
        """The id of the image or sound that it was cut from, or '' if tokens are only being counted."""
        self.part = 0
        """Index of the chunk within that image or sound."""
        self.n_tokens = int(lib.mtmd_input_chunk_get_n_tokens(native))
        """How many cells it takes in the KV cache."""
        self.n_positions = int(lib.mtmd_input_chunk_get_n_pos(native))
        """How many positions it takes up: with M-RoPE, fewer than `n_tokens`."""
        self.causal = causal
        """Whether each token attends only to earlier ones. If not, all must be in the same micro-batch."""
        self.what = "sound" if _is_sound(native) else "picture"
        first, second = (_positions(native, start, self.n_tokens) for start in (0, 1))
        n_numbers = 4 if mrope else 1
        self._first, self._step = first[:n_numbers], (second - first)[:n_numbers]
        self._pointer: lib.mtmd_input_chunk_p | None = lib.mtmd_input_chunk_copy(native)

    @property
    def pointer(self) -> lib.mtmd_input_chunk_p:
        """Pointer to the chunk, as returned by libmtmd. Raises ValueError after close()."""
        if not self._pointer:
            raise ValueError("the contents of the chunk have been released")
        return self._pointer

    def positions(self, start: int) -> npt.NDArray[np.int32]:
        """Return the embeddings' positions, starting at `start`: [1, n_tokens], or [4, n_tokens] for M-RoPE.

        The four numbers are time, row, column and an unused one. All embeddings of an image have the same
        time, `start`; for a sound, all four numbers increase, as they do for tokens.
        """
        return self._first + start * self._step

    def close(self) -> None:
        """Free the contents."""
        if self._pointer:
            lib.mtmd_input_chunk_free(self._pointer)
            self._pointer = None


def _positions(native: lib.mtmd_input_chunk_p, start: int, n: int) -> npt.NDArray[np.int32]:
    """Return time, row, column and the unused number for each embedding [4, n]."""
    if _is_sound(native):
        return np.tile(np.arange(start, start + n, dtype=np.int32), (4, 1))
    found = (lib.mtmd_decoder_pos * n)()
    tokens = lib.mtmd_input_chunk_get_tokens_image(native)
    lib.mtmd_helper_image_get_decoder_pos(tokens, start, found)
    time, column, row, fourth = np.frombuffer(bytearray(found), np.int32).reshape(n, 4).T
    return np.stack((time, row, column, fourth))


def _is_sound(native: lib.mtmd_input_chunk_p) -> bool:
    return bool(lib.mtmd_input_chunk_get_type(native) == lib.MTMD_INPUT_CHUNK_TYPE_AUDIO)


_OTHER_FILE = "Download it again, or use the projector that was published with the model."
Chunk = TextChunk | MediaChunk


class Cancelled(Exception):
    """Encoding was stopped early."""


class Projector:
    """A loaded projector, which encodes one image or sound at a time. Its model must outlive it."""

    def __init__(
        self,
        path: Path,
        model: Model,
        *,
        device: str = "",
        threads: int = 1,
        max_tokens: int = 0,
    ) -> None:
        """Load `path`. Check its header first: a damaged file may end the process (see probe.py).

        device: llama.cpp's name for an accelerator; empty for the CPU. max_tokens: the limit per image for
        models that accept any size; 0 means the model's own limit. Raises OutOfMemory, or LoadFailed with
        llama.cpp's error.
        """
        ggml.start()
        logs.add(lib.mtmd_helper_log_set)
        _check_memory(path, device)
        self._between: Callable[[], bool] | None = None
        self._every = self._left_at = 0.0
        self._failure: BaseException | None = None
        self._on_operation = llama.ggml_backend_sched_eval_callback(self._operation)
        params = parameters(device=device, threads=threads, max_tokens=max_tokens)
        params.cb_eval = self._on_operation
        logs.last_errors.clear()
        self._pointer: lib.mtmd_context_p | None = lib.mtmd_init_from_file(
            str(path).encode(), model.pointer, params
        )
        if not self._pointer:
            raise logs.refusal()(f"llama.cpp cannot load {path.name}: {logs.cause()}", hint=_OTHER_FILE)
        self.name = path.name
        self.sees = bool(lib.mtmd_support_vision(self._pointer))
        self.hears = bool(lib.mtmd_support_audio(self._pointer))
        self.sample_rate = int(lib.mtmd_get_audio_sample_rate(self._pointer))
        """Sample rate of the audio that it accepts, or -1 if it accepts none."""
        self.uses_mrope = model.uses_mrope
        self._n_embd = int(llama.llama_model_n_embd_inp(model.pointer))
        try:
            self._check_marks()
        except BaseException:
            self.close()
            raise

    def _check_marks(self) -> None:
        """Raise LoadFailed if the text model lacks the tokens that surround images."""
        if not self.sees:
            return
        with closing(Bitmap(64, 64, None)) as blank:
            chunks = self.tokenize(blank)
        marks: list[int] = []
        for chunk in chunks:
            if isinstance(chunk, MediaChunk):
                chunk.close()
            else:
                marks += chunk.tokens
        if min(marks, default=0) < 0:
            raise LoadFailed(
                f"The model has no tokens for pictures: {self.name} belongs to another model.",
                hint=_OTHER_FILE,
            )

    @property
    def pointer(self) -> lib.mtmd_context_p:
        """Pointer to the projector, as returned by libmtmd. Raises ValueError after close()."""
        if not self._pointer:
            raise ValueError("the projector is closed")
        return self._pointer

    def tokenize(self, medium: Medium) -> list[Chunk]:
        """Cut an image or sound into one or more chunks, with the text that the model expects around it.

        This scales images, which takes 0.1 seconds for 16 megapixels, and turns sounds into spectrograms. The
        caller must close the chunks. Raises BadRequest for media that the model cannot handle.
        """
        if not (self.sees if isinstance(medium, Bitmap) else self.hears):
            raise BadRequest(
                f"{self.name} does not accept {medium.what}s.",
                hint=f"Use a model that accepts {medium.what}s.",
            )
        part = ctypes.pointer(lib.mtmd_input_part(bitmap=medium.pointer))
        logs.last_errors.clear()
        found = lib.mtmd_input_chunks_init()
        assert found is not None
        try:
            if lib.mtmd_tokenize_from_parts(self.pointer, found, ctypes.pointer(part), 1, False) != 0:
                raise _untakable(self.name, medium)
            chunks = [
                self._copied(lib.mtmd_input_chunks_get(found, index))
                for index in range(lib.mtmd_input_chunks_size(found))
            ]
        finally:
            lib.mtmd_input_chunks_free(found)
        for index, chunk in enumerate(chunk for chunk in chunks if isinstance(chunk, MediaChunk)):
            chunk.part = index
        return chunks

    def _copied(self, native: lib.mtmd_input_chunk_p) -> Chunk:
        if lib.mtmd_input_chunk_get_type(native) != lib.MTMD_INPUT_CHUNK_TYPE_TEXT:
            # If an image's tokens attend to each other, they must all be in one micro-batch.
            causal = not lib.mtmd_decode_use_non_causal(self.pointer, native)
            return MediaChunk(native, causal=causal, mrope=self.uses_mrope)
        count = ctypes.c_size_t()
        tokens = lib.mtmd_input_chunk_get_tokens_text(native, ctypes.byref(count))
        return TextChunk(tuple(tokens[: count.value]) if tokens else ())

    def encode(
        self, chunk: MediaChunk, *, between: Callable[[], bool] | None = None, every: float = 0.05
    ) -> npt.NDArray[np.float32]:
        """Return the embeddings of a chunk [n_tokens, n_embd].

        between: called in this thread between the encoder's operations, whenever `every` seconds have passed.
        It may compute anything, such as a batch of other sequences, but must not use this projector. If it
        returns False or raises an exception, encoding ends with Cancelled or with that exception. A single
        operation cannot be interrupted: attention takes 0.05 seconds for 512 x 512 pixels, 1.1 for SigLIP
        400M and 1.4 for 1024 x 1024; `max_tokens` limits this. Raises DecodeFailed if llama.cpp fails or
        computes NaN.
        """
        self._between, self._every, self._left_at = between, every, time.monotonic()
        self._failure = None
        logs.last_errors.clear()
        try:
            code = lib.mtmd_encode_chunk(self.pointer, chunk.pointer)
        finally:
            self._between = None
        if self._failure is not None:
            raise self._failure
        if code != 0:
            raise DecodeFailed(
                f"llama.cpp could not encode a {chunk.what}: {logs.cause()}",
                hint=f"Send it again; if that fails again, try a smaller {chunk.what}.",
            )
        output = lib.mtmd_get_output_embd(self.pointer)
        embeddings = np.ctypeslib.as_array(output, (chunk.n_tokens, self._n_embd)).copy()
        if not np.isfinite(embeddings).all():
            raise DecodeFailed("The projector produced NaN or infinite values.", hint=_OTHER_FILE)
        return embeddings

    def _operation(self, _tensor: int, ask: bool, _user: object) -> bool:
        """Handle `cb_eval`.

        Before an operation (`ask`), return whether to pause after it; after it, whether to continue.
        """
        if self._between is None:
            return False
        if ask or self._failure is not None:
            return ask
        if time.monotonic() - self._left_at < self._every:
            return True
        try:
            if not self._between():
                self._failure = Cancelled()
        except BaseException as error:  # ctypes would only print it
            self._failure = error
        self._left_at = time.monotonic()
        return self._failure is None

    def close(self) -> None:
        """Free the projector."""
        if self._pointer:
            lib.mtmd_free(self._pointer)
            self._pointer = None


def parameters(*, device: str = "", threads: int = 1, max_tokens: int = 0) -> lib.mtmd_context_params:
    """Return libmtmd's parameters for a projector; see `Projector` for the arguments."""
    params: lib.mtmd_context_params = lib.mtmd_context_params_default()
    params.use_gpu, params.device = bool(device), ctypes.c_void_p(_device(device))
    params.n_threads = threads
    params.print_timings = False
    if max_tokens:
        params.image_max_tokens = max_tokens
    return params


def _untakable(name: str, medium: Medium) -> BadRequest:
    if isinstance(medium, Bitmap):
        return BadRequest(
            f"{name} cannot process this picture: {logs.cause()}",
            hint="Crop it: a very long, narrow picture almost vanishes when scaled down.",
        )
    return BadRequest(f"{name} cannot process this sound: {logs.cause()}", hint="Send another part of it.")


def _device(name: str) -> int | None:
    """Return ggml's pointer to a device, or None for the CPU."""
    if not name:
        return None
    return ggml.device_handles((name,))[0]


def _check_memory(path: Path, device: str) -> None:
    """Raise OutOfMemory if the weights do not fit, since libmtmd does not check its allocations."""
    free, where = psutil.virtual_memory().available, "RAM"
    if handle := _device(device):
        free, where = ggml.device_memory(handle), device
    size = path.stat().st_size
    if size > free:
        raise OutOfMemory(
            f"The projector {path.name} takes {size >> 20} MiB, but {where} has only {free >> 20} MiB left.",
            hint="Close other programs, or load the model without it: --no-vision.",
        )
