"""Ollama's own client and a remote of kind "ollama" beside each other: of one server, they hear the same."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from edgechat.base.errors import ModelNotFound
from edgechat.engine.remote.engine import RemoteEngine, RunningHost
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
from edgechat.models.remote.client import RemoteClient
from edgechat.models.remote.discovery import models_of
from edgechat.models.remote.model import HostedModel
from edgechat.planner.plan import LoadPlan
from edgechat.settings import RemoteServer
from tests.later import later_or_skip
from tests.server.fakes import KEY, FakeModels, called, serving, thought

ollama = later_or_skip("ollama")
PARAMETERS = {"type": "object", "properties": {"place": {"type": "string"}}}
WEATHER = Tool("weather", "The weather of a place.", json.dumps(PARAMETERS))
QUESTION = "Is it warm in Rome?"


@dataclass
class Pair:
    """Both clients of one server, which speaks Ollama's protocol."""

    models: FakeModels
    url: str
    engine: RemoteEngine
    library: Any

    async def hear(self, think):
        """Ask both the same; return the text, thoughts, calls and counts that the one and the other heard."""
        function = {"name": WEATHER.name, "description": WEATHER.description, "parameters": PARAMETERS}
        answer = await self.library.chat(
            model="scripted",
            messages=[{"role": "user", "content": QUESTION}],
            tools=[{"type": "function", "function": function}],
            options={"temperature": 0.0, "seed": 3, "num_predict": 9},
            think=think,
        )
        said = answer.message
        calls = [(call.function.name, dict(call.function.arguments)) for call in said.tool_calls or ()]
        theirs = [said.content, said.thinking or "", calls, answer.prompt_eval_count, answer.eval_count]
        request = ChatRequest(
            id="r",
            messages=(Message("user", QUESTION),),
            sampling=Sampling(temperature=0.0, seed=3),
            max_tokens=9,
            tools=(WEATHER,),
            think=think,
        )
        texts, names, arguments = {True: "", False: ""}, list[str](), list[str]()
        async for event in self.engine.stream(request):
            match event:
                case Delta():
                    texts[event.thinking] += event.text
                case ToolCallBegun():
                    names.append(event.call.name)
                    arguments.append(event.call.arguments)
                case ToolCallArguments():
                    arguments[-1] += event.text
                case Finished():
                    usage = event.usage
        made = list(zip(names, map(json.loads, arguments), strict=True))
        return theirs, [texts[False], texts[True], made, usage.prompt_tokens, usage.completion_tokens]


@pytest.fixture
async def pair(request):
    models = FakeModels(request.param, can_switch_thinking=True)
    async with serving(models) as url:
        server = RemoteServer(url=url, key=KEY, kind="ollama")
        remote = HostedModel(server="desk", id="scripted", kind="ollama", url=url)
        plan = LoadPlan(model_path="", model_name=remote.name, context=1000, remote=remote)
        engine = RemoteEngine(plan, RunningHost(server))
        library = ollama.AsyncClient(host=url, headers={"Authorization": f"Bearer {KEY}"})
        yield Pair(models, url, engine, library)
        await engine.close()


ANSWERS = [["It ", "is \N{SUN}."], [thought("Rome? "), "Yes."], [called("weather", '{"place": "Rome"}', "a")]]


@pytest.mark.parametrize("think", [None, True, False])
@pytest.mark.parametrize("pair", ANSWERS, indirect=True)
async def test_both_ask_and_hear_the_same(pair, think):
    theirs, ours = await pair.hear(think)
    assert ours == theirs
    for_them, for_us = pair.models.requests
    for name in ("messages", "max_tokens", "tools", "think"):
        assert getattr(for_us, name) == getattr(for_them, name), name
    assert (for_us.sampling.temperature, for_us.sampling.seed) == (0.0, 3)


@pytest.mark.parametrize("pair", ANSWERS[:1], indirect=True)
async def test_both_are_told_the_same_of_models(pair):
    await pair.engine.start()
    model, info = pair.engine.plan.remote, pair.engine.model
    assert model is not None
    assert info is not None
    shown = await pair.library.show("scripted")
    assert (model.has_tools, model.can_switch_thinking, model.sees) == tuple(
        name in shown.capabilities for name in ("tools", "thinking", "vision")
    )
    (loaded,) = (await pair.library.ps()).models
    assert info.context == loaded.context_length == 4096
    listed = [one.model for one in (await pair.library.list()).models]
    client = RemoteClient("desk", RemoteServer(url=pair.url, key=KEY, kind="ollama"))
    kind, models = await models_of(client)
    await client.close()
    assert (kind, [one.id for one in models]) == ("ollama", [name.removesuffix(":latest") for name in listed])


@pytest.mark.parametrize("pair", ANSWERS[:1], indirect=True)
async def test_both_are_refused_a_model_that_is_not_there(pair, running):
    with pytest.raises(ollama.ResponseError) as refused:
        await pair.library.show("other")
    assert refused.value.status_code == 404
    remote = HostedModel(server="desk", id="other", kind="ollama", url=pair.url)
    plan = LoadPlan(model_path="", model_name=remote.name, context=1000, remote=remote)
    engine = running(RemoteEngine(plan, RunningHost(RemoteServer(url=pair.url, key=KEY, kind="ollama"))))
    with pytest.raises(ModelNotFound, match="desk has no model other"):
        await engine.start()
