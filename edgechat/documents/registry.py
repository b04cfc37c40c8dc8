"""The collections on this machine: a file each, in the folder of edgechat's data."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

from edgechat.base import paths
from edgechat.base.errors import DocumentError
from edgechat.base.text import one_line
from edgechat.documents.collection import Collection

_ENDING = ".db"
_NAME = re.compile(r"[\w][\w.-]{0,63}")
_WORDS = ("all", "off")
"""With which commands speak of documents."""
_NOT_IN_NAME = re.compile(r"[^\w.-]+")


def folder() -> Path:
    """Return the folder of all collections."""
    return paths.data_dir() / "documents"


def names() -> list[str]:
    """Return the names of all collections, sorted."""
    try:
        found = [path.name.removesuffix(_ENDING) for path in folder().glob(f"*{_ENDING}")]
    except OSError:
        return []
    return sorted(name for name in found if _NAME.fullmatch(name))


def name_for(path: Path) -> str:
    """Return a name for a collection of what is at a path."""
    name = _NOT_IN_NAME.sub("-", unicodedata.normalize("NFC", path.stem if path.is_file() else path.name))
    name = name.strip("-.")[:64]
    return "documents" if not name or name in _WORDS else name


def create(name: str) -> Collection:
    """Open a collection, a new one if there is none of this name. Raises DocumentError."""
    if not _NAME.fullmatch(name) or name in _WORDS:
        raise DocumentError(
            f"{one_line(name, 80)!r} is no name for documents.",
            hint="Use letters, digits, '.', '_' and '-', but not all or off: "
            "edgechat docs add --name notes FOLDER",
        )
    return Collection(folder() / f"{name}{_ENDING}", name)


def open_collection(name: str) -> Collection:
    """Open a collection. Raises DocumentError, also if there is none of this name."""
    known = names()
    if name not in known:
        listed = "There are: " + ", ".join(known) if known else "To add some: edgechat docs add FOLDER"
        raise DocumentError(f"There are no documents {one_line(name, 80)!r}.", hint=listed)
    return create(name)


def remove(name: str) -> None:
    """Delete a collection; the documents themselves stay. Raises DocumentError."""
    if name not in names():
        open_collection(name)  # which says what there is; a damaged one cannot be opened
    for ending in ("-wal", "-shm", ""):
        try:
            (folder() / f"{name}{_ENDING}{ending}").unlink(missing_ok=True)
        except OSError as error:
            raise DocumentError(f"The documents {name} cannot be removed: {error.strerror}.") from error
