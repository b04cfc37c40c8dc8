"""What a message says of its sounds, and how long they may be."""

from __future__ import annotations

from typing import Literal

import msgspec

from edgechat.base.process.file_decoder import NotDecodable

MAX_SECONDS = 1800
"""Of a sound: half an hour, in 115 MB as a model hears it, and up to 45,000 tokens."""
MIN_RATE, MAX_RATE = 4000, 384_000
"""Samples of a second, as a file has them."""
MAX_CHANNELS = 8
SAMPLE_BYTES = 4

SoundFormat = Literal["wav", "mp3", "flac"]


class Samples(msgspec.Struct, frozen=True):
    """A decoded sound, one channel."""

    rate: int
    pcm: bytes
    """Floats of 32 bits between -1 and 1, little endian."""


class Sound(msgspec.Struct, frozen=True, tag="sound"):
    """A sound that is on this machine."""

    digest: str
    """BLAKE2b of the file's bytes, 32 hexadecimal digits: the same sound, whatever it is called."""
    path: str
    """The file, which stays until the reply has ended."""
    seconds: float


def check_shape(seconds: float, rate: int, channels: int) -> None:
    """Raise NotDecodable for a sound that is longer, or has more of anything, than is decoded."""
    if not MIN_RATE <= rate <= MAX_RATE:
        raise NotDecodable(
            f"has {rate} samples a second; {MIN_RATE} to {MAX_RATE} can be used", "Convert it to 16 kHz."
        )
    if not 1 <= channels <= MAX_CHANNELS:
        raise NotDecodable(f"has {channels} channels; up to {MAX_CHANNELS} can be used", "Mix them down.")
    if seconds > MAX_SECONDS:
        raise NotDecodable(f"is longer than {MAX_SECONDS // 60} minutes, the limit", "Cut it into parts.")
    if seconds <= 0:
        raise NotDecodable("is empty", "Record or download it again.")
