"""Whatever comes in which order, memory is never exceeded, everybody gets an answer, and nothing is left."""

import asyncio
from collections import Counter

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from edgechat.base.errors import DoesNotFit, Draining, EngineCrashed, EngineGone, LoadFailed, QueueFull
from edgechat.engine.protocol import EngineState
from edgechat.engine.types import ChatRequest, Delta, Message
from edgechat.server.pool import residency
from edgechat.server.pool.pool import Pool
from tests.properties import examples
from tests.server.pool.machine import LONG, Inline, PretendedMachine

SIZES = {"one": 3, "two": 4, "three": 3, "large": 10, "never": 25}
"""The first three fit together; `large` alone, or with half of its context; `never` not even with that."""
MODELS = st.sampled_from([*SIZES, "one", "two"])
ROUNDS = st.sampled_from([0, 1, 2, 3, 5, 8, 40])
"""How often others go on before the next thing happens: no clock, for the machine's speed must not matter."""


class Requests(RuleBasedStateMachine):
    """Requests come, go on and leave; engines die, do not load, go idle and are unloaded."""

    def __init__(self):
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.loop.set_default_executor(Inline())
        self.machine = PretendedMachine()
        for name, size in SIZES.items():
            self.machine.add(name, size, held=False)
        self.pool = Pool(
            self.machine.engine, self.machine.prepare, self.machine, most_waiting=1, patience=600
        )
        self.busy = []
        self.pool.on_busy = self.busy.append
        self.asked = {}
        self.others = []
        self.outcomes = Counter()
        self.least = self.machine.capacity

    @initialize(share=st.sampled_from([0.0, 1.0]))
    def claim(self, share):
        """Let busy models take no new requests where another one waits, or always."""
        self.share, residency.CLAIM_SHARE = residency.CLAIM_SHARE, share

    def turn(self, rounds):
        async def others():
            for _ in range(rounds):
                await asyncio.sleep(0)

        self.loop.run_until_complete(others())

    @rule(model=MODELS, places=st.integers(1, 3), text=st.sampled_from(["hi", "slow"]), rounds=ROUNDS)
    def ask(self, model, places, text, rounds):
        name = f"r{len(self.asked)}"
        self.asked[name] = self.loop.create_task(self._ask(name, model, places, text))
        self.turn(rounds)

    async def _ask(self, name, model, places, text):
        outcome = "answered"
        try:
            async with self.pool.serve(model, places) as served:
                request = ChatRequest(id=name, messages=(Message("user", text),))
                said = [event.text async for event in served.stream(request) if isinstance(event, Delta)]
                assert "".join(said) == (LONG if text == "slow" else f"I am {model}.")
        except (QueueFull, DoesNotFit, LoadFailed, EngineCrashed, EngineGone) as error:
            outcome = type(error).__name__
            assert outcome != "DoesNotFit" or SIZES[model] > self.least
        self.outcomes[outcome] += 1

    def _running(self):
        return sorted(name for name, task in self.asked.items() if not task.done())

    @precondition(_running)
    @rule(leaves=st.booleans(), data=st.data(), rounds=ROUNDS)
    def end(self, leaves, data, rounds):
        """Let a slow request come to its end, or any one leave."""
        name = data.draw(st.sampled_from(self._running()))
        if leaves:
            self.asked[name].cancel()
        else:
            self.machine.released.add(name)
        self.turn(rounds)

    def _engines(self):
        return [one for one in self.machine.engines.values() if one.state is EngineState.READY]

    @precondition(_engines)
    @rule(dies=st.booleans(), data=st.data(), rounds=ROUNDS)
    def stop(self, dies, data, rounds):
        """Let an engine die, or go idle unless somebody has it or its end would take."""
        engine = data.draw(st.sampled_from(self._engines()))
        if dies:
            engine.die()
        elif not engine.script["held"]:
            self.loop.run_until_complete(engine.unload())
        self.turn(rounds)

    @rule(model=MODELS, rounds=ROUNDS)
    def unload(self, model, rounds):
        self.others.append(self.loop.create_task(self.pool.unload(model)))
        self.turn(rounds)

    @rule(model=MODELS, error=st.sampled_from(["", "no such weights"]), held=st.booleans())
    def change(self, model, error, held):
        """Let a model load or not, and its load and its end take until `release`."""
        self.machine.script(model).update(load_error=error, held=held)

    @rule(rounds=ROUNDS)
    def release(self, rounds):
        self.machine.go.set()
        self.turn(rounds)
        self.machine.go.clear()

    @rule(capacity=st.integers(5, 12))
    def change_capacity(self, capacity):
        """Let other programs take memory or give it back."""
        self.machine.capacity = capacity
        self.least = min(self.least, capacity)

    @invariant()
    def it_tells_the_truth(self):
        loaded = {card.id for card in self.pool.names() if card.loaded}
        assert loaded == {one.plan.model_name for one in self._engines()} <= set(self.machine.taken)
        assert self.busy == [True, False] * (len(self.busy) // 2) + [True] * (len(self.busy) % 2)
        assert self.busy[-1:] != [True] or any(not task.done() for task in self.asked.values())
        assert self.pool.state[0] in ("ready", "loading", "degraded")

    def teardown(self):
        try:
            self.loop.run_until_complete(self._end())
        finally:
            residency.CLAIM_SHARE = self.share
            self.loop.close()

    async def _settled(self, *tasks):
        for _ in range(5_000):
            if all(task.done() for task in tasks):
                return
            await asyncio.sleep(0)
        raise AssertionError("somebody waits for ever")

    async def _end(self):
        self.machine.go.set()
        await self._settled(*self.asked.values(), *self.others)
        for task in (*self.asked.values(), *self.others):
            self.outcomes["left"] += task.cancelled()
            if not task.cancelled():
                task.result()
        assert self.busy[-1:] != [True]
        self.machine.capacity = 10
        for script in self.machine.scripts.values():
            script["load_error"] = ""
        for model in SIZES:
            last = asyncio.ensure_future(self._ask("last", model, 3, "hi"))
            await self._settled(last)
            last.result()
            assert (model in self.machine.taken) == (model != "never")
            await self.pool.unload(model)
        assert self.machine.taken == {}
        assert await self.pool.drain(0)
        with pytest.raises(Draining):
            async with self.pool.serve("one"):
                pass
        await self.pool.close()
        SEEN.update(self.outcomes)
        SEEN["together"] = max(SEEN["together"], self.machine.most)


SEEN = Counter()


@pytest.mark.slow
def test_memory_is_never_exceeded_and_nothing_is_left():
    SEEN.clear()
    run_state_machine_as_test(Requests, settings=settings(max_examples=examples(60), stateful_step_count=60))
    assert SEEN.keys() >= {"answered", "left", "QueueFull", "DoesNotFit", "LoadFailed", "EngineCrashed"}
    assert SEEN["together"] == 3
