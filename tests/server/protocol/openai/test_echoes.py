"""What clients send back: answers with all that they keep of them, of this server and of others."""

import pytest

from edgechat.engine.types import Message, ToolCall
from tests.server.dialects import CHAT, HELLO
from tests.server.fakes import FakeModels, called, finished

FUNCTION = {"name": "weather", "parameters": {"type": "object", "properties": {"place": {}}}}
CALL = {"id": "call_a", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
CACHED = {"cache_control": {"type": "ephemeral"}}
NOTES = {"provider_specific_fields": {"refusal": None, "citations": [1]}}


def with_call(**more):
    return [{"role": "assistant", "content": None, "tool_calls": [CALL | more]}]


ECHOES = [
    (
        "names",
        [
            {"role": "system", "name": "rules", "content": "Be brief."},
            {"role": "user", "name": "Ann", "content": "Hi"},
            {"role": "assistant", "name": "Bob", "content": "Hello"},
        ],
        [Message("system", "Be brief."), Message("user", "Hi"), Message("assistant", "Hello")],
    ),
    (
        "litellm",
        [{"role": "assistant", "content": "Yes", "thinking_blocks": [{"type": "thinking"}], **NOTES}],
        [Message("assistant", "Yes")],
    ),
    (
        "litellm's calls",
        with_call(**NOTES, function=CALL["function"] | {"parsed_arguments": {}}),
        [Message("assistant", "", "", (ToolCall("call_a", "weather", "{}"),))],
    ),
    (
        "openrouter",
        [
            {
                "role": "assistant",
                "content": "Yes",
                "reasoning": "Hm.",
                "reasoning_details": [{"type": "reasoning.text", "text": "Hm."}],
            }
        ],
        [Message("assistant", "Yes", "Hm.")],
    ),
    (
        "openai",
        [
            {
                "role": "assistant",
                "id": "msg_1",
                "content": "Yes",
                "refusal": None,
                "audio": None,
                "annotations": [{"type": "url_citation", "url_citation": {"url": "https://example.org"}}],
                "parsed": {"a": 1},
            }
        ],
        [Message("assistant", "Yes")],
    ),
    (
        "caching",
        [{"role": "user", "content": [{"type": "text", "text": "Hi", **CACHED}], **CACHED}],
        [Message("user", "Hi")],
    ),
    (
        "parts of other protocols",
        [
            {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
            {"role": "assistant", "content": [{"type": "output_text", "text": "Yes", "annotations": []}]},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        ],
        [Message("user", "Hi"), Message("assistant", "Yes"), Message("assistant", "No.")],
    ),
    (
        "empty values",
        [
            {"role": "user", "content": []},
            {"role": "assistant", "content": []},
            {"role": "assistant", "content": None},
            {"role": "assistant", "content": None, "refusal": "No."},
        ],
        [
            Message("user", ""),
            Message("assistant", ""),
            Message("assistant", ""),
            Message("assistant", "No."),
        ],
    ),
    (
        "arguments that are an object",
        [
            *with_call(function={"name": "weather", "arguments": {"place": "Rome"}}),
            {"role": "tool", "tool_call_id": "call_a", "name": "weather", "content": "sun", "id": "x"},
        ],
        [
            Message("assistant", "", "", (ToolCall("call_a", "weather", '{"place":"Rome"}'),)),
            Message("tool", "sun", call_id="call_a"),
        ],
    ),
    (
        "functions, as they were before tools",
        [
            {"role": "assistant", "content": None, "function_call": {"name": "weather", "arguments": "{}"}},
            {"role": "function", "name": "weather", "content": "sun"},
            {"role": "assistant", "content": "", "function_call": {"name": "weather", "arguments": "{}"}},
            {"role": "function", "name": "weather", "content": None},
        ],
        [
            Message("assistant", "", "", (ToolCall("function_call-0", "weather", "{}"),)),
            Message("tool", "sun", call_id="function_call-0"),
            Message("assistant", "", "", (ToolCall("function_call-2", "weather", "{}"),)),
            Message("tool", "", call_id="function_call-2"),
        ],
    ),
]


@pytest.mark.parametrize(
    ("messages", "expected"), [echo[1:] for echo in ECHOES], ids=[one[0] for one in ECHOES]
)
async def test_what_is_sent_back_is_taken(messages, expected):
    request = await CHAT.asked(messages=[*messages, *HELLO])
    assert request.messages == (*expected, Message("user", "Hello"))


async def test_tools_may_be_marked_for_caches():
    other = {"type": "function", "function": FUNCTION | {"name": "other"}, **CACHED}
    request = await CHAT.asked(tools=[{"type": "function", "function": FUNCTION | CACHED}, other])
    assert [tool.name for tool in request.tools] == ["weather", "other"]


async def test_functions_are_tools_whose_call_is_told_in_the_old_way():
    models = FakeModels([called("weather", '{"place": "Rome"}', id="call_a"), finished("tools")])
    [choice] = (await CHAT.answered(models, functions=[FUNCTION])).choices
    assert choice.finish_reason == "function_call"
    assert (choice.message.content, choice.message.tool_calls) == (None, None)
    call = choice.message.function_call
    assert (call.name, call.arguments) == ("weather", '{"place": "Rome"}')
    back = {"messages": [*HELLO, choice.message.model_dump()], "function_call": {"name": "weather"}}
    streamed = await CHAT.streamed(models, functions=[FUNCTION], **back)
    chunks = [chunk.choices[0] for chunk in streamed]
    assert [one.delta.function_call.name for one in chunks if one.delta.function_call] == ["weather"]
    assert chunks[-1].finish_reason == "function_call"
    await CHAT.answered(models, functions=[FUNCTION], function_call="none")
    first, second, third = models.requests
    assert ([tool.name for tool in first.tools], first.most_calls) == (["weather"], 1)
    assert (second.tool_choice, second.tool) == ("required", "weather")
    assert third.tools == ()


async def test_a_strict_server_takes_what_has_an_effect_or_says_nothing():
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "x"}], "name": None},
        {"role": "assistant", "content": None, "reasoning": "Hm.", "annotations": [], "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_a", "name": "weather", "content": "sun"},
    ]
    said = {"temperature": 0, "user": "me", "tools": [{"type": "function", "function": FUNCTION}]}
    async with CHAT.client(FakeModels(), strict=True) as client:
        await CHAT.send(client, messages=messages, **said)
        await client.embeddings.create(model="default", input="x", user="me")
