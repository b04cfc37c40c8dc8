"""The text that models are measured with: the one that ships, or a file of the user's."""

from __future__ import annotations

import lzma
from pathlib import Path

from edgechat.base import paths
from edgechat.base.errors import BadRequest
from edgechat.base.text import one_line

SHIPPED = "quality.txt.xz"
_MOST_BYTES = 64 << 20


def shipped_text() -> Path:
    """Return where the text is that ships."""
    return paths.shipped(SHIPPED)


def read_text(path: Path) -> str:
    """Return the text of a file, without the newline at its end, as llama.cpp's tools read it.

    Raises BadRequest.
    """
    name = one_line(path.name)
    try:
        data = paths.read_bytes(path, _MOST_BYTES)
    except OSError as error:
        raise BadRequest(f"{name} cannot be read: {error.strerror or error}.") from error
    if path == shipped_text():
        data = lzma.decompress(data)
    if b"\0" in data[:4096]:
        raise BadRequest(f"{name} is not a text.", hint="Give a file of plain text in UTF-8.")
    return data.decode("utf-8", "replace").removesuffix("\n")
