"""Internal errors, wherever they occur, end one request and are logged; other requests go on."""

import asyncio
import sys
import time

import psutil
import pytest

from edgechat.base.errors import EngineError
from edgechat.engine.engine import EngineCore
from edgechat.engine.prompt.template import ChatTemplate
from edgechat.engine.scheduling.sequence import Sequence
from edgechat.engine.types import CachePolicy, ChatRequest, Delta, Failed, Finished, Message, Persisted
from edgechat.engine.worker.messages import Cancel, Generate, Inspect, Inspected, Persist
from edgechat.engine.worker.supervisor import EngineSupervisor
from edgechat.engine.worker.worker import _handle_safely
from tests.scripted.backend import ScriptedBackend

pytestmark = pytest.mark.slow

GOOD, BAD = "a good reply " * 8, "a bad one " * 40
RULES = [{"when": "good", "reply": GOOD}, {"when": "bad", "reply": BAD}]


@pytest.fixture
def engine(scripted):
    template = ChatTemplate(None, bos="<s>", eos="<|im_end|>")
    plan = scripted(rules=RULES, context=320)
    engine = EngineCore(ScriptedBackend(plan), template, ngrams=True, cache_policy=CachePolicy(disk_bytes=0))
    yield engine
    engine.close()


def asked(name, **options):
    return ChatRequest(id=name, messages=(Message("user", name),), **options)


def concerns_bad(value):
    if isinstance(value, Sequence | ChatRequest):
        return value.id == "bad"
    if isinstance(value, list | tuple):
        return any(map(concerns_bad, value))
    return False


def break_it(monkeypatch, owner, name, *, always=False):
    """Let a method raise where it gets the bad request."""
    sound = getattr(owner, name)

    def broken(*args, **options):
        if always or concerns_bad(args):
            raise RuntimeError(f"{name} is broken")
        return sound(*args, **options)

    monkeypatch.setattr(owner, name, broken)


def run(engine, events):
    """Step to the end; return what was said to each, or how its request failed."""
    for _ in range(9000):
        if engine.is_idle:
            break
        events += engine.step()
        if engine.is_waiting:
            time.sleep(0.001)
    said = {"good": "", "bad": ""}
    for event in events:
        if isinstance(event, Delta):
            said[event.request_id] += event.text
    failed = {event.request_id: event.error.message for event in events if isinstance(event, Failed)}
    ended = [event.request_id for event in events if isinstance(event, Failed | Finished)]
    assert sorted(ended) == ["bad", "good"]
    return said | failed


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        ("engine", "_prepare"),
        ("engine", "_queue"),
        ("chat_cache", "begin"),
        ("scheduler", "_seat"),
        ("scheduler", "_part"),
        ("scheduler", "computed"),
        ("engine", "_compute"),
        ("engine", "_extend"),
        ("engine", "_finish"),
        ("engine", "_overflow"),
        ("prompts", "shorter"),
        ("engine", "_resume_shortened"),
        ("scheduler", "resume"),
        ("chat_cache", "end"),
    ],
)
def test_a_fault_over_a_request_ends_that_one(engine, owner, name, monkeypatch, caplog):
    break_it(monkeypatch, engine if owner == "engine" else getattr(engine, owner), name)
    engine.begin(asked("good"))
    events = []
    while not engine.scheduler.running:
        events += engine.step()
    turn = (Message("user", "y" * 9), Message("assistant", "x" * 9))
    chat = (*turn * 3, Message("user", "bad"))
    engine.begin(ChatRequest(id="bad", messages=chat, overflow="window", chat="bad"))
    found = run(engine, events)
    assert found["good"] == GOOD
    assert found["bad"] == f"The engine failed on this request: RuntimeError('{name} is broken')"
    assert "Traceback" in caplog.text
    monkeypatch.undo()
    engine.begin(asked("bad"))
    engine.begin(asked("good"))
    found = run(engine, [])
    assert found["good"] == GOOD
    assert BAD.startswith(found["bad"])
    assert len(found["bad"]) > 200


@pytest.mark.parametrize("name", ["draft", "done"])
def test_a_fault_over_drafts_ends_nobody(engine, name, monkeypatch, caplog):
    break_it(monkeypatch, engine.speculation, name, always=True)
    engine.begin(asked("good"))
    engine.begin(asked("bad"))
    found = run(engine, [])
    assert found["good"] == GOOD
    assert BAD.startswith(found["bad"])
    assert len(found["bad"]) > 200
    assert "Traceback" in caplog.text
    assert not engine.speculation.drafts


def test_a_fault_that_stays_is_raised_where_nobody_is_left(engine, monkeypatch):
    break_it(monkeypatch, engine.scheduler, "plan", always=True)
    engine.submit(asked("good"))
    engine.submit(asked("bad"))
    events = engine.step() + engine.step()
    assert [event.request_id for event in events if isinstance(event, Failed)] == ["bad", "good"]
    with pytest.raises(RuntimeError):
        engine.step()


def test_a_fault_over_a_command_is_told_to_who_gave_it(caplog):
    def handle(_):
        raise RuntimeError("broken")

    for command in (Generate(asked("r")), Cancel("r")):
        (failed,) = _handle_safely(handle, command)
        assert isinstance(failed, Failed)
        assert failed.request_id == "r"
    assert _handle_safely(handle, Persist("chat")) == [Persisted("chat")]
    assert _handle_safely(handle, Inspect("chat")) == [Inspected(None)]
    assert caplog.text.count("Traceback") == 4


@pytest.mark.skipif(sys.platform != "linux", reason="prlimit")
async def test_a_template_process_that_cannot_start_again_ends_its_request_only(scripted, running):
    engine = running(EngineSupervisor(scripted(rules=[{"when": "slow", "reply": GOOD * 4}], token_ms=20)))

    begun = asyncio.Event()

    async def said(name):
        text = ""
        async for event in engine.stream(asked(name)):
            if isinstance(event, Delta):
                begun.set()
                text += event.text
        return text

    await engine.start()
    (worker,) = [one for one in psutil.Process().children() if "engine" in one.cmdline()]
    slow = asyncio.create_task(said("slow"))
    await begun.wait()
    before = worker.rlimit(psutil.RLIMIT_NOFILE)
    worker.rlimit(psutil.RLIMIT_NOFILE, (worker.num_fds(), before[1]))
    for child in worker.children():
        child.kill()
        while child.is_running() and child.status() != psutil.STATUS_ZOMBIE:
            await asyncio.sleep(0.01)
    for name in ("bad", "worse"):
        with pytest.raises(EngineError, match="Too many open files"):
            await said(name)
    worker.rlimit(psutil.RLIMIT_NOFILE, before)
    assert await said("well")
    assert await slow == GOOD * 4
    assert worker.is_running()
