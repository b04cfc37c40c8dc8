"""What real agents have sent: every request is understood, and each continues the prompt of the one before.

`record.py` makes the recordings.
"""

import gzip
import itertools
import json

import httpx2
import pytest

from edgechat.server.operation import with_conversation
from edgechat.server.protocol.responses_items import JOINT
from tests import scripted
from tests.server.agents.record import RECORDED, SAID, TASK, Answering
from tests.server.dialects import CHAT, MESSAGES, RESPONSES
from tests.server.fakes import KEY, serving
from tests.server.program import served

AGENTS = ["aider", "claude", "codex", "opencode"]
WITH_TOOLS = ["claude", "codex", "opencode"]


def recorded(agent):
    session = json.loads(gzip.decompress((RECORDED / f"{agent}.json.gz").read_bytes()))
    return [request for request in session["requests"] if request["method"] == "POST"]


async def replayed(agent):
    """Replay a session; return what the engine was asked, and the answers as they were sent."""
    models, answers = Answering(), []
    async with serving(models) as url, httpx2.AsyncClient(base_url=url, trust_env=False) as client:
        for request in recorded(agent):
            headers = {"Authorization": f"Bearer {KEY}", **request["headers"]}
            path = f"{request['path']}?{request['query']}"
            answer = await client.post(path, json=request["body"], headers=headers)
            assert answer.status_code == 200, answer.text
            answers.append(answer.text)
    return models.requests, answers


def _tool_names(agent, body):
    """Return the names that the functions of a request have for the model."""
    match agent:
        case "codex":
            alone = {tool["name"] for tool in body["tools"] if tool["type"] == "function"}
            spaces = [tool for tool in body["tools"] if tool["type"] == "namespace"]
            return alone | {f"{one['name']}{JOINT}{tool['name']}" for one in spaces for tool in one["tools"]}
        case "claude":
            return {tool["name"] for tool in body["tools"]}
    return {tool["function"]["name"] for tool in body.get("tools", ())}


@pytest.mark.parametrize("agent", AGENTS)
async def test_every_request_is_understood(agent):
    requests, answers = await replayed(agent)
    for sent, request in zip(recorded(agent), requests, strict=True):
        assert {tool.name for tool in request.tools} == _tool_names(agent, sent["body"])
        assert request.messages[0].role == "system" or agent == "aider"
    asked = [request for request in requests if any(TASK in one.content for one in request.messages)]
    assert len(asked) >= (1 if agent == "aider" else 3)
    assert "Good morning" in answers[0] if agent == "aider" else SAID in answers[-1]


@pytest.mark.parametrize("agent", WITH_TOOLS)
async def test_each_request_begins_with_the_one_before(agent):
    """Nothing in it changes from one request to the next, or nothing after that could be reused."""
    requests = [request for request in (await replayed(agent))[0] if request.tools]
    assert len(requests) == 3
    for before, after in itertools.pairwise(requests):
        assert after.tools == before.tools
        assert after.messages[: len(before.messages)] == before.messages
        call, result = after.messages[len(before.messages) :]
        assert [call.role, result.role] == ["assistant", "tool"]
        assert result.call_id == call.calls[0].id
    assert len({with_conversation(request, "m").chat for request in requests}) == 1


@pytest.fixture
def model(tmp_path):
    """A model that takes a moment for a prompt, so that its state is worth being kept."""
    path = tmp_path / "slow.gguf"
    return scripted.write(path, reply="Read it.", prompt_token_ms=0.05, context=131_072)


def _usage(server, agent, request):
    """Ask; return the tokens of the prompt, and how many of them were cached."""
    body = request["body"] | {"model": "default", "stream": False}
    body.pop("stream_options", None)
    status, answer = server.ask(request["path"], body, **request["headers"])
    assert status == 200, answer
    dialect = {"codex": RESPONSES, "claude": MESSAGES}.get(agent, CHAT)
    return dialect.read(answer).tokens[:2]


@pytest.mark.slow
@pytest.mark.parametrize("agent", WITH_TOOLS)
def test_the_prompt_is_read_once_also_over_a_restart(agent, model, tmp_path):
    first, second, third = [request for request in recorded(agent) if request["body"].get("tools")]
    home = tmp_path / "home"
    with served(model, "--ctx", "131072", home=home) as server:
        n_first, _ = _usage(server, agent, first)
        n_second, n_cached = _usage(server, agent, second)
        assert n_cached >= 0.98 * n_first
        server.stop()
    with served(model, "--ctx", "131072", home=home) as server:
        _, n_cached = _usage(server, agent, third)
        assert n_cached >= 0.98 * n_second
