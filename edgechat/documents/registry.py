"""Collections on this machine: opening, naming and listing them, and surveying folders. All functions block.

Each collection is a file in edgechat's data folder.
"""

from __future__ import annotations

import os
import re
import time
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import count
from pathlib import Path

import msgspec

from edgechat.base import paths
from edgechat.base.errors import DocumentError
from edgechat.base.text import mebibytes, one_line
from edgechat.documents.collection import MOST_NAMES, Collection, Counts, File, OtherFiles, Root, listed
from edgechat.documents.indexing import files_below, is_away

_ENDING = ".db"
_NAME = re.compile(r"[\w][\w.-]{0,63}")
_WORDS = ("all", "off")
"""Words with a special meaning in document commands."""
_NOT_IN_NAME = re.compile(r"[^\w.-]+")


def folder() -> Path:
    """Return the folder that contains all collections."""
    return paths.data_dir() / "documents"


def names() -> list[str]:
    """Return the names of all collections, sorted."""
    try:
        found = [path.name.removesuffix(_ENDING) for path in folder().glob(f"*{_ENDING}")]
    except OSError:
        return []
    return sorted(name for name in found if _NAME.fullmatch(name))


def name_for(path: Path) -> str:
    """Return a name for a collection made from a folder or file; it may already be in use."""
    name = _NOT_IN_NAME.sub("-", unicodedata.normalize("NFC", path.stem if path.is_file() else path.name))
    name = name.strip("-.")[:64]
    return "documents" if not name or name in _WORDS else name


def create(name: str) -> Collection:
    """Open a collection, creating it if there is none with this name. Raises DocumentError."""
    if not _NAME.fullmatch(name) or name in _WORDS:
        raise DocumentError(
            f"{one_line(name, 80)!r} is not a valid name for a document collection.",
            hint="Use letters, digits, '.', '_' and '-', but not all or off: "
            "edgechat docs add --name notes FOLDER",
        )
    return Collection(folder() / f"{name}{_ENDING}", name)


def open_collection(name: str) -> Collection:
    """Open a collection. Raises DocumentError, including if there is none with this name."""
    known = names()
    if name not in known:
        listed = "Available: " + ", ".join(known) if known else "To add some: edgechat docs add FOLDER"
        raise DocumentError(f"There is no document collection named {one_line(name, 80)!r}.", hint=listed)
    return create(name)


def remove(name: str) -> None:
    """Delete a collection, but not the documents themselves. Raises DocumentError."""
    if name not in names():
        open_collection(name)  # raises an error that lists the collections
    for ending in ("-wal", "-shm", ""):
        try:
            (folder() / f"{name}{_ENDING}{ending}").unlink(missing_ok=True)
        except OSError as error:
            raise DocumentError(f"The collection {name} cannot be removed: {error.strerror}.") from error


MOST_FILES, MOST_BYTES = 2000, 100 * 10**6
"""Limits on the files and bytes in a folder that becomes a collection because a question mentions it."""
_MOST_ENTRIES, _SECONDS = 20_000, 2.0
_HUGE_BYTES = 10**9
"""Reading this much takes about five minutes; reading `_MOST_ENTRIES` documents takes a minute and a half."""


class KnownCollection(msgspec.Struct, frozen=True, kw_only=True):
    """A collection on this machine."""

    name: str
    roots: tuple[str, ...] = ()
    away: tuple[Root, ...] = ()
    """The roots that are currently unavailable."""
    counts: Counts | None = None
    """None if it cannot be used."""
    unread: tuple[str, ...] = ()
    """Which files are not read, and why: one sentence per reason, without a full stop."""
    problem: str = ""
    """Why it cannot be used."""
    hint: str = ""

    @property
    def about(self) -> str:
        """Its size, or why it cannot be used."""
        if self.counts is None:
            return self.problem
        away = f" · {'some ' * (len(self.away) < len(self.roots))}currently unavailable" if self.away else ""
        return f"{self.counts.files:,} file{'s' * (self.counts.files != 1)}{away}"


class FolderSurvey(msgspec.Struct, frozen=True, kw_only=True):
    """The number and size of the documents in a folder, before they are read."""

    files: int
    size: int
    """Total size in bytes."""
    is_complete: bool
    """Whether the whole folder was surveyed."""
    is_cut: bool = False
    """Whether the survey stopped at its limit on entries or time."""

    @property
    def is_large(self) -> bool:
        """Whether reading it would take a long time."""
        return not self.is_complete or self.files > MOST_FILES or self.size > MOST_BYTES

    @property
    def is_huge(self) -> bool:
        """Whether reading it would take many minutes, as for / or a home folder, and must be confirmed."""
        return self.is_cut or self.size > _HUGE_BYTES

    @property
    def about(self) -> str:
        """Its size as text: 'more than 20,000 documents, 1.2 GiB'."""
        return f"{'more than ' * self.is_cut}{self.files:,} documents, {mebibytes(self.size)}"


def known_collections() -> list[KnownCollection]:
    """Return all collections, sorted by name."""
    known: list[KnownCollection] = []
    for name in names():
        try:
            with closing(open_collection(name)) as collection:
                roots, counts, files = collection.roots(), collection.counts(), collection.left_out()
            known.append(
                KnownCollection(
                    name=name,
                    roots=tuple(root.path for root in roots),
                    away=tuple(filter(is_away, roots)),
                    counts=counts,
                    unread=tuple(_unread(roots, files)),
                )
            )
        except DocumentError as error:
            known.append(KnownCollection(name=name, problem=error.message, hint=error.hint or ""))
    return known


def _unread(roots: Sequence[Root], left_out: Sequence[File]) -> Iterator[str]:
    if others := sum((root.others for root in roots), OtherFiles()):
        yield others.about
    if left_out:
        names = [f"{file.name} ({file.note})" for file in left_out[:MOST_NAMES]]
        which = f"{len(left_out):,} documents are" if len(left_out) > 1 else "1 document is"
        yield f"{which} not read, or only in part: {listed(names, len(left_out))}"


def root_of(path: str) -> Path:
    """Return the absolute path of a folder or file named by the user. Raises DocumentError."""
    root = Path(os.path.abspath(os.path.expanduser(path)))
    if not root.exists():
        raise DocumentError(f"No such file or folder: {one_line(path, 120)}.", hint="Check the path.")
    return root


def collection_at(root: Path) -> KnownCollection | None:
    """Return the collection that consists of exactly this folder or file, or None if there is none."""
    return next((one for one in known_collections() if one.roots == (str(root),)), None)


def collection_of(root: Path) -> str:
    """Return the name of the collection for exactly this folder or file, creating it if necessary.

    Does not read any documents yet. Raises DocumentError.
    """
    if (same := collection_at(root)) is not None:
        return same.name
    name = free_name(root)
    with closing(create(name)) as collection:
        collection.add_root(str(root))
    return name


def free_name(root: Path) -> str:
    """Return an unused name for a collection made from a folder or file."""
    # On some systems, file names are case-insensitive.
    taken, name = {one.casefold() for one in names()}, name_for(root)
    free = (name if number == 1 else f"{name[:58]}-{number}" for number in count(1))
    return next(one for one in free if one.casefold() not in taken)


def survey(root: Path) -> FolderSurvey:
    """Count the documents in a folder without reading them; in a huge folder, stop early."""
    began = time.monotonic()
    below = files_below(root, most=_MOST_ENTRIES, seconds=_SECONDS)
    is_late = time.monotonic() - began > _SECONDS
    return FolderSurvey(
        files=len(below.files),
        size=sum(file.size for file in below.files),
        is_complete=below.is_complete,
        is_cut=not below.is_complete and (is_late or below.entries >= _MOST_ENTRIES),
    )


def locations(name: str) -> dict[str, str]:
    """Return the paths of a collection's files, keyed by SHA-256; {} if it cannot be used."""
    try:
        with closing(open_collection(name)) as collection:
            return {file.digest: str(file.location) for file in collection.files() if file.digest}
    except DocumentError:
        return {}


def holds(name: str, path: str) -> bool:
    """Return whether a collection exists and contains the file at this path."""
    try:
        with closing(open_collection(name)) as collection:
            return any(str(file.location) == path for file in collection.files())
    except DocumentError:
        return False
