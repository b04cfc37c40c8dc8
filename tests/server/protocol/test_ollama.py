"""What only Ollama's protocol has: its lines, its prompts, and requests that load and unload models."""

import json

import msgspec
import pytest

from edgechat.engine.types import Delta, Message, TokenLogprobs, ToolCall, ToolCallArguments
from tests.server.dialects import GENERATE, HELLO, OLLAMA, PIECES, WEATHER, named
from tests.server.fakes import FakeModels, called, finished, serving, thought


def calling(**call):
    return {"role": "assistant", "tool_calls": [{"function": {"name": "weather", "arguments": {}}} | call]}


async def test_results_belong_to_the_calls_that_they_name():
    models = FakeModels()
    other = {"function": {"name": "other", "arguments": {}}}
    calls = calling()["tool_calls"]
    messages = [
        {"role": "assistant", "tool_calls": [*calls, other, *calls]},
        *({"role": "tool", "content": name, "tool_name": name} for name in ("other", "weather")),
        {"role": "tool", "content": "last"},
    ]
    await OLLAMA.answered(models, messages=messages)
    answer, *results = models.requests[0].messages
    assert [call.name for call in answer.calls] == ["weather", "other", "weather"]
    first, second, third = (call.id for call in answer.calls)
    assert [(one.content, one.call_id) for one in results] == [
        ("other", second),
        ("weather", first),
        ("last", third),
    ]


async def test_ids_of_calls_are_kept(models, url):
    messages = [calling(id="mine"), {"role": "tool", "content": "Sunny.", "tool_call_id": "mine"}]
    await OLLAMA.post(url, messages=messages)
    assert models.requests[0].messages == (
        Message("assistant", "", calls=(ToolCall("mine", "weather", "{}"),)),
        Message("tool", "Sunny.", call_id="mine"),
    )


async def test_arguments_of_calls_are_objects(url):
    call = {"function": {"name": "weather", "arguments": [None]}}
    answer = await OLLAMA.post(url, messages=[calling(**call)])
    assert answer.status_code == 400
    assert "The arguments of a call must be an object" in answer.text


@pytest.mark.parametrize("sent", [{}, {"arguments": None}, {"arguments": {}}])
async def test_a_call_may_have_no_arguments(url, sent):
    answer = await OLLAMA.post(url, messages=[calling(function={"name": "weather"} | sent)])
    assert answer.status_code == 200


async def test_a_prompt_is_a_chat_or_text_to_continue():
    chat = await GENERATE.asked(prompt="Hello", system="Be short.")
    assert chat.messages == (Message("system", "Be short."), Message("user", "Hello"))
    raw = await GENERATE.asked(prompt="Once", raw=True)
    assert (raw.text, raw.messages) == ("Once", ())
    infill = await GENERATE.asked(prompt="def f(", suffix="return 1")
    assert (infill.text, infill.suffix) == ("def f(", "return 1")


@pytest.mark.parametrize(
    ("sent", "most"), [(-1, None), (0, None), (0.5, 1), (7.9, 7), (1e19, 2**31 - 1), (1e300, 2**31 - 1)]
)
async def test_any_number_of_tokens_is_bounded(sent, most):
    assert (await OLLAMA.asked(options={"num_predict": sent})).max_tokens == most


async def test_without_a_question_the_model_is_loaded():
    models = FakeModels()
    async with OLLAMA.client(models) as client:
        answer = await client.generate(model="scripted:latest", keep_alive="5m")
        assert (await client.chat(model="scripted", messages=[])).done_reason == "load"
    assert (answer.done, answer.done_reason, models.requests) == (True, "load", [])
    assert models.asked == ["scripted", "scripted"]


@pytest.mark.parametrize("strict", [False, True])
async def test_ollama_stop_unloads_the_model_and_does_not_load_it(strict):
    models = FakeModels()
    async with OLLAMA.client(models, strict=strict) as client:
        answer = await client.generate(model="scripted:latest", keep_alive=0)
        assert (await client.chat(model="scripted", messages=[], keep_alive="0")).done_reason == "unload"
    assert (answer.done, answer.done_reason, answer.model) == (True, "unload", "scripted")
    assert (models.asked, models.unloaded) == ([], ["scripted", "scripted"])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("strict", [False, True])
async def test_a_model_is_unloaded_after_the_answer_where_that_is_asked_for(stream, strict):
    models = FakeModels(embedding=4)
    async with OLLAMA.client(models, strict=strict) as client:
        for keep_alive in (None, 0, "0s"):
            chat = {"model": "default", "messages": HELLO, "keep_alive": keep_alive}
            answer = await client.chat(**chat, stream=stream)
            parts = [one.message.content async for one in answer] if stream else [answer.message.content]
            assert "".join(parts) == "Hello there."
        await client.embed(model="default", input="x", keep_alive=0)
        await client.generate(model="default", prompt="x", keep_alive="0")
    assert models.unloaded == ["default"] * 4


async def test_what_cannot_be_is_refused():
    refused = await OLLAMA.refused(messages=[{"role": "user", "content": "x", "images": [b"xyz"]}])
    assert (refused.status, "images" in refused.message) == (400, True)
    refused = await OLLAMA.refused(messages=[{"role": "tool", "content": "x"}])
    assert (refused.status, "must follow a call" in refused.message) == (400, True)


async def test_how_long_it_took():
    answer = await OLLAMA.answered()
    assert (answer.eval_duration, answer.prompt_eval_duration) == (200_000_000, 24_000_000)


async def test_the_lines_of_a_stream():
    script = [thought("Hm."), "It is ", "sunny.", *PIECES, finished("tools")]
    lines = await OLLAMA.streamed(FakeModels(script), **OLLAMA.said(tools=[WEATHER]))
    assert [line.message.content for line in lines] == ["", "It is ", "sunny.", "", ""]
    assert lines[0].message.thinking == "Hm."
    [call] = lines[3].message.tool_calls
    assert call.function.arguments == {"place": "Rome"}


async def test_a_call_is_one_line_however_many_the_model_has_written():
    arguments = '{\n  "place": "Rome",\n  "n": 12345678901234567890.10\n}'
    script = [called("weather", "", "call_a"), ToolCallArguments("", arguments, 2), finished("tools")]
    async with serving(FakeModels(script)) as url:
        sent = OLLAMA.said(tools=[WEATHER])
        whole, lines = await OLLAMA.post(url, **sent), await OLLAMA.post(url, **sent, stream=True)
    assert [msgspec.json.decode(line)["done"] for line in lines.content.split(b"\n")[:-1]] == [False, True]
    for told in (whole.content, lines.content):
        assert b'"arguments":{"place":"Rome","n":12345678901234567890.10}' in told


@pytest.mark.parametrize("dialect", [OLLAMA, GENERATE], ids=named)
async def test_a_stream_is_what_comes_where_nothing_is_said(dialect):
    async with serving(FakeModels(["Hi"])) as url:
        whole, lines = await dialect.post(url), await dialect.post(url, stream=None)
    assert dialect.text(whole.json()) == "Hi"
    assert lines.headers["content-type"] == "application/x-ndjson"
    assert [msgspec.json.decode(line)["done"] for line in lines.text.splitlines()] == [False, True]


async def test_texts_are_embedded():
    async with OLLAMA.client(FakeModels(embedding=4)) as client:
        embedded = await client.embed(model="default", input=["abc", "d"])
        with pytest.raises(OLLAMA.error, match="dimensions"):
            await client.embed(model="default", input="x", dimensions=3)
    assert [list(vector) for vector in embedded.embeddings] == [[3, 1, 2, 3], [1, 1, 2, 3]]
    assert embedded.prompt_eval_count == 7


@pytest.mark.parametrize(("text", "vector"), [("abc", [3, 1, 2, 3]), ("", [])])
async def test_a_text_is_embedded_for_older_clients(text, vector):
    models = FakeModels(embedding=4)
    async with OLLAMA.client(models) as client:
        embedded = await client.embeddings(model="scripted:latest", prompt=text, keep_alive=0)
    assert list(embedded.embedding) == vector
    assert (models.asked, models.unloaded) == (["scripted"], ["scripted"])


@pytest.mark.parametrize("dialect", [OLLAMA, GENERATE], ids=named)
async def test_logprobs_come_with_their_tokens(dialect):
    chances = TokenLogprobs(b"Hi", -0.5, ((b"Yo", -1.0),)), TokenLogprobs(b"\xe2\x82", -0.25, ())
    models = FakeModels([Delta("", "Hi", False, 1, chances[:1]), Delta("", "", False, 2, chances[1:])])
    async with serving(models) as url:
        whole = (await dialect.post(url, logprobs=True, top_logprobs=1)).json()
        lines = (await dialect.post(url, logprobs=True, stream=True)).text.splitlines()
        without = (await dialect.post(url)).json()
        refused = await dialect.post(url, top_logprobs=1)
    first, second = whole["logprobs"]
    other = {"token": "Yo", "logprob": -1.0, "bytes": [89, 111]}
    assert first == {"token": "Hi", "logprob": -0.5, "bytes": [72, 105], "top_logprobs": [other]}
    assert second["bytes"] == [226, 130]
    assert [one for line in lines for one in json.loads(line).get("logprobs", ())] == [first, second]
    assert ("logprobs" in without, refused.status_code) == (False, 400)
    assert [one.logprobs for one in models.requests] == [1, 0, None]
