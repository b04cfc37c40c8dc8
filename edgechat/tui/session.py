"""What stands behind the screen: the store, the engine of the chosen model, and the conversation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from edgechat import settings
from edgechat.chat.conversation import Conversation, lasting_name
from edgechat.chat.engine import Engine, Manner
from edgechat.chat.store import Store, store_path
from edgechat.engine.types import ModelInfo, Sampling
from edgechat.errors import ModelNotFound
from edgechat.planner.plan import LoadPlan
from edgechat.settings import Settings

DEFAULT_MODEL = "guide"
_LAST_MODEL = "model"
_LEAVING = 2.0
"""Seconds that the way out waits for chats' states to be on disk; they can be computed again."""


class AppEngine(Engine, Protocol):
    """An engine that can be loaded ahead of the first question, and closed."""

    async def start(self, on_progress: Callable[[float], None] | None = None) -> ModelInfo:
        """Load the model if it is not loaded."""
        ...

    async def leave(self, chat: str | None = None) -> None:
        """Put what was computed of a chat (None: of all) on disk."""
        ...

    async def close(self) -> None:
        """End the worker."""
        ...


@dataclass(frozen=True, slots=True)
class Services:
    """The layers below, as functions: tests put their own in."""

    store_path: Callable[[], Path]
    prepare: Callable[[str], LoadPlan]
    """From a model's name to its plan. May take a while; called in a thread."""
    engine: Callable[[LoadPlan, Callable[[str], None]], AppEngine]
    """From a plan to its engine, which tells what it has to change about the plan."""
    settings: Callable[[], Settings] = Settings
    """What the user has decided. Raises SettingsError."""

    @classmethod
    def real(cls, *, anyway: bool = False, draft: str | None = None) -> Services:
        """Return edgechat's own; nothing of them is imported before it is called.

        anyway: load a model although it does not seem to fit. draft: who is asked to draft for it.
        """
        return cls(store_path, partial(_prepare, anyway=anyway, draft=draft), _engine, settings.load)


class Session:
    """Opens each thing when it is first asked for; what failed is tried again at the next call."""

    def __init__(self, services: Services, model: str | None = None) -> None:
        self.model = model
        """The name of the model, once it is known."""
        self.plan: LoadPlan | None = None
        self.missing: str | None = None
        """The model that was used last, if its file is gone and the default stands in for it."""
        self.conversation: Conversation | None = None
        self.on_note: Callable[[str], None] = lambda _note: None
        """Hears what had to be changed about the plan."""
        self._services = services
        self._said = Settings()
        self._store: Store | None = None
        self._engine: AppEngine | None = None
        self._opening = asyncio.Lock()
        self._planning = asyncio.Lock()

    async def store(self) -> Store:
        """Return the open store. Raises StoreError."""
        async with self._opening:
            if self._store is None:
                self._store = await Store.open(self._services.store_path())
            return self._store

    async def engine(self) -> AppEngine:
        """Return the engine of the chosen model, not yet loaded. Raises EdgechatError."""
        async with self._planning:
            if self._engine is None:
                self.plan = await self._make_plan()
                self._engine = self._services.engine(self.plan, lambda note: self.on_note(note))
            return self._engine

    @property
    def manner(self) -> Manner:
        """How replies are written: by the settings, else by the model's makers, else by us."""
        sampling = Sampling(**(self.plan.sampling.given() if self.plan else {}))
        return Manner(sampling=sampling, overflow=self._said.overflow)

    async def talk(self) -> Conversation:
        """Return the conversation that goes on; a new one if there is none. Raises StoreError."""
        if self.conversation is None:
            self.conversation = Conversation(await self.store(), self.model or DEFAULT_MODEL)
        return self.conversation

    async def remember_model(self) -> None:
        """Begin with this model next time. Raises StoreError."""
        if self.model is not None:
            await (await self.store()).set_preference(_LAST_MODEL, lasting_name(self.model))

    def leave(self) -> Coroutine[Any, Any, None]:
        """Let the next question begin another conversation; await what puts the state of this one on disk."""
        left, self.conversation = self.conversation, None
        return self._save_state(left)

    async def close(self) -> None:
        """Put what was computed on disk, end the worker, then close the store."""
        try:
            if self._engine is not None:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._engine.leave(), _LEAVING)
                await self._engine.close()
        finally:
            if self._store is not None:
                await self._store.close()

    async def _save_state(self, left: Conversation | None) -> None:
        if self._engine is not None and left is not None and left.kept_as is not None:
            await self._engine.leave(left.kept_as)

    async def _make_plan(self) -> LoadPlan:
        self._said = await asyncio.to_thread(self._services.settings)
        self.model = self.model or self._said.model
        if self.model is not None:
            return await asyncio.to_thread(self._services.prepare, self.model)
        last = await (await self.store()).preference(_LAST_MODEL)
        if last is not None and last != DEFAULT_MODEL:
            try:
                plan = await asyncio.to_thread(self._services.prepare, last)
            except ModelNotFound:
                self.missing = last
            else:
                self.model = last
                return plan
        plan = await asyncio.to_thread(self._services.prepare, DEFAULT_MODEL)
        self.model = DEFAULT_MODEL
        return plan


def _prepare(model: str, *, anyway: bool, draft: str | None) -> LoadPlan:
    from edgechat.planner.prepare import prepare
    from edgechat.planner.wishes import Wishes

    return prepare(model, Wishes(anyway=anyway, draft=draft))


def _engine(plan: LoadPlan, on_note: Callable[[str], None]) -> AppEngine:
    from edgechat.chat.upkeep import upkeep
    from edgechat.engine.process import EngineProcess

    said = settings.load()
    return EngineProcess(plan, idle_seconds=60 * said.idle_minutes, upkeep=upkeep(said), on_note=on_note)
