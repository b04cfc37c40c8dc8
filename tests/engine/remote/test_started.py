"""Servers that edgechat starts: a program that is well, dies, is silent, floods its log, or does not end."""

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import uuid
from contextlib import aclosing
from pathlib import Path

import psutil
import pytest

from edgechat.base.errors import EngineCrashed, LoadFailed
from edgechat.base.process import program, spawn
from edgechat.engine.protocol import EngineState
from edgechat.engine.remote.engine import RemoteEngine
from edgechat.engine.remote.started import StartedHost
from edgechat.engine.types import ChatRequest, Delta, Message
from edgechat.models.remote.model import HostedModel
from edgechat.planner.plan import PORT, LoadPlan, ProgramPlan

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).with_name("program.py")


def engine(manner, *options, inherited=(), silent=60.0):
    start = ProgramPlan(
        engine="vllm",
        command=(sys.executable, str(SCRIPT), manner, "--port", PORT, *options),
        environment={"HF_HUB_OFFLINE": "1"},
        inherited=inherited,
        key_variable="VLLM_API_KEY",
    )
    remote = HostedModel(server="vllm", id="tiny", kind="vllm", url="", is_started=True)
    plan = LoadPlan(model_path="", model_name=remote.name, context=256, remote=remote, program=start)
    return RemoteEngine(plan, StartedHost(start, remote.name, silent_seconds=silent))


async def reply(one):
    request = ChatRequest(id=uuid.uuid4().hex, messages=(Message("user", "Hi"),))
    async with aclosing(one.stream(request)) as events:
        return "".join([event.text async for event in events if isinstance(event, Delta)])


def processes():
    """Return the ids of the programs started here, of what ends them, and of their children."""
    found = []
    for one in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if one.cmdline()[-1:] == spawn.command("program")[-1:]:
                found += [each.pid for each in (one, *one.children(recursive=True)) if runs(each.pid)]
    return found


def runs(pid):
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False


async def test_a_program_is_started_answers_and_ends_with_the_engine():
    one = engine("ready")
    model = await one.start()
    assert (model.name, model.backend, model.context) == ("vllm:tiny", "vLLM", 512)
    assert not one.plan.remote.url, "what is written stays on this machine"
    assert await reply(one) == "Hello there"
    running = processes()
    assert len(running) == 2, "the program, and what ends it with us"
    await one.close()
    assert not any(runs(pid) for pid in running)


async def test_unloading_ends_the_program_and_the_next_request_starts_it(running):
    one = running(engine("ready"))
    await one.start()
    first = processes()
    await one.unload()
    assert one.state is EngineState.STOPPED
    assert not any(runs(pid) for pid in first)
    assert await reply(one) == "Hello there"


async def test_the_program_has_the_environment_that_it_needs_and_no_other(monkeypatch, running):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    monkeypatch.setenv("HF_TOKEN", "given")
    one = running(engine("ready", inherited=("HF_TOKEN",)))
    await one.start()
    line = next(line for line in one.log_path.read_text().splitlines() if line.startswith("environment:"))
    environment = json.loads(line.partition(":")[2])
    key = environment.pop("VLLM_API_KEY")
    assert "OPENAI_API_KEY" not in environment
    assert environment["HF_TOKEN"] == "given"
    assert environment["HF_HUB_OFFLINE"] == "1"
    assert len(key) >= 32
    assert key not in one.log_tail(10**6)


async def test_one_that_dies_at_once_is_told_with_the_end_of_its_log(running):
    one = running(engine("dies"))
    with pytest.raises(LoadFailed, match=r"vLLM ended before it was ready \(exit code 1\)") as raised:
        await one.start()
    hint = raised.value.hint or ""
    assert "no such kernel, and the key is …" in hint
    assert "\x1b" not in hint
    assert one.state is EngineState.STOPPED
    assert not processes()


async def test_one_that_cannot_be_started_says_why():
    start = ProgramPlan(engine="sglang", command=("/nowhere/sglang",))
    with pytest.raises(LoadFailed, match="SGLang ended") as raised:
        await StartedHost(start, "sglang:m").open(lambda _share: None)
    assert "/nowhere/sglang cannot be started: No such file" in (raised.value.hint or "")


async def test_one_that_is_never_ready_is_given_up_and_ended(running):
    one = running(engine("silent", silent=0.5))
    with pytest.raises(LoadFailed, match="vLLM is not ready and has logged nothing for"):
        await one.start()
    assert not processes()


async def test_a_start_that_is_cancelled_leaves_nothing(running):
    one = running(engine("silent"))
    starting = asyncio.ensure_future(one.start())
    while not processes():
        await asyncio.sleep(0.05)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not processes()


async def test_a_flood_does_not_fill_the_disk_and_its_end_is_kept(running):
    one = running(engine("floods"))
    await one.start()
    assert one.log_path.stat().st_size <= program.MOST_LOG
    assert "the last line" in one.log_tail(4096)


async def test_one_that_ignores_the_signal_is_killed_with_its_children():
    one = engine("stubborn")
    await one.start()
    found = re.search(r"helper (\d+)", one.log_tail(10**5))
    assert found is not None
    helper = int(found[1])
    assert runs(helper)
    await one.close()
    assert not runs(helper)
    assert not processes()


async def test_one_that_dies_in_an_answer_is_a_crash_and_the_next_question_starts_it():
    one = engine("fails")
    await one.start()
    for _ in range(2):
        with pytest.raises(EngineCrashed) as raised:
            await reply(one)
        assert raised.value.hint == f"Ask again; the partial answer is kept. Its log: {one.log_path}"
        assert one.has_crashed
        while "out of memory" not in one.log_tail(4096):  # its last words come through another process
            await asyncio.sleep(0.02)
    await one.close()
    assert not processes()


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
def test_the_program_ends_when_edgechat_is_killed(tmp_path):
    code = (
        "import asyncio, sys\n"
        "from tests.engine.remote.test_started import engine\n"
        "async def main():\n"
        "    one = engine('stubborn')\n"
        "    await one.start()\n"
        "    print('ready', flush=True)\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout.readline() == "ready\n"
    started = psutil.Process(parent.pid).children(recursive=True)
    assert len(started) == 3
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    gone, alive = psutil.wait_procs(started, timeout=program.GRACE_SECONDS + 10)
    assert not alive, gone
