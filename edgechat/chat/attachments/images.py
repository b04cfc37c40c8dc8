"""Images that are sent with a question: from a file, or from the clipboard, into the library of the chats."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from edgechat.base.errors import ImageError
from edgechat.base.text import one_line

if TYPE_CHECKING:
    from edgechat.base.images.image import Image, ImageLibrary
    from edgechat.chat.records import AttachedImage

_SUFFIXES = frozenset((".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".heic", ".heif"))


def is_image(path: str) -> bool:
    """Return whether a file is an image by its name."""
    return Path(path).suffix.lower() in _SUFFIXES


def read_image(library: ImageLibrary, path: str) -> AttachedImage:
    """Copy the image of a file into the library. Blocks. Raises ImageError, also if it cannot be decoded."""
    try:
        file = Path(path).expanduser()
    except RuntimeError as error:  # no such user's home
        raise ImageError(f"{one_line(path, 120)} cannot be read: {error}") from error
    return _attached(file.name, library.add_file(file))


def keep_image(library: ImageLibrary, data: bytes, name: str) -> AttachedImage:
    """Put an image into the library. Blocks. Raises ImageError."""
    return _attached(name, library.add(data, name=name))


def _attached(name: str, image: Image) -> AttachedImage:
    from edgechat.chat.records import AttachedImage  # not needed for the first frame

    return AttachedImage(name, image.digest, image.width, image.height)
