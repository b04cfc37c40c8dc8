"""What the app tells the engine of its chats, and shows of what the engine leaves out."""

import asyncio

import pytest

from edgechat.base.errors import PromptTooLong
from edgechat.chat.conversation import Conversation
from edgechat.chat.storage.store import Store
from edgechat.engine.types import Dropped, Prefill
from edgechat.settings import Settings
from tests.fakes import FakeEngine
from tests.tui.driving import app_with, ask, say, text_of, until

pytestmark = pytest.mark.slow


@pytest.fixture
def path(tmp_path):
    return tmp_path / "chats.db"


async def chat_ids(path):
    store = await Store.open(path)
    found = [one.id for one in await store.chats()]
    await store.close()
    return found


async def test_requests_carry_the_chat_and_the_overflow_of_the_settings(path):
    engine = FakeEngine()
    async with app_with(engine, path).run_test() as pilot:
        await say(pilot, "One")
    async with app_with(engine, path, settings=Settings(overflow="error")).run_test() as pilot:
        await say(pilot, "Two")
    second, first = await chat_ids(path)
    found = [(request.chat, request.overflow, request.priority) for request in engine.requests]
    assert found == [(first, "window", "interactive"), (second, "error", "interactive")]


async def test_turns_that_left_the_context_are_told_when_there_are_more_of_them(path):
    scripts = [["One."], ["Two."], ["Three."], [Dropped("", 1), Prefill("", 5, 20), "Four."]]
    scripts += [[Dropped("", 1), "Five."], [Dropped("", 3), 0.5, "Six."]]
    app = app_with(FakeEngine(*scripts), path)
    async with app.run_test(size=(90, 60), notifications=True) as pilot:
        for question in ("1?", "2?", "3?", "4?"):
            await say(pilot, question)
        shown = text_of(pilot)
        assert shown.index("Two.") < shown.index("1 earlier question, with its answer, is no")
        assert len(app._notifications) == 1
        await say(pilot, "5?")
        assert len(app._notifications) == 0
        await ask(pilot, "6?")
        await until(pilot, lambda: len(app._notifications) == 1)
        await until(pilot, lambda: "Six." in text_of(pilot))
        await until(pilot, lambda: "3 earlier questions, with their answers, are no" in text_of(pilot))
        shown = text_of(pilot)
        assert shown.index("Four.") < shown.index("3 earlier questions, with their") < shown.index("▌ 5?")


async def test_what_another_program_has_said_meanwhile_is_shown(path):
    async with app_with(FakeEngine(["One."], ["Three."]), path).run_test(size=(90, 60)) as pilot:
        await say(pilot, "1?")
        await until(pilot, lambda: "One." in text_of(pilot))
        store = await Store.open(path)
        other = await Conversation.load(store, (await chat_ids(path))[0], front="run")
        async for _ in other.send(FakeEngine(["Two."]), "2?"):
            pass
        await store.close()
        await say(pilot, "3?")
        await until(pilot, lambda: "Three." in text_of(pilot))
        shown = text_of(pilot)
        at = [shown.index(said) for said in ("1?", "One.", "2?", "Two.", "3?", "Three.")]
        assert at == sorted(at)


async def test_a_chat_that_is_left_is_put_on_disk_and_so_are_all_at_the_end(path):
    engine = FakeEngine()
    async with app_with(engine, path).run_test() as pilot:
        await until(pilot, lambda: "it is." in text_of(pilot))
        await pilot.press("ctrl+n")
        await say(pilot, "One")
        await pilot.press("ctrl+n")
        await until(pilot, lambda: engine.left != [])
        await say(pilot, "Two")
        await pilot.press("ctrl+q")
    _, first = await chat_ids(path)
    assert engine.left == [first, None]
    assert engine.closed


async def test_an_engine_that_does_not_come_to_an_end_does_not_hold_up_the_way_out(path, monkeypatch):
    monkeypatch.setattr("edgechat.chat.session.SAVE_SECONDS", 0.2)

    class Slow(FakeEngine):
        async def persist(self, chat=None):
            await asyncio.Event().wait()

    engine = Slow()
    async with app_with(engine, path).run_test() as pilot:
        await say(pilot, "One")
        await pilot.press("ctrl+n")
        await say(pilot, "Two")
        await pilot.press("ctrl+q")
    assert engine.closed


async def test_a_first_question_that_is_too_long_is_forgotten(path):
    engine = FakeEngine([PromptTooLong("The conversation has 9000 tokens.")], ["Ok."])
    async with app_with(engine, path).run_test() as pilot:
        await say(pilot, "Long?")
        assert engine.forgotten == [engine.requests[0].chat]
        await pilot.press("enter")
        await until(pilot, lambda: "Ok." in text_of(pilot))
    assert await chat_ids(path) == [engine.requests[1].chat] != engine.forgotten


async def test_no_more_of_the_context_is_used_than_there_is(path):
    async with app_with(FakeEngine([Prefill("", 4090, 4090), "a ", "b"]), path).run_test() as pilot:
        await say(pilot, "One")
        pilot.app.screen.status.used = 5000
        await pilot.pause()
        assert "4,096 of 4,096 tokens (100%)" in text_of(pilot)
