"""A stream's chunks, put together by whoever gets them, are the whole answer: for any course of events."""

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgechat.engine.types import Delta, TokenLogprobs, ToolCallArguments
from edgechat.server.protocol.body import decode
from edgechat.server.protocol.openai_answers import ChatAnswers
from edgechat.server.protocol.openai_chat import ChatBody
from edgechat.server.protocol.openai_texts import CompletionAnswers, CompletionBody
from edgechat.server.refusal import Refusal
from tests.properties import examples
from tests.server.fakes import called, finished, thought

TEXT = st.text(max_size=8)
CHANCE = st.builds(TokenLogprobs, st.binary(max_size=4), st.floats(-9, 0))
WORDS = st.builds(
    lambda text, chances: Delta("", text, False, 1, tuple(chances)), TEXT, st.lists(CHANCE, max_size=2)
)
CALL = st.lists(TEXT, max_size=3).map(
    lambda pieces: [called("f", "", id="call_x"), *(ToolCallArguments("", piece, 1) for piece in pieces)]
)
EVENTS = st.one_of(WORDS.map(lambda one: [one]), TEXT.map(lambda text: [thought(text)]), CALL)
COURSES = st.lists(
    st.lists(EVENTS, max_size=8).map(lambda events: list(itertools.chain(*events))), min_size=2, max_size=2
)


def told(answers, courses):
    """Return the chunks of a stream, the events of two answers in turns."""
    stream = b""
    for events in itertools.zip_longest(*([*course, finished()] for course in courses)):
        for choice, event in enumerate(events):
            stream += b"" if event is None else answers.send(choice, event)
    *chunks, last, rest = (stream + answers.end()).split(b"\n\n")
    assert (last, rest) == (b"data: [DONE]", b"")
    return [json.loads(chunk.removeprefix(b"data: ")) for chunk in chunks]


def whole(answers, courses):
    for choice, course in enumerate(courses):
        for event in (*course, finished()):
            answers.take(choice, event)
    return json.loads(answers.whole())


@pytest.mark.slow
@settings(max_examples=examples(40))
@given(courses=COURSES)
def test_of_a_chat(courses):
    body = ChatBody(model="x", messages=[], n=2, stream=True, logprobs=True)
    answer = whole(ChatAnswers(body, None), courses)
    chunks = told(ChatAnswers(body, None), courses)
    for choice, expected in enumerate(answer["choices"]):
        parts = [one["choices"][0] for one in chunks if one["choices"][0]["index"] == choice]
        deltas = [part["delta"] for part in parts]
        message = expected["message"]
        assert deltas[0]["role"] == "assistant"
        assert "".join(one.get("content", "") for one in deltas) == (message["content"] or "")
        assert "".join(one.get("reasoning_content", "") for one in deltas) == message.get(
            "reasoning_content", ""
        )
        calls = [call for one in deltas for call in one.get("tool_calls", ())]
        made = []
        for call in calls:
            if "id" in call:
                assert call.pop("index") == len(made)
                made.append(call)
            else:
                assert call.keys() == {"index", "function"}
                assert call["index"] == len(made) - 1
                made[-1]["function"]["arguments"] += call["function"]["arguments"]
        assert made == message.get("tool_calls", [])
        chances = [one for part in parts for one in part.get("logprobs", {}).get("content", ())]
        assert chances == expected["logprobs"]["content"]
        assert [part["finish_reason"] for part in parts if part["finish_reason"]] == [
            expected["finish_reason"]
        ]


@pytest.mark.slow
@given(courses=st.lists(st.lists(WORDS, max_size=6), min_size=2, max_size=2), echo=st.booleans())
def test_of_a_completion(courses, echo):
    body = CompletionBody(model="x", prompt="Once", n=2, stream=True, echo=echo, logprobs=None if echo else 0)
    answer = whole(CompletionAnswers(body), courses)
    chunks = told(CompletionAnswers(body), courses)
    for choice, expected in enumerate(answer["choices"]):
        parts = [one["choices"][0] for one in chunks if one["choices"][0]["index"] == choice]
        assert "".join(part["text"] for part in parts) == expected["text"]
        assert expected["text"].startswith("Once" if echo else "")
        offsets = [at for part in parts if part["logprobs"] for at in part["logprobs"]["text_offset"]]
        assert echo or offsets == expected["logprobs"]["text_offset"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.dictionaries(st.sampled_from(ChatBody.__struct_fields__), JSON, max_size=4)


def refusal(body):
    """Return what a body is refused with; None for one that is not."""
    try:
        ChatAnswers(decode(body, ChatBody), None)
    except Refusal as refusal:
        return refusal
    return None


@pytest.mark.slow
@given(fields=FIELDS)
def test_whatever_is_said_is_done_or_refused_in_words(fields):
    body = {"model": "x", "messages": [{"role": "user", "content": "x"}]} | fields
    found = refusal(json.dumps(body).encode())
    assert found is None or (found.status == 400 and len(found.message) < 1000)


@given(body=st.binary(max_size=64))
def test_what_is_no_json_is_refused(body):
    found = refusal(body)
    assert found.status == 400
