"""What a front end may ask of an engine, wherever the engine runs.

`edgechat.engine.worker.supervisor.EngineSupervisor`, with its worker process, is one.
`tests/engine/test_contract.py` holds what each of them must do.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import AbstractContextManager
from enum import Enum
from pathlib import Path
from typing import Any, Protocol

from edgechat.base.errors import WrongKind
from edgechat.engine.kv.snapshot import Snapshot
from edgechat.engine.types import ChatRequest, Embedded, ModelInfo, RequestEvent, Translatable, Translated
from edgechat.models.remote.metrics import ServerLoad
from edgechat.planner.plan import LoadPlan


class EngineState(Enum):
    """What the engine does, for a front end to show."""

    STOPPED = "stopped"
    LOADING = "loading"
    READY = "ready"


class Engine(Protocol):
    """One model. Loaded by `start` or the first request; of no more use after `close`.

    Belongs to one event loop. Errors are EdgechatErrors.
    """

    plan: LoadPlan
    """How the model is loaded, or will be; setting it applies to the next load."""
    model: ModelInfo | None
    """What the last load reported; None before the first one."""
    state: EngineState

    async def start(self, on_progress: Callable[[float], None] | None = None) -> ModelInfo:
        """Load the model if it is not loaded, reporting progress (0 to 1).

        Raises LoadFailed, DoesNotFit, EngineCrashed, and EngineClosed where `close` ended or precedes it.
        """
        ...

    def stream(
        self,
        request: ChatRequest,
        on_progress: Callable[[float], None] | None = None,
        *,
        may_load: bool = True,
    ) -> AsyncGenerator[RequestEvent, None]:
        """Answer a request: the last event is Finished, unless an EdgechatError is raised.

        Loads the model if necessary, or raises EngineGone if it may not. Leaving the iteration early cancels
        the request. `close` ends it with reason 'cancelled'.
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
        """Return embeddings of texts, or of their tokens; None if it was cancelled.

        cut: take what fits of texts that are too long, instead of raising PromptTooLong.
        query: return the scores of texts as answers to it instead, by a reranking model.
        Loads and raises as `stream` does; raises WrongKind, PromptTooLong and NotEmbeddable.
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
        """Return the tokens of a text or a chat's prompt, or the text of tokens; None if it was cancelled.

        Loads and raises as `stream` does; raises BadRequest.
        """
        ...

    async def cancel(self, request_id: str) -> None:
        """Stop a request, also while the model loads: its stream ends with reason 'cancelled'.

        Unknown ids are ignored.
        """
        ...

    async def persist(self, chat: str | None = None) -> None:
        """Save the KV state of a chat (None: of all chats) to disk, if that is worth it.

        Returns when that is done, or takes too long. Unknown chats are ignored.
        """
        ...

    def forget(self, chat: str) -> None:
        """Delete what is kept of a chat. Unknown chats are ignored; raises ValueError for a malformed id."""
        ...

    async def inspect(self, chat: str | None = None) -> Snapshot | ServerLoad | None:
        """Return what the engine does, with the cache of a chat (None: of the one that was answered last).

        Of an engine on another server, what that tells. None if no model is loaded, or there is no answer in
        time.
        """
        ...

    def holding(self) -> AbstractContextManager[None]:
        """Keep the model from being unloaded when idle."""
        ...

    async def unload(self) -> None:
        """Free the memory unless a request is running; the next one loads the model again."""
        ...

    @property
    def has_crashed(self) -> bool:
        """Whether the engine died by itself and has not been started again."""
        ...

    @property
    def log_path(self) -> Path | None:
        """The engine's log; None if there is none here."""
        ...

    def log_tail(self, n_bytes: int = 4096) -> str:
        """Return the end of the log, printable; '' if there is none."""
        ...

    async def close(self) -> None:
        """End the engine, and with it every stream (reason 'cancelled') and every load (EngineClosed)."""
        ...


def cannot_chat(name: str = "This model") -> WrongKind:
    """Return the error for a chat with a model that makes embeddings or scores."""
    return WrongKind(
        f"{name} is an embedding or reranking model and cannot chat.", hint="Choose a chat model."
    )


def cannot_embed(name: str = "This model", query: str | None = None) -> WrongKind:
    """Return the error for embeddings, or (with a query) for scores, of a model that makes none."""
    if query is None:
        return WrongKind(
            f"{name} is no embedding model and produces no embeddings.", hint="Choose an embedding model."
        )
    return WrongKind(f"{name} is no reranking model and scores no texts.", hint="Choose a reranking model.")


class EngineUsers:
    """Counts the users of an engine; true while there are any."""

    def __init__(self, idle_seconds: float, unload: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """unload: called once there has been no user for `idle_seconds`; 0: never."""
        self._idle_seconds = idle_seconds
        self._unload = unload
        self._n = 0
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._unloading: asyncio.Task[None] | None = None

    def __bool__(self) -> bool:
        return self._n > 0

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        """Be a user."""
        self._n += 1
        self._cancel()
        try:
            yield
        finally:
            self._n -= 1
            if not self._n and self._idle_seconds > 0 and not self._closed:
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(self._idle_seconds, self._went_idle)

    def close(self) -> None:
        """Unload no more: the engine is closed."""
        self._closed = True
        self._cancel()

    def _went_idle(self) -> None:
        self._unloading = asyncio.ensure_future(self._unload())

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
