"""A partial download: bytes are written to disk as they arrive, and hashed on the way."""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from edgechat.base.errors import DiskError
from edgechat.base.text import one_line
from edgechat.models.local.hashes import Hash

SYNC_EVERY = 10.0
"""Seconds between calls of fsync: what a power cut can cost."""
_READ = 1 << 20
_BATCH, _BATCHES = 1 << 20, 16
"""Bytes that are handed to the hashing thread together, and how many batches may wait."""
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class RunningHash:
    """The hash of a stream, computed in a thread of its own, beside the network."""

    def __init__(self, new_hash: Hash) -> None:
        self._hash = new_hash
        self._batch: list[bytes] = []
        self._waiting = 0
        self._queue: queue.Queue[list[bytes] | None] = queue.Queue(_BATCHES)
        self._thread = threading.Thread(target=self._run, name="hash", daemon=True)
        self._thread.start()

    def update(self, piece: bytes) -> None:
        """Take the next bytes."""
        self._batch.append(piece)
        self._waiting += len(piece)
        if self._waiting >= _BATCH:
            self._queue.put(self._batch)
            self._batch, self._waiting = [], 0

    def end(self) -> str:
        """Return the hash in hexadecimal digits; no update may follow."""
        self._queue.put(self._batch)
        self._queue.put(None)
        self._thread.join()
        return self._hash.hexdigest()

    def drop(self) -> None:
        """Let the thread end."""
        self._queue.put(None)

    def _run(self) -> None:
        while (batch := self._queue.get()) is not None:
            for piece in batch:
                self._hash.update(piece)


class Partial:
    """The file of a partial download. Requires its lock. Methods raise DiskError."""

    def __init__(self, path: Path, new_hash: Callable[[], Hash]) -> None:
        self.path = path
        self._new_hash = new_hash
        self._lock = threading.Lock()
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
        with disk_errors(path):
            self._fd = os.open(path, flags, 0o666)
            info = os.fstat(self._fd)
        self.size = info.st_size
        """Bytes that are on the disk."""
        self._synced = time.monotonic()
        if not stat.S_ISREG(info.st_mode) or info.st_nlink > 1:
            os.close(self._fd)
            raise DiskError(f"{_shown(path)} is not a plain file.", hint="Check what it is, and remove it.")
        self._hash = RunningHash(new_hash())

    def hash_kept(self, checked: Callable[[int], None]) -> None:
        """Hash the bytes of an earlier download; `checked` is called with the number of bytes so far."""
        done = 0
        with disk_errors(self.path):
            os.lseek(self._fd, 0, os.SEEK_SET)
            while done < self.size and (piece := os.read(self._fd, min(_READ, self.size - done))):
                self._hash.update(piece)
                done += len(piece)
                checked(done)
        self.size = done

    def write(self, piece: bytes) -> None:
        """Append bytes."""
        view = memoryview(piece)
        with self._lock:
            with disk_errors(self.path):
                while view:
                    view = view[os.write(self._fd, view) :]
                if time.monotonic() - self._synced > SYNC_EVERY:
                    os.fsync(self._fd)
                    self._synced = time.monotonic()
            self._hash.update(piece)
            self.size += len(piece)

    def restart(self) -> None:
        """Discard all bytes."""
        with disk_errors(self.path):
            os.ftruncate(self._fd, 0)
            os.lseek(self._fd, 0, os.SEEK_SET)
        self._hash.drop()
        self._hash, self.size = RunningHash(self._new_hash()), 0

    def digest(self) -> str:
        """Return the hash of all bytes; only restart() may follow, or finish()."""
        return self._hash.end()

    def finish(self, final: Path) -> None:
        """Rename the file, after its bytes have reached the disk."""
        with disk_errors(final):
            os.fsync(self._fd)
            os.close(self._fd)  # Windows renames no open file
            self._fd = -1
            os.replace(self.path, final)

    def remove(self) -> None:
        """Close and delete the file."""
        self.close()
        with contextlib.suppress(OSError):
            os.unlink(self.path)

    def close(self) -> None:
        """Close the file, to be resumed later."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._hash.drop()
            self._fd = -1


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Raise DiskError instead of OSError for a failure to write or create `path`."""
    try:
        yield
    except OSError as error:
        raise disk_error(path, error) from error


def disk_error(path: Path, error: OSError) -> DiskError:
    """Return the error for a failure to write or create `path`."""
    if error.errno in _FULL:
        return DiskError(
            f"The disk of {_shown(path.parent)} is full.",
            hint="Free some space, and run the same command again to resume.",
        )
    if error.errno == errno.ELOOP:
        return DiskError(f"{_shown(path)} is a symbolic link.", hint="Check where it points, and remove it.")
    why = error.strerror or type(error).__name__
    return DiskError(
        f"{_shown(path)} cannot be written: {why}.",
        hint="Set HF_HUB_CACHE to a writable folder, or make this one writable.",
    )


def _shown(path: Path) -> str:
    return one_line(str(path).encode("utf-8", "replace").decode("utf-8"), 300)
