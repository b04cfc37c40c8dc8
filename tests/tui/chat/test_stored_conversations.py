"""Several conversations: opened, left in mid-answer, deleted and brought back, written to files and read."""

import json

import pytest

from edgechat.base.errors import DoesNotFit, ModelNotFound
from edgechat.chat.conversation import Conversation
from edgechat.chat.storage.store import Store
from tests.fakes import MODEL, FakeEngine
from tests.tui.driving import app_with, ask, plan, say, text_of, until

pytestmark = pytest.mark.slow


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path / "chats.db"


async def held(path, *questions):
    """Hold a conversation for each question; return their ids."""
    store = await Store.open(path)
    ids = []
    for question in questions:
        conversation = Conversation(store, "guide")
        async for _ in conversation.send(FakeEngine([f"To {question}"]), question):
            pass
        ids.append(conversation.chat.id)
    await store.close()
    return ids


async def test_a_stored_conversation_is_opened_and_goes_on(path):
    (first,) = await held(path, "Who?")
    engine = FakeEngine(["More."])
    async with app_with(engine, path).run_test() as pilot:
        screen = pilot.app.screen
        await until(pilot, lambda: "it is." in text_of(pilot))
        await screen.controller.open(first)
        await until(pilot, lambda: "To Who?" in text_of(pilot))
        assert "21 of 4,096" in text_of(pilot)
        await say(pilot, "And?")
        await until(pilot, lambda: "More." in text_of(pilot))
        assert [message.content for message in engine.requests[0].messages] == ["Who?", "To Who?", "And?"]
        assert engine.requests[0].chat == first


async def test_a_reply_goes_on_behind_another_conversation(path):
    (first,) = await held(path, "Who?")
    engine = FakeEngine(["One ", 4.0, "two."], ["Beside it."])
    app = app_with(engine, path)
    async with app.run_test(notifications=True) as pilot:
        screen = pilot.app.screen
        await ask(pilot, "Count.")
        await until(pilot, lambda: "One" in text_of(pilot))
        counting = screen.controller.shown.id
        await pilot.press(*"unsent")
        await screen.controller.open(first)
        await until(pilot, lambda: "To Who?" in text_of(pilot))
        assert "One" not in text_of(pilot)
        assert screen.prompt.text == ""
        assert not screen.answering
        assert screen.controller.answering == {counting}
        await say(pilot, "And now?")
        await until(pilot, lambda: "Beside it." in text_of(pilot))
        await until(pilot, lambda: any("has ended" in one.message for one in app._notifications))
        await screen.controller.open(counting)
        await until(pilot, lambda: "One two." in text_of(pilot))
        assert screen.prompt.text == "unsent"
        assert screen.controller.answering == frozenset()


async def test_going_back_to_a_reply_that_is_still_written(path):
    (first,) = await held(path, "Who?")
    engine = FakeEngine(["One ", 1.0, "two ", 30.0, "three"])
    async with app_with(engine, path).run_test() as pilot:
        screen = pilot.app.screen
        await ask(pilot, "Count.")
        await until(pilot, lambda: "One" in text_of(pilot))
        counting = screen.controller.shown.id
        await screen.controller.open(first)
        await screen.controller.open(counting)
        await until(pilot, lambda: "One two" in text_of(pilot))
        assert screen.answering
        await pilot.press("escape")
        await until(pilot, lambda: "You stopped the reply here" in text_of(pilot))


async def test_quitting_saves_replies_behind_as_well(path):
    engine = FakeEngine(["One ", 30.0, "two"])
    async with app_with(engine, path).run_test() as pilot:
        await ask(pilot, "Count.")
        await until(pilot, lambda: "One" in text_of(pilot))
        await pilot.press("ctrl+n")
        await ask(pilot, "Count too.")
        await until(pilot, lambda: "One" in text_of(pilot))
        await pilot.press("ctrl+q")
    store = await Store.open(path)
    for chat in await store.chats():
        _, turns = await store.load(chat.id)
        assert [(turn.content, turn.state) for turn in turns][1:] == [("One ", "interrupted")]
    await store.close()


async def test_a_deleted_conversation_is_brought_back(path):
    first, second = await held(path, "Who?", "What?")
    engine = FakeEngine()
    async with app_with(engine, path).run_test(notifications=True) as pilot:
        screen = pilot.app.screen
        await until(pilot, lambda: "it is." in text_of(pilot))
        await screen.controller.open(first)
        await pilot.press(*"/delete", "enter")
        await until(pilot, lambda: "Ctrl+Z undoes this" in text_of(pilot))
        assert "To Who?" not in text_of(pilot)
        store = await screen.session.store()
        assert [one.chat.id for one in await store.headlines()] == [second]
        assert engine.forgotten == [first]
        await pilot.press("ctrl+z")
        await until(pilot, lambda: "To Who?" in text_of(pilot))
        assert {one.chat.id for one in await store.headlines()} == {first, second}
        await pilot.press(*"/delete", "enter")
        await until(pilot, lambda: "To Who?" not in text_of(pilot))
        await pilot.press("ctrl+q")
    async with app_with(FakeEngine(), path).run_test(size=(100, 30), notifications=True) as pilot:
        await until(pilot, lambda: "it is." in text_of(pilot))
        await pilot.press(*"/trash", "enter")
        await until(pilot, lambda: "Who?" in text_of(pilot) and "30 days" in text_of(pilot))
        assert "What?" not in text_of(pilot)
        await pilot.press("enter")
        await until(pilot, lambda: "To Who?" in text_of(pilot) and "What?" in text_of(pilot))
        assert pilot.app.focused is pilot.app.screen.prompt
    store = await Store.open(path)
    assert {chat.id for chat in await store.chats()} == {first, second}
    await store.close()


async def test_what_is_in_the_trash_goes_for_good_after_a_question(path):
    first, _ = await held(path, "Who?", "What?")
    store = await Store.open(path)
    await store.trash(first)
    await store.close()
    async with app_with(FakeEngine(), path).run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: "it is." in text_of(pilot))
        await pilot.press(*"/trash", "enter")
        await until(pilot, lambda: "Restore" in text_of(pilot))
        for answer, shown in (("n", "30 days"), ("y", "The trash is empty.")):
            await pilot.press("delete")
            await until(pilot, lambda: "Delete “Who?” permanently?" in text_of(pilot))
            await pilot.press(answer)
            await until(pilot, lambda shown=shown: shown in text_of(pilot))
        await pilot.press("escape")
        await until(pilot, lambda: "What?" in text_of(pilot))
    assert b"To Who?" not in path.read_bytes()
    assert b"To What?" in path.read_bytes()


async def test_a_conversation_in_mid_answer_is_not_deleted(path):
    async with app_with(FakeEngine(["One ", 30.0]), path).run_test(notifications=True) as pilot:
        await ask(pilot, "Count.")
        await until(pilot, lambda: "One" in text_of(pilot))
        await pilot.press(*"/delete", "enter")
        await until(pilot, lambda: "An answer is being generated there" in text_of(pilot))


async def test_a_conversation_is_written_to_a_file_and_read_again(path, tmp_path):
    async with app_with(FakeEngine(["Hello **you**."]), path).run_test(notifications=True) as pilot:
        screen = pilot.app.screen
        await say(pilot, "Who are you?")
        await pilot.press(*"/export", "escape", "enter")
        markdown = tmp_path / "who-are-you.md"
        await until(pilot, markdown.exists)
        assert "Hello **you**." in markdown.read_text()
        screen.prompt.fill("/export out.json")
        await pilot.press("enter")
        await until(pilot, (tmp_path / "out.json").exists)
        assert json.loads((tmp_path / "out.json").read_text())
        screen.prompt.fill("/export out.json")
        await pilot.press("enter")
        await until(pilot, lambda: "The file out.json already exists" in text_of(pilot))
        first = screen.controller.shown.id
        screen.prompt.fill("/import out.json")
        await pilot.press("enter")
        await until(pilot, lambda: screen.controller.shown.id != first)
        await until(pilot, lambda: "Hello you." in text_of(pilot))
        screen.prompt.fill("/import nothing.json")
        await pilot.press("enter")
        await until(pilot, lambda: "nothing.json cannot be read" in text_of(pilot))


async def test_another_model_answers_from_now_on(path):
    def prepare(model):
        if model == "huge":
            raise DoesNotFit("huge does not fit.", hint="Take a smaller one.")
        if model == "nothing":
            raise ModelNotFound("There is no model nothing.")
        return plan(model)

    engine = FakeEngine(["One."], ["Two."])
    engine.model = MODEL
    async with app_with(engine, path, prepare=prepare).run_test(notifications=True) as pilot:
        screen = pilot.app.screen
        await say(pilot, "1?")
        screen.prompt.fill("/model huge")
        await pilot.press("escape", "enter")
        await until(pilot, lambda: "huge does not fit." in text_of(pilot))
        assert screen.session.model == "guide"
        screen.prompt.fill("/model mistral-7b")
        await pilot.press("escape", "enter")
        await until(pilot, lambda: "Switched to mistral-7b" in text_of(pilot))
        assert (engine.n_closed, engine.plan.model_name) == (1, "mistral-7b")
        await say(pilot, "2?")
        store = await screen.session.store()
        assert [chat.model for chat in await store.chats()] == ["mistral-7b"]
        assert await store.preference("model") == "mistral-7b"


async def test_a_model_that_is_given_up_while_it_loads_is_no_crash(path):
    engine = FakeEngine(["Here."], load_seconds=1.0)
    app = app_with(engine, path)
    async with app.run_test(notifications=True) as pilot:
        screen = pilot.app.screen
        for model in ("mistral-7b", "tiny"):  # the first model's load is given up, then the second's
            await until(pilot, lambda: "Loading the model" in text_of(pilot))
            screen.run_in_background(screen.controller.switch_model(model))
            await until(pilot, lambda model=model: engine.plan.model_name == model)
        await until(pilot, lambda: "Switched to tiny" in text_of(pilot))
        told = [one.message for one in app._notifications]
        assert not any("mistral" in words or "closed" in words for words in told), told
        assert [type(piece).__name__ for piece in screen.controller.shown.transcript.pieces] == [
            "WelcomePiece"
        ]
        await say(pilot, "Who?")
        await until(pilot, lambda: "Here." in text_of(pilot))
        store = await screen.session.store()
        assert await store.preference("model") == "tiny"


async def test_what_is_typed_is_kept_with_its_conversation(path):
    first, second = await held(path, "Who?", "What?")
    async with app_with(FakeEngine(), path).run_test() as pilot:
        screen = pilot.app.screen
        await until(pilot, lambda: "it is." in text_of(pilot))
        await screen.controller.open(first)
        await pilot.press(*"to the first")
        await screen.controller.open(second)
        assert screen.prompt.text == ""
        await screen.controller.open(first)
        assert screen.prompt.text == "to the first"


async def test_a_conversation_that_is_gone_is_told(path):
    async with app_with(FakeEngine(), path).run_test(notifications=True) as pilot:
        screen = pilot.app.screen
        await until(pilot, lambda: "it is." in text_of(pilot))
        screen.run_in_background(screen.controller.open("0" * 32))
        await until(pilot, lambda: "There is no conversation" in text_of(pilot))
