"""Whether a model's files are still what they were: by their hashes where known, else by their form."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from edgechat.errors import ModelFileError
from edgechat.models.gguf import read_model
from edgechat.models.inventory import LocalModel

_CHUNK = 4 << 20


@dataclass(frozen=True, slots=True)
class Verified:
    """What was found out of a model."""

    hashed: bool
    """All its files were compared with known hashes; else only headers and sizes were looked at."""
    damage: str = ""
    """What is wrong; empty where nothing is."""


def verify(one: LocalModel, tell: Callable[[int], None] = lambda _n: None) -> Verified:
    """Read a model and compare it with what is known of it; `tell` hears how many bytes were read."""
    hashed = all(file.sha256 for file in one.found.files)
    read = 0
    for file in one.found.files:
        if file.sha256 is None:
            continue
        try:
            found = _sha256(file.path, _beyond(read, tell))
        except OSError as error:
            return Verified(hashed, f"{file.path.name} cannot be read: {error.strerror or error}.")
        if found != file.sha256:
            return Verified(hashed, f"The bytes of {file.path.name} are not those that were downloaded.")
        read += file.size
    try:
        read_model(one.path)
    except ModelFileError as error:
        return Verified(hashed, error.message)
    return Verified(hashed)


def _beyond(before: int, tell: Callable[[int], None]) -> Callable[[int], None]:
    return lambda n: tell(before + n)


def _sha256(path: Path, tell: Callable[[int], None]) -> str:
    digest = hashlib.sha256()
    done = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            done += len(chunk)
            tell(done)
    return digest.hexdigest()
