"""GGUF files where people keep them: in their downloads and in the working folder.

Like all files that are found, they are listed by name and size only. Downloads may be anything, and the
working folder anywhere, so little is looked at: two levels of folders, for a second, and the newest models.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from edgechat.models.local.inventory import LocalModel
from edgechat.models.local.locations import downloads_folder
from edgechat.models.local.stores import FoundModel, models_in

DEPTH = 2
SECONDS = 1.0
MOST = 32
"""Models, whose headers will be read."""


def models_nearby(known: Iterable[Path]) -> list[LocalModel]:
    """Return the models there, the newest first; but none of the files that are known, by whatever link."""
    until = time.monotonic() + SECONDS
    seen = set(map(os.path.realpath, known))
    found: list[FoundModel] = []
    for folder in _folders():
        for model in models_in(folder, DEPTH, until):
            path = os.path.realpath(model.path)
            if path not in seen:
                seen.add(path)
                found.append(model)
    found.sort(key=lambda model: model.files[0].changed, reverse=True)
    return [
        LocalModel(model.label.rpartition("/")[2], str(model.path), model, quant=model.quant)
        for model in found[:MOST]
    ]


def _folders() -> Iterator[Path]:
    """Yield the folders whose names are text, as llama.cpp and the worker's pipe require."""
    for find in (downloads_folder, Path.cwd):
        with contextlib.suppress(OSError, UnicodeEncodeError):  # the working folder may have been removed
            folder = find()
            str(folder).encode()
            yield folder
