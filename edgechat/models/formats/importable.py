"""GGUF files that must be imported: models split at arbitrary offsets, and text models with a vision tower.

Before sharding was introduced (`m-00001-of-00002.gguf`), models were split at arbitrary byte offsets into
parts named `m.gguf.part1of2` or `m.gguf-split-a`. Joining the parts yields a GGUF file. Until May 2026,
Ollama's files contained a vision tower alongside the text model. llama.cpp rejects the tower's tensors, so an
import copies only the text model.
"""

from __future__ import annotations

import os
import re
import string
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from edgechat.base.errors import ModelFileError
from edgechat.base.text import mebibytes, one_line
from edgechat.models.formats.header import MAX_PARTS, ModelHeader, ModelTensor

_COUNTED = re.compile(r"(?P<whole>.+\.gguf)\.part(?P<number>\d{1,4})of(?P<count>\d{1,4})", re.I | re.S | re.A)
_LETTERED = re.compile(r"(?P<whole>.+\.gguf)-split-(?P<letter>[a-z])", re.I | re.S | re.A)
_NAMED = 4
"""Maximum number of missing parts to list in a message."""


@dataclass(frozen=True, slots=True)
class ByteParts:
    """The parts of a model that was split at arbitrary byte offsets, in order."""

    whole: str
    """Name of the joined file."""
    paths: tuple[Path, ...]
    """Paths of all parts, including missing ones. A list of lettered parts ends with the last one present."""

    @property
    def missing(self) -> list[Path]:
        """The parts that are missing."""
        return [path for path in self.paths if not path.is_file()]


def byte_parts(path: Path) -> ByteParts | None:
    """Return all parts of the model that a file belongs to, or None if the file is not a part.

    Parts are recognized by their names.
    """
    if counted := _COUNTED.fullmatch(path.name):
        count = int(counted["count"])
        if not 1 <= int(counted["number"]) <= count <= MAX_PARTS:
            return None
        width = len(counted["number"]) if counted["number"].startswith("0") else 1
        start, end = path.name[: counted.start("number")], path.name[counted.end("number") :]
        names = [f"{start}{number:0{width}}{end}" for number in range(1, count + 1)]
        return ByteParts(counted["whole"], tuple(map(path.with_name, names)))
    if lettered := _LETTERED.fullmatch(path.name):
        letters = string.ascii_lowercase if lettered["letter"].islower() else string.ascii_uppercase
        named = [path.with_name(path.name[:-1] + letter) for letter in letters]
        last = max((at for at, one in enumerate(named) if os.path.isfile(one)), default=0)
        return ByteParts(lettered["whole"], tuple(named[: last + 1]))
    return None


def part_error(path: Path, parts: ByteParts) -> ModelFileError:
    """Return the error for trying to use a part as a model."""
    number = parts.paths.index(path) + 1 if path in parts.paths else 1
    missing = [one_line(one.name) for one in parts.missing]
    what = f"{one_line(path.name)} is part {number} of {len(parts.paths)} of {one_line(parts.whole)}"
    join = f"edgechat import {one_line(str(path), 300)}"
    if not missing:
        return ModelFileError(
            f"{what}, which was split by bytes; all parts are present.", hint=f"To join them: {join}"
        )
    more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
    return ModelFileError(
        f"{what}, which was split by bytes. Missing: {', '.join(missing[:_NAMED])}{more}.",
        hint=f"Download all of them into the same folder as this one, then join them: {join}",
    )


_BEGINNINGS = ("v.", "a.", "s.", "mm.", "mm_", "resampler.", "vision.", "vision_tower.")
"""Prefixes in the names of tensors for images and audio, which no text model has."""


class VisionInside(ModelFileError):
    """The file contains a vision tower alongside the text model."""


def is_for_text(tensor: ModelTensor) -> bool:
    """Return whether a tensor belongs to the text model."""
    return not tensor.name.startswith(_BEGINNINGS)


def check_text_only(header: ModelHeader) -> None:
    """Raise VisionInside if the file contains a vision tower alongside a text model."""
    others = [tensor for tensor in header.tensors if not is_for_text(tensor)]
    if others and len(others) < len(header.tensors):
        raise VisionInside(
            f"{one_line(header.path)} contains a vision tower ({_bytes(others)}) in addition to the text "
            "model; llama.cpp does not load such files.",
            hint=f"To make a text-only copy ({_bytes(filter(is_for_text, header.tensors))}): "
            "edgechat import MODEL",
        )


def _bytes(tensors: Iterable[ModelTensor]) -> str:
    return mebibytes(sum(tensor.n_bytes for tensor in tensors))
