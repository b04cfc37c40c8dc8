from __future__ import annotations

import asyncio
import sqlite3
from typing import ClassVar

import msgspec
import pytest
from textual import events
from textual.css.query import NoMatches
from textual.widget import MountError

from edgechat.base.errors import EngineCrashed, LoadFailed, ModelNotFound, PromptTooLong, StoreError
from edgechat.chat.records import Attachment
from edgechat.chat.storage.store import Store
from edgechat.engine.types import Finished, Prefill, SpeculationStats
from edgechat.settings import Settings
from edgechat.tui.app import EdgechatApp
from tests.fakes import MODEL, FakeEngine, thought, words
from tests.tui.driving import app_with, ask, plan, say, stored_turns, text_of, transcript, until

pytestmark = pytest.mark.slow


@pytest.fixture
def path(tmp_path):
    return tmp_path / "chats.db"


@pytest.mark.quick
async def test_a_question_is_answered_and_stored(path):
    app = app_with(FakeEngine(["Hello **there**", ", you."]), path)
    async with app.run_test() as pilot:
        await say(pilot, "Hi, who are you?")
        shown = text_of(pilot)
        assert "▌ Hi, who are you?" in shown
        assert "Hello there, you." in shown
        assert "25.0 tok/s" in shown
        assert "22 of 4,096 tokens (1%)" in shown
    assert [turn.content for turn in await stored_turns(path)] == [
        "Hi, who are you?",
        "Hello **there**, you.",
    ]


async def test_the_speed_that_the_engine_measured_stays(path):
    class Lingering(FakeEngine):
        async def stream(self, request, on_progress=None):
            async for event in super().stream(request, on_progress):
                yield event
            await asyncio.sleep(0.3)  # as a disk that takes its time: the last words are painted meanwhile

    app = app_with(Lingering(["Hello", 0.7, " you."]), path)
    async with app.run_test() as pilot:
        await say(pilot, "Hi.")
        assert "25.0 tok/s" in text_of(pilot)


async def test_what_is_typed_before_there_is_a_prompt_reaches_it(path):
    class Early(EdgechatApp):
        def on_load(self):
            for key in ("H", "i", "ctrl+j"):  # the line's end of a terminal that is still the shell's
                self.post_message(events.Key(key, key if len(key) == 1 else "\n"))
            self.post_message(events.Paste("and"))
            self.post_message(events.Key("y", "y"))

    app = app_with(FakeEngine(["Ho."]), path, kind=Early)
    async with app.run_test() as pilot:
        await until(pilot, lambda: "Ho." in text_of(pilot))
        assert "▌ Hi" in text_of(pilot)
        assert app.screen.prompt.text == "andy"


async def test_the_reply_is_seen_while_it_streams(path):
    app = app_with(FakeEngine(["One ", 0.3, "two ", 30.0, "three"]), path)
    async with app.run_test() as pilot:
        await ask(pilot, "Count.")
        await until(pilot, lambda: "One two" in text_of(pilot))
        assert "Writing" in text_of(pilot)


async def test_escape_stops_and_the_reply_is_marked(path):
    app = app_with(FakeEngine(["One ", 30.0, "two"]), path)
    async with app.run_test() as pilot:
        await ask(pilot, "Count.")
        await until(pilot, lambda: "One" in text_of(pilot))
        assert "Stop" in text_of(pilot)
        await pilot.press("escape")
        await until(pilot, lambda: "You stopped the reply here" in text_of(pilot))
        await until(pilot, lambda: "Stop\n" not in text_of(pilot) and "New chat" in text_of(pilot))
    assert (await stored_turns(path))[-1].state == "stopped"


async def test_escape_before_the_model_is_loaded_gives_the_reply_up(path):
    app = app_with(FakeEngine(load_seconds=30.0), path)
    async with app.run_test() as pilot:
        await until(pilot, lambda: "Loading" in text_of(pilot))
        await ask(pilot, "Count.")
        await until(pilot, lambda: app.screen.controller.shown.conversation is not None)
        await until(pilot, lambda: app.screen.controller.shown.conversation.answering)
        await pilot.press("escape")
        await until(pilot, lambda: "You stopped the reply here" in text_of(pilot))
    assert (await stored_turns(path))[-1].state == "stopped"


async def test_an_engine_that_does_not_stop_is_left_at_the_second_escape(path):
    class Deaf(FakeEngine):
        async def cancel(self, request_id):
            pass

    app = app_with(Deaf(["One ", 30.0, "two"]), path)
    async with app.run_test() as pilot:
        await ask(pilot, "Count.")
        await until(pilot, lambda: "One" in text_of(pilot))
        await pilot.press("escape")
        await until(pilot, lambda: "Stopping" in text_of(pilot))
        await pilot.press("escape")
        await until(pilot, lambda: "You stopped the reply here" in text_of(pilot))


async def test_a_crash_is_told_the_text_stays_and_the_next_question_works(path):
    crash = EngineCrashed("The engine process ended unexpectedly.", hint="Send the message again.")
    app = app_with(FakeEngine(["So ", "far", crash], ["Here ", "again."]), path)
    async with app.run_test() as pilot:
        await say(pilot, "Go.")
        shown = text_of(pilot)
        assert "So far" in shown
        assert "The engine process ended unexpectedly." in shown
        assert "Send the message again." in shown
        assert "interrupted" in shown
        assert "Traceback" not in shown
        await say(pilot, "On.")
        assert "Here again." in text_of(pilot)
        assert "So far" in text_of(pilot)
    assert [turn.state for turn in await stored_turns(path)] == [
        "complete",
        "interrupted",
        "complete",
        "complete",
    ]


async def test_a_failed_question_is_asked_once_more_by_key(path):
    app = app_with(FakeEngine([EngineCrashed("It died.")], ["Now."]), path)
    async with app.run_test() as pilot:
        await say(pilot, "Go.")
        await until(pilot, lambda: "^r Retry" in text_of(pilot))
        await pilot.press("ctrl+r")
        await until(pilot, lambda: "Now." in text_of(pilot))
        await until(pilot, lambda: "It died." not in text_of(pilot))


async def test_loading_and_reading_the_prompt_are_seen(path):
    app = app_with(FakeEngine([Prefill("", 512, 2048), 0.4, "Done."], load_seconds=0.8), path)
    async with app.run_test() as pilot:
        await until(pilot, lambda: "Loading the model" in text_of(pilot))
        await until(pilot, lambda: "50%" in text_of(pilot))
        await ask(pilot, "A long one.")
        await until(pilot, lambda: "Reading 512 of 2,048 tokens" in text_of(pilot))
        await until(pilot, lambda: "Done." in text_of(pilot))
        await until(pilot, lambda: "Reading" not in text_of(pilot))


async def test_a_model_that_cannot_be_loaded_is_told_once_and_tried_again(path):
    engine = FakeEngine(["Hello."])
    engine.load_error = LoadFailed("The file is truncated.", hint="Download it again.")
    app = app_with(engine, path)
    async with app.run_test() as pilot:
        await until(pilot, lambda: "The file is truncated." in text_of(pilot))
        assert "Download it again." in text_of(pilot)
        engine.load_error = None
        await say(pilot, "Hi")
        assert "Hello." in text_of(pilot)


async def test_a_store_that_cannot_be_read_keeps_the_question_in_the_box(path):
    path.write_text("this is no database" * 100)
    app = app_with(FakeEngine(), path)
    async with app.run_test() as pilot:
        await until(pilot, lambda: "damaged" in text_of(pilot))
        await say(pilot, "Hi")
        assert app.screen.prompt.text == "Hi"
    assert path.read_text().startswith("this is no database")


async def test_a_question_that_is_too_long_comes_back_to_be_shortened(path):
    too_long = PromptTooLong(
        "The conversation has 9000 tokens, and the context is 4096 tokens long.", hint="Shorten."
    )
    app = app_with(FakeEngine(["One."], [too_long], ["Two."]), path)
    async with app.run_test() as pilot:
        await say(pilot, "First?")
        await say(pilot, "Long?")
        shown = text_of(pilot)
        assert "9000 tokens" in shown
        assert "▌ Long?" not in shown
        assert app.screen.prompt.text == "Long?"
        await pilot.press(*["backspace"] * 2, "enter")
        await until(pilot, lambda: "Two." in text_of(pilot))
    assert [turn.content for turn in await stored_turns(path)] == ["First?", "One.", "Lon", "Two."]


@pytest.mark.parametrize("passes", [True, False])
async def test_escape_while_the_store_is_locked_gives_the_question_back(path, passes, monkeypatch):
    monkeypatch.setattr("edgechat.chat.storage.store.BUSY_MS", 1500)
    app = app_with(FakeEngine(), path)
    async with app.run_test() as pilot:
        await until(pilot, lambda: "it is." in text_of(pilot))
        await until(pilot, lambda: "Loading" not in text_of(pilot))
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        await ask(pilot, "Hi?")
        assert "Stop" in text_of(pilot)
        await pilot.press("escape")
        await until(pilot, lambda: "Stopping" in text_of(pilot))
        if passes:
            other.execute("ROLLBACK")
        await until(pilot, lambda: app.screen.prompt.text == "Hi?")
        await until(pilot, lambda: "Stop" not in text_of(pilot))
        assert ("Another program has locked" in text_of(pilot)) != passes
        assert "▌ Hi?" not in text_of(pilot)
        other.close()
        store = await Store.open(path)
        assert await store.chats() == []
        await store.close()
        await pilot.press("enter")
        await until(pilot, lambda: "Hello there." in text_of(pilot))


async def test_words_that_cannot_be_saved_are_told_at_the_end(path):
    app = app_with(FakeEngine(["Hello ", 0.5, "you" * 10_000]), path)
    async with app.run_test() as pilot:
        await ask(pilot, "Hi?")
        await until(pilot, lambda: "Hello" in text_of(pilot))
        store = await app.screen.session.store()
        store._db.execute("PRAGMA max_page_count = 1")
        await until(pilot, lambda: "The disk is full" in text_of(pilot))
        await pilot.press("ctrl+q")
    assert isinstance(app.fault, StoreError)
    assert app.fault.message.startswith("The end of a reply could not be saved. The disk is full")


async def test_thinking_is_folded_and_unfolds(path):
    app = app_with(FakeEngine([thought("Let me "), thought("see."), "Yes."]), path)
    async with app.run_test() as pilot:
        await say(pilot, "Is it?")
        assert "▸ Thought for" in text_of(pilot)
        assert "2 tokens" in text_of(pilot)
        assert "Let me see." not in text_of(pilot)
        await pilot.press("ctrl+t")
        await pilot.pause()
        assert "│ Let me see." in text_of(pilot)
        await pilot.press("ctrl+t")
        await pilot.pause()
        assert "Let me see." not in text_of(pilot)


async def test_a_new_chat_is_empty_and_stored_only_with_its_first_words(path):
    app = app_with(FakeEngine(["Hello."]), path)
    async with app.run_test() as pilot:
        await say(pilot, "First")
        await pilot.press("ctrl+n")
        await pilot.pause()
        assert "First" not in text_of(pilot)
        store = await Store.open(path)
        assert len(await store.chats()) == 1
        await say(pilot, "Second")
        assert [one.title for one in await store.chats()] == ["Second", "First"]
        await store.close()


async def test_several_lines_are_typed_pasted_and_sent_as_one(path):
    app = app_with(FakeEngine(["Ok."]), path)
    async with app.run_test() as pilot:
        prompt = app.screen.prompt
        await pilot.press(*"one", "ctrl+j", *"two", "shift+enter")
        prompt.post_message(events.Paste("three\r\nfour\rfive\x1b[31m"))
        await pilot.pause()
        assert prompt.text == "one\ntwo\nthree\nfour\nfive[31m"
        assert prompt.size.height == 5
        prompt.insert("\n" * 20)
        await pilot.pause()
        assert prompt.size.height == 8
        await pilot.press("enter")
        await until(pilot, lambda: "Ok." in text_of(pilot))
        assert prompt.text == ""
    assert (await stored_turns(path))[0].content.startswith("one\ntwo\nthree\nfour\nfive")


async def test_escape_sequences_of_a_model_are_inert(path):
    evil = "\x1b]52;c;aGFja2Vk\x07\x1b[2J\x9b31mred\x9d0;title\x07\x00 `\x1b[31m` \x85"
    app = app_with(FakeEngine([thought(evil), evil, "```\n" + evil + "\n```"]), path, model="\x1b[2Jevil")
    async with app.run_test() as pilot:
        await say(pilot, "Paint. " + evil)
        await pilot.press("ctrl+t")
        await pilot.pause()
        shown = text_of(pilot)
        assert "]52;c;aGFja2Vk" in shown
        assert not any((ord(one) < 32 and one != "\n") or 127 <= ord(one) < 160 for one in shown)


async def test_the_last_model_is_taken_again_unless_its_file_is_gone(path):
    async with app_with(FakeEngine(), path, model="mine.gguf").run_test() as pilot:
        await until(pilot, lambda: "mine.gguf it is." in text_of(pilot))
    async with app_with(FakeEngine(), path).run_test() as pilot:
        await say(pilot, "Asked before anybody knows which model it will be")
        await until(pilot, lambda: "mine.gguf" in text_of(pilot))
    store = await Store.open(path)
    assert [one.model for one in await store.chats()] == ["mine.gguf"]
    await store.close()

    def prepare(model):
        if model == "mine.gguf":
            raise ModelNotFound("There is no mine.gguf.")
        return plan(model)

    async with app_with(FakeEngine(), path, prepare=prepare).run_test() as pilot:
        await until(pilot, lambda: "mine.gguf was not found; guide is used" in text_of(pilot))
    app = app_with(FakeEngine(), path, prepare=prepare, settings=Settings(model="mine.gguf"))
    async with app.run_test() as pilot:
        await until(pilot, lambda: "mine.gguf was not found; guide is used" in text_of(pilot))
        await say(pilot, "Who are you?")
        assert text_of(pilot).count("was not found") == 1
        assert app.session.model == "guide"
    async with app_with(FakeEngine(), path, prepare=prepare, model="mine.gguf").run_test() as pilot:
        await until(pilot, lambda: "There is no mine.gguf." in text_of(pilot))
        assert "is used instead" not in text_of(pilot)


async def test_quitting_in_mid_answer_keeps_the_words(path):
    engine = FakeEngine(["One ", 30.0, "two"])
    app = app_with(engine, path)
    async with app.run_test() as pilot:
        await ask(pilot, "Count.")
        await until(pilot, lambda: "One" in text_of(pilot))
        await pilot.press("ctrl+q")
        await pilot.pause()
        assert not app.is_running or app._exit
    reply = (await stored_turns(path))[-1]
    assert (reply.content, reply.state) == ("One ", "interrupted")
    assert engine.closed


async def test_control_c_stops_the_answer_first(path):
    app = app_with(FakeEngine(["One ", 30.0, "two"]), path)
    async with app.run_test() as pilot:
        await ask(pilot, "Count.")
        await until(pilot, lambda: "One" in text_of(pilot))
        await pilot.press("ctrl+c")
        await until(pilot, lambda: "You stopped the reply here" in text_of(pilot))
        assert app.is_running
        await until(pilot, lambda: not app.chat.answering)
        assert not app._exit


async def test_control_c_clears_the_prompt_then_asks_then_quits(path):
    app = app_with(FakeEngine(), path)
    async with app.run_test(notifications=True) as pilot:
        await until(pilot, lambda: "it is." in text_of(pilot))
        app.chat.pane.attach(Attachment("notes.txt", "milk"))
        await pilot.press(*"half a thought", "ctrl+c")
        await until(pilot, lambda: "Ctrl+Z brings it back" in text_of(pilot))
        assert (app.chat.prompt.text, app.chat.pane.attachments) == ("", [])
        await pilot.press("ctrl+z")
        await until(pilot, lambda: app.chat.pane.attachments != [])
        assert app.chat.prompt.text == "half a thought"
        await pilot.press("ctrl+c", "ctrl+c")
        await until(pilot, lambda: "Press Ctrl+C again to quit" in text_of(pilot))
        assert not app._exit
        await pilot.press("ctrl+c")
        await until(pilot, lambda: app._exit)


async def test_an_earlier_question_that_is_looked_at_is_not_what_control_c_keeps(path):
    app = app_with(FakeEngine(), path)
    async with app.run_test() as pilot:
        await say(pilot, "Earlier")
        prompt = app.chat.prompt
        await pilot.press(*"mine", "up")
        await until(pilot, lambda: prompt.text == "Earlier")
        await pilot.press("ctrl+c")
        await until(pilot, lambda: prompt.text == "")
        await pilot.press("ctrl+z")
        await until(pilot, lambda: prompt.text == "mine")


async def test_control_z_brings_back_the_cleared_prompt_before_a_deleted_conversation(path):
    app = app_with(FakeEngine(), path)
    async with app.run_test(notifications=True) as pilot:
        await say(pilot, "Earlier")
        app.chat.run_command("delete")
        await until(pilot, lambda: app.chat.controller.deleted != [])
        await pilot.press(*"draft", "ctrl+c", "ctrl+z")
        await until(pilot, lambda: app.chat.prompt.text == "draft")
        assert "▌ Earlier" not in text_of(pilot)
        await pilot.press("ctrl+u", "ctrl+z")
        await until(pilot, lambda: "▌ Earlier" in text_of(pilot))


async def test_control_c_quits_only_if_pressed_again_soon(path, monkeypatch):
    app = app_with(FakeEngine(), path)
    async with app.run_test(notifications=True) as pilot:
        await pilot.press("ctrl+c")
        await until(pilot, lambda: "again to quit" in text_of(pilot))
        monkeypatch.setattr("edgechat.tui.app._QUIT_AGAIN", 0.0)
        await pilot.press("ctrl+c")
        await pilot.pause()
        assert not app._exit


async def test_control_c_copies_what_is_selected(path):
    app = app_with(FakeEngine(["Copy me."]), path)
    async with app.run_test() as pilot:
        await say(pilot, "Go.")
        app.screen.text_select_all()
        await pilot.pause()
        await pilot.press("ctrl+c")
        await pilot.pause()
        assert app.is_running
        assert "Copy me." in app.clipboard
        assert "▌" not in app.clipboard


@pytest.mark.parametrize("width", [30, 60, 100, 160])
async def test_nothing_is_lost_at_any_width(path, width):
    reply = (
        "A list:\n\n- "
        + "word " * 30
        + "\n\n| a | b |\n|---|---|\n| "
        + "x" * 50
        + " | end |\n\n```py\n"
        + "y" * 200
    )
    app = app_with(FakeEngine([reply]), path)
    async with app.run_test(size=(width, 60)) as pilot:
        await say(pilot, "Go.")
        shown = text_of(pilot)
        assert shown.count("word") == 30
        assert shown.count("x") >= 50
        assert shown.count("y") >= 200
        assert max(map(len, shown.split("\n"))) <= width
        assert "Send" in shown


@pytest.mark.parametrize("height", [5, 7, 8, 10, 15, 16])
async def test_the_transcript_and_the_prompt_have_room_at_any_height(path, height):
    app = app_with(FakeEngine(["Hello you."]), path)
    async with app.run_test(size=(20, height)) as pilot:
        await say(pilot, "Go.")
        app.screen.prompt.insert("line\n" * 20 + "last")
        await pilot.pause()
        assert transcript(pilot).size.height >= 1
        assert "last" in text_of(pilot)
        assert "Send" in text_of(pilot)
        app.screen.prompt.clear()
        await pilot.pause()
        assert "Hello you." in text_of(pilot)


async def test_no_color_is_heeded(path, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    app = app_with(FakeEngine(["# Red\n\n`code`"]), path)
    async with app.run_test() as pilot:
        await say(pilot, "Go.")
        assert app.no_color
        for strip in app.screen._compositor.render_strips():
            for segment in strip:
                assert segment.style is None or segment.style.color is None or segment.style.color.is_default


async def test_a_fast_model_is_painted_a_few_times_a_second(path, monkeypatch):
    app = app_with(FakeEngine(words("word " * 400, 0.001)), path)
    paints = 0
    async with app.run_test() as pilot:
        pane = transcript(pilot)
        append = pane.append

        def counted(*args):
            nonlocal paints
            paints += 1
            append(*args)

        monkeypatch.setattr(pane, "append", counted)
        began = asyncio.get_running_loop().time()
        await say(pilot, "Go.")
        assert 1 < paints <= 1 + 16 * (asyncio.get_running_loop().time() - began)
        assert text_of(pilot).count("word") > 100


async def test_what_drafts_did_stands_behind_the_speed(path):
    class Drafted(FakeEngine):
        speedups: ClassVar = [1.38, 1.04]

        async def stream(self, request, on_progress=None):
            async for event in super().stream(request, on_progress):
                if isinstance(event, Finished):
                    told = SpeculationStats(
                        drafted_tokens=9, accepted_tokens=7, mean_length=3.0, speedup=self.speedups.pop(0)
                    )
                    yield msgspec.structs.replace(event, speculation=told)
                else:
                    yield event

    app = app_with(Drafted(["Hello."]), path)
    async with app.run_test(size=(100, 30)) as pilot:
        await say(pilot, "Hi")
        assert "25.0 tok/s, 1.4x by drafts" in text_of(pilot)
        await say(pilot, "Hi again")
        assert "25.0 tok/s" in text_of(pilot)
        assert "by drafts" not in text_of(pilot)


@pytest.mark.parametrize("draft", [None, "auto", "small"])
async def test_a_draft_that_was_asked_for_and_is_not_used_is_told_of(path, draft):
    engine = FakeEngine()
    engine.model = msgspec.structs.replace(
        MODEL, no_draft="small cannot be used as a draft model: it is odd."
    )
    app = app_with(engine, path, draft=draft)
    async with app.run_test(notifications=True) as pilot:
        await say(pilot, "Hi")
        assert ("small cannot be used as a draft model" in text_of(pilot)) == (draft == "small")


@pytest.mark.parametrize("error", [NoMatches("gone"), MountError("gone")])
async def test_what_comes_too_late_for_a_screen_is_no_fault_while_leaving(path, error):
    app = app_with(FakeEngine(), path)
    async with app.run_test() as pilot:
        await until(pilot, lambda: "it is." in text_of(pilot))
        app.exit()
        app._handle_exception(error)
    assert app.fault is None


async def test_help_that_is_closed_as_it_opens_is_closed(path):
    app = app_with(FakeEngine(), path)
    async with app.run_test() as pilot:
        await until(pilot, lambda: "it is." in text_of(pilot))
        for _ in range(5):
            app.action_help()
            app.action_help()
            await until(pilot, lambda: app.screen is app.chat)
    assert app.fault is None


async def test_the_list_of_chats_opens_without_a_column_for_it(path):
    app = app_with(FakeEngine(["Ok."]), path)
    async with app.run_test(size=(1, 3)) as pilot:
        for question in ("One", "Two", "Three"):
            await say(pilot, question)
            await pilot.press("ctrl+n")
            await pilot.pause()
        for _ in range(3):
            await pilot.press("ctrl+b", "down", "down", "pagedown", "home")
            await pilot.pause()
    assert app.fault is None


async def test_settings_that_are_left_as_they_open_are_left(path):
    app = app_with(FakeEngine(), path)
    async with app.run_test() as pilot:
        await until(pilot, lambda: "it is." in text_of(pilot))
        for pauses in range(8):
            app.action_settings()
            for _ in range(pauses):
                await asyncio.sleep(0)
            app.screen.dismiss()
            await until(pilot, lambda: app.screen is app.chat)
    assert app.fault is None


async def test_a_screen_that_was_left_drops_its_callbacks(path):
    app = app_with(FakeEngine(), path)
    async with app.run_test() as pilot:
        await until(pilot, lambda: "it is." in text_of(pilot))
        app.action_settings()
        await until(pilot, lambda: app.screen is not app.chat)
        screen, called = app.screen, []
        screen.call_after_refresh(called.append, "open")
        await until(pilot, lambda: called == ["open"])
        screen.call_after_refresh(called.append, "left")
        screen.dismiss()
        await until(pilot, lambda: not screen.is_attached)
        await pilot.pause()
        assert called == ["open"]


async def test_screens_do_not_pile_up(path):
    app = app_with(FakeEngine(), path)
    async with app.run_test() as pilot:
        await until(pilot, lambda: "it is." in text_of(pilot))
        for _ in range(6):
            await pilot.press("f2", "f1", "f2", "f1", "f1", "f2")
            await pilot.pause()
        assert len(app.screen_stack) <= 3


@pytest.mark.parametrize("key", ["f1", "f2", "ctrl+o", "ctrl+p"])
async def test_two_sizes_on_their_way_to_a_screen_come_to_rest(path, key):
    app = app_with(FakeEngine(), path)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "it is." in text_of(pilot))
        await pilot.press(key)
        await pilot.pause()
        app.action_help()
        await pilot.pause()
        sizes = []
        for screen in app.screen_stack:
            screen.screen_layout_refresh_signal.subscribe(app, sizes.append, immediate=True)
        for size in ((64, 10), (80, 24)) * 3:
            for screen in app.screen_stack:
                screen.post_message(events.Resize.from_dimensions(size, None))
                screen.post_message(events.Print(""))  # or they would become one
        await asyncio.sleep(0.5)
        assert len(sizes) < 500
    assert app.fault is None


@pytest.mark.parametrize("width", [60, 100, 160, 200])
async def test_what_is_read_and_what_is_written_share_their_edges(path, width):
    app = app_with(FakeEngine(["Hello you."]), path)
    async with app.run_test(size=(width, 30)) as pilot:
        await say(pilot, "Go.")
        columns = {
            (widget.region.x, widget.region.right)
            for name in ("UserSheet", "PieceSheet", "PromptBox", "StatusBar", "KeyBar")
            for widget in app.screen.query(name)
        }
        assert len(columns) == 1, columns
        question, answer = (transcript(pilot).pieces[at].sheet for at in (0, -1))
        assert question is not None
        assert answer is not None
        assert answer.content_region.x == app.chat.prompt.content_region.x == question.region.x + 2


@pytest.mark.parametrize("width", [60, 100, 160])
async def test_the_list_of_chats_takes_about_a_quarter(path, width):
    app = app_with(FakeEngine(), path)
    async with app.run_test(size=(width, 30)) as pilot:
        await until(pilot, lambda: "it is." in text_of(pilot))
        await pilot.press("ctrl+b")
        await until(pilot, lambda: bool(app.screen.query("Sidebar")))
        await pilot.pause()
        taken = app.screen.query_one("Sidebar").outer_size.width
        assert taken == 60 if width < 90 else 0.24 * width < taken <= 0.3 * width


async def test_the_text_stays_at_the_top_while_completions_come_and_go(path):
    app = app_with(FakeEngine(), path)
    async with app.run_test(size=(100, 36)) as pilot:
        await until(pilot, lambda: "it is." in text_of(pilot))
        for key in ("/", "p", "backspace", "backspace"):
            await pilot.press(key)
            await pilot.pause()
            assert transcript(pilot).scroll_y == 0
