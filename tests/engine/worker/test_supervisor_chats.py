"""Chats through real workers: closed, restored by another worker, deleted, and workers killed meanwhile."""

import asyncio
import contextlib
import os
import random

import psutil
import pytest

from edgechat.base.errors import EngineCrashed, EngineError
from edgechat.engine.kv.state_files import folder, prune
from edgechat.engine.kv.state_store import KVStateStore
from edgechat.engine.types import CachePolicy, ChatRequest, Delta, Dropped, Finished, Message, Sampling
from edgechat.engine.worker.supervisor import EngineSupervisor
from tests.engine.worker.test_supervisor import workers

pytestmark = pytest.mark.slow

CHAT = "c0ffee00"
QUESTION = Message("user", "What is the meaning of this? " * 8)
KILLS = int(os.environ.get("EDGECHAT_SOAK_KILLS", "60"))


@pytest.fixture
def plan(scripted):
    """A model whose prompts take so long that to keep a chat is worth it."""
    return scripted(reply="A reply.", prompt_token_ms=2, n_batch=64)


async def ask(engine, *messages):
    text, name = "", os.urandom(4).hex()
    async for event in engine.stream(ChatRequest(id=name, chat=CHAT, messages=messages)):
        if isinstance(event, Delta):
            text += event.text
        elif isinstance(event, Finished):
            end = event
    return text, end


async def test_a_chat_that_was_left_goes_on_in_another_worker(plan):
    engine = EngineSupervisor(plan)
    text, end = await ask(engine, QUESTION)
    assert end.usage.cached_tokens == 0
    await engine.persist(CHAT)
    assert [path.name for path in folder().iterdir()] == [f"{CHAT}.state"]
    await engine.close()
    engine = EngineSupervisor(plan)
    said = (QUESTION, Message("assistant", text), Message("user", "And?"))
    _, end = await ask(engine, *said)
    assert end.usage.prompt_tokens - end.usage.cached_tokens < 40
    engine.forget(CHAT)
    await engine.persist()
    await engine.close()
    assert not list(folder().iterdir())


async def test_a_worker_that_goes_idle_keeps_its_chats(plan, running):
    engine = running(EngineSupervisor(plan, idle_seconds=0.1, cache_policy=CachePolicy(settle=False)))
    await ask(engine, QUESTION)
    while workers():
        await asyncio.sleep(0.02)
    assert [path.name for path in folder().iterdir()] == [f"{CHAT}.state"]
    _, end = await ask(engine, QUESTION)
    assert end.usage.cached_tokens > 200


async def test_what_makes_no_sense_ends_only_its_request(plan, running):
    engine = running(EngineSupervisor(plan))
    await ask(engine, QUESTION)
    before = workers()
    for wrong in ({"chat": "../chat"}, {"sampling": Sampling(seed=-1)}):
        with pytest.raises(EngineError, match="is not valid"):
            async for _ in engine.stream(ChatRequest(id="x", messages=(QUESTION,), **wrong)):
                pass
    with pytest.raises(ValueError, match="not a chat id"):
        engine.forget("../chat")
    assert (await ask(engine, QUESTION))[0] == "A reply."
    assert workers() == before


async def test_where_nothing_may_be_kept_nothing_is(plan, home):
    engine = EngineSupervisor(plan, cache_policy=CachePolicy(disk_bytes=0))
    await ask(engine, QUESTION)
    await engine.persist(CHAT)
    await engine.close()
    assert not (home / "cache" / "states").exists()


async def test_leaving_waits_for_no_worker_that_is_not_there(plan, running):
    engine = running(EngineSupervisor(plan))
    await engine.persist(CHAT)
    assert workers() == []
    await ask(engine, QUESTION)
    (worker,) = workers()
    worker.kill()
    psutil.wait_procs([worker], timeout=5)
    await engine.persist(CHAT)
    assert workers() == []


async def test_what_leaves_the_window_is_told_on_the_way(scripted, running):
    engine = running(EngineSupervisor(scripted(reply="A reply.", context=400)))
    said = [
        m for n in range(20) for m in (Message("user", f"question {n}"), Message("assistant", "A reply."))
    ]
    request = ChatRequest(id="r", messages=(*said, QUESTION))
    events = [event async for event in engine.stream(request)]
    dropped = [event for event in events if isinstance(event, Dropped)]
    assert len(dropped) == 1
    assert events[-1].usage.dropped_turns == dropped[0].turns > 5


async def kill_and_go_on(plan, kills):
    """Kill workers while they settle, save and restore; what they leave is whole, or there is nothing."""
    chance = random.Random(2)
    said = (QUESTION,)
    engine = EngineSupervisor(plan)
    for number in range(kills):
        try:
            text, _ = await ask(engine, *said)
            assert text == "A reply."
            said = (*said, Message("assistant", text), Message("user", f"And {number}?"))[-5:]
            leaving = asyncio.ensure_future(engine.persist(CHAT))
            await asyncio.sleep(chance.uniform(0, 0.03))
            for worker in workers():
                worker.kill()
            await leaving
        except EngineCrashed:
            pass
        state = await asyncio.wrap_future(KVStateStore(None, b"anything").load(CHAT))
        assert state is None, "it is another model's"
        assert all(path.suffix in (".state", ".part") for path in folder().glob("*"))
    with contextlib.suppress(EngineCrashed):  # it may still be dying of the last kill
        await ask(engine, *said)
    text, _ = await ask(engine, *said)
    assert text == "A reply."
    await engine.persist()
    await engine.close()
    prune(lambda chat: True)
    assert [path.suffix for path in folder().iterdir()] == [".state"], "what the dead left is gone"


async def test_workers_killed_while_they_keep_a_chat(plan):
    await kill_and_go_on(plan, 4)


@pytest.mark.soak
async def test_many_workers_killed_while_they_keep_a_chat(plan):
    await kill_and_go_on(plan, KILLS)
