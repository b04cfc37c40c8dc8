"""SGLang's router in front of two llama-servers, which die one after the other."""

import asyncio
import contextlib
import subprocess
from pathlib import Path

import pytest

from edgechat.base.errors import EngineCrashed, RemoteFailed, RemoteUnreachable
from edgechat.base.process.spawn import free_port
from edgechat.engine.remote.engine import RemoteEngine, RunningHost
from edgechat.engine.types import ChatRequest, Delta, Message
from edgechat.models.remote.model import HostedModel
from edgechat.planner.plan import LoadPlan
from edgechat.settings import RemoteServer
from tests.engines.make import models, router
from tests.engines.test_engines import FOLDER, LLAMA, events_of, said

pytestmark = [
    pytest.mark.engines,
    pytest.mark.slow,
    pytest.mark.skipif(FOLDER is None, reason="make test-engines makes what this needs"),
    pytest.mark.skipif(LLAMA is None, reason="there is no llama-server"),
    pytest.mark.asyncio,
    pytest.mark.timeout(120),
]
HERE = ("--host", "127.0.0.1")


@pytest.fixture
def farm():
    """Start them; return the router's URL, and the engines."""
    _, file = models(Path(FOLDER, "models"))
    *ports, own, metrics = [str(free_port()) for _ in range(4)]
    commands = [[LLAMA, "-m", file, *HERE, "--port", port, "-c", "2048"] for port in ports]
    route = [router(Path(FOLDER, "router")), "launch", *HERE, "--port", own, "--prometheus-port", metrics]
    route += ["--prometheus-host", "127.0.0.1", "--health-check-interval-secs", "1"]
    route += ["--health-failure-threshold", "1", "--worker-urls"]
    commands.append([*route, *(f"http://127.0.0.1:{port}" for port in ports)])
    running = [
        subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT) for words in commands
    ]
    yield f"http://127.0.0.1:{own}", running[:2]
    for process in running:
        process.kill()
        process.wait()


async def test_engines_die_behind_a_router(farm, home):
    url, engines = farm
    hosted = HostedModel(server="farm", id="any-name", kind="openai", url=url)
    plan = LoadPlan(model_path="", model_name=hosted.name, context=2048, remote=hosted)
    engine = RemoteEngine(plan, RunningHost(RemoteServer(url=url)))
    assert len(said(await patiently(engine, RemoteUnreachable))) == 24  # it, and they, are starting
    engines[0].kill()
    assert len(said(await patiently(engine, RemoteFailed))) == 24  # until it has noticed
    shown = []
    with pytest.raises(EngineCrashed, match="in the middle of its answer"):
        await read(engine, shown, engines[1])
    assert len(shown) >= 8
    with pytest.raises(RemoteUnreachable, match="farm cannot answer now"):
        await patiently(engine, RemoteFailed)
    await engine.close()


async def patiently(engine, error):
    """Return the events of an answer, asked for again as long as there is such an error."""
    while True:
        with contextlib.suppress(error):
            return await events_of(engine)
        await asyncio.sleep(0.5)


async def read(engine, shown, dying):
    asked = ChatRequest(id="long", messages=(Message("user", "on"),), max_tokens=1900)
    async for event in engine.stream(asked):
        if isinstance(event, Delta):
            shown.append(event.text)
            if len(shown) == 8:
                dying.kill()
