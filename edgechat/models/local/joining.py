"""Joining the parts of a model that was split by bytes; see `formats/byte_parts.py`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from edgechat.base.errors import NotImported
from edgechat.models.formats.byte_parts import ByteParts, part_error
from edgechat.models.formats.gguf import one_model, read_growing
from edgechat.models.formats.vision_inside import VisionInside

_CHUNK = 4 << 20


def check_parts(path: Path, parts: ByteParts) -> int:
    """Return the bytes of all parts together, which must be a model. Raises ModelFileError."""
    if parts.missing:
        raise part_error(path, parts)
    size = sum(part.stat().st_size for part in parts.paths)

    def read_first(n: int) -> bytes:
        found = b""
        for part in parts.paths:
            with part.open("rb") as file:
                found += file.read(n - len(found))
        return found

    with contextlib.suppress(VisionInside):  # whoever runs it is told
        one_model([read_growing(read_first, size, parts.whole)])
    return size


def join(parts: ByteParts, target: Path, size: int, on_progress: Callable[[int], None]) -> None:
    """Write all parts into a new file of `size` bytes.

    on_progress: called with the bytes written. Raises OSError, and NotImported if they change meanwhile.
    """
    with target.open("xb") as new:
        for part in parts.paths:
            with part.open("rb") as old:
                while chunk := old.read(_CHUNK):
                    new.write(chunk)
                    on_progress(new.tell())
        if new.tell() != size:
            raise NotImported(
                f"The parts of {parts.whole} were changed while they were joined.", hint="Try again."
            )
        new.flush()
        os.fsync(new.fileno())
