"""Images: what a message says of them, decoding them in a child process, and the library that keeps them.

Whatever is wrong with a file, the answer is an ImageError within seconds. Pixels come in bands of rows.
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
"""Stands in a message's text where an image or a sound belongs; those without one come before the text."""
MAX_SIDE = 1 << 14
"""Pixels of a decoded image."""
MAX_PIXELS = 1 << 26
"""67 million, in 200 MB: libmtmd takes an image whole before it scales it down."""


class Pixels(msgspec.Struct, frozen=True):
    """A decoded image."""

    width: int
    height: int
    rgb: bytes
    """Three bytes a pixel, row by row."""


class Image(msgspec.Struct, frozen=True, tag="image"):
    """An image that is on this machine."""

    digest: str
    """BLAKE2b of the file's bytes, 32 hexadecimal digits: the same image, whatever it is called."""
    path: str
    """The file, which stays until the reply has ended."""
    width: int
    """Pixels, as it is decoded: after EXIF rotation, and scaled down if there are more than MAX_PIXELS."""
    height: int


TIME_LIMIT = 20.0
"""Seconds for one image; the largest ones take two or three."""
MEMORY_LIMIT = 1536 * 2**20
"""Bytes that the process may take; the largest images with transparency take half of it."""

Format = Literal["png", "jpeg", "webp", "gif", "bmp", "heic"]


class Decode(msgspec.Struct, frozen=True, tag=True):
    """Decode the file that was sent, and keep its pixels until the next one."""

    most_pixels: int
    box: tuple[int, int] | None = None
    """The width and height that it may have at most, in pixels."""
    check: bool = False
    """Find out only whether it can be decoded."""


class Rows(msgspec.Struct, frozen=True, tag=True):
    """Return the pixels of some rows, as RGB."""

    first: int
    count: int


class Decoded(msgspec.Struct, frozen=True):
    """The image, or what is wrong with the file: `problem` goes on after its name."""

    format: Format = "png"
    width: int = 0
    height: int = 0
    problem: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """What an image is that can be decoded."""

    format: Format
    width: int
    """Of what `pixels` returns: after EXIF rotation, and scaled down where that is too large."""
    height: int


class Decoder(FileDecoder):
    """Decodes images; see `FileDecoder`."""

    role = what = "image"
    error = unready = lost = ImageError
    smaller = "Save it as JPEG, or smaller."
    otherwise = "Open it in an image viewer, and save it from there as PNG, or smaller."

    def __init__(self) -> None:
        super().__init__(seconds=TIME_LIMIT, memory=MEMORY_LIMIT)

    def inspect(self, source: Path | bytes, *, name: str | None = None) -> ImageFacts:
        """Return what an image is. It is decoded: one that is damaged further on is found out."""
        decoded = self._decode(source, Decode(MAX_PIXELS, check=True), name or self.name_of(source))
        return ImageFacts(decoded.format, decoded.width, decoded.height)

    def pixels(
        self,
        source: Path | bytes,
        *,
        most_pixels: int = MAX_PIXELS,
        box: tuple[int, int] | None = None,
        name: str | None = None,
    ) -> Pixels:
        """Return an image as RGB: rotated by its EXIF data, transparency on white, of an animation the first.

        One with more than `most_pixels` is scaled down, by a power of two; then exactly, to fit into `box`, a
        width and a height.
        """
        name = name or self.name_of(source)
        decoded = self._decode(source, Decode(min(most_pixels, MAX_PIXELS), box), name)
        rgb = io.BytesIO()  # whose bytes need not be copied at the end
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
        """Store an image; one that is there already is only marked as used. Raises ImageError.

        name: begins the error's message. decoder: checks the image; None starts one.
        """
        if (image := self._used(digest_of(data))) is not None:
            return image
        with contextlib.nullcontext(decoder) if decoder is not None else Decoder() as checks:
            return self._keep(data, checks.inspect(data, name=name))

    def add_file(self, path: Path) -> Image:
        """Store a copy of a file. Raises ImageError, also for a pipe or a device."""
        return self.add(Decoder.read_file(path), name=Decoder.name_of(path))

    def _found(self, digest: str, path: str, facts: ImageFacts) -> Image:
        return Image(digest, path, facts.width, facts.height)
