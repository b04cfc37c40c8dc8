"""What a front end holds a conversation with: the store, the engine of the chosen model, the settings."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from edgechat import settings
from edgechat.chat.conversation import Conversation
from edgechat.chat.generation_options import GenerationOptions
from edgechat.chat.records import ChatSettings
from edgechat.chat.storage.last_model import DEFAULT_MODEL, remember, remembered
from edgechat.chat.storage.store import Store, store_path
from edgechat.engine.protocol import Engine
from edgechat.engine.types import Sampling
from edgechat.errors import EdgechatError, FolderError, ModelNotFound, StoreUnwritable
from edgechat.planner.plan import LoadPlan
from edgechat.settings import Backend, Preset, Settings
from edgechat.text import one_line

_LEAVING = 2.0
"""Seconds that the way out waits for chats' states to be on disk; they can be computed again."""


@dataclass(frozen=True, slots=True)
class SessionServices:
    """The layers below, as functions: tests put their own in."""

    store_path: Callable[[], Path]
    prepare: Callable[[str], LoadPlan]
    """From a model's name to its plan. May take a while; called in a thread."""
    engine: Callable[[LoadPlan, Callable[[], LoadPlan], Callable[[str], None], bool], Engine]
    """From a plan, and what makes it anew, to its engine.

    It tells what it has to change about the plan. Where the last argument is True, as it is where the store
    lasts, it keeps what it computed of chats on disk.
    """
    settings: Callable[[], Settings] = Settings
    """What the user has decided. Raises SettingsError."""

    @classmethod
    def real(
        cls, *, anyway: bool = False, draft: str | None = None, backend: Backend | None = None
    ) -> SessionServices:
        """Return edgechat's own; nothing of them is imported before it is called.

        anyway: load a model although it does not seem to fit. draft: who is asked to draft for it. backend:
        what is to compute it.
        """
        prepare = partial(_prepare, anyway=anyway, draft=draft, backend=backend)
        return cls(store_path, prepare, _engine, settings.load)


class ChatSession:
    """Opens each thing when it is first asked for; what failed is tried again at the next call."""

    def __init__(self, services: SessionServices, model: str | None = None) -> None:
        self.model = model
        """The name of the model, once it is known."""
        self.plan: LoadPlan | None = None
        self.settings = Settings()
        """What settings.toml says, as far as it was read."""
        self.is_first_run = False
        """Whether nobody has ever chosen a model here."""
        self.on_note: Callable[[str], None] = lambda _note: None
        """Hears what had to be changed about the plan."""
        self._services = services
        self._store: Store | None = None
        self._engine: Engine | None = None
        self._opening = asyncio.Lock()
        self._planning = asyncio.Lock()

    async def store(self) -> Store:
        """Return the open store; one in memory where nothing can be written. Raises StoreError."""
        async with self._opening:
            if self._store is None:
                try:
                    self._store = await Store.open(self._services.store_path())
                except (StoreUnwritable, FolderError) as error:
                    self._store = await Store.in_memory()
                    self.on_note(f"{error.message} What is said now is gone when edgechat ends.")
            return self._store

    async def engine(self) -> Engine:
        """Return the engine of the chosen model, not yet loaded. Raises EdgechatError."""
        async with self._planning:
            if self._engine is None:
                await self.read_settings()
                self.plan = await self._make_plan()
                self._engine = await self._new_engine(self.plan)
            return self._engine

    @property
    def loaded(self) -> Engine | None:
        """The engine, if there is one already."""
        return self._engine

    async def switch_model(self, name: str) -> LoadPlan:
        """Let another model answer from now on; where it cannot be planned the one so far stays.

        Nothing may be being written. Raises EdgechatError.
        """
        async with self._planning:
            plan = await asyncio.to_thread(self._services.prepare, name)
            old, self._engine = self._engine, None
            if old is not None:
                await self._end(old)
            self.model, self.plan = name, plan
            self._engine = await self._new_engine(plan)
            return plan

    async def read_settings(self) -> Settings:
        """Read settings.toml again. Raises SettingsError."""
        self.settings = await asyncio.to_thread(self._services.settings)
        return self.settings

    async def save_preset(self, name: str, system: str | None, chat: ChatSettings) -> None:
        """Keep how a chat is held in settings.toml, under a name. Raises SettingsError."""
        preset = Preset(system=system, think=chat.think, sampling=chat.sampling)
        self.settings = await asyncio.to_thread(settings.change, f"presets.{name}", preset)

    def generation_options(self, chat: ChatSettings) -> GenerationOptions:
        """How replies are written: as the chat says, else the settings, else the model's makers, else us."""
        think = self.settings.think if chat.think is None else chat.think
        if self._engine is not None and self._engine.model is not None:
            # A wish of the settings is for the models that know it; an own one is refused in words.
            can = self._engine.model.can_switch_thinking
            think = think if can or chat.think is not None else None
        made = self.plan.sampling_for(think) if self.plan else self.settings.sampling
        sampling = Sampling(**chat.sampling.over(made).given())
        return GenerationOptions(sampling=sampling, think=think, overflow=self.settings.overflow)

    async def begin(self, system: str | None = None) -> Conversation:
        """Return a new conversation. Raises StoreError."""
        return Conversation(await self.store(), self.model or DEFAULT_MODEL, system=system)

    async def open(self, chat_id: str) -> Conversation:
        """Return a stored conversation. Raises ChatNotFound and StoreError."""
        return await Conversation.load(await self.store(), chat_id)

    async def remember_model(self) -> None:
        """Begin with this model next time. Raises StoreError."""
        if self.model is not None:
            await remember(await self.store(), self.model)

    async def persist(self, left: Conversation) -> None:
        """Put what was computed of a conversation on disk: nobody looks at it any more."""
        if self._engine is not None and left.kept_as is not None:
            await self._engine.persist(left.kept_as)

    def forget(self, chat_id: str) -> None:
        """Keep nothing that was computed of a conversation, which is deleted."""
        if self._engine is not None:
            self._engine.forget(chat_id)

    async def close(self) -> None:
        """Put what was computed on disk, end the worker, then close the store."""
        try:
            if self._engine is not None:
                await self._end(self._engine)
        finally:
            if self._store is not None:
                await self._store.close()

    async def _end(self, engine: Engine) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(engine.persist(), _LEAVING)
        await engine.close()

    async def _new_engine(self, plan: LoadPlan) -> Engine:
        assert self.model is not None
        replan = partial(self._services.prepare, self.model)
        lasting = False
        with suppress(EdgechatError):  # who writes to the store is told of it
            lasting = (await self.store()).lasting
        return self._services.engine(plan, replan, lambda note: self.on_note(note), lasting)

    async def _make_plan(self) -> LoadPlan:
        if self.model is not None:
            return await asyncio.to_thread(self._services.prepare, self.model)
        last = self.settings.model or await remembered(await self.store())
        self.is_first_run = last is None
        if last is not None and last != DEFAULT_MODEL:
            try:
                plan = await asyncio.to_thread(self._services.prepare, last)
            except ModelNotFound:
                self.on_note(f"{one_line(last, 80)} is not here; {DEFAULT_MODEL} stands in for it.")
            else:
                self.model = last
                return plan
        plan = await asyncio.to_thread(self._services.prepare, DEFAULT_MODEL)
        self.model = DEFAULT_MODEL
        return plan


def _prepare(model: str, *, anyway: bool, draft: str | None, backend: Backend | None) -> LoadPlan:
    from edgechat.planner.prepare import prepare
    from edgechat.planner.request import PlanRequest

    return prepare(model, PlanRequest(anyway=anyway, draft=draft, backend=backend))


def _engine(
    plan: LoadPlan, replan: Callable[[], LoadPlan], on_note: Callable[[str], None], lasting: bool
) -> Engine:
    from edgechat.chat.upkeep import upkeep
    from edgechat.engine.worker.supervisor import EngineSupervisor

    said = settings.load()
    return EngineSupervisor(
        plan,
        idle_seconds=60 * said.idle_minutes,
        upkeep=upkeep(said, lasting=lasting),
        replan=replan,
        on_note=on_note,
    )
