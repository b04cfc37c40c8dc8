"""The headers of MP3 and FLAC files: how long they are, before a decoder is asked to find out."""

from __future__ import annotations

import re

from edgechat.base.process.file_decoder import NotDecodable
from edgechat.base.sound.sound import MAX_SECONDS, SoundFormat, check_shape

_KBITS = {
    1: (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    2: (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
"""Of a frame of MPEG 1, and of 2 and 2.5, by the index in its header. All are of layer III."""
_RATES = {3: (44100, 48000, 32000), 2: (22050, 24000, 16000), 0: (11025, 12000, 8000)}
"""Of MPEG 1, 2 and 2.5, by the bits of the version."""
_SYNC = re.compile(rb"\xff[\xe2\xe3\xf2\xf3\xfa\xfb]")
"""What a frame of layer III begins with."""
_STREAM_INFO = 34
_DAMAGED = "is damaged, or not complete"
_AGAIN = "Record or download it again; if it plays elsewhere, convert it to WAV."


def format_of(data: bytes) -> SoundFormat:
    """Return the format of a file, by its beginning. Raises NotDecodable."""
    if data[:4] == b"RIFF" and data[8:12] == b"WAVE":
        return "wav"
    if data[:4] == b"fLaC":
        return "flac"
    if data[:3] == b"ID3" or _SYNC.match(data):
        return "mp3"
    if not data:
        raise NotDecodable("is empty", "Record or download it again.")
    raise NotDecodable(
        "is not a sound, or is damaged",
        "Only WAV, MP3 and FLAC sounds can be used: convert it to one of them.",
    )


def check_mp3(data: bytes) -> None:
    """Walk from frame to frame. Raises NotDecodable for a file without any, or one that is too long."""
    at, seconds, shape = _after_tag(data), 0.0, None
    while (found := _SYNC.search(data, at)) is not None:
        at = found.start()
        frame = _mp3_frame(data[at : at + 4])
        if frame is None:
            at += 1
            continue
        length, samples, rate, channels = frame
        seconds += samples / rate
        shape = rate, channels
        if seconds > MAX_SECONDS:
            break
        at += length
    if shape is None:
        raise NotDecodable(_DAMAGED, _AGAIN)
    check_shape(seconds, *shape)


def _after_tag(data: bytes) -> int:
    """Return where an MP3 begins behind its ID3 tag, whose length has seven bits in each byte."""
    if data[:3] != b"ID3" or len(data) < 10:
        return 0
    size = 0
    for byte in data[6:10]:
        size = size << 7 | byte & 0x7F
    return 10 + size


def _mp3_frame(head: bytes) -> tuple[int, int, int, int] | None:
    """Return bytes, samples, rate and channels of a frame; None where this is no header of one."""
    if len(head) < 4:
        return None
    version, kbits, rate = head[1] >> 3 & 3, head[2] >> 4, head[2] >> 2 & 3
    if version == 1 or rate == 3 or kbits in (0, 15):
        return None
    rates, is_first = _RATES[version], version == 3
    samples = 1152 if is_first else 576
    bits = 1000 * _KBITS[1 if is_first else 2][kbits]
    length = samples // 8 * bits // rates[rate] + (head[2] >> 1 & 1)
    return length, samples, rates[rate], 1 if head[3] >> 6 == 3 else 2


def check_flac(data: bytes) -> None:
    """Read what a FLAC says of itself. Raises NotDecodable for one that is damaged or too long."""
    if len(data) < 8 + _STREAM_INFO or data[4] & 0x7F or int.from_bytes(data[5:8], "big") != _STREAM_INFO:
        raise NotDecodable(_DAMAGED, _AGAIN)
    numbers = int.from_bytes(data[18:26], "big")
    rate, channels, total = numbers >> 44, (numbers >> 41 & 7) + 1, numbers & 2**36 - 1
    if not total:
        raise NotDecodable("does not say how long it is", "Convert it to WAV.")
    check_shape(total / max(rate, 1), rate, channels)
