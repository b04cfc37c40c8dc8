"""A lone prompt is computed in large calls, which are interrupted by new requests."""

import io
import os
import threading

import msgspec
import pytest

from edgechat.base.process import frames
from edgechat.engine.engine import EngineCore
from edgechat.engine.types import ChatRequest, Delta, Finished, Message, Sampling
from edgechat.engine.worker.messages import Cancel, Generate, Inspect
from edgechat.engine.worker.worker import Pipe
from tests.engine.runtimes import Runtime, SharedTemplate, load, plan

LONG = "The quick brown fox jumps over the lazy dog. " * 30
KINDS = ("dense", "windowed", "moe")


def request(name, text):
    said = (Message("user", text),)
    return ChatRequest(id=name, messages=said, sampling=Sampling(temperature=0), max_tokens=8)


def open_engine(kind, chatml):
    return EngineCore(load(plan(Runtime("llama.cpp").model(kind))), SharedTemplate(chatml))


def replies(engine, limit=5000):
    """Step to the end; return the text of each request."""
    text = {}
    for _ in range(limit):
        if engine.is_idle:
            return text
        for event in engine.step():
            if isinstance(event, Delta):
                text[event.request_id] = text.get(event.request_id, "") + event.text
    raise AssertionError("it never ends")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_to_interrupt_for_ever_stops_no_prompt(kind, chatml):
    expected = []
    for interrupts in (False, True):
        engine = open_engine(kind, chatml)
        if interrupts:
            engine.backend.interruption.interrupt()
        engine.submit(request("a", LONG))
        engine.submit(request("b", LONG[::-1]))
        expected.append(replies(engine))
        engine.close()
    assert expected[0] == expected[1]


@pytest.mark.parametrize("kind", KINDS)
def test_what_an_interrupted_prompt_has_cached_is_gone_on_from(kind, chatml, opened):
    engine = open_engine(kind, chatml)
    interruption = engine.backend.interruption
    engine.submit(request("a", LONG))
    for _ in range(3):
        engine.step()
    done = engine.scheduler.running[0].slot.length
    assert done > 0
    interruption.interrupt()
    engine.step()
    assert engine.scheduler.running[0].slot.length == done
    interruption.clear_interrupt()
    [end] = engine.cancel("a")
    assert isinstance(end, Finished)
    engine.submit(request("a", LONG))
    assert engine.scheduler.sequences[0] is not None
    text = replies(engine)["a"]
    assert engine.last_usage.cached_tokens >= done - 1
    engine.close()
    again = opened(open_engine(kind, chatml))
    again.submit(request("a", LONG))
    assert replies(again)["a"] == text


def test_a_short_prompt_does_not_wait_for_the_end_of_a_long_one(chatml, opened):
    engine = opened(open_engine("dense", chatml))
    engine.submit(request("long", LONG))
    engine.step()
    engine.submit(request("short", "Hello."))
    first = []
    while not engine.is_idle:
        first += [event.request_id for event in engine.step() if isinstance(event, Delta)]
    assert first[0] == "short"


class Flag:
    """An interruption that only remembers."""

    def __init__(self):
        self.is_set = False
        self.count = 0

    def interrupt(self):
        self.is_set, self.count = True, self.count + 1

    def clear_interrupt(self):
        self.is_set = False


def test_the_pipe_interrupts_for_what_cannot_wait_and_leaves_nothing_behind():
    reading, writing = os.pipe()
    pipe = Pipe(os.fdopen(reading, "rb"), io.BytesIO())
    pipe.interruption = flag = Flag()
    commands = [Generate(request(str(n), "x")) for n in range(200)]
    commands += [Cancel(str(n)) for n in range(200)] + [Inspect(None)] * 100
    encoder = msgspec.msgpack.Encoder()
    # Never closed: the end of its commands ends the process.
    target = os.fdopen(writing, "wb", buffering=0, closefd=False)

    def write():
        for command in commands:
            frames.write(target, encoder.encode(command))

    writer = threading.Thread(target=write)
    writer.start()
    received = []
    while len(received) < len(commands):
        pipe.wait(None)
        received += pipe.received()
    writer.join()
    assert received == commands
    assert flag.count == 400
    pipe.wait(0.0)
    assert not flag.is_set
