"""A machine whose memory is counted in units, and engines that only pretend to load models there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing, contextmanager, suppress
from pathlib import Path
from typing import Any

from edgechat.base.errors import DoesNotFit, EngineCrashed, LoadFailed, ModelNotFound
from edgechat.engine.protocol import EngineState
from edgechat.engine.types import ChatRequest, RequestEvent
from edgechat.engine.worker.supervisor import EngineSupervisor
from edgechat.planner.companions import ProjectorPlan
from edgechat.planner.plan import LoadPlan
from edgechat.server.pool.models import AvailableModel, ModelCard
from edgechat.server.pool.pool import cache_policy
from tests import scripted
from tests.fakes import FakeEngine, Step

LONG = "a reply that takes its time " * 8
RULES = [{"when": "slow", "reply": LONG}]
EYES = ProjectorPlan(path="eyes", name="eyes", vision=True, audio=False)


class Machine:
    """Scripted models that take some units each; if memory is short, a model gets half its context."""

    def __init__(
        self, folder: Path, capacity: int = 10, *, write: Callable[..., Any] = scripted.write
    ) -> None:
        self.folder, self.capacity, self._write = folder, capacity, write
        self.sizes: dict[str, int] = {}
        self.contexts: dict[str, int] = {}
        self.scripts: dict[str, dict[str, Any]] = {}
        self.planned: list[str] = []
        self.default = self.add("one")

    def add(self, name: str, size: int = 4, context: int = 4096, **script: Any) -> AvailableModel:
        path = self.folder / f"{name}.gguf"
        fields = {"reply": f"I am {name}.", "rules": RULES, "token_ms": 3} | script
        self._write(path, **fields)
        self.sizes[str(path)], self.contexts[str(path)], self.scripts[str(path)] = size, context, fields
        return AvailableModel(name, str(path), path)

    def find(self, name: str) -> AvailableModel:
        path = self.folder / f"{name.partition(':')[0]}.gguf"
        if str(path) not in self.sizes:
            raise ModelNotFound(f"{name} is not on this machine.", hint=f"edgechat pull {name}")
        return AvailableModel(name, str(path), path)

    def card(self, known: AvailableModel) -> ModelCard:
        return ModelCard(id=known.id, created=1)

    def cards(self) -> list[ModelCard]:
        return [ModelCard(id=Path(path).stem, created=1) for path in self.sizes]

    def prepare(self, model: str, *, staying: Sequence[LoadPlan], leaving: Sequence[LoadPlan]) -> LoadPlan:
        self.planned.append(Path(model).stem)
        free = self.capacity - sum(self.sizes[one.model_path] for one in staying)
        if free * 2 < self.sizes[model]:
            raise DoesNotFit(f"{model} does not fit.")
        return LoadPlan(
            model_path=model,
            model_name=Path(model).stem,
            context=self.contexts[model] // (1 if free >= self.sizes[model] else 2),
            n_seq_max=4,
            projector=EYES if self.scripts[model].get("sees") else None,
        )


def worker(
    idle_seconds: float,
    plan: LoadPlan,
    on_note: Callable[[str], None],
    on_state: Callable[[EngineState], None],
) -> EngineSupervisor:
    """Return an engine for a plan, in a worker: a pool's `MakeEngine`."""
    policy = cache_policy(None)
    return EngineSupervisor(
        plan, idle_seconds=idle_seconds, cache_policy=policy, on_state=on_state, on_note=on_note
    )


class PretendedMachine(Machine):
    """A machine whose engines are not processes. Those that are slow or `held` continue once `go` is set."""

    def __init__(self, folder: Path = Path("models"), capacity: int = 10) -> None:
        self.go = asyncio.Event()
        self.released: set[str] = set()
        """Requests that may continue before `go` is set."""
        self.taken: dict[str, float] = {}
        self.most = 0
        self.engines: dict[str, Pretender] = {}
        super().__init__(folder, capacity, write=lambda path, **script: None)
        self._capacity_planned = capacity

    def prepare(self, model: str, *, staying: Sequence[LoadPlan], leaving: Sequence[LoadPlan]) -> LoadPlan:
        self._capacity_planned = self.capacity
        return super().prepare(model, staying=staying, leaving=leaving)

    def engine(
        self, plan: LoadPlan, on_note: Callable[[str], None], on_state: Callable[[EngineState], None]
    ) -> Pretender:
        assert plan.model_name not in self.engines, "a model has one engine"
        self.engines[plan.model_name] = Pretender(self, plan, on_state)
        return self.engines[plan.model_name]

    def script(self, name: str) -> dict[str, Any]:
        return self.scripts[str(self.find(name).path)]

    def take(self, plan: LoadPlan) -> None:
        """Give a model its memory. One that crashed loads again when alone, in whatever memory there is."""
        path = plan.model_path
        assert plan.model_name not in self.taken
        needed = self.sizes[path] * plan.context / self.contexts[path]
        assert not self.taken or sum(self.taken.values(), needed) <= self._capacity_planned, self.taken
        self.taken[plan.model_name] = needed
        self.most = max(self.most, len(self.taken))


class Pretender(FakeEngine):
    """An engine that takes memory from its machine while its model is loaded, and can die."""

    _state = EngineState.STOPPED
    _ends = False

    def __init__(
        self, machine: PretendedMachine, plan: LoadPlan, on_state: Callable[[EngineState], None]
    ) -> None:
        super().__init__()
        self.plan, self._machine, self._on_state = plan, machine, on_state

    @property  # type: ignore[override]
    def state(self) -> EngineState:
        return self._state

    @state.setter
    def state(self, state: EngineState) -> None:
        if state is self._state:
            return
        if self._state is EngineState.STOPPED:
            self._machine.take(self.plan)
        elif state is EngineState.STOPPED:
            del self._machine.taken[self.plan.model_name]
        self._state = state
        self._on_state(state)

    @property
    def script(self) -> dict[str, Any]:
        return self._machine.script(self.plan.model_name)

    def die(self) -> None:
        self.has_crashed, self.state = True, EngineState.STOPPED

    async def _load(self, closing: asyncio.Event, on_progress: Callable[[float], None] | None) -> None:
        error = self.script.get("load_error")
        self.load_error = LoadFailed(error) if error else None
        if on_progress is not None and self.script.get("held"):
            on_progress(0.25)
            await self._wait("", 0.0)
        await super()._load(closing, on_progress)

    async def stream(
        self,
        request: ChatRequest,
        on_progress: Callable[[float], None] | None = None,
        *,
        may_load: bool = True,
    ) -> AsyncGenerator[RequestEvent, None]:
        slow = request.messages[-1].content == "slow"
        script: list[Step] = ["a", 0.0, LONG[1:]] if slow else [*self.script["reply"]]
        self._scripts = [script]
        async with aclosing(super().stream(request, on_progress, may_load=may_load)) as events:
            async for event in events:
                if self.state is EngineState.STOPPED and not self.closed:
                    raise EngineCrashed("It died.")
                yield event

    async def _wait(self, request_id: str, seconds: float) -> None:
        machine, was = self._machine, self.state
        while not (self._closing.is_set() or machine.go.is_set() or request_id in machine.released):
            await asyncio.sleep(0)
            if self.state is not was and not self.closed:
                raise EngineCrashed("It died.")

    @contextmanager
    def holding(self) -> Iterator[None]:
        assert not self._ends, "nobody gets to an engine that ends"
        with super().holding():
            yield

    async def unload(self) -> None:
        """Unload, unless in use. An engine whose unloading is interrupted must not be used again."""
        if not self._users:
            self._ends = True
            if self.script.get("held"):
                with suppress(EngineCrashed):
                    await self._wait("", 0.0)
            self.state, self._ends = EngineState.STOPPED, False


class Inline(ThreadPoolExecutor):
    """Runs calls at once instead of in threads, so that nothing depends on their speed."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future
