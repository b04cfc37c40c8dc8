"""SGLang's router, whose answers these are (0.3.2), and what stands for one elsewhere."""

import pytest

from edgechat.base.errors import EngineCrashed, ModelNotFound, QueueFull, RemoteDenied, RemoteUnreachable
from edgechat.engine.types import ChatRequest, Delta, Message
from edgechat.models.remote.discovery import UNNAMED, models_of
from tests.engine.remote.raw import raw_server, said, text

ASKED = ChatRequest(id="r", messages=(Message("user", "hi"),))
READY = said({"status": "ready", "healthy_workers": 1, "total_workers": 2})
NOT_READY = said({"status": "not ready", "reason": "insufficient healthy workers"}, 503)
NO_WORKERS = said(
    {
        "error": {
            "type": "Service Unavailable",
            "code": "no_available_workers",
            "message": "No available workers (all circuits open or unhealthy)",
        }
    },
    503,
)


@pytest.fixture
async def router():
    async with raw_server() as server:
        server.models({"id": UNNAMED, "object": "model", "owned_by": "local"})
        server.answers["/readiness"] = READY
        yield server


async def events_of(engine):
    return [event async for event in engine.stream(ASKED)]


async def test_a_model_without_a_name_is_asked_for_by_the_one_that_users_know(router, running):
    engine = running(router.engine("Qwen/Qwen3-32B"))
    assert [event.text for event in await events_of(engine) if isinstance(event, Delta)] == ["Hi"]
    assert router.body["model"] == "Qwen/Qwen3-32B"


async def test_names_that_it_is_told_are_the_models(router, running):
    router.models({"id": "qwen3-32b", "object": "model", "owned_by": "local"})
    engine = running(router.engine("qwen3"))
    with pytest.raises(ModelNotFound, match="no model qwen3"):
        await engine.start()


async def test_one_without_an_engine_that_answers_says_so_before_the_question(router, running):
    router.answers["/readiness"] = NOT_READY
    with pytest.raises(RemoteUnreachable, match="desk cannot answer now: insufficient healthy workers"):
        await models_of(router.client())
    router.answers["/v1/models"] = said(b"No models available", 503)
    with pytest.raises(RemoteUnreachable, match="desk cannot answer now: No models available"):
        await events_of(running(router.engine()))


async def test_a_server_with_such_an_owner_needs_no_readiness(router):
    del router.answers["/readiness"]
    assert [model.id for model in (await models_of(router.client()))[1]] == [UNNAMED]


@pytest.mark.parametrize(
    ("answer", "kind", "told", "next_step"),
    [
        (said(b"", 429), QueueFull, "too busy: status 429.", "Ask again in 1 second."),
        (said(b"", 429, Retry_After="7"), QueueFull, "too busy", "Ask again in 7 seconds."),
        (said(b"", 503, Retry_After="30"), QueueFull, "too busy", "Ask again in 30 seconds."),
        (NO_WORKERS, RemoteUnreachable, "cannot answer now: No available workers", "edgechat remote test"),
        (said(b"<html>Bad Gateway", 502), RemoteUnreachable, "cannot answer now: status 502.", "remote test"),
        (said(b"", 401), RemoteDenied, "rejected the key", "key_env"),
    ],
)
async def test_what_it_answers_where_no_engine_does(router, running, answer, kind, told, next_step):
    engine = running(router.engine())
    router.answers["/v1/chat/completions"] = answer
    with pytest.raises(kind, match=told) as caught:
        await events_of(engine)
    assert next_step in caught.value.hint
    router.chat(text("Again"), text("", "stop"))
    assert await events_of(engine)


async def test_an_engine_that_dies_in_an_answer_is_followed_by_another(router, running):
    engine = running(router.engine())
    router.chat(text("I was about"), end=False)
    with pytest.raises(EngineCrashed, match="in the middle of its answer"):
        await events_of(engine)
    router.chat(text("Again"), text("", "stop"))
    assert await events_of(engine)
