"""The pool over engines that only pretend: whatever comes in which order, memory is never exceeded."""

import asyncio
import contextlib
import random
from pathlib import Path

import pytest

from edgechat.base.errors import (
    DoesNotFit,
    Draining,
    EngineCrashed,
    EngineError,
    EngineGone,
    LoadFailed,
    QueueFull,
)
from edgechat.engine.protocol import EngineState
from edgechat.engine.types import (
    ChatRequest,
    Delta,
    Finished,
    Timings,
    Usage,
)
from edgechat.planner.plan import LoadPlan
from edgechat.server.pool.available_models import AvailableModel
from edgechat.server.pool.pool import Pool
from tests.fakes import MODEL

CAPACITY = 10
ARRIVALS = 2_000
"""Requests come within so many rounds of the event loop."""
SIZES = {"a": 3, "b": 4, "c": 6, "d": 10, "e": 11}
"""`a` and two of the next ones fit together in some pairs; `d` only alone; `e` never."""


class Pretender:
    """An engine that takes memory while it is loaded, and now and then dies or does not load."""

    def __init__(self, plan, house, on_state):
        self.plan = plan
        self.model = None
        self.state = EngineState.STOPPED
        self.has_crashed = False
        self.log_path = None
        self.users = 0
        self._house, self._on_state = house, on_state
        self._starting = asyncio.Lock()

    async def start(self, on_progress=None):
        async with self._starting:
            if self.state is EngineState.READY:
                assert self.model is not None
                return self.model
            self._house.take(self.plan.model_name)
            self._become(EngineState.LOADING)
            try:
                await self._house.some_time()
                if self._house.random.random() < 0.1:
                    raise LoadFailed("It does not want to.")
            except BaseException:
                self._house.give(self.plan.model_name)
                self._become(EngineState.STOPPED)
                raise
            self.has_crashed = False
            self.model = MODEL
            self._become(EngineState.READY)
            return self.model

    async def stream(self, request, *, may_load):
        if self.state is EngineState.READY and self._house.random.random() < 0.05:
            self._die()
        if self.state is not EngineState.READY:
            assert not may_load
            raise EngineGone("It died before.")
        for n in range(3):
            await self._house.some_time()
            if self.state is not EngineState.READY:
                raise EngineCrashed("It died.")
            if self._house.random.random() < 0.02:
                self._die()
                raise EngineCrashed("It died.")
            yield Delta(request.id, self.plan.model_name, False, n + 1)
        yield Finished(request.id, "stop", Usage(1, 0, 3), Timings(1.0, 1.0, 1.0))

    async def embed(self, request_id, texts, *, may_load):
        raise NotImplementedError

    async def inspect(self):
        return None

    async def persist(self):
        await self._house.some_time()

    @contextlib.contextmanager
    def holding(self):
        self.users += 1
        try:
            yield
        finally:
            self.users -= 1

    async def unload(self):
        await self._house.some_time()
        if not self.users and self.state is EngineState.READY:
            self._house.give(self.plan.model_name)
            self._become(EngineState.STOPPED)

    async def close(self):
        if self.state is EngineState.READY:
            self._house.give(self.plan.model_name)
        self._become(EngineState.STOPPED)

    def _die(self):
        self._house.give(self.plan.model_name)
        self.has_crashed = True
        self._become(EngineState.STOPPED)

    def _become(self, state):
        self.state = state
        self._on_state(state)


class House:
    """The machine: what is taken of it."""

    default = AvailableModel("a", "a", Path("a"))

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.taken = {}
        self.most = 0

    def take(self, model):
        assert model not in self.taken
        self.taken[model] = SIZES[model]
        self.most = max(self.most, len(self.taken))
        assert sum(self.taken.values()) <= CAPACITY, self.taken

    def give(self, model):
        del self.taken[model]

    async def some_time(self, most=3):
        """Let others go on so many times: no clock, for how busy the machine is must not matter."""
        for _ in range(self.random.randrange(most + 1)):
            await asyncio.sleep(0)

    def find(self, name):
        return AvailableModel(name, name, Path(name))

    def card(self, known):
        raise NotImplementedError

    def cards(self):
        return []

    def prepare(self, model, *, staying, leaving):
        if sum(SIZES[one.model_name] for one in staying) + SIZES[model] > CAPACITY:
            raise DoesNotFit(f"{model} does not fit.")
        return LoadPlan(model_path=model, model_name=model, context=256, n_seq_max=2)

    def engine(self, plan, on_note, on_state):
        return Pretender(plan, self, on_state)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
async def test_memory_is_never_exceeded_and_nothing_is_left(seed):
    house = House(seed)
    pool = Pool(house.engine, house.prepare, house, most_waiting=6, patience=5)
    outcomes = {}

    async def ask(n):
        model = house.random.choice("aaabbccde")
        await house.some_time(ARRIVALS)
        async with pool.serve(model) as served:
            request = ChatRequest(id=str(n))
            words = [event.text async for event in served.stream(request) if isinstance(event, Delta)]
            assert words == [model] * 3

    async def asked(n):
        task = asyncio.create_task(ask(n))
        if n % 6 == 0:
            await house.some_time(ARRIVALS)
            task.cancel()
        try:
            await task
            outcome = "answered"
        except (EngineError, QueueFull, DoesNotFit, asyncio.CancelledError) as error:
            outcome = type(error).__name__
        outcomes[outcome] = outcomes.get(outcome, 0) + 1

    await asyncio.gather(*(asked(n) for n in range(150)))
    assert sum(outcomes.values()) == 150
    assert outcomes["answered"] > 0
    assert outcomes["DoesNotFit"] > 0
    assert house.most == 2
    for lane in pool._slots.values():
        assert (lane.taken, lane.held, lane.claimed, lane.loading) == (0, 0, False, None)
    assert await pool.drain(1)
    with pytest.raises(Draining):
        async with pool.serve("a"):
            pass
    await pool.close()
    assert house.taken == {}
