"""Untrusted image files, decoded in a child process: what they are, and their pixels.

A file goes to the child in parts, and pixels come back in bands of rows. Whatever is wrong with the file, the
answer is an ImageError, within seconds.
"""

from __future__ import annotations

import errno
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import msgspec

from edgechat.base import paths
from edgechat.base.errors import ImageError
from edgechat.base.images.decoding_child import (
    MEMORY_LIMIT,
    TIME_LIMIT,
    Decode,
    Decoded,
    FilePart,
    Format,
    Rows,
)
from edgechat.base.images.image import MAX_PIXELS, Pixels
from edgechat.base.process.child import Child, ChildLost, ChildNeverReady
from edgechat.base.text import mebibytes, one_line

__all__ = ["Decoder", "ImageFacts", "Pixels", "inspect", "pixels"]

MAX_FILE_BYTES = 64 * 2**20
_PART = 32 * 2**20
"""Bytes that are sent at once, in either direction."""


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """What an image is that can be decoded."""

    format: Format
    width: int
    """Of what `pixels` returns: after EXIF rotation, and scaled down where that is too large."""
    height: int


class Decoder:
    """Decodes images one after the other, in one child process. Not thread-safe.

    `source` is a file, or its bytes. `name` begins the message of an ImageError; it is the file's by default.
    """

    def __init__(self) -> None:
        self._child: Child | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill the child process, if there is one."""
        if self._child is not None:
            self._child.close()
            self._child = None

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
        count = max(1, _PART // (3 * decoded.width))
        for first in range(0, decoded.height, count):
            rgb.write(self._ask(Rows(first, count), name))
        return Pixels(decoded.width, decoded.height, rgb.getvalue())

    def _decode(self, source: Path | bytes, how: Decode, name: str) -> Decoded:
        data = source if isinstance(source, bytes) else read_file(source, name)
        if len(data) > MAX_FILE_BYTES:
            raise _too_long(name)
        for start in range(0, len(data), _PART):
            self._ask(FilePart(data[start : start + _PART]), name)
        decoded = msgspec.msgpack.decode(self._ask(how, name), type=Decoded)
        if decoded.problem:
            raise ImageError(f"{name} {one_line(decoded.problem)}.", hint=decoded.hint)
        return decoded

    def _ask(self, question: FilePart | Decode | Rows, name: str) -> bytes:
        if self._child is not None and not self._child.alive:  # it died before this question
            self.close()
        try:
            if self._child is None:
                self._child = Child("image")
            return self._child.ask(msgspec.msgpack.encode(question), seconds=TIME_LIMIT, memory=MEMORY_LIMIT)
        except ChildNeverReady as lost:
            self._child = None
            raise ImageError(
                f"The process that decodes images did not start: it {lost}.", hint="Try it again."
            ) from lost
        except ChildLost as lost:
            self._child = None
            raise ImageError(
                f"{name} cannot be decoded: the process that decodes it {lost}.",
                hint="Open it in an image viewer, and save it from there as PNG, or smaller.",
            ) from lost


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
    name = name or name_of(path)
    try:
        return paths.read_bytes(path, MAX_FILE_BYTES)
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise _too_long(name) from error
        hint = "Check the path." if error.errno == errno.ENOENT else None
        raise ImageError(f"{name} cannot be read: {error.strerror}.", hint=hint) from error


def _too_long(name: str) -> ImageError:
    limit = mebibytes(MAX_FILE_BYTES)
    return ImageError(f"{name} has more than {limit}, the limit.", hint="Save it as JPEG, or smaller.")


def name_of(source: Path | bytes) -> str:
    """Return what an error calls an image."""
    return "The image" if isinstance(source, bytes) else one_line(source.name, 120)
