"""Simultaneous requests with different LoRA adapters are never mixed: in calls, in the cache or on disk."""

from itertools import pairwise

import pytest

from edgechat.base.errors import NotAnAdapter
from edgechat.engine.backends.base import ActiveAdapter, mark_of
from edgechat.engine.engine import EngineCore
from edgechat.engine.kv.state_store import KVStateStore
from edgechat.engine.scheduling.scheduler import TURN
from edgechat.engine.types import CachePolicy, ChatRequest, Delta, Failed, Finished, Message, Sampling
from edgechat.native.params import AdapterUse
from tests.engine.runtimes import SharedTemplate, load, plan
from tests.kit import NOT_PRINTABLE, Spec, build
from tests.kit.adapters import adapter, merged, pairs
from tests.scripted.backend import ScriptedBackend

pytestmark = pytest.mark.slow

SPEC = Spec(mute=NOT_PRINTABLE, name="tiny-dense")
GREEDY = Sampling(temperature=0)
LONG = "The quick brown fox jumps over the lazy dog. " * 8


@pytest.fixture
def open_engine(chatml, opened):
    def make(path=None, **options):
        backend = load(plan(path or build(SPEC), n_seq_max=6, n_outputs_max=48))
        return opened(EngineCore(backend, SharedTemplate(chatml), **options))

    return make


@pytest.fixture
def sets(tmp_path):
    """Sets of adapters by name, the empty one among them."""
    a, b = (str(adapter(tmp_path, SPEC, name, seed=seed)) for name, seed in (("a", 1), ("b", 2)))
    return {
        "plain": (),
        "a": (AdapterUse(a),),
        "half": (AdapterUse(a, 0.5),),
        "b": (AdapterUse(b),),
        "both": (AdapterUse(a), AdapterUse(b)),
    }


def request(name, text=LONG, **options):
    return ChatRequest(id=name, messages=(Message("user", text),), sampling=GREEDY, max_tokens=20, **options)


def run(engine, *requests):
    """Answer requests together; return the text and the end of each."""
    for one in requests:
        engine.submit(one)
    texts, ends = dict.fromkeys((one.id for one in requests), ""), {}
    while not engine.is_idle:
        for event in engine.step():
            assert not isinstance(event, Failed), event
            if isinstance(event, Delta):
                texts[event.request_id] += event.text
            elif isinstance(event, Finished):
                ends[event.request_id] = event
    return {name: (text, ends[name]) for name, text in texts.items()}


def test_answers_are_those_of_merged_models(open_engine, sets, tmp_path):
    together = run(open_engine(), *(request(name, adapters=one) for name, one in sets.items()))
    texts = {name: text for name, (text, _) in together.items()}
    assert len(set(texts.values())) == len(sets)
    for name, seed, scale in (("a", 1, 1.0), ("half", 1, 0.5), ("b", 2, 1.0)):
        path = merged(tmp_path / f"{name}-merged.gguf", SPEC, pairs(SPEC, seed=seed), scale)
        assert run(open_engine(path), request(name))[name][0] == texts[name]


@pytest.mark.parametrize("ngrams", [False, True])
def test_company_changes_no_answer(open_engine, sets, ngrams):
    alone = {name: run(open_engine(), request(name, adapters=one))[name][0] for name, one in sets.items()}
    engine = open_engine(ngrams=ngrams)
    backend, used = engine.backend, []
    use = backend.adapters.use
    backend.adapters.use = lambda one: (used.append(one), use(one))[1]
    wanted = [request(f"{name}{n}", adapters=one) for n in range(3) for name, one in sets.items()]
    for name, (text, _) in run(engine, *wanted).items():
        assert text == alone[name[:-1]]
    assert len(set(used)) == len(sets)


def test_no_prefix_is_shared_in_memory(open_engine, sets):
    engine = open_engine()
    for n in range(2):
        for name, one in sets.items():
            _, end = run(engine, request(f"{name}{n}", adapters=one))[f"{name}{n}"]
            assert (end.usage.cached_tokens > 0) == (n > 0)


def test_no_state_is_shared_on_disk(open_engine, sets, monkeypatch):
    monkeypatch.setattr("edgechat.engine.scheduling.chat_cache.LEAVE_SECONDS", 0.0)
    monkeypatch.setattr("edgechat.engine.scheduling.chat_cache.worth_saving", lambda *_, **__: True)

    def opened():
        return open_engine(states=KVStateStore(10_000_000, b"kit"), cache_policy=CachePolicy(settle=False))

    engine = opened()
    run(engine, request("a", adapters=sets["a"], chat="c0ffee01"))
    run(engine, request("p", chat="c0ffee02"))
    engine.persist(None)
    run(engine)
    engine.close()
    for name, one in sets.items():
        text, end = run(opened(), request(name, adapters=one))[name]
        assert (end.usage.cached_tokens > 0) == (name in ("a", "plain")), name
        assert text == run(open_engine(), request(name, adapters=one))[name][0]


def test_a_chat_that_changes_its_adapters_starts_anew(open_engine, sets, monkeypatch):
    monkeypatch.setattr("edgechat.engine.scheduling.chat_cache.LEAVE_SECONDS", 0.0)
    states = KVStateStore(10_000_000, b"kit")
    engine = open_engine(states=states, cache_policy=CachePolicy(settle=True))
    for name in ("a", "plain", "a"):
        text, _ = run(engine, request(name, adapters=sets[name], chat="c0ffee03"))[name]
        assert text == run(open_engine(), request(name, adapters=sets[name]))[name][0]
        engine.persist("c0ffee03")
        run(engine)


def test_a_request_with_a_bad_adapter_fails_alone(open_engine, tmp_path):
    engine = open_engine()
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF" + bytes(100))
    engine.begin(request("plain"))
    engine.begin(request("bad", adapters=(AdapterUse(str(bad)),)))
    events = []
    while not engine.is_idle:
        events += engine.step()
    failed = [event.request_id for event in events if isinstance(event, Failed)]
    finished = [event.request_id for event in events if isinstance(event, Finished)]
    assert (failed, finished) == (["bad"], ["plain"])


def test_other_backends_refuse_adapters(scripted, chatml, opened):
    engine = opened(EngineCore(ScriptedBackend(scripted()), SharedTemplate(chatml)))
    with pytest.raises(NotAnAdapter, match="GGUF"):
        engine.submit(request("a", adapters=(AdapterUse("a.gguf"),)))


class NamedAdapters:
    """Adapters by the names of their files, which there need not be."""

    def __init__(self):
        self.used = ()

    def resolve(self, wanted):
        return tuple(ActiveAdapter(one.path, one.scale, one.path, ()) for one in wanted)

    def use(self, adapters):
        self.used = adapters


def test_sets_take_turns(scripted, chatml, opened):
    backend = ScriptedBackend(scripted(reply="x" * 60, n_seq_max=6))
    backend.adapters = named = NamedAdapters()
    engine = opened(EngineCore(backend, SharedTemplate(chatml)))
    calls = []
    decode = backend.decode

    def spied(parts):
        calls.append((named.used, len(parts)))
        return decode(parts)

    backend.decode = spied
    wanted = [request(f"{n}", "Hi", adapters=(AdapterUse("ab"[n % 2]),) * (n < 4)) for n in range(6)]
    assert all(text == "x" * 20 for text, _ in run(engine, *wanted).values())
    sets = [one for one, _ in calls]
    assert len(set(sets)) == 3
    changes = sum(before != after for before, after in pairwise(sets))
    assert changes <= len(sets) / TURN + 3  # none is changed more often than it has to be
    for one in set(sets):
        ats = [at for at, other in enumerate(sets) if other == one]
        gaps = [after - before for before, after in pairwise(ats)]
        assert max(gaps) <= 2 * TURN + 1
    assert max(size for _, size in calls) == 2


def test_marks():
    sets = [
        tuple(ActiveAdapter(digest, scale, "", ()) for digest, scale in pairs)
        for pairs in ([], [("a", 1.0)], [("a", 0.5)], [("b", 1.0)], [("a", 1.0), ("b", 1.0)])
    ]
    assert mark_of(()) == ()
    marks = {mark_of(one) for one in sets}
    assert len(marks) == len(sets)
    assert all(2**31 <= number < 2**32 for mark in marks for number in mark)
