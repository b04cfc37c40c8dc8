"""Models as the HTTP side sees them: the interface that `edgechat.server.pool.pool.Pool` implements."""

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
    """Tokens; of a model that is not loaded those it was trained on, or 0 if unknown."""
    size: int = 0
    """Bytes of its files. Here and below, 0 and '' stand for unknown."""
    format: str = ""
    quant: str = ""
    architecture: str = ""
    n_params: int = 0
    sees: bool | None = None
    """Whether messages may have images; None if unknown."""
    hears: bool | None = None
    """Whether they may have sounds."""
    layers: OllamaLayers | None = None
    """Ollama's files with its template, licence and parameters."""
    can_switch_thinking: bool = False
    """Only known of loaded models: it depends on the template."""


class ServedModel(Protocol):
    """A loaded model, while one request uses it."""

    name: str
    """The name that clients use."""
    adapters: tuple[str, ...]
    """Adapters that the request names with the model: NAME+ADAPTER."""

    @property
    def plan(self) -> LoadPlan:
        """How it is loaded."""
        ...

    @property
    def model(self) -> ModelInfo:
        """Properties found while loading."""
        ...

    def stream(self, request: ChatRequest) -> AsyncGenerator[RequestEvent, None]:
        """Answer a request. The events end with a Finished or an EdgechatError.

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
        """Embed each text, or its tokens; None if cancelled.

        cut: shorten texts that are too long. query: score the texts as answers to it, by a reranking model.
        Raises EdgechatError.
        """
        ...

    async def translate(
        self, request_id: str, what: Translatable, *, bos: bool = False, special: bool = False
    ) -> Translated | None:
        """Turn a text or a chat into tokens, or tokens into text; None if cancelled.

        Raises EdgechatError.
        """
        ...


class RequestCounter(Protocol):
    """Counts requests."""

    def request(self, endpoint: str, status: int, model: str | None = None) -> None:
        """Count an answered request. model: the one that answered, if any."""
        ...


class ModelPool(Protocol):
    """The models of this machine, loaded on demand."""

    @property
    def state(self) -> tuple[State, str]:
        """State of the server, and a sentence about it."""
        ...

    def names(self) -> list[ModelCard]:
        """Return all models that can be requested. Reads the disk: call it in a thread."""
        ...

    def card(self, name: str) -> ModelCard:
        """Describe the model that a name means. Reads the disk. Raises ModelNotFound."""
        ...

    def serve(
        self, model: str, places: int = 1, priority: Priority = "interactive"
    ) -> AbstractAsyncContextManager[ServedModel]:
        """Take places for a request, load the model if necessary, and give it while the context is open.

        Raises QueueFull, at once if too many requests wait (sooner for the background), or later if busy
        models leave no room; ModelNotFound, ModelFileError, DoesNotFit, LoadFailed, EngineCrashed, Draining.
        """
        ...

    async def unload(self, model: str) -> str:
        """Unload a model, after its last request if it is in use; return its name. Raises ModelNotFound."""
        ...

    @property
    def metrics(self) -> RequestCounter:
        """Counter of requests."""
        ...

    async def metrics_text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        ...
