"""The huggingface_hub cache, using that library's file layout so that all programs can share the files.

    models--owner--name/blobs/<hash>                           the bytes
    models--owner--name/blobs/<hash>.incomplete                a partial download
    models--owner--name/snapshots/<commit>/folder/a.gguf       a relative symlink to the bytes
    models--owner--name/refs/main                              the commit of a branch or tag
    models--owner--name/.xet/<hash>/                           edgechat's: unverified files from hf-xet
    .locks/models--owner--name/<hash>.lock                     held while the bytes are being written
    .locks/models--owner--name/<hash>.edgechat                 edgechat's: the revision of a partial download

The hash is SHA-256 for files in Git LFS, and git's own hash for small files. Where symlinks are impossible,
the snapshot contains the file itself. File names are checked when a listing is read, and commits and hashes
must be hexadecimal. Symlinked folders in the cache are rejected.
"""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import shutil
import stat
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from edgechat.base import paths
from edgechat.base.errors import DiskError, HubAnswerError
from edgechat.base.network.offline import is_true
from edgechat.base.text import mebibytes, one_line
from edgechat.models.choices import RemoteFile, RepoListing
from edgechat.models.local.files import Hash, is_digest
from edgechat.models.local.locations import hub_cache

_TAG = """Signature: 8a477f597d28d172789f06886806bc55
# This file is a cache directory tag created by huggingface_hub.
# For information about cache directory tags, see:
#	https://bford.info/cachedir/
"""
_RESERVE = 1 << 26
"""Number of bytes to leave free on the disk."""
_MAX_REVISION = 4096
"""Maximum length of a revision's name, in bytes."""


class HubStore:
    """A repository's files at one commit, in the local cache. Methods raise DiskError."""

    def __init__(self, listing: RepoListing) -> None:
        self.listing = listing
        self.root = hub_cache()
        self._name = "models--" + listing.repo.replace("/", "--")
        self.folder = self.root / self._name

    def path(self, file: RemoteFile) -> Path:
        """Return the file's path in the snapshot, whether or not the file has been downloaded."""
        return self.folder.joinpath("snapshots", self.listing.commit, *file.name.split("/"))

    def blob(self, file: RemoteFile) -> Path:
        """Return the path of the file's blob. Raises HubAnswerError if the file cannot be verified."""
        return self.folder / "blobs" / self.digest(file)

    def digest(self, file: RemoteFile) -> str:
        """Return the hash that verifies the file. Raises HubAnswerError if there is none."""
        if file.digest is None:
            raise HubAnswerError(
                f"The hub provides no hash for {one_line(file.name)}, so the download could not be verified.",
                hint="Choose another file, or another repository.",
            )
        return file.digest

    def partial(self, file: RemoteFile) -> Path:
        """Return the path of the file's partial download."""
        return self.partial_of(self.digest(file))

    def partial_of(self, digest: str) -> Path:
        """Return the path of the partial download of the file with this hash."""
        return self.folder / "blobs" / f"{digest}.incomplete"

    def new_xet_folder(self, file: RemoteFile) -> Path:
        """Return a new, empty folder for hf-xet. The caller must hold the file's lock."""
        folder = self.folder / ".xet" / self.digest(file)
        shutil.rmtree(folder, ignore_errors=True)
        self._make_folder(folder)
        return folder

    def lock(self, file: RemoteFile) -> Path:
        """Return the path of the file's lock, which is shared with huggingface_hub."""
        return self.lock_of(self.blob(file).name)

    def lock_of(self, digest: str) -> Path:
        """Return the path of the lock for the file with this hash."""
        return self.root / ".locks" / self._name / f"{digest}.lock"

    def mark_begun(self, file: RemoteFile, revision: str) -> None:
        """Record the revision of a new partial download. Does nothing if the download already exists."""
        if not os.path.lexists(self.partial(file)):
            self._write(self._mark_path(self.digest(file)), revision)

    def unmark(self, file: RemoteFile) -> None:
        """Remove the record of a partial download that was completed or removed."""
        with contextlib.suppress(OSError):
            self._mark_path(self.digest(file)).unlink()

    def stale_partials(self, revision: str) -> list[str]:
        """Return the hashes of edgechat's partial downloads of files that the revision no longer contains."""
        digests = {file.digest for file in self.listing.files}
        marks = self._mark_path("*").parent.glob(self._mark_path("*").name)
        return [mark.stem for mark in marks if mark.stem not in digests and _revision_in(mark) == revision]

    def remove_stale(self, digest: str) -> int:
        """Remove a stale partial download and return its size. Its lock must be held. Raises OSError."""
        path = self.partial_of(digest)
        size = os.lstat(path).st_size if os.path.lexists(path) else 0
        path.unlink(missing_ok=True)
        self._mark_path(digest).unlink(missing_ok=True)
        return size

    def _mark_path(self, digest: str) -> Path:
        return self.lock_of(digest).with_suffix(".edgechat")

    def is_here(self, file: RemoteFile) -> bool:
        """Return whether the snapshot contains the whole file, judging by its size."""
        return _size(self.path(file)) == file.size

    def has_bytes(self, file: RemoteFile) -> bool:
        """Return whether the cache contains the whole file for any commit, judging by its size."""
        return self.is_here(file) or _size(self.blob(file)) == file.size

    def n_kept(self, file: RemoteFile) -> int:
        """Return the number of bytes in the file's partial download."""
        return min(_size(self.partial(file)) or 0, file.size)

    def make_folders(self, file: RemoteFile) -> None:
        """Create the folders for the file, its blob and its lock."""
        with disk_errors(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
        for path in (self.blob(file), self.path(file), self.lock(file)):
            self._make_folder(path.parent)
        # Exclusive creation, so that an existing file or symlink is not touched.
        with contextlib.suppress(OSError), (self.root / "CACHEDIR.TAG").open("x", encoding="ascii") as tag:
            tag.write(_TAG)

    def put(self, file: RemoteFile, *, new: bool) -> None:
        """Symlink the complete blob into the snapshot.

        new: whether the blob is not in use yet, in which case it may be moved if symlinks are impossible.
        """
        path, blob = self.path(file), self.blob(file)
        draft = path.with_name(f".{uuid.uuid4().hex[:12]}.tmp")
        if self.is_here(file):
            return
        try:
            with disk_errors(path):
                if not _symlinked(blob, draft):
                    if new:
                        draft = blob
                    else:
                        shutil.copyfile(blob, draft)
                os.replace(draft, path)
        except DiskError:
            with contextlib.suppress(OSError):
                path.with_name(draft.name).unlink()
            raise

    def write_ref(self, revision: str) -> None:
        """Record which commit a branch or tag points to."""
        if revision == self.listing.commit:
            return
        path = self.folder.joinpath("refs", *revision.split("/"))
        self._make_folder(path.parent)
        self._write(path, self.listing.commit)

    def _write(self, path: Path, text: str) -> None:
        """Write a small file atomically. A symlink is replaced, not followed."""
        draft = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}.tmp")
        with disk_errors(path):
            draft.write_text(text, encoding="utf-8")
            os.replace(draft, path)

    def _make_folder(self, folder: Path) -> None:
        """Create a folder and its parents below the root. Raises DiskError if any of them is a symlink."""
        folder_above = self.root
        for part in folder.relative_to(self.root).parts:
            folder_above = folder_above / part
            with disk_errors(folder_above):
                with contextlib.suppress(FileExistsError):
                    os.mkdir(folder_above)
                kind = os.lstat(folder_above).st_mode
            if not stat.S_ISDIR(kind):
                what = "a link" if stat.S_ISLNK(kind) else "not a folder"
                raise DiskError(
                    f"{one_line(str(folder_above), 300)} is {what}; edgechat does not write through it.",
                    hint="Replace it with a real folder, or set HF_HUB_CACHE to another folder.",
                )


def check_space(needed: int) -> None:
    """Raise DiskError unless `needed` bytes are free on the cache's disk, in addition to a reserve."""
    folder = hub_cache()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if needed and needed + _RESERVE > free:
        raise DiskError(
            f"The download needs {mebibytes(needed)}, but the disk of {one_line(str(folder), 300)} has "
            f"only {mebibytes(free)} free.",
            hint="Free some space, choose a smaller quantization with --quant, or set HF_HUB_CACHE to a "
            "folder on another disk.",
        )


def _symlinked(blob: Path, path: Path) -> bool:
    """Make `path` a relative symlink to `blob`. Return False if symlinks are impossible."""
    if is_true("HF_HUB_DISABLE_SYMLINKS"):
        return False
    try:
        os.symlink(os.path.relpath(blob, path.parent), path)
    except OSError:
        return False
    return True


def _revision_in(mark: Path) -> str | None:
    if not is_digest(mark.stem):
        return None
    try:
        return paths.read_bytes(mark, _MAX_REVISION).decode()
    except (OSError, ValueError):
        return None


def _size(path: Path) -> int | None:
    try:
        info = path.stat()
    except OSError:
        return None
    return info.st_size if stat.S_ISREG(info.st_mode) else None


SYNC_EVERY = 10.0
"""Seconds between fsync calls. A power failure loses at most the data that arrived in this time."""
_READ = 1 << 20
_BATCH, _BATCHES = 1 << 20, 16
"""Number of bytes passed to the hashing thread at a time, and maximum number of such batches in the queue."""
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class RunningHash:
    """A hash of a stream, computed in a separate thread while the network delivers more data."""

    def __init__(self, new_hash: Hash) -> None:
        self._hash = new_hash
        self._batch: list[bytes] = []
        self._waiting = 0
        self._queue: queue.Queue[list[bytes] | None] = queue.Queue(_BATCHES)
        self._thread = threading.Thread(target=self._run, name="hash", daemon=True)
        self._thread.start()

    def update(self, piece: bytes) -> None:
        """Add more bytes."""
        self._batch.append(piece)
        self._waiting += len(piece)
        if self._waiting >= _BATCH:
            self._queue.put(self._batch)
            self._batch, self._waiting = [], 0

    def end(self) -> str:
        """Return the hash in hexadecimal. No further updates are allowed."""
        self._queue.put(self._batch)
        self._queue.put(None)
        self._thread.join()
        return self._hash.hexdigest()

    def drop(self) -> None:
        """Discard the hash and let the thread exit."""
        self._queue.put(None)

    def _run(self) -> None:
        while (batch := self._queue.get()) is not None:
            for piece in batch:
                self._hash.update(piece)


class Partial:
    """The file that holds a partial download. The caller must hold its lock. Methods raise DiskError."""

    def __init__(self, path: Path, new_hash: Callable[[], Hash]) -> None:
        self.path = path
        self._new_hash = new_hash
        self._lock = threading.Lock()
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
        with disk_errors(path):
            self._fd = os.open(path, flags, 0o666)
            info = os.fstat(self._fd)
        self.size = info.st_size
        self._synced = time.monotonic()
        if not stat.S_ISREG(info.st_mode) or info.st_nlink > 1:
            os.close(self._fd)
            raise DiskError(f"{_shown(path)} is not a plain file.", hint="Check what it is, and remove it.")
        self._hash = RunningHash(new_hash())

    def hash_kept(self, checked: Callable[[int], None]) -> None:
        """Hash the bytes already downloaded, calling `checked` with the number hashed so far."""
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
        """Discard all bytes and start over."""
        with disk_errors(self.path):
            os.ftruncate(self._fd, 0)
            os.lseek(self._fd, 0, os.SEEK_SET)
        self._hash.drop()
        self._hash, self.size = RunningHash(self._new_hash()), 0

    def digest(self) -> str:
        """Return the hash of all bytes. Afterwards, only `restart` or `finish` may be called."""
        return self._hash.end()

    def finish(self, final: Path) -> None:
        """Flush the file to disk and rename it to `final`."""
        with disk_errors(final):
            os.fsync(self._fd)
            os.close(self._fd)  # Windows cannot rename an open file
            self._fd = -1
            os.replace(self.path, final)

    def remove(self) -> None:
        """Close and delete the file."""
        self.close()
        with contextlib.suppress(OSError):
            os.unlink(self.path)

    def close(self) -> None:
        """Close the file without deleting it, so that the download can be resumed."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._hash.drop()
            self._fd = -1


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Convert an OSError raised while writing or creating `path` into a DiskError."""
    try:
        yield
    except OSError as error:
        raise disk_error(path, error) from error


def disk_error(path: Path, error: OSError) -> DiskError:
    """Return the error for a failed attempt to write or create `path`."""
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
