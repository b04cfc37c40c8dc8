"""An engine that replays a script of events: the seam between a front end and the worker process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from edgechat.engine.protocol import EngineState
from edgechat.engine.snapshot import Snapshot
from edgechat.engine.types import (
    ChatRequest,
    Delta,
    Dropped,
    Finished,
    ModelInfo,
    Prefill,
    RequestEvent,
    Timings,
    Usage,
)
from edgechat.errors import EdgechatError, EngineClosed
from edgechat.planner.plan import LoadPlan

Step = str | float | EdgechatError | Prefill | Delta | Dropped
"""A word to say, seconds to wait, an error to raise, or an event as it is."""

MODEL = ModelInfo(
    name="scripted",
    architecture="fake",
    backend="scripted",
    n_params=0,
    context=4096,
    train_context=4096,
    can_switch_thinking=False,
    template="own",
    load_ms=1.0,
)


def thought(text: str) -> Delta:
    return Delta("", text, True, 0)


class FakeEngine:
    """Answers each request with the next script; the last one again when there are no more."""

    def __init__(self, *scripts: Sequence[Step], load_seconds: float = 0.0) -> None:
        self.state = EngineState.STOPPED
        self.plan = LoadPlan(model_path="", model_name="scripted", context=4096, threads=1)
        self.model: ModelInfo | None = None
        self.requests: list[ChatRequest] = []
        self.load_error: EdgechatError | None = None
        self.closed = False
        self.n_closed = 0
        self.lasting: bool | None = None
        """Whether it keeps what it computed on disk; None before it is told."""
        self.left: list[str | None] = []
        self.forgotten: list[str] = []
        self.looks = 0
        self.snapshot: Snapshot | None = None
        self.log = ""
        self._scripts = list(scripts) or [["Hello", " there."]]
        self._load_seconds = load_seconds
        self._cancelled: set[str] = set()
        self._closing = asyncio.Event()

    def reopen(self, plan: LoadPlan, *, lasting: bool) -> None:
        """Be the engine of a plan; of another one, after `close`, as if made anew."""
        self.plan, self.lasting = plan, lasting
        if self.closed:
            self.model, self.closed, self._closing = None, False, asyncio.Event()
            self.state = EngineState.STOPPED

    async def start(self, on_progress: Callable[[float], None] | None = None) -> ModelInfo:
        closing = self._closing
        if self.model is None:
            for step in range(1, 5):
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(closing.wait(), self._load_seconds / 4)
                if closing.is_set():
                    raise EngineClosed("The engine was closed before the model was loaded.")
                if on_progress is not None:
                    on_progress(step / 4)
            if self.load_error is not None:
                raise self.load_error
            self.model, self.state = MODEL, EngineState.READY
        return self.model

    async def stream(
        self, request: ChatRequest, on_progress: Callable[[float], None] | None = None
    ) -> AsyncGenerator[RequestEvent, None]:
        self.requests.append(request)
        self._cancelled.discard(request.id)
        script = self._scripts.pop(0) if len(self._scripts) > 1 else self._scripts[0]
        await self.start(on_progress)
        tokens, dropped, reason = 0, 0, "stop"
        for step in script:
            if isinstance(step, float):
                await self._wait(request.id, step)
            elif isinstance(step, EdgechatError):
                raise step
            elif isinstance(step, Prefill):
                yield Prefill(request.id, step.done, step.total)
            elif isinstance(step, Dropped):
                dropped = step.turns
                yield Dropped(request.id, dropped)
            else:
                tokens += 1
                text, thinking = (step, False) if isinstance(step, str) else (step.text, step.thinking)
                yield Delta(request.id, text, thinking, tokens)
            if request.id in self._cancelled:
                reason = "cancelled"
                break
        usage, timings = Usage(20, 0, tokens, dropped), Timings(10.0, 500.0, 25.0)
        yield Finished(request.id, reason, usage, timings)  # type: ignore[arg-type]

    async def _wait(self, request_id: str, seconds: float) -> None:
        end = asyncio.get_running_loop().time() + seconds
        while request_id not in self._cancelled and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(min(seconds, 0.01))

    async def cancel(self, request_id: str) -> None:
        self._cancelled.add(request_id)

    async def inspect(self, chat: str | None = None) -> Snapshot | None:
        assert not self.closed
        self.looks += 1
        return self.snapshot if self.model is not None else None

    def log_tail(self, n_bytes: int = 4096) -> str:
        return self.log[-n_bytes:]

    async def persist(self, chat: str | None = None) -> None:
        assert not self.closed
        self.left.append(chat)

    def forget(self, chat: str) -> None:
        self.forgotten.append(chat)

    async def close(self) -> None:
        self.closed = True
        self.n_closed += 1
        self._closing.set()


def words(text: str, seconds: float) -> list[Any]:
    """Return a script that says `text` word by word."""
    script: list[Step] = []
    for word in text.split(" "):
        script += [word + " ", seconds]
    return script
