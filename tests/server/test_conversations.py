"""Conversations of programs: recognized by what they begin with, and warm again after a restart."""

from functools import partial

import pytest

from edgechat.engine.kv import state_files
from edgechat.engine.types import ChatRequest, Finished, Message, Tool
from edgechat.engine.worker.supervisor import EngineSupervisor
from edgechat.planner.estimate.speed import Forecast
from edgechat.planner.plan import LoadPlan
from edgechat.server.operation import with_conversation
from edgechat.server.pool.models import AvailableModel, ModelCard
from edgechat.server.pool.pool import Pool, cache_policy
from tests import scripted

SYSTEM = Message("system", "You edit files. " * 40)
TOOLS = (Tool(name="read", description="Reads a file.", parameters='{"type": "object"}'),)
QUESTION = Message("user", "What is in a.txt?")
OTHER = Message("user", "Why is the sky blue?")
FORECAST = Forecast(decode=0.002, decode_depth=0, prefill=0.002, prefill_depth=0)
ANSWER = Message("assistant", "I do not know.")


def conversation(*messages, model="m", **fields):
    return with_conversation(ChatRequest(id="r", messages=messages, **fields), model).chat


def test_runs_of_an_agent_are_one_conversation():
    first = conversation(SYSTEM, QUESTION, tools=TOOLS)
    assert len(first) == state_files.HASHED_ID
    assert conversation(SYSTEM, OTHER, tools=TOOLS) == first
    assert conversation(SYSTEM, QUESTION, ANSWER, OTHER, tools=TOOLS) == first
    assert conversation(SYSTEM, QUESTION, tools=(*TOOLS, *TOOLS)) != first
    assert conversation(QUESTION, tools=TOOLS) != first
    assert conversation(SYSTEM, QUESTION, tools=TOOLS, model="another") != first


def test_without_tools_a_conversation_begins_with_its_second_question():
    assert conversation(SYSTEM, QUESTION) is None
    second = conversation(SYSTEM, QUESTION, ANSWER, OTHER)
    assert second is not None
    assert conversation(SYSTEM, QUESTION, ANSWER, OTHER, ANSWER, QUESTION) == second
    assert conversation(SYSTEM, OTHER, ANSWER, OTHER) != second
    assert conversation(QUESTION, ANSWER) is None  # an answer that has begun


def test_a_raw_prompt_is_no_conversation():
    assert with_conversation(ChatRequest(id="r", text="Once upon a time"), "m").chat is None


class OneModel:
    """A model that takes 2 ms for each token of a prompt."""

    def __init__(self, folder, **script):
        path = folder / "slow.gguf"
        scripted.write(path, reply="Done.", prompt_token_ms=2, **script)
        self.default = AvailableModel("slow", str(path), path)

    def find(self, name):
        return self.default

    def card(self, known):
        return ModelCard(id=known.id, created=1)

    def cards(self):
        return [self.card(self.default)]

    def prepare(self, model, **_):
        return LoadPlan(model_path=model, model_name=model, context=4096, n_seq_max=4, forecast=FORECAST)


def _engine(disk_bytes, plan, on_note, on_state):
    return EngineSupervisor(plan, cache_policy=cache_policy(disk_bytes), on_state=on_state, on_note=on_note)


@pytest.fixture
async def start(tmp_path, scripted_workers):
    pools = []

    def server(disk_bytes=None, **script):
        model = OneModel(tmp_path, **script)
        pools.append(Pool(partial(_engine, disk_bytes), model.prepare, model))
        return pools[-1]

    yield server
    for pool in pools:
        await pool.close()


async def cached(pool, *messages):
    """Return how many tokens a prompt has, and how many of them were cached."""
    async with pool.serve() as served:
        request = ChatRequest(id="r", messages=(SYSTEM, *messages), tools=TOOLS)
        events = [event async for event in served.stream(with_conversation(request, served.name))]
    assert isinstance(events[-1], Finished)
    return events[-1].usage.prompt_tokens, events[-1].usage.cached_tokens


@pytest.mark.slow
async def test_an_agent_goes_on_after_a_restart(start):
    before = start()
    n_first, _ = await cached(before, QUESTION)
    await before.close()
    _, n_cached = await cached(start(), QUESTION, Message("assistant", "Done."), OTHER)
    assert n_cached >= 0.98 * n_first


@pytest.mark.slow
async def test_another_run_finds_the_system_prompt_and_the_tools(start):
    before = start()
    await cached(before, QUESTION)
    await before.close()
    n_tokens, n_cached = await cached(start(), OTHER)
    assert n_cached >= n_tokens - len(OTHER.content) - 40


@pytest.mark.slow
async def test_nothing_is_saved_where_the_settings_say_so(start):
    before = start(disk_bytes=0)
    await cached(before, QUESTION)
    await before.close()
    assert state_files.usage() == (0, 0)
