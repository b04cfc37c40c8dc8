"""Images: their description in messages, their decoder in a child process, and their library on disk.

Whatever is wrong with a file, the result is an ImageError within seconds. Pixels are sent in bands of rows.
"""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import msgspec

from edgechat.base.errors import ImageError, ImageNotStored
from edgechat.base.file_library import FileLibrary, digest_of
from edgechat.base.process import file_decoder
from edgechat.base.process.file_decoder import FileDecoder

PLACE = "\N{OBJECT REPLACEMENT CHARACTER}"
"""The mark for an image or sound in a message's text. Files without a mark come before the text."""
MAX_SIDE = 1 << 14
"""Maximum width and height of a decoded image, in pixels."""
MAX_PIXELS = 1 << 26
"""Maximum number of pixels (67 million, 200 MB): libmtmd needs the whole image to scale it down."""


class Pixels(msgspec.Struct, frozen=True):
    """A decoded image."""

    width: int
    height: int
    rgb: bytes
    """Three bytes per pixel, row by row."""


class Image(msgspec.Struct, frozen=True, tag="image"):
    """An image on this machine."""

    digest: str
    """BLAKE2b of the file's bytes (32 hexadecimal digits), which identifies the image under any name."""
    path: str
    """The file, which exists until the reply has ended."""
    width: int
    """Width in pixels, as decoded: after EXIF rotation, and scaled down if the image exceeds MAX_PIXELS."""
    height: int


TIME_LIMIT = 20.0
"""Number of seconds allowed per image; the largest take two or three."""
MEMORY_LIMIT = 1536 * 2**20
"""Memory limit for the process, in bytes; the largest images with transparency take half of it."""

Format = Literal["png", "jpeg", "webp", "gif", "bmp", "heic"]


class Decode(msgspec.Struct, frozen=True, tag=True):
    """Request to decode the file that was sent, and to keep its pixels until another file is sent."""

    most_pixels: int
    box: tuple[int, int] | None = None
    """Maximum width and height, in pixels."""
    check: bool = False
    """Whether only to check that the file can be decoded."""


class Rows(msgspec.Struct, frozen=True, tag=True):
    """Request for the pixels of some rows, as RGB."""

    first: int
    count: int


class Decoded(msgspec.Struct, frozen=True):
    """A description of the decoded image. If the file cannot be decoded, `problem` completes 'FILE ...'."""

    format: Format = "png"
    width: int = 0
    height: int = 0
    problem: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """Format and size of an image that can be decoded."""

    format: Format
    width: int
    """The width that `Decoder.pixels` returns: after EXIF rotation, and scaled down if the image is too
    large.
    """
    height: int


class Decoder(FileDecoder):
    """Decodes images; see `FileDecoder`."""

    role = what = "image"
    error = unready = lost = ImageError
    smaller = "Save it as JPEG, or at a smaller size."
    otherwise = "Open it in an image viewer, and save it from there as PNG, or at a smaller size."

    def __init__(self) -> None:
        super().__init__(seconds=TIME_LIMIT, memory=MEMORY_LIMIT)

    def inspect(self, source: Path | bytes, *, name: str | None = None) -> ImageFacts:
        """Return an image's format and size. The whole image is decoded, to detect any damage."""
        decoded = self._decode(source, Decode(MAX_PIXELS, check=True), name or self.name_of(source))
        return ImageFacts(decoded.format, decoded.width, decoded.height)

    def pixels(
        self,
        source: Path | bytes,
        *,
        most_pixels: int = MAX_PIXELS,
        box: tuple[int, int] | None = None,
    ) -> Pixels:
        """Return an image as RGB, rotated according to its EXIF data, on a white background.

        Only the first frame of an animation is returned. An image with more than `most_pixels` is first
        scaled down by a power of two. The result is then scaled down to fit exactly into `box` (a width and a
        height), if given.
        """
        name = self.name_of(source)
        decoded = self._decode(source, Decode(min(most_pixels, MAX_PIXELS), box), name)
        rgb = io.BytesIO()  # its bytes need not be copied at the end
        count = max(1, file_decoder.PART // (3 * decoded.width))
        for first in range(0, decoded.height, count):
            rgb.write(self._ask(Rows(first, count), name))
        return Pixels(decoded.width, decoded.height, rgb.getvalue())

    def _decode(self, source: Path | bytes, how: Decode, name: str) -> Decoded:
        self._send(source, name)
        decoded = msgspec.msgpack.decode(self._ask(how, name), type=Decoded)
        if decoded.problem:
            raise self._problem(name, decoded.problem, decoded.hint)
        return decoded


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
    facts = ImageFacts

    def add(self, data: bytes, *, name: str | None = None, decoder: Decoder | None = None) -> Image:
        """Store an image, or mark it as used if it is already stored. Raises ImageError.

        name: how error messages refer to the image. decoder: checks the image; if None, a new one is started.
        """
        if (image := self._used(digest_of(data))) is not None:
            return image
        with contextlib.nullcontext(decoder) if decoder is not None else Decoder() as checks:
            return self._keep(data, checks.inspect(data, name=name))

    def add_file(self, path: Path) -> Image:
        """Store a copy of a file. Raises ImageError, including for pipes and devices."""
        return self.add(Decoder.read_file(path), name=Decoder.name_of(path))

    def _found(self, digest: str, path: str, facts: ImageFacts) -> Image:
        return Image(digest, path, facts.width, facts.height)
