"""Responses through OpenAI's own client: what reaches the engine, and what comes back, event by event."""

from __future__ import annotations

from contextlib import asynccontextmanager

import openai
import pytest
from msgspec.structs import replace
from openai import AsyncOpenAI
from openai.types.responses import ResponseFunctionToolCall
from pydantic import BaseModel

from edgechat.base.errors import EngineCrashed, PromptTooLong
from edgechat.engine.types import Delta, Message, TokenLogprobs, ToolCall, ToolCallArguments
from edgechat.server.http import streams
from edgechat.server.protocol.decoding import UNREAD
from edgechat.server.protocol.responses.items import opened, sealed
from tests.server.fakes import KEY, FakeModels, called, finished, serving, thought

WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "The weather of a place.",
    "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
    "strict": False,
}
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Change files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"},
}
FILES = {
    "type": "namespace",
    "name": "files",
    "description": "Files.",
    "tools": [{"type": "function", "name": "read", "parameters": {"type": "object", "properties": {}}}],
}
PIECES = [
    called("weather", "", "call_a"),
    ToolCallArguments("", '{"place": ', 2),
    ToolCallArguments("", '"Rome"}', 3),
]


@asynccontextmanager
async def client_of(models, **more):
    async with (
        serving(models, **more) as url,
        AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0, timeout=60) as client,
    ):
        yield client


async def asked(models, input="Hello", **fields):
    """Ask; return what the engine got."""
    async with client_of(models) as client:
        await client.responses.create(**{"model": "default", "input": input} | fields)
    return models.requests[-1]


async def streamed(models, **fields):
    async with client_of(models) as client:
        stream = await client.responses.create(**{"model": "default", "input": "Hello"} | fields, stream=True)
        return [event async for event in stream]


# What is asked.


async def test_a_question_and_instructions():
    request = await asked(FakeModels(), instructions="Be short.", temperature=0.2, max_output_tokens=9)
    assert request.messages == (Message("system", "Be short."), Message("user", "Hello"))
    assert (request.sampling.temperature, request.max_tokens, request.overflow) == (0.2, 9, "error")


async def test_a_conversation_comes_back_as_it_was():
    """Thinking, text and calls in a row are one message, as the template rendered them."""
    items = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Rules."}]},
        {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": sealed("Let me see.")},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "I look.", "annotations": []}],
            "id": "msg_1",
            "status": "completed",
        },
        {"type": "function_call", "call_id": "a", "name": "weather", "arguments": "{}", "id": "fc_1"},
        {"type": "custom_tool_call", "call_id": "b", "name": "apply_patch", "input": "+ x"},
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        {"type": "function_call_output", "call_id": "a", "output": "Sunny."},
        {
            "type": "custom_tool_call_output",
            "call_id": "b",
            "output": [{"type": "input_text", "text": "Done"}],
        },
        {"role": "assistant", "content": "It is sunny."},
        {"role": "user", "content": "Thanks."},
    ]
    request = await asked(FakeModels(), items, instructions="Be short.", tools=[WEATHER, PATCH])
    calls = (ToolCall("a", "weather", "{}"), ToolCall("b", "apply_patch", '{"input":"+ x"}'))
    assert request.messages == (
        Message("system", "Be short.\n\nRules."),
        Message("user", "Weather?"),
        Message("assistant", "I look.", "Let me see.", calls),
        Message("tool", "Sunny.", call_id="a"),
        Message("tool", "Done", call_id="b"),
        Message("assistant", "It is sunny."),
        Message("user", "Thanks."),
    )


async def test_system_messages_at_the_start_are_one_and_later_ones_stay_where_they_are():
    roles = ("developer", "system", "user", "system", "system")
    request = await asked(FakeModels(), [{"role": role, "content": f"{n}"} for n, role in enumerate(roles)])
    assert request.messages == (
        Message("system", "0\n\n1"),
        Message("user", "2"),
        Message("system", "3"),
        Message("system", "4"),
    )


async def test_tools_of_all_kinds_are_functions_to_the_model():
    tools = [WEATHER, PATCH, FILES, {"type": "web_search"}, {"type": "local_shell"}]
    request = await asked(FakeModels(), tools=tools, parallel_tool_calls=False)
    assert [tool.name for tool in request.tools] == ["weather", "apply_patch", "files__read"]
    assert "lark grammar:\nstart: /.+/" in request.tools[1].description
    assert request.most_calls == 1


@pytest.mark.parametrize(
    ("choice", "mode", "tool", "names"),
    [
        ("auto", "auto", None, ["weather", "apply_patch"]),
        ("none", "auto", None, []),
        ("required", "required", None, ["weather", "apply_patch"]),
        ({"type": "function", "name": "weather"}, "required", "weather", ["weather", "apply_patch"]),
        ({"type": "custom", "name": "apply_patch"}, "required", "apply_patch", ["weather", "apply_patch"]),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "weather"}]},
            "auto",
            None,
            ["weather"],
        ),
    ],
)
async def test_the_choice_of_tools(choice, mode, tool, names):
    request = await asked(FakeModels(), tools=[WEATHER, PATCH], tool_choice=choice)
    assert (request.tool_choice, request.tool) == (mode, tool)
    assert [one.name for one in request.tools] == names


async def test_effort_switches_thinking_where_the_model_can():
    assert (await asked(FakeModels(can_switch_thinking=True), reasoning={"effort": "medium"})).think is True
    assert (await asked(FakeModels(can_switch_thinking=True), reasoning={"effort": "minimal"})).think is False
    assert (await asked(FakeModels(), reasoning={"effort": "high"})).think is None
    assert (await asked(FakeModels(has_effort=True), reasoning={"effort": "xhigh"})).effort == "high"


async def test_truncation_leaves_turns_out():
    assert (await asked(FakeModels(), truncation="auto")).overflow == "window"
    async with client_of(FakeModels(refuses=PromptTooLong("Too long."))) as client:
        with pytest.raises(openai.BadRequestError, match='"truncation": "auto"'):
            await client.responses.create(model="default", input="x")


async def test_a_schema_is_parsed_by_the_client():
    class Place(BaseModel):
        name: str

    models = FakeModels(['{"name": "Rome"}'])
    async with client_of(models) as client:
        response = await client.responses.parse(model="default", input="Where?", text_format=Place)
    assert response.output_parsed == Place(name="Rome")
    assert '"name"' in (models.requests[0].schema or "")


async def test_what_agents_always_send_is_taken_and_changes_nothing():
    request = await asked(
        FakeModels(),
        store=False,
        include=["reasoning.encrypted_content", "web_search_call.action.sources"],
        prompt_cache_key="session",
        metadata={"a": "b"},
        user="me",
        safety_identifier="x",
        service_tier="auto",
        text={"verbosity": "low"},
        stream_options=None,
        extra_body={"client_metadata": {"installation": "x"}, "max_tool_calls": 3},
    )
    assert replace(request, id="") == replace(await asked(FakeModels()), id="")


@pytest.mark.parametrize(
    ("fields", "param", "match"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "not stored"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]", "not stored"),
        ({"background": True}, "background", "Only false"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]", "text"),
        (
            {"input": [{"type": "function_call_output", "call_id": "x", "output": ""}]},
            "input[0].call_id",
            "no call has",
        ),
        ({"input": [{"role": "user", "content": 4}]}, "input[0].content", "Expected"),
        ({"tool_choice": "required"}, "tool_choice", "no tools"),
        ({"tools": [{"type": "function"}]}, "tools[0]", "name"),
        ({"max_output_tokens": 0}, "max_output_tokens", "at least one"),
    ],
)
async def test_what_cannot_be_is_refused_by_name(fields, param, match):
    async with client_of(FakeModels()) as client:
        with pytest.raises(openai.BadRequestError, match=match) as error:
            await client.responses.create(**{"model": "default", "input": "x"} | fields)
    assert error.value.param == param


async def test_strict_refuses_what_is_ignored():
    async with client_of(FakeModels(), strict=True) as client:
        for fields in ({"user": "me"}, {"tools": [{"type": "web_search"}]}, {"extra_body": {"x": 1}}):
            with pytest.raises(openai.BadRequestError) as error:
                await client.responses.create(model="default", input="x", **fields)
            assert error.value.code == "not_heeded"


async def test_the_tokens_of_an_input_are_counted():
    async with client_of(FakeModels()) as client:
        counted = await client.responses.input_tokens.count(model="default", input="Hello", instructions="Hi")
    assert counted.input_tokens == len("HiHello")


# What comes back.


async def test_a_response_as_a_whole():
    models = FakeModels([thought("Hm. ", 4), "It is ", "sunny.", *PIECES, finished("tools")])
    async with client_of(models) as client:
        response = await client.responses.create(model="default", input="Weather?", tools=[WEATHER])
    reasoning, message, call = response.output
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call"]
    assert reasoning.type == "reasoning"
    assert [part.text for part in reasoning.content or ()] == ["Hm. "]
    assert response.output_text == "It is sunny."
    assert isinstance(call, ResponseFunctionToolCall)
    assert (call.call_id, call.name, call.arguments) == ("call_a", "weather", '{"place": "Rome"}')
    assert response.status == "completed"
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.input_tokens_details.cached_tokens) == (20, 8)
    assert (response.usage.output_tokens, response.usage.output_tokens_details.reasoning_tokens) == (5, 4)
    assert response.model == "scripted"
    assert message.id != call.id


async def test_the_events_of_a_stream():
    events = await streamed(
        FakeModels([thought("Hm."), "It is ", "sunny.", *PIECES, finished("tools")]), tools=[WEATHER]
    )
    assert [event.type.removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.output_index for event in events if event.type == "response.output_item.done"] == [0, 1, 2]
    items = [event.item for event in events if event.type == "response.output_item.done"]
    assert events[-1].response.output == items
    assert events[18].arguments == '{"place": "Rome"}'


async def test_a_stream_is_the_whole_response_to_the_client():
    script = [thought("Hm."), "It is ", "sunny.", *PIECES, finished("tools")]
    async with client_of(FakeModels(script)) as client:
        async with client.responses.stream(model="default", input="x", tools=[WEATHER]) as stream:
            async for _ in stream:
                pass
            told = await stream.get_final_response()
        whole = await client.responses.create(model="default", input="x", tools=[WEATHER])
    ids = {"id", "created_at", "completed_at"}
    assert [item.model_dump(exclude=ids) for item in told.output] == [
        item.model_dump(exclude=ids) for item in whole.output
    ] or [item.type for item in told.output] == [item.type for item in whole.output]
    assert told.output_text == whole.output_text == "It is sunny."


async def test_a_tool_of_free_text_gets_free_text():
    pieces = [
        called("apply_patch", "", "c"),
        ToolCallArguments("", '{"input": "a\\n', 2),
        ToolCallArguments("", 'b"}', 3),
    ]
    events = await streamed(FakeModels([*pieces, finished("tools")]), tools=[PATCH])
    kinds = [event.type for event in events]
    assert "response.function_call_arguments.delta" not in kinds
    done = next(event for event in events if event.type == "response.custom_tool_call_input.done")
    assert done.input == "a\nb"
    item = events[-1].response.output[0]
    assert (item.type, item.name, item.input) == ("custom_tool_call", "apply_patch", "a\nb")


async def test_a_tool_of_a_namespace_keeps_its_two_names():
    async with client_of(FakeModels([called("files__read", "{}", "c"), finished("tools")])) as client:
        response = await client.responses.create(model="default", input="x", tools=[FILES])
    item = response.output[0]
    assert (item.namespace, item.name) == ("files", "read")


async def test_thinking_comes_back_sealed_where_that_is_wanted():
    async with client_of(FakeModels([thought("Hm."), "Yes."])) as client:
        response = await client.responses.create(
            model="default", input="x", include=["reasoning.encrypted_content"]
        )
    item = response.output[0]
    assert opened(item.encrypted_content) == "Hm."
    assert opened("of another server") == opened("edgechat:not base64") == ""


async def test_a_response_that_is_cut_says_so():
    events = await streamed(FakeModels(["It is", finished("length")]))
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.incomplete_details.reason == "max_output_tokens"
    assert events[-1].response.output[0].status == "incomplete"


async def test_a_stream_that_fails_ends_with_a_failed_response():
    events = await streamed(FakeModels(["It is", EngineCrashed("It crashed.")]))
    assert events[-1].type == "response.failed"
    assert events[-1].response.error.code == "engine_crashed"
    assert "It crashed." in events[-1].response.error.message


async def test_silence_is_broken_by_events(monkeypatch):
    """Codex counts events, and no comments."""
    monkeypatch.setattr(streams, "KEEP_ALIVE", 0.05)
    events = await streamed(FakeModels([0.4, "Hi", 0.4]))
    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds[:4] == ["created", "in_progress", "in_progress", "in_progress"]
    assert "in_progress" in kinds[kinds.index("output_text.delta") :]
    assert [event.sequence_number for event in events] == list(range(len(events)))


async def test_logprobs_stand_with_the_text():
    chance = TokenLogprobs(b"Hi", -0.5, ((b"Hi", -0.5), (b"Ho", -1.5)))
    models = FakeModels([Delta("", "Hi", False, 1, (chance,))])
    async with client_of(models) as client:
        response = await client.responses.create(
            model="default", input="x", top_logprobs=2, include=["message.output_text.logprobs"]
        )
    part = response.output[0].content[0]
    assert [(one.token, one.logprob, len(one.top_logprobs)) for one in part.logprobs] == [("Hi", -0.5, 2)]
    assert models.requests[0].logprobs == 2


async def test_an_image_that_a_tool_returns_does_not_end_the_conversation():
    items = [
        {"role": "user", "content": "Look."},
        {"type": "function_call", "call_id": "a", "name": "view_image", "arguments": "{}"},
        {
            "type": "function_call_output",
            "call_id": "a",
            "output": [{"type": "input_image", "image_url": "data:image/png;base64,AAAA"}],
        },
    ]
    request = await asked(FakeModels(), items)
    assert request.messages[-1] == Message("tool", UNREAD, call_id="a")
