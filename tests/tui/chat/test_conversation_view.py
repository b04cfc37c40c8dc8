"""What the app tells the engine of its chats, and shows of what the engine leaves out."""

import asyncio

import pytest

from edgechat.base.errors import PromptTooLong
from edgechat.chat.conversation import Conversation
from edgechat.chat.storage.store import Store
from edgechat.engine.types import Dropped, Prefill
from tests.fakes import FakeEngine, send

pytestmark = pytest.mark.slow


async def chat_ids(path):
    store = await Store.open(path)
    found = [one.id for one in await store.chats()]
    await store.close()
    return found


async def test_turns_that_left_the_context_are_told_when_there_are_more_of_them(scene):
    scripts = [["One."], ["Two."], ["Three."], [Dropped("", 1), Prefill("", 5, 20), "Four."]]
    scripts += [[Dropped("", 1), "Five."], [Dropped("", 3), 0.5, "Six."]]
    async with scene(*scripts, size=(90, 60), notifications=True) as pilot:
        for question in ("1?", "2?", "3?", "4?"):
            await pilot.say(question)
        shown = pilot.text
        assert shown.index("Two.") < shown.index("1 earlier question, with its answer, is no")
        assert len(pilot.app._notifications) == 1
        await pilot.say("5?")
        assert len(pilot.app._notifications) == 0
        await pilot.ask("6?", until=lambda: len(pilot.app._notifications) == 1)
        await pilot.see("Six.")
        await pilot.see("3 earlier questions, with their answers, are no")
        shown = pilot.text
        assert shown.index("Four.") < shown.index("3 earlier questions, with their") < shown.index("▌ 5?")


async def test_what_another_program_has_said_meanwhile_is_shown(scene, path):
    async with scene(["One."], ["Three."], size=(90, 60)) as pilot:
        await pilot.say("1?", see="One.")
        store = await Store.open(path)
        other = await Conversation.load(store, (await chat_ids(path))[0], front="run")
        async for _ in send(other, FakeEngine(["Two."]), "2?"):
            pass
        await store.close()
        await pilot.say("3?", see="Three.")
        shown = pilot.text
        at = [shown.index(said) for said in ("1?", "One.", "2?", "Two.", "3?", "Three.")]
        assert at == sorted(at)


async def test_a_chat_that_is_left_is_put_on_disk_and_so_are_all_at_the_end(scene, path):
    async with scene.loaded() as pilot:
        await pilot.press("ctrl+n")
        await pilot.say("One")
        await pilot.press("ctrl+n", until=lambda: pilot.engine.left != [])
        await pilot.say("Two")
        await pilot.press("ctrl+q")
    _, first = await chat_ids(path)
    assert pilot.engine.left == [first, None]
    assert pilot.engine.closed


async def test_an_engine_that_does_not_come_to_an_end_does_not_hold_up_the_way_out(scene, monkeypatch):
    monkeypatch.setattr("edgechat.chat.session.SAVE_SECONDS", 0.2)

    class Slow(FakeEngine):
        async def persist(self, chat=None):
            await asyncio.Event().wait()

    engine = Slow()
    async with scene(engine, say="One") as pilot:
        await pilot.press("ctrl+n")
        await pilot.say("Two")
        await pilot.press("ctrl+q")
    assert engine.closed


async def test_a_first_question_that_is_too_long_is_forgotten(scene, path):
    async with scene([PromptTooLong("The conversation has 9000 tokens.")], ["Ok."], say="Long?") as pilot:
        assert pilot.engine.forgotten == [pilot.engine.requests[0].chat]
        await pilot.press("enter", see="Ok.")
    assert await chat_ids(path) == [pilot.engine.requests[1].chat] != pilot.engine.forgotten


async def test_no_more_of_the_context_is_used_than_there_is(scene):
    async with scene([Prefill("", 4090, 4090), "a ", "b"], say="One") as pilot:
        pilot.app.screen.status.used = 5000
        await pilot.pause()
        pilot.shows("4,096 of 4,096 tokens (100%)")
