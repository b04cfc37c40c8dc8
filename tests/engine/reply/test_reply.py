"""Text out of token bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgechat.engine.prompt.template import FAMILIES, ChatTemplate
from edgechat.engine.reply.reply import Reply
from edgechat.engine.tool_calls.scan import held_back

HARMONY, GEMMA, THINK = FAMILIES


def run(reply, pieces):
    """Return (answer, thinking) of a reply fed piece by piece."""
    shown = []
    for piece in pieces:
        if not reply.stopped:
            shown += reply.feed(piece)
    shown += reply.finish()
    return "".join(t for t, thinking in shown if not thinking), "".join(
        t for t, thinking in shown if thinking
    )


def in_bytes(text):
    return [bytes([byte]) for byte in text.encode()]


@given(st.text())
def test_bytes_become_the_text_again(text):
    assert run(Reply(), in_bytes(text)) == (text.encode("utf-8", "replace").decode(), "")


def test_no_half_character_is_ever_shown():
    reply = Reply()
    assert [reply.feed(bytes([byte])) for byte in "é".encode()] == [[], [("é", False)]]


def test_a_broken_character_at_the_end_becomes_a_mark():
    assert run(Reply(), [b"ok\xe2\x82"]) == ("ok\ufffd", "")


@given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_stop_strings_end_the_answer_wherever_tokens_break(text, stops):
    ends = [at for at in (text.find(stop) for stop in stops) if at >= 0]
    reply = Reply(tuple(stops))
    answer, _ = run(reply, in_bytes(text))
    # Token by token the earliest *completed* stop string ends it, so nothing after a match is ever shown.
    assert text.startswith(answer)
    assert reply.stopped == bool(ends)
    assert not any(stop in answer for stop in stops)
    if not ends:
        assert answer == text


def test_what_may_begin_a_stop_string_is_held_back():
    reply = Reply(("END",))
    assert reply.feed(b"one EN") == [("one ", False)]
    assert reply.feed(b"D two") == []
    assert reply.stopped


@pytest.mark.parametrize(
    ("text", "stop", "told"),
    [
        ("one<|im_end|>two", ("END",), None),
        ("oneENDtwo<|im_end|>", ("END",), "END"),
        ("one<|im_end|>END", ("END",), None),
        ("one<|im_end|>", ("<|im_end|>",), "<|im_end|>"),
        ("one<|im_end|>", ("", "<|im"), "<|im"),
    ],
)
def test_the_end_of_a_message_is_not_told_as_a_stop_string_unless_asked_for(text, stop, told):
    reply = Reply(stop, ends=("<|im_end|>",))
    assert run(reply, in_bytes(text)) == ("one", "")
    assert (reply.stopped, reply.stop_text) == (True, told)


@pytest.mark.parametrize(
    ("text", "marks", "opened", "expected"),
    [
        ("<think>\nhm\n</think>\n\nyes", THINK, False, ("yes", "\nhm\n")),
        ("hm</think>yes", THINK, True, ("yes", "hm")),
        ("yes <think>", THINK, False, ("yes <think>", "")),
        ("<think>never closed", THINK, False, ("", "never closed")),
        ("<thin", THINK, False, ("<thin", "")),
        ("<|channel>thought\nhm<channel|>yes", GEMMA, False, ("yes", "\nhm")),
        (
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>yes",
            HARMONY,
            False,
            ("yes", "hm"),
        ),
        ("<|channel|>final<|message|>yes", HARMONY, False, ("yes", "")),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_thinking_is_kept_apart(text, marks, opened, expected, size):
    raw = text.encode()
    pieces = [raw[at : at + size] for at in range(0, len(raw), size)]
    assert run(Reply(("STOP",), marks, thinking=opened), pieces) == expected


def test_stop_strings_leave_the_thinking_alone():
    assert run(Reply(("\n",), THINK), in_bytes("<think>a\nb</think>c\nd")) == ("c", "a\nb")


def test_marks_are_read_off_the_template():
    assert ChatTemplate("{{ '<|im_start|>' }}").marks is None
    assert ChatTemplate("x.split('</think>')").marks is THINK
    assert ChatTemplate("'<|channel>thought'").marks is GEMMA
    assert ChatTemplate("<|channel|>analysis<|message|>").marks is HARMONY


def test_held_back_is_the_longest_possible_beginning():
    assert held_back("ab<", ("<think>", "b<x")) == 2
    assert held_back("abc", ("<think>",)) == 0
    assert held_back("<think>", ("<think>",)) == 0
