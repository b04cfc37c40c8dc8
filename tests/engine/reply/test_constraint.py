"""Requests that want a schema followed, chances told, a bias, or a text gone on with, through the engine."""

import codecs
import itertools
import json
import threading
import time
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edgechat.base.errors import BadRequest, EngineError, PromptTooLong, SchemaError
from edgechat.engine.backends.base import BatchPart
from edgechat.engine.engine import EngineCore
from edgechat.engine.prompt.template import ChatTemplate
from edgechat.engine.reply.constraints import Constraints
from edgechat.engine.reply.generation import Logprobs
from edgechat.engine.reply.reply import Reply
from edgechat.engine.speculative.drafters import ModelDrafter
from edgechat.engine.types import ChatRequest, Delta, Failed, Finished, Message, Sampling
from tests.engine.runtimes import Runtime, SharedTemplate, load, plan
from tests.engine.speculative import test_verify
from tests.engine.speculative.always import Always
from tests.engine.speculative.test_verify import OFF, expected, is_rejected, logits_of
from tests.kit import CHATML
from tests.scripted.backend import ScriptedBackend

pytestmark = pytest.mark.slow

COLOURS = {"enum": ["red", "green", "blue"]}
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "colour": COLOURS,
            "n": {"type": "integer", "minimum": 0, "maximum": 99},
            "name": {"type": "string", "maxLength": 8},
            "list": {"type": "array", "items": COLOURS, "maxItems": 3},
        },
        "required": ["colour", "n", "name", "list"],
        "additionalProperties": False,
    }
)
PINNED = json.dumps({"const": {"say": "hello", "to": ["all", "of", "you"]}})


@pytest.fixture(scope="module")
def template():
    template = ChatTemplate(CHATML, bos="<s>", eos="<|im_end|>")
    yield SharedTemplate(template)
    template.close()


@pytest.fixture
def make(scripted, template, opened):
    def engine(**script):
        return opened(EngineCore(ScriptedBackend(scripted(**script)), template))

    return engine


def request(name="a", text="hi", **options):
    options.setdefault("sampling", Sampling(temperature=0))
    return ChatRequest(id=name, messages=(Message("user", text),), **options)


def run(engine, *requests):
    events = [event for one in requests for event in engine.submit(one)]
    while not engine.is_idle:
        if engine.is_waiting:
            time.sleep(0.001)
        events += engine.step()
    return events


def texts(events):
    found = defaultdict(str)
    for event in events:
        if isinstance(event, Delta):
            found[event.request_id] += event.text
    return found


def end(events, name="a"):
    return next(one for one in events if isinstance(one, Finished | Failed) and one.request_id == name)


def chances(events, name="a"):
    return [c for one in events if isinstance(one, Delta) and one.request_id == name for c in one.chances]


# Schemas.


def test_a_reply_follows_its_schema_and_ends_with_it(make):
    engine = make(reply='{"n": 12} and so on')
    schema = '{"type": "object", "properties": {"n": {"type": "integer"}}, "additionalProperties": false}'
    events = run(engine, request(schema=schema))
    assert texts(events)["a"] == '{"n": 12}'
    assert end(events).reason == "stop"


def test_a_chat_goes_on_after_it(make):
    engine = make(reply='{"n": 12}')
    events = run(engine, request(schema='{"type": "object"}', chat="00000001"), request("b"))
    assert texts(events) == {"a": '{"n": 12}', "b": '{"n": 12}'}


def test_what_cannot_be_followed_fails_alone(make):
    engine = make(reply="fine")
    with pytest.raises(SchemaError):
        engine.submit(request("a", schema="[]"))
    events = run(engine, request("b", schema='{"type": "odd"}'), request("c"))
    assert end(events, "b").error.kind == "SchemaError"
    assert texts(events) == {"c": "fine"}


def test_without_llguidance_it_says_what_to_install(make, monkeypatch):
    monkeypatch.setattr("edgechat.engine.reply.constraints._is_missing", lambda: True)
    with pytest.raises(EngineError, match="not installed") as caught:
        make().submit(request(schema="{}"))
    assert caught.value.hint == 'pip install "edgechat[server]"'


@pytest.fixture
def gate(monkeypatch):
    """Let no grammar be compiled before it is set, which the end of the test does as well."""
    gate, try_out = threading.Event(), Constraints._compile_in_child
    monkeypatch.setattr(Constraints, "_compile_in_child", lambda *asked: (gate.wait(), try_out(*asked)))
    yield gate
    gate.set()


def test_others_go_on_while_a_grammar_is_compiled_and_it_can_be_cancelled(make, gate):
    engine = make(reply='{"n": 1}')
    events = []
    for one in (request("streams"), request("waits", schema="{}"), request("cancelled", schema=PINNED)):
        events += engine.submit(one)
    assert engine.n_running == 3
    events += engine.cancel("cancelled")
    while not any(isinstance(one, Finished) and one.request_id == "streams" for one in events):
        events += engine.step()
    assert engine.n_running == engine.n_waiting == 1
    gate.set()
    events += run(engine)
    assert end(events, "cancelled").reason == "cancelled"
    assert texts(events) == {"streams": '{"n": 1}', "waits": '{"n": 1}'}


def test_a_chat_that_is_deleted_while_its_grammar_is_compiled_is_not_remembered(make, gate):
    engine = make(reply='{"n": 1}')
    engine.submit(request("r", schema="{}", chat="c0ffee00"))
    assert engine.n_waiting == 1
    engine.forget("c0ffee00")
    gate.set()
    assert texts(run(engine)) == {"r": '{"n": 1}'}
    assert not engine.chat_cache.chats


def test_a_grammar_too_complex_for_its_text_ends_the_request(make, monkeypatch):
    """What only shows at its third token."""
    nested = {"properties": {"x": {"type": "object", "properties": {f"p{at}": {} for at in range(900)}}}}
    engine = make(reply='{"x": {"p1": 1}}')
    events = run(engine, request(schema=json.dumps(nested | {"type": "object"})), request("b"))
    assert end(events).error.kind == "SchemaError"
    assert texts(events)["b"] == '{"x": {"p1": 1}}'


@pytest.mark.parametrize("kind", ["dense", "hybrid"])
@pytest.mark.parametrize("sampling", [Sampling(temperature=0), Sampling(temperature=1.5, seed=3)])
def test_a_model_that_knows_nothing_of_it_follows_it(template, kind, sampling, opened):
    """Random weights, several replies side by side."""
    engine = opened(EngineCore(load(plan(Runtime("llama.cpp").model(kind, mute=()))), template))
    requests = [request(str(n), f"go {n}", schema=SCHEMA, sampling=sampling) for n in range(3)]
    events = run(engine, *requests)
    for text in texts(events).values():
        found = json.loads(text)
        assert found["colour"] in COLOURS["enum"]
        assert len(found["name"]) <= 8
        assert 0 <= found["n"] <= 99
    assert {end(events, one.id).reason for one in requests} == {"stop"}


@pytest.mark.parametrize("sampling", [Sampling(temperature=0), Sampling(temperature=0.9, seed=5)])
def test_drafts_change_nothing_of_a_reply_with_a_schema(template, runtime, sampling, monkeypatch):
    """A real pair; its drafts are accepted and rejected, and the grammar goes back with them."""
    monkeypatch.setattr("edgechat.engine.speculative.speculation.OVERHEAD", 1e9)
    target, draft = runtime.pair(0.15)
    n = 6 if runtime.name == "llama.cpp" else 1
    found = []
    for drafts in (False, True):
        small = load(plan(draft, n_seq_max=8, context=4096, n_outputs_max=32)) if drafts else None
        engine = EngineCore(
            load(plan(target, n_seq_max=8, context=4096, n_outputs_max=32)),
            template,
            model_drafter=ModelDrafter(small, small.vocabulary.size) if small else None,
            ngrams=drafts,
            controller=Always(),
        )
        requests = [
            request(str(at), f"number {at}", schema=SCHEMA, sampling=sampling, logprobs=2) for at in range(n)
        ]
        events = run(engine, *requests)
        told = {one.id: chances(events, one.id) for one in requests}
        for name, text in texts(events).items():
            assert b"".join(one.token for one in told[name]).decode() == text
        found.append((texts(events), told))
        stats = [end(events, one.id).speculation for one in requests]
        engine.close()
    (plain, likely), (drafted, likely_too) = found
    assert drafted == plain
    assert all(json.loads(text) for text in plain.values())
    assert 0 < sum(one.accepted_tokens for one in stats) < sum(one.drafted_tokens for one in stats)
    for name in plain:
        wanted = [one.logprob for one in likely[name]]
        assert [one.logprob for one in likely_too[name]] == pytest.approx(wanted, abs=1e-2)


ALLOWED = ("abd", "ace", "bcde")
"""Of each letter of a triple."""


DRAFTERS = [{}, {"model": True}, {"ngrams": True}]


@pytest.mark.parametrize("drafters", DRAFTERS, ids=["alone", "model", "n-grams"])
@pytest.mark.parametrize("sampling", [Sampling(**OFF), Sampling(**OFF | {"top_k": 2, "temperature": 0.7})])
def test_what_a_grammar_allows_comes_as_often_as_if_nothing_else_were_known(sampling, drafters, monkeypatch):
    """Chi-square over triples, as in speculative/test_verify.py, whose tables these are."""
    tables = logits_of(1, parted=False)
    masked = tables.copy()
    for at, letters in enumerate(ALLOWED):
        refused = [n for n, letter in enumerate("abcde") if letter not in letters]
        masked[len(tables) - 3 + at][..., refused] = -1e4
    lark = "start: (" + " ".join(f"/[{letters}]/" for letters in ALLOWED) + ")*\n"
    monkeypatch.setattr("edgechat.engine.engine.grammar_of", lambda *_, **__: lark)
    monkeypatch.setattr("edgechat.engine.speculative.speculation.OVERHEAD", 1e9)
    test_verify.seed_all(monkeypatch)  # one run in a thousand would be rejected by chance
    counts, drafted, accepted = test_verify.said(sampling, 2_000, **drafters)
    assert not is_rejected(counts, expected(masked, sampling))
    assert is_rejected(counts, expected(tables, sampling))
    assert not drafters or 0 < accepted < drafted


# Chances.


def softmax(row):
    row = row.astype(np.float64)
    return row - row.max() - np.log(np.exp(row - row.max()).sum())


def test_chances_are_those_of_the_models_own_logits(template, opened):
    """Of the text's tokens one by one, before sampling: another computation gives them."""
    path = Runtime("llama.cpp").model("dense")
    engine = EngineCore(load(plan(path)), template)
    sampling = Sampling(temperature=1.0, top_k=3, seed=1, bias=((65, 3.0),), repetition_penalty=1.3)
    events = run(engine, request(max_tokens=12, sampling=sampling, logprobs=4))
    prompt = engine.backend.vocabulary.tokenize(
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n", bos=True, special=True
    )
    told = chances(events)
    assert b"".join(one.token for one in told).decode() == texts(events)["a"]
    said = engine.backend.vocabulary.tokenize(texts(events)["a"], bos=False, special=False)
    engine.close()
    backend = opened(load(plan(path, n_outputs_max=16)))
    rows = backend.decode([BatchPart(0, 0, [*prompt, *said[:-1]], len(said))])
    for one, row, token in zip(told, rows, said, strict=True):
        true = softmax(row)
        assert one.logprob == pytest.approx(true[token], abs=1e-3)
        best = np.argsort(-true)[:4]
        assert [name for name, _ in one.others] == [bytes([int(at)]) for at in best]
        assert [value for _, value in one.others] == pytest.approx(true[best].tolist(), abs=1e-3)


def test_no_chances_of_a_thought_nor_of_what_a_stop_string_cuts_off(scripted, opened):
    template = ChatTemplate("{# </think> #}" + CHATML)
    engine = opened(
        EngineCore(ScriptedBackend(scripted(reply="<think>hm</think>\n\nYes, it is. STOP here")), template)
    )
    events = run(engine, request(logprobs=0, stop=("STOP",)))
    assert texts(events)["a"] == "hmYes, it is. "
    assert b"".join(one.token for one in chances(events)) == b"Yes, it is. "
    shown = [one for one in events if isinstance(one, Delta) and one.chances]
    assert not any(one.thinking for one in shown)
    assert all(len(one.text) >= len(one.chances) for one in shown)


class Pieces:
    """A vocabulary of these pieces; control tokens have no bytes."""

    def __init__(self, pieces):
        self.pieces = pieces
        self.size = len(pieces)

    def piece(self, token, *, special=False):
        return self.pieces[token] or (b"<|control|>" if special else b"")


PIECES = Pieces(
    [b"a", b" b", b"", b"\xff", b"\xc3", b"\xa9", b"EN", b"D", b"END", b"E", b"c\xe4\xb8", b"\x96 d", b"\n"]
)


@given(
    st.lists(st.integers(0, PIECES.size - 1), max_size=20), st.sampled_from([(), ("END",), ("a b", "\n\n")])
)
@example([3, 0, 6, 7], ("END",))
@example([0, 2, 1, 0, 1], ())
@example([1, 12, 12], ("a b", "\n\n"))
def test_told_are_the_tokens_that_begin_in_what_is_shown(tokens, stop):
    """Whatever their bytes are: halves of characters, none, or such as make no text."""
    reply, likely = Reply(stop), Logprobs(PIECES, 0)
    rows, told, text, fed = np.zeros((1, PIECES.size), np.float32), [], "", 0

    def show(shown):
        nonlocal text
        text += "".join(one for one, _ in shown)
        told.extend(one.token for one in likely.take_shown(reply))

    for token in tokens:
        if reply.stopped:
            break
        fed += 1
        likely.compute(rows, [token])
        shown = reply.feed(PIECES.piece(token))
        likely.track(reply)
        show(shown)
    show(reply.finish())
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    begins = list(itertools.accumulate((len(decoder.decode(PIECES.piece(one))) for one in tokens), initial=0))
    wanted = [one for one, begin in zip(tokens[:fed], begins, strict=False) if begin < len(text)]
    assert told == [PIECES.piece(one, special=True) for one in wanted]


def test_the_chances_of_a_character_come_with_it(make):
    events = run(make(reply="aé世."), request(logprobs=1))
    told = [(one.text, b"".join(c.token for c in one.chances)) for one in events if isinstance(one, Delta)]
    assert b"".join(raw for _, raw in told).decode() == "aé世."
    assert [one.others[0][0] == one.token for one in chances(events)] == [True] * 7


def test_nobody_who_has_not_asked_is_told(make):
    assert chances(run(make(reply="yes"), request())) == []


# Bias.


def test_a_bias_changes_what_is_likeliest_and_can_forbid(make):
    engine = make(reply="aaa")
    biased = Sampling(temperature=0, bias=((ord("a"), -100.0), (ord("z"), 1.0)))
    assert texts(run(engine, request(sampling=biased, max_tokens=3)))["a"] == "zzz"


@pytest.mark.parametrize("bias", [(259, 1.0), (-1, 1.0), (5, float("nan")), (5, float("inf"))])
def test_a_bias_on_nothing_is_refused(make, bias):
    with pytest.raises(BadRequest, match=str(bias[0])):
        make().submit(request(sampling=Sampling(bias=(bias,))))


# Texts.


def continued(text, **options):
    return ChatRequest(id="a", text=text, sampling=Sampling(temperature=0), **options)


def test_a_text_is_gone_on_with_as_it_is(make):
    engine = make(reply="<think>not a thought", answer_after="Once")
    decoded = engine.backend.decode
    seen = []
    engine.backend.decode = lambda parts: (seen.extend(parts[0].tokens), decoded(parts))[1]
    events = run(engine, continued("Say <|im_end|> Once"))
    assert texts(events)["a"] == "<think>not a thought"
    assert seen[:7] == [258, *b"Say ", 257, ord(" ")]
    assert end(events).usage.prompt_tokens == 1 + len("Say ") + 1 + len(" Once")
    assert engine.chat_cache.chats == {}


def test_tokens_may_be_given_and_nothing_of_it_is_kept(make):
    engine = make(reply="yes", answer_after="Once")
    events = run(engine, continued(tuple(b"Once"), chat="00000001", logprobs=0))
    assert texts(events)["a"] == "yes"
    assert end(events).usage.prompt_tokens == 4
    assert engine.chat_cache.chats == {}


def test_texts_that_cannot_be_gone_on_with(make):
    engine = make()
    for wrong in (continued((1, 259)), continued((-1,)), continued(())):
        with pytest.raises(BadRequest):
            engine.submit(wrong)
    for long in (continued("x" * 4096), continued((1,) * 4096), continued("x" * 4_000_000)):
        with pytest.raises(PromptTooLong, match="4096"):
            engine.submit(long)
    assert engine.is_idle


def test_a_text_fills_the_context_and_no_more(make):
    engine = make(reply="y" * 5000, answer_after="x" * 100)
    events = run(engine, continued("x" * 4000))
    assert end(events).reason == "context"


# Several answers to one prompt.


@pytest.mark.parametrize("text", [None, "word " * 60])
@pytest.mark.parametrize(("kind", "n_seq_max"), [("dense", 4), ("hybrid", 6), ("windowed", 6)])
def test_four_answers_to_a_prompt_compute_it_once(template, text, kind, n_seq_max, opened):
    """Where a state cannot be cut, it is copied where the question ends, into slots that must be there."""
    path = Runtime("llama.cpp").model(kind)
    engine = opened(EngineCore(load(plan(path, n_seq_max=n_seq_max, n_outputs_max=8)), template))
    computed = []
    decode = engine.backend.decode
    engine.backend.decode = lambda parts: (decode(parts), computed.extend(len(p.tokens) for p in parts))[0]
    asked = Message("user", "word " * 60)
    requests = [
        ChatRequest(id=str(n), messages=(asked,), text=text, max_tokens=1, sampling=Sampling(seed=n))
        for n in range(4)
    ]
    events = run(engine, *requests)
    n_prompt = end(events, "0").usage.prompt_tokens
    assert n_prompt > 250
    again = n_prompt - end(events, "1").usage.cached_tokens
    assert again <= 64  # for less nobody waits
    assert [end(events, str(n)).usage.cached_tokens for n in range(1, 4)] == [n_prompt - again] * 3
    assert sum(computed) <= n_prompt + 3 * (again + 1)
