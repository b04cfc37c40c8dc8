"""A real llama-server on loopback: EDGECHAT_LLAMA_SERVER or PATH has the program, or this is skipped."""

import asyncio
import os
import shutil

import pytest

from benchmarks.remote import served
from edgechat.engine.remote.engine import RemoteEngine, RunningHost
from edgechat.engine.types import ChatRequest, Delta, Finished, Message, Sampling, Translated
from edgechat.models.remote.model import HostedModel
from edgechat.planner.plan import LoadPlan
from edgechat.settings import RemoteServer
from tests.kit import tiny

PROGRAM = os.environ.get("EDGECHAT_LLAMA_SERVER") or shutil.which("llama-server")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(PROGRAM is None, reason="there is no llama-server")]
NAME = "tiny"


@pytest.fixture
async def engine():
    assert PROGRAM is not None
    async with served(PROGRAM, str(tiny("dense")), "--alias", NAME) as url:
        remote = HostedModel(server="desk", id=NAME, kind="openai", url=url)
        plan = LoadPlan(model_path="", model_name=remote.name, context=1024, remote=remote)
        made = RemoteEngine(plan, RunningHost(RemoteServer(url=url)))
        yield made
        await made.close()


def asked(name, **fields):
    sampling = Sampling(temperature=0.0)
    return ChatRequest(id=name, messages=(Message("user", "hi"),), sampling=sampling, **fields)


async def reply_of(engine, name, **fields):
    events = [event async for event in engine.stream(asked(name, **fields))]
    assert isinstance(events[-1], Finished)
    return "".join(event.text for event in events if isinstance(event, Delta)), events[-1]


async def test_it_answers(engine):
    model = await engine.start()
    assert (model.backend, model.context > 0) == ("llama-server", True)
    text, end = await reply_of(engine, "a", max_tokens=16)
    assert end.reason in ("length", "stop")
    assert (end.usage.completion_tokens <= 16, end.usage.prompt_tokens > 0) == (True, True)
    four = await asyncio.gather(*(reply_of(engine, str(at), max_tokens=16) for at in range(4)))
    assert [reply for reply, _ in four] == [text] * 4
    there = await engine.translate("t", "Hello")
    assert isinstance(there, Translated)
    back = await engine.translate("u", there.tokens)
    assert isinstance(back, Translated)
    assert back.text.strip() == b"Hello"


async def test_it_stops(engine):
    async for event in engine.stream(asked("a", max_tokens=2000)):
        if isinstance(event, Delta):
            await engine.cancel("a")
    assert event.reason in ("cancelled", "stop")
    await reply_of(engine, "b", max_tokens=4)
