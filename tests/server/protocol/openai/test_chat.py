"""Chats through OpenAI's own client: what reaches the engine, and what comes back."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager

import msgspec
import openai
import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel

from edgechat.base.errors import PromptTooLong
from edgechat.engine.types import (
    Delta,
    Dropped,
    Message,
    Sampling,
    TokenLogprobs,
    Tool,
    ToolCall,
    ToolCallArguments,
)
from edgechat.planner.plan import LoadPlan
from edgechat.settings import SamplingDefaults
from tests.server.fakes import KEY, FakeModels, called, finished, serving, thought
from tests.server.raw import ask

HELLO = [{"role": "user", "content": "Hello"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a place.",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
    },
}


@asynccontextmanager
async def client_of(models, **more):
    async with (
        serving(models, **more) as url,
        AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0, timeout=60) as client,
    ):
        yield client


async def asked(models, **fields):
    """Ask; return what the engine got."""
    extra = {name: fields.pop(name) for name in list(fields) if name in EXTENSIONS}
    async with client_of(models) as client:
        await client.chat.completions.create(
            **{"model": "default", "messages": HELLO} | fields, extra_body=extra
        )
    return models.requests[-1]


def allowed(mode, *names):
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


EXTENSIONS = {
    "repeat_penalty",
    "extra",
    "chat_template_kwargs",
    "top_k",
    "min_p",
    "repetition_penalty",
    "priority",
    "think",
    "overflow",
}


async def refused(status=400, **fields):
    """Ask; return the error that must come of it."""
    with pytest.raises(openai.APIStatusError) as caught:
        await asked(FakeModels(), **fields)
    assert caught.value.status_code == status
    return caught.value.body


async def test_an_answer():
    models = FakeModels(
        [thought("Let me", 1), thought(" think.", 3), "Hello", " there.", finished(drafted=4)]
    )
    async with client_of(models) as client:
        done = await client.chat.completions.create(model="default", messages=HELLO)
    [choice] = done.choices
    assert choice.message.content == "Hello there."
    assert choice.message.reasoning_content == "Let me think."
    assert (choice.finish_reason, choice.index, choice.message.role) == ("stop", 0, "assistant")
    assert done.model == "scripted"
    usage = done.usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (20, 5, 25)
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == 8
    details = usage.completion_tokens_details
    assert details is not None
    assert (details.reasoning_tokens, details.accepted_prediction_tokens) == (3, 2)
    assert details.rejected_prediction_tokens == 2
    assert models.metrics == [("/v1/chat/completions", 200, "scripted")]


async def test_a_stream_is_the_answer_in_parts():
    models = FakeModels([thought("Hm."), "Hel", 0.01, "lo", " there.", finished("length")])
    async with client_of(models) as client:
        stream = await client.chat.completions.create(
            model="default", messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert [one.content for one in deltas if one.content] == ["Hel", "lo", " there."]
    assert [getattr(one, "reasoning_content", None) for one in deltas][1] == "Hm."
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 25
    assert len({chunk.id for chunk in chunks}) == 1


async def test_several_answers_are_computed_at_once_with_seeds_of_their_own():
    models = FakeModels(["one"], ["two"], ["three"])
    async with client_of(models) as client:
        done = await client.chat.completions.create(model="default", messages=HELLO, n=3, seed=-1)
        assert [(one.index, one.message.content) for one in done.choices] == [
            (0, "one"),
            (1, "two"),
            (2, "three"),
        ]
        assert done.usage is not None
        assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (20, 15)
        assert [request.sampling.seed for request in models.requests] == [2**64 - 1, 0, 1]
        assert len({request.id for request in models.requests}) == 3
        assert models.places == [3]
        stream = await client.chat.completions.create(model="default", messages=HELLO, n=2, stream=True)
        texts = {0: "", 1: ""}
        async for chunk in stream:
            texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert texts == {0: "three", 1: "three"}


async def test_calls_of_tools():
    script = [
        "I look.",
        called("weather", "", id="call_a"),
        ToolCallArguments("", '{"place": ', 2),
        ToolCallArguments("", '"Rome"}', 3),
        called("weather", '{"place": "Oslo"}', id="call_b"),
        finished("tools"),
    ]
    models = FakeModels(script)
    async with client_of(models) as client:
        done = await client.chat.completions.create(model="default", messages=HELLO, tools=[WEATHER])
        [choice] = done.choices
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content == "I look."
        calls = choice.message.tool_calls
        assert [(one.id, one.function.name, json.loads(one.function.arguments)) for one in calls] == [
            ("call_a", "weather", {"place": "Rome"}),
            ("call_b", "weather", {"place": "Oslo"}),
        ]
        tool = models.requests[-1].tools[0]
        assert (tool.name, tool.description) == ("weather", "The weather of a place.")
        assert json.loads(tool.parameters) == WEATHER["function"]["parameters"]
        assert models.requests[-1].tool_choice == "auto"
        async with client.chat.completions.stream(model="default", messages=HELLO, tools=[WEATHER]) as stream:
            final = await stream.get_final_completion()
        calls = final.choices[0].message.tool_calls
        assert [one.function.arguments for one in calls] == ['{"place": "Rome"}', '{"place": "Oslo"}']
        raw = await client.chat.completions.create(
            model="default", messages=HELLO, tools=[WEATHER], stream=True
        )
        parts = [
            part for chunk in [one async for one in raw] for part in chunk.choices[0].delta.tool_calls or ()
        ]
        told = [(one.index, one.id, one.type, one.function and one.function.name) for one in parts]
        assert told[:3] == [
            (0, "call_a", "function", "weather"),
            (0, None, None, None),
            (0, None, None, None),
        ]
        assert [one.function and one.function.arguments for one in parts[:3]] == ["", '{"place": ', '"Rome"}']
    assert (await asked(models, tools=[WEATHER])).most_calls is None
    assert (await asked(models, tools=[WEATHER], parallel_tool_calls=False)).most_calls == 1
    strict = WEATHER | {"function": WEATHER["function"] | {"strict": True}}
    assert [tool.strict for tool in (await asked(models, tools=[strict])).tools] == [True]


async def test_what_no_grammar_can_keep_of_a_tools_schema_is_told():
    tags = {"type": "array", "uniqueItems": True}
    tool = {"name": "tag", "parameters": {"type": "object", "properties": {"tags": tags}}}
    tools = [WEATHER, {"type": "function", "function": tool}]
    async with client_of(FakeModels(["Hm."])) as client:

        async def told(**fields):
            made = await client.chat.completions.create(
                model="default", messages=HELLO, tools=tools, **fields
            )
            if not fields.get("stream"):
                return made.to_dict().get("unenforced")
            return [chunk.to_dict().get("unenforced") async for chunk in made][-1]

        assert await told() is None
        assert await told(tool_choice="required") == ["tag: properties.tags.uniqueItems"]
        assert await told(tool_choice="required", stream=True) == ["tag: properties.tags.uniqueItems"]
        one = {"type": "function", "function": {"name": "weather"}}
        assert await told(tool_choice=one) is None
        tool["strict"] = True
        assert await told() == ["tag: properties.tags.uniqueItems"]


async def test_a_call_that_is_cut_short_is_not_lost():
    script = [called("weather", "", id="call_a"), ToolCallArguments("", '{"pla', 2), finished("length")]
    async with client_of(FakeModels(script)) as client:
        done = await client.chat.completions.create(model="default", messages=HELLO, tools=[WEATHER])
        assert done.choices[0].finish_reason == "length"
        [call] = done.choices[0].message.tool_calls or ()
        assert call.type == "function"
        assert (call.id, call.function.arguments) == ("call_a", '{"pla')


async def test_an_answer_can_be_sent_back_as_it_is():
    models = FakeModels([thought("Hm."), called("weather", "{}", id="call_a"), finished("tools")], ["Rain."])
    async with client_of(models) as client:
        done = await client.chat.completions.create(model="default", messages=HELLO, tools=[WEATHER])
        back = [*HELLO, done.choices[0].message]
        back += [{"role": "tool", "tool_call_id": "call_a", "content": "rain"}]
        await client.chat.completions.create(model="default", messages=back, tools=[WEATHER])
        dumped = [*HELLO, done.choices[0].message.model_dump(), back[-1]]
        await client.chat.completions.create(model="default", messages=dumped, tools=[WEATHER])
    expected = (
        Message("user", "Hello"),
        Message("assistant", "", "Hm.", (ToolCall("call_a", "weather", "{}"),)),
        Message("tool", "rain", call_id="call_a"),
    )
    assert models.requests[1].messages == models.requests[2].messages == expected


async def test_messages_of_all_roles_and_parts():
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    sent = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": "Yes.", "refusal": None},
        {"role": "user", "content": "Why?"},
    ]
    request = await asked(FakeModels(), messages=sent)
    assert request.messages == (
        Message("system", "Be brief."),
        Message("user", "one\ntwo"),
        Message("assistant", "Yes."),
        Message("user", "Why?"),
    )


async def test_what_is_not_said_is_as_the_models_makers_recommend():
    models = FakeModels()
    models.plan = LoadPlan(
        model_path="",
        model_name="x",
        context=1,
        threads=1,
        sampling=SamplingDefaults(temperature=0.3, top_k=7),
        answering_sampling=SamplingDefaults(temperature=0.1),
    )
    request = await asked(models, top_p=0.5)
    assert request.sampling == Sampling(temperature=0.3, top_k=7, top_p=0.5)
    assert (request.overflow, request.priority, request.max_tokens, request.think) == (
        "error",
        "interactive",
        None,
        None,
    )
    assert (request.schema, request.logprobs, request.tools, request.chat) == (None, None, (), None)
    assert (await asked(models, think=False)).sampling.temperature == 0.1


async def test_at_temperature_0_the_makers_penalties_do_not_count():
    models = FakeModels()
    makers = SamplingDefaults(top_k=7, repetition_penalty=1.1, presence_penalty=1.5)
    models.plan = msgspec.structs.replace(models.plan, sampling=makers)
    assert (await asked(models, temperature=0)).sampling == Sampling(temperature=0, top_k=7)
    one = (await asked(models, temperature=0, presence_penalty=0.5)).sampling
    assert one == Sampling(temperature=0, top_k=7, presence_penalty=0.5)
    assert (await asked(models)).sampling == Sampling(**makers.given())


async def test_everything_that_may_be_said_reaches_the_engine():
    said = {
        "temperature": 0.25,
        "top_p": 0.5,
        "top_k": 3,
        "min_p": 0.125,
        "repetition_penalty": 1.5,
        "presence_penalty": -0.5,
        "frequency_penalty": 0.75,
        "seed": 42,
        "logit_bias": {"7": -100, "8": 2.5},
        "stop": ["\n", "END"],
        "max_completion_tokens": 9,
        "logprobs": True,
        "top_logprobs": 4,
        "priority": "background",
        "think": True,
        "overflow": "window",
        "user": "me",
        "metadata": {"a": "b"},
        "store": False,
        "service_tier": "auto",
        "tools": [WEATHER],
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
    }
    request = await asked(FakeModels(can_switch_thinking=True), **said)
    assert request.sampling == Sampling(
        temperature=0.25,
        top_k=3,
        top_p=0.5,
        min_p=0.125,
        repetition_penalty=1.5,
        presence_penalty=-0.5,
        frequency_penalty=0.75,
        seed=42,
        bias=((7, -100.0), (8, 2.5)),
    )
    assert (request.stop, request.max_tokens, request.logprobs) == (("\n", "END"), 9, 4)
    assert (request.priority, request.think, request.overflow) == ("background", True, "window")
    assert (request.tool_choice, request.tool) == ("required", "weather")
    tool = Tool("weather", "The weather of a place.", request.tools[0].parameters)
    assert request.tools == (tool,)


async def test_thinking_is_switched_by_the_settings_where_nobody_says_otherwise():
    for can, said, expected in ((True, None, False), (True, True, True), (False, None, None)):
        models = FakeModels(can_switch_thinking=can)
        async with client_of(models, think=False) as client:
            await client.chat.completions.create(model="default", messages=HELLO, extra_body={"think": said})
        assert models.requests[0].think is expected


@pytest.mark.parametrize(
    ("model", "effort", "think", "told"),
    [
        ("switch", "none", None, (False, None)),
        ("switch", "minimal", None, (False, None)),
        ("switch", "low", None, (True, None)),
        ("switch", "high", False, (False, None)),
        ("switch", "minimal", True, (True, None)),
        ("effort", "high", None, (None, "high")),
        ("effort", "minimal", None, (None, "low")),
        ("effort", None, None, (None, None)),
        ("neither", "medium", None, (None, None)),
        ("neither", "minimal", None, (None, None)),
        ("neither", "none", None, (False, None)),
    ],
)
async def test_how_long_to_think_is_what_the_model_can_be_told(model, effort, think, told):
    models = FakeModels(can_switch_thinking=model == "switch", has_effort=model == "effort")
    request = await asked(models, reasoning_effort=effort, think=think)
    assert (request.think, request.effort) == told


async def test_words_of_other_servers():
    models = FakeModels(can_switch_thinking=True)
    request = await asked(models, max_tokens=-1, chat_template_kwargs={"enable_thinking": False})
    assert (request.max_tokens, request.think) == (None, False)
    request = await asked(models, think=True, chat_template_kwargs={"enable_thinking": True})
    assert request.think is True
    assert (await asked(models, max_completion_tokens=-1)).max_tokens is None


async def test_the_newer_limit_goes_first():
    assert (await asked(FakeModels(), max_tokens=3, max_completion_tokens=4)).max_tokens == 4
    assert (await asked(FakeModels(), max_tokens=3, max_completion_tokens=-1)).max_tokens is None


async def test_whole_numbers_may_be_written_with_a_point():
    said = {"n": 1.0, "max_tokens": 9.0, "seed": -4.0, "top_k": 3.0, "logprobs": True, "top_logprobs": 2.0}
    request = await asked(FakeModels(), **said)
    found = (request.max_tokens, request.sampling.seed, request.sampling.top_k, request.logprobs)
    assert found == (9, 2**64 - 4, 3, 2)
    assert [type(one) for one in found] == [int] * 4


async def test_the_penalty_by_its_other_name():
    assert (await asked(FakeModels(), repeat_penalty=1.5)).sampling.repetition_penalty == 1.5
    both = await asked(FakeModels(), repeat_penalty=1.5, repetition_penalty=1.25)
    assert both.sampling.repetition_penalty == 1.25


async def test_wishes_that_cost_nothing_are_taken():
    said = {
        "store": True,
        "service_tier": "flex",
        "verbosity": "low",
        "prompt_cache_retention": "24h",
        "stream_options": {"include_obfuscation": True},
        "stream": True,
    }
    await asked(FakeModels(), **said)
    told = await asked(FakeModels(has_effort=True), reasoning_effort="xhigh")
    assert told.effort == "high"


async def test_a_strict_server_refuses_wishes():
    for name, value in {
        "store": True,
        "service_tier": "flex",
        "verbosity": "low",
        "prompt_cache_retention": "24h",
        "reasoning_effort": "xhigh",
    }.items():
        async with client_of(FakeModels(), strict=True) as client:
            with pytest.raises(openai.BadRequestError) as caught:
                await client.chat.completions.create(
                    model="default", messages=HELLO, extra_body={name: value}
                )
            assert (caught.value.param, caught.value.code) == (name, "not_heeded")
    same = {"store": False, "service_tier": "auto", "max_tokens": 3, "max_completion_tokens": 3}
    async with client_of(FakeModels(), strict=True) as client:
        await client.chat.completions.create(model="default", messages=HELLO, extra_body=same)
        with pytest.raises(openai.BadRequestError, match="max_tokens"):
            await client.chat.completions.create(
                model="default", messages=HELLO, extra_body=same | {"max_tokens": 4}
            )


async def test_the_model_may_be_left_out():
    models = FakeModels()
    async with serving(models) as url:
        for more in ({}, {"model": None}, {"model": ""}):
            for path, said in (
                ("chat/completions", {"messages": HELLO}),
                ("completions", {"prompt": "x"}),
                ("embeddings", {"input": "x"}),
            ):
                body = json.dumps(said | more).encode()
                assert (await ask(url, "POST", f"/v1/{path}", body=body))[0] == 200
    assert set(models.asked) == {""}


async def test_some_of_the_tools_are_allowed():
    other = WEATHER | {"function": WEATHER["function"] | {"name": "other"}}
    for mode in ("auto", "required"):
        request = await asked(FakeModels(), tools=[WEATHER, other], tool_choice=allowed(mode, "other"))
        assert ([tool.name for tool in request.tools], request.tool_choice) == (["other"], mode)


async def test_structured_answers():
    class Person(BaseModel):
        name: str
        age: int

    models = FakeModels(['{"name": "Ann",', ' "age": 30}'])
    async with client_of(models) as client:
        parsed = await client.chat.completions.parse(model="default", messages=HELLO, response_format=Person)
    assert parsed.choices[0].message.parsed == Person(name="Ann", age=30)
    schema = json.loads(models.requests[0].schema or "")
    assert schema["required"] == ["name", "age"]
    assert (await asked(models, response_format={"type": "json_object"})).schema == '{"type": "object"}'
    assert (await asked(models, response_format={"type": "text"})).schema is None
    form = {"type": "json_object", "schema": {"required": ["x"]}}
    assert json.loads((await asked(models, response_format=form)).schema or "") == {"required": ["x"]}


async def test_logprobs():
    chance = TokenLogprobs(b"Hi", -0.25, ((b"Hi", -0.25), (b"\xe2", -2.0)))
    models = FakeModels([Delta("", "Hi", False, 1, (chance,)), Delta("", "", False, 2, (chance,))])
    async with client_of(models) as client:
        done = await client.chat.completions.create(
            model="default", messages=HELLO, logprobs=True, top_logprobs=2
        )
    told = done.choices[0].logprobs
    assert told is not None
    assert told.content is not None
    assert [(one.token, one.logprob, one.bytes) for one in told.content] == [("Hi", -0.25, [72, 105])] * 2
    assert [(one.token, one.bytes) for one in told.content[0].top_logprobs] == [
        ("Hi", [72, 105]),
        ("\ufffd", [226]),
    ]


async def test_what_was_left_out_is_told():
    models = FakeModels([Dropped("", 2), "Hi", finished("stop", dropped=2)])
    async with client_of(models) as client:
        done = await client.chat.completions.create(
            model="default", messages=HELLO, extra_body={"overflow": "window"}
        )
        assert done.truncated == 2
    too_long = PromptTooLong(
        "The conversation has 5000 tokens, and the context is 4096 tokens long.", hint="Shorten it."
    )
    with pytest.raises(openai.BadRequestError, match=r"5000 tokens.*4096") as caught:
        await asked(FakeModels([too_long]))
    assert caught.value.code == "context_length_exceeded"
    assert '"overflow": "window"' in caught.value.message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("audio", {"audio": {"voice": "x", "format": "mp3"}}),
        ("modalities[1]", {"modalities": ["text", "audio"]}),
        ("modalities[0]", {"modalities": ["audio"]}),
        ("functions", {"functions": [{"name": "x"}], "tools": [WEATHER]}),
        ("function_call", {"function_call": "auto"}),
        ("function_call", {"functions": [{"name": "x"}], "function_call": {"name": "y"}}),
        ("prediction", {"prediction": {"type": "content", "content": "x"}}),
        ("web_search_options", {"web_search_options": {}}),
        ("service_tier", {"service_tier": "the best"}),
        ("verbosity", {"verbosity": "none"}),
        ("repetition_penalty", {"repetition_penalty": 1e-300}),
        ("repeat_penalty", {"repeat_penalty": 0.0099}),
        ("n", {"n": 1.5}),
        ("seed", {"seed": 2.0**63}),
        ("n", {"n": 9}),
        ("n", {"n": 0}),
        ("temperature", {"temperature": -1}),
        ("top_logprobs", {"top_logprobs": 3}),
        ("top_logprobs", {"logprobs": True, "top_logprobs": 21}),
        ("stop[0]", {"stop": ["x" * 257]}),
        ("stop", {"stop": ["x"] * 17}),
        ("max_tokens", {"max_tokens": 0}),
        ("max_tokens", {"max_tokens": -2}),
        ("max_completion_tokens", {"max_completion_tokens": 0}),
        ("think", {"think": False, "chat_template_kwargs": {"enable_thinking": True}}),
        ("chat_template_kwargs.tools", {"chat_template_kwargs": {"tools": []}}),
        ("max_tokens", {"max_tokens": 0.0}),
        (
            "tool_choice",
            {"tools": [WEATHER], "tool_choice": allowed("auto", "other")},
        ),
        ("logit_bias", {"logit_bias": {"x": 1}}),
        ("stream_options", {"stream_options": {"include_usage": True}}),
        ("tool_choice", {"tool_choice": "required"}),
        (
            "tool_choice",
            {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "other"}}},
        ),
        ("tools", {"tools": [WEATHER, WEATHER]}),
        ("tools", {"tools": [WEATHER | {"function": {"name": "f", "parameters": [1]}}]}),
        (
            "tools",
            {"tools": [WEATHER | {"function": {"name": "f", "parameters": {"description": "x" * 2**17}}}]},
        ),
        (
            "response_format",
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"const": "x" * 2**17}},
                }
            },
        ),
        ("tools[0].type", {"tools": [{"type": "custom", "custom": {"name": "x"}}]}),
        ("response_format.type", {"response_format": {"type": "grammar"}}),
        ("model", {"model": "x" * 513}),
        ("messages[0].role", {"messages": [{"role": "critic", "content": "x"}]}),
        ("messages[0].name", {"messages": [{"role": "function", "name": "x", "content": "x"}]}),
        ("messages[0].images", {"messages": [{"role": "assistant", "content": "x", "images": ["x"]}]}),
        ("messages[0].prefix", {"messages": [{"role": "assistant", "content": "x", "prefix": True}]}),
        ("messages[0]", {"messages": [{"role": "assistant"}]}),
        ("messages[0].tool_call_id", {"messages": [{"role": "tool", "tool_call_id": "x", "content": "x"}]}),
        (
            "messages[0].content[0].image_url",
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        ),
        (
            "messages[0].content[0].input_audio",
            {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]},
        ),
        (
            "messages[0].content[0].type",
            {"messages": [{"role": "system", "content": [{"type": "image_url", "image_url": "x"}]}]},
        ),
    ],
)
async def test_what_cannot_be_done_is_refused_by_name(param, fields):
    body = await refused(**fields)
    assert body["param"] == param
    assert body["type"] == "invalid_request_error"
    assert len(body["message"].split()) > 2


async def test_a_blank_stop_is_no_stop():
    for blank in ("", [], [""], ["", None]):
        assert (await asked(FakeModels(), stop=blank)).stop == ()
    assert (await asked(FakeModels(), stop=["", "END"])).stop == ("END",)


async def test_an_empty_answer_has_logprobs_where_they_were_asked_for():
    async with client_of(FakeModels([finished()])) as client:
        done = await client.chat.completions.create(model="default", messages=HELLO, logprobs=True)
        plain = await client.completions.create(model="default", prompt="x", logprobs=1)
    assert done.choices[0].logprobs is not None
    assert done.choices[0].logprobs.content == []
    assert plain.choices[0].logprobs is not None
    assert plain.choices[0].logprobs.tokens == []


async def test_null_is_as_nothing_for_every_field():
    from edgechat.server.protocol.openai.chat import ChatBody

    needed = {"messages", "overflow"}
    nulls = {name: None for name in ChatBody.__struct_fields__ if name not in needed}
    models = FakeModels()
    async with client_of(models) as client:
        await client.chat.completions.create(model="default", messages=HELLO, extra_body=nulls)
    assert models.requests[0].sampling == Sampling()
