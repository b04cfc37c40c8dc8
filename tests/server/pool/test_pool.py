"""The pool with real workers: loads on demand and in turn, room, queues, crashes and the end."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from edgechat.base import paths
from edgechat.base.errors import (
    DoesNotFit,
    Draining,
    EngineCrashed,
    EngineGone,
    LoadFailed,
    ModelNotFound,
    QueueFull,
    WrongKind,
)
from edgechat.engine.types import ChatRequest, Delta, Finished, Message
from edgechat.engine.worker.connection import WorkerConnection
from edgechat.engine.worker.supervisor import EngineSupervisor
from edgechat.planner.plan import LoadPlan
from edgechat.server.factory import cache_policy
from edgechat.server.pool.available_models import AvailableModel, ModelCard
from edgechat.server.pool.model_slot import ModelSlot
from edgechat.server.pool.pool import Pool
from tests import scripted
from tests.engine.worker.test_supervisor import workers

pytestmark = pytest.mark.slow

LONG = "a reply that takes its time " * 8
TOO_LARGE = 13
"""For a machine of 10 beside a model of 4: not even with half of its context. Alone it has that."""
RULES = [{"when": "slow", "reply": LONG}]
Made = Callable[..., Pool]


class Machine:
    """Scripted models on a machine that carries loads of so many units together."""

    def __init__(self, folder, capacity=10):
        self.folder = folder
        self.capacity = capacity
        self.sizes = {}
        self.contexts = {}
        self.planned = []
        self.default = self.add("one")

    def add(self, name, size=4, context=4096, **script):
        path = self.folder / f"{name}.gguf"
        fields = {"reply": f"I am {name}.", "rules": RULES, "token_ms": 3} | script
        scripted.write(path, **fields)
        self.sizes[str(path)], self.contexts[str(path)] = size, context
        return AvailableModel(name, str(path), path)

    def find(self, name):
        path = self.folder / f"{name.partition(':')[0]}.gguf"
        if not path.exists():
            raise ModelNotFound(f"{name} is not on this machine.", hint=f"edgechat pull {name}")
        return AvailableModel(name, str(path), path)

    def card(self, known):
        return ModelCard(id=known.id, created=1)

    def cards(self):
        return [ModelCard(id=Path(path).name.split(".")[0], created=1) for path in self.sizes]

    def prepare(self, model, *, staying, leaving):
        """Where little is left but enough for half of its size, a model gets half of its context."""
        self.planned.append(Path(model).name.split(".")[0])
        free = self.capacity - sum(self.sizes[one.model_path] for one in staying)
        if free * 2 < self.sizes[model]:
            raise DoesNotFit(f"{model} does not fit.")
        context = self.contexts[model] // (1 if free >= self.sizes[model] else 2)
        return LoadPlan(model_path=model, model_name=model, context=context, n_seq_max=4)


@pytest.fixture
def machine(tmp_path, scripted_workers):
    return Machine(tmp_path)


@pytest.fixture
async def make(machine):
    pools = []

    def pool(idle_seconds=600.0, **changes):
        pools.append(Pool(partial(_engine, idle_seconds), machine.prepare, machine, **changes))
        return pools[-1]

    yield pool
    for one in pools:
        await one.close()


def _engine(idle_seconds, plan, on_note, on_state):
    return EngineSupervisor(
        plan, idle_seconds=idle_seconds, cache_policy=cache_policy(None), on_state=on_state, on_note=on_note
    )


async def answer(served, text="hi", name="r"):
    request = ChatRequest(id=name, messages=(Message("user", text),))
    return "".join([event.text async for event in served.stream(request) if isinstance(event, Delta)])


async def said(pool, model="", text="hi", name="r"):
    async with pool.serve(model) as served:
        return await answer(served, text, name)


async def load(pool, model=""):
    async with pool.serve(model):
        pass


async def until(holds, seconds=10.0):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


async def test_it_tells_when_it_begins_and_ends_to_be_busy(make, machine):
    pool, told = make(), list[bool]()
    pool.on_busy = told.append
    machine.add("two")
    async with pool.serve("one"):
        assert told == [True]
        with pytest.raises(ModelNotFound):
            await load(pool, "nosuch")
        await load(pool, "two")
        assert told == [True]
    assert told == [True, False]
    async with pool.serve("one"):
        pool.refuse()
    assert told == [True, False, True]  # no work is begun while the server ends


def loaded(pool):
    return {card.id for card in pool.names() if card.loaded}


async def values(pool):
    """Return each sample by its name and the values of its labels, in the order of their names."""
    text = (await pool.metrics_text()).decode()
    return {
        (
            sample.name.removeprefix("edgechat_"),
            *(value for _, value in sorted(sample.labels.items())),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_models_are_loaded_when_they_are_asked_for(make, machine):
    machine.add("two")
    pool = make()
    assert workers() == []
    assert pool.state == ("ready", "No model is loaded; the next request loads one.")
    assert await said(pool) == "I am one."
    assert loaded(pool) == {"one"}
    assert await said(pool, "two") == "I am two."
    assert await said(pool, "default") == "I am one."
    assert loaded(pool) == {"one", "two"}
    assert len(workers()) == 2
    assert pool.state == ("ready", "one and two are loaded.")
    # Both were planned once alone, and the second one beside the first.
    assert machine.planned == ["one", "two", "two"]


async def test_whether_a_model_sees_is_known_when_it_is_loaded(make):
    pool = make()
    assert pool.card("one").sees is None
    async with pool.serve("one") as served:
        assert pool.card("one").sees is served.model.sees is False
        assert served._engine.model is not None
        served._engine.model = msgspec.structs.replace(served._engine.model, sees=True)
        assert pool.card("one").sees is True


async def test_what_is_not_here_is_not_found(make):
    with pytest.raises(ModelNotFound, match="not on this machine") as error:
        await said(make(), "three")
    assert "pull" in (error.value.hint or "")


async def test_one_file_is_loaded_once_by_whatever_name(make, machine):
    pool = make()
    for name in ("one:q4", "", "one", "one:q4"):
        async with pool.serve(name) as served:
            assert served.name == "one:q4"
    assert machine.planned == ["one"]
    assert len(workers()) == 1


async def test_first_requests_at_once_share_one_load(make, machine):
    machine.add("one", load_ms=200)
    pool = make()
    answers = await asyncio.gather(*(said(pool, name=str(n)) for n in range(8)))
    assert answers == ["I am one."] * 8
    assert machine.planned == ["one"]
    assert (await values(pool))["loads_total", "one"] == 1


async def test_a_model_that_does_not_fit_beside_an_idle_one_takes_its_place(make, machine):
    machine.add("large", size=10)
    machine.add("two")
    pool = make()
    await said(pool)
    await said(pool, "two")
    assert await said(pool, "large") == "I am large."
    assert loaded(pool) == {"large"}
    assert len(workers()) == 1


async def test_of_the_idle_ones_that_goes_which_was_not_used_for_longest(make, machine):
    machine.add("two")
    machine.add("three", size=6)
    pool = make()
    await said(pool)
    await said(pool, "two")
    await said(pool)
    assert await said(pool, "three") == "I am three."
    assert loaded(pool) == {"one", "three"}


async def test_a_model_that_would_be_the_lesser_for_it_has_the_other_one_unloaded(make, machine):
    machine.add("wide", size=9)  # beside the first: half of its context
    pool = make()
    await said(pool)
    async with pool.serve("wide") as served:
        assert served.plan.context == 4096
    assert loaded(pool) == {"wide"}


async def test_a_client_can_have_a_model_unloaded_that_is_not_in_use(make, machine):
    pool = make()
    assert await pool.unload("one") == "one"
    assert machine.planned == []
    async with pool.serve("one") as served:
        await pool.unload("one")
        assert await answer(served) == "I am one."
    await pool.unload("one")
    assert not loaded(pool)
    assert workers() == []
    assert await said(pool, "one") == "I am one."
    with pytest.raises(ModelNotFound):
        await pool.unload("nosuch")


async def test_who_leaves_while_another_model_is_unloaded_leaves_nothing_half_done(
    make, machine, monkeypatch
):
    machine.add("large", size=TOO_LARGE)
    pool = make()
    await said(pool)
    unloading, closed = asyncio.Event(), asyncio.Event()
    close = WorkerConnection.close

    async def slowly(life):
        unloading.set()
        await asyncio.sleep(0.2)
        await close(life)
        closed.set()

    monkeypatch.setattr(WorkerConnection, "close", slowly)
    leaving = asyncio.create_task(said(pool, "large"))
    await unloading.wait()
    leaving.cancel()
    # Both at once, neither of which knows how far the unloading is.
    answers = await asyncio.gather(said(pool), said(pool, "large"))
    assert closed.is_set()
    assert answers == ["I am one.", "I am large."]
    assert len(workers()) == 1
    assert pool.state[0] == "ready"


async def test_a_request_whose_engine_has_died_waits_for_its_turn_like_any_other(make, machine):
    machine.add("large", size=10)
    pool = make()
    async with pool.serve("one") as served:
        workers()[0].kill()
        await until(lambda: not loaded(pool))
        other = asyncio.create_task(said(pool, "large", "slow"))
        await until(lambda: loaded(pool) == {"large"})
        answers = asyncio.gather(answer(served, name="a"), answer(served, name="b"))
        assert await answers == ["I am one."] * 2
        assert other.done(), "they do not fit together"
        assert loaded(pool) == {"one"}
    found = await values(pool)
    assert found["loads_total", "one"] == 2
    assert found["finished_total", "one", "stop"] == 2


async def test_a_request_is_tried_no_third_time(make, monkeypatch):
    pool = make()
    async with pool.serve() as served:
        monkeypatch.setattr(ModelSlot, "is_ready", True)  # whatever its engine says
        workers()[0].kill()
        await until(lambda: pool.state[0] == "degraded")
        with pytest.raises(EngineGone):
            await answer(served)
    assert (await values(pool))["finished_total", "one", "failed"] == 1


async def test_what_fits_nowhere_drives_nobody_out(make, machine):
    machine.add("huge", size=21)
    pool = make()
    await said(pool)
    with pytest.raises(DoesNotFit):
        await said(pool, "huge")
    assert loaded(pool) == {"one"}
    assert pool.state[0] == "ready"


async def ends_of(pool, machine, *, claimed):
    """Return who is answered first: one that takes long, a model for which there is no room, one beside."""
    machine.add("large", size=TOO_LARGE)
    ends = []

    async def ask(model, text, name):
        async with pool.serve(model) as served:
            await answer(served, text, name)
            ends.append(name)

    first = asyncio.create_task(ask("one", "slow", "first"))
    await until(lambda: loaded(pool) == {"one"})
    large = asyncio.create_task(ask("large", "hi", "large"))
    await until(lambda: machine.planned.count("large") == 2)
    await until(lambda: pool._slots["one"].claimed is claimed)
    late = asyncio.create_task(ask("one", "hi", "late"))
    await asyncio.gather(first, large, late)
    return ends


async def test_who_waits_for_room_holds_up_nobody(make, machine):
    assert await ends_of(make(), machine, claimed=False) == ["late", "first", "large"]


async def test_at_the_end_of_the_patience_busy_models_take_no_new_requests(make, machine, monkeypatch):
    monkeypatch.setattr("edgechat.server.pool.residency.CLAIM_SHARE", 1.0)
    assert await ends_of(make(), machine, claimed=True) == ["first", "large", "late"]


async def test_a_model_waits_for_room_only_so_long(make, machine):
    machine.add("one", token_ms=20)
    machine.add("large", size=9)
    pool = make(patience=0.1)
    busy = asyncio.create_task(said(pool, text="slow"))
    await until(lambda: loaded(pool) == {"one"})
    machine.capacity = 8  # 4 of it beside the first one
    with pytest.raises(QueueFull, match="does not fit into memory together with one") as error:
        await said(pool, "large")
    assert error.value.seconds > 0
    assert not busy.done()
    busy.cancel()


async def test_beside_a_busy_model_less_is_taken_at_once(make, machine):
    machine.add("one", token_ms=20)
    machine.add("wide", size=9)  # beside the first: half of its context
    pool = make(patience=600)
    busy = asyncio.create_task(said(pool, text="slow"))
    await until(lambda: loaded(pool) == {"one"})
    async with pool.serve("wide") as served:
        assert served.plan.context == 2048
    assert not busy.done()
    assert await said(pool, name="beside") == "I am one."
    busy.cancel()


async def test_beyond_the_queue_requests_are_refused_at_once(make, machine):
    machine.add("one", token_ms=10)
    pool = make(most_waiting=2)
    await load(pool)
    running = [asyncio.create_task(said(pool, text="slow", name=str(n))) for n in range(6)]
    await until(lambda: pool._slots["one"].taken == 6)
    with pytest.raises(QueueFull, match="The queue of one is full: it has 6 requests") as error:
        await said(pool, name="one too many")
    assert not any(task.done() for task in running), "it was not waited for them"
    assert 1 <= error.value.seconds <= 120
    while (found := await values(pool))["running", "one"] < 4:
        await asyncio.sleep(0.02)
    assert found["running", "one"] == 4
    assert found["waiting", "one"] == 2
    for task in running:
        task.cancel()
    await asyncio.wait(running)
    assert await said(pool, name="after") == "I am one."


async def test_the_background_leaves_places_for_interactive_requests(make, machine):
    machine.add("one", token_ms=10)
    pool = make(most_waiting=8)
    await load(pool)

    async def behind(name):
        async with pool.serve(priority="background") as served:
            request = ChatRequest(id=name, messages=(Message("user", "slow"),), priority="background")
            return "".join([event.text async for event in served.stream(request) if isinstance(event, Delta)])

    tasks = [asyncio.create_task(behind(str(n))) for n in range(20)]
    await until(lambda: sum(task.done() for task in tasks) == 14)
    refused = [task.exception() for task in tasks if task.done()]
    assert all(isinstance(error, QueueFull) and "background" in error.message for error in refused)
    answers = await asyncio.gather(*(said(pool, name=f"asked {n}") for n in range(6)))
    assert answers == ["I am one."] * 6
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert pool._slots["one"].in_background == 0


async def test_choices_take_a_place_each(make, machine):
    pool = make(most_waiting=0)
    async with pool.serve("", places=8):  # alone it is let in, however many
        with pytest.raises(QueueFull):
            await said(pool)
    async with pool.serve("", places=3):
        assert await said(pool) == "I am one."
        with pytest.raises(QueueFull):
            async with pool.serve("", places=2):
                pass


def test_when_to_try_again_follows_from_how_fast_requests_ended(monkeypatch):
    now = 1000.0
    monkeypatch.setattr("edgechat.server.pool.model_slot.time.monotonic", lambda: now)
    lane = ModelSlot(AvailableModel("one", "one", Path("one")))
    unknown = lane.seconds_until_free()
    assert unknown > 0
    for _ in range(10):
        with lane.admitted(1, 0):
            now += 3.0
    assert 3 <= lane.seconds_until_free() <= 4
    assert 6 <= lane.seconds_until_free(2) <= 8
    now += 1000
    assert lane.seconds_until_free() == unknown


async def test_an_idle_model_gives_its_memory_back(make):
    pool = make(idle_seconds=0.2)
    async with pool.serve():
        await asyncio.sleep(0.5)
        assert loaded(pool) == {"one"}, "who is served keeps it"
    await until(lambda: not loaded(pool))
    assert workers() == []
    assert pool.state[0] == "ready"
    assert await said(pool) == "I am one."
    assert (await values(pool))["crashes_total", "one"] == 0


async def test_a_crash_is_told_and_the_next_request_works(make, machine):
    machine.add("one", token_ms=30)  # however long the other one takes to load, these are not at their end
    machine.add("two")
    pool = make()
    beside = asyncio.create_task(said(pool, "two", "slow"))
    streams = [asyncio.create_task(said(pool, "one", "slow", str(n))) for n in range(3)]
    await until(lambda: loaded(pool) == {"one", "two"})
    await asyncio.sleep(0.2)
    (victim,) = [one for one in workers() if await _serves(pool, "one", one)]
    victim.kill()
    results = await asyncio.gather(*streams, return_exceptions=True)
    assert [type(one) for one in results] == [EngineCrashed] * 3
    state, sentence = pool.state
    assert state == "degraded"
    assert "one has crashed" in sentence
    assert await said(pool) == "I am one."
    assert pool.state[0] == "ready"
    assert await beside == LONG, "the other model heard nothing of it"
    found = await values(pool)
    assert found["crashes_total", "one"] == 1
    assert found["finished_total", "one", "failed"] == 3
    assert found["loads_total", "one"] == 2


async def _serves(pool, model, process):
    engine = pool._slots[model].engine
    assert isinstance(engine, EngineSupervisor)
    assert engine._worker is not None
    return engine._worker._process.pid == process.pid


async def test_without_the_default_it_is_degraded_until_that_one_loads(make, machine):
    machine.add("one", load_error="no such weights")
    machine.add("two")
    machine.add("broken", load_error="nor such ones")
    pool = make()
    with pytest.raises(LoadFailed, match="no such weights"):
        await said(pool)
    trouble = ("degraded", "one could not be loaded: no such weights")
    assert pool.state == trouble
    await said(pool, "two")
    assert pool.state == trouble, "that another one loads does not help it"
    machine.add("one")
    await said(pool)
    assert pool.state[0] == "ready"
    with pytest.raises(LoadFailed):
        await said(pool, "broken")
    assert pool.state[0] == "ready", "what a client names and does not load is no trouble of the server's"
    found = await values(pool)
    assert (found["load_failures_total", "one"], found["load_failures_total", "broken"]) == (1, 1)


async def test_a_crash_is_not_forgotten_because_another_model_loads(make, machine):
    machine.add("two")
    notes = []
    pool = make(on_note=notes.append)
    await said(pool)
    workers()[0].kill()
    await until(lambda: pool.state[0] == "degraded")
    (note,) = notes
    assert str(paths.log_dir()) in note
    await said(pool, "two")
    assert "one has crashed" in pool.state[1]
    await said(pool)
    assert pool.state == ("ready", "one and two are loaded.")
    await pool.close()
    assert notes == [note], "to be closed is no crash"


async def test_while_it_loads_the_state_says_so(make, machine):
    machine.add("one", load_ms=1000)
    pool = make()
    starting = asyncio.create_task(load(pool))
    await until(lambda: "one is being loaded (" in pool.state[1])
    assert pool.state[0] == "loading"
    await until(lambda: pool.state[1] > "one is being loaded (3")
    await starting
    assert pool.state == ("ready", "one is loaded.")


async def test_a_load_that_nobody_waits_for_any_more_stops(make, machine):
    machine.add("one", load_ms=60_000)
    pool = make()
    impatient = [asyncio.create_task(said(pool, name=str(n))) for n in range(2)]
    await until(lambda: bool(workers()))
    (worker,) = workers()
    impatient[0].cancel()
    await asyncio.wait(impatient, timeout=0.2)
    assert worker.is_running(), "the other one still waits"
    impatient[1].cancel()
    await until(lambda: not workers())
    machine.add("one")
    assert await said(pool) == "I am one."


async def test_draining_lets_who_is_here_finish(make, machine):
    pool = make()
    running = asyncio.create_task(said(pool, text="slow"))
    await until(lambda: loaded(pool) == {"one"})
    draining = asyncio.create_task(pool.drain(30))
    await asyncio.sleep(0.05)
    with pytest.raises(Draining):
        await said(pool)
    assert await draining
    assert running.done() or await running
    assert await running == LONG


async def test_what_takes_too_long_to_drain_is_cancelled_with_what_it_has(make, machine):
    machine.add("one", token_ms=20)
    machine.add("two", load_ms=60_000)
    pool = make()
    events = []

    async def ask():
        async with pool.serve() as served:
            request = ChatRequest(id="r", messages=(Message("user", "slow"),))
            events.extend([event async for event in served.stream(request)])

    running = asyncio.create_task(ask())
    await until(lambda: loaded(pool) == {"one"})
    loading = asyncio.create_task(said(pool, "two"))
    await asyncio.sleep(0.3)
    assert not await pool.drain(0.3)
    await pool.close()
    await running
    assert isinstance(events[-1], Finished)
    assert events[-1].reason == "cancelled"
    with pytest.raises(Draining):
        await loading
    assert workers() == []


async def test_metrics_count_exactly(make, machine):
    pool = make()
    for n in range(3):
        await said(pool, name=str(n))
    async with pool.serve() as served:
        stream = served.stream(ChatRequest(id="left", messages=(Message("user", "slow"),)))
        async for event in stream:
            if isinstance(event, Delta) and event.tokens == 10:
                break
        await stream.aclose()
    pool.metrics.request("/v1/completions", 200, "one")
    pool.metrics.request("/v1/completions", 200, "one")
    pool.metrics.request("/v1/completions", 404, "a name of some client's")
    found = await values(pool)
    assert found["requests_total", "/v1/completions", "one", "200"] == 2
    assert found["requests_total", "/v1/completions", "", "404"] == 1
    n = len("I am one.")
    assert found["completion_tokens_total", "one"] == 3 * n + 10
    assert found["finished_total", "one", "stop"] == 3
    assert found["finished_total", "one", "cancelled"] == 1
    assert found["first_token_seconds_count", "one"] == 4
    assert found["token_seconds_count", "one"] == 3 * (n - 1) + 9
    assert found["token_seconds_sum", "one"] > 0.002 * 3 * (n - 1)
    assert found["prompt_tokens_total", "one"] > found["cached_tokens_total", "one"] > 0
    assert found["batch_sequences_bucket", "1.0", "one"] == found["batch_sequences_count", "one"] > 3 * n
    assert found["cache_cells", "one"] == 4096
    assert 0 < found["cache_cells_used", "one"] < 4096
    assert found["memory_real_bytes", "one"] > 2**20
    assert found["model_loaded", "one"] == 1


async def test_a_reply_whose_end_nobody_took_counts_once(make):
    pool = make()
    async with pool.serve() as served:
        stream = served.stream(ChatRequest(id="r", messages=(Message("user", "hi"),)))
        async for event in stream:
            if isinstance(event, Finished):
                break
        await stream.aclose()
    found = await values(pool)
    assert found["completion_tokens_total", "one"] == len("I am one.")
    assert found["finished_total", "one", "stop"] == 1
    assert ("finished_total", "one", "cancelled") not in found


async def test_the_size_of_batches_is_counted(make, machine):
    pool = make()
    await asyncio.gather(*(said(pool, text="slow", name=str(n)) for n in range(3)))
    found = await values(pool)
    three = found["batch_sequences_bucket", "3.0", "one"] - found["batch_sequences_bucket", "2.0", "one"]
    assert three > len(LONG) / 2
    assert found["batch_sequences_sum", "one"] >= 3 * len(LONG)


async def test_a_worker_that_hangs_does_not_hang_the_metrics(make, monkeypatch):
    monkeypatch.setattr("edgechat.server.pool.pool.INSPECT_SECONDS", 0.2)
    monkeypatch.setattr("edgechat.engine.worker.supervisor.INSPECT_SECONDS", 600)
    pool = make()
    await said(pool)
    workers()[0].suspend()
    found = await values(pool)
    assert found["completion_tokens_total", "one"] == len("I am one.")
    assert ("cache_cells", "one") not in found
    workers()[0].resume()
    assert await said(pool) == "I am one."


async def test_nothing_of_requests_is_written_to_disk(make, home):
    pool = make()
    secret = "a secret that nobody may read"
    await said(pool, text=secret)
    await pool.close()
    written = [path for path in home.rglob("*") if path.is_file()]
    assert written, "the log at least"
    assert not any(secret.encode() in path.read_bytes() for path in written)
    folders = {path.relative_to(home).parts[0] for path in written}
    assert paths.log_dir().relative_to(home).parts[0] in folders
    assert not any("state" in part and path.suffix != ".log" for path in written for part in path.parts[-2:])


async def test_a_chat_model_makes_no_embeddings(make):
    async with make().serve() as served:
        with pytest.raises(WrongKind):
            await served.embed("r", ("hi",))


async def test_random_requests_leave_nothing_behind(make, machine):
    machine.add("large", size=TOO_LARGE)
    pool = make(most_waiting=3, patience=5)

    async def ask(n):
        model = ("one", "large")[n % 3 == 0]
        task = asyncio.create_task(said(pool, model, "slow" if n % 2 else "hi", str(n)))
        if n % 5 == 0:
            await asyncio.sleep(0.05 * (n % 7))
            task.cancel()
        with contextlib.suppress(QueueFull, asyncio.CancelledError):
            assert await task == (LONG if n % 2 else f"I am {model}.")

    await asyncio.gather(*(ask(n) for n in range(24)))
    for lane in pool._slots.values():
        assert (lane.taken, lane.held, lane.claimed, lane.loading) == (0, 0, False, None)
    assert await said(pool, "large") == "I am large."
    assert len(workers()) == 1
