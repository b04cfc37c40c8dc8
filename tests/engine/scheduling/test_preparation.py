"""Requests are prepared beside the thread that computes; what goes wrong with one ends that one."""

import threading

import pytest

from edgechat.base.errors import EngineError, PromptTooLong
from edgechat.engine.engine import EngineCore
from edgechat.engine.kv.state_store import KVStateStore
from edgechat.engine.prompt.template import ChatTemplate
from edgechat.engine.types import ChatRequest, Delta, Failed, Finished, Message, Persisted
from tests.engine.prompt.test_prompts import SOURCES, Here
from tests.scripted.backend import ScriptedBackend


class Gate(Here):
    """A template's process that waits over texts that say so, and cannot be started for others."""

    def __init__(self):
        self.open = threading.Event()
        self.reached = threading.Event()
        self.asked = []
        self.broken = False
        self.slow = False

    def answer(self, request):
        text = str(request.variables["messages"])
        self.asked.append(text)
        if self.broken:
            raise OSError("no process")
        if "wait" in text or self.slow:
            self.reached.set()
            assert self.open.wait(30)
        return super().answer(request)


@pytest.fixture
def gate():
    return Gate()


@pytest.fixture
def engine(scripted, gate):
    plan = scripted(reply="word " * 200, context=1024)
    engine = EngineCore(ScriptedBackend(plan, None), ChatTemplate(SOURCES["chatml"], process=gate))
    yield engine
    gate.open.set()
    engine.close()


def request(name, text, **options):
    return ChatRequest(id=name, messages=(Message("user", text),), **{"max_tokens": 5, **options})


def until(engine, kind, name, limit=100_000):
    """Step until a request has such an event; return all events."""
    events = []
    for _ in range(limit):
        events += engine.step()
        if any(isinstance(one, kind) and one.request_id == name for one in events):
            return events
    raise AssertionError("it never came")


@pytest.mark.slow
def test_a_template_that_hangs_stops_no_stream(engine, gate):
    engine.begin(request("stream", "Hi", max_tokens=600))
    until(engine, Delta, "stream")
    engine.begin(request("hangs", "wait"))
    assert gate.reached.wait(30)
    assert engine.n_running == 2
    events = until(engine, Finished, "stream")
    assert not any(getattr(one, "request_id", "") == "hangs" for one in events)
    assert engine.is_waiting
    gate.open.set()
    until(engine, Finished, "hangs")


def test_a_cancelled_request_is_never_prepared(engine, gate):
    engine.begin(request("hangs", "wait"))
    assert gate.reached.wait(30)
    names = [f"gone{n}" for n in range(15)]
    for name in names:
        engine.begin(request(name, name))
        [end] = engine.cancel(name)
        assert (end.request_id, end.reason) == (name, "cancelled")
    assert engine.cancel("hangs")
    assert engine.is_idle
    gate.open.set()
    engine.begin(request("last", "Hello"))
    until(engine, Finished, "last")
    assert not any(name in text for text in gate.asked for name in names)


@pytest.mark.slow
def test_what_is_wrong_with_a_request_ends_that_one(engine, gate):
    engine.begin(request("stream", "Hi", max_tokens=600))
    until(engine, Delta, "stream")
    engine.begin(request("long", "x" * 5000, overflow="error"))
    [failed] = [one for one in until(engine, Failed, "long") if isinstance(one, Failed)]
    assert isinstance(failed.error.error(), PromptTooLong)
    gate.broken = True
    engine.begin(request("unlucky", "Hello"))
    [failed] = [one for one in until(engine, Failed, "unlucky") if isinstance(one, Failed)]
    assert isinstance(failed.error.error(), EngineError)
    until(engine, Finished, "stream")


@pytest.mark.slow
def test_a_window_that_cannot_be_moved_ends_that_reply(engine, gate):
    """Its template's process cannot be started again, in the middle of the reply."""
    turns = [Message("user" if n % 2 == 0 else "assistant", "x" * 150) for n in range(5)]
    engine.begin(request("other", "Hi", max_tokens=600))
    events = until(engine, Delta, "other")  # it was rendered, before the process breaks
    engine.begin(ChatRequest(id="long", messages=tuple(turns), chat="c" * 8))
    events += until(engine, Delta, "long")
    gate.broken = True
    events += until(engine, Failed, "long")
    while not engine.is_idle:
        events += engine.step()
    assert [one.request_id for one in events if isinstance(one, Failed)] == ["long"]
    assert [one.request_id for one in events if isinstance(one, Finished)] == ["other"]


def test_a_chat_that_is_deleted_meanwhile_is_not_kept(engine, gate):
    engine.begin(request("hangs", "wait", chat="secret"))
    assert gate.reached.wait(30)
    engine.forget("secret")
    gate.open.set()
    until(engine, Finished, "hangs")
    assert "secret" not in engine.chat_cache.chats


@pytest.mark.slow
def test_a_template_that_hangs_over_the_next_turn_stops_no_stream(scripted, gate, monkeypatch, opened):
    """What a chat's next turn begins with is worked out when it is left: its state is cut to that."""
    monkeypatch.setattr("edgechat.engine.scheduling.chat_cache.LEAVE_SECONDS", 0.0)
    plan = scripted(reply="word " * 200, context=1024)
    states = KVStateStore(2**30, b"a model")
    engine = opened(
        EngineCore(ScriptedBackend(plan, None), ChatTemplate(SOURCES["chatml"], process=gate), states=states)
    )
    engine.begin(request("first", "Hello", chat="c" * 8))
    until(engine, Finished, "first")
    engine.begin(request("stream", "Hi", max_tokens=600))
    until(engine, Delta, "stream")
    gate.slow = True
    engine.persist("c" * 8)
    assert gate.reached.wait(30)
    events = until(engine, Finished, "stream")
    assert not any(isinstance(one, Persisted) for one in events)
    assert engine.is_waiting
    gate.open.set()
    while not any(isinstance(one, Persisted) for one in engine.step()):
        assert not engine.is_idle
