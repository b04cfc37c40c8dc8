"""The images of a folder; see `edgechat.base.storage.file_library`."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import ClassVar

import msgspec

from edgechat.base.errors import ImageNotStored
from edgechat.base.images.decoding import Decoder, ImageFacts, name_of, read_file
from edgechat.base.images.image import Image
from edgechat.base.storage.file_library import FileLibrary, digest_of

__all__ = ["ImageLibrary", "digest_of"]


class ImageLibrary(FileLibrary[ImageFacts, Image]):
    """Images in a folder."""

    what = "image"
    extensions: ClassVar[dict[str, str]] = {
        "png": "png",
        "jpeg": "jpg",
        "webp": "webp",
        "gif": "gif",
        "bmp": "bmp",
        "heic": "heic",
    }
    not_stored = ImageNotStored

    def add(self, data: bytes, *, name: str | None = None, decoder: Decoder | None = None) -> Image:
        """Store an image; one that is there already is only marked as used. Raises ImageError.

        name: begins the error's message. decoder: checks the image; None starts one.
        """
        if (image := self._used(digest_of(data))) is not None:
            return image
        with contextlib.nullcontext(decoder) if decoder is not None else Decoder() as checks:
            return self._keep(data, checks.inspect(data, name=name))

    def add_file(self, path: Path) -> Image:
        """Store a copy of a file. Raises ImageError, also for a pipe or a device."""
        return self.add(read_file(path), name=name_of(path))

    def _read_facts(self, written: bytes) -> ImageFacts:
        return msgspec.json.decode(written, type=ImageFacts)

    def _found(self, digest: str, path: str, facts: ImageFacts) -> Image:
        return Image(digest, path, facts.width, facts.height)
