"""The text that models are calibrated with: the one that ships, or a file of the user's."""

from __future__ import annotations

import lzma
from pathlib import Path

from edgechat.base import paths
from edgechat.base.errors import BadRequest
from edgechat.base.text import one_line

_SHIPPED = "quality.txt.xz"
_MOST_BYTES = 64 << 20


def text_name(path: str) -> str:
    """Return the name of a text; '' means the one that ships."""
    return Path(path).name if path else _SHIPPED


def read_text(path: str) -> str:
    """Return a text without the newline at its end, as llama.cpp's tools read it. Raises BadRequest."""
    try:
        data = paths.read_bytes(Path(path) if path else paths.shipped(_SHIPPED), _MOST_BYTES)
    except OSError as error:
        name = one_line(text_name(path), 120)
        raise BadRequest(
            f"{name} cannot be read: {error.strerror or error}.", hint="Check the path."
        ) from error
    return (data if path else lzma.decompress(data)).decode("utf-8", "replace").removesuffix("\n")
