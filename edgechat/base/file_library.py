"""A folder of images or sounds, each stored once and named after the hash of its bytes.

DIGEST.png (.wav, ...) is the original file, readable only by its owner. DIGEST.json describes it, so that
looking it up does not require decoding it.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Generic, Protocol, TypeVar

import msgspec

from edgechat.base import paths
from edgechat.base.errors import EdgechatError

_DIGEST = re.compile("[0-9a-f]{32}")
_MOST_FACTS = 1024
"""Maximum size of a DIGEST.json, in bytes."""
_NEW = 3600.0
"""Seconds during which a file counts as new, since the message it belongs to may not be saved yet."""


class Facts(Protocol):
    """Description of a file."""

    @property
    def format(self) -> str:
        """One of the library's formats."""


class StoredFile(Protocol):
    """A file in a library, as messages refer to it."""

    @property
    def path(self) -> str:
        """Its location."""


AnyFacts = TypeVar("AnyFacts", bound=Facts)
AnyFile = TypeVar("AnyFile", bound=StoredFile)


@dataclass(frozen=True, slots=True)
class LibraryEntry:
    """A file in a library, as found on disk."""

    digest: str
    size: int
    """Size in bytes."""
    used: float
    """POSIX time at which the file was last added."""


def digest_of(data: bytes) -> str:
    """Return a file's hash: 16-byte BLAKE2b, in hexadecimal."""
    import hashlib  # 2 ms, not needed to list conversations

    return hashlib.blake2b(data, digest_size=16).hexdigest()


class FileLibrary(Generic[AnyFacts, AnyFile]):
    """Files of one kind in a folder, which is created when the first file is added. Processes can share it.

    Methods block on disk access. Subclasses define the class attributes and `_found`.
    """

    what: ClassVar[str]
    """The kind of file, for messages, such as 'image'."""
    extensions: ClassVar[dict[str, str]]
    """File name extensions, keyed by format."""
    not_stored: ClassVar[type[EdgechatError]]
    facts: type[AnyFacts]

    def __init__(self, folder: Path, *, also: Path | None = None) -> None:
        """folder: the library's folder. also: a second folder, whose files are found but never changed."""
        self._folder = folder
        self._also = type(self)(also) if also is not None else None
        extensions = "|".join((*self.extensions.values(), "json"))
        self._own = re.compile(rf"{_DIGEST.pattern}\.({extensions})|{paths.UNFINISHED}[0-9a-f]+")

    def _found(self, digest: str, path: str, facts: AnyFacts) -> AnyFile:
        raise NotImplementedError

    def _keep(self, data: bytes, facts: AnyFacts) -> AnyFile:
        """Write a file that is not stored yet."""
        digest = digest_of(data)
        path = self._path(digest, facts)
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._folder.chmod(0o700)
            paths.replace(self._facts_path(digest), msgspec.json.encode(facts))
            paths.replace(path, data)
        except OSError as error:
            raise self.not_stored(
                f"The {self.what} cannot be stored in {self._folder}: {error.strerror}.",
                hint="Free some disk space, and check the permissions of that folder.",
            ) from error
        return self._found(digest, str(path), facts)

    def _used(self, digest: str) -> AnyFile | None:
        """Record that a stored file was used just now, and return it."""
        file = self.get(digest)
        if file is not None:
            with contextlib.suppress(OSError):
                os.utime(file.path)
                os.utime(self._facts_path(digest))
        return file

    def get(self, digest: str) -> AnyFile | None:
        """Return a file, or None if it is missing or not a regular file."""
        own = self._get_own(digest)
        return own if own is not None or self._also is None else self._also.get(digest)

    def _get_own(self, digest: str) -> AnyFile | None:
        if _DIGEST.fullmatch(digest) is None:
            return None
        try:
            written = paths.read_bytes(self._facts_path(digest), _MOST_FACTS)
            facts = msgspec.json.decode(written, type=self.facts)
            path = self._path(digest, facts)
            if not stat.S_ISREG(path.lstat().st_mode):
                return None
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return None
        return self._found(digest, str(path), facts)

    def remove(self, digest: str) -> None:
        """Delete a file, if it is stored. Raises `not_stored` if it cannot be deleted."""
        if _DIGEST.fullmatch(digest) is None:
            return
        for extension in (*self.extensions.values(), "json"):
            self._delete(self._folder / f"{digest}.{extension}")

    def stored(self) -> list[LibraryEntry]:
        """Return the stored files."""
        return [
            LibraryEntry(path.stem, about.st_size, about.st_mtime)
            for path, about in self._files()
            if path.suffix != ".json" and _DIGEST.fullmatch(path.stem)
        ]

    def prune(self, keep: Collection[str]) -> None:
        """Delete all files except those in `keep` and those added within the last hour.

        Raises `not_stored` if a file cannot be deleted.
        """
        oldest = time.time() - _NEW
        for path, about in self._files():
            if path.stem not in keep and about.st_mtime < oldest:
                self._delete(path)

    def _files(self) -> Iterator[tuple[Path, os.stat_result]]:
        """Yield the files that belong to the library, including unfinished ones."""
        with contextlib.suppress(FileNotFoundError), os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.is_file(follow_symlinks=False) and self._own.fullmatch(entry.name):
                    yield Path(entry.path), entry.stat(follow_symlinks=False)

    def _delete(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise self.not_stored(f"The {self.what} {path} cannot be deleted: {error.strerror}.") from error

    def _path(self, digest: str, facts: AnyFacts) -> Path:
        return self._folder / f"{digest}.{self.extensions[facts.format]}"

    def _facts_path(self, digest: str) -> Path:
        return self._folder / f"{digest}.json"
