"""Verification of a model's files and its projector, by their hashes if known, else by their format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from edgechat.base.errors import ModelFileError, NotAnAdapter
from edgechat.models.formats.gguf import read_header
from edgechat.models.formats.header_reading import read_model
from edgechat.models.local.hashes import hash_for
from edgechat.models.local.inventory import LocalModel

_CHUNK = 4 << 20


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of a verification."""

    hashed: bool
    """Whether all its files were compared with known hashes, not only headers and sizes checked."""
    damage: str = ""
    """What is wrong; empty if nothing is."""


def verify(
    model: LocalModel,
    on_progress: Callable[[int], None] = lambda _n: None,
    *,
    check: Callable[[Path], object] = read_model,
) -> Verification:
    """Verify a model; `on_progress` is called with the number of bytes read.

    check: reads its format. Raises EdgechatError.
    """
    hashed = all(file.digest for file in model.found.all_files)
    try:
        check(model.path)  # first: a file that is mostly a hole would be hashed for hours
        for file in model.found.all_files[len(model.found.files) :]:
            read_header(file.path)
    except (ModelFileError, NotAnAdapter) as error:
        return Verification(hashed, error.message)
    n_read = 0
    for file in model.found.all_files:
        if file.digest is None:
            continue
        hasher = hash_for(file.digest, file.size)
        try:
            with file.path.open("rb") as stream:
                while chunk := stream.read(_CHUNK):
                    hasher.update(chunk)
                    n_read += len(chunk)
                    on_progress(n_read)
        except OSError as error:
            return Verification(hashed, f"{file.path.name} cannot be read: {error.strerror or error}.")
        if hasher.hexdigest() != file.digest:
            return Verification(hashed, f"The hash of {file.path.name} does not match.")
    return Verification(hashed)
