"""A reply that ended early goes on as the same turn, and never loses what it had."""

import sqlite3
from contextlib import aclosing

import pytest

from edgechat.base.errors import ChatBusy, EngineCrashed, PromptTooLong
from edgechat.chat.conversation import Conversation
from edgechat.chat.records import Figures
from edgechat.chat.storage.store import Store
from edgechat.engine.types import Delta, Finished, Message, Prefill, Timings, Usage
from tests.fakes import FakeEngine, send, thought


async def drain(events):
    return [event async for event in events]


async def stored(store, conversation):
    _, turns = await store.load(conversation.chat.id)
    return turns


async def stopped(store, engine, question="Count."):
    """A conversation whose reply was stopped at its first text."""
    conversation = Conversation(store, "guide")
    async for event in send(conversation, engine, question):
        if isinstance(event, Delta):
            await conversation.stop()
    return conversation


async def test_a_stopped_reply_goes_on_as_the_same_turn(store):
    engine = FakeEngine(["One, ", 5.0], ["two."])
    conversation = await stopped(store, engine)
    before = conversation.turns[-1]
    assert conversation.can_continue
    await drain(conversation.answer(engine))
    reply = conversation.turns[-1]
    assert (reply.id, reply.content, reply.state) == (before.id, "One, two.", "complete")
    assert engine.requests[1].messages == (Message("user", "Count."), Message("assistant", "One, "))
    assert engine.requests[1].id != engine.requests[0].id
    assert await stored(store, conversation) == conversation.turns
    assert not conversation.can_continue


async def test_a_thought_goes_on_too(store):
    engine = FakeEngine([thought("Hm, "), 5.0], [thought("well. "), "Yes."])
    conversation = await stopped(store, engine)
    assert conversation.can_continue
    await drain(conversation.answer(engine))
    reply = conversation.turns[-1]
    assert (reply.thinking, reply.content, reply.state) == ("Hm, well. ", "Yes.", "complete")
    assert engine.requests[1].messages[-1] == Message("assistant", "", "Hm, ")


async def test_only_what_ended_early_can_be_continued(conversation):
    engine = FakeEngine(["Done."])
    assert not conversation.can_continue
    await drain(send(conversation, engine, "Go."))
    assert not conversation.can_continue
    with pytest.raises(RuntimeError):
        await drain(conversation.answer(engine))


@pytest.mark.parametrize("reason", ["length", "context"])
async def test_what_a_limit_cut_off_can_be_continued(conversation, reason):
    class Limited(FakeEngine):
        async def stream(self, request, on_progress=None):
            async for event in super().stream(request, on_progress):
                is_first = len(self.requests) == 1 and isinstance(event, Finished)
                yield Finished(event.request_id, reason, event.usage, event.timings) if is_first else event

    engine = Limited(["One, "], ["two."])
    await drain(send(conversation, engine, "Count."))
    assert conversation.turns[-1].state == "complete"
    assert conversation.can_continue
    await drain(conversation.answer(engine))
    assert (conversation.turns[-1].content, conversation.can_continue) == ("One, two.", False)


@pytest.mark.parametrize("fault", [EngineCrashed("It died."), PromptTooLong("It has 9000 tokens.")])
async def test_a_failure_before_more_text_leaves_it_as_it_was(store, fault):
    engine = FakeEngine(["One, ", 5.0], [fault], ["two."])
    conversation = await stopped(store, engine)
    before = list(conversation.turns)
    with pytest.raises(type(fault)):
        await drain(conversation.answer(engine))
    assert conversation.turns == before == await stored(store, conversation)
    await drain(conversation.answer(engine))
    assert conversation.turns[-1].content == "One, two."


async def test_a_failure_after_more_text_keeps_all_of_it(store):
    engine = FakeEngine(["One, ", 5.0], ["two, ", EngineCrashed("It died.")], ["three."])
    conversation = await stopped(store, engine)
    with pytest.raises(EngineCrashed):
        await drain(conversation.answer(engine))
    reply = (await stored(store, conversation))[-1]
    assert (reply.content, reply.state) == ("One, two, ", "interrupted")
    assert reply.error is not None
    await drain(conversation.answer(engine))
    reply = conversation.turns[-1]
    assert (reply.content, reply.error) == ("One, two, three.", None)


async def test_what_is_stopped_before_more_text_came_is_as_it_was(store):
    engine = FakeEngine(["One, ", 5.0], [Prefill("", 5, 20), 5.0, "two."])
    conversation = await stopped(store, engine)
    before = list(conversation.turns)
    async for event in conversation.answer(engine):
        if isinstance(event, Prefill):
            await conversation.stop()
    assert conversation.turns == before == await stored(store, conversation)


@pytest.mark.slow
async def test_a_program_that_dies_while_it_goes_on_leaves_all_text(tmp_path, running):
    store = await Store.open(tmp_path / "chats.db")
    engine = FakeEngine(["One, ", 5.0], ["two, ", 1.0, "three."])
    conversation = await stopped(store, engine)
    seen = []
    async with aclosing(conversation.answer(engine)) as events:
        async for event in events:
            if isinstance(event, Delta) and event.text.startswith("three"):
                (turn,) = [turn for turn in await stored(store, conversation) if turn.role == "assistant"]
                seen.append((turn.content, turn.state))
    ((content, state),) = seen
    assert (content.startswith("One, two, "), state) == (True, "streaming")
    await store.close()
    with sqlite3.connect(tmp_path / "chats.db") as db:  # as a dead program leaves it
        db.execute("""UPDATE turns SET state = 'streaming', owner = NULL WHERE role = 'assistant'""")
    store = running(await Store.open(tmp_path / "chats.db"))
    again = await Conversation.load(store, conversation.chat.id)
    assert (again.turns[-1].content, again.turns[-1].state) == ("One, two, three.", "interrupted")
    assert again.can_continue


async def test_of_several_versions_the_one_that_is_shown_goes_on(store):
    engine = FakeEngine(["One, ", 5.0], ["Another."], ["two."])
    conversation = await stopped(store, engine)
    first = conversation.turns[-1].id
    conversation.regenerate()
    await drain(conversation.answer(engine))
    await conversation.switch(conversation.turns[-1].id, 0)
    await drain(conversation.answer(engine))
    again = await Conversation.load(store, conversation.chat.id)
    assert [(turn.id, turn.content) for turn in again.turns[1:]] == [(first, "One, two.")]
    assert again.branches(first) == (0, 2)


async def test_another_program_is_not_written_over(store):
    engine = FakeEngine(["One, ", 5.0], ["two."], ["Mine."])
    conversation = await stopped(store, engine)
    other = await Conversation.load(store, conversation.chat.id)
    await drain(other.answer(engine))
    with pytest.raises(ChatBusy):
        await drain(conversation.answer(engine))
    assert (await stored(store, conversation))[-1].content == "One, two."


async def test_what_was_found_by_search_is_found_to_its_end(store):
    engine = FakeEngine(["Flour, ", 5.0], ["sourdough."])
    conversation = await stopped(store, engine)
    assert [hit.turn_id for hit in await store.search("sourdough")] == []
    await drain(conversation.answer(engine))
    for word in ("flour", "sourdough"):
        assert [hit.turn_id for hit in await store.search(word)] == [conversation.turns[-1].id]


def figures(prompt, tokens, tps, **more):
    return Figures(usage=Usage(prompt, 0, tokens), timings=Timings(500.0, 100.0, tps), model="a", **more)


def test_figures_of_two_parts_are_those_of_the_whole():
    whole = figures(20, 101, 10.0, thinking_tokens=7).followed_by(figures(121, 50, 20.0, thinking_tokens=2))
    assert whole.usage == Usage(20, 0, 151)
    assert whole.thinking_tokens == 9
    # 0.5 s and 100 tokens at 10/s, then 0.5 s and 49 tokens at 20/s.
    assert whole.seconds == pytest.approx(0.5 + 10.0 + 0.5 + 2.45)
    assert whole.timings.ttft_ms == 500.0


def test_figures_that_are_half_unknown_are_not_guessed():
    whole = Figures(thinking_tokens=3).followed_by(figures(121, 50, 20.0))
    assert (whole.timings, whole.seconds, whole.model) == (None, 0.0, "a")
