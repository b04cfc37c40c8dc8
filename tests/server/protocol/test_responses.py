"""What only OpenAI's responses have: their items, their kinds of tools, and their events."""

import pytest

from edgechat.engine.types import Delta, Message, TokenLogprobs, ToolCall, ToolCallArguments
from edgechat.server import operation
from edgechat.server.protocol.responses_items import opened, sealed
from tests.server.dialects import PIECES, RESPONSES, WEATHER
from tests.server.fakes import FakeModels, called, finished, thought

FUNCTION = RESPONSES.said(tools=[WEATHER])["tools"][0]
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Change files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"},
}
READ = {"type": "function", "name": "read", "parameters": {"type": "object", "properties": {}}}
FILES = {"type": "namespace", "name": "files", "description": "Files.", "tools": [READ]}


def text(said):
    return [{"type": "input_text", "text": said}]


async def test_items_of_all_kinds():
    """Thinking, text and calls in a row are one message, as the template rendered them."""
    said = [{"type": "output_text", "text": "I look.", "annotations": []}]
    answer = {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed", "content": said}
    items = [
        {"type": "message", "role": "developer", "content": text("Rules.")},
        {"role": "user", "content": text("Weather?")},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": sealed("Let me see.")},
        answer,
        {"type": "function_call", "call_id": "a", "name": "weather", "arguments": "{}", "id": "fc_1"},
        {"type": "custom_tool_call", "call_id": "b", "name": "apply_patch", "input": "+ x"},
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        {"type": "function_call_output", "call_id": "a", "output": "Sunny."},
        {"type": "custom_tool_call_output", "call_id": "b", "output": text("Done")},
    ]
    request = await RESPONSES.asked(input=items, instructions="Be short.", tools=[FUNCTION, PATCH])
    calls = (ToolCall("a", "weather", "{}"), ToolCall("b", "apply_patch", '{"input":"+ x"}'))
    assert request.messages == (
        Message("system", "Be short.\n\nRules."),
        Message("user", "Weather?"),
        Message("assistant", "I look.", "Let me see.", calls),
        Message("tool", "Sunny.", call_id="a"),
        Message("tool", "Done", call_id="b"),
    )
    request = await RESPONSES.asked(instructions="Be short.")
    assert request.messages == (Message("system", "Be short."), Message("user", "Hello"))


async def test_system_messages_at_the_start_are_one_and_later_ones_stay_where_they_are():
    roles = ("developer", "system", "user", "system", "system")
    request = await RESPONSES.asked(input=[{"role": role, "content": f"{n}"} for n, role in enumerate(roles)])
    first, *others = zip(("system", "user", "system", "system"), ("0\n\n1", "2", "3", "4"), strict=True)
    assert request.messages == tuple(Message(*one) for one in (first, *others))


async def test_tools_of_all_kinds_are_functions_to_the_model():
    request = await RESPONSES.asked(tools=[FUNCTION, PATCH, FILES, {"type": "local_shell"}])
    assert [tool.name for tool in request.tools] == ["weather", "apply_patch", "files__read"]
    assert "lark grammar:\nstart: /.+/" in request.tools[1].description


@pytest.mark.parametrize(
    ("choice", "mode", "tool", "names"),
    [
        ({"type": "custom", "name": "apply_patch"}, "required", "apply_patch", ["weather", "apply_patch"]),
        ({"type": "allowed_tools", "mode": "auto", "tools": [FUNCTION]}, "auto", None, ["weather"]),
    ],
)
async def test_the_choice_of_tools(choice, mode, tool, names):
    request = await RESPONSES.asked(tools=[FUNCTION, PATCH], tool_choice=choice)
    assert (request.tool_choice, request.tool) == (mode, tool)
    assert [one.name for one in request.tools] == names


@pytest.mark.parametrize(
    ("fields", "param", "match"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "not stored"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]", "not stored"),
        ({"background": True}, "background", "Only false"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]", "text"),
        ({"input": [{"role": "user", "content": 4}]}, "input[0].content", "Expected"),
        ({"tools": [{"type": "function"}]}, "tools[0]", "name"),
        ({"max_output_tokens": 0}, "max_output_tokens", "at least one"),
    ],
)
async def test_what_cannot_be_is_refused_by_name(fields, param, match):
    refused = await RESPONSES.refused(**fields)
    assert (refused.status, refused.param) == (400, param)
    assert match in refused.message


async def test_the_tokens_of_an_input_are_counted():
    async with RESPONSES.client(FakeModels()) as client:
        counted = await client.responses.input_tokens.count(model="default", input="Hello", instructions="Hi")
    assert counted.input_tokens == len("HiHello")


async def test_the_events_of_a_stream():
    script = [thought("Hm.", 4), "It is ", "sunny.", *PIECES, finished("tools")]
    events = await RESPONSES.streamed(FakeModels(script), tools=[FUNCTION])
    part = ("output_item.added", "content_part.added")
    ended = ("content_part.done", "output_item.done")
    called = "function_call_arguments"
    assert [event.type.removeprefix("response.") for event in events] == [
        *("created", "in_progress", *part, "reasoning_text.delta", "reasoning_text.done", *ended),
        *(*part, "output_text.delta", "output_text.delta", "output_text.done", *ended),
        *("output_item.added", f"{called}.delta", f"{called}.delta", f"{called}.done", "output_item.done"),
        "completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.output_index for event in events if event.type == "response.output_item.done"] == [0, 1, 2]
    items = [event.item for event in events if event.type == "response.output_item.done"]
    assert events[-1].response.output == items
    assert [item.type for item in items] == ["reasoning", "message", "function_call"]
    assert len({item.id for item in items}) == 3
    assert events[18].arguments == '{"place": "Rome"}'
    assert events[-1].response.usage.output_tokens_details.reasoning_tokens == 4


async def test_a_tool_of_free_text_gets_free_text():
    arguments = (ToolCallArguments("", '{"input": "a\\n', 2), ToolCallArguments("", 'b"}', 3))
    script = [called("apply_patch", "", "c"), *arguments, finished("tools")]
    events = await RESPONSES.streamed(FakeModels(script), tools=[PATCH])
    assert "response.function_call_arguments.delta" not in [event.type for event in events]
    done = next(event for event in events if event.type == "response.custom_tool_call_input.done")
    assert done.input == "a\nb"
    item = events[-1].response.output[0]
    assert (item.type, item.name, item.input) == ("custom_tool_call", "apply_patch", "a\nb")


async def test_a_tool_of_a_namespace_keeps_its_two_names():
    models = FakeModels([called("files__read", "{}", "c"), finished("tools")])
    [item] = (await RESPONSES.answered(models, tools=[FILES])).output
    assert (item.namespace, item.name) == ("files", "read")


async def test_thinking_comes_back_sealed_where_that_is_wanted():
    models = FakeModels([thought("Hm."), "Yes."])
    item = (await RESPONSES.answered(models, include=["reasoning.encrypted_content"])).output[0]
    assert opened(item.encrypted_content) == "Hm."
    assert opened("of another server") == opened("edgechat:not base64") == ""


async def test_a_response_that_is_cut_says_so():
    *_, last = await RESPONSES.streamed(FakeModels(["It is", finished("length")]))
    assert last.type == "response.incomplete"
    assert last.response.incomplete_details.reason == "max_output_tokens"
    assert last.response.output[0].status == "incomplete"


@pytest.mark.slow
async def test_silence_is_broken_by_events(monkeypatch):
    """Codex counts events, and no comments."""
    monkeypatch.setattr(operation, "KEEP_ALIVE", 0.05)
    events = await RESPONSES.streamed(FakeModels([0.4, "Hi", 0.4]))
    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds[:4] == ["created", "in_progress", "in_progress", "in_progress"]
    assert "in_progress" in kinds[kinds.index("output_text.delta") :]
    assert [event.sequence_number for event in events] == list(range(len(events)))


async def test_logprobs_stand_with_the_text():
    chance = TokenLogprobs(b"Hi", -0.5, ((b"Hi", -0.5), (b"Ho", -1.5)))
    models = FakeModels([Delta("", "Hi", False, 1, (chance,))])
    include = ["message.output_text.logprobs"]
    [item] = (await RESPONSES.answered(models, top_logprobs=2, include=include)).output
    told = item.content[0].logprobs
    assert [(one.token, one.logprob, len(one.top_logprobs)) for one in told] == [("Hi", -0.5, 2)]
    assert models.requests[0].logprobs == 2
