"""Child process that decodes sounds with miniaudio; see `edgechat.base.sound.sound`."""

from __future__ import annotations

import math
import re

import miniaudio
import msgspec
import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

from edgechat.base.process import child, spawn
from edgechat.base.process.file_decoder import FilePart, NotDecodable, problem_of
from edgechat.base.sound.sound import (
    MAX_SECONDS,
    MEMORY_LIMIT,
    TIME_LIMIT,
    DecodedSound,
    DecodeSound,
    SoundFormat,
    Span,
    check_shape,
)

Mono = npt.NDArray[np.float32]

_INFO = {"wav": miniaudio.wav_get_info, "mp3": miniaudio.mp3_get_info, "flac": miniaudio.flac_get_info}
_MP3_FRAME = re.compile(rb"ID3|\xff[\xe2\xe3\xf2\xf3\xfa\xfb]")
"""The start of an MP3: a tag, or a layer III frame."""
_BLOCK = 1 << 16
"""Number of samples decoded at once."""
_ZEROS = 16
"""Number of zero crossings of the filter on each side."""
_ROLL_OFF = 0.94
"""Cutoff of the filter, as a fraction of the highest frequency that the lower rate can represent."""
_MOST_ROWS = 1 << 16
"""Number of output samples computed at once."""
_AGAIN = "Record or download it again; if it plays elsewhere, save it from there as 16-bit WAV."


def main() -> None:
    """Answer FilePart with an empty message, DecodeSound with DecodedSound, and Span with bytes."""
    child.limit_memory(MEMORY_LIMIT)
    child.serve(spawn.adopt_pipe(), _SoundDecoding().answer, seconds=int(TIME_LIMIT) + 5)


class _SoundDecoding:
    """Collects the parts of a file, then holds its samples."""

    def __init__(self) -> None:
        self._file = bytearray()
        self._sound: Mono = np.empty(0, np.float32)

    def answer(self, question: bytes) -> bytes:
        """Return the answer to one message from the parent."""
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
    """Return the sound and, unless `rate` is 0, its samples.

    Any exception is reported as a problem with the file.
    """
    nothing: Mono = np.empty(0, np.float32)
    try:
        kind = _format_of(file)
        own_rate, sound = _samples(file, kind)
        seconds = len(sound) / own_rate
        if rate:
            sound = resampled(sound, own_rate, rate)
        return DecodedSound(kind, seconds, len(sound)), sound if rate else nothing
    except Exception as error:
        wrong = problem_of(error, smaller="Cut it into parts.", again=_AGAIN)
        return DecodedSound(problem=wrong.problem, hint=wrong.hint), nothing


def _format_of(data: bytes) -> SoundFormat:
    """Return a file's format, judging by its first bytes. Raises NotDecodable."""
    if data[:4] == b"RIFF" and data[8:12] == b"WAVE":
        return "wav"
    if data[:4] == b"fLaC":
        return "flac"
    if _MP3_FRAME.match(data):
        return "mp3"
    if not data:
        raise NotDecodable("is empty", "Record or download it again.")
    raise NotDecodable(
        "is not an audio file, or is damaged",
        "Only WAV, MP3 and FLAC audio can be used: convert it to one of them.",
    )


def _samples(file: bytes, kind: SoundFormat) -> tuple[int, Mono]:
    """Return a sound's sample rate and its samples, averaged over the channels. Raises NotDecodable.

    The samples are between -1 and 1.
    """
    try:
        info = _INFO[kind](file)
        check_shape(1, info.sample_rate, info.nchannels)
        blocks: list[Mono] = []
        seconds = 0.0
        for block in miniaudio.stream_memory(
            file, miniaudio.SampleFormat.FLOAT32, 1, info.sample_rate, frames_to_read=_BLOCK
        ):
            blocks.append(np.array(block, np.float32))
            seconds += len(block) / info.sample_rate
            if seconds > MAX_SECONDS:
                break
    except (miniaudio.DecodeError, ZeroDivisionError):
        raise NotDecodable("is damaged, or has samples of a kind that cannot be read", _AGAIN) from None
    check_shape(seconds, info.sample_rate, info.nchannels)
    sound: Mono = np.concatenate(blocks)
    if not np.isfinite(sound).all():
        raise NotDecodable("has samples that are infinite, or not numbers", _AGAIN)
    return info.sample_rate, np.clip(sound, -1, 1, out=sound)


def resampled(sound: Mono, rate: int, to: int) -> Mono:
    """Resample a sound using J. O. Smith's bandlimited interpolation. Its duration stays the same.

    If the ratio of the rates is up / down, output samples that are `up` apart use the same filter, and their
    inputs are `down` samples apart.
    """
    if rate == to or not len(sound):
        return sound
    shared = math.gcd(rate, to)
    up, down = to // shared, rate // shared
    cutoff = _ROLL_OFF * min(1.0, to / rate)
    half = math.ceil(_ZEROS / cutoff)
    n = -(-len(sound) * up // down)
    padded = np.zeros(len(sound) + 2 * half + down + 1, np.float32)
    padded[half : half + len(sound)] = sound
    made = np.empty(n, np.float32)
    for phase in range(min(up, n)):
        first, rest = divmod(phase * down, up)
        weights = _filter(rest / up, cutoff, half)
        count = len(range(phase, n, up))
        for at in range(0, count, _MOST_ROWS):
            rows = min(_MOST_ROWS, count - at)
            start = padded[first + at * down + 1 :]
            windows = as_strided(start, (rows, 2 * half), (down * padded.itemsize, padded.itemsize))
            made[phase + at * up : phase + (at + rows - 1) * up + 1 : up] = windows.copy() @ weights
    return made


def _filter(fraction: float, cutoff: float, half: int) -> Mono:
    """Return the weights of 2 * half inputs for a point between the middle two."""
    distances = np.arange(1 - half, half + 1) - fraction
    window = np.cos(np.clip(distances / half, -1, 1) * np.pi / 2) ** 2
    weights = np.sinc(cutoff * distances) * window
    made: Mono = (weights / weights.sum()).astype(np.float32)
    return made
