"""A fingerprint of a model's file, without reading all of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

from edgechat.models.local.stores import found_at

_END = 1 << 20
"""Bytes that are read at the beginning (names, shapes and vocabulary) and at the end."""
_SAMPLES, _SAMPLE = 64, 4096
"""Number of samples between them, and bytes of each."""


def fingerprint_of(model_path: str | os.PathLike[str], extra: str) -> bytes:
    """Return 32 bytes that depend on a model's content, all its parts, and on `extra`. A few milliseconds.

    Name, location and time of the file do not matter. A fine-tune has another fingerprint unless it changed
    so few weights that no sample contains one. Raises OSError.
    """
    model = found_at(Path(model_path))
    if model is None:
        raise FileNotFoundError(2, "there is no such file", str(model_path))
    digest = blake2b(digest_size=32)
    digest.update(len(model.files).to_bytes(8, "little") + extra.encode())
    for part in model.files:
        with open(part.path, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            digest.update(size.to_bytes(8, "little"))
            for start, length in _places(size):
                file.seek(start)
                digest.update(file.read(length))
    return digest.digest()


def _places(size: int) -> Iterator[tuple[int, int]]:
    yield 0, _END
    last = max(size - _SAMPLE, 0)
    for i in range(_SAMPLES):
        yield last * i // (_SAMPLES - 1), _SAMPLE
    yield max(size - _END, 0), _END
