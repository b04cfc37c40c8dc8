"""An engine that replays scripted events, in place of the worker process behind a front end."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from edgechat.base.errors import EdgechatError, EngineClosed, EngineCrashed, EngineGone
from edgechat.engine.kv.snapshot import Snapshot
from edgechat.engine.kv.state_files import check_id
from edgechat.engine.protocol import EngineState, cannot_embed
from edgechat.engine.types import (
    ChatRequest,
    Delta,
    Dropped,
    Embedded,
    Finished,
    ModelInfo,
    Prefill,
    RequestEvent,
    Timings,
    ToolCall,
    ToolCallArguments,
    ToolCallBegun,
    Translatable,
    Translated,
    Usage,
)
from edgechat.planner.plan import LoadPlan

if TYPE_CHECKING:
    from edgechat.chat.conversation import Conversation
    from edgechat.chat.reply.reply import ReplyEvent
    from edgechat.documents.embedding import Vectors
    from edgechat.engine.protocol import Engine

Step = str | float | asyncio.Event | EdgechatError | Prefill | Delta | Dropped | ToolCall
"""A word to say, seconds or an event to wait for, an error to raise, an event to pass on, or a tool call."""

MODEL = ModelInfo(
    name="scripted",
    architecture="fake",
    backend="llama.cpp",
    n_params=0,
    context=4096,
    train_context=4096,
    can_switch_thinking=False,
    has_tools=True,
    template="own",
    load_ms=1.0,
)


def thought(text: str) -> Delta:
    return Delta("", text, True, 0)


class FakeEngine:
    """Answers each request with the next script, and repeats the last one.

    It satisfies the engine contract, see `tests/engine/test_contract.py`.
    """

    def __init__(self, *scripts: Sequence[Step], load_seconds: float = 0.0) -> None:
        self.plan = LoadPlan(model_path="", model_name="scripted", context=4096, threads=1)
        self.model: ModelInfo | None = None
        self.state = EngineState.STOPPED
        self.has_crashed = False
        self.log_path: Path | None = None
        self.requests: list[ChatRequest] = []
        self.load_error: EdgechatError | None = None
        self.closed = False
        self.n_closed = 0
        self.lasting: bool | None = None
        """Whether it keeps what it computed on disk; None until it is told."""
        self.left: list[str | None] = []
        self.forgotten: list[str] = []
        self.looks = 0
        self.snapshot: Snapshot | None = None
        self.log = ""
        self._scripts = list(scripts) or [["Hello", " there."]]
        self._load_seconds = load_seconds
        self._running: set[str] = set()
        self._cancelled: set[str] = set()
        self._users = 0
        self._starting = asyncio.Lock()
        self._closing = asyncio.Event()

    def reopen(self, plan: LoadPlan, *, lasting: bool) -> None:
        """Become the engine for a plan; after `close`, start afresh for another one."""
        self.plan, self.lasting = plan, lasting
        if self.closed:
            self.model, self.closed = None, False
            self._starting, self._closing = asyncio.Lock(), asyncio.Event()

    async def start(self, on_progress: Callable[[float], None] | None = None) -> ModelInfo:
        closing = self._closing
        async with self._starting:
            if self.state is not EngineState.READY or closing.is_set():
                self.state = EngineState.LOADING
                try:
                    await self._load(closing, on_progress)
                except BaseException:
                    self.state = EngineState.STOPPED
                    raise
                sees = self.plan.projector is not None
                self.model = self.model or msgspec.structs.replace(MODEL, sees=sees)
                self.state, self.has_crashed = EngineState.READY, False
            assert self.model is not None
            return self.model

    async def _load(self, closing: asyncio.Event, on_progress: Callable[[float], None] | None) -> None:
        for step in range(1, 5):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(closing.wait(), self._load_seconds / 4)
            if closing.is_set():
                raise EngineClosed("The engine was closed before the model was loaded.")
            if on_progress is not None:
                on_progress(step / 4)
        if self.load_error is not None:
            raise self.load_error

    async def stream(
        self,
        request: ChatRequest,
        on_progress: Callable[[float], None] | None = None,
        *,
        may_load: bool = True,
    ) -> AsyncGenerator[RequestEvent, None]:
        self.requests.append(request)
        script = self._scripts.pop(0) if len(self._scripts) > 1 else self._scripts[0]
        self._running.add(request.id)
        try:
            with self.holding():
                if await self._is_ready(on_progress, may_load):
                    async for event in self._replay(request.id, script):
                        yield event
                else:
                    yield Finished(request.id, "cancelled", Usage(0, 0, 0), Timings(0.0, 0.0, 0.0))
        finally:
            self._running.discard(request.id)
            self._cancelled.discard(request.id)

    async def _is_ready(self, on_progress: Callable[[float], None] | None, may_load: bool) -> bool:
        """Load the model if necessary; return False if the engine is closed."""
        if not may_load and self.state is not EngineState.READY:
            raise EngineGone("The engine was stopped before it received the request.")
        try:
            await self.start(on_progress)
        except EngineClosed:
            return False
        return True

    async def _replay(self, request_id: str, script: Sequence[Step]) -> AsyncGenerator[RequestEvent, None]:
        tokens, dropped, closing = 0, 0, self._closing
        reason = "cancelled" if request_id in self._cancelled else "stop"
        for step in script if reason == "stop" else ():
            if isinstance(step, (float, asyncio.Event)):
                await self._wait(request_id, step)
            elif isinstance(step, EdgechatError):
                if isinstance(step, EngineCrashed):
                    self.has_crashed, self.state = True, EngineState.STOPPED
                raise step
            elif isinstance(step, Prefill):
                yield Prefill(request_id, step.done, step.total, step.cached)
            elif isinstance(step, ToolCall):
                tokens += 1
                yield ToolCallBegun(request_id, msgspec.structs.replace(step, arguments=""), tokens)
                yield ToolCallArguments(request_id, step.arguments, tokens)
            elif isinstance(step, Dropped):
                dropped = step.turns
                yield Dropped(request_id, dropped)
            else:
                tokens += 1
                text, thinking = (step, False) if isinstance(step, str) else (step.text, step.thinking)
                yield Delta(request_id, text, thinking, tokens)
            if request_id in self._cancelled or closing.is_set():
                reason = "cancelled"
                break
        if reason == "stop" and any(isinstance(step, ToolCall) for step in script):
            reason = "tools"
        usage, timings = Usage(20, 0, tokens, dropped), Timings(10.0, 500.0, 25.0)
        yield Finished(request_id, reason, usage, timings)  # type: ignore[arg-type]

    async def _wait(self, request_id: str, until: float | asyncio.Event) -> None:
        closing, event = self._closing, until if isinstance(until, asyncio.Event) else asyncio.Event()
        end = asyncio.get_running_loop().time() + (until if isinstance(until, float) else math.inf)
        while request_id not in self._cancelled and not closing.is_set() and not event.is_set():
            left = end - asyncio.get_running_loop().time()
            if left <= 0:
                return
            await asyncio.sleep(min(left, 0.01))

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
        raise cannot_embed(self.plan.model_name, query)

    async def translate(
        self,
        request_id: str,
        what: Translatable,
        *,
        bos: bool = False,
        special: bool = False,
        may_load: bool = True,
    ) -> Translated | None:
        """Treat every byte as a token."""
        if isinstance(what, ChatRequest):
            what = "".join(message.content for message in what.messages)
        if not await self._is_ready(None, may_load):
            return None
        if isinstance(what, str):
            return Translated(request_id, tuple(what.encode()), b"")
        return Translated(request_id, what, bytes(what))

    async def cancel(self, request_id: str) -> None:
        if request_id in self._running:
            self._cancelled.add(request_id)

    async def inspect(self, chat: str | None = None) -> Snapshot | None:
        self.looks += 1
        return self.snapshot if self.state is EngineState.READY else None

    def log_tail(self, n_bytes: int = 4096) -> str:
        return self.log[-n_bytes:]

    async def persist(self, chat: str | None = None) -> None:
        self.left.append(chat)

    def forget(self, chat: str) -> None:
        check_id(chat)
        self.forgotten.append(chat)

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1

    async def unload(self) -> None:
        if not self._users:
            self.state = EngineState.STOPPED

    async def close(self) -> None:
        self.closed = True
        self.n_closed += 1
        self.state = EngineState.STOPPED
        self._closing.set()


class FakeEmbedder:
    """Embeds a given number of texts, then waits."""

    name = "fake"

    def __init__(self, most: int) -> None:
        self.most = most
        self.texts: list[str] = []
        self.answering: list[bool] = []
        self.is_answering: Callable[[], bool] = bool
        self.cancelled = 0

    async def passages(self, texts: Sequence[str]) -> Vectors:
        self.answering.append(self.is_answering())
        if len(self.texts) + len(texts) > self.most:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        self.texts += texts
        return np.full((len(texts), 4), 0.5, np.float32)

    async def query(self, text: str) -> Vectors:
        return np.full(4, 0.5, np.float32)

    async def close(self) -> None:
        pass


def words(text: str, seconds: float) -> list[Any]:
    """Return a script that says `text` word by word."""
    script: list[Step] = []
    for word in text.split(" "):
        script += [word + " ", seconds]
    return script


async def send(conversation: Conversation, engine: Engine, text: str) -> AsyncGenerator[ReplyEvent, None]:
    """Save a question, then stream the reply to it."""
    await conversation.ask(text)
    async with contextlib.aclosing(conversation.answer(engine)) as events:
        async for event in events:
            yield event
