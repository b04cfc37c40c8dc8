import asyncio
import threading
from contextlib import aclosing

import pytest

from edgechat.base.errors import ChatBusy, DecodeFailed, EngineCrashed, PromptTooLong, StoreError
from edgechat.base.process.owner import Owner
from edgechat.chat.conversation import Conversation
from edgechat.chat.generation_options import GenerationOptions
from edgechat.chat.messages import messages_of
from edgechat.chat.records import Turn
from edgechat.chat.storage.store import Store
from edgechat.engine.types import Delta, Dropped, Finished, Message, Prefill, Sampling
from tests.fakes import FakeEngine, send, thought


async def drain(events):
    return [event async for event in events]


async def stored(store, conversation):
    _, turns = await store.load(conversation.chat.id)
    return turns


async def test_a_turn_is_saved_before_it_is_computed_with(store, conversation):
    seen = []

    class Watching(FakeEngine):
        async def stream(self, request, on_progress=None):
            seen.extend(await stored(store, conversation))
            async for event in super().stream(request, on_progress):
                yield event

    await drain(send(conversation, Watching(), "Hello\nyou"))
    assert [(one.role, one.content, one.state) for one in seen] == [
        ("user", "Hello\nyou", "complete"),
        ("assistant", "", "streaming"),
    ]
    assert conversation.chat.title == "Hello"


async def test_a_conversation_without_words_is_not_stored(store):
    Conversation(store, "guide")
    assert await store.chats() == []


async def test_a_reply_is_passed_on_and_kept_with_its_figures(store, conversation):
    engine = FakeEngine([Prefill("", 5, 20), thought("Hm. "), thought("Well."), "Yes", "."])
    events = await drain(send(conversation, engine, "Is it?"))
    assert [type(event) for event in events] == [Prefill, Delta, Delta, Delta, Delta, Finished]
    reply = conversation.turns[-1]
    assert (reply.content, reply.thinking, reply.state) == ("Yes.", "Hm. Well.", "complete")
    assert (reply.figures.thinking_tokens, reply.figures.context, reply.figures.reason) == (2, 4096, "stop")
    assert await stored(store, conversation) == conversation.turns


async def test_the_model_is_sent_the_whole_chat_and_its_first_day(store, conversation):
    engine = FakeEngine(["One."], ["Two."])
    await drain(send(conversation, engine, "1?"))
    again = await Conversation.load(store, conversation.chat.id)
    await drain(send(again, engine, "2?"))
    first, second = engine.requests
    assert second.messages == (Message("user", "1?"), Message("assistant", "One."), Message("user", "2?"))
    assert first.date == second.date == conversation.chat.date


async def test_a_crash_keeps_the_text_and_the_next_turn_works(store, conversation):
    engine = FakeEngine(["So ", "far", EngineCrashed("It died.", hint="Again.")], ["Here."])
    with pytest.raises(EngineCrashed):
        await drain(send(conversation, engine, "Go."))
    reply = (await stored(store, conversation))[-1]
    assert (reply.content, reply.state) == ("So far", "interrupted")
    assert reply.error.kind == "EngineCrashed"
    await drain(send(conversation, engine, "On."))
    assert conversation.turns[-1].content == "Here."
    assert Message("assistant", "So far") in engine.requests[-1].messages


async def test_a_failed_reply_leaves_no_gap_and_may_be_tried_again(store, conversation):
    engine = FakeEngine([DecodeFailed("NaN.")], ["Now."])
    with pytest.raises(DecodeFailed):
        await drain(send(conversation, engine, "Go."))
    assert conversation.turns[-1].state == "failed"
    conversation.regenerate()
    await drain(conversation.answer(engine))
    assert [one.content for one in conversation.turns] == ["Go.", "Now."]
    loaded = await Conversation.load(store, conversation.chat.id)
    assert loaded.turns == conversation.turns
    assert len(await stored(store, conversation)) == 3


TOO_LONG = PromptTooLong("The conversation has 9000 tokens, but the context is 4096 tokens long.")


async def test_a_question_that_is_too_long_is_taken_back(store, conversation):
    engine = FakeEngine(["One."], [TOO_LONG], ["Two."])
    await drain(send(conversation, engine, "1?"))
    before = list(conversation.turns)
    with pytest.raises(PromptTooLong):
        await drain(send(conversation, engine, "long " * 9000))
    assert conversation.turns == before == await stored(store, conversation)
    await drain(send(conversation, engine, "2?"))
    assert [one.content for one in engine.requests[-1].messages] == ["1?", "One.", "2?"]


async def test_a_first_question_that_is_too_long_leaves_no_chat(store, conversation):
    engine = FakeEngine([TOO_LONG], ["One."])
    with pytest.raises(PromptTooLong):
        await drain(send(conversation, engine, "long " * 9000))
    assert await store.chats() == []
    await drain(send(conversation, engine, "Short?"))
    assert [one.title for one in await store.chats()] == ["Short?"]
    assert await stored(store, conversation) == conversation.turns


async def test_a_question_with_words_of_an_earlier_try_is_not_taken_back(store, conversation):
    engine = FakeEngine(["So ", "far", EngineCrashed("It died.")], [TOO_LONG], [TOO_LONG], ["Here."])
    with pytest.raises(EngineCrashed):
        await drain(send(conversation, engine, "Go."))
    conversation.regenerate()
    with pytest.raises(PromptTooLong):
        await drain(conversation.answer(engine))
    assert [one.content for one in await stored(store, conversation)] == ["Go.", "So far", ""]
    with pytest.raises(PromptTooLong):
        await drain(send(conversation, engine, "And?"))
    assert [one.role for one in conversation.turns] == ["user", "assistant"]


async def test_a_system_prompt_is_the_first_turn_and_is_sent(store):
    engine = FakeEngine(["One."], ["Two."])
    conversation = Conversation(store, "guide", front="run", system="Be brief.")
    assert conversation.system == "Be brief."
    await drain(send(conversation, engine, "1?"))
    again = await Conversation.load(store, conversation.chat.id)
    assert (again.system, again.n_messages, again.chat.title) == ("Be brief.", 2, "1?")
    await drain(send(again, engine, "2?"))
    assert [(one.role, one.content) for one in engine.requests[-1].messages] == [
        ("system", "Be brief."),
        *(("user", "1?"), ("assistant", "One."), ("user", "2?")),
    ]


async def test_a_chat_that_is_taken_back_as_a_whole_begins_again_under_another_id(store):
    engine = FakeEngine([TOO_LONG], ["One."], [TOO_LONG])
    conversation = Conversation(store, "guide", system="Be brief.")
    first = conversation.chat.id
    with pytest.raises(PromptTooLong):
        await drain(send(conversation, engine, "long " * 9000))
    assert engine.forgotten == [first]
    assert await store.chats() == []
    await drain(send(conversation, engine, "1?"))
    assert conversation.chat.id != first
    assert [turn.content for turn in await stored(store, conversation)] == ["Be brief.", "1?", "One."]
    with pytest.raises(PromptTooLong):
        await drain(send(conversation, engine, "long " * 9000))
    assert engine.forgotten == [first]
    assert [turn.content for turn in conversation.turns] == ["Be brief.", "1?", "One."]


async def test_a_request_carries_the_chat_and_the_manner(conversation):
    manner = GenerationOptions(
        sampling=Sampling(temperature=0.0), max_tokens=5, stop=("x",), think=True, overflow="error"
    )
    engine = FakeEngine()
    assert conversation.state_id is None
    await conversation.ask("Go.")
    await drain(conversation.answer(engine, manner))
    (request,) = engine.requests
    assert request.chat == conversation.state_id == conversation.chat.id
    assert (
        GenerationOptions(**{name: getattr(request, name) for name in GenerationOptions.__struct_fields__})
        == manner
    )


async def test_what_is_not_kept_has_a_name_for_the_engines_memory_only():
    store, engine = await Store.in_memory(), FakeEngine()
    conversation = Conversation(store, "guide")
    await drain(send(conversation, engine, "Go."))
    assert (engine.requests[0].chat, conversation.state_id) == (conversation.chat.id, None)
    await store.close()


async def test_the_turns_that_the_last_whole_reply_was_written_without(store, conversation):
    crash = EngineCrashed("It died.")
    engine = FakeEngine(["One."], [Dropped("", 3), "Two."], [Dropped("", 5), "So", crash])
    seen = [conversation.dropped]
    for question in ("1?", "2?"):
        await drain(send(conversation, engine, question))
        seen.append(conversation.dropped)
    with pytest.raises(EngineCrashed):
        await drain(send(conversation, engine, "3?"))
    again = await Conversation.load(store, conversation.chat.id)
    assert [*seen, again.dropped] == [0, 0, 3, 3]


async def test_a_model_that_is_a_file_is_named_by_its_whole_path(store, tmp_path, monkeypatch):
    (tmp_path / "mine.gguf").touch()
    monkeypatch.chdir(tmp_path)
    conversation = Conversation(store, "guide", front="run")
    await conversation.ask("Go.")
    await conversation.use_model("mine.gguf")
    chat, _ = await store.load(conversation.chat.id)
    assert (chat.model, chat.front) == (str(tmp_path / "mine.gguf"), "run")
    again = await Conversation.load(store, chat.id)
    await again.use_model("mine.gguf")
    chat, _ = await store.load(chat.id)
    assert chat.front == "app"


def test_turns_that_meet_over_an_empty_reply_become_one():
    def turn(role, content, state="complete"):
        return Turn(id=content, chat_id="c", role=role, content=content, state=state, created_at=0.0)

    turns = [turn("user", "a"), turn("assistant", "", "stopped"), turn("user", "b"), turn("assistant", "c")]
    assert messages_of(turns) == (Message("user", "a\n\nb"), Message("assistant", "c"))


async def test_a_stopped_reply_is_marked(store, conversation):
    engine = FakeEngine(["One ", 5.0, "two"])
    async for event in send(conversation, engine, "Count."):
        if isinstance(event, Delta):
            assert await conversation.stop()
    assert (await stored(store, conversation))[-1].state == "stopped"
    assert conversation.turns[-1].content == "One "


async def test_stopping_before_the_engine_has_begun_is_up_to_the_reader(store, conversation):
    engine = FakeEngine(load_seconds=10.0)
    task = asyncio.create_task(drain(send(conversation, engine, "Go.")))
    while not (conversation.answering and len(await stored(store, conversation)) == 2):
        await asyncio.sleep(0.01)
    assert not await conversation.stop()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await stored(store, conversation))[-1].state == "stopped"


async def test_a_reply_that_is_stopped_while_the_store_is_busy_has_its_row(store, conversation):
    engine = FakeEngine("Yes.")
    await conversation.ask("Go.")
    is_free = threading.Event()
    busy = asyncio.create_task(store._on_thread(is_free.wait))
    task = asyncio.create_task(drain(conversation.answer(engine)))
    while not (conversation._saver is not None and conversation._saver.begun):
        await asyncio.sleep(0.01)
    assert not await conversation.stop()
    for _ in range(2):
        await asyncio.sleep(0.01)
        task.cancel()
    asyncio.get_running_loop().call_later(0.05, is_free.set)
    with pytest.raises(asyncio.CancelledError):
        await task
    await busy
    assert [turn.state for turn in await stored(store, conversation)] == ["complete", "stopped"]
    await drain(send(conversation, engine, "And now?"))
    assert len(await stored(store, conversation)) == 4


async def test_a_stream_that_is_left_is_interrupted_and_its_engine_let_go(store, conversation):
    closed = asyncio.Event()

    class Closing(FakeEngine):
        async def stream(self, request, on_progress=None):
            try:
                async for event in super().stream(request, on_progress):
                    yield event
            finally:
                closed.set()

    async with aclosing(send(conversation, Closing(["One ", 5.0, "two"]), "Count.")) as events:
        async for event in events:
            if isinstance(event, Delta):
                break
    assert closed.is_set()
    assert not conversation.answering
    assert (await stored(store, conversation))[-1].state == "interrupted"


@pytest.mark.slow
async def test_the_words_are_in_the_store_while_the_model_pauses(store, conversation):
    engine = FakeEngine(["One ", 0.1, "two ", 0.1, "three", 3.0])
    task = asyncio.create_task(drain(send(conversation, engine, "Count.")))
    await asyncio.sleep(1.0)
    assert (await stored(store, conversation))[-1].content == "One two three"
    assert (await stored(store, conversation))[-1].state == "streaming"
    await conversation.stop()
    await task


async def test_a_store_that_fails_at_the_end_is_told_and_the_text_stays(store, conversation):
    engine = FakeEngine(["One ", "two"])

    async def lose_the_store():
        async for event in send(conversation, engine, "Count."):
            if isinstance(event, Finished):
                await store.close()

    with pytest.raises(StoreError):
        await lose_the_store()
    assert conversation.turns[-1].content == "One two"


def fill(store, *, pages):
    """Let SQLite say that the disk is full (or, with many pages, no more)."""
    store._db.execute(f"PRAGMA max_page_count = {pages}")


async def fill_the_disk_as_a_reply_ends(store, conversation):
    async def reply():
        async for event in send(conversation, FakeEngine(["One ", "two" * 10_000]), "Count."):
            if isinstance(event, Finished):
                fill(store, pages=1)

    with pytest.raises(StoreError, match="disk is full") as told:
        await reply()
    assert "saved with" in str(told.value.hint)


async def test_what_a_full_disk_refused_is_saved_with_the_next_message(store, conversation):
    await fill_the_disk_as_a_reply_ends(store, conversation)
    with pytest.raises(StoreError):
        await conversation.ask("And?")
    fill(store, pages=100_000)
    assert [one.state for one in await stored(store, conversation)] == ["complete", "streaming"]
    await Conversation(store, "guide").ask("In another chat")
    assert await stored(store, conversation) == conversation.turns


async def test_what_a_full_disk_refused_is_saved_when_the_store_is_closed(tmp_path):
    for room in (True, False):
        path = tmp_path / f"{room}.db"
        store = await Store.open(path)
        conversation = Conversation(store, "guide")
        await fill_the_disk_as_a_reply_ends(store, conversation)
        if room:
            fill(store, pages=100_000)
            await store.close()
        else:
            with pytest.raises(StoreError, match="The end of a reply could not be saved"):
                await store.close()
        again = await Store.open(path)
        _, turns = await again.load(conversation.chat.id)
        assert (turns[-1].content == conversation.turns[-1].content) == room
        await again.close()


async def test_text_that_is_no_text_is_stored_as_what_it_can_be(store, conversation):
    await drain(send(conversation, FakeEngine(), "broken \udce4 half"))
    assert (await stored(store, conversation))[0].content == "broken ? half"


async def test_what_another_program_has_said_meanwhile_comes_before_the_question(store):
    mine = Conversation(store, "guide")
    await drain(send(mine, FakeEngine(["One."]), "1?"))
    other = await Conversation.load(store, mine.chat.id)
    await drain(send(other, FakeEngine(["Two."]), "2?"))
    engine = FakeEngine(["Three."])
    await drain(send(mine, engine, "3?"))
    assert [message.content for message in engine.requests[0].messages] == ["1?", "One.", "2?", "Two.", "3?"]
    assert await stored(store, mine) == mine.turns
    assert len(mine.turns) == 6


async def test_no_question_comes_between_another_and_its_reply(store):
    mine = Conversation(store, "guide")
    await drain(send(mine, FakeEngine(["One."]), "1?"))
    other = await Conversation.load(store, mine.chat.id)
    before = list(mine.turns)
    await other.ask("2?")
    async with aclosing(other.answer(FakeEngine(["Two."]))) as events:
        await anext(events)
        with pytest.raises(ChatBusy, match="is generating an answer"):
            await mine.ask("3?")
    assert mine.turns == before


async def test_half_a_reply_of_another_program_is_never_sent(store, tmp_path, running):
    second = running(await Store.open(tmp_path / "chats.db"))
    mine = Conversation(store, "guide")
    await drain(send(mine, FakeEngine(["One."]), "1?"))
    await mine.ask("2?")
    async with aclosing(mine.answer(FakeEngine([Prefill("", 1, 1), "half ", 0.1, "whole"]))) as events:
        await anext(events)
        other = await Conversation.load(second, mine.chat.id)
        assert other.written_elsewhere
        before = list(other.turns)
        question = other.turns[-2].id
        for refused in (lambda: other.ask("3?"), lambda: other.edit(question, "2b?")):
            with pytest.raises(ChatBusy, match="is generating an answer") as told:
                await refused()
            assert told.value.hint
        assert other.turns == before
        await drain(events)
    engine = FakeEngine(["Three."])
    await drain(send(other, engine, "3?"))
    sent = [message.content for message in engine.requests[0].messages]
    assert sent == ["1?", "One.", "2?", "half whole", "3?"]
    assert other.turns[3].state == "complete"


async def test_no_question_is_put_beside_a_reply_that_another_program_writes(store, tmp_path, running):
    second = running(await Store.open(tmp_path / "chats.db"))
    mine = Conversation(store, "guide")
    await mine.ask("1?")
    other = await Conversation.load(second, mine.chat.id)
    async with aclosing(mine.answer(FakeEngine([Prefill("", 1, 1), "One."]))) as events:
        await anext(events)
        for parent in (other.turns[-1].id, (await stored(store, mine))[-1].id):
            question = Turn(
                id=parent[::-1],
                chat_id=mine.chat.id,
                role="user",
                content="2?",
                parent_id=parent,
                created_at=1.0,
            )
            assert not await second.add_turn(question)
        with pytest.raises(ChatBusy):
            await other.ask("2?")
        await drain(events)
    await other.ask("2?")
    assert [turn.content for turn in other.turns] == ["1?", "One.", "2?"]


async def test_a_question_may_follow_what_a_dead_program_was_writing(store, tmp_path, running):
    second = running(await Store.open(tmp_path / "chats.db"))
    mine = Conversation(store, "guide")
    await mine.ask("1?")
    second._owner = Owner(1, 5.0)  # of no process
    other = await Conversation.load(second, mine.chat.id)
    reply = Turn(
        id="r",
        chat_id=mine.chat.id,
        role="assistant",
        content="So ",
        state="streaming",
        parent_id=other.turns[-1].id,
        created_at=1.0,
    )
    await second.add_turn(reply)
    await mine.ask("2?")
    assert [(turn.content, turn.state) for turn in mine.turns] == [
        ("1?", "complete"),
        ("So ", "interrupted"),
        ("2?", "complete"),
    ]


async def test_a_reply_whose_end_is_cut_off_does_not_stream_for_ever(store, conversation):
    has_begun = asyncio.Event()

    async def read():
        async for _ in send(conversation, FakeEngine(["One ", 5.0, "two"]), "Count."):
            has_begun.set()

    task = asyncio.create_task(read())
    await has_begun.wait()
    task.cancel()
    while conversation.answering:
        await asyncio.sleep(0)
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await drain(send(conversation, FakeEngine(["Here."]), "On."))
    assert [turn.state for turn in await stored(store, conversation)] == [
        "complete",
        "interrupted",
        "complete",
        "complete",
    ]


async def test_it_is_pinned_before_and_after_its_first_question(store, conversation):
    await conversation.pin(True)
    await conversation.ask("Hi")
    for pinned in (True, False):
        await conversation.pin(pinned)
        assert conversation.chat.pinned == (await store.find(conversation.chat.id)).pinned == pinned
