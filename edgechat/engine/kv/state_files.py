"""File format and folder of saved KV states. Front ends can use this without an engine or numpy.

Each state is saved as `<chat>.state`. While a file is being written, its name identifies the writing process,
so that leftovers from dead processes can be recognized; it is renamed once it is complete. Programs that use
the API store their own conversations, so the ids of their states are hashes of the first messages. The
format:

magic, version, fingerprint, number of tokens, bytes of state,
    tokens and bytes of the checkpoint                            little endian
CRC-32 of these fields                                            verifies the header by itself
the tokens                                                        4 bytes each
the state
the checkpoint                                                    0 bytes if there is none
CRC-32 of everything above

The checksum protects against accidental damage, and CRC-32 misses one such case in 4 billion. An attacker who
can write to the folder could just as well compute any other checksum. CRC-32 is also the fastest, at 6.9
GB/s, compared with 2.0 GB/s for SHA-256 (using CPU instructions that small machines lack) and 1.4 GB/s for
BLAKE2b, measured on an AMD EPYC with 200 MB of data.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import stat
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING

from edgechat.base import paths
from edgechat.base.errors import FolderError
from edgechat.base.process.owner import Owner, alive, this_process

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


_MAGIC, _VERSION = b"edgestat", 2
_HEAD = struct.Struct("<8sI32sQQQQ")
_CRC = struct.Struct("<I")
_TOKEN = 4
_NOFOLLOW, _NONBLOCK = getattr(os, "O_NOFOLLOW", 0), getattr(os, "O_NONBLOCK", 0)
_BINARY = getattr(os, "O_BINARY", 0)
_BLOCK = 1 << 20
"""Number of bytes read or written, and hashed, at a time. This much fits into the processor's cache."""
_SYNC = 64 << 20
"""Number of bytes written between calls to fsync, which limits how long it takes to stop writing."""


class StateRefused(Exception):
    """A file cannot be used; the message says why. broken: whether it is damaged and can be removed."""

    def __init__(self, why: str, *, broken: bool = False) -> None:
        super().__init__(why)
        self.broken = broken


class WriteStopped(Exception):
    """Writing was stopped because the state is no longer needed."""


@dataclass(frozen=True, slots=True)
class StateHeader:
    """The sizes stored in a file's header."""

    tokens: int
    """Number of tokens."""
    size: int
    """Size of the state in bytes."""
    cut_tokens: int = 0
    """Number of tokens up to the checkpoint, or 0 if there is none."""
    cut_size: int = 0
    """Size of the checkpoint in bytes, or 0 if there is none."""

    @property
    def file_size(self) -> int:
        """Size of the whole file in bytes."""
        return _HEAD.size + _CRC.size + _TOKEN * self.tokens + self.size + self.cut_size + _CRC.size


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """A checkpoint after the first `length` tokens of a state that cannot be truncated."""

    length: int
    state: npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class SavedState:
    """A state with its tokens and an optional checkpoint."""

    tokens: list[int]
    state: npt.NDArray[np.uint8]
    cut: Cut | None = None


def key_of(fingerprint: bytes) -> bytes:
    """Return a 32-byte hash of a fingerprint."""
    return blake2b(fingerprint, digest_size=32).digest()


@contextlib.contextmanager
def opened(path: Path) -> Iterator[int]:
    """Open a file for reading. Raises OSError, or StateRefused if it is not a regular file.

    The file is removed if the body raises StateRefused with `broken` set.
    """
    # Following a symlink could lead outside the folder, and opening a named pipe would block until something
    # writes to it.
    fd = os.open(path, os.O_RDONLY | _NOFOLLOW | _NONBLOCK | _BINARY)
    status = os.fstat(fd)
    broken = False
    try:
        if not stat.S_ISREG(status.st_mode):
            raise StateRefused("it is not a regular file")
        yield fd
    except StateRefused as error:
        broken = error.broken
        raise
    finally:
        os.close(fd)  # Windows cannot remove an open file
        if broken:
            _remove(path, status)


@contextlib.contextmanager
def created(path: Path) -> Iterator[int]:
    """Create a new file that only the user can read. Raises OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY, 0o600)
    try:
        yield fd
    finally:
        os.close(fd)


def read_head(fd: int, key: bytes, *, at_most: int) -> StateHeader:
    """Read the header of a file that is no larger than `at_most` bytes.

    Raises OSError, or StateRefused if the header is damaged, has a different key or does not match the file's
    size.
    """
    return _head(os.read(fd, _HEAD.size + _CRC.size), os.fstat(fd).st_size, key, at_most)


def read_tokens(fd: int, key: bytes, *, at_most: int) -> tuple[StateHeader, npt.NDArray[np.uint32]]:
    """Read the header and the tokens, but do not verify the tokens. Raises the same errors as `read_head`."""
    import numpy as np

    head = read_head(fd, key, at_most=at_most)
    tokens = np.empty(head.tokens, "<u4")
    with open(fd, "rb", buffering=0, closefd=False) as file:
        _fill(file, tokens.view(np.uint8).data)
    return head, tokens


def read(fd: int, key: bytes, *, at_most: int, wanted: Callable[[], bool]) -> SavedState:
    """Read and verify a whole file that is no larger than `at_most` bytes.

    Raises OSError, MemoryError, StateRefused if the file is unusable, or WriteStopped once `wanted` returns
    False.
    """
    import numpy as np

    raw = os.read(fd, _HEAD.size + _CRC.size)
    head = _head(raw, os.fstat(fd).st_size, key, at_most)
    tokens, state = np.empty(head.tokens, "<u4"), np.empty(head.size, np.uint8)
    cut = np.empty(head.cut_size, np.uint8)
    crc = zlib.crc32(raw)
    with open(fd, "rb", buffering=0, closefd=False) as file:
        for block in _blocks(tokens.view(np.uint8), state, cut):
            if not wanted():
                raise WriteStopped
            _fill(file, block)
            crc = zlib.crc32(block, crc)
        if file.read(_CRC.size) != _CRC.pack(crc):
            raise StateRefused("its checksum is wrong", broken=True)
    return SavedState(tokens.tolist(), state, Cut(head.cut_tokens, cut) if head.cut_tokens else None)


def write(
    fd: int,
    key: bytes,
    tokens: npt.NDArray[np.uint32],
    state: npt.NDArray[np.uint8],
    cut: Cut | None = None,
    *,
    wanted: Callable[[], bool],
) -> None:
    """Write a file and flush it to disk. Raises OSError, or WriteStopped once `wanted` returns False."""
    import numpy as np

    cut_tokens, cut_state = (cut.length, cut.state) if cut is not None else (0, np.empty(0, np.uint8))
    head = _HEAD.pack(_MAGIC, _VERSION, key, len(tokens), len(state), cut_tokens, len(cut_state))
    head += _CRC.pack(zlib.crc32(head))
    _drain(fd, memoryview(head))
    crc, unsynced = zlib.crc32(head), 0
    for block in _blocks(tokens.astype("<u4", copy=False).view(np.uint8), state, cut_state):
        if not wanted():
            raise WriteStopped
        crc = zlib.crc32(block, crc)
        _drain(fd, block)
        unsynced += len(block)
        if unsynced >= _SYNC:
            os.fsync(fd)
            unsynced = 0
    _drain(fd, memoryview(_CRC.pack(crc)))
    os.fsync(fd)


def _head(raw: bytes, file_size: int, key: bytes, at_most: int) -> StateHeader:
    if len(raw) < _HEAD.size + _CRC.size or not raw.startswith(_MAGIC):
        raise StateRefused("it is not a saved KV state", broken=True)
    _, version, file_key, *sizes = _HEAD.unpack_from(raw)
    if version != _VERSION:
        raise StateRefused("it was written by another version of edgechat")
    if _CRC.pack(zlib.crc32(raw[: _HEAD.size])) != raw[_HEAD.size :]:
        raise StateRefused("its header is damaged", broken=True)
    head = StateHeader(*sizes)
    # Check the size before allocating any memory.
    if head.file_size != file_size:
        raise StateRefused(f"it should have {head.file_size} bytes but has {file_size}", broken=True)
    if head.cut_tokens > head.tokens or (head.cut_size and not head.cut_tokens):
        raise StateRefused("its checkpoint does not match its tokens", broken=True)
    if file_key != key:
        raise StateRefused("it was saved with another model or other settings")
    if file_size > at_most:
        raise StateRefused(f"it has {file_size} bytes; the limit is {at_most}")
    return head


def _remove(path: Path, status: os.stat_result) -> None:
    # Another process may have replaced it with an intact file.
    with contextlib.suppress(OSError):
        if os.path.samestat(path.lstat(), status):
            path.unlink()


def _fill(file: FileIO, block: memoryview) -> None:
    while block:
        n = file.readinto(block)
        if not n:
            raise StateRefused("it is truncated", broken=True)
        block = block[n:]


def _drain(fd: int, block: memoryview) -> None:
    while block:
        block = block[os.write(fd, block) :]


def _blocks(*arrays: npt.NDArray[np.uint8]) -> Iterator[memoryview]:
    for array in arrays:
        view = array.data
        for start in range(0, len(view), _BLOCK):
            yield view[start : start + _BLOCK]


_CHAT = re.compile(r"[0-9a-f]{8,64}", re.ASCII)
_STATE = re.compile(r"([0-9a-f]{8,64})\.state", re.ASCII)
_DRAFT = re.compile(r"([0-9a-f]{8,64})\.(\d{1,10})-(\d{1,15})-\d{1,15}\.part", re.ASCII)
"""Groups: the chat, then the pid and start time (in milliseconds since 1970) of the writing process. A
sequence number follows.
"""
_drafts = itertools.count()
HASHED_ID = 64
"""Number of digits in an id that is a hash. The ids of stored chats are shorter."""
UNUSED_DAYS = 30
"""Number of days after which an unused state with a hashed id is removed."""


def folder() -> Path:
    """Return the path of the folder, which may not exist. Raises FolderError."""
    return paths.cache_dir() / "states"


def made_folder() -> Path:
    """Create the folder if necessary, make it private to the user and return its path.

    Raises FolderError or OSError.
    """
    path = folder()
    path.mkdir(mode=0o700, exist_ok=True)
    if os.name == "posix" and path.stat().st_mode & 0o077:
        path.chmod(0o700)
    return path


def path_of(chat: str) -> Path:
    """Return the path of a chat's state. Raises FolderError, or ValueError if the id is malformed."""
    check_id(chat)
    return folder() / f"{chat}.state"


def check_id(chat: str) -> None:
    """Raise ValueError unless the id is 8 to 64 hexadecimal digits and so cannot lead to another path."""
    if _CHAT.fullmatch(chat) is None:
        raise ValueError(f"not a chat id: {chat!r}")


def draft_of(chat: str) -> Path:
    """Return a new temporary path, unique to this process and call. Raises the same errors as `path_of`."""
    owner = this_process()
    name = f"{chat}.{owner.pid}-{round(owner.started * 1000)}-{next(_drafts)}.part"
    return path_of(chat).with_name(name)


def forget(chat: str) -> None:
    """Remove a chat's files. Raises ValueError, or FolderError if a file cannot be removed.

    If an engine has this chat loaded, it must forget the chat as well, or it may write the files again.
    """
    state = path_of(chat)
    leftovers = [e.path for e in _entries() if e.name.startswith(f"{chat}.") and _is_left_over(e.name)]
    for path in (state, *map(Path, leftovers)):
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise FolderError(
                f"The saved KV state of a chat cannot be removed: {path} ({error.strerror}).",
                hint="Remove it manually.",
            ) from error


def prune(keep: Callable[[str], bool]) -> int:
    """Remove states of chats that `keep` rejects, unused states with hashed ids, and leftover files.

    States count as unused after `UNUSED_DAYS`. Returns the number of removed files. Files that cannot be
    removed are skipped. Raises FolderError.
    """
    oldest = time.time() - UNUSED_DAYS * 86_400
    unwanted = [
        path
        for chat, path, status in states()
        if (status.st_mtime < oldest if len(chat) == HASHED_ID else not keep(chat))
    ]
    unwanted += [entry.path for entry in _entries() if _is_left_over(entry.name)]
    return sum(map(_unlink, unwanted))


def evict(limit: int, *, keep: str | None = None) -> None:
    """Remove the least recently used states until the rest take up at most `limit` bytes.

    Also removes files left over from dead processes. Raises FolderError. keep: a chat whose state is never
    removed.
    """
    found = states()
    total = sum(stat.st_size for _, _, stat in found)
    for entry in _entries():
        if _is_left_over(entry.name):
            _unlink(entry.path)
    evictable = [(stat.st_mtime_ns, stat.st_size, path) for chat, path, stat in found if chat != keep]
    for _, size, path in sorted(evictable):
        if total <= limit:
            break
        if _unlink(path):
            total -= size


def usage() -> tuple[int, int]:
    """Return the number of states and their total size in bytes. Raises FolderError."""
    sizes = [stat.st_size for _, _, stat in states()]
    return len(sizes), sum(sizes)


def states() -> list[tuple[str, str, os.stat_result]]:
    """Return the chat, path and stat result for each state. Raises FolderError."""
    found = []
    for entry in _entries():
        if (match := _STATE.fullmatch(entry.name)) is not None:
            with contextlib.suppress(OSError):  # it may vanish at any time
                found.append((match[1], entry.path, entry.stat(follow_symlinks=False)))
    return found


def _entries() -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder()) as entries:
            return list(entries)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise FolderError(
            f"edgechat cannot read its folder {folder()}: {error.strerror}.",
            hint="Make it readable, or remove it: its contents can be computed again.",
        ) from error


def _is_left_over(name: str) -> bool:
    match = _DRAFT.fullmatch(name)
    return match is not None and not alive(Owner(int(match[2]), int(match[3]) / 1000))


def _unlink(path: str) -> bool:
    """Remove a file. Return False if it could not be removed."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
