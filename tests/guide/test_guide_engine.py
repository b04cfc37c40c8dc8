"""The guide as users meet it: it answers by itself, from the documentation, or says that there is nothing."""

import pytest

from edgechat.engine.types import CachePolicy, ChatRequest, Delta, Finished, Message, Sampling, Timings, Usage
from edgechat.engine.worker.supervisor import EngineSupervisor
from edgechat.guide.engine import DECLINES, Guide, _Begun, local_engine
from edgechat.guide.manual import FROM
from edgechat.planner.prepare import prepare
from tests.kit.build import tiny

pytestmark = pytest.mark.slow


@pytest.fixture
async def guide():
    made = local_engine(
        prepare("guide"), idle_seconds=0, cache_policy=CachePolicy(), on_note=lambda _note: None
    )
    assert isinstance(made, Guide)
    yield made
    await made.close()


async def told(guide, *messages, **more):
    """Return an answer and the events of its request."""
    chat = tuple(Message("assistant" if at % 2 else "user", text) for at, text in enumerate(messages))
    request = ChatRequest(
        id=f"{len(messages)}{messages[-1]}", messages=chat, sampling=Sampling(temperature=0), **more
    )
    events = [event async for event in guide.stream(request)]
    return "".join(event.text for event in events if isinstance(event, Delta)), events


async def test_who_answers(guide):
    said, events = await told(guide, "hi")
    assert said.startswith("Hello!")
    assert FROM not in said
    assert not any(event.chances for event in events if isinstance(event, Delta))
    said, events = await told(guide, "connect codex")
    assert said.startswith(FROM)
    assert "edgechat launch codex" in said
    assert "docs/server.md#coding-agents" in said
    assert isinstance(events[-1], Finished)
    assert events[-1].reason == "stop"
    assert sum(isinstance(event, Finished) for event in events) == 1
    assert events[-1].timings.ttft_ms > 0
    said, _ = await told(guide, "How do I quantize a model?")
    assert said.startswith("`edgechat quantize")
    assert said.endswith(
        "More: [Quantizing](https://github.com/edgechat/edgechat/blob/main/docs/quantizing.md)"
    )
    assert FROM not in said
    said, _ = await told(guide, "write a poem about my cat")
    assert said.startswith(DECLINES)
    said, _ = await told(guide, "can it make coffee in the worker protocol of zebras")
    assert said.startswith("The documentation does not say. The closest page: [")


def test_a_page_instead_of_a_whole_answer_keeps_its_usage():
    usage = Usage(12, 4, 3)
    begun = _Begun(
        [Delta("a", "No.", thinking=False, tokens=3), Finished("a", "stop", usage, Timings(5.0, 1.0, 1.0))]
    )
    told, finished = begun.instead("A page.", 0.02)
    assert told == Delta("a", "A page.", thinking=False, tokens=3)
    assert finished == Finished("a", "stop", usage, Timings(20.0, 0.0, 0.0))


async def test_a_limit_of_tokens_is_the_models(guide):
    said, events = await told(guide, "connect codex", max_tokens=3)
    assert FROM not in said
    assert events[-1].usage.completion_tokens == 3


async def test_a_conversation_goes_on_from_the_models_own_words(guide):
    quoted, _ = await told(guide, "connect codex")
    said, events = await told(guide, "connect codex", quoted, "hi")
    assert said.startswith("Hello!")
    assert events[-1].usage.prompt_tokens < 40
    named, _ = await told(guide, "How do I quantize a model?")
    words, more, _ = named.partition("\n\nMore: ")
    assert more
    chats = [await told(guide, "How do I quantize a model?", one, "and a theme?") for one in (named, words)]
    assert chats[0][1][-1].usage.prompt_tokens == chats[1][1][-1].usage.prompt_tokens


def test_declines_about_the_world_are_recognised(corpus):
    others = [one for one in corpus.declines if not one.startswith(DECLINES)]
    assert len(corpus.declines) - len(others) > 10
    assert all(one.startswith(("I follow no instructions", "I can see only")) for one in others)  # of itself


def test_other_models_have_the_usual_engine():
    plan = prepare(str(tiny()))
    made = local_engine(plan, idle_seconds=0, cache_policy=CachePolicy(), on_note=lambda _note: None)
    assert type(made) is EngineSupervisor
