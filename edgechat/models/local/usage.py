"""When and by which processes each model was last loaded: one small file each, in the data folder.

A worker writes it as its model is ready. Whatever is wrong with a file, it is as if the model had never been
used; the files of those that were not used for longest go first.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import msgspec

from edgechat.base import paths
from edgechat.base.errors import FolderError
from edgechat.base.process.owner import Owner, alive, this_process

MOST_REMEMBERED = 512
_MAX_BYTES = 16_384
_MAX_PROCESSES = 64


class ModelUse(msgspec.Struct, frozen=True):
    """The last use of a model."""

    path: str
    """The real path of its file, with all links resolved."""
    when: float
    """In seconds since 1970."""
    by: tuple[Owner, ...] = ()
    """The processes that loaded it and were running at that time."""

    @property
    def is_loaded(self) -> bool:
        """Whether a process that loaded it still runs."""
        return any(alive(process) for process in self.by)


def note_use(path: str) -> None:
    """Record that this process has loaded the model. Errors are ignored."""
    import hashlib  # 2 ms, which a list of models need not pay

    real = os.path.realpath(path)
    with contextlib.suppress(OSError, FolderError, UnicodeEncodeError):
        file = _folder() / hashlib.sha256(real.encode()).hexdigest()[:40]
        previous = _read(file)
        still_running = [process for process in previous.by if alive(process)] if previous is not None else []
        use = ModelUse(real, time.time(), (*still_running[-_MAX_PROCESSES:], this_process()))
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        paths.replace(file, msgspec.json.encode(use))
        _prune(file.parent)


def uses() -> dict[str, ModelUse]:
    """Return the last use of each model, by its `path`."""
    latest: dict[str, ModelUse] = {}
    with contextlib.suppress(OSError, FolderError):
        for entry in list(os.scandir(_folder()))[: 2 * MOST_REMEMBERED]:
            use = None if entry.name.startswith(".") else _read(Path(entry.path))
            if use is not None:
                latest[use.path] = use
    return latest


def use_of(path: Path) -> ModelUse | None:
    """Return the last use of one model, or None."""
    return uses().get(os.path.realpath(path))


def _folder() -> Path:
    return paths.data_dir() / "used"


def _read(file: Path) -> ModelUse | None:
    try:
        return msgspec.json.decode(paths.read_bytes(file, _MAX_BYTES), type=ModelUse)
    except (OSError, msgspec.MsgspecError, RecursionError, ValueError):
        return None


def _prune(folder: Path) -> None:
    dated = sorted(((entry.stat().st_mtime, entry.path) for entry in os.scandir(folder)), reverse=True)
    for _, path in dated[MOST_REMEMBERED:]:
        os.unlink(path)
