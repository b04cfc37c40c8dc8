"""The collections on this machine: opening, naming and listing them, and surveying folders. It blocks.

Each is a file in the folder of edgechat's data.
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


MOST_FILES, MOST_BYTES = 2000, 100 * 10**6
"""Of a folder that becomes a collection by being named in a question."""
_MOST_ENTRIES, _SECONDS = 20_000, 2.0
_HUGE_BYTES = 10**9
"""Some five minutes of reading; so many entries take a minute and a half, if all are documents."""


class KnownCollection(msgspec.Struct, frozen=True, kw_only=True):
    """A collection on this machine."""

    name: str
    roots: tuple[str, ...] = ()
    away: tuple[Root, ...] = ()
    """Of the roots: those that are out of reach now."""
    counts: Counts | None = None
    """None if it cannot be used."""
    unread: tuple[str, ...] = ()
    """What is not read of it, and why: a sentence without a full stop for each reason."""
    problem: str = ""
    """Why it cannot."""
    hint: str = ""
    """What to do about it."""

    @property
    def about(self) -> str:
        """How much is in it, or why it cannot be used."""
        if self.counts is None:
            return self.problem
        away = f" · {'some ' * (len(self.away) < len(self.roots))}not there now" if self.away else ""
        return f"{self.counts.files:,} file{'s' * (self.counts.files != 1)}{away}"


class FolderSurvey(msgspec.Struct, frozen=True, kw_only=True):
    """The documents in a folder and below it, which are not read yet."""

    files: int
    size: int
    """Of all of them, in bytes."""
    is_complete: bool
    """Whether all of the folder was looked at."""
    is_cut: bool = False
    """Whether it was not for the number of its entries, or the time that took."""

    @property
    def is_large(self) -> bool:
        """Whether it takes long to read."""
        return not self.is_complete or self.files > MOST_FILES or self.size > MOST_BYTES

    @property
    def is_huge(self) -> bool:
        """Whether it takes many minutes: nobody should begin that by a slip, as with / or a whole home."""
        return self.is_cut or self.size > _HUGE_BYTES

    @property
    def about(self) -> str:
        """How much there is to read, for a question."""
        return f"{'more than ' * self.is_cut}{self.files:,} documents, {mebibytes(self.size)}"


def known_collections() -> list[KnownCollection]:
    """Return all collections, sorted by their names."""
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
        yield f"{which} not read, or not whole: {listed(names, len(left_out))}"


def root_of(path: str) -> Path:
    """Return the absolute path of a folder or file that a user has named. Raises DocumentError."""
    root = Path(os.path.abspath(os.path.expanduser(path)))
    if not root.exists():
        raise DocumentError(f"No such file or folder: {one_line(path, 120)}.", hint="Check the path.")
    return root


def collection_at(root: Path) -> KnownCollection | None:
    """Return the collection of just this folder or file, if there is one."""
    return next((one for one in known_collections() if one.roots == (str(root),)), None)


def collection_of(root: Path) -> str:
    """Return the name of the collection of just this folder or file, a new one if there is none.

    Nothing is read yet. Raises DocumentError.
    """
    if (same := collection_at(root)) is not None:
        return same.name
    name = free_name(root)
    with closing(create(name)) as collection:
        collection.add_root(str(root))
    return name


def free_name(root: Path) -> str:
    """Return a name for a new collection of what is at a path."""
    # Some systems take names of files that differ in case for the same.
    taken, name = {one.casefold() for one in names()}, name_for(root)
    free = (name if number == 1 else f"{name[:58]}-{number}" for number in count(1))
    return next(one for one in free if one.casefold() not in taken)


def survey(root: Path) -> FolderSurvey:
    """Return how many documents are in a folder, without reading them; for huge ones only a part."""
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
    """Return the paths of the files of a collection, by their SHA-256; none if it cannot be used."""
    try:
        with closing(open_collection(name)) as collection:
            return {file.digest: str(file.location) for file in collection.files() if file.digest}
    except DocumentError:
        return {}


def holds(name: str, path: str) -> bool:
    """Return whether there is a collection of this name, and a file of this path in it."""
    try:
        with closing(open_collection(name)) as collection:
            return any(str(file.location) == path for file in collection.files())
    except DocumentError:
        return False
