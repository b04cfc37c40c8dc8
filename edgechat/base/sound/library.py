"""The sounds of a folder; see `edgechat.base.storage.file_library`."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from edgechat.base.errors import SoundNotStored
from edgechat.base.sound.decoding import SoundDecoder, SoundFacts
from edgechat.base.sound.sound import Sound
from edgechat.base.storage.file_library import FileLibrary, digest_of


class SoundLibrary(FileLibrary[SoundFacts, Sound]):
    """Sounds in a folder."""

    what = "sound"
    extensions: ClassVar[dict[str, str]] = {"wav": "wav", "mp3": "mp3", "flac": "flac"}
    not_stored = SoundNotStored

    def add(self, data: bytes, decoder: SoundDecoder) -> Sound:
        """Store a sound; one that is there already is only marked as used. Raises SoundError.

        decoder: checks the sound.
        """
        return self._used(digest_of(data)) or self._keep(data, decoder.inspect(data))

    def _read_facts(self, written: bytes) -> SoundFacts:
        return msgspec.json.decode(written, type=SoundFacts)

    def _found(self, digest: str, path: str, facts: SoundFacts) -> Sound:
        return Sound(digest, path, facts.seconds)
