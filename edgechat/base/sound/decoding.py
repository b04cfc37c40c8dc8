"""Untrusted sound files, decoded in a child process: how long they are, and their samples.

Whatever is wrong with the file, the answer is a SoundError, within seconds.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import msgspec

from edgechat.base.errors import SoundError
from edgechat.base.process import file_decoder
from edgechat.base.process.file_decoder import FileDecoder
from edgechat.base.sound.sound import SAMPLE_BYTES, Samples, SoundFormat

TIME_LIMIT = 20.0
"""Seconds for one sound; half an hour of MP3 takes four."""
MEMORY_LIMIT = 1536 * 2**20
"""Bytes that the process may take."""


class DecodeSound(msgspec.Struct, frozen=True, tag=True):
    """Decode the file that was sent, and keep its samples until the next one."""

    rate: int
    """Samples of a second that are wanted; 0: find out only whether it can be decoded."""


class Span(msgspec.Struct, frozen=True, tag=True):
    """Return some of the samples."""

    first: int
    count: int


class DecodedSound(msgspec.Struct, frozen=True):
    """The sound, or what is wrong with the file: `problem` goes on after its name."""

    format: SoundFormat = "wav"
    seconds: float = 0.0
    n_samples: int = 0
    problem: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class SoundFacts:
    """What a sound is that can be decoded."""

    format: SoundFormat
    seconds: float


class SoundDecoder(FileDecoder):
    """Decodes sounds; see `FileDecoder`."""

    role = what = "sound"
    error = unready = lost = SoundError
    smaller = "Save it as MP3, or cut it into parts."
    otherwise = "Open it in an audio editor, and save it from there as WAV, or shorter."

    def __init__(self) -> None:
        super().__init__(seconds=TIME_LIMIT, memory=MEMORY_LIMIT)

    def inspect(self, source: Path | bytes, *, name: str | None = None) -> SoundFacts:
        """Return what a sound is. It is decoded: one that is damaged further on is found out."""
        decoded = self._decode(source, 0, name or self.name_of(source))
        return SoundFacts(decoded.format, decoded.seconds)

    def samples(self, source: Path | bytes, rate: int, *, name: str | None = None) -> Samples:
        """Return a sound at a rate: the mean of its channels."""
        name = name or self.name_of(source)
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
