"""Resumable, verified downloads from the hub into the huggingface_hub cache.

Files are downloaded over plain HTTP, as a browser would download them, even if the hub keeps them in its Xet
storage. huggingface_hub would use hf-xet, which discards a partial download if it is killed, and does not
allow the bytes to be hashed as they arrive. Only the largest files require hf-xet.

If a second process wants the same file, it waits for the first. Bytes are written to disk as they arrive. If
a download was killed, its bytes are hashed again and only the rest is requested. The hash in each response's
headers shows that the rest belongs to the same file, and the hash of the whole file confirms it.
"""

from __future__ import annotations

import math
import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from edgechat.base.errors import HubError, HubUnreachable, RateLimited, WrongBytes
from edgechat.base.text import mebibytes, one_line
from edgechat.models.choices import RemoteFile, RepoListing
from edgechat.models.hub import xet
from edgechat.models.hub.cache import HubStore, Partial, disk_error, disk_errors
from edgechat.models.hub.client import Client, ConnectionCut, RangedFile, ask_hub
from edgechat.models.hub.endpoint import Endpoint, nonsense, require_network
from edgechat.models.local.files import hash_for

WAITS: tuple[float, ...] = (1, 2, 4, 8, 15, 30, 60)
"""Seconds to wait before each retry, after consecutive failures without progress."""
PROGRESS = 1 << 16
"""Number of new bytes that count as progress."""
MAX_WAIT = 300
"""Longest wait, in seconds, to accept when the hub asks for one."""
MOST = 50 * 10**9
"""Size of the largest file that the hub serves over plain HTTP, in bytes. hf-xet downloads larger files."""
_READ = 1 << 20
_LOCK_POLL = 0.2


class DownloadStopped(Exception):
    """The caller stopped the download. The bytes received so far remain on disk."""


class DownloadObserver(Protocol):
    """Callbacks for the progress of a download, called from any thread."""

    def has(self, file: RemoteFile, n: int) -> None:
        """Called when the first n bytes of the file are on disk."""

    def checked(self, file: RemoteFile, n: int) -> None:
        """Called when the first n bytes of an earlier download have been hashed again."""

    def says(self, text: str) -> None:
        """Called when something unusual happens, with a sentence for users that describes it."""


@dataclass(frozen=True, slots=True)
class FetchedFile:
    """The result of downloading one file."""

    file: RemoteFile
    resumed: int
    """Number of bytes reused from an earlier download."""
    received: int
    """Number of bytes received this time. If the file was already complete, this and `resumed` are 0."""


def download(
    listing: RepoListing,
    files: Sequence[RemoteFile],
    revision: str,
    observer: DownloadObserver,
    stop: threading.Event | None = None,
) -> list[FetchedFile]:
    """Download files from a repository, and symlink them into the snapshot once all are complete.

    revision: the listing's branch, tag or commit. stop: set by another thread to end the download. If the
    connection is silent, this takes effect when the connection times out. Raises HubError, DiskError,
    DownloadStopped.
    """
    store, stop = HubStore(listing), stop or threading.Event()
    fetched: list[FetchedFile] = []
    for file in files:
        store.make_folders(file)
        with _locked(store, file, observer, stop):
            fetched.append(_download_file(store, file, revision, observer, stop))
    # The first shard of a split model comes last: a program that finds it will also find the others.
    for result in reversed(fetched):
        store.put(result.file, new=result.resumed + result.received > 0)
    store.write_ref(revision)
    _remove_stale_partials(store, revision, observer)
    return fetched


def _remove_stale_partials(store: HubStore, revision: str, observer: DownloadObserver) -> None:
    """Remove edgechat's partial downloads of files that the revision no longer contains.

    Partial downloads for other revisions or by other programs are not touched.
    """
    from filelock import FileLock, Timeout

    for digest in store.stale_partials(revision):
        try:
            with FileLock(store.lock_of(digest), timeout=0, mode=0o664):
                size = store.remove_stale(digest)
        except (OSError, Timeout):
            continue
        if size:
            observer.says(
                f"Removed an earlier partial download ({mebibytes(size)}), because the file has been "
                "replaced on the hub."
            )


def _download_file(
    store: HubStore, file: RemoteFile, revision: str, observer: DownloadObserver, stop: threading.Event
) -> FetchedFile:
    """Download and verify a file. The caller must hold its lock."""
    if store.has_bytes(file):
        observer.has(file, file.size)
        return FetchedFile(file, 0, 0)
    name = one_line(file.name)
    require_network(False, f"{name} is not on this machine")
    digest = store.digest(file)
    if file.size > MOST:
        return _download_by_xet(store, file, observer, stop)
    store.mark_begun(file, revision)
    partial = Partial(store.partial(file), lambda: hash_for(digest, file.size))
    try:
        if partial.size > file.size:
            partial.restart()
        resumed = partial.size
        partial.hash_kept(_stoppable(stop, lambda n: observer.checked(file, n)))
        received = _receive(store.listing, file, partial, observer, stop)
        while partial.digest() != digest:
            if received >= file.size:
                partial.remove()
                store.unmark(file)
                raise _corrupt(store.listing, file)
            observer.says(f"The partial download of {name} is damaged; starting again.")
            partial.restart()
            resumed, received = 0, _receive(store.listing, file, partial, observer, stop)
        partial.finish(store.blob(file))
        store.unmark(file)
    finally:
        partial.close()
    return FetchedFile(file, resumed, received)


def _download_by_xet(
    store: HubStore, file: RemoteFile, observer: DownloadObserver, stop: threading.Event
) -> FetchedFile:
    """Download a file that is not served over plain HTTP. Such a download cannot be resumed."""
    digest, folder = store.digest(file), store.new_xet_folder(file)
    report = _stoppable(stop, lambda n: observer.has(file, n))
    report_checked = _stoppable(stop, lambda n: observer.checked(file, n))

    def wait(seconds: float, n: int) -> None:
        report(n)
        stop.wait(seconds)

    try:
        with disk_errors(store.blob(file)):
            path = xet.fetch(store.listing, file, folder, wait)
            report(file.size)
            hasher = hash_for(digest, file.size)
            with path.open("rb", buffering=0) as stream:
                while piece := stream.read(_READ):
                    hasher.update(piece)
                    report_checked(stream.tell())
            if hasher.hexdigest() != digest:
                raise _corrupt(store.listing, file)
            os.replace(path, store.blob(file))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return FetchedFile(file, 0, file.size)


def _receive(
    listing: RepoListing,
    file: RemoteFile,
    partial: Partial,
    observer: DownloadObserver,
    stop: threading.Event,
) -> int:
    """Receive the missing bytes over as many connections as needed, and return how many were received."""
    hub, ranged = Endpoint(listing.hub), RangedFile(listing, file)
    failures, best, received = 0, partial.size, 0
    report = _stoppable(stop, lambda n: observer.has(file, n))

    def receive(client: Client) -> None:
        nonlocal received
        for piece in _missing_bytes(client, ranged, partial):
            with client.paused():
                partial.write(piece)
            received += len(piece)
            report(partial.size)

    report(partial.size)
    while partial.size < file.size:
        try:
            ask_hub(hub, listing.repo, math.inf, receive)
        except (HubUnreachable, RateLimited) as error:
            if partial.size >= best + PROGRESS:
                failures, best = 0, partial.size
            wait = _retry_delay(error, failures)
            if wait is None:
                raise _resumable(error, partial) from error
            failures += 1
            observer.says(f"{error.message} Trying again in {wait:.0f} s.")
            if stop.wait(wait):
                raise DownloadStopped from error
    return received


def _stoppable(stop: threading.Event, report: Callable[[int], None]) -> Callable[[int], None]:
    """Wrap a progress callback so that it raises DownloadStopped once `stop` is set."""

    def report_or_stop(n: int) -> None:
        report(n)
        if stop.is_set():
            raise DownloadStopped

    return report_or_stop


def _missing_bytes(client: Client, ranged: RangedFile, partial: Partial) -> Iterator[bytes]:
    """Yield the missing bytes, possibly discarding the existing ones. Raises HubError, ConnectionCut."""
    at, end = partial.size, ranged.file.size
    with client.get(ranged.url, ranged.headers(at, end) if at else None) as answer:
        unchanged = ranged.is_unchanged(answer)
        start, end = ranged.part(answer, at, end)
        if start < at or not unchanged:
            partial.restart()
        if start > partial.size:
            raise ConnectionCut("it has been replaced there")
        for piece in answer.pieces:
            if partial.size + len(piece) > end:
                raise nonsense(answer.url, f"sends more data than {one_line(ranged.file.name)} has")
            yield piece
    if partial.size < end:
        raise ConnectionCut("the response is shorter than announced")


def _retry_delay(error: HubUnreachable | RateLimited, failures: int) -> float | None:
    """Return the number of seconds to wait before the next attempt, or None to give up."""
    if failures >= len(WAITS):
        return None
    if isinstance(error, RateLimited) and error.seconds is not None:
        return max(WAITS[failures], error.seconds) if error.seconds <= MAX_WAIT else None
    return WAITS[failures]


def _resumable(error: HubError, partial: Partial) -> HubError:
    hints = [error.hint] if error.hint else []
    if partial.size:
        hints.append("The part that was downloaded is kept; to resume, run the same command again.")
    return type(error)(error.message, hint=" ".join(hints))


def _corrupt(listing: RepoListing, file: RemoteFile) -> WrongBytes:
    name, what = one_line(file.name), "hash" if file.sha256 is None else "SHA-256"
    return WrongBytes(
        f"The download of {name} from {listing.repo} is corrupt: its {what} does not match. It was deleted.",
        hint="Try again. If this happens again, a proxy or the mirror in HF_ENDPOINT is changing the data.",
    )


@contextmanager
def _locked(
    store: HubStore, file: RemoteFile, observer: DownloadObserver, stop: threading.Event
) -> Iterator[None]:
    """Hold the lock on a file's blob. Waits if another process holds it."""
    from filelock import FileLock, Timeout

    lock = FileLock(store.lock(file), timeout=0, mode=0o664)
    waiting = False
    while not lock.is_locked:
        try:
            lock.acquire()
        except Timeout:
            if not waiting:
                observer.says(f"Another program is downloading {one_line(file.name)}; waiting for it.")
            waiting = True
            if stop.wait(_LOCK_POLL):
                raise DownloadStopped from None
        except OSError as error:
            raise disk_error(store.lock(file), error) from error
    try:
        yield
    finally:
        lock.release()


_WINDOW = 8.0
"""Seconds over which the rate is averaged."""
_MIN_SECONDS = 0.2
"""The shortest period over which a rate is computed, in seconds."""


@dataclass(frozen=True, slots=True)
class ProgressSample:
    """The progress of a download at one moment."""

    here: int
    total: int
    """Total number of bytes; `here` is the number of bytes on disk."""
    rate: float = 0.0
    """Bytes per second, or 0 if not yet known."""

    @property
    def share(self) -> float:
        """The fraction completed, from 0 to 1."""
        return self.here / self.total if self.total else 1.0

    @property
    def left(self) -> float | None:
        """Seconds remaining, or None if not yet known."""
        return (self.total - self.here) / self.rate if self.rate > 0 else None

    @property
    def size(self) -> str:
        """Percentage and sizes: '45% 2.1 GiB of 4.4 GiB'."""
        share = 100 * self.here // self.total if self.total else 100
        return f"{share}% {mebibytes(self.here)} of {mebibytes(self.total)}"

    @property
    def line(self) -> str:
        """Percentage, sizes, rate and remaining time: '45% 2.1 GiB of 4.4 GiB, 23.0 MiB/s, 1:45 left'."""
        left = self.left
        return self.size if left is None else f"{self.size}, {speed(self.rate)}, {duration(left)} left"


class DownloadPace:
    """Combined progress of several files with a total size of `total` bytes. Not thread-safe."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._here: dict[RemoteFile, int] = {}
        self._received = 0
        self._samples: deque[tuple[float, int]] = deque()

    def has(self, file: RemoteFile, n: int) -> bool:
        """Record that the first n bytes of a file are on disk. Return whether the file was already known."""
        before = self._here.get(file)
        self._here[file] = n
        if not self._samples:
            self._samples.append((time.monotonic(), 0))
        if before is not None:
            self._received += max(0, n - before)
        return before is not None

    def standing(self) -> ProgressSample:
        """Return the current progress."""
        return ProgressSample(sum(self._here.values()), self._total, self._rate())

    def _rate(self) -> float:
        now = time.monotonic()
        self._samples.append((now, self._received))
        while len(self._samples) > 2 and self._samples[0][0] < now - _WINDOW:
            self._samples.popleft()
        seconds = now - self._samples[0][0]
        return (self._received - self._samples[0][1]) / seconds if seconds > _MIN_SECONDS else 0.0


def speed(rate: float) -> str:
    """Format a rate given in bytes per second for users: '23.0 MiB/s'."""
    return f"{rate / 2**20:.1f} MiB/s" if rate >= 2**20 / 10 else f"{rate / 1024:.0f} KiB/s"


def duration(seconds: float) -> str:
    """Format a duration given in seconds for users: '1:45'."""
    whole = int(min(seconds, 359_999))
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
