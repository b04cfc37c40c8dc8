"""A folder of files, each stored once under the hash of its bytes: images, or sounds.

DIGEST.png (.wav, ...) is the file as it was given, readable by its owner only. DIGEST.json says what it is,
so that it need not be decoded to be found.
"""

from __future__ import annotations

import contextlib
import hashlib
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
"""Bytes of a DIGEST.json."""
_NEW = 3600.0
"""Seconds during which a file is new: the message that it belongs to may not be saved yet."""


class Facts(Protocol):
    """What a file is."""

    @property
    def format(self) -> str:
        """One of the library's formats."""


class StoredFile(Protocol):
    """A file of a library, as messages name it."""

    @property
    def path(self) -> str:
        """Where it is."""


AnyFacts = TypeVar("AnyFacts", bound=Facts)
AnyFile = TypeVar("AnyFile", bound=StoredFile)


@dataclass(frozen=True, slots=True)
class LibraryEntry:
    """A file of a library, as it is on the disk."""

    digest: str
    size: int
    """Bytes."""
    used: float
    """When it was last added, as a POSIX time."""


def digest_of(data: bytes) -> str:
    """Return the name of a file: BLAKE2b of its bytes, 16 bytes, in hexadecimal."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


class FileLibrary(Generic[AnyFacts, AnyFile]):
    """Files of a kind in a folder, which is created with the first one. Processes may share it.

    Blocks on the disk. A subclass says what the class attributes and the methods that raise
    NotImplementedError are.
    """

    what: ClassVar[str]
    """What a file is called in errors: 'image'."""
    extensions: ClassVar[dict[str, str]]
    """By format."""
    not_stored: ClassVar[type[EdgechatError]]
    facts: type[AnyFacts]

    def __init__(self, folder: Path, *, also: Path | None = None) -> None:
        """Take a folder; also: another one, in which files are found, and nothing is changed."""
        self._folder = folder
        self._also = type(self)(also) if also is not None else None
        extensions = "|".join((*self.extensions.values(), "json"))
        self._own = re.compile(rf"{_DIGEST.pattern}\.({extensions})|{paths.UNFINISHED}[0-9a-f]+")

    def _found(self, digest: str, path: str, facts: AnyFacts) -> AnyFile:
        raise NotImplementedError

    def _keep(self, data: bytes, facts: AnyFacts) -> AnyFile:
        """Write a file that is not there yet."""
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
                hint="Make room on the disk, and check that you may write to that folder.",
            ) from error
        return self._found(digest, str(path), facts)

    def _used(self, digest: str) -> AnyFile | None:
        """Return a file that is there, marked as used now."""
        file = self.get(digest)
        if file is not None:
            with contextlib.suppress(OSError):
                os.utime(file.path)
                os.utime(self._facts_path(digest))
        return file

    def get(self, digest: str) -> AnyFile | None:
        """Return a file; None if it is not there, or is a link or anything else but a file."""
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
        """Delete a file, if it is there. Raises `not_stored` if that is not possible."""
        if _DIGEST.fullmatch(digest) is None:
            return
        for extension in (*self.extensions.values(), "json"):
            self._delete(self._folder / f"{digest}.{extension}")

    def stored(self) -> list[LibraryEntry]:
        """Return the files, as they are on the disk."""
        return [
            LibraryEntry(path.stem, about.st_size, about.st_mtime)
            for path, about in self._files()
            if path.suffix != ".json" and _DIGEST.fullmatch(path.stem)
        ]

    def prune(self, keep: Collection[str], *, older_than: float = _NEW) -> None:
        """Delete all files but those in `keep` and those added in the last `older_than` seconds.

        Raises `not_stored` if that is not possible.
        """
        oldest = time.time() - older_than
        for path, about in self._files():
            if path.stem not in keep and about.st_mtime < oldest:
                self._delete(path)

    def _files(self) -> Iterator[tuple[Path, os.stat_result]]:
        """Yield the files that a library makes, unfinished ones included."""
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
