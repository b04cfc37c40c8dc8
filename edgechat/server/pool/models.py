"""What the HTTP side needs of the models behind it; `edgechat.server.pool.pool.Pool` is that."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from typing import Literal, Protocol

import msgspec

from edgechat.engine.types import (
    ChatRequest,
    Embedded,
    ModelInfo,
    Priority,
    RequestEvent,
    Translatable,
    Translated,
)
from edgechat.models.formats.header import ModelKind
from edgechat.models.local.ollama_store import OllamaLayers
from edgechat.planner.plan import LoadPlan

State = Literal["loading", "ready", "degraded", "draining"]


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """A model that may be asked for."""

    id: str
    created: int
    """Seconds since 1970 at which its file was last changed."""
    loaded: bool = False
    kind: ModelKind = "chat"
    context: int = 0
    """Tokens; of one that is not loaded what it was trained on, 0 where that is not known."""
    size: int = 0
    """Bytes of its files; 0 and '' here and below where it is not known."""
    format: str = ""
    quant: str = ""
    architecture: str = ""
    n_params: int = 0
    sees: bool | None = None
    """Whether messages may have images; None where it is not known."""
    hears: bool | None = None
    """Whether they may have sounds."""
    layers: OllamaLayers | None = None
    """Where Ollama keeps what belongs to it."""
    can_switch_thinking: bool = False
    """Of one that is loaded: before, its template has not been looked at."""


class ServedModel(Protocol):
    """A loaded model, for as long as one request needs it."""

    name: str
    """What clients call it."""
    adapters: tuple[str, ...]
    """Those that the request names with the model: NAME+ADAPTER."""

    @property
    def plan(self) -> LoadPlan:
        """How it is loaded."""
        ...

    @property
    def model(self) -> ModelInfo:
        """What the load told of it."""
        ...

    def stream(self, request: ChatRequest) -> AsyncGenerator[RequestEvent, None]:
        """Answer a request; the events end after a Finished, or with an EdgechatError.

        Leaving the iteration early stops the request.
        """
        ...

    async def embed(
        self,
        request_id: str,
        texts: tuple[str | tuple[int, ...], ...],
        *,
        cut: bool = False,
        query: str | None = None,
    ) -> Embedded | None:
        """Make an embedding of each text, or of its tokens; None where it was cancelled.

        cut: take what fits of texts that are too long.
        query: score the texts as answers to it instead, by a reranking model.
        Raises EdgechatError.
        """
        ...

    async def translate(
        self, request_id: str, what: Translatable, *, bos: bool = False, special: bool = False
    ) -> Translated | None:
        """Make tokens of a text or a chat, or a text of tokens; None where it was cancelled.

        Raises EdgechatError.
        """
        ...


class RequestCounter(Protocol):
    """What is counted of requests."""

    def request(self, endpoint: str, status: int, model: str | None = None) -> None:
        """Count an answered one. model: the name of what answered, as far as it came to that."""
        ...


class ModelPool(Protocol):
    """The models of this machine, loaded on demand."""

    @property
    def state(self) -> tuple[State, str]:
        """How it goes, and a sentence about it."""
        ...

    def names(self) -> list[ModelCard]:
        """Return what may be asked for. Reads the disk: call it in a thread."""
        ...

    def card(self, name: str) -> ModelCard:
        """Return what is told of the model that a name means. Reads the disk. Raises ModelNotFound."""
        ...

    def serve(
        self, model: str, places: int = 1, priority: Priority = "interactive"
    ) -> AbstractAsyncContextManager[ServedModel]:
        """Let so many requests in at once, and load the model if it is not loaded.

        Raises QueueFull at once where too many wait, sooner for the background; ModelNotFound, DoesNotFit,
        LoadFailed, EngineCrashed.
        """
        ...

    async def unload(self, model: str) -> str:
        """Unload a model unless it is in use; return what clients call it. Raises ModelNotFound."""
        ...

    @property
    def metrics(self) -> RequestCounter:
        """What is counted."""
        ...

    async def metrics_text(self) -> bytes:
        """Return all that is counted, in Prometheus' text format."""
        ...
