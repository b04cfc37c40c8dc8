"""WAV files: PCM of 8 to 32 bits and floats, by their chunks, with every length checked.

A recorder that writes to a pipe cannot know the length of its data and says 2**32 - 1; then they go to the
end of the file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgechat.base.process.file_decoder import NotDecodable
from edgechat.base.sound.sound import check_shape

Mono = npt.NDArray[np.float32]

_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_UNKNOWN = 2**32 - 1
_MOST_CHUNKS = 1000
_BLOCK = 1 << 18
"""Frames that are converted at once."""
_DTYPES = {
    (_PCM, 8): "u1",
    (_PCM, 16): "<i2",
    (_PCM, 24): "u1",
    (_PCM, 32): "<i4",
    (_FLOAT, 32): "<f4",
    (_FLOAT, 64): "<f8",
}
"""By format and bits; 24 bits are three bytes."""
_AGAIN = "Record or download it again; if it plays elsewhere, convert it to 16-bit PCM."


@dataclass(frozen=True, slots=True)
class _WavHeader:
    kind: int
    bits: int
    channels: int
    rate: int


def read_wav(data: bytes) -> tuple[int, Mono]:
    """Return the samples of a second, and the samples: the mean of all channels. Raises NotDecodable."""
    header: _WavHeader | None = None
    for name, start, size in _chunks(data):
        if name == b"fmt ":
            header = _header(data[start : start + size])
        elif name == b"data":
            if header is None:
                raise NotDecodable("has no format before its samples", _AGAIN)
            return header.rate, _samples(header, memoryview(data)[start : start + size])
    raise NotDecodable("contains no samples", _AGAIN)


def _chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield names, starts and sizes."""
    at = 12
    for _ in range(_MOST_CHUNKS):
        if at + 8 > len(data):
            return
        name, size = data[at : at + 4], struct.unpack_from("<I", data, at + 4)[0]
        there = len(data) - at - 8
        if name == b"data" and size == _UNKNOWN:
            size = there
        if size > there:
            raise NotDecodable(
                f"is damaged, or not complete ({size} bytes should follow, and there are {there})", _AGAIN
            )
        yield name, at + 8, size
        at += 8 + size + size % 2


def _header(chunk: bytes) -> _WavHeader:
    if len(chunk) < 16:
        raise NotDecodable("has a damaged header", _AGAIN)
    kind, channels, rate, _, frame, bits = struct.unpack_from("<HHIIHH", chunk)
    if kind == _EXTENSIBLE and len(chunk) >= 26:
        kind = struct.unpack_from("<H", chunk, 24)[0]
    if (kind, bits) not in _DTYPES:
        raise NotDecodable(
            f"has samples of a kind that cannot be read (format {kind}, {bits} bits)",
            "Convert it to 16-bit PCM.",
        )
    check_shape(1, rate, channels)
    if frame != channels * bits // 8:
        raise NotDecodable(f"has a damaged header ({frame} bytes for {channels} samples)", _AGAIN)
    return _WavHeader(kind, bits, channels, rate)


def _samples(header: _WavHeader, raw: memoryview) -> Mono:
    frame = header.channels * header.bits // 8
    n = len(raw) // frame
    check_shape(n / header.rate, header.rate, header.channels)
    mono = np.empty(n, np.float32)
    for start in range(0, n, _BLOCK):
        block = raw[start * frame : min(n, start + _BLOCK) * frame]
        mono[start : start + _BLOCK] = _converted(header, block).reshape(-1, header.channels).mean(axis=1)
    return mono


def _converted(header: _WavHeader, raw: memoryview) -> npt.NDArray[np.float64]:
    """Return samples between -1 and 1, those of all channels side by side."""
    numbers = np.frombuffer(raw, _DTYPES[header.kind, header.bits])
    if header.bits == 24:
        padded = np.zeros((len(numbers) // 3, 4), np.uint8)
        padded[:, 1:] = numbers.reshape(-1, 3)
        numbers = padded.view("<i4")[:, 0] >> 8
    found: npt.NDArray[np.float64] = numbers.astype(np.float64)
    if header.kind == _FLOAT:
        if not np.isfinite(found).all():
            raise NotDecodable("has samples that are infinite, or no numbers", _AGAIN)
        return found.clip(-1, 1)
    if header.bits == 8:
        found -= 128
    found /= 2 ** (header.bits - 1)
    return found
