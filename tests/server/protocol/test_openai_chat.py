"""What only OpenAI's chats have: several answers, calls in parts, the counts, and fields of other servers."""

import json

import msgspec
import pytest
from pydantic import BaseModel

from edgechat.engine.types import Delta, Dropped, Message, TokenLogprobs, ToolCallArguments
from tests.server.dialects import CHAT, PIECES, RESPONSES, WEATHER, named
from tests.server.fakes import FakeModels, called, finished, thought

[FUNCTION] = CHAT.said(tools=[WEATHER])["tools"]
OTHER = {"type": "function", "function": {"name": "other"}}


def allowed(mode, *names):
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


@pytest.mark.slow
async def test_the_counts_of_an_answer():
    script = [thought("Let me", 1), thought(" think.", 3), "Hello", " there.", finished(drafted=4)]
    done = await CHAT.answered(FakeModels(script))
    assert done.choices[0].message.reasoning_content == "Let me think."
    details = done.usage.completion_tokens_details
    assert (done.usage.total_tokens, details.reasoning_tokens) == (25, 3)
    assert (details.accepted_prediction_tokens, details.rejected_prediction_tokens) == (2, 2)


async def test_the_chunks_of_a_stream():
    models = FakeModels([thought("Hm."), "Hel", 0.01, "lo", " there.", finished("length")])
    *chunks, last = await CHAT.streamed(models, stream_options={"include_usage": True})
    choices = [chunk.choices[0] for chunk in chunks]
    assert choices[0].delta.role == "assistant"
    assert [one.delta.content for one in choices if one.delta.content] == ["Hel", "lo", " there."]
    assert [getattr(one.delta, "reasoning_content", None) for one in choices][1] == "Hm."
    assert choices[-1].finish_reason == "length"
    assert (last.choices, last.usage.total_tokens) == ([], 25)
    assert len({chunk.id for chunk in (*chunks, last)}) == 1


async def test_several_answers_are_computed_at_once_with_seeds_of_their_own():
    models = FakeModels(["one"], ["two"], ["three"])
    done = await CHAT.answered(models, n=3, seed=-1)
    told = [(one.index, one.message.content) for one in done.choices]
    assert told == [(0, "one"), (1, "two"), (2, "three")]
    assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (20, 15)
    assert [request.sampling.seed for request in models.requests] == [2**64 - 1, 0, 1]
    assert len({request.id for request in models.requests}) == 3
    assert models.places == [3]
    texts = {0: "", 1: ""}
    for chunk in await CHAT.streamed(models, n=2):
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert texts == {0: "three", 1: "three"}


async def test_several_calls_whole_and_in_parts():
    second = called("weather", '{"place": "Oslo"}', id="call_b")
    models = FakeModels(["I look.", *PIECES, second, finished("tools")])
    asked = {"model": "default", "messages": CHAT.needs["messages"], "tools": [FUNCTION]}
    async with CHAT.client(models) as client:
        told = CHAT.read((await CHAT.send(client, tools=[FUNCTION])).model_dump())
        assert told.calls == tuple(
            (id, "weather", {"place": place}) for id, place in (("call_a", "Rome"), ("call_b", "Oslo"))
        )
        async with client.chat.completions.stream(**asked) as stream:
            final = await stream.get_final_completion()
        calls = final.choices[0].message.tool_calls
        assert [one.function.arguments for one in calls] == ['{"place": "Rome"}', '{"place": "Oslo"}']
    chunks = await CHAT.streamed(models, tools=[FUNCTION])
    parts = [part for chunk in chunks for part in chunk.choices[0].delta.tool_calls or ()][:3]
    names = [(one.index, one.id, one.type, one.function.name) for one in parts]
    assert names == [(0, "call_a", "function", "weather"), (0, None, None, None), (0, None, None, None)]
    assert [one.function.arguments for one in parts] == ["", '{"place": ', '"Rome"}']


async def test_what_no_grammar_can_keep_of_a_tools_schema_is_told():
    tags = {"type": "array", "uniqueItems": True}
    tool = {"name": "tag", "parameters": {"type": "object", "properties": {"tags": tags}}}
    tools = [FUNCTION, {"type": "function", "function": tool}]

    async def told(stream=False, **fields):
        ask = CHAT.streamed if stream else CHAT.answered
        made = await ask(FakeModels(["Hm."]), tools=tools, **fields)
        return (made[-1] if stream else made).to_dict().get("unenforced")

    assert await told() is None
    assert await told(tool_choice="required") == ["tag: properties.tags.uniqueItems"]
    assert await told(tool_choice="required", stream=True) == ["tag: properties.tags.uniqueItems"]
    assert await told(**CHAT.said(tool="weather")) is None
    tool["strict"] = True
    assert await told() == ["tag: properties.tags.uniqueItems"]
    assert [one.strict for one in (await CHAT.asked(tools=tools)).tools] == [False, True]


async def test_a_call_that_is_cut_short_is_not_lost():
    script = [called("weather", "", id="call_a"), ToolCallArguments("", '{"pla', 2), finished("length")]
    [choice] = (await CHAT.answered(FakeModels(script), tools=[FUNCTION])).choices
    [call] = choice.message.tool_calls
    assert (choice.finish_reason, call.type) == ("length", "function")
    assert (call.id, call.function.arguments) == ("call_a", '{"pla')


async def test_messages_of_all_roles_and_parts():
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    sent = [("developer", "Be brief."), ("user", parts), ("assistant", "Yes."), ("user", "Why?")]
    request = await CHAT.asked(messages=[{"role": role, "content": content} for role, content in sent])
    expected = [("system", "Be brief."), ("user", "one\ntwo"), ("assistant", "Yes."), ("user", "Why?")]
    assert request.messages == tuple(Message(*one) for one in expected)


BOTH = {"tools": [FUNCTION, OTHER]}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"max_tokens": -1}, {"max_tokens": None}),
        ({"max_completion_tokens": -1}, {"max_tokens": None}),
        ({"max_tokens": 3, "max_completion_tokens": 4}, {"max_tokens": 4}),
        ({"max_tokens": 3, "max_completion_tokens": -1}, {"max_tokens": None}),
        ({"n": 1.0, "max_tokens": 9.0}, {"max_tokens": 9}),
        ({"seed": -4.0}, {"seed": 2**64 - 4}),
        ({"top_k": 3.0}, {"top_k": 3}),
        ({"logprobs": True, "top_logprobs": 2.0}, {"logprobs": 2}),
        ({"logprobs": True, "top_logprobs": 4}, {"logprobs": 4}),
        ({"logit_bias": {"7": -100, "8": 2.5}}, {"bias": ((7, -100.0), (8, 2.5))}),
        ({"repeat_penalty": 1.5}, {"repetition_penalty": 1.5}),
        ({"repeat_penalty": 1.5, "repetition_penalty": 1.25}, {"repetition_penalty": 1.25}),
        ({"chat_template_kwargs": {"enable_thinking": False}}, {"think": False}),
        ({"think": True, "chat_template_kwargs": {"enable_thinking": True}}, {"think": True}),
        ({"stop": ""}, {"stop": ()}),
        ({"stop": []}, {"stop": ()}),
        ({"stop": ["", None]}, {"stop": ()}),
        ({"response_format": {"type": "text"}}, {"schema": None}),
        ({"response_format": {"type": "json_object", "schema": {"a": 1}}}, {"schema": '{"a":1}'}),
    ],
)
async def test_words_of_other_servers_and_other_ways_to_say_it(fields, expected):
    request = await CHAT.asked(FakeModels(can_switch_thinking=True), **fields)
    found = msgspec.structs.asdict(request) | msgspec.structs.asdict(request.sampling)
    found = {name: found[name] for name in expected}
    assert (found, list(map(type, found.values()))) == (expected, list(map(type, expected.values())))


@pytest.mark.parametrize("mode", ["auto", "required"])
async def test_some_of_the_tools_are_allowed(mode):
    request = await CHAT.asked(tools=[FUNCTION, OTHER], tool_choice=allowed(mode, "other"))
    assert ([tool.name for tool in request.tools], request.tool_choice) == (["other"], mode)


@pytest.mark.parametrize(
    ("model", "effort", "think", "told"),
    [
        ("switch", "none", None, (False, None)),
        ("switch", "minimal", None, (False, None)),
        ("switch", "high", False, (False, None)),
        ("switch", "minimal", True, (True, None)),
        ("effort", "minimal", None, (None, "low")),
        ("effort", "xhigh", None, (None, "high")),
        ("neither", "minimal", None, (None, None)),
        ("neither", "none", None, (False, None)),
    ],
)
async def test_how_long_to_think_is_what_the_model_can_be_told(model, effort, think, told):
    can = {"can_switch_thinking": model == "switch", "has_effort": model == "effort"}
    request = await CHAT.asked(FakeModels(**can), reasoning_effort=effort, think=think)
    assert (request.think, request.effort) == told
    if think is None and (model, effort) != ("neither", "none"):
        request = await RESPONSES.asked(FakeModels(**can), reasoning={"effort": effort})
        assert (request.think, request.effort) == told


async def test_structured_answers_are_parsed_by_the_client():
    class Person(BaseModel):
        name: str
        age: int

    models = FakeModels(['{"name": "Ann",', ' "age": 30}'])
    async with CHAT.client(models) as client:
        asked = {"model": "default", **CHAT.needs}
        parsed = await client.chat.completions.parse(**asked, response_format=Person)
        response = await client.responses.parse(model="default", input="Who?", text_format=Person)
    assert parsed.choices[0].message.parsed == response.output_parsed == Person(name="Ann", age=30)
    for request in models.requests:
        assert json.loads(request.schema)["required"] == ["name", "age"]


async def test_logprobs():
    chance = TokenLogprobs(b"Hi", -0.25, ((b"Hi", -0.25), (b"\xe2", -2.0)))
    models = FakeModels([Delta("", "Hi", False, 1, (chance,)), Delta("", "", False, 2, (chance,))])
    told = (await CHAT.answered(models, logprobs=True, top_logprobs=2)).choices[0].logprobs.content
    assert [(one.token, one.logprob, one.bytes) for one in told] == [("Hi", -0.25, [72, 105])] * 2
    others = [(one.token, one.bytes) for one in told[0].top_logprobs]
    assert others == [("Hi", [72, 105]), ("\ufffd", [226])]


@pytest.mark.parametrize("dialect", [CHAT, RESPONSES], ids=named)
async def test_what_was_left_out_is_told(dialect):
    models = FakeModels([Dropped("", 2), "Hi", finished("stop", dropped=2)])
    assert (await dialect.answered(models, **dialect.said(overflow="window"))).truncated == 2


def message(role="user", **fields):
    return {"messages": [{"role": role} | fields]}


def part(type, value, role="user"):
    return message(role, content=[{"type": type, type: value}])


def function(**fields):
    return {"functions": [{"name": "x"}]} | fields


@pytest.mark.slow
@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("audio", {"audio": {"voice": "x", "format": "mp3"}}),
        ("modalities[1]", {"modalities": ["text", "audio"]}),
        ("modalities[0]", {"modalities": ["audio"]}),
        ("functions", function(tools=[FUNCTION])),
        ("function_call", {"function_call": "auto"}),
        ("function_call", function(function_call={"name": "y"})),
        ("prediction", {"prediction": {"type": "content", "content": "x"}}),
        ("web_search_options", {"web_search_options": 1}),
        ("service_tier", {"service_tier": "the best"}),
        ("verbosity", {"verbosity": "none"}),
        ("repetition_penalty", {"repetition_penalty": 1e-300}),
        ("repeat_penalty", {"repeat_penalty": 0.0099}),
        ("n", {"n": 1.5}),
        ("n", {"n": 9}),
        ("n", {"n": 0}),
        ("seed", {"seed": 2.0**63}),
        ("top_logprobs", {"top_logprobs": 3}),
        ("top_logprobs", {"logprobs": True, "top_logprobs": 21}),
        ("max_tokens", {"max_tokens": 0}),
        ("max_tokens", {"max_tokens": -2}),
        ("max_tokens", {"max_tokens": 0.0}),
        ("think", {"think": False, "chat_template_kwargs": {"enable_thinking": True}}),
        ("chat_template_kwargs.tools", {"chat_template_kwargs": {"tools": []}}),
        ("tool_choice", {"tools": [FUNCTION], "tool_choice": allowed("auto", "other")}),
        ("logit_bias", {"logit_bias": {"x": 1}}),
        ("stream_options", {"stream_options": {"include_usage": True}}),
        ("tools[0].type", {"tools": [{"type": "custom", "custom": {"name": "x"}}]}),
        ("response_format.type", {"response_format": {"type": "grammar"}}),
        ("model", {"model": "x" * 513}),
        ("messages[0].name", message(role="function", name="x", content="x")),
        ("messages[0].images", message(role="assistant", content="x", images=["x"])),
        ("messages[0].prefix", message(role="assistant", content="x", prefix=True)),
        ("messages[0]", message(role="assistant")),
        ("messages[0].content[0].image_url", part("image_url", {"url": "x"})),
        ("messages[0].content[0].input_audio", part("input_audio", {})),
        ("messages[0].content[0].type", part("image_url", "x", "system")),
    ],
)
async def test_what_cannot_be_done_is_refused_by_name(param, fields):
    refused = await CHAT.refused(**fields)
    assert (refused.status, refused.type, refused.param) == (400, "invalid_request_error", param)
    assert len(refused.message.split()) > 2
