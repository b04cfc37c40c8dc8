"""What servers of each kind are asked, and how their answers are read."""

import asyncio
import base64
import json

import pytest

from edgechat.base.errors import BadRequest, PromptTooLong, RemoteUnreachable, SwitchUnknown, WrongKind
from edgechat.base.images.image import PLACE, Image
from edgechat.base.network.offline import OFFLINE, is_loopback
from edgechat.engine.remote.engine import RemoteEngine, RunningHost
from edgechat.engine.types import (
    ChatRequest,
    Delta,
    Dropped,
    Finished,
    Message,
    Prefill,
    Sampling,
    TokenLogprobs,
    Tool,
    ToolCall,
    ToolCallArguments,
    ToolCallBegun,
)
from edgechat.models.remote.client import RemoteClient
from edgechat.models.remote.discovery import described, models_of
from edgechat.models.remote.measured import measured_speeds, note_speed
from edgechat.models.remote.metrics import ServerLoad, load_of
from edgechat.models.remote.model import HostedModel, root_of
from edgechat.planner.plan import LoadPlan
from edgechat.settings import RemoteServer
from tests.engine.remote.raw import raw_server, said, streamed, text

LISTS = {
    "vllm": {"id": "m", "owned_by": "vllm", "max_model_len": 4096},
    "sglang": {"id": "m", "owned_by": "sglang", "max_model_len": 4096},
    "llama-server": {"id": "m", "owned_by": "llamacpp", "meta": {"n_ctx": 4096, "n_params": 7}},
    "edgechat": {"id": "m", "owned_by": "edgechat", "kind": "chat", "context": 4096},
    "lmstudio": {"id": "m", "owned_by": "organization_owner"},
    "ollama": {"id": "m", "owned_by": "library"},
    "tgi": {"id": "m", "owned_by": "m"},
    "openai": {"id": "m", "owned_by": "openai", "context_length": 4096},
}
"""How each kind of server lists a model."""


def as_kind(raw, kind):
    """Let a server be one of a kind, with the endpoints that only that has."""
    raw.models(LISTS[kind])
    if kind == "lmstudio":
        entry = {"id": "m", "type": "vlm", "loaded_context_length": 4096, "max_context_length": 32768}
        raw.answers["/api/v0/models"] = said({"data": [entry]})
    if kind == "ollama":
        raw.answers["/api/version"] = said({"version": "0.17.0"})
        raw.answers["/api/ps"] = said({"models": [{"name": "m", "context_length": 4096}]})
        raw.answers["/api/show"] = said(
            {
                "capabilities": ["completion", "vision", "thinking"],
                "model_info": {"general.parameter_count": 7},
            }
        )
    if kind == "tgi":
        raw.answers["/info"] = said({"model_id": "m", "max_total_tokens": 4096})
    if kind == "llama-server":
        raw.answers["/props"] = said(
            {
                "default_generation_settings": {"n_ctx": 4096},
                "modalities": {"vision": True, "audio": False},
                "chat_template": "{% if enable_thinking %}",
            }
        )


@pytest.fixture
async def raw():
    async with raw_server() as server:
        yield server


@pytest.fixture
async def engine(raw):
    made = raw.engine()
    yield made
    await made.close()


def asked(**fields):
    return ChatRequest(**({"id": "r", "messages": (Message("user", "hi"),)} | fields))


async def events_of(engine, **fields):
    return [event async for event in engine.stream(asked(**fields))]


def texts(events):
    return [(event.text, event.thinking) for event in events if isinstance(event, Delta)]


def last(events):
    assert isinstance(events[-1], Finished)
    return events[-1]


@pytest.mark.parametrize("kind", LISTS)
async def test_a_server_tells_what_it_is(raw, kind, running):
    as_kind(raw, kind)
    client = running(raw.client())
    found = await described(client, "m")
    assert (found.kind, found.context, found.name) == (kind, 4096, "desk/m")
    assert found.sees is (kind in ("llama-server", "ollama", "lmstudio"))
    assert found.can_switch_thinking is (kind not in ("lmstudio", "tgi", "openai"))
    assert found.has_tools is (kind != "ollama")


async def test_a_kind_that_is_given_is_not_found_out(raw, running):
    raw.models({"id": "m"})
    client = running(RemoteClient("desk", RemoteServer(url=f"{raw.url}/v1/", kind="sglang")))
    assert (await models_of(client))[0] == "sglang"
    assert [one.path for one in raw.asked] == ["/v1/models"]


async def test_a_server_without_models(raw, running):
    raw.answers["/v1/models"] = said({"object": "list", "data": None})
    raw.answers["/api/version"] = said({"version": "0.17.0"})
    client = running(raw.client())
    assert await models_of(client) == ("ollama", [])


async def test_a_maker_of_embeddings_does_not_chat(raw, engine):
    raw.models({"id": "m", "owned_by": "edgechat", "kind": "embedding"})
    with pytest.raises(WrongKind):
        await events_of(engine)


@pytest.mark.parametrize("kind", LISTS)
async def test_only_what_was_set_is_sent(raw, kind, running):
    as_kind(raw, kind)
    notes = []
    engine = running(raw.engine(on_note=notes.append))
    await events_of(engine, sampling=Sampling(temperature=0.8), sampling_set=())
    assert not {"temperature", "top_k", "top_p", "seed"} & set(raw.body)
    sampling = Sampling(temperature=0.8, top_k=7, repetition_penalty=1.1, seed=5)
    await events_of(engine, sampling=sampling, sampling_set=("temperature", "top_k", "repetition_penalty"))
    assert (raw.body["temperature"], raw.body["seed"]) == (0.8, 5)
    knows_all = kind in ("vllm", "sglang", "llama-server", "edgechat", "lmstudio")
    assert (raw.body.get("top_k"), bool(notes)) == (7 if knows_all else None, not knows_all)
    penalty = "repeat_penalty" if kind in ("llama-server", "lmstudio") else "repetition_penalty"
    assert raw.body.get(penalty) == (1.1 if knows_all else None)
    assert knows_all or "top_k has no effect" in notes[0]


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        ("vllm", {"chat_template_kwargs": {"enable_thinking": False}}),
        ("llama-server", {"chat_template_kwargs": {"enable_thinking": False}}),
        ("ollama", {"reasoning_effort": "none"}),
        ("tgi", None),
        ("openai", None),
    ],
)
async def test_thinking_is_switched(raw, engine, kind, field):
    as_kind(raw, kind)
    if field is None:
        with pytest.raises(SwitchUnknown):
            await events_of(engine, think=False)
    else:
        await events_of(engine, think=False)
        assert field.items() <= raw.body.items()


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
async def test_thoughts_in_a_field_of_their_own(raw, engine, name):
    raw.chat({"choices": [{"delta": {name: "Hm. "}}]}, text("\n\nSix."), text("", "stop"))
    assert texts(await events_of(engine)) == [("Hm. ", True), ("Six.", False)]


async def test_thoughts_in_the_text(raw, engine):
    raw.chat(*map(text, ("<th", "ink>H", "m.</thi", "nk>\n\nSi", "x.")), text("", "stop"))
    events = texts(await events_of(engine))
    assert "".join(piece for piece, thinking in events if thinking) == "Hm."
    assert "".join(piece for piece, thinking in events if not thinking) == "Six."


async def test_tools(raw, engine):
    def part(index, id=None, name=None, arguments=""):
        call = {"index": index, "id": id, "function": {"name": name, "arguments": arguments}}
        return {"choices": [{"delta": {"tool_calls": [call]}}]}

    raw.chat(
        text("I look."),
        part(0, "a", "weather"),
        part(0, arguments='{"place": '),
        part(0, arguments='"Rome"}'),
        part(1, "b", "clock", "{}"),
        text("", "tool_calls"),
        {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 20}},
    )
    tool = Tool("weather", "Tells it.", '{"type": "object"}', strict=True)
    history = (
        Message("user", "hi"),
        Message("assistant", "", "Hm.", (ToolCall("c1", "weather", "{}"),)),
        Message("tool", "Sunny.", call_id="c1"),
    )
    events = await events_of(
        engine, tools=(tool,), messages=history, tool_choice="required", tool="weather", most_calls=5
    )
    begun = [event.call.name for event in events if isinstance(event, ToolCallBegun)]
    arguments = [event.text for event in events if isinstance(event, ToolCallArguments)]
    assert (begun, arguments) == (["weather", "clock"], ['{"place": ', '"Rome"}', "{}"])
    assert (last(events).reason, last(events).usage.completion_tokens) == ("tools", 20)
    body = raw.body
    assert body["tools"][0]["function"] == {
        "name": "weather",
        "description": "Tells it.",
        "parameters": {"type": "object"},
        "strict": True,
    }
    assert body["tool_choice"] == {"type": "function", "function": {"name": "weather"}}
    _, called, result = body["messages"]
    assert called["tool_calls"][0]["id"] == result["tool_call_id"] == "c1"
    assert (called["content"], result["content"]) == (None, "Sunny.")


async def test_whole_calls_without_ids_are_told_apart(raw, engine):
    calls = [{"index": 0, "id": "", "function": {"name": "f", "arguments": f'{{"n": {n}}}'}} for n in (1, 2)]
    raw.chat({"choices": [{"delta": {"tool_calls": calls}}]}, text("", "tool_calls"))
    events = await events_of(engine)
    assert sum(isinstance(event, ToolCallBegun) for event in events) == 2


async def test_the_answer_ends_after_so_many_calls(raw, engine):
    calls = [{"index": at, "id": str(at), "function": {"name": "f", "arguments": "{}"}} for at in range(5)]
    raw.chat({"choices": [{"delta": {"tool_calls": calls}}]}, text("", "tool_calls"))
    events = await events_of(engine, most_calls=2)
    assert sum(isinstance(event, ToolCallBegun) for event in events) == 2


async def test_images_are_sent_where_they_belong(raw, engine, tmp_path):
    first, second = tmp_path / "a.jpg", tmp_path / "b.png"
    first.write_bytes(b"one")
    second.write_bytes(b"two")
    media = tuple(Image("0" * 32, str(path), 1, 1) for path in (first, second))
    await events_of(engine, messages=(Message("user", f"See {PLACE} here", media=media),))
    (message,) = raw.body["messages"]
    one, two = (base64.b64encode(data).decode() for data in (b"one", b"two"))
    assert message["content"] == [
        {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{one}"}},
        {"type": "text", "text": "See "},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{two}"}},
        {"type": "text", "text": " here"},
    ]


async def test_a_schema(raw, engine):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    await events_of(engine, schema=json.dumps(schema))
    assert raw.body["response_format"]["json_schema"]["schema"] == schema
    await events_of(engine, schema='{"type": "object"}')
    assert raw.body["response_format"] == {"type": "json_object"}


async def test_logprobs(raw, engine):
    other = {"token": "é", "logprob": -2.5, "bytes": [195, 169]}
    chance = {"token": "Hi", "logprob": -0.1, "bytes": None, "top_logprobs": [other]}
    raw.chat({"choices": [{"delta": {"content": "Hi"}, "logprobs": {"content": [chance]}}]}, text("", "stop"))
    events = await events_of(engine, logprobs=1)
    assert (raw.body["logprobs"], raw.body["top_logprobs"]) == (True, 1)
    found = [event.chances for event in events if isinstance(event, Delta)]
    assert found == [(TokenLogprobs(b"Hi", -0.1, (("é".encode(), -2.5),)),)]


@pytest.mark.parametrize(
    ("finish", "limit", "reason"),
    [
        ("stop", None, "stop"),
        ("length", 2, "length"),
        ("length", 100, "context"),
        ("content_filter", None, "stop"),
    ],
)
async def test_why_it_ended(raw, engine, finish, limit, reason):
    raw.chat(text("a"), text("b"), text("", finish))
    assert last(await events_of(engine, max_tokens=limit)).reason == reason
    assert raw.body.get("max_tokens") == limit


async def test_usage_and_timings(raw, engine):
    as_kind(raw, "llama-server")
    raw.chat(
        {"choices": [], "prompt_progress": {"total": 40, "cache": 8, "processed": 24}},
        text("a"),
        text("", "stop"),
        {
            "choices": [],
            "usage": {"prompt_tokens": 40, "completion_tokens": 3},
            "timings": {"prompt_per_second": 250.5, "cache_n": 8},
        },
    )
    events = await events_of(engine)
    assert raw.body["return_progress"] is True
    assert events[0] == Prefill("r", 24, 40, 8)
    usage, timings = last(events).usage, last(events).timings
    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (40, 8, 3)
    assert timings.prompt_tps == 250.5
    assert timings.ttft_ms > 0


async def test_a_conversation_that_is_too_long_loses_its_oldest_turns(raw, engine):
    async def answer(write):
        if len(raw.body["messages"]) > 8:
            await said({"error": {"code": "context_length_exceeded", "message": "too long"}}, 400)(write)
        else:
            await streamed(b"data: " + json.dumps(text("Hi", "stop")).encode())(write)

    raw.answers["/v1/chat/completions"] = answer
    turns = [Message(role, f"{role} {at}") for at in range(10) for role in ("user", "assistant")]
    messages = (Message("system", "Be brief."), *turns, Message("user", "now"))
    events = await events_of(engine, messages=messages)
    assert [event.turns for event in events if isinstance(event, Dropped)] == [5, 7]
    sent = [message["content"] for message in raw.body["messages"]]
    kept = [f"{role} {at}" for at in (0, 8, 9) for role in ("user", "assistant")]
    assert sent == ["Be brief.", *kept, "now"]
    assert last(events).usage.dropped_turns == 7
    with pytest.raises(PromptTooLong):
        await events_of(engine, messages=messages, overflow="error")


async def test_what_it_cannot_do_it_says(raw, engine):
    for fields in ({"text": "Once"}, {"sampling": Sampling(bias=((5, 1.0),))}):
        with pytest.raises(BadRequest):
            await events_of(engine, **fields)
    as_kind(raw, "ollama")
    with pytest.raises(BadRequest, match="does not offer tokenization"):
        await raw.engine().translate("t", "Hello")
    assert await engine.inspect() is None  # it has no metrics


async def test_four_chats_at_once_lose_nothing(raw, engine):
    words = [f"word{number} " for number in range(500)]
    raw.chat(*map(text, words), text("", "stop"))
    replies = await asyncio.gather(*(collected(engine, str(number)) for number in range(4)))
    assert replies == ["".join(words)] * 4


async def collected(engine, id):
    return "".join([event.text async for event in engine.stream(asked(id=id)) if isinstance(event, Delta)])


async def test_how_busy_it_is(raw, running):
    metrics = b"""# HELP vllm:num_requests_running Number of requests.
vllm:num_requests_running{model_name="m"} 2.0
vllm:num_requests_waiting{model_name="m"} 1.0
vllm:kv_cache_usage_perc{model_name="m"} 0.25
vllm:num_requests_running_total 99
"""
    raw.answers["/metrics"] = said(metrics)
    client = running(raw.client())
    assert await load_of(client, "vllm") == ServerLoad(2, 1, 0.25)
    assert await load_of(client, "openai") is None
    raw.answers["/metrics"] = said(b"vllm:num_requests_running nan\nvllm:kv_cache_usage_perc 1e30\n")
    assert await load_of(client, "vllm") is None


async def test_offline_only_this_machine_is_reached(raw, engine, monkeypatch):
    monkeypatch.setenv(OFFLINE, "1")
    assert await events_of(engine)
    far = RemoteClient("desk", RemoteServer(url="http://desk.invalid"))
    with pytest.raises(RemoteUnreachable, match="EDGECHAT_OFFLINE keeps edgechat offline"):
        await far.get("/v1/models")


async def test_a_proxy_that_cannot_be_used_is_named_except_for_this_machine(raw, engine, monkeypatch):
    monkeypatch.setenv("ALL_PROXY", "socks://127.0.0.1:7897")
    assert await events_of(engine)
    far = RemoteClient("desk", RemoteServer(url="http://desk.invalid"))
    with pytest.raises(RemoteUnreachable, match="ALL_PROXY begins with socks://"):
        await far.get("/v1/models")


@pytest.mark.parametrize(
    ("url", "is_here"),
    [
        ("http://127.0.0.1:1", True),
        ("http://127.8.9.1", True),
        ("http://[::1]:8000/v1", True),
        ("http://localhost:1", True),
        ("http://localhost.evil.example", False),
        ("http://127.0.0.1.evil.example", False),
        ("http://10.0.0.1", False),
    ],
)
def test_what_is_this_machine(url, is_here):
    assert is_loopback(url) is is_here


def test_the_root_of_a_url():
    assert root_of("https://host/api/v1/") == "https://host/api"
    assert root_of("http://host:8000") == "http://host:8000"


def test_speeds_are_remembered():
    note_speed("desk/m", 100.0, 10.0)
    note_speed("desk/m", 200.0, 20.0)
    speed = measured_speeds()["desk/m"]
    assert (speed.ttft_ms, speed.decode_tps) == (130.0, 13.0)


def transformers(raw):
    """Return an engine of `transformers serve`: its list has what lies in the hub's cache alone, or fails."""
    raw.answers["/v1/models"] = said({"detail": "no cache"}, 500)
    server = RemoteServer(url=raw.url, kind="transformers")
    remote = HostedModel(server="desk", id="/models/own", kind="transformers", url=raw.url)
    plan = LoadPlan(model_path="", model_name=remote.name, context=1000, remote=remote)
    return RemoteEngine(plan, RunningHost(server))


async def test_transformers_is_asked_for_a_model_that_it_does_not_list(raw, running):
    engine = running(transformers(raw))
    assert texts(await events_of(engine, think=False)) == [("Hi", False)]
    assert raw.body["model"] == "/models/own"
    assert raw.body["chat_template_kwargs"] == {"enable_thinking": False}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"schema": '{"type": "object"}'}, "JSON schemas"),
        ({"tools": (Tool("add"),), "tool_choice": "required"}, "required tool calls"),
        ({"logprobs": 2}, "token probabilities"),
    ],
)
async def test_what_transformers_ignores_is_refused(raw, running, fields, named):
    with pytest.raises(BadRequest, match=named):
        await events_of(running(transformers(raw)), **fields)


async def test_a_stop_string_that_a_server_sends_is_not_shown(raw, engine):
    raw.chat(text("one, t"), text("wo."), text("", "stop"))
    assert "".join(shown for shown, _ in texts(await events_of(engine, stop=("two",)))) == "one, "


@pytest.mark.parametrize("kind", ["llama-server", "vllm"])
async def test_a_tool_that_must_be_called_is_named_as_the_server_knows_it(raw, kind, running):
    as_kind(raw, kind)
    asked = {"tools": (Tool("add"), Tool("sum")), "tool_choice": "required", "tool": "sum"}
    await events_of(running(raw.engine()), **asked)
    names = [tool["function"]["name"] for tool in raw.body["tools"]]
    by_name = {"type": "function", "function": {"name": "sum"}}
    expected = (["sum"], "required") if kind == "llama-server" else (["add", "sum"], by_name)
    assert (names, raw.body["tool_choice"]) == expected
    is_strict = [tool["function"].get("strict", False) for tool in raw.body["tools"]]
    assert is_strict == [kind == "vllm"] * len(names)
