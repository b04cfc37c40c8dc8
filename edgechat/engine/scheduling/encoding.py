"""Encodes media in the background, with the encoder and the engine taking turns.

Encoding takes seconds, or up to a minute on a CPU. The encoder's thread pauses between operations while the
engine decodes, so that streams continue. Cancelling a request stops its encoding. Embeddings are cached, so
that prompts can be recomputed without encoding their media again.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager

from edgechat.base.errors import EdgechatError
from edgechat.engine.backends.base import Embeddings, EncodingStopped, Media, MediaEncoder
from edgechat.engine.scheduling.preparation import fault

Key = tuple[int, ...]
_MOST_BYTES = 512 << 20
"""Maximum size of the cached embeddings in bytes."""


class MediaEncoding:
    """Encodes images and audio and caches their embeddings. Used by the engine's thread."""

    def __init__(
        self, encoder: MediaEncoder | None, held: Callable[[Key], AbstractContextManager[Media]]
    ) -> None:
        """held: returns a context manager that provides the media for a key."""
        self._encoder = encoder
        self._held = held
        self._made: OrderedDict[Key, tuple[Media, Embeddings]] = OrderedDict()
        self._failed: dict[Key, EdgechatError] = {}
        self._turns = threading.Condition()
        self._running: Key | None = None
        self._stopped = False
        self._decodes = False
        """Whether the engine is taking its turn or asking for it."""
        self._paused = False

    def made(self, key: Key) -> tuple[Media, Embeddings] | None:
        """Return the media for a key and their embeddings if they are cached, otherwise None."""
        with self._turns:
            found = self._made.get(key)
            if found is not None:
                self._made.move_to_end(key)
            return found

    def failure(self, key: Key) -> EdgechatError | None:
        """Return and clear the error that prevented media from being encoded, or None if there was none."""
        with self._turns:
            return self._failed.pop(key, None)

    def want(self, keys: Collection[Key]) -> None:
        """Start encoding the first uncached key. Stop a running encoding if its key is no longer wanted."""
        with self._turns:
            self._failed = {key: error for key, error in self._failed.items() if key in keys}
            if self._running is not None:
                self._stopped = self._running not in keys
                return
            missing = next((key for key in keys if key not in self._made and key not in self._failed), None)
            if missing is None:
                return
            self._running, self._stopped, self._paused = missing, False, False
        threading.Thread(target=self._encode, args=(missing,), name="encoding", daemon=True).start()

    @property
    def is_running(self) -> bool:
        """Whether media are being encoded."""
        return self._running is not None

    @contextlib.contextmanager
    def pausing(self) -> Iterator[None]:
        """Pause the encoder inside the context, while the engine decodes."""
        if self._running is None:
            yield
            return
        with self._turns:
            self._decodes = True
            self._turns.wait_for(lambda: self._paused or self._running is None)
        try:
            yield
        finally:
            with self._turns:
                self._decodes = self._paused = False
                self._turns.notify_all()

    def close(self) -> None:
        """Stop the encoder and wait until it no longer uses the model."""
        with self._turns:
            self._stopped = True
            self._turns.wait_for(lambda: self._running is None)

    # These run in the thread.

    def _encode(self, key: Key) -> None:
        made: tuple[Media, Embeddings] | None = None
        failed: EdgechatError | None = None
        try:
            assert self._encoder is not None
            with self._held(key) as media:
                made = media, self._encoder.encode(media, between=self._between)
        except EncodingStopped:
            pass
        except Exception as error:
            failed = fault(error)
        with self._turns:
            if made is not None:
                self._made[key] = made
                while len(self._made) > 1 and self._n_bytes() > _MOST_BYTES:
                    self._made.popitem(last=False)
            if failed is not None:
                self._failed[key] = failed
            self._running = None
            self._turns.notify_all()

    def _between(self) -> bool:
        """Let the engine take its turn if it has asked to. Return whether to continue encoding."""
        with self._turns:
            if self._decodes:
                self._paused = True
                self._turns.notify_all()
                self._turns.wait_for(lambda: not self._paused)
            return not self._stopped

    def _n_bytes(self) -> int:
        return sum(embeddings.nbytes for _, embeddings in self._made.values())
