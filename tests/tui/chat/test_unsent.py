"""What is written and not sent is never lost: not by another conversation, a failure, or the app's end."""

import asyncio

import pytest

from edgechat.chat.records import Attachment
from edgechat.chat.storage.store import Store
from edgechat.tui.chat.commands import delete
from edgechat.tui.chat.unsent import UnsentPrompt, load_unsent, save_unsent
from tests.fakes import FakeEngine
from tests.tui.driving import Scenes, hold

pytestmark = pytest.mark.slow


async def test_a_new_conversation_keeps_what_was_written_for_it(scene, path):
    (first,) = await hold(path, "Who?")
    async with scene.loaded() as pilot:
        await pilot.press(*"half", "ctrl+n")
        assert pilot.prompt.text == "half"
        await pilot.controller.open(first)
        assert pilot.prompt.text == ""
        await pilot.press("ctrl+n")
        await pilot.pause()
        assert pilot.prompt.text == "half"


async def test_a_rewording_waits_while_another_conversation_is_shown(scene):
    async with scene.loaded(["Again."], held=("Who?", "What?")) as pilot:
        await pilot.press(*"mine", "tab", "up", "e", *" Really?")
        await pilot.controller.open(scene.held[1])
        assert pilot.prompt.text == ""
        await pilot.controller.open(scene.held[0])
        assert pilot.prompt.text == "Who? Really?"
        assert "editing" in str(pilot.prompt.border_title)
        await pilot.press("enter", see=("Again.", "2 of 2"))
        assert pilot.prompt.text == "mine"


async def test_a_rewording_outlives_the_app(scene):
    async with scene.loaded(held="Who?") as pilot:
        await pilot.press(*"mine", "tab", "up", "e", *" Really?", "ctrl+q")
    async with scene.loaded() as pilot:
        await pilot.controller.open(scene.held[0])
        assert pilot.prompt.text == "Who? Really?"
        await pilot.press("escape")
        assert pilot.prompt.text == "mine"


async def test_of_a_large_prompt_only_what_is_large_is_not_stored():
    store = await Store.in_memory()
    small, large = Attachment("a.txt", "milk"), Attachment("b.txt", "x" * 2**20)
    aside = UnsentPrompt("mine", [large, small])
    await save_unsent(store, None, UnsentPrompt("Really?", [large, small], edits="t1", aside=aside))
    aside = UnsentPrompt("mine", [small])
    assert await load_unsent(store, None) == UnsentPrompt("Really?", [small], edits="t1", aside=aside)
    await save_unsent(store, None, UnsentPrompt("x" * 2**21))
    assert await load_unsent(store, None) == UnsentPrompt("x" * 2**20)
    await store.close()


async def test_of_two_quick_enters_the_second_question_waits(scene):
    both = asyncio.Event()
    async with scene.loaded(["One ", both, "two."], ["Three."]) as pilot:
        pilot.prompt.post_message(pilot.prompt.Submitted("First"))
        pilot.prompt.post_message(pilot.prompt.Submitted("Second"))
        await pilot.see("One")
        assert len(pilot.engine.requests) == 1
        both.set()
        await pilot.see("Three.")
        assert [request.messages[-1].content for request in pilot.engine.requests] == ["First", "Second"]


async def test_a_file_is_read_for_the_conversation_that_it_was_named_in(scene, path, tmp_path):
    (tmp_path / "notes.txt").write_text("milk")
    (first,) = await hold(path, "Who?")
    async with scene.loaded(["Ok."]) as pilot:
        await pilot.press(*"Read @notes.txt now", "enter")
        await pilot.controller.open(first)
        await pilot.until(lambda: pilot.engine.requests != [])
        assert pilot.engine.requests[0].chat != first
        assert "milk" in pilot.engine.requests[0].messages[0].content


async def test_the_palette_borrows_the_prompt_and_gives_it_back(scene):
    async with scene.loaded(size=(100, 30), notifications=True, say="Hi") as pilot:
        await pilot.press(*"half a thought", "ctrl+p", *"rename this", see="/rename TITLE")
        await pilot.press("enter", until=lambda: pilot.prompt.text == "/rename ")
        await pilot.press(*"Better", "enter", see="“Better”")
        assert pilot.prompt.text == "half a thought"


async def test_history_does_not_become_what_was_written(scene):
    async with scene.loaded(held=("Who?", "What?")) as pilot:
        await pilot.press(*"mine", "up", until=lambda: pilot.prompt.text == "What?")
        await pilot.controller.open(scene.held[1])
        await pilot.controller.open(scene.held[0])
        assert pilot.prompt.text == "mine"


async def test_control_z_undoes_typing_before_deletions(scene, path):
    await hold(path, "Who?")
    async with scene.loaded(notifications=True) as pilot:
        (one,) = await (await pilot.chat.session.store()).chats()
        await delete(pilot.controller, one.id)
        pilot.prompt.insert("typed")
        await pilot.press("ctrl+z")
        await pilot.pause()
        assert pilot.prompt.text == ""
        pilot.shows(hidden="To Who?")
        await pilot.press("ctrl+z", see="To Who?")


async def test_a_model_is_changed_in_an_old_conversation(scene):
    async with scene.loaded(notifications=True, held="Who?") as pilot:
        await pilot.command("/model other", see="Switched to other")
        pilot.controller.add_note("A note.")
        await pilot.pause()
        pilot.shows("To Who?")


async def test_a_hit_on_another_branch_is_shown(scene):
    async with scene.loaded(["The zebra."], ["The horse."], size=(120, 30), say="Which?") as pilot:
        await pilot.press("ctrl+r", see="The horse.")
        await pilot.press("ctrl+f", *"zebra", see="1 found")
        await pilot.press("enter", see="1 of 2")


async def test_where_nothing_can_be_written_one_chats_without_a_store(scene, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    engine = FakeEngine(["Hello."])
    async with Scenes(tmp_path / "file" / "chats.db")(engine, notifications=True) as pilot:
        await pilot.until(lambda: "lost when edgechat closes" in " ".join(pilot.text.split()))
        await pilot.say("Hi", shown="Hello.")
        assert engine.lasting is False
        pilot.chat.run_command("model", "mistral-7b")
        await pilot.see("Switched to mistral-7b")
        assert engine.lasting is False
    async with scene(engine, say="Hi") as pilot:
        assert engine.lasting is True
