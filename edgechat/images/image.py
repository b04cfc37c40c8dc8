"""What a message says of its images."""

from __future__ import annotations

import msgspec

PLACE = "\N{OBJECT REPLACEMENT CHARACTER}"
"""Stands in a message's text where an image belongs; images without one come before the text."""


class Pixels(msgspec.Struct, frozen=True):
    """A decoded image."""

    width: int
    height: int
    rgb: bytes
    """Three bytes a pixel, row by row."""


class Image(msgspec.Struct, frozen=True):
    """An image that is on this machine."""

    digest: str
    """BLAKE2b of the file's bytes, 32 hexadecimal digits: the same image, whatever it is called."""
    path: str
    """The file, which stays until the reply has ended."""
    width: int
    """Pixels, after EXIF rotation."""
    height: int
