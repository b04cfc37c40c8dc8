"""Chat session: the store, the chosen model's engine and the settings, for a front end.

Used by the app and `edgechat run`, which show the messages passed to `on_note`.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from edgechat import settings
from edgechat.base.errors import CannotSee, EdgechatError, EngineClosed, FolderError, StoreUnwritable
from edgechat.base.text import one_line
from edgechat.chat.conversation import Conversation
from edgechat.chat.generation_options import CommandLineOptions, GenerationOptions, resolve_options
from edgechat.chat.messages import title_in, title_question
from edgechat.chat.model_choice import DEFAULT_MODEL, choose_model, remember, remembered
from edgechat.chat.records import Attachment, ChatSettings, Front
from edgechat.chat.reply.calls import ToolAccess
from edgechat.chat.reply.chat_tools import ChatTools, missing_tool
from edgechat.chat.reply.reply import ReplyEvent
from edgechat.chat.storage.store import Store, store_path
from edgechat.engine.protocol import Engine, EngineState
from edgechat.engine.types import (
    CachePolicy,
    ChatRequest,
    Delta,
    Finished,
    Message,
    Sampling,
)
from edgechat.models.adapters.reading import label_of
from edgechat.native.params import AdapterUse
from edgechat.planner.plan import LoadPlan
from edgechat.settings import Preset, Settings
from edgechat.tools.consent import NamedPermission, Permission

if TYPE_CHECKING:
    from edgechat.documents.indexing import Progress
    from edgechat.documents.library import DocumentLibrary
    from edgechat.planner.request import PlanRequest

_TITLE_TOKENS = 32
_MOST_EMBEDDED = 32
"""Maximum number of changed passages to embed before answering; `embed_documents` embeds the rest."""
SAVE_SECONDS = 2.0
"""Seconds to wait, when closing, for KV states to be saved; unsaved ones are recomputed later."""


class Prepare(Protocol):
    """Plans how to load a model, given its name. May take a while; called in a thread."""

    def __call__(self, model: str, *, leaving: Sequence[LoadPlan] = ()) -> LoadPlan:
        """Plan for the memory that is free once the models in `leaving` are unloaded."""


class MakeEngine(Protocol):
    """Creates an engine from a plan, without loading the model."""

    def __call__(
        self,
        plan: LoadPlan,
        *,
        idle_seconds: float,
        cache_policy: CachePolicy,
        replan: Callable[[], LoadPlan],
        on_note: Callable[[str], None],
    ) -> Engine:
        """Return the engine; `on_note` receives messages about changes to the plan."""


@dataclass(frozen=True, slots=True)
class SessionServices:
    """The layers below, as functions that tests can replace."""

    store_path: Callable[[], Path]
    prepare: Prepare
    engine: MakeEngine
    settings: Callable[[], Settings] = Settings
    """Reads settings.toml. Raises SettingsError."""

    @classmethod
    def real(cls, request: PlanRequest | None = None) -> SessionServices:
        """Return edgechat's own services, which import the planner and the engine when called.

        request: how to plan the first model; an option that has no effect on that model is an error. For
        other models, such options only produce a note, and the adapters are used if they fit.
        """
        planned: list[str] = []

        def plan_model(model: str, *, leaving: Sequence[LoadPlan] = ()) -> LoadPlan:
            from edgechat.engine.remote.choice import remote_plan
            from edgechat.planner.prepare import prepare
            from edgechat.planner.request import DEFAULT_REQUEST

            first, is_first = request or DEFAULT_REQUEST, not planned or planned == [model]
            own = msgspec.structs.replace(
                first,
                adapters=first.adapters if is_first or not first.adapters else None,
                usual_adapters=first.adapters or (),
                is_strict=is_first,
            )
            plan = remote_plan(model, settings.load(), own) or prepare(model, own, leaving=leaving)
            planned[:] = planned or [model]
            return plan

        return cls(store_path, plan_model, _engine, settings.load)


class ChatSession:
    """Opens the store and creates the engine on first use; after a failure, the next call tries again."""

    def __init__(
        self,
        services: SessionServices,
        model: str | None = None,
        *,
        front: Front = "app",
        options: CommandLineOptions = CommandLineOptions(),  # noqa: B008  (it is frozen)
        keep: bool = True,
        needs_store: bool = False,
        prewarm: bool = True,
    ) -> None:
        """model: the one named on the command line; if None, `choose_model` chooses one.

        keep: save text and KV states to disk. needs_store: fail if the store cannot be written to, because a
        stored conversation is being continued. prewarm: compute in advance for the next question.
        """
        self.model = model
        """The name of the model, once it is known."""
        self.plan: LoadPlan | None = None
        self.options = options
        """Command-line options, which take precedence over a conversation's settings."""
        self.settings = Settings()
        """The contents of settings.toml when it was last read."""
        self.is_first_run = False
        """True if no model had been chosen before."""
        self.on_note: Callable[[str], None] = lambda _note: None
        """Called with messages for the user, for example if nothing can be saved or a model is missing."""
        self.tools = ChatTools(self.store, lambda: self.documents)
        """The model's tools, and the user's permissions."""
        self._services = services
        self._front = front
        self._keep, self._needs_store, self._prewarm = keep, needs_store, prewarm
        self._store: Store | None = None
        self._engine: Engine | None = None
        self._documents: DocumentLibrary | None = None
        self._opening = asyncio.Lock()
        self._planning = asyncio.Lock()
        self._closed = False

    async def store(self) -> Store:
        """Return the store, in memory if its file cannot be written to. Raises StoreError and FolderError."""
        async with self._opening:
            if self._store is None:
                self._store = await self._open_store()
            return self._store

    async def engine(self) -> Engine:
        """Return the chosen model's engine, without loading it. Raises EdgechatError."""
        async with self._planning:
            if self._engine is None:
                await self.read_settings()
                configured, prepare = self.settings.model, self._services.prepare
                choice = await choose_model(self.model, configured, self._last_used, prepare)
                self.is_first_run = choice.is_first
                if choice.note is not None:
                    self.on_note(choice.note)
                self._engine = await self._new_engine(choice.model, choice.found)
            return self._engine

    @property
    def loaded(self) -> Engine | None:
        """The engine, if it has been created."""
        return self._engine

    @property
    def sees(self) -> bool | None:
        """Whether the model accepts images, judging by its plan until it is loaded.

        None if no model has been chosen, or if another server runs it and its capabilities are not known yet.
        """
        if self._engine is not None and self._engine.model is not None:
            return self._engine.model.sees
        if self.plan is None or self.plan.remote is not None:
            return None
        return self.plan.projector is not None and self.plan.projector.vision

    async def check_sees(self) -> None:
        """Raise CannotSee if the model does not accept images, or any error from `engine`."""
        engine = await self.engine()
        if self.sees is None:
            await engine.start()
        if not self.sees:
            assert self.plan is not None
            name = one_line(self.plan.model_name, 60)
            raise CannotSee(f"{name} cannot see images.", hint=self.plan.no_vision or None)

    async def switch_model(self, name: str) -> LoadPlan:
        """Switch to another model; if it cannot be planned, keep the current one.

        The plan uses the memory that will be free once the current model is unloaded. Must not be called
        while a reply is running; a load in progress ends with EngineClosed. Raises EdgechatError.
        """
        async with self._planning:
            await self.read_settings()
            old = self._engine
            leaving = [old.plan] if old is not None and old.state is not EngineState.STOPPED else []
            plan = await asyncio.to_thread(self._services.prepare, name, leaving=leaving)
            await self.close_engine()
            self._engine = await self._new_engine(name, plan)
            return plan

    async def remember_model(self) -> None:
        """Store the current model for the next start. Raises StoreError."""
        if self.model is not None:
            await remember(await self.store(), self.model)

    async def read_settings(self) -> Settings:
        """Read settings.toml again. Raises SettingsError."""
        self.settings = await asyncio.to_thread(self._services.settings)
        return self.settings

    async def save_preset(self, name: str, system: str | None, chat: ChatSettings) -> None:
        """Save a chat's settings as a preset in settings.toml. Raises SettingsError."""
        preset = Preset(system=system, think=chat.think, sampling=chat.sampling, adapters=chat.adapters)
        self.settings = await asyncio.to_thread(settings.change, f"presets.{name}", preset)

    def generation_options(self, chat: ChatSettings) -> GenerationOptions:
        """Return the generation options for a chat; see `resolve_options`."""
        model = self._engine.model if self._engine is not None else None
        return resolve_options(self.options, chat, self.settings, self.plan, model)

    async def begin(self, system: str | None = None) -> Conversation:
        """Return a new conversation. Raises StoreError."""
        model = self.model or DEFAULT_MODEL
        return Conversation(await self.store(), model, front=self._front, system=system)

    async def open(self, chat_id: str) -> Conversation:
        """Return a stored conversation. Raises ChatNotFound and StoreError."""
        return await Conversation.load(await self.store(), chat_id, front=self._front)

    def chosen_tools(self, chat: ChatSettings) -> tuple[str, ...]:
        """Return the tools chosen for a chat: from the command line, else from its settings."""
        return chat.tools if self.options.tools is None else self.options.tools

    def chosen_adapters(self, chat: ChatSettings) -> tuple[str, ...]:
        """Return the names of a chat's LoRA adapters: the command line's, else its own, else the defaults."""
        if self.options.adapters is None and chat.adapters is not None:
            return tuple(map(label_of, chat.adapters))
        planned = self.plan.adapters if self.plan is not None else ()
        return tuple(f"{one.name}:{one.scale:g}" if one.scale != 1 else one.name for one in planned)

    async def adapters(self, chat: ChatSettings) -> tuple[AdapterUse, ...]:
        """Return a chat's LoRA adapters for the engine. Raises NotAnAdapter."""
        if self.options.adapters is None and chat.adapters is not None:
            from edgechat.models.adapters.local import adapter_uses

            return await asyncio.to_thread(adapter_uses, chat.adapters)
        return self.generation_options(chat).adapters

    @property
    def documents(self) -> DocumentLibrary:
        """The library of document collections."""
        if self._documents is None:
            from edgechat.documents.embedding import embedder_here
            from edgechat.documents.library import DocumentLibrary
            from edgechat.documents.retrieval import reranker_here

            self._documents = DocumentLibrary(
                partial(embedder_here, self._loads), partial(reranker_here, self._loads)
            )
            self._documents.on_note = lambda note: self.on_note(note)
        return self._documents

    def _loads(self) -> list[LoadPlan]:
        """Return the current model's plan in a list, or []. The model can be loaded at any moment."""
        return [self._engine.plan] if self._engine is not None else []

    def chosen_documents(self, chat: ChatSettings) -> tuple[str, ...]:
        """Return the collections chosen for a chat: from the command line, else from its settings."""
        return chat.documents if self.options.documents is None else self.options.documents

    async def passages(
        self,
        conversation: Conversation,
        question: str,
        on_progress: Callable[[Progress], None] = lambda _progress: None,
        *,
        instead_of: str = "",
    ) -> list[Attachment]:
        """Update a chat's documents, and return passages for a question.

        on_progress: called on another thread. instead_of: the id of the question that this one replaces.
        Raises EdgechatError.
        """
        names = self.chosen_documents(conversation.settings)
        if not names:
            return []
        from edgechat.chat.attachments import attached_passage, room_for, sources_in

        engine = await self.engine()
        assert self.plan is not None
        await self.documents.refresh(names, on_progress)
        ids = [turn.id for turn in conversation.turns]
        turns = conversation.turns[: ids.index(instead_of) if instead_of in ids else None]
        left_out = {turn.id for turn in conversation.left_out()}
        sent = [turn for turn in turns if turn.id not in left_out]
        context = engine.model.context if engine.model is not None else self.plan.context
        room = room_for(self.plan, context, sent, question, self.options.max_tokens)
        given, numbered = sources_in(sent), sources_in(turns)
        found = await self.documents.find(names, question, room, given, numbered, embed=_MOST_EMBEDDED)
        if not found and not given:
            self.on_note("Nothing in the documents matches this question, so it is answered without them.")
        return [attached_passage(one) for one in found]

    async def embed_documents(self, on_progress: Callable[[Progress], None]) -> None:
        """Embed the remaining passages while nothing else is being computed.

        If this is cancelled, everything done so far is kept.
        """
        if self._documents is not None:
            await self._documents.embed_searched(on_progress)

    async def answer(
        self,
        conversation: Conversation,
        *,
        permission: Permission | None = None,
        on_progress: Callable[[float], None] | None = None,
    ) -> AsyncGenerator[ReplyEvent, None]:
        """Stream the reply to the last question of a conversation, loading the model if necessary.

        permission: decides which tool calls to allow; if None, only harmless tools are called. on_progress:
        receives the progress of loading the model. Raises EdgechatError; see `Conversation.answer`.
        """
        engine = await self.engine()
        assert self.model is not None
        await conversation.use_model(self.model)
        has_images = any(turn.all_images for turn in conversation.turns)
        if engine.model is None and (has_images or self.settings.think is not None):
            await engine.start(on_progress)  # to find out whether it sees images and can switch thinking
        options = self.generation_options(conversation.chat.settings)
        options = msgspec.structs.replace(options, adapters=await self.adapters(conversation.chat.settings))
        access = await self._tool_access(conversation, permission or NamedPermission(()))
        reply = conversation.answer(engine, options, access=access, on_progress=on_progress)
        async with aclosing(reply) as events:
            async for event in events:
                yield event

    async def _tool_access(self, conversation: Conversation, permission: Permission) -> ToolAccess | None:
        chosen = self.chosen_tools(conversation.settings)
        if not chosen:
            return None
        found = await self.tools.open(chosen)
        for problem in found.problems:
            self.on_note(missing_tool(problem))
        return ToolAccess(tools=found, permission=permission, rounds=self.settings.tool_rounds)

    async def suggest_title(self, conversation: Conversation) -> str:
        """Ask the loaded model for a title while it is idle. Returns '' if the answer contains no title.

        Cancelling this cancels the request. Raises EdgechatError.
        """
        engine, turns = self._engine, [turn for turn in conversation.turns if turn.role != "system"]
        if engine is None or engine.model is None or self.model == DEFAULT_MODEL or not self.settings.titles:
            return ""
        # Give up after two exchanges: a model that failed twice will not find a title.
        if not conversation.has_first_title or not 2 <= len(turns) <= 4 or not turns[1].content:
            return ""
        request = ChatRequest(
            id=uuid.uuid4().hex,
            messages=(Message("user", title_question(turns[0].content, turns[1].content)),),
            sampling=Sampling(temperature=0.0),
            max_tokens=_TITLE_TOKENS,
            think=False if engine.model.can_switch_thinking else None,
            overflow="error",
            priority="background",
        )
        text, reason = "", ""
        async with aclosing(engine.stream(request, may_load=False)) as events:
            async for event in events:
                if isinstance(event, Delta) and not event.thinking:
                    text += event.text
                elif isinstance(event, Finished):
                    reason = event.reason
        return title_in(text) if reason == "stop" or "\n" in text.strip() else ""

    async def persist(self, conversation: Conversation) -> None:
        """Save the KV state of a conversation that is no longer shown."""
        if self._engine is not None and conversation.state_id is not None:
            await self._engine.persist(conversation.state_id)

    def forget(self, chat_id: str) -> None:
        """Delete the KV state of a deleted conversation."""
        if self._engine is not None:
            self._engine.forget(chat_id)

    async def close_engine(self, seconds: float | None = None) -> None:
        """Save the KV states and stop the worker.

        seconds: time limit for saving; None for SAVE_SECONDS.
        """
        engine, self._engine = self._engine, None
        if engine is None:
            return
        if self._store is not None and self._store.lasting:
            with suppress(TimeoutError):
                await asyncio.wait_for(engine.persist(), SAVE_SECONDS if seconds is None else seconds)
        await engine.close()

    async def close(self) -> None:
        """Save the KV states, stop the worker and close the store."""
        self._closed = True
        await self.tools.close()
        if self._documents is not None:
            await self._documents.close()
        try:
            await self.close_engine()
        finally:
            if self._store is not None:
                await self._store.close()

    async def _open_store(self) -> Store:
        if not self._keep:
            return await Store.in_memory()
        try:
            return await Store.open(self._services.store_path())
        except (StoreUnwritable, FolderError) as error:
            if self._needs_store:
                raise
            self.on_note(f"{error.message} This conversation will be lost when edgechat closes.")
            if isinstance(error, FolderError):
                return await Store.in_memory()
            return await Store.copy(self._services.store_path())

    async def _last_used(self) -> str | None:
        return await remembered(await self.store())

    async def _new_engine(self, model: str, plan: LoadPlan) -> Engine:
        lasting = False
        with suppress(EdgechatError):  # raised again by the next write to the store
            lasting = (await self.store()).lasting
        if self._closed:
            raise EngineClosed("edgechat was closed while the model was being planned.")
        self.model, self.plan = model, plan
        policy = cache_policy(self.settings, lasting=lasting, prewarm=self._prewarm)
        return self._services.engine(
            plan,
            idle_seconds=60 * self.settings.idle_minutes,
            cache_policy=policy,
            replan=partial(self._services.prepare, model),
            on_note=lambda note: self.on_note(note),
        )


def _engine(
    plan: LoadPlan,
    *,
    idle_seconds: float,
    cache_policy: CachePolicy,
    replan: Callable[[], LoadPlan],
    on_note: Callable[[str], None],
) -> Engine:
    if plan.remote is not None:
        from edgechat.engine.remote.choice import remote_engine

        return remote_engine(plan, settings.load(), idle_seconds=idle_seconds, on_note=on_note)
    from edgechat.guide.engine import local_engine

    return local_engine(
        plan, idle_seconds=idle_seconds, cache_policy=cache_policy, replan=replan, on_note=on_note
    )


def cache_policy(settings: Settings, *, lasting: bool, prewarm: bool = True) -> CachePolicy:
    """Return the cache policy that the worker follows between replies.

    lasting: whether chats, and therefore their KV states, are stored. prewarm: False if no question will
    follow.
    """
    return CachePolicy(
        settle=settings.settle and prewarm,
        settle_on_battery=settings.settle_on_battery,
        disk_bytes=settings.state_bytes if lasting else 0,
    )
