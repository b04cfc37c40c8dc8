"""A model in the pool: how it is described to clients, its slot, and how a single request sees it."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec

from edgechat.base.errors import EngineGone, QueueFull
from edgechat.engine.protocol import Engine, EngineState
from edgechat.engine.types import (
    ChatRequest,
    Embedded,
    Finished,
    ModelInfo,
    Priority,
    RequestEvent,
    Translatable,
    Translated,
)
from edgechat.models.formats.header import ModelKind
from edgechat.models.local.ollama_store import OllamaLayers, is_blob
from edgechat.planner.plan import LoadPlan

if TYPE_CHECKING:  # `edgechat docs serve` imports this module, and works without Prometheus
    from edgechat.server.pool.metrics import Metrics

T = TypeVar("T")
State = Literal["loading", "ready", "degraded", "draining"]
_PLACES = 4
"""Number of places assumed for a model that has no plan yet."""
_RECENT_SECONDS = 60.0
"""Window for measuring how often requests end, in seconds."""
_UNKNOWN = 5
"""Wait time in seconds to report if too few requests ended recently to estimate it."""
_LONGEST = 120


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """A model that clients can request."""

    id: str
    created: int
    """When its file last changed, in seconds since 1970."""
    loaded: bool = False
    kind: ModelKind = "chat"
    context: int = 0
    """Context length in tokens: as loaded or, if it is not loaded, as trained; or 0 if unknown."""
    size: int = 0
    """Size of the model's files in bytes. Here and below, 0 and '' mean unknown."""
    format: str = ""
    quant: str = ""
    architecture: str = ""
    n_params: int = 0
    sees: bool | None = None
    """Whether messages may contain images, or None if unknown."""
    hears: bool | None = None
    """Whether messages may contain audio, or None if unknown."""
    layers: OllamaLayers | None = None
    """Ollama's files with the model's template, license and parameters."""
    can_switch_thinking: bool = False
    """Whether thinking can be turned on and off. Read from the template, so only known for loaded models."""


@dataclass(frozen=True, slots=True)
class AvailableModel:
    """A model on this machine."""

    id: str
    """The name that clients use."""
    wanted: str
    """What is passed to the planner: a catalogue name, the name of an Ollama model, or a file's path."""
    path: Path

    @property
    def identity(self) -> tuple[Path, str]:
        """Key of a loaded model: its file, plus its name if several Ollama models may share the file."""
        return self.path, self.wanted if is_blob(self.path) else ""


class ModelSlot:
    """The slot for one model in the pool: its engine, its load and its queue. Bound to one event loop."""

    def __init__(self, known: AvailableModel) -> None:
        self.known = known
        self.engine: Engine | None = None
        """The engine, or None until there is a plan."""
        self.taken = 0
        """Number of places taken by all requests, whether running or waiting."""
        self.in_background = 0
        """Number of places taken by background requests."""
        self.held = 0
        """Number of requests using the engine, which cannot be unloaded until they have ended."""
        self.claimed = False
        """Whether the model must make room for another. If so, new requests do not reach the engine."""
        self.leaving = False
        """Whether to unload the model after its last request."""
        self.loading: asyncio.Task[None] | None = None
        self.awaiting = 0
        """Number of requests waiting for the model to load."""
        self.progress = 0.0
        """Progress of the load, from 0 to 1."""
        self.trouble = ""
        """A sentence that describes the last failure, or '' once the model works again."""
        self.last_used = 0.0
        self._ended: deque[float] = deque(maxlen=64)

    @property
    def id(self) -> str:
        """The name that clients use."""
        return self.known.id

    @property
    def is_ready(self) -> bool:
        """Whether the model is loaded."""
        return self.engine is not None and self.engine.state is EngineState.READY

    @property
    def takes_memory(self) -> bool:
        """Whether the model is loaded, or being loaded or unloaded."""
        return self.engine is not None and self.engine.state is not EngineState.STOPPED

    def has_loaded(self, known: AvailableModel) -> bool:
        """Return True if this slot has loaded `known`.

        The planner may have chosen that file from among several quantizations, so the names can differ.
        """
        if self.engine is None or not self.is_ready or Path(self.engine.plan.model_path) != known.path:
            return False
        return self.known.identity[1] == known.identity[1]

    @property
    def places(self) -> int:
        """Number of requests that can run at the same time."""
        return self.engine.plan.n_seq_max if self.engine is not None else _PLACES

    @contextlib.contextmanager
    def admitted(self, places: int, most_waiting: int, priority: Priority = "interactive") -> Iterator[None]:
        """Take places for a request. Raises QueueFull if none are free.

        Half of all places are reserved for interactive requests, so background requests never fill the queue.
        """
        behind = places if priority == "background" else 0
        most = self.places + most_waiting
        too_many = max(self.taken + places - most, self.in_background + behind - most // 2 if behind else 0)
        if self.taken and too_many > 0:
            raise self._full(too_many, priority)
        self.taken += places
        self.in_background += behind
        try:
            yield
        finally:
            self.taken -= places
            self.in_background -= behind
            self.last_used = time.monotonic()
            self._ended.extend([self.last_used] * places)

    def _full(self, too_many: int, priority: Priority) -> QueueFull:
        seconds = self.seconds_until_free(too_many)
        if priority == "background":
            told = f"{self.in_background} of {self.taken} requests for {self.id} have background priority"
            told = f"{told}, and the remaining places are reserved for interactive requests."
        else:
            told = f"The queue for {self.id} is full: it has {self.taken} requests."
        return QueueFull(told, hint=f"Try again in {seconds} seconds.", seconds=seconds)

    def loaded(self, task: asyncio.Task[None]) -> None:
        """Record that a load has ended. Its errors are passed on to the requests that are waiting for it."""
        if self.loading is task:
            self.loading = None
        if task.cancelled() or task.exception() is not None:
            self.leaving = False

    def seconds_until_free(self, places: int = 1) -> int:
        """Estimate how soon places will be free, in seconds, from how often requests ended recently."""
        now = time.monotonic()
        recent = [one for one in self._ended if now - one < _RECENT_SECONDS]
        if len(recent) < 2:
            return _UNKNOWN
        each = (now - recent[0]) / len(recent)
        return min(max(1, math.ceil(places * each)), _LONGEST)


class ServedModel:
    """A loaded model, as seen by one request."""

    def __init__(
        self,
        slot: ModelSlot,
        engine: Engine,
        metrics: Metrics,
        arrived: float,
        load_again: Callable[[ModelSlot], Awaitable[None]],
        adapters: tuple[str, ...],
    ) -> None:
        self.name = slot.id
        """The name that clients use."""
        self.adapters = adapters
        """The adapters in the requested name, such as NAME+ADAPTER."""
        self._slot, self._engine = slot, engine
        self._metrics, self._arrived = metrics, arrived
        self._load_again = load_again

    @property
    def plan(self) -> LoadPlan:
        """How the model is loaded."""
        return self._engine.plan

    @property
    def model(self) -> ModelInfo:
        """The model's properties, determined while loading it."""
        assert self._engine.model is not None
        return self._engine.model

    async def stream(self, request: ChatRequest) -> AsyncGenerator[RequestEvent, None]:
        """Answer a request. The last event is a Finished, unless an EdgechatError is raised.

        Ending the iteration early cancels the request.
        """
        meter = self._metrics.meter(self._slot.id, self._arrived)
        try:
            for is_last in (False, True):
                try:
                    events = self._engine.stream(request, may_load=False)
                    async with contextlib.aclosing(events):
                        async for event in events:
                            meter.take(event)
                            if isinstance(event, Finished):
                                self._slot.trouble = ""
                            yield event
                    return
                except EngineGone:
                    if is_last:
                        raise
                await self._load_again(self._slot)
        except BaseException as error:
            meter.broke_off("failed" if isinstance(error, Exception) else "cancelled")
            raise

    async def embed(
        self,
        request_id: str,
        texts: tuple[str | tuple[int, ...], ...],
        *,
        cut: bool = False,
        query: str | None = None,
    ) -> Embedded | None:
        """Embed each text, given as a string or as tokens. Return None if cancelled.

        cut: shorten texts that are too long. query: if given, a reranking model scores the texts as answers
        to it. Raises EdgechatError.
        """
        embed = partial(self._engine.embed, request_id, texts, cut=cut, query=query, may_load=False)
        found = await self._call(embed)
        if found is not None:
            self._metrics.embedded(self._slot.id, found)
            self._slot.trouble = ""
        return found

    async def translate(
        self, request_id: str, what: Translatable, *, bos: bool = False, special: bool = False
    ) -> Translated | None:
        """Tokenize a text or a chat, or detokenize tokens. Return None if cancelled.

        Raises EdgechatError.
        """
        return await self._call(
            partial(self._engine.translate, request_id, what, bos=bos, special=special, may_load=False)
        )

    async def _call(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Call the engine, and call it once more if it was unloaded in the meantime."""
        try:
            return await ask()
        except EngineGone:
            await self._load_again(self._slot)
            return await ask()
