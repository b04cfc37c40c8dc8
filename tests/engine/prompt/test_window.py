"""The sliding window, with sizes only."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from edgechat.engine.prompt.window import MOST_TOKENS, ContextWindow, turns_of, whole, window_of
from edgechat.engine.types import Role

Sized = tuple[Role, int]

ROLES = st.sampled_from(["system", "user", "assistant", "tool"])
CELLS = st.integers(1, 400)
ANY = st.lists(st.tuples(ROLES, st.integers(0, 200)), max_size=40)


@st.composite
def chats(draw, most=60):
    """Return a chat of the usual order, which ends with a question."""
    sizes = st.integers(0, most)
    head = [("system", draw(sizes))] if draw(st.booleans()) else []
    turns = draw(st.lists(st.tuples(sizes, sizes), max_size=25))
    pairs = [one for asked, said in turns for one in (("user", asked), ("assistant", said))]
    return [*head, *pairs, ("user", draw(sizes))]


def gone(window):
    return range(window.first, window.first + window.dropped)


def turn(question, reply):
    return [("user", question), ("assistant", reply)]


def test_nothing_leaves_a_conversation_that_fits():
    chat = [("system", 5), *turn(5, 20), *turn(5, 20), ("user", 5)]
    window = window_of(chat, 100)
    assert (window.kept, window.dropped, window.tokens) == ([0, 1, 2, 3, 4, 5], 0, 60)


def test_the_oldest_turns_leave_down_to_half_and_the_first_stays():
    chat = [("system", 5), *turn(5, 10), *turn(5, 15), *turn(5, 15), *turn(5, 15)]
    window = window_of(chat, 100)  # 80 of 100 after the last reply, 60, then 40
    assert (window.kept, window.dropped, window.tokens) == ([0, 1, 2, 7, 8], 2, 40)
    chat = [("system", 5), *turn(5, 10), *turn(5, 25), *turn(5, 10), *turn(5, 10)]
    assert window_of(chat, 100).tokens == 50  # which is half


def test_a_question_or_a_result_may_fill_more_than_a_reply():
    chat = [*turn(5, 10), *turn(10, 20), *turn(5, 20)]
    assert window_of([*chat, ("user", 17)], 100).dropped == 0
    assert window_of([*chat, ("tool", 12)], 100).dropped == 0
    assert window_of([*chat, ("user", 18)], 100).kept == [0, 1, 6]


def test_a_long_first_turn_is_not_pinned_and_leaves_first():
    chat = [("system", 6), *turn(10, 10), *turn(5, 15), *turn(5, 15), *turn(5, 15)]
    window = window_of(chat, 100)
    assert gone(window) == range(2)
    assert window.kept == [0, 5, 6, 7, 8]


def test_what_is_in_every_prompt_counts():
    chat = [*turn(5, 10), *turn(5, 15), *turn(5, 15), ("user", 5)]
    assert window_of(chat, 100).tokens == 60
    assert window_of(chat, 100, fixed=30).kept == [4, 5, 6]


def test_where_nothing_more_can_leave():
    chat = [("system", 10), *turn(5, 5), *turn(5, 5), ("user", 95)]
    window = window_of(chat, 100)
    assert (window.kept, window.tokens, window.narrower()) == ([0, 1, 2, 5], 115, None)


def test_narrower_leaves_out_whole_turns_until_it_is_enough():
    window = window_of([*turn(1, 1), *turn(5, 5), *turn(5, 5), *turn(5, 5), ("user", 1)], 1000)
    one, two = window.narrower(10), window.narrower(11)
    assert one is not None
    assert two is not None
    assert (one.kept, one.tokens) == ([0, 1, 4, 5, 6, 7, 8], 23)
    assert (two.kept, two.tokens) == ([0, 1, 6, 7, 8], 13)
    last = two.narrower(10**6)
    assert last is not None
    assert last.kept == [0, 1, 8]
    assert last.narrower() is None


def test_narrower_leaves_out_a_turn_even_of_no_size_and_for_no_reason():
    window = window_of([*turn(1, 1), *turn(0, 0), *turn(0, 0), ("user", 1)], 1000)
    narrower = window.narrower(-5)
    assert narrower is not None
    assert narrower.dropped == 1
    assert window_of([*turn(1, 1), *turn(1, 0), *turn(1, 0), ("user", 1)], 1000).narrower().dropped == 1


@pytest.mark.parametrize(
    ("roles", "expected"),
    [
        ("", []),
        ("s", []),
        ("ss", []),
        ("u", ["u"]),
        ("suaua", ["ua", "ua"]),
        ("saua", ["aua"]),  # a greeting belongs to the first turn
        ("aaua", ["aaua"]),
        ("suua", ["u", "ua"]),  # a question without an answer
        ("uaaau", ["uaaa", "u"]),  # an answer in parts
        ("uasua", ["ua", "sua"]),
        ("usua", ["u", "sua"]),
        ("uas", ["ua", "s"]),
        ("uasa", ["ua", "sa"]),
        ("asu", ["asu"]),
        ("suattatauatu", ["uattata", "uat", "u"]),  # calls and results belong to their question
        ("tua", ["tua"]),
        ("uast", ["ua", "st"]),
    ],
)
def test_turns_of_any_order(roles, expected):
    names = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    turns = turns_of([names[role] for role in roles])
    assert [roles[turn.start : turn.stop] for turn in turns] == expected


def test_a_system_message_after_the_question_does_not_make_it_leave():
    chat = [*turn(1, 1), *turn(30, 30), ("user", 30), ("system", 5)]
    assert window_of(chat, 100).kept == [0, 1, 4, 5]
    chat = [*turn(1, 1), *turn(20, 20), ("user", 20), ("system", 20)]
    assert window_of(chat, 100).dropped == 0


def test_whole_keeps_all():
    assert whole(3).kept == [0, 1, 2]
    assert whole(3) == ContextWindow(3, (), (), first=0, dropped=0, current=0, tokens=0)
    assert whole(3).narrower() is None


@pytest.mark.parametrize(
    ("size", "cells", "fixed"), [(-1, 10, 0), (MOST_TOKENS + 1, 10, 0), (1, 0, 0), (1, -5, 0), (1, 10, -1)]
)
def test_sizes_that_make_no_sense(size, cells, fixed):
    with pytest.raises(ValueError, match=r"^a context must have .* sizes must be valid token counts$"):
        window_of([("user", size)], cells, fixed=fixed)


def test_the_largest_size_is_one():
    assert window_of([("user", MOST_TOKENS)], 1).tokens == MOST_TOKENS


@given(ANY)
def test_every_message_is_of_the_head_or_of_one_turn(chat):
    turns = turns_of([role for role, _ in chat])
    head = turns[0].start if turns else len(chat)
    assert all(role == "system" for role, _ in chat[:head])
    assert [*range(head), *(at for turn in turns for at in turn)] == list(range(len(chat)))


@given(ANY, CELLS)
def test_a_result_is_sent_with_what_called_it_or_not_at_all(chat, cells):
    kept = set(window_of(chat, cells).kept)
    for at in range(1, len(chat)):
        if chat[at][0] == "tool" and chat[at - 1][0] != "system":
            assert (at in kept) == (at - 1 in kept)


@given(ANY, CELLS, st.integers(0, 50))
def test_what_is_sent_fits_or_nothing_more_can_leave(chat, cells, fixed):
    window = window_of(chat, cells, fixed=fixed)
    assert window.tokens == fixed + sum(chat[at][1] for at in window.kept)
    if chat and chat[-1][0] != "system":  # which is sent with the question that follows it
        high = cells * 7 // 8 if chat[-1][0] in ("user", "tool") else cells * 3 // 4
        assert window.tokens <= high or window.narrower() is None


@given(ANY, CELLS)
def test_the_head_the_pinned_turn_and_the_current_one_stay(chat, cells):
    window = window_of(chat, cells)
    turns = turns_of([role for role, _ in chat])
    head = turns[0].start if turns else len(chat)
    assert window.kept[:head] == list(range(head))
    if len(turns) > 1 and sum(size for _, size in chat[: turns[1].start]) <= cells // 4:
        assert window.kept[: turns[1].start] == list(range(turns[1].start))
    users = [at for at, (role, _) in enumerate(chat) if role == "user"]
    if users:
        rest = list(range(users[-1], len(chat)))
        assert window.kept[-len(rest) :] == rest


@given(ANY, CELLS)
def test_the_oldest_turns_leave_and_all_of_each(chat, cells):
    window = window_of(chat, cells)
    left = [at for at in range(len(chat)) if at not in window.kept]
    assert left == [at for number in gone(window) for at in window.turns[number]]
    assert gone(window).start <= 1


@given(ANY, ANY, CELLS)
def test_what_has_left_never_comes_back(chat, more, cells):
    """Nor does it depend on what is said later: the longer chat begins with the shorter one's decisions."""
    before, after = window_of(chat, cells), window_of(chat + more, cells)
    assert set(gone(before)) <= set(gone(after))
    if len(before.turns) > 1:
        assert before.first == after.first


@pytest.mark.slow
@given(chats(), CELLS)
def test_between_two_cuts_the_messages_are_those_before_and_more(chat, cells):
    for n in range(1, len(chat)):
        before, after = window_of(chat[:n], cells), window_of(chat[: n + 1], cells)
        assert after.dropped != before.dropped or after.kept == [*before.kept, n]


@given(chats(most=20), st.integers(160, 400))
def test_after_a_cut_a_quarter_of_the_context_is_said_until_the_next(chat, cells):
    assume(all(role != "system" or size <= cells // 8 for role, size in chat))
    said, dropped = cells, 0
    for n, (_, size) in enumerate(chat, 1):
        window = window_of(chat[:n], cells)
        said += size
        if window.dropped != dropped:
            assert window.tokens <= cells // 2
            assert said > cells * 3 // 4 - cells // 2
            said, dropped = 0, window.dropped


@given(ANY, CELLS, st.integers(-5, 500))
def test_narrower_is_the_same_window_with_less(chat, cells, by):
    window = window_of(chat, cells)
    narrower = window.narrower(by)
    if narrower is None:
        assert window.first + window.dropped >= window.current
        return
    assert narrower.tokens == sum(chat[at][1] for at in narrower.kept)
    assert gone(narrower).start == gone(window).start
    assert narrower.dropped > window.dropped
    assert narrower.tokens <= window.tokens - by or narrower.narrower() is None
