"""Untrusted image files, decoded in a child process: what they are, and their pixels.

Pixels come back in bands of rows. Whatever is wrong with the file, the answer is an ImageError, within
seconds.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import msgspec

from edgechat.base.errors import ImageError
from edgechat.base.images.decoding_child import MEMORY_LIMIT, TIME_LIMIT, Decode, Decoded, Format, Rows
from edgechat.base.images.image import MAX_PIXELS, Pixels
from edgechat.base.process import file_decoder
from edgechat.base.process.file_decoder import MAX_FILE_BYTES, FileDecoder

__all__ = ["MAX_FILE_BYTES", "Decoder", "ImageFacts", "Pixels", "inspect", "pixels"]


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
        decoded = self._decode(source, Decode(MAX_PIXELS, check=True), name or name_of(source))
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
        name = name or name_of(source)
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


def inspect(source: Path | bytes) -> ImageFacts:
    """Return what an image is. Raises ImageError."""
    with Decoder() as decoder:
        return decoder.inspect(source)


def pixels(source: Path | bytes, *, most_pixels: int = MAX_PIXELS) -> Pixels:
    """Return an image as RGB, see `Decoder.pixels`. Raises ImageError."""
    with Decoder() as decoder:
        return decoder.pixels(source, most_pixels=most_pixels)


def read_file(path: Path, name: str | None = None) -> bytes:
    """Return the bytes of an image's file. Raises ImageError, also for a pipe or a device."""
    return Decoder.read_file(path, name)


def name_of(source: Path | bytes) -> str:
    """Return what an error calls an image."""
    return Decoder.name_of(source)
