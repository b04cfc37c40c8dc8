"""A reply on its way into the store: what is saved of it when, and what it has become in the end."""

import asyncio

import msgspec
import pytest

from edgechat.base.errors import ChatBusy, DecodeFailed, StoreError
from edgechat.chat.conversation import Conversation
from edgechat.chat.records import Figures, ToolRound, ToolUse, Turn
from edgechat.chat.reply.reply import ReplySaver
from edgechat.engine.types import Delta, Prefill, ToolCall, ToolCallArguments, ToolCallBegun
from tests.fakes import MODEL
from tests.server.fakes import finished, thought


@pytest.fixture
async def reply(store):
    """Begin a reply in a chat with a question; return its saver."""
    conversation = Conversation(store, "guide")
    await conversation.ask("Hi")
    question = conversation.turns[-1]
    turn = Turn(
        id="r", chat_id=conversation.chat.id, role="assistant", content="", state="streaming",
        parent_id=question.id, created_at=2.0,
    )  # fmt: skip
    saver = ReplySaver(store, turn)
    yield saver
    await saver.rest()


@pytest.fixture
def seconds(monkeypatch):
    """Return the time that the clock shows, to be changed."""
    now = [100.0]
    monkeypatch.setattr("edgechat.chat.reply.reply.time.monotonic", lambda: now[0])
    return now


async def stored(saver):
    _, turns = await saver._store.load(saver.turn.chat_id)
    return turns[-1]


async def saved(saver):
    """Wait until the store has what there is of a reply."""
    while await stored(saver) != saver.turn:
        await asyncio.sleep(0.01)


def called(number, arguments=""):
    return ToolCallBegun("", ToolCall(f"c{number}", "look", arguments), 1)


def use(number, arguments="", **more):
    return ToolUse(id=f"c{number}", name="look", arguments=arguments, **more)


async def test_it_is_stored_from_its_first_word_on(reply, monkeypatch):
    monkeypatch.setattr("edgechat.chat.reply.reply.FLUSH_SECONDS", 0.01)
    assert (reply.begun, reply.continues, reply.has_grown, reply.save_error) == (False, False, False, None)
    await reply.begin()
    assert (reply.begun, reply.has_grown) == (True, False)
    assert await stored(reply) == reply.turn
    for event in (Prefill("", 5, 20), ToolCallArguments("", "of no call", 1)):
        reply.add(event)
        assert not reply.has_grown
    for word in ("One", " two", " three"):
        reply.add(Delta("", word, False, 1))
        assert reply.has_grown
        await saved(reply)
    assert (await stored(reply)).content == "One two three"
    reply.add(called(1))
    reply.put(use(1, outcome="answered"))
    await saved(reply)
    assert (await stored(reply)).rounds[0].uses == (use(1, outcome="answered"),)
    reply.end_round()
    await saved(reply)


async def test_calls_grow_and_are_replaced_each_by_itself(reply):
    for event in (called(1, "{"), ToolCallArguments("", "}", 1), called(2), ToolCallArguments("", "[]", 1)):
        reply.add(event)
    assert reply.uses == (use(1, "{}"), use(2, "[]"))
    reply.put(use(1, outcome="answered", result="It."))
    assert reply.uses == (use(1, outcome="answered", result="It."), use(2, "[]"))


async def test_each_round_has_its_own_text_and_thoughts(reply, seconds):
    for n, at in ((1, 100.0), (2, 100.44), (3, 101.27)):
        seconds[0] = at
        reply.add(thought(f"{n} ", n))
    reply.add(Delta("", "Let me see.", False, 1))
    assert (reply.turn.content, reply.turn.thinking, reply.turn.rounds) == ("Let me see.", "1 2 3 ", ())
    reply.add(called(1))
    first = ToolRound(
        uses=(use(1),), content="Let me see.", thinking="1 2 3 ", thinking_tokens=3, thinking_seconds=1.3
    )
    assert (reply.turn.content, reply.turn.thinking, reply.turn.rounds) == ("", "", (first,))
    reply.end_round()
    assert reply.uses == ()
    seconds[0] = 200.0
    reply.add(thought("Again."))
    seconds[0] = 200.26
    reply.add(thought("", 2))
    reply.add(called(2))
    second = ToolRound(uses=(use(2),), thinking="Again.", thinking_tokens=2, thinking_seconds=0.3)
    assert reply.turn.rounds == (first, second)
    reply.end_round()
    reply.add(Delta("", "So.", False, 1))
    assert (reply.turn.content, reply.turn.thinking, reply.turn.rounds) == ("So.", "", (first, second))


async def test_figures_are_those_of_all_its_requests(reply, seconds):
    reply.add(thought("Hm."))
    seconds[0] += 0.26
    reply.add(thought("", 4))
    ended = finished("length")
    reply.take_figures(MODEL, ended)
    figures = Figures(
        reason="length", usage=ended.usage, timings=ended.timings, context=MODEL.context,
        thinking_tokens=4, thinking_seconds=0.3, model=MODEL.name,
    )  # fmt: skip
    assert reply.turn.figures == figures
    reply.end_round()
    reply.take_figures(None, None)
    assert reply.turn.figures == figures.followed_by(Figures())


@pytest.mark.parametrize("error", [None, DecodeFailed("NaN.", hint="Again.")])
async def test_its_end_is_stored_with_its_state_and_its_calls(reply, error):
    await reply.begin()
    reply.add(Delta("", "Well.", False, 1))
    reply.add(called(1))
    await reply.end("failed" if error else "stopped", error)
    ended = await stored(reply)
    assert ended == reply.turn
    assert ended.rounds == (ToolRound(uses=(use(1),), content="Well."),)
    assert (ended.state, ended.content) == ("failed" if error else "stopped", "")
    assert (ended.error.kind, ended.error.message) == ("DecodeFailed", "NaN.") if error else not ended.error
    assert reply._saver.done()


async def test_what_the_store_refuses_is_tried_again(reply, monkeypatch):
    monkeypatch.setattr("edgechat.chat.reply.reply.FLUSH_SECONDS", 0.01)
    await reply.begin()
    real, tries = reply._store.update_turn, []

    async def refuse(turn):
        tries.append(turn.content)
        raise StoreError("The disk is full.")

    monkeypatch.setattr(reply._store, "update_turn", refuse)
    reply.add(Delta("", "One", False, 1))
    while len(tries) < 3:
        await asyncio.sleep(0.01)
    assert (tries[:3], str(reply.save_error)) == (["One"] * 3, "The disk is full.")
    monkeypatch.setattr(reply._store, "update_turn", real)
    await saved(reply)
    while reply.save_error is not None:
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(("pause", "least"), [(600.0, 1), (0.01, 2)])
async def test_the_store_is_left_alone_between_changes_and_where_there_are_none(
    reply, monkeypatch, pause, least
):
    monkeypatch.setattr("edgechat.chat.reply.reply.FLUSH_SECONDS", pause)
    await reply.begin()
    real, n = reply._store.update_turn, 0

    async def count(turn):
        nonlocal n
        n += 1
        await real(turn)

    monkeypatch.setattr(reply._store, "update_turn", count)
    for word in "ab":
        reply.add(Delta("", word, False, 1))
        while n == 0 or (pause < 1 and await stored(reply) != reply.turn):
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    assert n == least


async def test_one_that_could_not_be_begun_is_not(reply):
    await reply._store.close()
    with pytest.raises(StoreError):
        await reply.begin()
    assert not reply.begun
    await reply.rest()


async def test_it_goes_on_unless_somebody_else_has_gone_on(reply):
    await reply.begin()
    reply.add(Delta("", "So", False, 1))
    await reply.end("stopped", None)
    before = reply.turn
    going_on = msgspec.structs.replace(before, state="streaming")
    more = ReplySaver(reply._store, going_on, before=before)
    assert more.continues
    await more.begin()
    late = ReplySaver(reply._store, going_on, before=before)
    with pytest.raises(ChatBusy, match=r"^Another edgechat has continued this conversation in the") as caught:
        await late.begin()
    assert caught.value.hint == "Open it again to see how."
    assert not late.begun
    more.add(Delta("", " far.", False, 1))
    assert more.turn.content == "So far."
    await more.restore()
    assert await stored(more) == before
    assert more._saver.done()
