"""What a message says of its images."""

from __future__ import annotations

import msgspec

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
