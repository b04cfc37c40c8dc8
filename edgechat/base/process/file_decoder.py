"""Decoder for untrusted files, in a child process that receives a file in parts and returns its contents.

Whatever is wrong with a file, the result is an error within seconds. Subclasses decode images
(`edgechat.base.images.image`), sounds (`edgechat.base.sound.sound`) and documents
(`edgechat.documents.reading.reader`).
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, Self

import msgspec

from edgechat.base import paths
from edgechat.base.errors import EdgechatError
from edgechat.base.process.child import Child, ChildLost, ChildNeverReady
from edgechat.base.text import mebibytes, one_line

MAX_FILE_BYTES = 64 * 2**20
PART = 32 * 2**20
"""Number of bytes sent at once, in either direction."""


class FilePart(msgspec.Struct, frozen=True, tag=True):
    """A part of the next file. A whole file may be larger than one frame."""

    data: bytes


class NotDecodable(Exception):
    """Raised in the child if a file cannot be decoded.

    `problem` is the text after the file's name in the error message, without the full stop.
    """

    def __init__(self, problem: str, hint: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.hint = hint


class PackageMissing(NotDecodable):
    """Raised in the child if the package that decodes this kind of file is not installed."""


def problem_of(error: Exception, *, smaller: str, again: str) -> NotDecodable:
    """In the child: convert an exception raised by a library to a NotDecodable.

    smaller, again: hints for a file that takes too much memory, and for a damaged one.
    """
    if isinstance(error, NotDecodable):
        return error
    if isinstance(error, MemoryError):
        return NotDecodable("takes too much memory to decode", smaller)
    reason = one_line(str(error), 120) or type(error).__name__
    return NotDecodable(f"is damaged or incomplete ({reason})", again)


class FileDecoder:
    """Asks a single child process about files, one at a time. Not thread-safe.

    `source` is a path or the file's bytes. Error messages start with `name`, which defaults to the file's
    name.
    """

    role: ClassVar[str]
    what: ClassVar[str]
    """The kind of file, for messages, such as 'image'."""
    error: ClassVar[type[EdgechatError]]
    unready: ClassVar[type[EdgechatError]]
    """The exception raised if the child does not start."""
    lost: ClassVar[type[EdgechatError]]
    """The exception raised if the child dies while decoding a file."""
    smaller: ClassVar[str]
    """Hint for a file that is too large."""
    otherwise: ClassVar[str]
    """Hint for a file that made the child crash or exceed its limits."""

    def __init__(self, *, seconds: float, memory: int) -> None:
        """seconds, memory: limits for each request."""
        self._seconds, self._memory = seconds, memory
        self._child: Child | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill the child process, if there is one."""
        if self._child is not None:
            self._child.close()
            self._child = None

    @classmethod
    def name_of(cls, source: Path | bytes) -> str:
        """Return the name of a file for error messages."""
        return f"The {cls.what}" if isinstance(source, bytes) else one_line(source.name, 120)

    @classmethod
    def read_file(cls, path: Path, name: str | None = None) -> bytes:
        """Return a file's bytes. Raises `error`, including for pipes and devices."""
        name = name or cls.name_of(path)
        try:
            return paths.read_bytes(path, MAX_FILE_BYTES)
        except OSError as error:
            if error.errno == errno.EFBIG:
                raise cls._too_long(name) from error
            hint = "Check the path." if error.errno == errno.ENOENT else None
            raise cls.error(f"{name} cannot be read: {error.strerror}.", hint=hint) from error

    @classmethod
    def _too_long(cls, name: str) -> EdgechatError:
        return cls.error(f"{name} is larger than {mebibytes(MAX_FILE_BYTES)}, the limit.", hint=cls.smaller)

    def _send(self, source: Path | bytes, name: str) -> None:
        """Send a file to the child, starting a new child if there is none or it has died."""
        data = source if isinstance(source, bytes) else self.read_file(source, name)
        if len(data) > MAX_FILE_BYTES:
            raise self._too_long(name)
        if self._child is not None and not self._child.alive:
            self.close()
        if self._child is None:
            with self._translated(name):
                self._child = Child(self.role)
        for start in range(0, len(data), PART):
            self._ask(FilePart(data[start : start + PART]), name)

    def _ask(self, question: msgspec.Struct, name: str, *, seconds: float | None = None) -> bytes:
        """Ask the child about the file that was sent, and return its answer. Raises `unready` or `lost`.

        seconds: a time limit shorter than the usual one.
        """
        assert self._child is not None  # a new one would not have the file
        with self._translated(name):
            packed = msgspec.msgpack.encode(question)
            return self._child.ask(packed, seconds=seconds or self._seconds, memory=self._memory)

    @contextmanager
    def _translated(self, name: str) -> Iterator[None]:
        try:
            yield
        except ChildNeverReady as lost:
            self._child = None
            raise self.unready(
                f"The process that decodes {self.what}s did not start: it {lost}.", hint="Try again."
            ) from lost
        except ChildLost as lost:
            self._child = None
            raise self.lost(
                f"{name} cannot be decoded: the process that decodes it {lost}.", hint=self.otherwise
            ) from lost

    def _problem(
        self, name: str, problem: str, hint: str, error: type[EdgechatError] | None = None
    ) -> EdgechatError:
        """Return an error for a problem that the child found. error: its class; by default, `self.error`."""
        return (error or self.error)(f"{name} {one_line(problem)}.", hint=hint)
