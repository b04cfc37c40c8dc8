"""The states of chats on disk: what the model has read of a chat, so that yesterday's opens at once.

They are a cache: whatever is wrong with one, it is as if there were none, and the chat is read anew. Several
processes may use the folder at once: files appear whole, by renaming, and any may vanish at any time.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from edgechat.base.errors import EdgechatError
from edgechat.base.text import one_line
from edgechat.engine.kv import state_file, state_folder
from edgechat.engine.kv.state_file import SavedState, StateHeader, StateRefused, WriteStopped
from edgechat.engine.kv.state_folder import folder, forget, prune
from edgechat.engine.snapshot import StatesOnDisk

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["KVStateStore", "SavedState", "StateHeader", "folder", "forget", "prune", "worth_saving"]

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")

MOST = 4 << 30
"""Bytes that all files together take where no limit is set; a tenth of the free disk if that is less."""
PRIOR_BANDWIDTH = 400e6
"""Bytes per second that a disk is taken to give until states were read from it."""
_COUNT_EVERY = 5.0
"""Seconds between two counts of what is there."""
_PRIOR_WEIGHT = 64e6
"""Bytes of states read that count as much as the prior."""


def worth_saving(
    size: int, tokens: int, *, seconds_per_token: float, bandwidth: float = PRIOR_BANDWIDTH
) -> bool:
    """Say whether to read a state of `size` bytes takes less time than to compute its tokens again.

    bandwidth: bytes per second; `KVStateStore.bandwidth` once there is one.
    """
    return size / bandwidth < tokens * seconds_per_token


@dataclass(slots=True, eq=False)
class _Write:
    """A state on its way to the disk. `state` is None once it need not arrive, or has arrived."""

    chat: str
    tokens: npt.NDArray[np.uint32]
    state: npt.NDArray[np.uint8] | None

    @property
    def is_wanted(self) -> bool:
        return self.state is not None


class KVStateStore:
    """The states of chats with one model, written and read in a thread of its own. Close it.

    Nothing that is wrong with the disk or a file is raised: a line on stderr says what it was. A chat that is
    no id of ours (8 to 64 hexadecimal digits) raises ValueError.
    """

    def __init__(self, limit: int | None, fingerprint: Callable[[], bytes] | bytes) -> None:
        """Keep no more than `limit` bytes of whatever models; nothing is touched yet.

        limit: 0 keeps and reads nothing; None is `MOST`, or a tenth of what is free at each write.
        fingerprint: stands for all that a state depends on. It is asked for in the thread, and may raise
            OSError: then nothing is kept.
        """
        self.limit = limit
        self._read_bytes, self._read_seconds = _PRIOR_WEIGHT, _PRIOR_WEIGHT / PRIOR_BANDWIDTH
        self._lock = threading.Lock()
        self._queued: dict[str, _Write] = {}
        self._running: _Write | None = None
        self._stopped = False
        self._usage: StatesOnDisk | None = None
        self._counted = -_COUNT_EVERY
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="states")
        self._key = self._thread.submit(
            lambda: state_file.key_of(fingerprint if isinstance(fingerprint, bytes) else fingerprint())
        )

    @property
    def bandwidth(self) -> float:
        """Bytes per second with which states were read and checked until now."""
        return self._read_bytes / self._read_seconds

    def save(self, chat: str, tokens: Sequence[int], state: npt.NDArray[np.uint8]) -> Future[bool]:
        """Write the state of a chat in place of an earlier one; False if it was not written.

        That is where it is larger than the limit, where a later `save`, `forget` or `close` came first, or
        the disk takes no more. Then the states that were not used for longest make room for it. The array
        belongs to this call from now on. Tokens are below 2**32.
        """
        import numpy as np

        state_folder.check_id(chat)
        write = _Write(chat, np.array(tokens, np.uint32), np.ascontiguousarray(state).reshape(-1))
        with self._lock:
            self._drop(self._queued.get(chat))
            self._queued[chat] = write
        done = self._submit(lambda: self._save(write), False)
        done.add_done_callback(lambda _: self._let_go(write))  # it may have been cancelled
        return done

    def load(self, chat: str) -> Future[SavedState | None]:
        """Read the state of a chat, checked to the last byte; None where there is none that can be used.

        A damaged file is removed; one that is another model's is left for it.
        """
        state_folder.check_id(chat)
        return self._submit(lambda: self._load(chat), None)

    def peek(self, chat: str) -> StateHeader | None:
        """Say how large the state is that `load` would find, or None: at once, by the file's head alone.

        What is still to be written counts. The rest of the file may yet turn out to be damaged. Waits for the
        fingerprint, where there is a file.
        """
        state_folder.check_id(chat)
        with self._lock:
            for write in (self._queued.get(chat), self._running):
                if write is not None and write.chat == chat and write.state is not None:
                    return StateHeader(len(write.tokens), len(write.state))
        try:
            with state_file.opened(state_folder.path_of(chat)) as fd:
                return state_file.read_head(fd, self._key.result(), at_most=self._readable)
        except (OSError, EdgechatError, StateRefused):
            return None

    def forget(self, chat: str) -> None:
        """Remove what is kept of a chat. What is on its way to the disk does not arrive."""
        with self._lock:
            self._drop(self._queued.get(chat))
            if self._running is not None and self._running.chat == chat:
                self._drop(self._running)
        try:
            forget(chat)
        except EdgechatError as error:
            _say(chat, "removed", error)

    def usage(self) -> StatesOnDisk | None:
        """Return what all states take, as it was a moment ago: at once, the thread counts them anew."""
        now = time.monotonic()
        if now - self._counted >= _COUNT_EVERY:
            self._counted = now
            self._submit(self._count, None)
        return self._usage

    def close(self, timeout: float = 5.0) -> None:
        """Wait so many seconds for what is asked for already, and let go of the rest.

        What is being written then may hold up the end of the process for as long as 64 MB take to reach the
        disk.
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
        except RuntimeError:  # it is closed
            done: Future[_T] = Future()
            done.set_result(otherwise)
            return done

    def _let_go(self, write: _Write) -> None:
        with self._lock:
            self._drop(write)

    def _drop(self, write: _Write | None) -> None:
        """Let go of the array, so that it is not written and takes no memory. Under the lock."""
        if write is not None:
            write.state = None
            if self._queued.get(write.chat) is write:
                del self._queued[write.chat]

    @property
    def _readable(self) -> int:
        return MOST if self.limit is None else self.limit

    # In the thread.

    def _count(self) -> None:
        with contextlib.suppress(EdgechatError):
            self._usage = StatesOnDisk(*state_folder.usage())

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
            _say(write.chat, "saved", error)
            return False
        finally:
            with self._lock:
                self._running = None

    def _write(self, write: _Write) -> bool:
        state = write.state
        if state is None:
            raise WriteStopped
        key, place = self._key.result(), state_folder.made_folder()
        limit, size = self._limit(place), StateHeader(len(write.tokens), len(state)).file_size
        if size <= limit:
            self._put(write, state, key)
        state_folder.evict(limit, keep=write.chat if size <= limit else None)
        if size > limit > 0:
            raise StateRefused(f"it takes {size} bytes, and the limit for all states is {limit}")
        return size <= limit

    def _put(self, write: _Write, state: npt.NDArray[np.uint8], key: bytes) -> None:
        draft = state_folder.draft_of(write.chat)
        try:
            with state_file.created(draft) as fd:
                state_file.write(fd, key, write.tokens, state, wanted=lambda: write.is_wanted)
            # Under the lock: whoever forgets the chat finds the file, or it does not get there.
            with self._lock:
                if not write.is_wanted:
                    raise WriteStopped
                os.replace(draft, state_folder.path_of(write.chat))
        except BaseException:
            with contextlib.suppress(OSError):
                draft.unlink()
            raise

    def _load(self, chat: str) -> SavedState | None:
        if self.limit == 0 or self._stopped:
            return None
        try:
            return self._read(state_folder.path_of(chat))
        except (FileNotFoundError, WriteStopped):
            return None
        except (OSError, EdgechatError, MemoryError, StateRefused) as error:
            _say(chat, "used", error)
            return None

    def _read(self, path: Path) -> SavedState:
        key, began = self._key.result(), time.perf_counter()
        with state_file.opened(path) as fd:
            saved = state_file.read(fd, key, at_most=self._readable, wanted=lambda: not self._stopped)
        self._read_bytes += len(saved.state)
        self._read_seconds += time.perf_counter() - began
        with contextlib.suppress(OSError):
            os.utime(path)
        return saved

    def _limit(self, place: Path) -> int:
        if self.limit is not None:
            return self.limit
        return min(MOST, shutil.disk_usage(place).free // 10)


def _say(chat: str, what: str, error: Exception) -> None:
    why = error.message if isinstance(error, EdgechatError) else str(error) or type(error).__name__
    _LOG.warning("%s", one_line(f"the state of chat {chat} is not {what}: {why}", 500))
