"""Workers killed at random moments, many times over: no word lost, no process left, and on it goes."""

import asyncio
import os
import random

import psutil
import pytest

from edgechat.base.errors import EngineCrashed
from edgechat.engine.types import ChatRequest, Delta, Message
from edgechat.engine.worker.supervisor import EngineSupervisor
from edgechat.planner.plan import LoadPlan
from tests import scripted

pytestmark = [pytest.mark.soak, pytest.mark.slow]

KILLS = int(os.environ.get("EDGECHAT_SOAK_KILLS", "200"))
REPLY = "a reply of some length, word after word " * 10


async def test_workers_killed_at_random_moments(tmp_path, scripted_workers):
    path = scripted.write(tmp_path / "model.gguf", reply=REPLY, token_ms=1, load_ms=50)
    plan = LoadPlan(model_path=str(path), model_name="m", context=8192, threads=1)
    engine = EngineSupervisor(plan)
    chance = random.Random(1)

    async def say(number):
        text = ""
        request = ChatRequest(id=str(number), messages=(Message("user", f"message {number}"),))
        try:
            async for event in engine.stream(request):
                if isinstance(event, Delta):
                    text += event.text
        except EngineCrashed:
            assert text != REPLY
        assert REPLY.startswith(text)
        return text

    for number in range(KILLS):
        answer = asyncio.create_task(say(number))
        await asyncio.sleep(chance.uniform(0, 0.9))
        for child in psutil.Process().children():
            if "engine" in child.cmdline():
                child.kill()
        await answer
    assert await say(KILLS) == REPLY
    await engine.close()
    _, alive = psutil.wait_procs(psutil.Process().children(recursive=True), timeout=3)
    assert not [one for one in alive if "edgechat" in " ".join(one.cmdline())]
