from __future__ import annotations

import asyncio
import sqlite3
from typing import ClassVar

import msgspec
import pytest
from textual import events, work
from textual.css.query import NoMatches
from textual.screen import Screen
from textual.widget import MountError

from edgechat.base.errors import EngineCrashed, LoadFailed, ModelNotFound, PromptTooLong, StoreError
from edgechat.chat.records import Attachment
from edgechat.chat.storage.store import Store
from edgechat.engine.types import Finished, Prefill, SpeculationStats
from edgechat.settings import Settings
from edgechat.tui.app import EdgechatApp
from tests.fakes import MODEL, FakeEngine, thought, words
from tests.tui.driving import app_with, driven, plan

pytestmark = pytest.mark.slow


@pytest.mark.quick
async def test_a_question_is_answered_and_stored(scene):
    async with scene(["Hello **there**", ", you."], say="Hi, who are you?") as pilot:
        pilot.shows("▌ Hi, who are you?", "Hello there, you.", "25.0 tok/s", "22 of 4,096 tokens (1%)")
    assert [turn.content for turn in await scene.stored()] == ["Hi, who are you?", "Hello **there**, you."]


async def test_the_speed_that_the_engine_measured_stays(scene):
    class Lingering(FakeEngine):
        async def stream(self, request, on_progress=None):
            async for event in super().stream(request, on_progress):
                yield event
            await asyncio.sleep(0.3)  # as a disk that takes its time: the last words are painted meanwhile

    async with scene(Lingering(["Hello", 0.7, " you."])) as pilot:
        await pilot.say("Hi.", shown="25.0 tok/s")


async def test_what_is_typed_before_there_is_a_prompt_reaches_it(scene):
    class Early(EdgechatApp):
        def on_load(self):
            for key in ("H", "i", "ctrl+j"):  # the line's end of a terminal that is still the shell's
                self.post_message(events.Key(key, key if len(key) == 1 else "\n"))
            self.post_message(events.Paste("and"))
            self.post_message(events.Key("y", "y"))

    async with scene(["Ho."], kind=Early) as pilot:
        await pilot.see("Ho.", shown="▌ Hi")
        assert pilot.prompt.text == "andy"


@pytest.mark.parametrize("key", ["escape", "ctrl+c"])
async def test_a_reply_is_seen_while_it_streams_stopped_by_a_key_and_marked(scene, key):
    async with scene(["One ", 0.3, "two ", 30.0, "three"]) as pilot:
        await pilot.ask("Count.", see="One two", shown=("Writing", "Stop"))
        await pilot.press(key, see="You stopped the reply here")
        assert pilot.app.is_running
        await pilot.see("New chat", gone="Stop\n")
        await pilot.until(lambda: not pilot.chat.answering)
        assert not pilot.app._exit
    assert (await scene.stored())[-1].state == "stopped"


async def test_escape_before_the_model_is_loaded_gives_the_reply_up(scene):
    async with scene(FakeEngine(load_seconds=30.0)) as pilot:
        await pilot.see("Loading")
        await pilot.ask("Count.", until=lambda: pilot.controller.shown.conversation is not None)
        await pilot.until(lambda: pilot.controller.shown.conversation.answering)
        await pilot.press("escape", see="You stopped the reply here")
    assert (await scene.stored())[-1].state == "stopped"


async def test_an_engine_that_does_not_stop_is_left_at_the_second_escape(scene):
    class Deaf(FakeEngine):
        async def cancel(self, request_id):
            pass

    async with scene(Deaf(["One ", 30.0, "two"])) as pilot:
        await pilot.ask("Count.", see="One")
        await pilot.press("escape", see="Stopping")
        await pilot.press("escape", see="You stopped the reply here")


async def test_a_crash_is_told_the_text_stays_and_the_next_question_works(scene):
    crash = EngineCrashed("The engine process ended unexpectedly.", hint="Send the message again.")
    async with scene(["So ", "far", crash], ["Here ", "again."], say="Go.") as pilot:
        pilot.shows(
            "So far",
            "The engine process ended unexpectedly.",
            "Send the message again.",
            "interrupted",
            hidden="Traceback",
        )
        await pilot.say("On.", shown=("Here again.", "So far"))
    found = [turn.state for turn in await scene.stored()]
    assert found == ["complete", "interrupted", "complete", "complete"]


async def test_a_failed_question_is_asked_once_more_by_key(scene):
    async with scene([EngineCrashed("It died.")], ["Now."]) as pilot:
        await pilot.say("Go.", see="^r Retry")
        await pilot.press("ctrl+r", see="Now.")
        await pilot.gone("It died.")


async def test_loading_and_reading_the_prompt_are_seen(scene):
    async with scene(FakeEngine([Prefill("", 512, 2048), 1.2, "Done."], load_seconds=1.6)) as pilot:
        await pilot.see("Loading the model")
        await pilot.see("50%")
        await pilot.ask("A long one.", see="Reading 512 of 2,048 tokens")
        await pilot.see("Done.")
        await pilot.gone("Reading")


async def test_a_model_that_cannot_be_loaded_is_told_once_and_tried_again(scene):
    engine = FakeEngine(["Hello."])
    engine.load_error = LoadFailed("The file is truncated.", hint="Download it again.")
    async with scene(engine) as pilot:
        await pilot.see("The file is truncated.", shown="Download it again.")
        engine.load_error = None
        await pilot.say("Hi", shown="Hello.")


async def test_a_store_that_cannot_be_read_keeps_the_question_in_the_box(scene, path):
    path.write_text("this is no database" * 100)
    async with scene() as pilot:
        await pilot.see("damaged")
        await pilot.say("Hi")
        assert pilot.prompt.text == "Hi"
    assert path.read_text().startswith("this is no database")


async def test_a_question_that_is_too_long_comes_back_to_be_shortened(scene):
    too_long = PromptTooLong(
        "The conversation has 9000 tokens, but the context is 4096 tokens long.", hint="Shorten."
    )
    async with scene(["One."], [too_long], ["Two."], say="First?") as pilot:
        await pilot.say("Long?", shown="9000 tokens", hidden="▌ Long?")
        assert pilot.prompt.text == "Long?"
        await pilot.press(*["backspace"] * 2, "enter", see="Two.")
    assert [turn.content for turn in await scene.stored()] == ["First?", "One.", "Lon", "Two."]


@pytest.mark.parametrize("passes", [True, False])
async def test_escape_while_the_store_is_locked_gives_the_question_back(scene, path, passes, monkeypatch):
    monkeypatch.setattr("edgechat.chat.storage.store.BUSY_MS", 1500)
    async with scene.loaded() as pilot:
        await pilot.gone("Loading")
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        await pilot.ask("Hi?", shown="Stop")
        await pilot.press("escape", see="Stopping")
        if passes:
            other.execute("ROLLBACK")
        await pilot.until(lambda: pilot.prompt.text == "Hi?")
        await pilot.gone("Stop")
        assert ("Another program has locked" in pilot.text) != passes
        pilot.shows(hidden="▌ Hi?")
        other.close()
        store = await Store.open(path)
        assert await store.chats() == []
        await store.close()
        await pilot.press("enter", see="Hello there.")


async def test_words_that_cannot_be_saved_are_told_at_the_end(scene):
    full = asyncio.Event()
    async with scene(["Hello ", full, "you" * 10_000]) as pilot:
        await pilot.ask("Hi?", see="Hello")
        store = await pilot.app.screen.session.store()
        store._db.execute("PRAGMA max_page_count = 1")
        full.set()
        await pilot.see("The disk is full")
        await pilot.press("ctrl+q")
    assert isinstance(pilot.app.fault, StoreError)
    assert pilot.app.fault.message.startswith("The end of a reply could not be saved. The disk is full")


async def test_thinking_is_folded_and_unfolds(scene):
    async with scene([thought("Let me "), thought("see."), "Yes."]) as pilot:
        await pilot.say("Is it?", shown=("▸ Thought for", "2 tokens"), hidden="Let me see.")
        await pilot.press("ctrl+t", shown="│ Let me see.")
        await pilot.press("ctrl+t", hidden="Let me see.")


async def test_a_new_chat_is_empty_and_stored_only_with_its_first_words(scene, path):
    async with scene(["Hello."], say="First") as pilot:
        await pilot.press("ctrl+n", hidden="First")
        store = await Store.open(path)
        assert len(await store.chats()) == 1
        await pilot.say("Second")
        assert [one.title for one in await store.chats()] == ["Second", "First"]
        await store.close()


async def test_several_lines_are_typed_pasted_and_sent_as_one(scene):
    async with scene(["Ok."]) as pilot:
        await pilot.press(*"one", "ctrl+j", *"two", "shift+enter")
        pilot.prompt.post_message(events.Paste("three\r\nfour\rfive\x1b[31m"))
        await pilot.pause()
        assert pilot.prompt.text == "one\ntwo\nthree\nfour\nfive[31m"
        assert pilot.prompt.size.height == 5
        pilot.prompt.insert("\n" * 20)
        await pilot.pause()
        assert pilot.prompt.size.height == 8
        await pilot.press("enter", see="Ok.")
        assert pilot.prompt.text == ""
    assert (await scene.stored())[0].content.startswith("one\ntwo\nthree\nfour\nfive")


async def test_escape_sequences_of_a_model_are_inert(scene):
    evil = "\x1b]52;c;aGFja2Vk\x07\x1b[2J\x9b31mred\x9d0;title\x07\x00 `\x1b[31m` \x85"
    async with scene([thought(evil), evil, "```\n" + evil + "\n```"], model="\x1b[2Jevil") as pilot:
        await pilot.say("Paint. " + evil)
        await pilot.press("ctrl+t")
        await pilot.pause()
        shown = pilot.text
        assert "]52;c;aGFja2Vk" in shown
        assert not any((ord(one) < 32 and one != "\n") or 127 <= ord(one) < 160 for one in shown)


async def test_the_last_model_is_taken_again_unless_its_file_is_gone(scene, path):
    async with scene(model="mine.gguf") as pilot:
        await pilot.see("mine.gguf it is.")
    async with scene() as pilot:
        await pilot.say("Asked before anybody knows which model it will be", see="mine.gguf")
    store = await Store.open(path)
    assert [one.model for one in await store.chats()] == ["mine.gguf"]
    await store.close()

    def prepare(model):
        if model == "mine.gguf":
            raise ModelNotFound("There is no mine.gguf.")
        return plan(model)

    async with scene(prepare=prepare) as pilot:
        await pilot.see("mine.gguf was not found; guide is used")
    async with scene(prepare=prepare, settings=Settings(model="mine.gguf")) as pilot:
        await pilot.see("mine.gguf was not found; guide is used")
        await pilot.say("Who are you?")
        assert pilot.text.count("was not found") == 1
        assert pilot.chat.session.model == "guide"
    async with scene(prepare=prepare, model="mine.gguf") as pilot:
        await pilot.see("There is no mine.gguf.", hidden="is used instead")


async def test_quitting_in_mid_answer_keeps_the_words(scene):
    async with scene(["One ", 30.0, "two"]) as pilot:
        await pilot.ask("Count.", see="One")
        await pilot.press("ctrl+q")
        await pilot.pause()
        assert not pilot.app.is_running or pilot.app._exit
    reply = (await scene.stored())[-1]
    assert (reply.content, reply.state) == ("One ", "interrupted")
    assert pilot.engine.closed


async def test_control_c_clears_the_prompt_then_asks_then_quits_if_pressed_again_soon(scene, monkeypatch):
    async with scene.loaded(notifications=True) as pilot:
        pilot.chat.pane.attach(Attachment("notes.txt", "milk"))
        await pilot.press(*"half a thought", "ctrl+c", see="Ctrl+Z brings it back")
        assert (pilot.prompt.text, pilot.chat.pane.attachments) == ("", [])
        await pilot.press("ctrl+z", until=lambda: pilot.chat.pane.attachments != [])
        assert pilot.prompt.text == "half a thought"
        await pilot.press("ctrl+c", "ctrl+c", see="Press Ctrl+C again to quit")
        with monkeypatch.context() as late:
            late.setattr("edgechat.tui.app._QUIT_AGAIN", 0.0)
            await pilot.press("ctrl+c")
            await pilot.pause()
            assert not pilot.app._exit
        await pilot.press("ctrl+c", until=lambda: pilot.app._exit)


async def test_an_earlier_question_that_is_looked_at_is_not_what_control_c_keeps(scene):
    async with scene(say="Earlier") as pilot:
        await pilot.press(*"mine", "up", until=lambda: pilot.prompt.text == "Earlier")
        await pilot.press("ctrl+c", until=lambda: pilot.prompt.text == "")
        await pilot.press("ctrl+z", until=lambda: pilot.prompt.text == "mine")


async def test_control_z_brings_back_the_cleared_prompt_before_a_deleted_conversation(scene):
    async with scene(notifications=True, say="Earlier") as pilot:
        pilot.chat.run_command("delete")
        await pilot.until(lambda: pilot.controller.deleted != [])
        await pilot.press(*"draft", "ctrl+c", "ctrl+z", until=lambda: pilot.prompt.text == "draft")
        pilot.shows(hidden="▌ Earlier")
        await pilot.press("ctrl+u", "ctrl+z", see="▌ Earlier")


async def test_control_c_copies_what_is_selected(scene):
    async with scene(["Copy me."], say="Go.") as pilot:
        pilot.app.screen.text_select_all()
        await pilot.pause()
        await pilot.press("ctrl+c")
        await pilot.pause()
        assert pilot.app.is_running
        assert "Copy me." in pilot.app.clipboard
        assert "▌" not in pilot.app.clipboard


async def test_nothing_is_lost_at_any_width(scene):
    table = f"| a | b |\n|---|---|\n| {'x' * 50} | end |"
    reply = f"A list:\n\n- {'word ' * 30}\n\n{table}\n\n```py\n{'y' * 200}"
    async with scene([reply], size=(30, 60), say="Go.") as pilot:
        for width in (30, 60, 100, 160):
            await pilot.resize(width, 60)
            shown = pilot.text
            assert (shown.count("word"), shown.count("x") >= 50, shown.count("y") >= 200) == (30, True, True)
            assert max(map(len, shown.split("\n"))) <= width
            assert "Send" in shown


async def test_the_transcript_and_the_prompt_have_room_at_any_height(scene):
    async with scene(["Hello you."], size=(20, 5), say="Go.") as pilot:
        for height in (5, 7, 8, 10, 15, 16):
            await pilot.resize(20, height)
            pilot.prompt.insert("line\n" * 20 + "last")
            await pilot.pause()
            assert pilot.transcript.size.height >= 1
            pilot.shows("last", "Send")
            pilot.prompt.clear()
            await pilot.pause()
            pilot.shows("Hello you.")


async def test_no_color_is_heeded(scene, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    async with scene(["# Red\n\n`code`"], say="Go.") as pilot:
        assert pilot.app.no_color
        for strip in pilot.app.screen._compositor.render_strips():
            for segment in strip:
                assert segment.style is None or segment.style.color is None or segment.style.color.is_default


async def test_a_fast_model_is_painted_a_few_times_a_second(path, monkeypatch):
    app = app_with(FakeEngine(words("word " * 400, 0.001)), path)
    paints = 0
    async with driven(app) as pilot:
        pane = pilot.transcript
        append = pane.append

        def counted(*args):
            nonlocal paints
            paints += 1
            append(*args)

        monkeypatch.setattr(pane, "append", counted)
        began = asyncio.get_running_loop().time()
        await pilot.say("Go.")
        assert 1 < paints <= 1 + 16 * (asyncio.get_running_loop().time() - began)
        assert pilot.text.count("word") > 100


async def test_what_drafts_did_stands_behind_the_speed(scene):
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

    async with scene(Drafted(["Hello."]), size=(100, 30)) as pilot:
        await pilot.say("Hi", shown="25.0 tok/s, 1.4x from drafting")
        await pilot.say("Hi again", shown="25.0 tok/s", hidden="from drafting")


@pytest.mark.parametrize("draft", [None, "auto", "small"])
async def test_a_draft_that_was_asked_for_and_is_not_used_is_told_of(scene, draft):
    engine = FakeEngine()
    engine.model = msgspec.structs.replace(
        MODEL, no_draft="small cannot be used as a draft model: it is odd."
    )
    async with scene(engine, notifications=True, draft=draft, say="Hi") as pilot:
        assert ("small cannot be used as a draft model" in pilot.text) == (draft == "small")


@pytest.mark.parametrize("error", [NoMatches("gone"), MountError("gone")])
async def test_what_comes_too_late_for_a_screen_is_no_fault_while_leaving(scene, error):
    async with scene.loaded() as pilot:
        pilot.app.exit()
        pilot.app._handle_exception(error)
    assert pilot.app.fault is None


@pytest.mark.parametrize("leave", [Screen.dismiss, lambda screen: None], ids=["screen", "app"])
async def test_a_worker_that_is_told_too_late_is_no_fault_either(scene, leave):
    """Textual takes a screen's widgets away before it cancels the screen's workers."""
    ended = []

    class Screened(Screen[None]):
        @work
        async def look(self):
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(self)
                self.query_one("#gone")

    async with scene.loaded() as pilot:
        await pilot.app.push_screen(screen := Screened())
        screen.look()
        await pilot.pause()
        leave(screen)
        await pilot.pause()
    assert ended == [screen]
    assert pilot.app.fault is None


async def test_the_list_of_chats_opens_without_a_column_for_it(scene):
    async with scene(["Ok."], size=(1, 3)) as pilot:
        for question in ("One", "Two", "Three"):
            await pilot.say(question)
            await pilot.press("ctrl+n")
            await pilot.pause()
        for _ in range(3):
            await pilot.press("ctrl+b", "down", "down", "pagedown", "home")
            await pilot.pause()
    assert pilot.app.fault is None


async def test_help_and_settings_that_are_left_as_they_open_are_left(scene):
    async with scene.loaded() as pilot:
        for _ in range(5):
            pilot.app.action_help()
            pilot.app.action_help()
            await pilot.until(lambda: pilot.in_chat)
        for pauses in range(8):
            pilot.app.action_settings()
            for _ in range(pauses):
                await asyncio.sleep(0)
            pilot.app.screen.dismiss()
            await pilot.until(lambda: pilot.in_chat)
    assert pilot.app.fault is None


async def test_a_screen_that_was_left_drops_its_callbacks(scene):
    async with scene.loaded() as pilot:
        pilot.app.action_settings()
        await pilot.until(lambda: pilot.app.screen is not pilot.chat)
        screen, called = pilot.app.screen, []
        screen.call_after_refresh(called.append, "open")
        await pilot.until(lambda: called == ["open"])
        screen.call_after_refresh(called.append, "left")
        screen.dismiss()
        await pilot.until(lambda: not screen.is_attached)
        await pilot.pause()
        assert called == ["open"]


async def test_screens_do_not_pile_up(scene):
    async with scene.loaded() as pilot:
        for _ in range(6):
            await pilot.press("f2", "f1", "f2", "f1", "f1", "f2")
            await pilot.pause()
        assert len(pilot.app.screen_stack) <= 3


@pytest.mark.parametrize("key", ["f1", "f2", "ctrl+o", "ctrl+p"])
async def test_two_sizes_on_their_way_to_a_screen_come_to_rest(scene, key):
    async with scene.loaded(size=(80, 24)) as pilot:
        await pilot.press(key)
        await pilot.pause()
        pilot.app.action_help()
        await pilot.pause()
        sizes = []
        for screen in pilot.app.screen_stack:
            screen.screen_layout_refresh_signal.subscribe(pilot.app, sizes.append, immediate=True)
        for size in ((64, 10), (80, 24)) * 3:
            for screen in pilot.app.screen_stack:
                screen.post_message(events.Resize.from_dimensions(size, None))
                screen.post_message(events.Print(""))  # or they would become one
        await asyncio.sleep(0.5)
        assert len(sizes) < 500
    assert pilot.app.fault is None


async def test_what_is_read_and_what_is_written_share_their_edges(scene):
    async with scene(["Hello you."], size=(60, 30), say="Go.") as pilot:
        for width in (60, 100, 160, 200):
            await pilot.resize(width, 30)
            names = ("UserSheet", "PieceSheet", "PromptBox", "StatusBar", "KeyBar")
            parts = [widget.region for name in names for widget in pilot.app.screen.query(name)]
            assert len({(region.x, region.right) for region in parts}) == 1, parts
            question, answer = (pilot.transcript.pieces[at].sheet for at in (0, -1))
            assert answer.content_region.x == pilot.prompt.content_region.x == question.region.x + 2


@pytest.mark.parametrize("width", [60, 100, 160])
async def test_the_list_of_chats_takes_about_a_quarter(scene, width):
    async with scene.loaded(size=(width, 30)) as pilot:
        await pilot.press("ctrl+b", until=lambda: bool(pilot.app.screen.query("Sidebar")))
        await pilot.pause()
        taken = pilot.app.screen.query_one("Sidebar").outer_size.width
        assert taken == 60 if width < 90 else 0.24 * width < taken <= 0.3 * width


async def test_the_text_stays_at_the_top_while_completions_come_and_go(scene):
    async with scene.loaded(size=(100, 36)) as pilot:
        for key in ("/", "p", "backspace", "backspace"):
            await pilot.press(key)
            await pilot.pause()
            assert pilot.transcript.scroll_y == 0
