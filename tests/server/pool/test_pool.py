"""The pool: loads on demand and in turn, room, queues, crashes and the end.

Most of it over engines that only pretend; those that end, hang, die or are counted are real workers.
"""

import asyncio
from functools import partial
from pathlib import Path

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
from edgechat.server.pool.models import AvailableModel, ModelSlot
from edgechat.server.pool.pool import Pool
from tests.engine.worker.test_supervisor import until, workers
from tests.server.pool.machine import LONG, Inline, Machine, PretendedMachine, worker

TOO_LARGE = 13
"""For a machine of 10 beside a model of 4: not even with half of its context. Alone it has that."""


@pytest.fixture
def machine():
    return PretendedMachine()


@pytest.fixture
async def make(machine):
    """Return a function that makes a pool of engines that pretend, and never waits for a thread."""
    asyncio.get_running_loop().set_default_executor(Inline())
    pools = []

    def pool(**changes):
        pools.append(Pool(machine.engine, machine.prepare, machine, **changes))
        return pools[-1]

    yield pool
    for one in pools:
        await one.close()
    assert machine.taken == {}


@pytest.fixture
def real_machine(tmp_path, scripted_workers):
    return Machine(tmp_path)


@pytest.fixture
async def make_real(real_machine):
    pools = []

    def pool(idle_seconds=600.0, **changes):
        pools.append(Pool(partial(worker, idle_seconds), real_machine.prepare, real_machine, **changes))
        return pools[-1]

    yield pool
    for one in pools:
        await one.close()


async def answer(served, text="hi", name="r", **options):
    request = ChatRequest(id=name, messages=(Message("user", text),), **options)
    return "".join([event.text async for event in served.stream(request) if isinstance(event, Delta)])


async def said(pool, model="", text="hi", name="r"):
    async with pool.serve(model) as served:
        return await answer(served, text, name)


async def load(pool, model=""):
    async with pool.serve(model):
        pass


async def rounds(n=100):
    """Let everybody go on until they wait for something."""
    for _ in range(n):
        await asyncio.sleep(0)


async def begun(*requests):
    """Return the tasks of requests, once each has come as far as it can."""
    tasks = [asyncio.create_task(request) for request in requests]
    await rounds()
    return tasks


async def left(tasks):
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


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


async def test_it_tells_when_it_begins_and_ends_to_be_busy(make, machine):
    pool, told = make(), []
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


@pytest.mark.parametrize("sees", [False, True])
async def test_whether_a_model_sees_is_known_when_it_is_loaded(make, machine, sees):
    machine.add("one", sees=sees)
    pool = make()
    assert pool.card("one").sees is None
    async with pool.serve("one") as served:
        assert pool.card("one").sees is served.model.sees is sees


async def test_what_is_not_here_is_not_found(make):
    with pytest.raises(ModelNotFound, match="not on this machine") as error:
        await said(make(), "three")
    assert "pull" in error.value.hint


async def test_one_file_is_loaded_once_by_whatever_name(make, machine):
    pool = make()
    for name in ("one:q4", "", "one", "one:q4"):
        async with pool.serve(name) as served:
            assert served.name == "one:q4"
    assert machine.planned == ["one"]


async def test_first_requests_at_once_share_one_load(make, machine):
    machine.add("one", held=True)
    pool = make()
    asked = await begun(*(said(pool, name=str(n)) for n in range(8)))
    assert pool.state == ("loading", "one is being loaded (25%).")
    machine.go.set()
    assert await asyncio.gather(*asked) == ["I am one."] * 8
    assert pool.state == ("ready", "one is loaded.")
    assert machine.planned == ["one"]
    assert (await values(pool))["loads_total", "one"] == 1


@pytest.mark.parametrize(
    ("size", "asked", "stay"),
    [
        pytest.param(10, "one two third", "third", id="it fits beside none"),
        pytest.param(6, "one two one third", "one third", id="the one goes that was not used for longest"),
        pytest.param(9, "one third", "third", id="beside the first it would have half of its context"),
    ],
)
async def test_idle_models_give_way(make, machine, size, asked, stay):
    machine.add("two")
    machine.add("third", size=size)
    pool = make()
    for name in asked.split():
        async with pool.serve(name) as served:
            assert served.plan.context == 4096
            assert await answer(served) == f"I am {name}."
    assert loaded(pool) == set(stay.split())


async def test_what_fits_nowhere_drives_nobody_out(make, machine):
    machine.add("huge", size=21)
    pool = make()
    await said(pool)
    with pytest.raises(DoesNotFit):
        await said(pool, "huge")
    assert loaded(pool) == {"one"}
    assert pool.state[0] == "ready"


async def test_who_leaves_while_another_model_is_unloaded_leaves_nothing_half_done(make, machine):
    machine.add("large", size=TOO_LARGE)
    pool = make()
    await said(pool)
    machine.add("one", held=True)
    (leaving,) = await begun(said(pool, "large"))
    leaving.cancel()
    # Both at once, neither of which knows how far the unloading is.
    asked = await begun(said(pool), said(pool, "large"))
    assert leaving.cancelled()
    assert set(machine.taken) == {"one"}
    machine.go.set()
    assert await asyncio.gather(*asked) == ["I am one.", "I am large."]
    assert len(machine.taken) == 1
    assert pool.state[0] == "ready"


async def test_a_model_that_is_stopped_while_it_answers_ends_after_its_last_request(make, machine):
    pool = make()
    asked = await begun(said(pool, "one", "slow"))
    assert await pool.unload("one") == "one"
    asked += await begun(said(pool, "one", "slow"))  # who comes later is answered, too
    assert loaded(pool) == {"one"}
    machine.go.set()
    assert await asyncio.gather(*asked) == [LONG] * 2
    await begun()
    assert (loaded(pool), machine.taken) == (set(), {})
    # That was it: it is loaded again, and stays.
    assert await said(pool) == "I am one."
    await begun()
    assert loaded(pool) == {"one"}


async def test_a_model_that_is_stopped_while_it_is_loaded_answers_who_waits_for_it(make, machine):
    machine.add("one", held=True)
    pool = make()
    asked = await begun(said(pool))
    await pool.unload("one")
    machine.go.set()
    assert await asyncio.gather(*asked) == ["I am one."]
    await begun()
    assert loaded(pool) == set()


async def test_a_load_that_fails_forgets_that_the_model_was_stopped(make, machine):
    machine.add("one", held=True, load_error="no such weights")
    pool = make()
    asked = await begun(said(pool))
    await pool.unload("one")
    machine.go.set()
    with pytest.raises(LoadFailed):
        await asked[0]
    machine.add("one")
    assert await said(pool) == "I am one."
    await begun()
    assert loaded(pool) == {"one"}


async def test_a_request_whose_engine_has_died_waits_for_its_turn_like_any_other(make, machine):
    machine.add("large", size=10)
    pool = make()
    async with pool.serve("one") as served:
        machine.engines["one"].die()
        (other,) = await begun(said(pool, "large", "slow"))
        assert loaded(pool) == {"large"}
        asked = await begun(answer(served, name="a"), answer(served, name="b"))
        assert loaded(pool) == {"large"}, "they do not fit together"
        machine.go.set()
        assert await asyncio.gather(*asked) == ["I am one."] * 2
        assert other.done()
        assert loaded(pool) == {"one"}
    found = await values(pool)
    assert found["loads_total", "one"] == 2
    assert found["finished_total", "one", "stop"] == 2


async def test_a_request_is_tried_no_third_time(make, machine):
    machine.add("one", reply=[EngineGone("It was gone before the request came.")])
    pool = make()
    with pytest.raises(EngineGone):
        await said(pool)
    assert len(machine.engines["one"].requests) == 2
    assert (await values(pool))["finished_total", "one", "failed"] == 1


@pytest.mark.parametrize(
    ("share", "order"), [(0.25, ["late", "first", "large"]), (1.0, ["first", "large", "late"])]
)
async def test_who_waits_for_room_holds_up_nobody_before_the_end_of_the_patience(
    make, machine, monkeypatch, share, order
):
    monkeypatch.setattr("edgechat.server.pool.residency.CLAIM_SHARE", share)
    machine.add("large", size=TOO_LARGE)
    pool, ends = make(), []

    async def ask(model, text, name):
        async with pool.serve(model) as served:
            await answer(served, text, name)
            ends.append(name)

    asked = await begun(ask("one", "slow", "first"))
    asked += await begun(ask("large", "hi", "large"))
    asked += await begun(ask("one", "hi", "late"))
    assert machine.planned.count("large") == 2
    machine.go.set()
    await asyncio.gather(*asked)
    assert ends == order


async def test_a_model_waits_for_room_only_so_long(make, machine, monkeypatch):
    monkeypatch.setattr("edgechat.server.pool.residency.CLAIM_SHARE", 1.0)
    machine.add("large", size=9)
    pool = make(patience=0.05)
    busy = await begun(said(pool, text="slow"))
    machine.capacity = 8  # 4 of it beside the first one
    (large,) = await begun(said(pool, "large"))
    (late,) = await begun(said(pool, name="late"))
    with pytest.raises(QueueFull, match="does not fit into memory alongside one") as error:
        await large
    assert error.value.seconds > 0
    assert await late == "I am one."
    assert machine.planned.count("one") == 1, "it has never left"
    assert not busy[0].done()
    await left(busy)


async def test_beside_a_busy_model_less_is_taken_at_once(make, machine):
    machine.add("wide", size=9)  # beside the first: half of its context
    pool = make(patience=600)
    busy = await begun(said(pool, text="slow"))
    async with pool.serve("wide") as served:
        assert served.plan.context == 2048
    assert not busy[0].done()
    assert await said(pool, name="beside") == "I am one."
    await left(busy)


async def test_beyond_the_queue_requests_are_refused_at_once(make):
    pool = make(most_waiting=2)
    await load(pool)
    running = await begun(*(said(pool, text="slow", name=str(n)) for n in range(6)))
    with pytest.raises(QueueFull, match="The queue for one is full: it has 6 requests") as error:
        await said(pool, name="one too many")
    assert 1 <= error.value.seconds <= 120
    assert not any(task.done() for task in running), "it was not waited for them"
    found = await values(pool)
    assert (found["running", "one"], found["waiting", "one"]) == (4, 2)
    await left(running)
    assert await said(pool, name="after") == "I am one."


async def test_the_background_leaves_places_for_interactive_requests(make, machine):
    pool = make(most_waiting=8)
    await load(pool)

    async def behind(name):
        async with pool.serve(priority="background") as served:
            return await answer(served, "slow", name, priority="background")

    for _ in range(2):  # the second time it is known that those of the first have left
        tasks = await begun(*(behind(str(n)) for n in range(20)))
        refused = [task.exception() for task in tasks if task.done()]
        assert len(refused) == 14
        assert all(isinstance(error, QueueFull) and "background" in error.message for error in refused)
        answers = await asyncio.gather(*(said(pool, name=f"asked {n}") for n in range(6)))
        assert answers == ["I am one."] * 6
        await left(tasks)


async def test_choices_take_a_place_each(make):
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
    monkeypatch.setattr("edgechat.server.pool.residency.time.monotonic", lambda: now)
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


async def test_draining_lets_who_is_here_finish(make, machine):
    pool = make()
    running, draining = await begun(said(pool, text="slow"), pool.drain(30))
    with pytest.raises(Draining):
        await said(pool)
    assert not draining.done()
    machine.go.set()
    assert await draining
    assert await running == LONG


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


async def test_a_chat_model_makes_no_embeddings(make):
    async with make().serve() as served:
        with pytest.raises(WrongKind):
            await served.embed("r", ("hi",))


# Real workers.


@pytest.mark.slow
async def test_models_are_loaded_when_they_are_asked_for_and_unloaded(make_real, real_machine):
    real_machine.add("two")
    pool = make_real()
    assert await pool.unload("one") == "one"
    assert (workers(), real_machine.planned) == ([], [])
    assert pool.state == ("ready", "No model is loaded; the next request loads one.")
    assert await said(pool) == "I am one."
    assert loaded(pool) == {"one"}
    assert await said(pool, "two") == "I am two."
    assert await said(pool, "default") == "I am one."
    assert loaded(pool) == {"one", "two"}
    assert len(workers()) == 2
    assert pool.state == ("ready", "one and two are loaded.")
    # Both were planned once alone, and the second one beside the first.
    assert real_machine.planned == ["one", "two", "two"]
    async with pool.serve("one") as served:
        await pool.unload("one")
        assert await answer(served) == "I am one.", "what is in use stays"
    for name in ("one", "two"):
        await pool.unload(name)
    assert (loaded(pool), workers()) == (set(), [])
    assert await said(pool, "one") == "I am one."
    with pytest.raises(ModelNotFound):
        await pool.unload("nosuch")


@pytest.mark.slow
async def test_an_idle_model_gives_its_memory_back(make_real):
    pool = make_real(idle_seconds=0.2)
    async with pool.serve():
        await asyncio.sleep(0.5)
        assert loaded(pool) == {"one"}, "who is served keeps it"
    await until(lambda: not loaded(pool))
    assert workers() == []
    assert pool.state[0] == "ready"
    assert await said(pool) == "I am one."
    assert (await values(pool))["crashes_total", "one"] == 0


@pytest.mark.slow
async def test_a_crash_is_told_and_the_next_request_works(make_real, real_machine):
    real_machine.capacity = 12
    real_machine.add("one", token_ms=30)  # however long the others take to load, these are not at their end
    real_machine.add("two", token_ms=10)
    real_machine.add("three")
    notes = []
    pool = make_real(on_note=notes.append)
    await load(pool)
    (victim,) = workers()
    beside = asyncio.create_task(said(pool, "two", "slow"))
    streams = [asyncio.create_task(said(pool, "one", "slow", str(n))) for n in range(3)]
    await until(lambda: loaded(pool) == {"one", "two"})
    await asyncio.sleep(0.2)
    victim.kill()
    results = await asyncio.gather(*streams, return_exceptions=True)
    assert [type(one) for one in results] == [EngineCrashed] * 3
    (note,) = notes
    assert str(paths.log_dir()) in note
    await said(pool, "three")
    state, sentence = pool.state
    assert state == "degraded", "it is not forgotten because another model loads"
    assert "one has crashed" in sentence
    assert await said(pool) == "I am one."
    assert pool.state[0] == "ready"
    assert await beside == LONG, "the other model heard nothing of it"
    found = await values(pool)
    assert found["crashes_total", "one"] == 1
    assert found["finished_total", "one", "failed"] == 3
    assert found["loads_total", "one"] == 2
    await pool.close()
    assert notes == [note], "to be closed is no crash"


@pytest.mark.slow
async def test_a_load_that_nobody_waits_for_any_more_stops(make_real, real_machine):
    real_machine.add("one", load_ms=60_000)
    pool = make_real()
    impatient = [asyncio.create_task(said(pool, name=str(n))) for n in range(2)]
    await until(lambda: bool(workers()))
    (process,) = workers()
    impatient[0].cancel()
    await asyncio.wait(impatient, timeout=0.2)
    assert process.is_running(), "the other one still waits"
    impatient[1].cancel()
    await until(lambda: not workers())
    real_machine.add("one")
    assert await said(pool) == "I am one."


@pytest.mark.slow
async def test_what_takes_too_long_to_drain_is_cancelled_with_what_it_has(make_real, real_machine):
    real_machine.add("one", token_ms=20)
    real_machine.add("two", load_ms=60_000)
    pool = make_real()
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
    assert events[-1].reason == "cancelled"
    with pytest.raises(Draining):
        await loading
    assert workers() == []


@pytest.mark.slow
async def test_metrics_count_exactly(make_real):
    pool = make_real()
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


@pytest.mark.slow
async def test_the_size_of_batches_is_counted(make_real):
    pool = make_real()
    running = [asyncio.create_task(said(pool, text="slow", name=str(n))) for n in range(6)]
    while not (found := await values(pool)).get(("running", "one")):
        await asyncio.sleep(0.02)
    assert found["running", "one"] + found["waiting", "one"] == 6
    await asyncio.gather(*running)
    found = await values(pool)
    four = found["batch_sequences_bucket", "4.0", "one"] - found["batch_sequences_bucket", "3.0", "one"]
    assert four > len(LONG) / 2
    assert ("batch_sequences_bucket", "5.0", "one") not in found
    assert found["batch_sequences_sum", "one"] >= 6 * len(LONG)


@pytest.mark.slow
async def test_a_worker_that_hangs_does_not_hang_the_metrics(make_real, monkeypatch):
    monkeypatch.setattr("edgechat.server.pool.pool.INSPECT_SECONDS", 0.2)
    monkeypatch.setattr("edgechat.engine.worker.supervisor.INSPECT_SECONDS", 600)
    pool = make_real()
    await said(pool)
    workers()[0].suspend()
    found = await values(pool)
    assert found["completion_tokens_total", "one"] == len("I am one.")
    assert ("cache_cells", "one") not in found
    workers()[0].resume()
    assert await said(pool) == "I am one."


@pytest.mark.slow
async def test_nothing_of_requests_is_written_to_disk(make_real, home):
    pool = make_real()
    secret = "a secret that nobody may read"
    await said(pool, text=secret)
    await pool.close()
    written = [path for path in home.rglob("*") if path.is_file()]
    assert written, "the log at least"
    assert not any(secret.encode() in path.read_bytes() for path in written)
    folders = {path.relative_to(home).parts[0] for path in written}
    assert paths.log_dir().relative_to(home).parts[0] in folders
    assert not any("state" in part and path.suffix != ".log" for path in written for part in path.parts[-2:])
