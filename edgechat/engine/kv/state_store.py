"""Stores KV states on disk, so that old chats can continue without prefill.

The states are only a cache, so an unusable state is treated as missing. Several processes may use the folder
at the same time. Files are renamed into place once complete, and they may disappear at any time.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from edgechat.base.errors import EdgechatError
from edgechat.base.text import one_line
from edgechat.engine.backends.base import FileVersion
from edgechat.engine.kv import state_files
from edgechat.engine.kv.snapshot import StatesOnDisk
from edgechat.engine.kv.state_files import Cut, SavedState, StateHeader, StateRefused, WriteStopped, forget

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")

MOST = 4 << 30
"""Default limit for all files, in bytes. A tenth of the free disk space applies instead if it is less."""
PRIOR_BANDWIDTH = 400e6
"""Assumed disk read speed in bytes per second, used until a state has been read."""
COUNT_INTERVAL = 5.0
"""Minimum number of seconds between two counts of the files."""
_PRIOR_WEIGHT = 64e6
"""Number of bytes read after which the measured speed counts as much as the assumed one."""


def worth_saving(
    size: int, tokens: int, *, seconds_per_token: float, bandwidth: float = PRIOR_BANDWIDTH
) -> bool:
    """Return True if reading a state of `size` bytes is faster than recomputing its tokens.

    bandwidth: the read speed in bytes per second; see `KVStateStore.bandwidth`.
    """
    return size / bandwidth < tokens * seconds_per_token


def done_future(result: _T) -> Future[_T]:
    """Return a future that already has this result."""
    done: Future[_T] = Future()
    done.set_result(result)
    return done


@dataclass(frozen=True, slots=True, eq=False)
class KnownState:
    """The tokens and sizes of a readable state."""

    chat: str
    tokens: npt.NDArray[np.uint32]
    size: int
    """Size of the state in bytes."""
    cut: int = 0
    """Number of tokens up to its checkpoint, or 0 if it has none."""


@dataclass(slots=True, eq=False)
class _Write:
    """A state to write. `state` becomes None once it has been written or is no longer needed."""

    known: KnownState
    state: npt.NDArray[np.uint8] | None
    cut: Cut | None

    @property
    def chat(self) -> str:
        return self.known.chat

    @property
    def is_wanted(self) -> bool:
        return self.state is not None


class KVStateStore:
    """Saved states for chats with one model, written and read in a separate thread. Must be closed.

    Problems with the disk or with a file are logged, not raised. Malformed chat ids (anything but 8 to 64
    hexadecimal digits) raise ValueError.
    """

    def __init__(self, limit: int | None, fingerprint: Callable[[], bytes] | bytes) -> None:
        """Store at most `limit` bytes for all models together. Does not open any files yet.

        limit: 0 disables storing and reading; None means `MOST`, or a tenth of the free space at the time of
        each write if that is less. fingerprint: identifies everything a state depends on. If it is a
        function, it is called in the thread, and nothing is stored if it raises OSError.
        """
        self.limit = limit
        self._read_bytes, self._read_seconds = _PRIOR_WEIGHT, _PRIOR_WEIGHT / PRIOR_BANDWIDTH
        self._lock = threading.Lock()
        self._queued: dict[str, _Write] = {}
        self._running: _Write | None = None
        self._stopped = False
        self._usage: StatesOnDisk | None = None
        self._counted = -COUNT_INTERVAL
        self._index = StateIndex()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="states")
        self._key = self._thread.submit(
            lambda: state_files.key_of(fingerprint if isinstance(fingerprint, bytes) else fingerprint())
        )

    @property
    def bandwidth(self) -> float:
        """Measured speed of reading and verifying states, in bytes per second."""
        return self._read_bytes / self._read_seconds

    def save(
        self,
        chat: str,
        tokens: Sequence[int],
        state: npt.NDArray[np.uint8],
        cut: Cut | None = None,
        *,
        mark: Sequence[int] = (),
    ) -> Future[bool]:
        """Write the state of a chat, replacing any earlier one. The future resolves to False on failure.

        Writing fails if the state exceeds the limit, if the disk is full, or if a later call to `save`,
        `forget` or `close` cancels it. The least recently used states are evicted to make room. Do not use
        the array afterwards. Tokens must be below 2**32. mark: extra numbers, not tokens; `find` and `load`
        only return this state if they are given the same mark.
        """
        import numpy as np

        state_files.check_id(chat)
        if cut is not None:
            cut = replace(cut, length=len(mark) + cut.length)
        marked = np.array([*mark, *tokens], np.uint32)
        known = KnownState(chat, marked, state.size, cut.length if cut is not None else 0)
        write = _Write(known, np.ascontiguousarray(state).reshape(-1), cut)
        with self._lock:
            self._drop(self._queued.get(chat))
            self._queued[chat] = write
        done = self._submit(lambda: self._save(write), False)
        done.add_done_callback(lambda _: self._cancel(write))  # it may have been cancelled
        return done

    def load(self, chat: str, *, mark: Sequence[int] = ()) -> Future[SavedState | None]:
        """Read and verify the state of a chat. The future resolves to None if no usable state has this mark.

        Damaged files are removed. Files saved for other models are not.
        """
        state_files.check_id(chat)
        return self._submit(lambda: _unmarked(self._load(chat), list(mark)), None)

    def find(self, tokens: Sequence[int], *, whole: bool, mark: Sequence[int] = ()) -> FoundState | None:
        """Return the state, from any chat, that shares the longest prefix with a prompt, or None.

        Also considers states that have not been written yet. The state may turn out to be damaged. Waits for
        the fingerprint if there are files. whole: only consider states that are a prefix of the prompt,
        either completely or up to their checkpoint.
        """
        if self.limit == 0:
            return None
        with self._lock:
            writes = (*self._queued.values(), self._running)
            pending = [write.known for write in writes if write is not None and write.is_wanted]
        try:
            saved = self._index.states(self._key.result, self._readable)
        except OSError:
            saved = []
        replaced = {state.chat for state in pending}
        known = [*pending, *(state for state in saved if state.chat not in replaced)]
        found, n = best_of(known, [*mark, *tokens], whole=whole), len(mark)
        if found is None or found.shared <= n:
            return None
        return replace(found, shared=found.shared - n, tokens=found.tokens - n)

    def forget(self, chat: str) -> None:
        """Remove the state of a chat, even if it is currently being written."""
        with self._lock:
            self._drop(self._queued.get(chat))
            if self._running is not None and self._running.chat == chat:
                self._drop(self._running)
        try:
            forget(chat)
        except EdgechatError as error:
            _log_problem(chat, "removed", error)

    def usage(self) -> StatesOnDisk | None:
        """Return the most recent count of all states, which the thread updates in the background."""
        now = time.monotonic()
        if now - self._counted >= COUNT_INTERVAL:
            self._counted = now
            self._submit(self._count, None)
        return self._usage

    def close(self, timeout: float = 5.0) -> None:
        """Wait up to `timeout` seconds for pending work, then drop the rest.

        A write in progress may delay the exit of the process for as long as it takes to write 64 MB.
        """
        last = self._submit(lambda: True, True)
        self._thread.shutdown(wait=False)
        wait([last], timeout)
        with self._lock:
            self._stopped = True
            for write in [*self._queued.values(), self._running]:
                self._drop(write)

    def _submit(self, work: Callable[[], _T], otherwise: _T) -> Future[_T]:
        try:
            return self._thread.submit(work)
        except RuntimeError:  # already closed
            return done_future(otherwise)

    def _cancel(self, write: _Write) -> None:
        with self._lock:
            self._drop(write)

    def _drop(self, write: _Write | None) -> None:
        """Free the array so that it is not written. The caller must hold the lock."""
        if write is not None:
            write.state = None
            if self._queued.get(write.chat) is write:
                del self._queued[write.chat]

    @property
    def _readable(self) -> int:
        return MOST if self.limit is None else self.limit

    # These run in the thread.

    def _count(self) -> None:
        with contextlib.suppress(EdgechatError):
            self._usage = StatesOnDisk(*state_files.usage())

    def _save(self, write: _Write) -> bool:
        with self._lock:
            if not write.is_wanted:
                return False
            del self._queued[write.chat]
            self._running = write
        try:
            return self._write(write)
        except WriteStopped:
            return False
        except (OSError, EdgechatError, StateRefused) as error:
            _log_problem(write.chat, "saved", error)
            return False
        finally:
            with self._lock:
                self._running = None

    def _write(self, write: _Write) -> bool:
        state = write.state
        if state is None:
            raise WriteStopped
        key, path = self._key.result(), state_files.made_folder()
        cut_size = len(write.cut.state) if write.cut is not None else 0
        size = StateHeader(len(write.known.tokens), len(state), write.known.cut, cut_size).file_size
        limit = min(MOST, shutil.disk_usage(path).free // 10) if self.limit is None else self.limit
        if size <= limit:
            self._put(write, state, key)
        state_files.evict(limit, keep=write.chat if size <= limit else None)
        if size > limit > 0:
            raise StateRefused(f"it takes {size} bytes, but the limit for all states is {limit}")
        return size <= limit

    def _put(self, write: _Write, state: npt.NDArray[np.uint8], key: bytes) -> None:
        draft = state_files.draft_of(write.chat)
        try:
            with state_files.created(draft) as fd:
                state_files.write(
                    fd, key, write.known.tokens, state, write.cut, wanted=lambda: write.is_wanted
                )
            # Holding the lock ensures that `forget` either finds the file or prevents it from appearing.
            with self._lock:
                if not write.is_wanted:
                    raise WriteStopped
                os.replace(draft, state_files.path_of(write.chat))
        except BaseException:
            with contextlib.suppress(OSError):
                draft.unlink()
            raise

    def _load(self, chat: str) -> SavedState | None:
        if self.limit == 0 or self._stopped:
            return None
        try:
            return self._read(state_files.path_of(chat))
        except (FileNotFoundError, WriteStopped):
            return None
        except (OSError, EdgechatError, MemoryError, StateRefused) as error:
            _log_problem(chat, "used", error)
            return None

    def _read(self, path: Path) -> SavedState:
        key, began = self._key.result(), time.perf_counter()
        with state_files.opened(path) as fd:
            saved = state_files.read(fd, key, at_most=self._readable, wanted=lambda: not self._stopped)
        self._read_bytes += len(saved.state)
        self._read_seconds += time.perf_counter() - began
        with contextlib.suppress(OSError):
            os.utime(path)
        return saved


def _unmarked(saved: SavedState | None, mark: list[int]) -> SavedState | None:
    n = len(mark)
    if saved is None or saved.tokens[:n] != mark:
        return None
    cut = saved.cut and replace(saved.cut, length=saved.cut.length - n)
    return replace(saved, tokens=saved.tokens[n:], cut=cut)


def _log_problem(chat: str, what: str, error: Exception) -> None:
    why = error.message if isinstance(error, EdgechatError) else str(error) or type(error).__name__
    _LOG.warning("%s", one_line(f"the state of chat {chat} could not be {what}: {why}", 500))


@dataclass(frozen=True, slots=True)
class FoundState:
    """A saved state that shares a prefix with a prompt."""

    chat: str
    shared: int
    """Number of prompt tokens that can be reused."""
    tokens: int
    """Number of tokens in the state."""
    size: int
    """Size of the state in bytes."""


class StateIndex:
    """Index of the states in the folder, updated when files change. Not thread-safe."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[FileVersion, KnownState | None]] = {}

    def states(self, key: Callable[[], bytes], at_most: int) -> list[KnownState]:
        """Return the readable states that have this key and are no larger than `at_most` bytes.

        key: only called if a file must be read; its exceptions propagate.
        """
        try:
            files = state_files.states()
        except EdgechatError:
            return []
        before, self._known = self._known, {}
        for chat, path, status in files:
            version = (status.st_ino, status.st_size, status.st_mtime_ns)
            known = before.get(path)
            if known is None or known[0] != version:
                known = version, _read(chat, Path(path), key(), at_most)
            self._known[path] = known
        return [known for _, known in self._known.values() if known is not None]


def best_of(states: Iterable[KnownState], tokens: Sequence[int], *, whole: bool) -> FoundState | None:
    """Return the state that shares the most tokens with a prompt, or None. Ties go to the smallest state.

    whole: only consider states that are a prefix of the prompt, either completely or up to their checkpoint.
    """
    import numpy as np

    prompt = np.array(tokens, np.uint32)
    found = [
        FoundState(state.chat, usable, len(state.tokens), state.size)
        for state in states
        if (usable := _usable(state, _shared(prompt, state.tokens), whole=whole))
    ]
    return max(found, key=lambda state: (state.shared, -state.size), default=None)


def _usable(state: KnownState, shared: int, *, whole: bool) -> int:
    if not whole or shared == len(state.tokens):
        return shared
    return state.cut if shared >= state.cut else 0


def _shared(left: npt.NDArray[np.uint32], right: npt.NDArray[np.uint32]) -> int:
    n = min(len(left), len(right))
    if not n or left[0] != right[0]:
        return 0
    unequal = left[:n] != right[:n]
    first = int(unequal.argmax())
    return first if unequal[first] else n


def _read(chat: str, path: Path, key: bytes, at_most: int) -> KnownState | None:
    try:
        with state_files.opened(path) as fd:
            head, tokens = state_files.read_tokens(fd, key, at_most=at_most)
    except (OSError, MemoryError, StateRefused):
        return None
    return KnownState(chat, tokens, head.size, head.cut_tokens)
