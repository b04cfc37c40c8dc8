"""Snapshots of an engine count every cell once, with the right kind."""

import random
import time

import msgspec
import pytest

from edgechat.engine.backends.base import BatchPart
from edgechat.engine.engine import EngineCore
from edgechat.engine.kv.snapshot import KINDS, MOST_RUNS, Run, Snapshot
from edgechat.engine.kv.state_store import KVStateStore
from edgechat.engine.speculative.drafters import ModelDrafter
from edgechat.engine.types import CachePolicy, ChatRequest, Delta, Message
from edgechat.engine.worker.inspection import Inspector, merge_small_runs, pinned_end
from tests.counting import calls_of
from tests.engine.cells import check
from tests.engine.runtimes import SharedTemplate
from tests.engine.speculative.always import Always
from tests.engine.test_interleavings import SCRIPTED, scripted_judge, scripted_question
from tests.engine.world import World
from tests.scripted.backend import ScriptedBackend

SYSTEM = Message("system", "Answer as briefly as you can.")
ONE, OTHER = "0000000a", "0000000b"


@pytest.fixture
def make(scripted, template, opened):
    def engine(settle=False, states=False, draft=False, **script):
        plan = scripted(**{"reply": "Hello.", "n_batch": 64} | script)
        drafter = ModelDrafter(ScriptedBackend(plan), 259) if draft else None
        return opened(
            EngineCore(
                ScriptedBackend(plan),
                SharedTemplate(template),
                cache_policy=CachePolicy(settle=settle),
                states=KVStateStore(10_000_000, b"scripted") if states else None,
                model_drafter=drafter,
                controller=Always() if draft else None,
            )
        )

    return engine


def ask(engine, chat, *messages):
    """Return the reply."""
    events = engine.submit(ChatRequest(id=f"{time.monotonic()}", messages=messages, chat=chat))
    while not engine.is_idle:
        events += engine.step()
    return Message("assistant", "".join(event.text for event in events if isinstance(event, Delta)))


def user(text):
    return Message("user", text)


def n_tokens(engine, *messages):
    """Return the tokens of some messages, as far as the control token that ends the last."""
    text = engine.template.render(messages, generation_prompt=False).removesuffix("\n")
    return len(engine.backend.vocabulary.tokenize(text, bos=True, special=True))


def check_map(cache, engine):
    assert sum(run.length for run in cache.runs) == cache.used == engine.backend.cells_used
    assert sum(cache.of_kind(kind) for kind in KINDS) + cache.free == cache.cells
    assert cache.free >= 0
    assert len(cache.runs) <= MOST_RUNS
    assert all(run.length > 0 and 1 <= run.slots <= cache.n_slots for run in cache.runs)
    assert {one.id: one.length for one in cache.slots} == {
        slot.id: slot.length for slot in engine.scheduler.cache.slots if slot.length
    }


def check_snapshot(snapshot, engine):
    check_map(snapshot.cache, engine)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(snapshot), type=Snapshot) == snapshot
    work = snapshot.work
    assert work.running + work.waiting == engine.n_running
    if snapshot.prompt is not None:
        assert snapshot.prompt.cached_tokens <= snapshot.prompt.prompt_tokens


def test_an_engine_that_has_done_nothing(make):
    engine = make()
    snapshot = Inspector(engine).inspect()
    check_snapshot(snapshot, engine)
    assert (snapshot.cache.used, snapshot.cache.cells, snapshot.cache.runs) == (0, 4096, ())
    assert snapshot.prompt is snapshot.draft_cache is snapshot.on_disk is None
    assert snapshot.drafting.sources == ()
    assert snapshot.memory_bytes > 2**20


def test_two_chats_with_one_system_prompt(make):
    engine = make()
    inspector = Inspector(engine)
    ask(engine, ONE, SYSTEM, user("A first question"))
    alone = inspector.inspect()
    assert [(run.kind, run.slots) for run in alone.cache.runs] == [("pinned", 1), ("own", 1)]
    ask(engine, OTHER, SYSTEM, user("Another thing"))
    both = inspector.inspect()
    check_snapshot(both, engine)
    runs = {run.kind: run for run in both.cache.runs}
    assert runs["pinned"] == Run(0, n_tokens(engine, SYSTEM), 2, "pinned")
    # What the template says before a question, and the letter that both begin with.
    assert runs["shared"].start == runs["pinned"].length
    assert runs["shared"].length == len("\nX") + len("user\nA")
    assert runs["kept"].slots == runs["own"].slots == 1
    first, second = (slot.length for slot in both.cache.slots)
    in_common = runs["pinned"].length + runs["shared"].length
    assert (runs["kept"].length, runs["own"].length) == (first - in_common, second - in_common)
    assert both.prompt.cached_tokens == in_common
    assert both.prompt.prompt_tokens > in_common
    assert (both.cache.stats.hits, both.cache.stats.misses) == (1, 1)


def test_own_is_the_chat_that_is_looked_at(make):
    engine = make()
    inspector = Inspector(engine)
    ask(engine, ONE, user("Something"))
    ask(engine, OTHER, user("Or nothing at all"))
    lengths = {slot.chat: slot.length for slot in engine.scheduler.cache.slots}
    longer = inspector.inspect().cache
    shorter = inspector.inspect(ONE).cache
    assert longer.of_kind("own") == shorter.of_kind("kept") == lengths[OTHER] - longer.of_kind("shared")
    assert shorter.of_kind("own") == longer.of_kind("kept") == lengths[ONE] - longer.of_kind("shared")
    engine.forget(ONE)
    assert inspector.inspect().cache.of_kind("kept") == inspector.inspect().cache.of_kind("shared") == 0


@pytest.mark.parametrize("kind", [{"cuts": False}, {"window": 40}], ids=["hybrid", "windowed"])
def test_the_versions_of_a_chat_are_its_own(make, kind):
    engine = make(settle=True, **kind)
    inspector = Inspector(engine)
    said = [SYSTEM]
    for turn in range(3):
        said.append(user(f"Question {turn}"))
        said.append(ask(engine, ONE, *said))
    assert len(inspector.inspect().cache.slots) == 1, "checkpoints take neither slots nor cells"
    ask(engine, ONE, *said[:-2], user("Another question"))
    snapshot = inspector.inspect()
    check_snapshot(snapshot, engine)
    assert len(snapshot.cache.slots) > 1
    assert max(run.slots for run in snapshot.cache.runs if run.kind == "own") > 1
    assert snapshot.cache.of_kind("shared") == 0


@pytest.mark.slow
def test_what_stays_when_the_window_moves_is_pinned(make):
    engine = make(settle=True, context=500)
    inspector = Inspector(engine)
    said = [SYSTEM]
    pinned = []
    for turn in range(12):
        said.append(user(f"Question {turn}, which is a long one."))
        said.append(ask(engine, ONE, *said))
        snapshot = inspector.inspect()
        check_snapshot(snapshot, engine)
        pinned.append([run for run in snapshot.cache.runs if run.kind == "pinned"])
    head, first_turn = n_tokens(engine, SYSTEM), n_tokens(engine, *said[:3])
    assert sum(run.length for run in pinned[0]) == head
    assert all(sum(run.length for run in runs) == first_turn for runs in pinned[1:])
    assert engine.last_usage.dropped_turns > 3


def test_a_chat_that_may_not_lose_anything_has_nothing_pinned(make):
    engine = make()
    engine.submit(ChatRequest(id="r", messages=(SYSTEM, user("Well?")), chat=ONE, overflow="error"))
    while not engine.is_idle:
        engine.step()
    assert {run.kind for run in Inspector(engine).inspect().cache.runs} == {"own"}


def test_pinned_text_that_the_prompt_has_elsewhere_is_not_claimed(make):
    engine = make()
    ask(engine, ONE, user("What is it?"))
    slot = next(slot for slot in engine.scheduler.cache.slots if slot.length)
    vocabulary = engine.backend.vocabulary
    assert pinned_end(slot, (Message("system", "Not there."), user("What is it?")), vocabulary, 4096) == 0
    far = Message("system", "it?")  # behind its place, as far as any template goes
    slot.tip.tokens[:0] = vocabulary.tokenize("x" * 2000, bos=False, special=False)
    assert pinned_end(slot, (far, user("What is it?")), vocabulary, 4096) == 0


def test_a_request_that_runs(make):
    engine = make(prompt_token_ms=0.1, n_batch=16)
    inspector = Inspector(engine)
    engine.submit(ChatRequest(id="r", messages=(SYSTEM, user("And now?" * 20)), chat=ONE))
    engine.submit(ChatRequest(id="s", messages=(user("Me too"),), chat=OTHER))
    seen = []
    while not engine.is_idle:
        engine.step()
        check(engine)
        snapshot = inspector.inspect(OTHER)
        check_snapshot(snapshot, engine)
        assert snapshot.cache.of_kind("kept") == 0 or snapshot.work.running < 2
        if snapshot.prompt is not None:
            seen.append(snapshot.work.running)
    assert {*seen} == {0, 1, 2}


@pytest.mark.slow
def test_drafts(make, monkeypatch):
    monkeypatch.setattr("edgechat.engine.speculative.speculation.OVERHEAD", 1e9)  # nobody skips a step
    monkeypatch.setattr("edgechat.engine.speculative.controller.SURE_OF_GAIN", -1e9)
    engine = make(draft=True, reply="It is so, and it was so, and it will be so for ever. " * 8)
    inspector = Inspector(engine)
    engine.submit(ChatRequest(id="r", messages=(user("Is it so?"),), chat=ONE))
    lengths = set()
    while not engine.is_idle:
        engine.step()
        snapshot = inspector.inspect()
        check_snapshot(snapshot, engine)
        lengths.update(snapshot.drafting.lengths)
    assert snapshot.draft_cache.used == engine.speculation.draft_cache.cells_used > 100
    (source,) = snapshot.drafting.sources
    assert source.source == "model"
    assert source.acceptance is not None
    assert source.acceptance > 0.9  # it guesses all of it
    assert max(lengths) > 2
    assert snapshot.drafting.costs[0] == (1, 1.0)
    assert snapshot.drafting.step_seconds > 0
    engine.speculation.controller.purse = -1.0
    assert "cost more time" in inspector.inspect().drafting.why_off


def test_states_on_disk_are_counted(make, monkeypatch):
    monkeypatch.setattr("edgechat.engine.scheduling.chat_cache.LEAVE_SECONDS", 0.0)
    monkeypatch.setattr("edgechat.engine.kv.state_store.COUNT_INTERVAL", 0.0)
    engine = make(states=True)
    inspector = Inspector(engine)
    for chat in (ONE, OTHER):
        ask(engine, chat, user("Something that is worth a file" * 4))
        engine.persist(chat)
    while (found := inspector.inspect().on_disk) is None or found.count < 2:
        engine.step()
        time.sleep(0.01)
    assert found.n_bytes > 500


@pytest.mark.slow
@pytest.mark.parametrize("kind", SCRIPTED)
@pytest.mark.parametrize("seed", range(3))
def test_sums_are_right_whatever_happens(scripted, template, kind, seed, opened):
    rules = [{"when": f"<{n}>", "reply": f"reply number {n} " * n} for n in range(1, 7)]
    plan = scripted(rules=rules, context=400, n_seq_max=4, n_batch=64, **SCRIPTED[kind])
    inspectors = {}

    def make():
        backend = ScriptedBackend(plan)
        shared = SharedTemplate(template)
        engine = EngineCore(
            backend, shared, cache_policy=CachePolicy(), states=KVStateStore(5000, b"x"), ngrams=True
        )
        inspectors[id(engine)] = Inspector(engine)
        return engine

    def look(engine):
        check_snapshot(inspectors[id(engine)].inspect(random.choice((None, ONE))), engine)

    world = opened(World(make, scripted_judge, scripted_question, seed, look))
    world.run(60)


def test_many_runs_are_summed_up():
    rng = random.Random(1)
    runs = [Run(n, rng.randrange(1, 99), rng.randrange(1, 5), rng.choice(KINDS)) for n in range(900)]
    fewer = merge_small_runs(runs)
    assert len(fewer) == MOST_RUNS
    assert sum(run.parts for run in fewer) == 900
    for kind in KINDS:
        assert sum(r.length for r in fewer if r.kind == kind) == sum(r.length for r in runs if r.kind == kind)
    assert max(runs, key=lambda run: run.length) in fewer
    assert merge_small_runs(runs[:MOST_RUNS]) == runs[:MOST_RUNS]


@pytest.mark.slow
def test_a_look_into_a_cache_of_many_nodes_is_quick(make):
    engine = make(context=100_000, n_seq_max=64)
    cache = engine.scheduler.cache
    rng = random.Random(3)
    for number in range(64):
        found = [1] * 40 + [rng.randrange(9) for _ in range(8)] + [rng.randrange(256) for _ in range(1200)]
        taken, n = cache.seat(found)
        taken.chat = f"{number:08x}"
        engine.backend.decode([BatchPart(taken.id, n, found[n : n + 500], 0)])
        cache.extend(taken, found[n : n + 500])
        cache.release(taken)
    inspector = Inspector(engine)
    first = inspector.inspect("00000001")
    check_map(first.cache, engine)
    assert len(first.cache.runs) > 64
    assert calls_of(lambda: inspector.inspect("00000001")) < first.cache.cells // 10
