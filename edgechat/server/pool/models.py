"""The models as the HTTP side sees them: the interface that `edgechat.server.pool.pool.Pool` implements."""

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
    """A model that clients can request."""

    id: str
    created: int
    """When its file last changed, in seconds since 1970."""
    loaded: bool = False
    kind: ModelKind = "chat"
    context: int = 0
    """Context in tokens: as loaded or, if it is not loaded, as trained; 0 if unknown."""
    size: int = 0
    """Size of its files in bytes. Here and below, 0 and '' mean unknown."""
    format: str = ""
    quant: str = ""
    architecture: str = ""
    n_params: int = 0
    sees: bool | None = None
    """Whether messages may contain images; None if unknown."""
    hears: bool | None = None
    """Whether messages may contain audio; None if unknown."""
    layers: OllamaLayers | None = None
    """Ollama's files with the model's template, license and parameters."""
    can_switch_thinking: bool = False
    """Whether thinking can be turned on and off; known only for loaded models, from their template."""


class ServedModel(Protocol):
    """A loaded model, while one request uses it."""

    name: str
    """The name that clients use."""
    adapters: tuple[str, ...]
    """The adapters in the requested name: NAME+ADAPTER."""

    @property
    def plan(self) -> LoadPlan:
        """How the model is loaded."""
        ...

    @property
    def model(self) -> ModelInfo:
        """The model's properties, found while loading it."""
        ...

    def stream(self, request: ChatRequest) -> AsyncGenerator[RequestEvent, None]:
        """Answer a request. The events end with a Finished, or an EdgechatError is raised.

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
        """Embed each text, or its tokens. Return None if cancelled.

        cut: shorten texts that are too long. query: have a reranking model score the texts as answers to it.
        Raises EdgechatError.
        """
        ...

    async def translate(
        self, request_id: str, what: Translatable, *, bos: bool = False, special: bool = False
    ) -> Translated | None:
        """Tokenize a text or a chat, or detokenize tokens. Return None if cancelled.

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
        """The state of the server, and a sentence about it."""
        ...

    def names(self) -> list[ModelCard]:
        """Return all models that can be requested. Reads the disk: call it in a thread."""
        ...

    def card(self, name: str) -> ModelCard:
        """Describe a model by any name that clients may use. Reads the disk. Raises ModelNotFound."""
        ...

    def serve(
        self, model: str, places: int = 1, priority: Priority = "interactive"
    ) -> AbstractAsyncContextManager[ServedModel]:
        """Take places for a request, load the model if necessary, and yield it.

        Raises QueueFull at once if too many requests are waiting (sooner for background requests), or later
        if busy models leave no room. Also raises ModelNotFound, ModelFileError, DoesNotFit, LoadFailed,
        EngineCrashed and Draining.
        """
        ...

    async def unload(self, model: str) -> str:
        """Unload a model and return its name; if it is in use, it is unloaded after its last request.

        Raises ModelNotFound.
        """
        ...

    @property
    def metrics(self) -> RequestCounter:
        """The counter of requests."""
        ...

    async def metrics_text(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        ...
