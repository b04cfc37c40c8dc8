"""What is written and not sent is never lost: not by another conversation, a failure, or the app's end."""

import asyncio
import sqlite3

import pytest

from edgechat.base.errors import ModelNotFound, PromptTooLong
from edgechat.chat.records import Attachment
from edgechat.chat.storage.store import Store
from edgechat.tui.chat.open_conversation import UnsentPrompt, load_unsent, save_unsent
from edgechat.tui.chat.stored_conversations import delete
from tests.fakes import FakeEngine
from tests.tui.chat.test_stored_conversations import held
from tests.tui.driving import app_with, ask, plan, say, text_of, until

pytestmark = pytest.mark.slow


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path / "chats.db"


async def started(pilot):
    await until(pilot, lambda: "it is." in text_of(pilot) and "Loading" not in text_of(pilot))
    return pilot.app.chat


async def test_a_new_conversation_keeps_what_was_written_for_it(path):
    (first,) = await held(path, "Who?")
    async with app_with(FakeEngine(), path).run_test() as pilot:
        screen = await started(pilot)
        await pilot.press(*"half", "ctrl+n")
        assert screen.prompt.text == "half"
        await screen.controller.open(first)
        assert screen.prompt.text == ""
        await pilot.press("ctrl+n")
        await pilot.pause()
        assert screen.prompt.text == "half"


async def test_a_rewording_waits_while_another_conversation_is_shown(path):
    first, second = await held(path, "Who?", "What?")
    engine = FakeEngine(["Again."])
    async with app_with(engine, path).run_test() as pilot:
        screen = await started(pilot)
        await screen.controller.open(first)
        await pilot.press(*"mine", "tab", "up", "e", *" Really?")
        await screen.controller.open(second)
        assert screen.prompt.text == ""
        await screen.controller.open(first)
        assert screen.prompt.text == "Who? Really?"
        assert "editing" in str(screen.prompt.border_title)
        await pilot.press("enter")
        await until(pilot, lambda: "Again." in text_of(pilot) and "2 of 2" in text_of(pilot))
        assert screen.prompt.text == "mine"


async def test_a_rewording_outlives_the_app(path):
    (first,) = await held(path, "Who?")
    async with app_with(FakeEngine(), path).run_test() as pilot:
        screen = await started(pilot)
        await screen.controller.open(first)
        await pilot.press(*"mine", "tab", "up", "e", *" Really?")
        await pilot.press("ctrl+q")
    async with app_with(FakeEngine(), path).run_test() as pilot:
        screen = await started(pilot)
        await screen.controller.open(first)
        assert screen.prompt.text == "Who? Really?"
        await pilot.press("escape")
        assert screen.prompt.text == "mine"


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


async def test_what_is_too_long_behind_the_screen_comes_back(path):
    (first,) = await held(path, "Who?")
    too_long = PromptTooLong("It has 9000 tokens.")
    engine = FakeEngine([0.6, too_long], ["Fine.", 0.6, too_long])
    async with app_with(engine, path).run_test(notifications=True) as pilot:
        screen = await started(pilot)
        await ask(pilot, "A first question that is too long")
        await until(pilot, lambda: screen.answering)
        await screen.controller.open(first)
        await until(pilot, lambda: not screen.controller.answering)
        await pilot.press("ctrl+n")
        await until(pilot, lambda: "too long" in screen.prompt.text)
        assert screen.controller._background == []


async def test_a_question_is_kept_until_it_is_in_the_store(path):
    async with app_with(FakeEngine(), path).run_test() as pilot:
        screen = await started(pilot)
        await say(pilot, "One")
        store = await screen.session.store()
        gate = asyncio.Event()

        async def slow(*_, **__):
            await gate.wait()
            return True

        store.add_turn = slow
        await ask(pilot, "Never lost")
        await pilot.press("ctrl+q")
    store = await Store.open(path)
    (chat,) = await store.chats()
    assert "Never lost" in await store.unsent(chat.id)
    await store.close()


async def test_of_two_quick_enters_the_second_question_waits(path):
    engine = FakeEngine(["One ", 0.3, "two."], ["Three."])
    async with app_with(engine, path).run_test() as pilot:
        screen = await started(pilot)
        box = screen.prompt
        box.post_message(box.Submitted(box, "First"))
        box.post_message(box.Submitted(box, "Second"))
        await until(pilot, lambda: "One" in text_of(pilot))
        assert len(engine.requests) == 1
        await until(pilot, lambda: "Three." in text_of(pilot))
        assert [request.messages[-1].content for request in engine.requests] == ["First", "Second"]


async def test_a_file_is_read_for_the_conversation_that_it_was_named_in(path, tmp_path):
    (tmp_path / "notes.txt").write_text("milk")
    (first,) = await held(path, "Who?")
    engine = FakeEngine(["Ok."])
    async with app_with(engine, path).run_test() as pilot:
        screen = await started(pilot)
        await pilot.press(*"Read @notes.txt now", "enter")
        await screen.controller.open(first)
        await until(pilot, lambda: engine.requests != [])
        assert engine.requests[0].chat != first
        assert "milk" in engine.requests[0].messages[0].content


async def test_a_retry_that_cannot_begin_leaves_the_reply(path):
    def prepare(model):
        if gone:
            raise ModelNotFound("There is no guide.")
        return plan(model)

    gone = False
    (first,) = await held(path, "Who?")
    async with app_with(FakeEngine(), path, prepare=prepare).run_test() as pilot:
        screen = await started(pilot)
        await screen.controller.open(first)
        gone, screen.session._engine = True, None
        await pilot.press("ctrl+r")
        await until(pilot, lambda: "There is no guide." in text_of(pilot))
        await until(pilot, lambda: "To Who?" in text_of(pilot))
        await until(pilot, lambda: "Looking" not in text_of(pilot) and "Waiting" not in text_of(pilot))
        assert [turn.content for turn in screen.controller.shown.conversation.turns] == ["Who?", "To Who?"]


async def test_the_palette_borrows_the_prompt_and_gives_it_back(path):
    async with app_with(FakeEngine(), path).run_test(size=(100, 30), notifications=True) as pilot:
        screen = await started(pilot)
        await say(pilot, "Hi")
        await pilot.press(*"half a thought", "ctrl+p", *"rename this")
        await until(pilot, lambda: "/rename TITLE" in text_of(pilot))
        await pilot.press("enter")
        await until(pilot, lambda: screen.prompt.text == "/rename ")
        await pilot.press(*"Better", "enter")
        await until(pilot, lambda: "“Better”" in text_of(pilot))
        assert screen.prompt.text == "half a thought"


async def test_history_does_not_become_what_was_written(path):
    first, second = await held(path, "Who?", "What?")
    async with app_with(FakeEngine(), path).run_test() as pilot:
        screen = await started(pilot)
        await screen.controller.open(first)
        await pilot.press(*"mine", "up")
        await until(pilot, lambda: screen.prompt.text == "What?")
        await screen.controller.open(second)
        await screen.controller.open(first)
        assert screen.prompt.text == "mine"


async def test_control_z_undoes_typing_before_deletions(path):
    await held(path, "Who?")
    async with app_with(FakeEngine(), path).run_test(notifications=True) as pilot:
        screen = await started(pilot)
        (one,) = await (await screen.session.store()).chats()
        await delete(screen.controller, one.id)
        screen.prompt.insert("typed")
        await pilot.press("ctrl+z")
        await pilot.pause()
        assert screen.prompt.text == ""
        assert "To Who?" not in text_of(pilot)
        await pilot.press("ctrl+z")
        await until(pilot, lambda: "To Who?" in text_of(pilot))


async def test_a_model_is_changed_in_an_old_conversation(path):
    (first,) = await held(path, "Who?")
    async with app_with(FakeEngine(), path).run_test(notifications=True) as pilot:
        screen = await started(pilot)
        await screen.controller.open(first)
        screen.prompt.fill("/model other")
        await pilot.press("escape", "enter")
        await until(pilot, lambda: "Switched to other" in text_of(pilot))
        screen.controller.add_note("A note.")
        await pilot.pause()
        assert "To Who?" in text_of(pilot)


@pytest.mark.parametrize("command", ["/export ~nobody/x", "/import ~nobody/x", "/export " + 300 * "x"])
async def test_odd_names_of_files_are_told(path, command):
    (first,) = await held(path, "Who?")
    app = app_with(FakeEngine(), path)
    async with app.run_test(notifications=True) as pilot:
        screen = await started(pilot)
        await screen.controller.open(first)
        screen.prompt.fill(command)
        await pilot.press("escape", "enter")
        await until(pilot, lambda: bool(app._notifications))
        assert app.is_running


async def test_branches_are_not_switched_while_the_store_is_locked(path, monkeypatch):
    monkeypatch.setattr("edgechat.chat.storage.store.BUSY_MS", 300)
    app = app_with(FakeEngine(["One."], ["Two."]), path)
    async with app.run_test(notifications=True) as pilot:
        await started(pilot)
        await say(pilot, "Hi")
        await pilot.press("ctrl+r")
        await until(pilot, lambda: "2 of 2" in text_of(pilot))
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        await pilot.press("tab", "left")
        await until(pilot, lambda: "Another program has locked" in text_of(pilot))
        other.execute("ROLLBACK")
        other.close()
        assert "Two." in text_of(pilot)


async def test_a_hit_on_another_branch_is_shown(path):
    async with app_with(FakeEngine(["The zebra."], ["The horse."]), path).run_test(size=(120, 30)) as pilot:
        await started(pilot)
        await say(pilot, "Which?")
        await pilot.press("ctrl+r")
        await until(pilot, lambda: "The horse." in text_of(pilot))
        await pilot.press("ctrl+f", *"zebra")
        await until(pilot, lambda: "1 found" in text_of(pilot))
        await pilot.press("enter")
        await until(pilot, lambda: "1 of 2" in text_of(pilot))


async def test_pin_pins_and_unpins(path):
    async with app_with(FakeEngine(), path).run_test(notifications=True) as pilot:
        screen = await started(pilot)
        await say(pilot, "Hi")
        store = await screen.session.store()
        for pinned in (True, False):
            screen.prompt.fill("/pin")
            await pilot.press("escape", "enter")
            await until(pilot, lambda: screen.prompt.text == "")
            for _ in range(50):
                if [one.pinned for one in await store.chats()] == [pinned]:
                    break
                await asyncio.sleep(0.02)
            assert [one.pinned for one in await store.chats()] == [pinned]


async def test_where_nothing_can_be_written_one_chats_without_a_store(path, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    engine = FakeEngine(["Hello."])
    app = app_with(engine, tmp_path / "file" / "chats.db")
    async with app.run_test(notifications=True) as pilot:
        await until(pilot, lambda: "lost when edgechat closes" in " ".join(text_of(pilot).split()))
        await say(pilot, "Hi")
        assert "Hello." in text_of(pilot)
        assert engine.lasting is False
        app.chat.run_command("model", "mistral-7b")
        await until(pilot, lambda: "Switched to mistral-7b" in text_of(pilot))
        assert engine.lasting is False
    async with app_with(engine, path).run_test() as pilot:
        await say(pilot, "Hi")
        assert engine.lasting is True


async def test_a_full_disk_is_told_while_the_reply_comes(path):
    app = app_with(FakeEngine(["Hello ", 0.3, "you " * 10_000, 1.0, "there ", 3.0, "."]), path)
    async with app.run_test(notifications=True) as pilot:
        screen = await started(pilot)
        await ask(pilot, "Hi?")
        await until(pilot, lambda: "Hello" in text_of(pilot))
        store = await screen.session.store()
        store._db.execute("PRAGMA max_page_count = 1")
        await until(pilot, lambda: any("is not being saved" in one.message for one in app._notifications))
        assert screen.answering
        store._db.execute("PRAGMA max_page_count = 100000")
        await pilot.press("escape")
        await until(pilot, lambda: not screen.answering)
