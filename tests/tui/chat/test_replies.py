"""How replies go on, what stands below them, and other models' versions of them."""

import pytest

from edgechat.base.errors import ChatNotFound, EngineCrashed
from edgechat.chat.import_export.importing import parse_chat
from edgechat.chat.storage.store import Store
from edgechat.settings import Settings
from edgechat.tui.chat.commands import act, can, run_command
from tests.fakes import FakeEngine, thought
from tests.tui.chat.views import say as answered
from tests.tui.chat.views import started
from tests.tui.chat.views import until as settled
from tests.tui.libraries import Fake, row


async def stopped(controller):
    controller.ask("Count.", [])
    await settled(lambda: "One" in controller.view.transcript.text)
    await controller.shown.stop()
    await settled(lambda: not controller.shown.is_answering)


# To go on.


async def test_a_stopped_reply_goes_on_by_command(path):
    engine = FakeEngine(["One, ", 5.0], ["two."])
    async with started(path, engine) as (controller, view):
        await stopped(controller)
        reply = controller.shown.turns[-1]
        assert can(controller, reply.id, "continue")
        assert not can(controller, controller.shown.turns[0].id, "continue")
        await run_command(controller, "continue", "")
        await settled(lambda: not controller.shown.is_answering)
        assert view.transcript.text == "Count.\nOne, two."
        assert not can(controller, reply.id, "continue")
        await run_command(controller, "continue", "")
        assert isinstance(view.errors[-1], ChatNotFound)


async def test_a_reply_that_cannot_go_on_stays_and_the_error_is_shown(path):
    engine = FakeEngine(["One, ", 5.0], [EngineCrashed("It died.")])
    async with started(path, engine) as (controller, view):
        await stopped(controller)
        act(controller, controller.shown.turns[-1].id, "continue")
        await settled(lambda: bool(view.transcript.problems) and not controller.shown.is_answering)
        assert view.transcript.text == "Count.\nOne, "
        assert controller.shown.turns[-1].state == "stopped"


@pytest.mark.slow
async def test_a_click_goes_on_where_the_reply_was_stopped(scene):
    async with scene([thought("Hm."), "One, ", 30.0], ["two."], size=(100, 40)) as pilot:
        await pilot.ask("Count.", see="One,", hidden="Continue")
        await pilot.press("escape", see="You stopped the reply here.  Continue")
        await pilot.click_on("Continue", see="One, two.", hidden=("You stopped", "Continue"))
        assert pilot.text.count("Thought for") == 1


@pytest.mark.slow
async def test_a_key_goes_on_with_a_thought(scene):
    async with scene([thought("Hm, "), 30.0], [thought("well."), "Yes."], size=(100, 40)) as pilot:
        await pilot.ask("Is it?", see="Thinking")
        await pilot.press("escape", see="You stopped the reply here.")
        await pilot.press("tab", "g", see="Yes.")
        await pilot.press("ctrl+t", see="│ Hm, well.")
        assert pilot.text.count("Thought for") == 1


# What stands below a reply, and in the status bar.


@pytest.mark.slow
async def test_below_a_reply_stands_what_it_took_and_versions_are_gone_through_by_clicks(scene):
    async with scene(["First ", "try."], ["Second try."], size=(100, 40)) as pilot:
        await pilot.say("Hi", see="scripted · 2 tokens · 25.0 tok/s · 0.1 s")
        assert "2 tokens" in pilot.text.split("\n")[pilot.place_of("First try.")[1] + 1]
        await pilot.press("ctrl+r", see=("Second try.", "‹ 2 of 2 ›"))
        await pilot.click_on("‹ 2", see=("First try.", "‹ 1 of 2 ›"))
        await pilot.click_on("‹ 1")  # there is none before
        pilot.shows("First try.")
        await pilot.click_on("›", see="Second try.")


@pytest.mark.slow
async def test_the_speed_is_not_that_of_the_reply_before(path):
    engine = FakeEngine(["One."], [0.3, "Two."])
    async with started(path, engine) as (controller, _):
        await answered(controller, "1?")
        assert controller.shown.speed == 25.0
        controller.ask("2?", [])
        await settled(lambda: len(engine.requests) == 2)
        assert controller.shown.speed == 0.0
        await settled(lambda: not controller.shown.is_answering)
        assert controller.shown.speed == 25.0


async def test_of_an_imported_conversation_nothing_is_known(path):
    imported = parse_chat('[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]')
    store = await Store.open(path)
    await store.add(imported.chat, imported.turns)
    await store.close()
    async with started(path, FakeEngine()) as (controller, _):
        assert controller.shown.used == 0
        await controller.open(imported.chat.id)
        assert (controller.shown.used, controller.shown.speed) == (None, 0.0)


# Side by side.


async def test_versions_are_compared_and_one_is_chosen(path):
    engine = FakeEngine(["One."], ["Two."], ["Three."])
    async with started(path, engine) as (controller, view):
        await answered(controller, "Hi")
        for _ in range(2):
            assert not can(controller, controller.shown.turns[0].id, "compare")
            controller.retry()
            await settled(lambda: not controller.shown.is_answering)
        reply = controller.shown.turns[-1].id
        assert can(controller, reply, "compare")
        view.chosen_version = 0
        act(controller, reply, "compare")
        await view.settled()
        assert view.compared == ["One.", "Two.", "Three."]
        assert view.transcript.text == "Hi\nOne."


@pytest.mark.slow
@pytest.mark.parametrize("width", [80, 120])
async def test_they_stand_side_by_side_where_there_is_room(scene, width):
    async with scene(["First try."], ["Second try."], size=(width, 30), say="Hi") as pilot:
        await pilot.press("ctrl+r", see="2 of 2")
        await pilot.press("tab", "s", see=("First try.", "Second try."))
        await pilot.press("escape", gone="First try.")
        await pilot.press("s", see="First try.")
        beside = any("First try." in row and "Second try." in row for row in pilot.text.split("\n"))
        assert beside == (width >= 100)
        await pilot.press("1", see="‹ 1 of 2 ›", gone="Second try.")


# The beginning: the last conversation.


async def test_the_last_conversation_is_opened_at_the_start(path):
    async with started(path, FakeEngine(["One."])) as (controller, _):
        chat = await answered(controller, "1?")
    async with started(path, FakeEngine(), last=True) as (controller, view):
        assert controller.shown.id == chat
        assert view.transcript.text == "1?\nOne."


async def test_what_is_typed_meanwhile_is_for_the_last_conversation(path):
    async with started(path, FakeEngine(["One."])) as (controller, view):
        await answered(controller, "1?")
        controller.begin_new()
        view.pane.text = "half"
    async with started(path, FakeEngine(), last=True, typed="typed") as (controller, view):
        assert view.pane.text == "typed"
        controller.begin_new()
        assert view.pane.text == "half"


async def test_without_one_a_new_conversation_begins(path):
    async with started(path, FakeEngine(), last=True) as (controller, view):
        assert controller.shown.id == ""
        assert "no earlier conversation" in view.messages[0]


# Another model.


async def test_another_model_answers_again_and_goes_on_answering(path):
    library = Fake(
        rows=[row("big", path), row("broken", path, damage="cut off"), row("small", path)]
    ).library()
    engine = FakeEngine(["One."], ["Two."])
    settings = Settings(titles=False)
    async with started(path, engine, settings=settings, library=library, model="small") as (controller, view):
        await answered(controller, "Hi")
        reply = controller.shown.turns[-1].id
        act(controller, reply, "regenerate_with")
        await view.settled()
        assert view.offered == ["big", "small"]
        assert len(engine.requests) == 1
        view.choice = "big"
        act(controller, reply, "regenerate_with")
        await settled(lambda: view.transcript.text == "Hi\nTwo." and not controller.shown.is_answering)
        assert (controller.session.model, view.model) == ("big", "big")
        assert controller.shown.conversation is not None
        assert controller.shown.conversation.branches(controller.shown.turns[-1].id) == (1, 2)
        assert "The current model is now big. To go back: /model small" in view.messages


@pytest.mark.slow
async def test_the_model_is_chosen_by_a_part_of_its_name(scene, path):
    library = Fake(rows=[row("big", path), row("small", path)]).library()
    engine = FakeEngine(["One."], ["Two."])
    settings = Settings(titles=False)
    async with scene(engine, size=(100, 40), model="small", settings=settings, library=library) as pilot:
        await pilot.say("Hi")
        await pilot.press("tab", "m", see=("Answer again with", "big"))
        await pilot.press("escape", gone="Answer again with")
        assert len(engine.requests) == 1
        await pilot.press("m", see="Answer again with")
        await pilot.press("b", "i", "enter", see=("Two.", "2 of 2"))


# Titles.


async def test_the_model_titles_a_conversation_in_idle_time(path):
    engine = FakeEngine(["Fill it up."], ["**Title:** Oil for the car.\nMore."])
    async with started(path, engine, model="big") as (controller, view):
        await answered(controller, "my car squeaks what do i do")
        await settled(lambda: controller.title_of(controller.shown.id) == "Oil for the car")
        request = engine.requests[1]
        assert (request.priority, request.sampling.temperature, request.chat) == ("background", 0.0, None)
        assert request.max_tokens is not None
        store = await controller.session.store()
        assert [chat.title for chat in await store.chats()] == ["Oil for the car"]
        await answered(controller, "And then?")
        await view.settled()
        assert len(engine.requests) == 3  # it has its title


@pytest.mark.parametrize(
    ("model", "titles"), [("guide", True), ("big", False)], ids=["by the guide", "switched off"]
)
async def test_no_title_is_made(path, model, titles):
    engine = FakeEngine(["One."])
    async with started(path, engine, model=model, settings=Settings(titles=titles)) as (controller, view):
        chat = await answered(controller, "Hi")
        await view.settled()
        assert len(engine.requests) == 1
        assert controller.title_of(chat) == "Hi"


async def test_a_question_ends_the_making_of_a_title(path):
    engine = FakeEngine(["One."], ["Slow ", 30.0], ["Two."], ["Hi there"])
    async with started(path, engine, model="big") as (controller, _):
        chat = await answered(controller, "Hi")
        await settled(lambda: len(engine.requests) == 2)
        await answered(controller, "2?")
        await settled(lambda: controller.title_of(chat) == "Hi there")
        assert engine._running == set()


@pytest.mark.slow
async def test_a_title_by_the_user_stays(path):
    engine = FakeEngine(["One."], [0.3, "Something else"])
    async with started(path, engine, model="big") as (controller, _):
        chat = await answered(controller, "Hi")
        await settled(lambda: len(engine.requests) == 2)
        await run_command(controller, "rename", "Mine")
        await settled(lambda: not engine._running)
        assert controller.title_of(chat) == "Mine"


# A user who is elsewhere.


@pytest.mark.slow
async def test_the_end_of_a_long_answer_is_announced(path, monkeypatch):
    engine = FakeEngine(["One."], [0.3, "Two."])
    async with started(path, engine) as (controller, view):
        await answered(controller, "Short?")
        monkeypatch.setattr("edgechat.tui.chat.controller._LONG", 0.2)
        await answered(controller, "Long?")
        await view.settled()
        assert view.announced == ["Short?: the answer has ended."]
