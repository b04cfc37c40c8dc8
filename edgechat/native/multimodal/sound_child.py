"""Child process that decodes sounds; see `edgechat.base.sound.decoding`.

WAV is parsed here. MP3 and FLAC are decoded by miniaudio in libmtmd, which requires a projector that hears:
the smallest possible one, an encoder without layers, is written and loaded. It decodes to 16,000 samples per
second, the rate of nearly all models.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from edgechat.base.process import child, spawn
from edgechat.base.process.file_decoder import FilePart, NotDecodable
from edgechat.base.sound.compressed import check_flac, check_mp3, format_of
from edgechat.base.sound.decoding import MEMORY_LIMIT, TIME_LIMIT, DecodedSound, DecodeSound, Span
from edgechat.base.sound.resampling import resampled
from edgechat.base.sound.sound import SoundFormat, check_shape
from edgechat.base.sound.wav import Mono, read_wav

_AGAIN = "Open it in an audio editor; if that plays it, save it from there as WAV."
_UINT32, _FLOAT32, _BOOL, _STRING = 4, 6, 7, 8
"""GGUF's type numbers."""
_LAYOUTS = {_UINT32: "<I", _FLOAT32: "<f", _BOOL: "<?"}
_KEYS: tuple[tuple[str, int, Any], ...] = (
    ("general.architecture", _STRING, "clip"),
    ("clip.has_audio_encoder", _BOOL, True),
    ("clip.projector_type", _STRING, "gemma4ua"),
    ("clip.audio.embedding_length", _UINT32, 1),
    ("clip.audio.attention.head_count", _UINT32, 1),
    ("clip.audio.feed_forward_length", _UINT32, 1),
    ("clip.audio.block_count", _UINT32, 0),
    ("clip.audio.projection_dim", _UINT32, 1),
    ("clip.audio.attention.layer_norm_epsilon", _FLOAT32, 1e-6),
    ("clip.audio.num_mel_bins", _UINT32, 640),
)
_WEIGHTS, _N_WEIGHTS = "mm.a.input_projection.weight", 640


def main() -> None:
    """Answer FilePart with nothing, DecodeSound with DecodedSound, Span with bytes."""
    child.serve(spawn.adopt_pipe(), _SoundDecoding().answer, seconds=int(TIME_LIMIT) + 5)


class _SoundDecoding:
    """Received bytes of a file, then its samples."""

    def __init__(self) -> None:
        self._file = bytearray()
        self._sound: Mono = np.empty(0, np.float32)

    def answer(self, question: bytes) -> bytes:
        """Return the answer to one message of the parent."""
        match msgspec.msgpack.decode(question, type=FilePart | DecodeSound | Span):
            case FilePart(data):
                self._sound = np.empty(0, np.float32)
                self._file += data
            case DecodeSound(rate):
                file, self._file = bytes(self._file), bytearray()
                answer, self._sound = _decode(file, rate)
                return msgspec.msgpack.encode(answer)
            case Span(first, count):
                return self._sound[first : first + count].tobytes()
        return b""


def _decode(file: bytes, rate: int) -> tuple[DecodedSound, Mono]:
    """Return the sound and, unless `rate` is 0, its samples. Any exception becomes a problem."""
    nothing: Mono = np.empty(0, np.float32)
    try:
        kind = format_of(file)
        own_rate, sound = read_wav(file) if kind == "wav" else _decompressed(file, kind)
        seconds = len(sound) / own_rate
        if rate:
            sound = resampled(sound, own_rate, rate)
        return DecodedSound(kind, seconds, len(sound)), sound if rate else nothing
    except NotDecodable as error:
        return DecodedSound(problem=error.problem, hint=error.hint), nothing
    except MemoryError:
        return DecodedSound(problem="takes too much memory to decode", hint="Cut it into parts."), nothing
    except Exception as error:
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        return DecodedSound(problem=f"is damaged, or not complete ({reason})", hint=_AGAIN), nothing


def _decompressed(file: bytes, kind: SoundFormat) -> tuple[int, Mono]:
    """Return the sample rate and the samples of an MP3 or FLAC file."""
    (check_mp3 if kind == "mp3" else check_flac)(file)
    context = _smallest_ear()
    from edgechat.native.multimodal.library import lib

    rate = int(lib.mtmd_get_audio_sample_rate(context))
    data = (ctypes.c_uint8 * len(file)).from_buffer_copy(file)
    bitmap = lib.mtmd_helper_bitmap_init_from_buf(context, data, len(file), False)
    if not bitmap:
        raise NotDecodable("is damaged, or not complete", _AGAIN)
    try:
        n = int(lib.mtmd_bitmap_get_nx(bitmap))
        check_shape(n / rate, rate, 1)
        raw = ctypes.string_at(lib.mtmd_bitmap_get_data(bitmap), lib.mtmd_bitmap_get_n_bytes(bitmap))
    finally:
        lib.mtmd_bitmap_free(bitmap)
    sound = np.frombuffer(raw, np.float32)
    if not np.isfinite(sound).all():
        raise NotDecodable("has samples that are infinite, or no numbers", _AGAIN)
    return rate, np.clip(sound, -1, 1)


@cache
def _smallest_ear() -> Any:
    """Load the smallest projector that hears, once. Raises NotDecodable."""
    from edgechat.base.errors import BackendMissing

    try:
        from edgechat.native import ggml, logs
        from edgechat.native.multimodal.library import lib
        from edgechat.native.multimodal.projector import parameters
    except BackendMissing:
        raise NotDecodable("is compressed, and this build cannot decode it", "Convert it to WAV.") from None
    logs.install()
    ggml.start()
    logs.add(lib.mtmd_helper_log_set)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "ear.gguf"
        path.write_bytes(_ear())
        params = parameters()
        params.warmup = False
        context = lib.mtmd_init_from_file(str(path).encode(), None, params)
    if not context:
        raise NotDecodable(f"is compressed, and cannot be decoded ({logs.cause()})", "Convert it to WAV.")
    _limit_memory()
    return context


def _limit_memory() -> None:
    """Limit the decoder's memory, beyond what GPU libraries have already reserved."""
    with contextlib.suppress(OSError, ValueError, IndexError, AttributeError):
        n_pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        child.limit_memory(n_pages * os.sysconf("SC_PAGE_SIZE") + MEMORY_LIMIT)


def _ear() -> bytes:
    """Return a projector file with one weight per sample of a frame."""
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, len(_KEYS)) + b"".join(_entries(_KEYS))
    head += _text(_WEIGHTS) + struct.pack("<IQQIQ", 2, _N_WEIGHTS, 1, 0, 0)
    return head + bytes(-len(head) % 32) + bytes(4 * _N_WEIGHTS)


def _entries(keys: Iterable[tuple[str, int, Any]]) -> Iterable[bytes]:
    for key, kind, value in keys:
        packed = _text(value) if kind == _STRING else struct.pack(_LAYOUTS[kind], value)
        yield _text(key) + struct.pack("<I", kind) + packed


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()
