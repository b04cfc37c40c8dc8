"""The step loop over the scripted backend: order, fairness, accounting, ends."""

from collections import defaultdict

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgechat.base.errors import PromptTooLong, SwitchUnknown, TemplateError
from edgechat.engine.backends.base import CacheFull
from edgechat.engine.engine import EngineCore
from edgechat.engine.prompt.template import ChatTemplate
from edgechat.engine.types import ChatRequest, Delta, Failed, Finished, Message, Prefill, Sampling
from tests.engine.cells import check
from tests.properties import examples
from tests.scripted.backend import ScriptedBackend

RULES = [{"when": f"<{n}>", "reply": f"reply number {n} " * n} for n in range(1, 7)]


@pytest.fixture
def make(scripted, template):
    def engine(**script):
        return EngineCore(ScriptedBackend(scripted(**{"rules": RULES} | script)), template)

    return engine


def request(name, text=None, **options):
    return ChatRequest(id=name, messages=(Message("user", text or f"<{name}>"),), **options)


def run(engine, *requests):
    for one in requests:
        engine.submit(one)
    events = []
    for _ in range(5000):
        if engine.is_idle:
            return events
        events += engine.step()
        check(engine)
    raise AssertionError("the engine does not come to an end")


def texts(events):
    found = defaultdict(str)
    for event in events:
        if isinstance(event, Delta):
            found[event.request_id] += event.text
    return found


def replies(numbers):
    """Return what is to be said to each."""
    return {n: f"reply number {n} " * int(n) for n in numbers}


def ends(events):
    return {event.request_id: event for event in events if isinstance(event, Finished)}


def test_one_request(make):
    engine = make(reply="Hello, wörld.")
    events = run(engine, request("a", "hi"))
    assert texts(events) == {"a": "Hello, wörld."}
    finished = ends(events)["a"]
    assert finished.reason == "stop"
    assert finished.usage.completion_tokens == len("Hello, wörld.".encode())
    assert finished.usage.prompt_tokens == len(engine.backend._cache[0]) - finished.usage.completion_tokens
    assert finished.timings.ttft_ms > 0


def test_several_sequences_share_batches(make):
    engine = make()
    for n in range(1, 5):
        engine.submit(request(str(n)))
    sizes = []
    decode = engine.backend.decode
    engine.backend.decode = lambda parts: (sizes.append(len(parts)), decode(parts))[1]
    events = run(engine)
    assert texts(events) == replies("1234")
    assert max(sizes) == 4


def test_a_backend_that_cannot_mix_takes_turns(make):
    engine = make(mixes=False)
    assert texts(run(engine, *map(request, "1234"))) == replies("1234")


def test_more_requests_than_slots_wait_their_turn(make):
    engine = make(n_seq_max=2)
    assert texts(run(engine, *map(request, "123456"))) == replies("123456")


def test_a_long_prompt_does_not_stop_a_stream(make):
    engine = make(n_batch=64)
    engine.submit(request("6"))
    while not texts(engine.step()):
        pass
    engine.submit(request("long", "<5>" + "x" * 1000))
    during = []
    while not any(isinstance(event, Delta) and event.request_id == "long" for event in during[-1:]):
        events = engine.step()
        assert any(isinstance(e, Delta) and e.request_id == "6" for e in events) or ends(during)
        during += events
        if ends(events):
            break
    assert sum(isinstance(event, Prefill) for event in during) >= 10


def test_reading_a_prompt_reports_what_was_cached(make):
    engine = make(n_batch=64)
    for name, text in (("a", "x" * 300), ("b", "x" * 300 + "y" * 300)):
        events = run(engine, request(name, text))
        read = [event for event in events if isinstance(event, Prefill) and event.request_id == name]
        cached = ends(events)[name].usage.cached_tokens
        assert (cached > 200) == (name == "b")
        assert len(read) > 2
        assert {event.cached for event in read} == {cached}
        assert all(event.cached < event.done <= event.total for event in read)


def test_a_prompt_that_cannot_fit_names_both_numbers(make):
    with pytest.raises(PromptTooLong, match=r"has 1\d\d tokens, but the context is 100"):
        make(context=100).submit(request("a", "x" * 90))


def test_a_full_context_ends_the_reply_and_says_so(make):
    engine = make(context=100, reply="y" * 200)
    events = run(engine, request("a", "hi"))
    finished = ends(events)["a"]
    assert finished.reason == "context"
    assert finished.usage.prompt_tokens + finished.usage.completion_tokens == 100
    assert texts(events)["a"] == "y" * finished.usage.completion_tokens


def test_the_length_is_limited(make):
    engine = make()
    events = run(engine, request("5", max_tokens=7))
    assert texts(events)["5"] == "reply n"
    assert ends(events)["5"].reason == "length"


def test_stop_strings(make):
    engine = make()
    events = run(engine, request("5", stop=("number",)))
    assert texts(events)["5"] == "reply "
    assert ends(events)["5"].reason == "stop"


def test_cancel_disturbs_no_other(make):
    engine = make()
    for name in "56":
        engine.submit(request(name))
    events = [event for _ in range(10) for event in engine.step()]
    events += engine.cancel("5")
    assert engine.cancel("nobody") == []
    events += run(engine)
    assert ends(events)["5"].reason == "cancelled"
    assert texts(events)["6"] == "reply number 6 " * 6
    assert ("reply number 5 " * 5).startswith(texts(events)["5"])


def test_a_request_that_waits_can_be_cancelled(make):
    engine = make(n_seq_max=1)
    engine.submit(request("5"))
    engine.submit(request("6"))
    engine.step()
    assert ends(engine.cancel("6"))["6"].usage.completion_tokens == 0
    assert texts(run(engine)).keys() == {"5"}


def test_the_next_turn_computes_only_what_is_new(make):
    engine = make(reply="Hello.")
    first = (Message("user", "a long question " * 10),)
    run(engine, ChatRequest(id="a", messages=first))
    second = (*first, Message("assistant", "Hello."), Message("user", "and?"))
    usage = ends(run(engine, ChatRequest(id="b", messages=second)))["b"].usage
    new = "<|im_end|>\n<|im_start|>user\nand?<|im_end|>\n<|im_start|>assistant\n"
    n_new = len(engine.backend.vocabulary.tokenize(new, bos=False, special=True))
    assert usage.prompt_tokens - usage.cached_tokens == n_new


def test_two_chats_that_take_turns_both_stay_warm(make):
    engine = make(reply="Hello.")
    chats = {name: (Message("user", f"{name} long question " * 10),) for name in ("first", "second")}
    for turn in range(3):
        for name, said in chats.items():
            ended = ends(run(engine, ChatRequest(id=f"{name}{turn}", messages=said)))
            usage = ended[f"{name}{turn}"].usage
            assert usage.cached_tokens > 100 or not turn
            chats[name] = (*said, Message("assistant", "Hello."), Message("user", "and?"))


def test_a_template_that_renders_nothing_is_an_error(make):
    engine = make()
    engine.template = ChatTemplate("{# nothing #}")
    engine.backend.vocabulary.tokenize = lambda text, bos, special: []
    with pytest.raises(TemplateError, match="an empty prompt"):
        engine.submit(request("a"))
    engine.template.close()


def test_a_text_far_too_long_is_refused_before_any_work(make):
    engine = make(context=100)
    engine.template = None
    with pytest.raises(PromptTooLong, match="more than"):
        engine.submit(request("a", "x" * 100_000))


def test_far_too_many_messages_are_refused_before_any_work(make):
    engine = make(context=1000)
    run(engine, request("a"))
    engine.backend.vocabulary.tokenize = None
    with pytest.raises(PromptTooLong, match="more than"):
        engine.submit(ChatRequest(id="b", messages=(Message("user", "a"),) * 5000, overflow="error"))


def test_a_backend_with_fewer_cells_than_it_says(make):
    engine = make(context=400)
    engine.backend.context = 180
    assert texts(run(engine, *map(request, "56"))) == replies("56")


@pytest.mark.parametrize("size", [20, 80, 150])
def test_a_reply_ends_where_a_backend_has_fewer_cells_than_it_says(make, size):
    """20 fills it in the middle of its reply, 150 does before it."""
    engine = make(context=400, reply="on and on " * 30)
    engine.backend.context = 120
    assert ends(run(engine, request("a", "x" * size)))["a"].reason == "context"


def test_who_finds_no_room_in_company_runs_alone(make, monkeypatch):
    """As with a windowed model, two of whose sequences share cells that the window has left behind."""
    engine = make(context=400)
    decode, refused = engine.backend.decode, []

    def crowded(parts):
        held = [seq for seq in range(4) if engine.backend.tokens_of(seq)]
        if engine.backend.cells_used > 60 and len(held) > 1:
            refused.append(held)
            raise CacheFull
        return decode(parts)

    monkeypatch.setattr(engine.backend, "decode", crowded)
    for n in (5, 6, 4):
        engine.submit(request(str(n)))
    assert texts(run(engine, request("3", priority="background"))) == replies("5643")
    assert 0 < len(refused) < 30
    assert engine.scheduler.cells == 400


def test_where_the_backend_cannot_cut_nothing_is_reused_wrongly(make):
    engine = make(cuts=False, n_checkpoints=0)
    for name, text in (("a", "one two three"), ("b", "one two four"), ("c", "one")):
        usage = ends(run(engine, request(name, text)))[name].usage
        assert usage.cached_tokens == 0


CANNOT_CUT = {"windowed": {"window": 30}, "hybrid": {"cuts": False}}


def long_chat(n_messages):
    return [
        Message(("user", "assistant")[n % 2], f"This is message number {n}. " * 4) for n in range(n_messages)
    ]


@pytest.mark.parametrize("kind", CANNOT_CUT)
@pytest.mark.parametrize("edited", [1, 8, 16, 18, 20])
def test_an_edit_recomputes_from_the_last_common_message(make, kind, edited):
    """And no more than a quarter of that besides, or a few tokens, although nothing can be cut."""
    engine = make(n_checkpoints=16, **CANNOT_CUT[kind])
    messages = long_chat(21)
    new = run(engine, ChatRequest(id="new", messages=tuple(messages)))
    messages[edited] = Message(messages[edited].role, "No: " + messages[edited].content)
    usage = ends(run(engine, ChatRequest(id="edit", messages=tuple(messages))))["edit"].usage
    before = engine.prompts.of(ChatRequest(id="x", messages=tuple(messages)), 4096).boundaries[edited]
    needed = usage.prompt_tokens - before
    assert 0 <= usage.prompt_tokens - usage.cached_tokens - needed <= max(needed // 4, 32)
    assert ends(new)["new"].usage.cached_tokens == 0
    check(engine)


def test_a_prompt_that_shares_with_a_running_one_waits_for_it(make):
    engine = make(cuts=False, n_batch=64)
    messages = long_chat(9)
    for n in range(3):
        messages[-1] = Message("user", f"question {n} " * 5)
        engine.submit(ChatRequest(id=str(n), messages=tuple(messages)))
    found = ends(run(engine))
    before = engine.prompts.of(ChatRequest(id="x", messages=tuple(messages)), 4096).boundaries[-2]
    assert found["0"].usage.cached_tokens == 0
    assert all(before - 64 < found[name].usage.cached_tokens <= before for name in ("1", "2"))
    check(engine)


def test_when_the_cache_runs_out_the_youngest_waits_and_nothing_is_lost(make):
    engine = make(context=180)
    for n in (5, 6):
        engine.submit(request(str(n)))
    preempted = []
    preempt = engine.scheduler.preempt
    engine.scheduler.preempt = lambda one: (preempted.append(one.id), preempt(one))
    events = run(engine)
    assert preempted == ["6"]
    assert texts(events) == replies("56")


def test_numbers_that_are_none_end_only_their_request(make):
    engine = make(rules=[{"when": "bad", "reply": "abc", "nan_after": 2}, *RULES])
    engine.submit(request("x", "bad"))
    events = run(engine, request("4"))
    (failed,) = [event for event in events if isinstance(event, Failed)]
    assert failed.error.kind == "DecodeFailed"
    assert texts(events) == {"x": "ab", "4": "reply number 4 " * 4}


def test_a_switch_the_template_does_not_know_is_an_error(make):
    with pytest.raises(SwitchUnknown):
        make().submit(request("a", think=True))


@pytest.mark.slow
@settings(
    max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("submit"), st.integers(1, 6), st.integers(0, 60)),
            st.tuples(st.just("cancel"), st.integers(0, 30), st.just(0)),
            st.tuples(st.just("step"), st.integers(1, 30), st.just(0)),
        ),
        max_size=40,
    ),
    context=st.integers(150, 400),
    n_seq_max=st.integers(1, 4),
    cuts=st.booleans(),
    mixes=st.booleans(),
)
def test_any_interleaving_gives_every_request_its_own_reply(make, steps, context, n_seq_max, cuts, mixes):
    engine = make(context=context, n_seq_max=n_seq_max, cuts=cuts, mixes=mixes)
    expected = {}
    cancelled = set()
    events = []
    for what, number, size in steps:
        if what == "submit":
            name = str(len(expected))
            engine.submit(request(name, f"<{number}>" + "z" * size, sampling=Sampling(temperature=0)))
            expected[name] = f"reply number {number} " * number
        elif what == "cancel":
            events += engine.cancel(str(number))
            cancelled.add(str(number))
        else:
            for _ in range(number):
                events += engine.step()
                check(engine)
    events += run(engine)
    found, finished = texts(events), ends(events)
    assert finished.keys() == expected.keys()
    for name, text in expected.items():
        if finished[name].reason == "stop":
            assert found[name] == text
        else:
            assert text.startswith(found[name])
            assert finished[name].reason == "context" or name in cancelled
