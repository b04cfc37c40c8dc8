"""The real engines: vLLM for processors, `transformers serve` and llama-server, started by edgechat.

    make test-engines

Each is asked twice: as edgechat's own child, and as a server that already runs, which edgechat knows by its
address. What an engine cannot do is a skip that says why. `EDGECHAT_ENGINES` is the folder of `make.py`,
without which nothing runs; `EDGECHAT_LLAMA_SERVER` or PATH has llama-server.
"""

import asyncio
import json
import os
import shutil
import time
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from edgechat.base.errors import BadRequest, EngineCrashed, LoadFailed, PromptTooLong, RemoteDenied
from edgechat.device.profile import probe
from edgechat.engine.remote.engine import RemoteEngine, RunningHost
from edgechat.engine.remote.started import StartedHost
from edgechat.engine.types import (
    ChatRequest,
    Delta,
    Finished,
    Message,
    Sampling,
    Tool,
    ToolCallArguments,
    ToolCallBegun,
)
from edgechat.models.remote.model import HostedModel
from edgechat.planner.placement.engine_plan import engine_plan, llama_server_plan
from edgechat.planner.plan import LoadPlan
from edgechat.planner.prepare import prepare
from edgechat.planner.request import PlanRequest
from edgechat.settings import EngineProgram, RemoteServer, Settings
from tests.engines.make import environment, models

FOLDER = os.environ.get("EDGECHAT_ENGINES")
LLAMA = os.environ.get("EDGECHAT_LLAMA_SERVER") or shutil.which("llama-server")
pytestmark = [
    pytest.mark.engines,
    pytest.mark.slow,
    pytest.mark.skipif(FOLDER is None, reason="make test-engines makes what this needs"),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(300),
]
NAMES = ("llama-server", "transformers", "vllm")
ADD = Tool(
    "add",
    "Adds a word.",
    '{"type":"object","properties":{"a":{"enum":["x","y"]}},"required":["a"],"additionalProperties":false}',
)
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"yes": {"type": "boolean"}},
        "required": ["yes"],
        "additionalProperties": False,
    }
)


def config(*args):
    """Return settings that lead to the programs; args: vLLM's further ones."""
    programs = environment(Path(FOLDER, "venv"))
    return Settings(
        engines={
            "vllm": EngineProgram(command=str(programs / "vllm"), args=args),
            "transformers": EngineProgram(command=str(programs / "transformers")),
            "llama-server": EngineProgram(command=LLAMA),
        }
    )


def planned(name, *args):
    folder, file = models(Path(FOLDER, "models"))
    if name != "llama-server":
        return engine_plan(name, str(folder), PlanRequest(), config(*args), probe())
    if LLAMA is None:
        pytest.skip("there is no llama-server")
    return llama_server_plan(prepare(str(file)), config())


def started(name, *args, **limits):
    plan = planned(name, *args)
    return RemoteEngine(plan, StartedHost(plan.program, plan.model_name, **limits))


@pytest.fixture(scope="module")
def own_home(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGECHAT_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=NAMES)
async def child(request, own_home):
    """An engine that edgechat has started."""
    one = started(request.param)
    await one.start()
    yield one
    await one.close()


@pytest_asyncio.fixture(loop_scope="module", params=["started", "elsewhere"])
async def engine(request, child):
    """The engine, and the same as a server that somebody else runs: what it is, is found out."""
    if request.param == "started":
        yield child
        return
    server, remote = child._host._server, child.plan.remote
    # Nothing that it answers tells that it is Transformers.
    kind = "transformers" if remote.kind == "transformers" else None
    elsewhere = RemoteServer(url=server.url, key=server.key, kind=kind)
    hosted = HostedModel(server="desk", id=remote.id, kind=kind or "openai", url=server.url)
    plan = LoadPlan(model_path="", model_name="desk/m", context=2048, remote=hosted)
    one = RemoteEngine(plan, RunningHost(elsewhere))
    yield one
    await one.close()


def kind_of(engine):
    return engine.plan.remote.kind


async def events_of(engine, text="Hi", *, id=None, **fields):
    fields = {"sampling": Sampling(temperature=0.0), "max_tokens": 24} | fields
    asked = ChatRequest(id=id or f"r{time.monotonic_ns()}", messages=(Message("user", text),), **fields)
    return [event async for event in engine.stream(asked)]


def said(events):
    assert isinstance(events[-1], Finished)
    return "".join(event.text for event in events if isinstance(event, Delta))


async def able(engine, what, **fields):
    """Return the events of a request that Transformers is refused."""
    try:
        events = await events_of(engine, **fields)
    except BadRequest as error:
        if kind_of(engine) != "transformers":
            raise
        pytest.skip(f"Transformers has no {what}, and edgechat says so: {error.message}")
    assert kind_of(engine) != "transformers", "edgechat need not refuse this any more"
    return events


async def test_it_streams(engine):
    events = await events_of(engine)
    assert len([event for event in events if isinstance(event, Delta)]) > 4
    end = events[-1]
    assert (end.reason, end.usage.completion_tokens) == ("length", 24)
    assert end.usage.prompt_tokens > 10
    assert engine.model.context == 2048
    assert engine.model.backend in ("vLLM", "Transformers", "llama-server")


async def test_a_stop_string_ends_it(engine):
    text = said(await events_of(engine))
    stop = text[8:10]
    assert said(await events_of(engine, stop=(stop,))) == text[: text.index(stop)]


async def test_tools_are_read(engine):
    plain = await events_of(engine)
    with_tools = await events_of(engine, tools=(ADD,))
    assert with_tools[-1].usage.prompt_tokens > plain[-1].usage.prompt_tokens + 20


async def test_a_required_tool_is_called(engine):
    events = await able(
        engine,
        "required calls",
        tools=(ADD,),
        tool_choice="required",
        tool="add",
        max_tokens=400,
        sampling=Sampling(temperature=1.0, seed=1),  # the likeliest of noise may be blanks for ever
    )
    names = [event.call.name for event in events if isinstance(event, ToolCallBegun)]
    if not names and kind_of(engine) == "llama-server":
        pytest.skip("llama-server forces no call in the form of this template")
    assert names == ["add"]
    text = "".join(event.text for event in events if isinstance(event, ToolCallArguments))
    assert json.loads(text) in ({"a": "x"}, {"a": "y"})


async def test_a_schema_is_followed(engine):
    text = said(await able(engine, "schemas", schema=SCHEMA, max_tokens=100))
    assert json.loads(text) in ({"yes": True}, {"yes": False})


async def test_thinking_is_switched(engine):
    await engine.start()
    if not engine.model.can_switch_thinking:
        pytest.skip(f"{kind_of(engine)} does not tell that this template has a switch")
    on = await events_of(engine, think=True)
    off = await events_of(engine, think=False)
    assert off[-1].usage.prompt_tokens > on[-1].usage.prompt_tokens


async def test_a_seed_repeats_the_text(engine):
    def drawn(seed):
        return events_of(engine, sampling=Sampling(temperature=1.0, seed=seed))

    one, again, other = [said(await drawn(seed)) for seed in (1, 1, 2)]
    assert one == again
    assert one != other


async def test_logprobs_come_with_the_tokens(engine):
    events = await able(engine, "logprobs", logprobs=3, max_tokens=8)
    chances = [chance for event in events if isinstance(event, Delta) for chance in event.chances]
    assert len(chances) == 8
    assert b"".join(chance.token for chance in chances).decode() == said(events)
    assert all(chance.logprob <= 0 and len(chance.others) == 3 for chance in chances)


async def test_a_cancelled_answer_is_not_computed(engine):
    asked = ChatRequest(id="long", messages=(Message("user", "on"),), max_tokens=1900)
    async for event in engine.stream(asked):
        if isinstance(event, Delta):
            await engine.cancel("long")
    assert event.reason == "cancelled"
    async with asyncio.timeout(10):
        while (load := await engine.inspect()) is not None and load.running:
            await asyncio.sleep(0.5)
    if load is None:
        pytest.skip(f"{kind_of(engine)} has no metrics")


async def test_a_prompt_beyond_the_context_is_refused(engine):
    try:
        await events_of(engine, "word " * 1000, overflow="error", max_tokens=4)
    except PromptTooLong:
        return
    assert kind_of(engine) == "transformers"
    pytest.skip("transformers serve reads any prompt, whatever the model was trained for")


async def test_a_stranger_is_refused(child):
    server = child._host._server
    plan = child.plan
    if kind_of(child) == "transformers":
        pytest.skip("transformers serve takes no key")
    stranger = RemoteEngine(plan, RunningHost(RemoteServer(url=server.url, key="wrong")))
    with pytest.raises(RemoteDenied):
        await events_of(stranger)
    command = [word for one in programs() for word in one.cmdline()]
    assert server.key not in " ".join(command)
    assert server.key not in child.log_path.read_text()


def programs():
    """Return the processes of the engines that were started here."""
    found = psutil.Process().children(recursive=True)
    return [one for one in found if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize("name", NAMES)
async def test_kill_in_an_answer_loses_nothing_and_the_next_message_works(name, own_home):
    before, one, shown = programs(), started(name), []

    async def read():
        asked = ChatRequest(id="long", messages=(Message("user", "on"),), max_tokens=1900)
        async for event in one.stream(asked):
            if isinstance(event, Delta):
                shown.append(event.text)
                if len(shown) == 8:
                    for process in set(programs()) - set(before):
                        if "program" not in process.cmdline():  # edgechat's own child, which ends it
                            process.kill()

    try:
        await one.start()
        with pytest.raises(EngineCrashed):
            await read()
        assert len(shown) >= 8
        assert len(said(await events_of(one))) >= 24
    finally:
        await one.close()


async def test_one_that_cannot_start_says_why(own_home):
    one = started("vllm", "--no-such-option")
    with pytest.raises(LoadFailed) as raised:
        await one.start()
    assert "--no-such-option" in raised.value.hint


async def test_one_that_is_never_ready_is_given_up(own_home):
    one = started("vllm", silent_seconds=1.0)
    before = programs()
    with pytest.raises(LoadFailed, match="has logged nothing for"):
        await one.start()
    assert {process.pid for process in programs()} <= {process.pid for process in before}


async def test_two_engines_at_once(own_home):
    both = [started("vllm"), started("llama-server")]
    try:
        await asyncio.gather(*(one.start() for one in both))
        texts = [said(events) for events in await asyncio.gather(*map(events_of, both))]
        assert all(len(text) == 24 for text in texts)
    finally:
        for one in both:
            await one.close()
