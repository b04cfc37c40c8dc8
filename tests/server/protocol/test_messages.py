"""What only Anthropic's messages have: the events, the blocks and the counts of their own."""

import pytest

from edgechat.engine.types import Message, ToolCall
from tests.server.dialects import HELLO, MESSAGES, PIECES, WEATHER
from tests.server.fakes import FakeModels, finished, thought

CACHED = {"cache_control": {"type": "ephemeral"}}
USE = {"type": "tool_use", "id": "a", "name": "weather", "input": {"place": "Rome"}}

RESULT = {"type": "tool_result", "tool_use_id": "a"}


def text(said, **more):
    return {"type": "text", "text": said, **more}


async def test_a_system_prompt_of_several_blocks():
    """Claude Code puts an id of each request in front of it, which would cost the prefix."""
    header = text("x-anthropic-billing-header: cc_version=2.1; cch=1f2e3;")
    asked = {"system": [header, text("Be short.", **CACHED), text("Be kind.")]}
    request = await MESSAGES.asked(**asked, extra_headers={"anthropic-beta": "claude-code-20250219"})
    assert request.messages == (Message("system", "Be short.\n\nBe kind."), Message("user", "Hello"))


async def test_blocks_of_all_kinds():
    thinking = {"type": "thinking", "thinking": "Let me see.", "signature": "x"}
    redacted = {"type": "redacted_thinking", "data": "x"}
    failed = {"type": "tool_result", "tool_use_id": "b", "content": "no place", "is_error": True}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [text("Sunny.")]}
    messages = [
        {"role": "user", "content": [text("Weather?")]},
        {"role": "assistant", "content": [thinking, redacted, text("I look."), USE, USE | {"id": "b"}]},
        {"role": "user", "content": [result, failed, text("And?", **CACHED)]},
    ]
    request = await MESSAGES.asked(messages=messages, **MESSAGES.said(tools=[WEATHER]))
    calls = tuple(ToolCall(id, "weather", '{"place":"Rome"}') for id in "ab")
    assert request.messages == (
        Message("user", "Weather?"),
        Message("assistant", "I look.", "Let me see.", calls),
        Message("tool", "Sunny.", call_id="a"),
        Message("tool", "Error: no place", call_id="b"),
        Message("user", "And?"),
    )


@pytest.mark.parametrize(
    ("source", "read"),
    [
        ({"type": "text", "media_type": "text/plain", "data": "Grass is green."}, "Grass is green."),
        ({"type": "content", "content": [text("Grass"), text("is green.")]}, "Grass\nis green."),
        ({"type": "content", "content": "Grass is green."}, "Grass is green."),
    ],
)
async def test_documents_of_text_are_read(source, read):
    block = {"type": "document", "source": source, "title": "Plants", "citations": {"enabled": True}}
    asked = {"messages": [{"role": "user", "content": [block | CACHED, text("What colour?")]}]}
    request = await MESSAGES.asked(**asked)
    assert request.messages == (Message("user", f"Plants\n\n{read}\nWhat colour?"),)


@pytest.mark.parametrize("hold", [lambda block: block, lambda block: RESULT | {"content": [block]}])
async def test_what_a_search_has_found_is_read(hold):
    found = {"type": "search_result", "source": "plants.md", "title": "Plants", "content": [text("Green.")]}
    called = [{"role": "user", "content": "?"}, {"role": "assistant", "content": [USE]}]
    asked = [*called, {"role": "user", "content": [RESULT, hold(found | CACHED)]}]
    request = await MESSAGES.asked(messages=asked)
    assert request.messages[-1].content == "Plants\n\nplants.md\n\nGreen."


async def test_a_summary_of_earlier_messages_is_read():
    blocks = [{"type": "compaction", "content": "We spoke of Rome.", "signature": "x"}, text("I know.")]
    messages = [{"role": "assistant", "content": blocks}, {"role": "user", "content": "Go on."}]
    request = await MESSAGES.asked(messages=messages)
    assert "We spoke of Rome." in request.messages[0].content
    assert "I know." in request.messages[0].content


@pytest.mark.parametrize(
    ("field", "code"),
    [
        ({"thread": {"type": "create"}}, {"details": {"error_code": "thread_unsupported_request"}}),
        (
            {"thread": {"type": "continue", "previous_message_id": "msg_1"}},
            {"details": {"error_code": "thread_unsupported_request"}},
        ),
        ({"compaction": {"type": "summarize"}}, {}),
    ],
)
async def test_what_needs_stored_conversations_is_refused_in_a_way_that_clients_understand(url, field, code):
    """Anthropic's client begins a thread by itself where it runs tools, and sends what is new alone."""
    answer = await MESSAGES.post(url, **field)
    said = answer.json()["error"]
    assert answer.status_code == 400
    assert next(iter(field)) in said.pop("message")
    assert said == {"type": "invalid_request_error", **code}


@pytest.mark.parametrize("kind", ["base64", "url", "file", "nonsense"])
async def test_documents_that_are_files_are_refused(kind):
    block = {"type": "document", "source": {"type": kind, "data": "JVBERi0="}}
    refused = await MESSAGES.refused(messages=[{"role": "user", "content": [block]}])
    assert refused.status == 400
    assert "messages.0.content.0: only text and images" in refused.message


@pytest.mark.parametrize(
    ("block", "match"), [({"type": "image", "source": {}}, "source"), (USE, "assistant")]
)
async def test_what_cannot_be_is_refused(block, match):
    refused = await MESSAGES.refused(messages=[{"role": "user", "content": [block]}])
    assert (refused.status, refused.type) == (400, "invalid_request_error")
    assert match in refused.message


async def test_tokens_are_counted():
    async with MESSAGES.client(FakeModels()) as client:
        counted = await client.messages.count_tokens(model="default", messages=HELLO, system="Hi")
    assert counted.input_tokens == len("HiHello")


@pytest.mark.parametrize(("hint", "n_input", "n_kept"), [(CACHED, 0, 12), ({}, 12, 0)])
async def test_a_hint_to_cache_is_answered_in_the_usage(hint, n_input, n_kept):
    answer = await MESSAGES.answered(messages=[{"role": "user", "content": [text("x", **hint)]}])
    usage = answer.usage
    assert (usage.input_tokens, usage.cache_creation_input_tokens) == (n_input, n_kept)
    assert usage.cache_read_input_tokens == 8


async def test_the_events_of_a_stream():
    script = [thought("Hm."), "It is ", "sunny.", *PIECES, finished("tools")]
    events = await MESSAGES.streamed(FakeModels(script), **MESSAGES.said(tools=[WEATHER]))
    told = [event.delta.type if event.type == "content_block_delta" else event.type for event in events]
    assert told == [
        *("message_start", "content_block_start", "thinking_delta", "signature_delta", "content_block_stop"),
        *("content_block_start", "text_delta", "text_delta", "content_block_stop"),
        *("content_block_start", "input_json_delta", "input_json_delta", "content_block_stop"),
        *("message_delta", "message_stop"),
    ]
    assert [event.index for event in events if event.type == "content_block_stop"] == [0, 1, 2]
    usage = events[0].message.usage  # known before the first token
    assert (usage.input_tokens, usage.cache_read_input_tokens) == (12, 8)
    assert (events[-2].delta.stop_reason, events[-2].usage.output_tokens) == ("tool_use", 5)


async def test_the_text_that_ended_it_is_told():
    message = await MESSAGES.answered(FakeModels(["x", finished(stop_text="END")]))
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "END")
    assert (await MESSAGES.answered(FakeModels(["x", finished("length")]))).stop_sequence is None
