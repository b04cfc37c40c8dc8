"""Several conversations: opened, left in mid-answer, deleted and brought back, written to files and read."""

import asyncio
import json

import pytest

from edgechat.base.errors import DoesNotFit, ModelNotFound
from edgechat.chat.storage.store import Store
from tests.fakes import MODEL, FakeEngine
from tests.tui.driving import hold, plan

pytestmark = pytest.mark.slow


async def test_a_stored_conversation_is_opened_and_goes_on(scene):
    async with scene.loaded(["More."], held="Who?") as pilot:
        await pilot.see("To Who?", shown="21 of 4,096")
        await pilot.say("And?", see="More.")
        found = [message.content for message in pilot.engine.requests[0].messages]
        assert found == ["Who?", "To Who?", "And?"]
        assert pilot.engine.requests[0].chat == scene.held[0]


async def test_a_reply_goes_on_behind_another_conversation(scene, path):
    (first,) = await hold(path, "Who?")
    told = asyncio.Event()
    async with scene(["One ", told, "two."], ["Beside it."], notifications=True) as pilot:
        await pilot.ask("Count.", see="One")
        counting = pilot.controller.shown.id
        await pilot.press(*"unsent")
        await pilot.controller.open(first)
        await pilot.see("To Who?", hidden="One")
        assert pilot.prompt.text == ""
        assert not pilot.chat.answering
        assert pilot.controller.answering == {counting}
        await pilot.say("And now?", see="Beside it.")
        told.set()
        await pilot.until(lambda: any("has ended" in one.message for one in pilot.app._notifications))
        await pilot.controller.open(counting)
        await pilot.see("One two.")
        assert pilot.prompt.text == "unsent"
        assert pilot.controller.answering == frozenset()


async def test_going_back_to_a_reply_that_is_still_written(scene, path):
    (first,) = await hold(path, "Who?")
    back = asyncio.Event()
    async with scene(["One ", back, "two ", 30.0, "three"]) as pilot:
        await pilot.ask("Count.", see="One")
        counting = pilot.controller.shown.id
        await pilot.controller.open(first)
        await pilot.controller.open(counting)
        back.set()
        await pilot.see("One two")
        assert pilot.chat.answering
        await pilot.press("escape", see="You stopped the reply here")


async def test_a_deleted_conversation_is_brought_back(scene, path):
    async with scene.loaded(notifications=True, held=("Who?", "What?")) as pilot:
        await pilot.press(*"/delete", "enter", see="Ctrl+Z undoes this", hidden="To Who?")
        store = await pilot.chat.session.store()
        assert [one.chat.id for one in await store.headlines()] == [scene.held[1]]
        assert pilot.engine.forgotten == [scene.held[0]]
        await pilot.press("ctrl+z", see="To Who?")
        assert {one.chat.id for one in await store.headlines()} == set(scene.held)
        await pilot.press(*"/delete", "enter", gone="To Who?")
        await pilot.press("ctrl+q")
    async with scene.loaded(size=(100, 30), notifications=True) as pilot:
        await pilot.press(*"/trash", "enter", see=("Who?", "30 days"), hidden="What?")
        await pilot.press("enter", see=("To Who?", "What?"))
        assert pilot.app.focused is pilot.prompt
    store = await Store.open(path)
    assert {chat.id for chat in await store.chats()} == set(scene.held)
    await store.close()


async def test_what_is_in_the_trash_goes_for_good_after_a_question(scene, path):
    first, _ = await hold(path, "Who?", "What?")
    store = await Store.open(path)
    await store.trash(first)
    await store.close()
    async with scene.loaded(size=(100, 30)) as pilot:
        await pilot.press(*"/trash", "enter", see="Restore")
        for answer, shown in (("n", "30 days"), ("y", "The trash is empty.")):
            await pilot.press("delete", see="Delete “Who?” permanently?")
            await pilot.press(answer, see=shown)
        await pilot.press("escape", see="What?")
    assert b"To Who?" not in path.read_bytes()
    assert b"To What?" in path.read_bytes()


async def test_a_conversation_is_written_to_a_file_and_read_again(scene, tmp_path):
    async with scene(["Hello **you**."], notifications=True, say="Who are you?") as pilot:
        await pilot.press(*"/export", "escape", "enter")
        markdown = tmp_path / "who-are-you.md"
        await pilot.until(markdown.exists)
        assert "Hello **you**." in markdown.read_text()
        pilot.prompt.fill("/export out.json")
        await pilot.press("enter", until=(tmp_path / "out.json").exists)
        assert json.loads((tmp_path / "out.json").read_text())
        pilot.prompt.fill("/export out.json")
        await pilot.press("enter", see="The file out.json already exists")
        first = pilot.controller.shown.id
        pilot.prompt.fill("/import out.json")
        await pilot.press("enter", until=lambda: pilot.controller.shown.id != first)
        await pilot.see("Hello you.")
        pilot.prompt.fill("/import nothing.json")
        await pilot.press("enter", see="nothing.json cannot be read")


async def test_another_model_answers_from_now_on(scene):
    def prepare(model):
        if model == "huge":
            raise DoesNotFit("huge does not fit.", hint="Take a smaller one.")
        if model == "nothing":
            raise ModelNotFound("There is no model nothing.")
        return plan(model)

    engine = FakeEngine(["One."], ["Two."])
    engine.model = MODEL
    async with scene(engine, notifications=True, prepare=prepare, say="1?") as pilot:
        await pilot.command("/model huge", see="huge does not fit.")
        assert pilot.chat.session.model == "guide"
        await pilot.command("/model mistral-7b", see="Switched to mistral-7b")
        assert (engine.n_closed, engine.plan.model_name) == (1, "mistral-7b")
        await pilot.say("2?")
        store = await pilot.chat.session.store()
        assert [chat.model for chat in await store.chats()] == ["mistral-7b"]
        assert await store.preference("model") == "mistral-7b"
