"""Sounds: their description in messages, their decoder in a child process, and their library on disk.

Whatever is wrong with a file, the result is a SoundError within seconds.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import msgspec

from edgechat.base.errors import SoundError, SoundNotStored
from edgechat.base.file_library import FileLibrary, digest_of
from edgechat.base.process import file_decoder
from edgechat.base.process.file_decoder import FileDecoder, NotDecodable

MAX_SECONDS = 1800
"""Maximum length of a sound in seconds; for a model, half an hour is 115 MB and up to 45,000 tokens."""
MIN_RATE, MAX_RATE = 4000, 384_000
"""Limits on a file's sample rate, in samples per second."""
MAX_CHANNELS = 8
SAMPLE_BYTES = 4

SoundFormat = Literal["wav", "mp3", "flac"]


class Samples(msgspec.Struct, frozen=True):
    """A decoded sound with one channel."""

    rate: int
    pcm: bytes
    """32-bit floats between -1 and 1, little-endian."""


class Sound(msgspec.Struct, frozen=True, tag="sound"):
    """An audio clip stored on this machine."""

    digest: str
    """BLAKE2b of the file's bytes (32 hexadecimal digits), which identifies the sound under any name."""
    path: str
    """The file, which exists until the reply has ended."""
    seconds: float


def check_shape(seconds: float, rate: int, channels: int) -> None:
    """Raise NotDecodable if a sound is empty or too long, or has an unusual rate or number of channels."""
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


TIME_LIMIT = 20.0
"""Number of seconds allowed per sound; half an hour of MP3 takes one."""
MEMORY_LIMIT = 1536 * 2**20
"""Memory limit for the process, in bytes."""


class DecodeSound(msgspec.Struct, frozen=True, tag=True):
    """Request to decode the file that was sent, and to keep its samples until another file is sent."""

    rate: int
    """Samples per second, or 0 to check only whether the sound can be decoded."""


class Span(msgspec.Struct, frozen=True, tag=True):
    """Request for some of the samples."""

    first: int
    count: int


class DecodedSound(msgspec.Struct, frozen=True):
    """A description of the decoded sound. If the file cannot be decoded, `problem` completes 'FILE ...'."""

    format: SoundFormat = "wav"
    seconds: float = 0.0
    n_samples: int = 0
    problem: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class SoundFacts:
    """Format and length of a sound that can be decoded."""

    format: SoundFormat
    seconds: float


class SoundDecoder(FileDecoder):
    """Decodes sounds; see `FileDecoder`."""

    role = what = "sound"
    error = unready = lost = SoundError
    smaller = "Save it as MP3, or cut it into parts."
    otherwise = "Open it in an audio editor, and save it from there as WAV, or shorten it."

    def __init__(self) -> None:
        super().__init__(seconds=TIME_LIMIT, memory=MEMORY_LIMIT)

    def inspect(self, source: Path | bytes) -> SoundFacts:
        """Return a sound's format and length. The whole sound is decoded, to detect any damage."""
        decoded = self._decode(source, 0, self.name_of(source))
        return SoundFacts(decoded.format, decoded.seconds)

    def samples(self, source: Path | bytes, rate: int) -> Samples:
        """Return a sound's samples, averaged over its channels, at `rate` samples per second."""
        name = self.name_of(source)
        decoded = self._decode(source, rate, name)
        pcm = io.BytesIO()
        count = max(1, file_decoder.PART // SAMPLE_BYTES)
        for first in range(0, decoded.n_samples, count):
            pcm.write(self._ask(Span(first, count), name))
        return Samples(rate, pcm.getvalue())

    def _decode(self, source: Path | bytes, rate: int, name: str) -> DecodedSound:
        self._send(source, name)
        decoded = msgspec.msgpack.decode(self._ask(DecodeSound(rate), name), type=DecodedSound)
        if decoded.problem:
            raise self._problem(name, decoded.problem, decoded.hint)
        return decoded


class SoundLibrary(FileLibrary[SoundFacts, Sound]):
    """Sounds in a folder."""

    what = "sound"
    extensions: ClassVar[dict[str, str]] = {"wav": "wav", "mp3": "mp3", "flac": "flac"}
    not_stored = SoundNotStored
    facts = SoundFacts

    def add(self, data: bytes, decoder: SoundDecoder) -> Sound:
        """Check and store a sound, or mark it as used if it is already stored. Raises SoundError."""
        return self._used(digest_of(data)) or self._keep(data, decoder.inspect(data))

    def _found(self, digest: str, path: str, facts: SoundFacts) -> Sound:
        return Sound(digest, path, facts.seconds)
