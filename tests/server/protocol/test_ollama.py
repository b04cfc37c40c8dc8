"""Ollama's own client: what reaches the engine, and what comes back, whole and line by line."""

from contextlib import asynccontextmanager

import httpx2
import msgspec
import ollama
import pytest
from ollama import AsyncClient

from edgechat.base.errors import EngineCrashed, ModelNotFound
from edgechat.engine.types import Message, ToolCall, ToolCallArguments
from tests.server.fakes import KEY, FakeModels, called, finished, serving, thought

BEARER = {"Authorization": f"Bearer {KEY}"}
HELLO = [{"role": "user", "content": "Hello"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a place.",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
    },
}
PIECES = [
    called("weather", "", "a"),
    ToolCallArguments("", '{"place": ', 2),
    ToolCallArguments("", '"Rome"}', 3),
]


@asynccontextmanager
async def client_of(models, **more):
    async with serving(models, **more) as url:
        yield AsyncClient(host=url, headers=BEARER, timeout=60)


async def asked(models, **fields):
    """Ask; return what the engine got."""
    async with client_of(models) as client:
        await client.chat(**{"model": "default", "messages": HELLO} | fields)
    return models.requests[-1]


# What is asked.


async def test_options_say_how_text_is_generated():
    options = {"temperature": 0.2, "top_k": 7, "repeat_penalty": 1.2, "num_predict": 9, "num_ctx": 4096}
    request = await asked(FakeModels(), options={**options, "seed": 3, "stop": ["END"]})
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_k, sampling.repetition_penalty) == (0.2, 7, 1.2)
    assert (sampling.seed, request.max_tokens, request.stop) == (3, 9, ("END",))
    assert (await asked(FakeModels(), options={"num_predict": -1})).max_tokens is None


async def test_a_conversation_comes_back_as_it_was():
    messages = [
        {"role": "system", "content": "Be short."},
        *HELLO,
        {
            "role": "assistant",
            "content": "I look.",
            "thinking": "Hm.",
            "tool_calls": [
                {"function": {"name": "weather", "arguments": {"place": "Rome"}}},
                {"function": {"name": "weather", "arguments": {}}},
            ],
        },
        {"role": "tool", "content": "Sunny.", "tool_name": "weather"},
        {"role": "tool", "content": "Rain."},
    ]
    request = await asked(FakeModels(), messages=messages, tools=[WEATHER])
    system, user, answer, first, second = request.messages
    assert (system, user) == (Message("system", "Be short."), Message("user", "Hello"))
    assert (answer.content, answer.thinking) == ("I look.", "Hm.")
    assert [(call.name, msgspec.json.decode(call.arguments)) for call in answer.calls] == [
        ("weather", {"place": "Rome"}),
        ("weather", {}),
    ]
    assert first == Message("tool", "Sunny.", call_id=answer.calls[0].id)
    assert second == Message("tool", "Rain.", call_id=answer.calls[1].id)


@pytest.mark.parametrize(
    ("think", "expected", "effort"), [(True, True, None), (False, False, None), ("low", None, "low")]
)
async def test_thinking_is_switched_where_the_model_can(think, expected, effort):
    models = FakeModels(can_switch_thinking=effort is None, has_effort=effort is not None)
    request = await asked(models, think=think)
    assert (request.think, request.effort) == (expected, effort)


async def test_the_form_of_an_answer():
    assert (await asked(FakeModels(), format="json")).schema == '{"type": "object"}'
    schema = {"type": "object", "properties": {"name": {"type": "string"}}}
    assert '"name"' in ((await asked(FakeModels(), format=schema)).schema or "")
    assert (await asked(FakeModels())).schema is None


async def test_a_prompt_is_a_chat_or_text_to_continue():
    models = FakeModels()
    async with client_of(models) as client:
        await client.generate(model="default", prompt="Hello", system="Be short.")
        await client.generate(model="default", prompt="Once", raw=True)
        await client.generate(model="default", prompt="def f(", suffix="return 1")
    chat, raw, infill = models.requests
    assert chat.messages == (Message("system", "Be short."), Message("user", "Hello"))
    assert (raw.text, raw.messages, infill.text, infill.suffix) == ("Once", (), "def f(", "return 1")


@pytest.mark.parametrize(("sent", "most"), [(0.5, 1), (7.9, 7), (1e19, 2**31 - 1), (1e300, 2**31 - 1)])
async def test_any_number_of_tokens_is_bounded(sent, most):
    assert (await asked(FakeModels(), options={"num_predict": sent})).max_tokens == most


async def test_without_a_question_the_model_is_loaded():
    models = FakeModels()
    async with client_of(models) as client:
        answer = await client.generate(model="scripted:latest", keep_alive="5m")
        assert (await client.chat(model="scripted", messages=[])).done_reason == "load"
    assert (answer.done, answer.done_reason, models.requests) == (True, "load", [])
    assert models.asked == ["scripted", "scripted"]


@pytest.mark.parametrize("strict", [False, True])
async def test_ollama_stop_unloads_the_model_and_does_not_load_it(strict):
    models = FakeModels()
    async with client_of(models, strict=strict) as client:
        answer = await client.generate(model="scripted:latest", keep_alive=0)
        assert (await client.chat(model="scripted", messages=[], keep_alive="0")).done_reason == "unload"
    assert (answer.done, answer.done_reason, answer.model) == (True, "unload", "scripted")
    assert (models.asked, models.unloaded) == ([], ["scripted", "scripted"])


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"messages": [{"role": "user", "content": "x", "images": [b"xyz"]}]}, "images"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "must follow a call"),
        ({"options": {"temperature": 9}}, "temperature"),
    ],
)
async def test_what_cannot_be_is_refused(fields, match):
    async with client_of(FakeModels()) as client:
        with pytest.raises(ollama.ResponseError, match=match) as error:
            await client.chat(**{"model": "default", "messages": HELLO} | fields)
    assert error.value.status_code == 400


async def test_an_unknown_model_is_told_in_the_words_of_the_protocol():
    async with client_of(FakeModels(refuses=ModelNotFound("There is none."))) as client:
        with pytest.raises(ollama.ResponseError, match="There is none") as error:
            await client.chat(model="x", messages=HELLO)
    assert error.value.status_code == 404


# What comes back.


async def test_an_answer_as_a_whole():
    models = FakeModels([thought("Hm."), "It is ", "sunny.", *PIECES, finished("tools")])
    async with client_of(models) as client:
        answer = await client.chat(model="default", messages=HELLO, tools=[WEATHER])
    assert (answer.message.content, answer.message.thinking) == ("It is sunny.", "Hm.")
    (call,) = answer.message.tool_calls or ()
    assert (call.function.name, call.function.arguments) == ("weather", {"place": "Rome"})
    assert (answer.done, answer.done_reason, answer.model) == (True, "stop", "scripted")
    assert (answer.prompt_eval_count, answer.eval_count) == (20, 5)
    assert (answer.eval_duration, answer.prompt_eval_duration) == (200_000_000, 24_000_000)


async def test_the_lines_of_a_stream():
    models = FakeModels([thought("Hm."), "It is ", "sunny.", *PIECES, finished("tools")])
    async with client_of(models) as client:
        stream = await client.chat(model="default", messages=HELLO, tools=[WEATHER], stream=True)
        lines = [line async for line in stream]
    assert [line.message.content for line in lines] == ["", "It is ", "sunny.", "", ""]
    assert lines[0].message.thinking == "Hm."
    assert lines[3].message.tool_calls is not None
    assert lines[3].message.tool_calls[0].function.arguments == {"place": "Rome"}
    assert [line.done for line in lines] == [False] * 4 + [True]


async def test_a_stream_is_what_comes_where_nothing_is_said():
    async with serving(FakeModels(["Hi"])) as url, httpx2.AsyncClient(headers=BEARER) as client:
        whole = await client.post(f"{url}/api/generate", json={"prompt": "x", "stream": False})
        lines = await client.post(f"{url}/api/generate", json={"prompt": "x"})
    assert whole.json()["response"] == "Hi"
    assert lines.headers["content-type"] == "application/x-ndjson"
    assert [msgspec.json.decode(line)["done"] for line in lines.text.splitlines()] == [False, True]


async def test_a_cut_answer_and_a_failure():
    async with client_of(FakeModels(["x", finished("length")])) as client:
        assert (await client.generate(model="default", prompt="x")).done_reason == "length"
    async with client_of(FakeModels(["x", EngineCrashed("It crashed.")])) as client:
        with pytest.raises(ollama.ResponseError, match="It crashed"):
            async for _ in await client.generate(model="default", prompt="x", stream=True):
                pass


async def test_the_models_are_listed_and_shown():
    async with client_of(FakeModels()) as client:
        (model,) = (await client.list()).models
        assert (model.model, model.size) == ("scripted", 7)
        assert [one.model for one in (await client.ps()).models] == ["scripted"]
        shown = await client.show("scripted:latest")
        assert (shown.capabilities or [])[0] == "completion"
        assert (shown.modelinfo or {})["llama.context_length"] == 4096
        with pytest.raises(ollama.ResponseError):
            await client.show("other")


async def test_texts_are_embedded():
    async with client_of(FakeModels(embedding=4)) as client:
        embedded = await client.embed(model="default", input=["abc", "d"])
        with pytest.raises(ollama.ResponseError, match="dimensions"):
            await client.embed(model="default", input="x", dimensions=3)
    assert [list(vector) for vector in embedded.embeddings] == [[3, 1, 2, 3], [1, 1, 2, 3]]
    assert embedded.prompt_eval_count == 7


async def test_ids_of_calls_are_kept():
    call = {"id": "mine", "function": {"name": "weather", "arguments": {}}}
    messages = [
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "content": "Sunny.", "tool_call_id": "mine"},
    ]
    models = FakeModels()
    async with serving(models) as url, httpx2.AsyncClient(headers=BEARER) as client:
        await client.post(f"{url}/api/chat", json={"messages": messages})
    assert models.requests[0].messages == (
        Message("assistant", "", calls=(ToolCall("mine", "weather", "{}"),)),
        Message("tool", "Sunny.", call_id="mine"),
    )


async def test_arguments_of_calls_are_objects():
    call = {"function": {"name": "weather", "arguments": [None]}}
    messages = [{"role": "assistant", "tool_calls": [call]}]
    async with serving(FakeModels()) as url, httpx2.AsyncClient(headers=BEARER) as client:
        answer = await client.post(f"{url}/api/chat", json={"messages": messages})
    assert answer.status_code == 400
    assert "The arguments of a call are an object" in answer.text
