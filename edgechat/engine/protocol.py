"""Engine protocol: the interface that all engines offer to front ends, and helpers to implement it.

Implementations: `edgechat.engine.worker.supervisor.EngineSupervisor` (a worker process) and
`edgechat.engine.remote.engine.RemoteEngine`. `tests/engine/test_contract.py` tests the contract.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AbstractContextManager
from enum import Enum
from pathlib import Path
from typing import Protocol

from edgechat.base.errors import WrongKind
from edgechat.engine.kv.snapshot import Snapshot
from edgechat.engine.types import ChatRequest, Embedded, ModelInfo, RequestEvent, Translatable, Translated
from edgechat.models.remote.metrics import ServerLoad
from edgechat.planner.plan import LoadPlan


class EngineState(Enum):
    """The state of an engine."""

    STOPPED = "stopped"
    LOADING = "loading"
    READY = "ready"


class Engine(Protocol):
    """One model, loaded by `start` or by the first request. Cannot be used after `close`.

    An engine belongs to one event loop. All errors are EdgechatErrors.
    """

    plan: LoadPlan
    """How the model was or will be loaded. A new plan takes effect at the next load."""
    model: ModelInfo | None
    """The model as reported by the last load, or None before the first."""
    state: EngineState

    async def start(self, on_progress: Callable[[float], None] | None = None) -> ModelInfo:
        """Load the model unless it is already loaded, reporting progress (0 to 1).

        Raises LoadFailed, DoesNotFit or EngineCrashed, or EngineClosed during or after `close`.
        """
        ...

    def stream(
        self,
        request: ChatRequest,
        on_progress: Callable[[float], None] | None = None,
        *,
        may_load: bool = True,
    ) -> AsyncGenerator[RequestEvent, None]:
        """Answer a request. The last event is Finished, unless an EdgechatError is raised.

        Loads the model if necessary, or raises EngineGone if `may_load` is False. Leaving the iteration early
        cancels the request. `close` ends the stream with reason 'cancelled'.
        """
        ...

    async def embed(
        self,
        request_id: str,
        texts: tuple[str | tuple[int, ...], ...],
        on_progress: Callable[[float], None] | None = None,
        *,
        cut: bool = False,
        query: str | None = None,
        may_load: bool = True,
    ) -> Embedded | None:
        """Return embeddings of texts or token lists, or None if cancelled.

        cut: truncate texts that are too long instead of raising PromptTooLong. query: instead of embedding
        the texts, score them as answers to this query; requires a reranking model. Loads the model and raises
        errors as `stream` does; also raises WrongKind, PromptTooLong and NotEmbeddable.
        """
        ...

    async def translate(
        self,
        request_id: str,
        what: Translatable,
        *,
        bos: bool = False,
        special: bool = False,
        may_load: bool = True,
    ) -> Translated | None:
        """Convert text or a chat's prompt to tokens, or tokens to text. Return None if cancelled.

        Loads the model and raises errors as `stream` does; also raises BadRequest.
        """
        ...

    async def cancel(self, request_id: str) -> None:
        """Cancel a request, even while the model is loading. Its stream ends with reason 'cancelled'.

        Unknown ids are ignored.
        """
        ...

    async def persist(self, chat: str | None = None) -> None:
        """Save a chat's KV state to disk if that is worthwhile; None saves every chat's.

        Returns when the state is saved, or after a timeout. Unknown chats are ignored.
        """
        ...

    def forget(self, chat: str) -> None:
        """Delete a chat's cache. Ignores unknown chats, but raises ValueError for a malformed id."""
        ...

    async def inspect(self, chat: str | None = None) -> Snapshot | ServerLoad | None:
        """Return a snapshot of the engine and a chat's cache, by default the most recently answered chat's.

        For a remote engine, return its server's load. Return None if no model is loaded or the engine does
        not answer in time.
        """
        ...

    def holding(self) -> AbstractContextManager[None]:
        """Keep the model loaded inside the `with` block, even when idle."""
        ...

    async def unload(self) -> None:
        """Free the memory unless a request is running. The next request loads the model again."""
        ...

    @property
    def has_crashed(self) -> bool:
        """Whether the engine died and has not been restarted."""
        ...

    @property
    def log_path(self) -> Path | None:
        """The engine's log, or None if there is no local log."""
        ...

    def log_tail(self, n_bytes: int = 4096) -> str:
        """Return the end of the log as printable text, or '' if there is no log."""
        ...

    async def close(self) -> None:
        """Close the engine. All streams end with reason 'cancelled', and loads raise EngineClosed."""
        ...


def cannot_chat(name: str = "This model") -> WrongKind:
    """Return the error for a chat request to an embedding or reranking model."""
    return WrongKind(
        f"{name} is an embedding or reranking model and cannot chat.", hint="Choose a chat model."
    )


def cannot_embed(name: str = "This model", query: str | None = None) -> WrongKind:
    """Return the error for a model that cannot compute embeddings or, if there is a query, scores."""
    if query is None:
        return WrongKind(
            f"{name} is not an embedding model and cannot produce embeddings.",
            hint="Choose an embedding model.",
        )
    return WrongKind(
        f"{name} is not a reranking model and cannot score texts.", hint="Choose a reranking model."
    )


class BaseEngine(ABC):
    """Base class of engines: tracks an engine's state and users, and unloads it when idle."""

    def __init__(
        self,
        idle_seconds: float,
        on_state: Callable[[EngineState], None] | None,
        on_note: Callable[[str], None],
    ) -> None:
        """idle_seconds: call `unload` after this much time without users; 0 means never."""
        self.model: ModelInfo | None = None
        self.state = EngineState.STOPPED
        self._on_state, self._on_note = on_state, on_note
        self._lock = asyncio.Lock()
        self._closed = False
        self._idle_seconds = idle_seconds
        self._n_users = 0
        self._timer: asyncio.TimerHandle | None = None
        self._unloading: asyncio.Task[None] | None = None

    @abstractmethod
    async def unload(self) -> None:
        """See `Engine.unload`."""

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        """See `Engine.holding`."""
        self._n_users += 1
        self._stop_timer()
        try:
            yield
        finally:
            self._n_users -= 1
            if not self._n_users and self._idle_seconds > 0 and not self._closed:
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(self._idle_seconds, self._went_idle)

    def _went_idle(self) -> None:
        self._unloading = asyncio.ensure_future(self.unload())

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_state(self, state: EngineState) -> None:
        if state is not self.state:
            self.state = state
            if self._on_state is not None:
                self._on_state(state)
