"""Untrusted files, decoded in a child process: a file goes to it in parts, and what is in it comes back.

Whatever is wrong with a file, the answer is an error within seconds. `edgechat.base.images.image` and
`edgechat.base.sound.sound` say of what kinds.
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
"""Bytes that are sent at once, in either direction."""


class FilePart(msgspec.Struct, frozen=True, tag=True):
    """Bytes of the next file, after those that have been sent: it is longer than a frame may be."""

    data: bytes


class NotDecodable(Exception):
    """In the child: what is wrong with a file. `problem` goes on after its name, without a full stop."""

    def __init__(self, problem: str, hint: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.hint = hint


class PackageMissing(NotDecodable):
    """In the child: what decodes such files is not installed."""


def problem_of(error: Exception, *, smaller: str, again: str) -> NotDecodable:
    """In the child: return what is wrong with a file over which a library raised an exception.

    smaller, again: hints for a file that takes too much memory, and for a damaged one.
    """
    if isinstance(error, NotDecodable):
        return error
    if isinstance(error, MemoryError):
        return NotDecodable("takes too much memory to decode", smaller)
    reason = one_line(str(error), 120) or type(error).__name__
    return NotDecodable(f"is damaged, or not complete ({reason})", again)


class FileDecoder:
    """Asks one child process about files, one after the other. Not thread-safe.

    `source` is a file, or its bytes. `name` begins the message of an error; it is the file's by default.
    """

    role: ClassVar[str]
    what: ClassVar[str]
    """What a file is called: 'image'."""
    error: ClassVar[type[EdgechatError]]
    unready: ClassVar[type[EdgechatError]]
    """Raised if the child does not start."""
    lost: ClassVar[type[EdgechatError]]
    """Raised if it ends at a file."""
    smaller: ClassVar[str]
    """What to do about a file that is too long."""
    otherwise: ClassVar[str]
    """What to do about one at which the child ended."""

    def __init__(self, *, seconds: float, memory: int) -> None:
        """Limits for each question."""
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
        """Return what an error calls a file."""
        return f"The {cls.what}" if isinstance(source, bytes) else one_line(source.name, 120)

    @classmethod
    def read_file(cls, path: Path, name: str | None = None) -> bytes:
        """Return the bytes of a file. Raises `error`, also for a pipe or a device."""
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
        return cls.error(f"{name} has more than {mebibytes(MAX_FILE_BYTES)}, the limit.", hint=cls.smaller)

    def _send(self, source: Path | bytes, name: str) -> None:
        """Give the child a file: a new one, if it died after the file before."""
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
        """Return the child's answer about the file that was sent. Raises `unready` and `lost`.

        seconds: if less is left.
        """
        assert self._child is not None  # not a new one, which would know nothing of the file
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
                f"The process that decodes {self.what}s did not start: it {lost}.", hint="Try it again."
            ) from lost
        except ChildLost as lost:
            self._child = None
            raise self.lost(
                f"{name} cannot be decoded: the process that decodes it {lost}.", hint=self.otherwise
            ) from lost

    def _problem(
        self, name: str, problem: str, hint: str, error: type[EdgechatError] | None = None
    ) -> EdgechatError:
        """Return the error for what the child has found. error: its class, if it is not `error`."""
        return (error or self.error)(f"{name} {one_line(problem)}.", hint=hint)
