"""Servers that mean harm, or are broken: everything is bounded, inert, and an error of ours."""

import asyncio
import logging
import threading

import pytest

from edgechat.base.errors import (
    BadRequest,
    EdgechatError,
    EngineCrashed,
    LoadFailed,
    ModelNotFound,
    PromptTooLong,
    QueueFull,
    RemoteDenied,
    RemoteFailed,
    RemoteUnreachable,
)
from edgechat.engine.protocol import EngineState
from edgechat.engine.types import ChatRequest, Delta, Message
from edgechat.models.remote import client
from edgechat.models.remote.discovery import MOST_MODELS, models_of
from edgechat.models.remote.listing import listing_of
from edgechat.settings import RemoteServer
from tests.engine.remote.raw import KEY, STREAM, raw_server, said, text

ASKED = ChatRequest(id="r", messages=(Message("user", "hi"),))


@pytest.fixture
async def raw():
    async with raw_server() as server:
        yield server


@pytest.fixture
async def engine(raw):
    made = raw.engine()
    yield made
    await made.close()


async def events_of(engine, request=ASKED):
    return [event async for event in engine.stream(request)]


async def failure_of(engine):
    with pytest.raises(EdgechatError) as caught:
        await events_of(engine)
    return caught.value


def endless(piece):
    async def answer(write):
        await write(STREAM)
        while True:
            await write(piece)

    return answer


async def test_a_line_without_end(raw, engine):
    raw.answers["/v1/chat/completions"] = endless(b"x" * 2**16)
    error = await failure_of(engine)
    assert isinstance(error, RemoteFailed)
    assert "a line of more than 1 MiB" in error.message
    await asyncio.wait_for(raw.left.wait(), 5)


async def test_a_line_that_comes_byte_by_byte(raw, engine):
    body = b'data: {"choices": [{"delta": {"content": "Hi"}}]}\n\ndata: [DONE]\n'

    async def answer(write):
        await write(STREAM)
        for at in range(len(body)):
            await write(body[at : at + 1])
            await asyncio.sleep(0)

    raw.answers["/v1/chat/completions"] = answer
    assert [event.text for event in await events_of(engine) if isinstance(event, Delta)] == ["Hi"]


async def test_a_stream_without_end(raw, engine, monkeypatch):
    monkeypatch.setattr(client, "MOST_ANSWER", 2**20)
    raw.answers["/v1/chat/completions"] = endless(b": still there\n" * 1000)
    error = await failure_of(engine)
    assert "an answer of more than 1 MiB" in error.message
    await asyncio.wait_for(raw.left.wait(), 5)


async def test_a_list_without_end(raw, running):
    raw.answers["/v1/models"] = endless(b" " * 2**16)
    asked = running(raw.client())
    with pytest.raises(RemoteFailed, match="sent a response of more than 8 MiB"):
        await models_of(asked)


async def test_an_error_without_end(raw, engine):
    async def answer(write):
        await write(b"HTTP/1.1 500 X\r\nConnection: close\r\n\r\n")
        while True:
            await write(b"x" * 2**16)

    raw.answers["/v1/chat/completions"] = answer
    assert isinstance(await failure_of(engine), RemoteFailed)


@pytest.mark.slow
async def test_one_that_says_nothing_after_its_beginning(raw, monkeypatch, running):
    async def answer(write):
        await write(STREAM + b"data: " + b'{"choices": [{"delta": {"content": "One"}}]}\n\n')
        await asyncio.sleep(60)

    monkeypatch.setattr(client, "SILENT_SECONDS", 0.3)
    raw.answers["/v1/chat/completions"] = answer
    engine = running(raw.engine())
    error = await failure_of(engine)
    assert isinstance(error, EngineCrashed)
    assert "sent nothing" in error.message


@pytest.mark.slow
async def test_one_that_never_answers(raw, engine, monkeypatch):
    async def answer(_):
        await asyncio.sleep(60)

    monkeypatch.setattr(client.RemoteClient.get, "__kwdefaults__", {"seconds": 0.3})
    raw.answers["/v1/models"] = answer
    with pytest.raises(RemoteUnreachable, match="did not answer"):
        await engine.start()
    assert (engine.state, engine.has_crashed) == (EngineState.STOPPED, False)


async def test_nobody_is_there(raw, engine, running):
    raw.url = "http://127.0.0.1:1"
    gone = running(raw.engine())
    with pytest.raises(RemoteUnreachable, match="the connection failed") as caught:
        await gone.start()
    assert "Its address: http://127.0.0.1:1" in (caught.value.hint or "")
    assert isinstance(caught.value, LoadFailed)


def test_nobody_waits_for_a_resolver_that_does_not_answer(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    answer = threading.Event()
    monkeypatch.setattr(client.socket, "getaddrinfo", lambda *_: answer.wait())
    server = RemoteServer(url="http://desk.example:8000")
    try:
        listed = asyncio.run(listing_of("desk", server, 0.1))  # else it waits here until the test is ended
        assert "does not answer" in listed.error.message
        monkeypatch.setattr(client, "CONNECT_SECONDS", 0.1)
        told = asyncio.run(refused(server))
        assert "looking up desk.example took too long" in told.message
    finally:
        answer.set()


def test_a_host_that_is_not_there_is_named():
    told = asyncio.run(refused(RemoteServer(url="http://desk.invalid:8000")))
    assert told.message == "desk cannot be reached: there is no host desk.invalid."


async def refused(server):
    with pytest.raises(RemoteUnreachable) as caught:
        await client.RemoteClient("desk", server).get("/v1/models")
    return caught.value


async def test_it_closes_in_the_middle(raw, engine):
    raw.chat(text("I was about"), end=False)
    events = []

    async def read():
        async for event in engine.stream(ASKED):
            events.append(event)  # noqa: PERF401  (those before the error count)

    with pytest.raises(EngineCrashed, match="in the middle"):
        await read()
    assert [event.text for event in events if isinstance(event, Delta)] == ["I was about"]
    assert (engine.state, engine.has_crashed) == (EngineState.STOPPED, True)
    raw.chat(text("Again"), text("", "stop"))
    assert await events_of(engine)
    assert not engine.has_crashed


async def test_one_that_fails_leaves_the_others_alone(raw, engine):
    more = asyncio.Event()

    async def slow(write):
        if raw.body["messages"][0]["content"] == "slow":
            await write(STREAM + b'data: {"choices": [{"delta": {"content": "One "}}]}\n\n')
            await more.wait()
            await write(b'data: {"choices": [{"delta": {"content": "two"}, "finish_reason": "stop"}]}\n\n')
        else:
            await write(STREAM + b'data: {"error": {"message": "no more memory"}}\n\n')

    raw.answers["/v1/chat/completions"] = slow
    request = ChatRequest(id="s", messages=(Message("user", "slow"),))
    other = asyncio.create_task(events_of(engine, request))
    while sum(one.path.endswith("completions") for one in raw.asked) < 1:
        await asyncio.sleep(0.01)
    assert (await failure_of(engine)).message.endswith("error: no more memory.")
    more.set()
    assert "".join(event.text for event in await other if isinstance(event, Delta)) == "One two"


async def test_a_chunked_answer_that_is_cut(raw, engine):
    async def answer(write):
        await write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\ndata:\r\n")

    raw.answers["/v1/chat/completions"] = answer
    assert isinstance(await failure_of(engine), EngineCrashed)


@pytest.mark.parametrize("path", ["/v1/models", "/v1/chat/completions"])
async def test_a_redirect_is_not_followed(raw, engine, path):
    async with raw_server() as other:
        raw.answers[path] = said(b"", 307, Location=f"{other.url}{path}")
        error = await failure_of(engine)
        assert "redirects" in error.message
        assert other.asked == []


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (401, {"error": {"message": f"wrong key {KEY}"}}, RemoteDenied),
        (403, {"error": f"Incorrect API key: {KEY}"}, RemoteDenied),
        (404, {"detail": f"no model for {KEY}"}, ModelNotFound),
        (429, {"error": {"message": f"slow down, {KEY}"}}, QueueFull),
        (400, {"error": {"message": f"{KEY}: temperature"}}, BadRequest),
        (400, {"message": "This model's maximum context length is 4096 tokens."}, PromptTooLong),
        (400, {"error": {"type": "exceed_context_size_error", "message": KEY}}, PromptTooLong),
        (500, {"error": {"message": f"CUDA error {KEY}"}}, RemoteFailed),
        (503, b"<html>" + KEY.encode(), QueueFull),
        (502, KEY.encode(), RemoteUnreachable),
        (302, b"", RemoteFailed),
        (204, b"", RemoteFailed),
        (200, b'data: {"error": {"message": "' + KEY.encode() + b'"}}\n\n', EngineCrashed),
        (200, b"data: {nonsense " + KEY.encode() + b"}\n\n", RemoteFailed),
        (200, b"data: [1, 2]\n\n", RemoteFailed),
        (200, b'data: {"choices": [{"delta": {"content": 7}}]}\n\n', RemoteFailed),
        (200, b"data: " + b"[" * 5000 + b"\n\n", RemoteFailed),
        (200, KEY.encode(), EngineCrashed),
    ],
)
async def test_errors_are_ours_and_never_tell_the_key(raw, engine, status, body, kind, caplog):
    caplog.set_level(logging.DEBUG, "edgechat")
    raw.answers["/v1/chat/completions"] = said(body, status, Retry_After="7")
    error = await failure_of(engine)
    assert type(error) is kind
    assert KEY not in f"{error.message} {error.hint} {caplog.text} {engine.plan} {engine.model}"
    assert not isinstance(error, QueueFull) or error.seconds == 7


async def test_escape_sequences_of_its_errors_and_names_are_inert(raw, engine):
    raw.answers["/v1/chat/completions"] = said({"error": {"message": "\x1b]0;owned\x07\u202e\n\nfoo"}}, 500)
    error = await failure_of(engine)
    assert error.message.isprintable()
    raw.models({"id": "\x1b[2Jevil"}, {"id": "a\nb"}, {"id": 5}, {"id": "x" * 9999}, {"id": "m"}, "m", None)
    kind, models = await models_of(asked := raw.client())
    assert (kind, [model.id for model in models]) == ("openai", ["m"])
    await asked.close()


async def test_a_list_of_very_many_models(raw):
    raw.models(*({"id": f"m{number}"} for number in range(MOST_MODELS + 500)))
    _, models = await models_of(asked := raw.client())
    assert len(models) == MOST_MODELS
    await asked.close()


@pytest.mark.parametrize("told", [[], {"data": 5}, {"data": {}}, "models", None, 7])
async def test_what_is_no_list_of_models(raw, engine, told):
    raw.answers["/v1/models"] = said(told)
    with pytest.raises(RemoteUnreachable, match="not a server that edgechat can use"):
        await engine.start()


@pytest.mark.parametrize("told", [[], "x", 7, None, {"capabilities": 7, "model_info": [], "modalities": 1}])
@pytest.mark.parametrize("owner", ["llamacpp", "library", "organization_owner", 7, ["vllm"], {}])
async def test_nonsense_about_a_model(raw, engine, told, owner):
    sizes = {"meta": 7, "architecture": [], "max_model_len": "8k", "context": -1, "kind": {}, "type": []}
    raw.models({"id": "m", "owned_by": owner, **sizes})
    for path in ("/props", "/api/show", "/api/ps", "/api/version", "/api/v0/models", "/info", "/metrics"):
        raw.answers[path] = said(told)
    model = await engine.start()
    assert model.context == 1000  # what was assumed
    await events_of(engine)
    assert await engine.inspect() is None


@pytest.mark.parametrize("count", [-5, 10**30, True, "9", 1.5, None, {}, 2**31 - 1])
async def test_lies_about_usage(raw, engine, count):
    usage = {
        "prompt_tokens": count,
        "completion_tokens": count,
        "prompt_tokens_details": {"cached_tokens": 10**9},
    }
    lies = {"choices": [], "usage": usage, "timings": {"prompt_per_second": 1e300, "cache_n": count}}
    raw.chat(text("a"), text("b"), text("", "stop"), lies)
    last = (await events_of(engine))[-1]
    assert 0 <= last.usage.cached_tokens <= last.usage.prompt_tokens < 2**31
    assert 2 <= last.usage.completion_tokens < 2**31
    assert last.timings.prompt_tps == 0.0
    assert last.timings.decode_tps < 1e7


@pytest.mark.parametrize(
    "calls",
    [
        [{"index": 0, "function": {"arguments": "{}"}}],
        [{"index": 0, "function": {"name": "x\x1b[2J", "arguments": "{}"}}],
        [{"index": 0, "function": {"name": "x" * 1000}}],
        [{"function": {"name": 5}}],
    ],
)
async def test_calls_without_a_usable_name(raw, engine, calls):
    raw.chat({"choices": [{"delta": {"tool_calls": calls}}]})
    assert isinstance(await failure_of(engine), RemoteFailed)


async def test_calls_without_end(raw, engine):
    calls = [{"index": at, "id": str(at), "function": {"name": "f", "arguments": "{}"}} for at in range(1000)]
    raw.chat({"choices": [{"delta": {"tool_calls": calls}}]})
    events = await events_of(engine)
    assert len(events) == 2 * 128 + 1
    assert events[-1].reason == "tools"


async def test_a_compressed_answer_is_refused(raw, engine):
    raw.answers["/v1/chat/completions"] = said(b"\x1f\x8b" + b"\0" * 100, Content_Encoding="gzip")
    assert "compressed" in (await failure_of(engine)).message


async def test_leaving_a_stream_closes_the_connection(raw, engine):
    raw.answers["/v1/chat/completions"] = endless(b'data: {"choices": [{"delta": {"content": "on "}}]}\n\n')
    async for event in engine.stream(ASKED):
        if isinstance(event, Delta):
            await engine.cancel("r")
    assert event.reason == "cancelled"
    await asyncio.wait_for(raw.left.wait(), 5)


async def test_the_key_goes_to_its_server_alone(raw, engine):
    await events_of(engine)
    assert {one.headers["authorization"] for one in raw.asked} == {f"Bearer {KEY}"}
