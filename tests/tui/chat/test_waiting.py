"""Questions that wait while an answer is generated, without a terminal and in the app."""

import asyncio

import pytest

from edgechat.base.errors import EngineCrashed
from edgechat.chat.storage.store import Store
from tests.fakes import FakeEngine
from tests.tui.chat.views import say, started, until


def asked(engine):
    return [request.messages[-1].content for request in engine.requests]


@pytest.mark.slow
async def test_they_are_sent_in_order_as_the_answers_end(path):
    asked_all = asyncio.Event()
    engine = FakeEngine(["One ", asked_all, "done."], ["Two."], ["Three."])
    async with started(path, engine) as (controller, view):
        controller.ask("1?", [])
        controller.ask("2?", [])
        controller.ask("3?", [])
        assert view.pane.waiting == ["2?", "3?"]
        asked_all.set()
        await until(lambda: len(engine.requests) == 3 and not controller.shown.is_answering)
        assert asked(engine) == ["1?", "2?", "3?"]
        assert view.pane.waiting == []
        assert [turn.content for turn in controller.shown.turns] == [
            *("1?", "One done.", "2?", "Two.", "3?", "Three.")
        ]


async def test_the_last_one_is_taken_back_first(path):
    engine = FakeEngine(["One ", 5.0], ["Two."])
    async with started(path, engine) as (controller, view):
        for text in ("1?", "2?", "3?"):
            controller.ask(text, [])
        controller.take_back()
        assert (view.pane.text, view.pane.waiting) == ("3?", ["2?"])
        controller.take_back()
        assert (view.pane.text, view.pane.waiting) == ("2?\n3?", [])
        controller.take_back()
        assert view.pane.text == "2?\n3?"


@pytest.mark.parametrize("ends", ["stopped", "failed"])
async def test_an_answer_that_does_not_end_by_itself_gives_them_back(path, ends):
    last = 5.0 if ends == "stopped" else EngineCrashed("It died.")
    engine = FakeEngine(["One ", 0.2, last])
    async with started(path, engine) as (controller, view):
        for text in ("1?", "2?", "3?"):
            controller.ask(text, [])
        view.pane.text = "half"
        await until(lambda: "One" in view.transcript.text)
        if ends == "stopped":
            await controller.shown.stop()
        await until(lambda: not controller.shown.is_answering and view.pane.waiting == [])
        assert view.pane.text == "2?\n3?\nhalf"
        assert asked(engine) == ["1?"]


@pytest.mark.slow
async def test_they_are_sent_behind_another_conversation(path):
    left = asyncio.Event()
    engine = FakeEngine(["Zero."], ["One ", left, "done."], ["Two."])
    async with started(path, engine) as (controller, view):
        first = await say(controller, "0?")
        controller.begin_new()
        controller.ask("1?", [])
        controller.ask("2?", [])
        await until(lambda: controller.shown.is_stored)
        second = controller.shown.id
        await controller.open(first)
        assert view.pane.waiting == []
        left.set()
        await until(lambda: not controller.answering)
        await view.settled()
        await controller.open(second)
        assert [turn.content for turn in controller.shown.turns] == ["1?", "One done.", "2?", "Two."]


async def test_they_outlive_a_program_that_is_killed(path):
    engine = FakeEngine(["One ", 5.0])
    async with started(path, engine) as (controller, view):
        controller.ask("1?", [])
        await until(lambda: controller.shown.is_stored)
        controller.ask("2?", [])
        controller.ask("3?", [])
        await until(lambda: "One" in view.transcript.text)
        other = await Store.open(path)  # what is on the disk now
        async with asyncio.timeout(20):
            while '"2?\\n3?"' not in await other.unsent(controller.shown.id):
                await asyncio.sleep(0.01)
        await other.close()


async def test_they_outlive_the_app(path):
    async with started(path, FakeEngine(["One ", 5.0])) as (controller, _):
        controller.ask("1?", [])
        controller.ask("2?", [])
        await until(lambda: controller.shown.is_stored)
        chat = controller.shown.id
    async with started(path, FakeEngine()) as (controller, view):
        await controller.open(chat)
        assert view.pane.text == "2?"


@pytest.mark.slow
async def test_one_is_seen_and_taken_back_with_the_up_key(scene):
    async with scene(["One ", 30.0, "two"]) as pilot:
        await pilot.ask("First", until=lambda: "One" in pilot.text)
        await pilot.ask("Second", until=lambda: "1. waiting: Second  ↑ takes it back" in pilot.text)
        assert pilot.prompt.text == ""
        await pilot.press("up", until=lambda: pilot.prompt.text == "Second")
        pilot.shows(hidden="waiting:")
        await pilot.press("enter", until=lambda: "waiting: Second" in pilot.text)
        await pilot.click_on("waiting: Second", until=lambda: pilot.prompt.text == "Second")
