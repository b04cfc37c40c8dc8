"""Messages through Anthropic's own client: what reaches the engine, and what comes back, event by event."""

from contextlib import asynccontextmanager

import anthropic
import httpx2
import pytest
from anthropic import AsyncAnthropic
from msgspec.structs import replace

from edgechat.base.errors import EngineCrashed
from edgechat.engine.types import Message, ToolCall, ToolCallArguments
from edgechat.server.http import streams
from edgechat.server.protocol.decoding import UNREAD
from tests.server.fakes import KEY, FakeModels, called, finished, serving, thought
from tests.server.raw import ask

WEATHER = {
    "name": "weather",
    "description": "The weather of a place.",
    "input_schema": {"type": "object", "properties": {"place": {"type": "string"}}},
}
PIECES = [
    called("weather", "", "a"),
    ToolCallArguments("", '{"place": ', 2),
    ToolCallArguments("", '"Rome"}', 3),
]
HELLO = [{"role": "user", "content": "Hello"}]


@asynccontextmanager
async def client_of(models, *, bearer=False, **more):
    keys = {"auth_token": KEY} if bearer else {"api_key": KEY}
    async with (
        serving(models, **more) as url,
        AsyncAnthropic(base_url=url, max_retries=0, timeout=60, **keys) as client,
    ):
        yield client


def fields(**more):
    return {"model": "default", "messages": HELLO, "max_tokens": 99} | more


async def asked(models, **more):
    """Ask; return what the engine got."""
    async with client_of(models) as client:
        await client.messages.create(**fields(**more))
    return models.requests[-1]


async def streamed(models, **more):
    async with client_of(models) as client:
        stream = await client.messages.create(**fields(**more), stream=True)
        return [event async for event in stream]


# What is asked.


async def test_a_question_and_a_system_prompt():
    system = [
        {"type": "text", "text": "Be short.", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "Be kind."},
    ]
    sampling = {"temperature": 0.2, "top_k": 7}
    request = await asked(FakeModels(), system=system, stop_sequences=["END"], extra_body=sampling)
    assert request.messages == (Message("system", "Be short.\n\nBe kind."), Message("user", "Hello"))
    assert (request.sampling.temperature, request.sampling.top_k) == (0.2, 7)
    assert (request.max_tokens, request.stop) == (99, ("END",))


async def test_an_id_of_each_request_does_not_cost_the_prefix():
    """Claude Code's, which is a block of its own in front of the system prompt."""
    header = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=1f2e3;"}
    request = await asked(FakeModels(), system=[header, {"type": "text", "text": "Be short."}])
    assert request.messages[0] == Message("system", "Be short.")


async def test_a_conversation_comes_back_as_it_was():
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Let me see.", "signature": "x"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "a", "name": "weather", "input": {"place": "Rome"}},
                {"type": "tool_use", "id": "b", "name": "weather", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "Sunny."}]},
                {"type": "tool_result", "tool_use_id": "b", "content": "no place", "is_error": True},
                {"type": "text", "text": "And?", "cache_control": {"type": "ephemeral"}},
            ],
        },
    ]
    request = await asked(FakeModels(), messages=messages, tools=[WEATHER])
    calls = (ToolCall("a", "weather", '{"place":"Rome"}'), ToolCall("b", "weather", "{}"))
    assert request.messages == (
        Message("user", "Weather?"),
        Message("assistant", "I look.", "Let me see.", calls),
        Message("tool", "Sunny.", call_id="a"),
        Message("tool", "Error: no place", call_id="b"),
        Message("user", "And?"),
    )


@pytest.mark.parametrize(
    ("choice", "mode", "tool", "n_tools"),
    [
        ({"type": "auto", "disable_parallel_tool_use": True}, "auto", None, 1),
        ({"type": "any"}, "required", None, 1),
        ({"type": "tool", "name": "weather"}, "required", "weather", 1),
        ({"type": "none"}, "auto", None, 0),
    ],
)
async def test_the_choice_of_tools(choice, mode, tool, n_tools):
    hosted = {"type": "web_search_20250305", "name": "web_search"}
    request = await asked(FakeModels(), tools=[WEATHER, hosted], tool_choice=choice)
    assert (request.tool_choice, request.tool, len(request.tools)) == (mode, tool, n_tools)
    assert request.most_calls == (1 if choice.get("disable_parallel_tool_use") else None)


async def test_thinking_is_switched_where_the_model_can():
    on, off = {"type": "enabled", "budget_tokens": 2048}, {"type": "disabled"}
    assert (await asked(FakeModels(can_switch_thinking=True), thinking=on)).think is True
    assert (await asked(FakeModels(can_switch_thinking=True), thinking=off)).think is False
    assert (await asked(FakeModels(), thinking=on)).think is None


async def test_a_schema_is_followed():
    schema = {"type": "object", "properties": {"name": {"type": "string"}}}
    request = await asked(FakeModels(), output_config={"format": {"type": "json_schema", "schema": schema}})
    assert '"name"' in (request.schema or "")


async def test_what_agents_always_send_is_taken_and_changes_nothing():
    request = await asked(
        FakeModels(),
        metadata={"user_id": "x"},
        service_tier="auto",
        extra_headers={"anthropic-beta": "claude-code-20250219"},
        extra_body={"context_management": {"edits": []}, "something": {"new": 1}},
    )
    assert replace(request, id="") == replace(await asked(FakeModels()), id="")


@pytest.mark.parametrize("bearer", [True, False])
async def test_the_key_may_come_either_way(bearer):
    async with client_of(FakeModels(), bearer=bearer) as client:
        await client.messages.create(**fields())


async def test_a_wrong_key_is_refused_in_the_words_of_the_protocol():
    async with (
        serving(FakeModels()) as url,
        AsyncAnthropic(base_url=url, api_key="wrong", max_retries=0) as client,
    ):
        with pytest.raises(anthropic.AuthenticationError) as error:
            await client.messages.create(**fields())
    assert error.value.body["error"]["type"] == "authentication_error"


@pytest.mark.parametrize(
    ("more", "match"),
    [
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "source"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x"}]}]},
            "tool_use_id",
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "tool_use", "id": "x", "name": "a", "input": {}}]}
                ]
            },
            "assistant",
        ),
        ({"tool_choice": {"type": "any"}}, "no tools"),
        ({"extra_body": {"temperature": 9}}, "temperature"),
        ({"max_tokens": 0}, "at least one"),
    ],
)
async def test_what_cannot_be_is_refused(more, match):
    async with client_of(FakeModels()) as client:
        with pytest.raises(anthropic.BadRequestError, match=match) as error:
            await client.messages.create(**fields(**more))
    assert error.value.body["error"]["type"] == "invalid_request_error"


async def test_strict_refuses_what_is_ignored():
    async with client_of(FakeModels(), strict=True) as client:
        with pytest.raises(anthropic.BadRequestError, match="metadata"):
            await client.messages.create(**fields(metadata={"user_id": "x"}))


async def test_tokens_are_counted():
    async with client_of(FakeModels()) as client:
        counted = await client.messages.count_tokens(model="default", messages=HELLO, system="Hi")
    assert counted.input_tokens == len("HiHello")


async def test_models_are_listed():
    async with client_of(FakeModels()) as client:
        models = [model async for model in client.models.list()]
    assert [(model.id, model.type, model.display_name) for model in models] == [
        ("scripted", "model", "scripted")
    ]


# What comes back.


async def test_a_message_as_a_whole():
    models = FakeModels([thought("Hm. ", 4), "It is ", "sunny.", *PIECES, finished("tools")])
    async with client_of(models) as client:
        message = await client.messages.create(**fields(tools=[WEATHER]))
    thinking, text, call = message.content
    assert thinking.type == "thinking"
    assert (thinking.thinking, bool(thinking.signature)) == ("Hm. ", True)
    assert text.type == "text"
    assert text.text == "It is sunny."
    assert call.type == "tool_use"
    assert (call.id, call.name, call.input) == ("a", "weather", {"place": "Rome"})
    assert (message.stop_reason, message.model) == ("tool_use", "scripted")
    usage = message.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.cache_creation_input_tokens) == (
        12,
        8,
        0,
    )
    assert usage.output_tokens == 5


async def test_a_hint_to_cache_is_answered_in_the_usage():
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]}
    ]
    async with client_of(FakeModels()) as client:
        usage = (await client.messages.create(**fields(messages=messages))).usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.cache_creation_input_tokens) == (
        0,
        8,
        12,
    )


async def test_the_events_of_a_stream():
    script = [thought("Hm."), "It is ", "sunny.", *PIECES, finished("tools")]
    events = await streamed(FakeModels(script), tools=[WEATHER])
    assert [event.type for event in events] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    deltas = [event.delta.type for event in events if event.type == "content_block_delta"]
    assert deltas == [
        "thinking_delta",
        "signature_delta",
        "text_delta",
        "text_delta",
        "input_json_delta",
        "input_json_delta",
    ]
    assert [event.index for event in events if event.type == "content_block_stop"] == [0, 1, 2]
    usage = events[0].message.usage  # known before the first token
    assert (usage.input_tokens, usage.cache_read_input_tokens) == (12, 8)
    assert (events[-2].delta.stop_reason, events[-2].usage.output_tokens) == ("tool_use", 5)


async def test_a_stream_is_the_whole_message_to_the_client():
    async with client_of(FakeModels(["It is ", *PIECES, finished("tools")])) as client:
        async with client.messages.stream(**fields(tools=[WEATHER])) as stream:
            told = await stream.get_final_message()
        whole = await client.messages.create(**fields(tools=[WEATHER]))
    assert [type(block).__name__ for block in told.content] == ["ParsedTextBlock", "ToolUseBlock"]
    assert [getattr(block, "text", None) for block in told.content] == ["It is ", None]
    assert told.content[1].to_dict() == whole.content[1].to_dict()
    assert (told.stop_reason, told.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)


@pytest.mark.parametrize(
    ("end", "reason", "sequence"),
    [
        (finished("length"), "max_tokens", None),
        (finished("context"), "max_tokens", None),
        (finished(), "end_turn", None),
        (finished(stop_text="END"), "stop_sequence", "END"),
    ],
)
async def test_how_it_ended(end, reason, sequence):
    async with client_of(FakeModels(["x", end])) as client:
        message = await client.messages.create(**fields())
    assert (message.stop_reason, message.stop_sequence) == (reason, sequence)


async def test_a_stream_that_fails_ends_with_an_error():
    with pytest.raises(anthropic.APIStatusError, match="It crashed"):
        await streamed(FakeModels(["It is", EngineCrashed("It crashed.")]))


async def test_silence_is_broken_by_pings(monkeypatch):
    monkeypatch.setattr(streams, "KEEP_ALIVE", 0.05)
    async with (
        serving(FakeModels([0.3, "Hi"])) as url,
        httpx2.AsyncClient(headers={"x-api-key": KEY}) as client,
    ):
        answer = await client.post(f"{url}/v1/messages", json=fields(stream=True))
    assert answer.text.startswith('event: ping\ndata: {"type":"ping"}\n\n')
    assert "message_start" in answer.text


async def test_an_unknown_path_of_it_is_refused_in_its_words():
    async with serving(FakeModels()) as url:
        status, _, answer = await ask(url, "GET", "/v1/messages")
    assert status == 405
    assert answer["type"] == "error"


async def test_an_image_that_a_tool_returns_does_not_end_the_conversation():
    models = FakeModels()
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    result = {
        "type": "tool_result",
        "tool_use_id": "a",
        "content": [{"type": "text", "text": "See:"}, image],
    }
    call = {"type": "tool_use", "id": "a", "name": "view", "input": {}}
    messages = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]
    request = await asked(models, messages=messages)
    assert request.messages[-1] == Message("tool", f"See:\n{UNREAD}", call_id="a")
