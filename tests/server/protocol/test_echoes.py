"""What clients send back: answers with all that they keep of them, of this server and of others."""

import pytest

from edgechat.engine.types import Message, ToolCall
from tests.server.dialects import CHAT, HELLO
from tests.server.fakes import FakeModels, called, finished

FUNCTION = {"name": "weather", "parameters": {"type": "object", "properties": {"place": {}}}}
CALL = {"id": "call_a", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
CACHED = {"cache_control": {"type": "ephemeral"}}
NOTES = {"provider_specific_fields": {"refusal": None, "citations": [1]}}
CITED = {"annotations": [{"type": "url_citation", "url_citation": {"url": "https://example.org"}}]}
KEPT = {"id": "msg_1", "refusal": None, "audio": None, "parsed": {"a": 1}, **CITED}
YES = [Message("assistant", "Yes")]


def answer(content="Yes", **more):
    return {"role": "assistant", "content": content, **more}


def call(**more):
    return answer(None, tool_calls=[CALL | more])


def calling(arguments="{}", id="call_a"):
    return Message("assistant", "", "", (ToolCall(id, "weather", arguments),))


ECHOES = {
    "names": (
        [{"role": "system", "name": "rules", "content": "x"}, answer(name="Bob"), HELLO[0] | {"name": "Ann"}],
        [Message("system", "x"), *YES, Message("user", "Hello")],
    ),
    "litellm": ([answer(thinking_blocks=[{"type": "thinking"}], **NOTES)], YES),
    "litellm's calls": ([call(**NOTES, function=CALL["function"] | {"parsed_arguments": {}})], [calling()]),
    "openrouter": (
        [answer(reasoning="Hm.", reasoning_details=[{"type": "reasoning.text", "text": "Hm."}])],
        [Message("assistant", "Yes", "Hm.")],
    ),
    "openai": ([answer(**KEPT)], YES),
    "caching": (
        [{"role": "user", "content": [{"type": "text", "text": "Hi", **CACHED}], **CACHED}],
        [Message("user", "Hi")],
    ),
    "parts of other protocols": (
        [
            {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
            answer([{"type": "output_text", "text": "Yes", "annotations": []}]),
            answer([{"type": "refusal", "refusal": "No."}]),
        ],
        [Message("user", "Hi"), *YES, Message("assistant", "No.")],
    ),
    "empty values": (
        [{"role": "user", "content": []}, answer([]), answer(None), answer(None, refusal="No.")],
        [Message("user", ""), *[Message("assistant", "")] * 2, Message("assistant", "No.")],
    ),
    "arguments that are an object": (
        [
            call(function={"name": "weather", "arguments": {"place": "Rome"}}),
            {"role": "tool", "tool_call_id": "call_a", "name": "weather", "content": "sun", "id": "x"},
        ],
        [calling('{"place":"Rome"}'), Message("tool", "sun", call_id="call_a")],
    ),
    "functions, as they were before tools": (
        [
            answer(None, function_call=CALL["function"]),
            {"role": "function", "name": "weather", "content": "sun"},
            answer("", function_call=CALL["function"]),
            {"role": "function", "name": "weather", "content": None},
        ],
        [
            calling(id="function_call-0"),
            Message("tool", "sun", call_id="function_call-0"),
            calling(id="function_call-2"),
            Message("tool", "", call_id="function_call-2"),
        ],
    ),
}


@pytest.mark.parametrize(("messages", "expected"), ECHOES.values(), ids=ECHOES)
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
    chunks = [chunk.choices[0] for chunk in await CHAT.streamed(models, functions=[FUNCTION], **back)]
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
        answer(None, reasoning="Hm.", annotations=[], tool_calls=[CALL]),
        {"role": "tool", "tool_call_id": "call_a", "name": "weather", "content": "sun"},
    ]
    said = {"temperature": 0, "user": "me", "tools": [{"type": "function", "function": FUNCTION}]}
    async with CHAT.client(FakeModels(), strict=True) as client:
        await CHAT.send(client, messages=messages, **said)
        await client.embeddings.create(model="default", input="x", user="me")
