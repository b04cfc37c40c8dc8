"""What is typed: history, completion, attachments, commands, and drafts that outlive a crash."""

import asyncio

import pytest
from textual import events

from edgechat.chat.records import Attachment
from edgechat.settings import Preset, SamplingDefaults, Settings
from edgechat.tui.chat.prompt.chips import Chips
from tests.fakes import FakeEngine
from tests.tui.driving import app_with, say, text_of, until

pytestmark = pytest.mark.slow


@pytest.fixture
def path(tmp_path):
    return tmp_path / "chats.db"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with some files, which is the current one."""
    there = tmp_path / "there"
    (there / "deep").mkdir(parents=True)
    (there / "notes.txt").write_text("milk\neggs")
    (there / "deep" / "more.txt").write_text("bread")
    (there / ".hidden").write_text("x")
    (there / "program.bin").write_bytes(b"\x7fELF\0\0")
    monkeypatch.chdir(there)
    return there


async def test_up_and_down_go_through_what_was_asked(path):
    async with app_with(FakeEngine(), path).run_test() as pilot:
        prompt = pilot.app.screen.prompt
        for text in ("First", "Second", "Second"):
            await say(pilot, text)
        await pilot.press(*"draft", "up")
        await until(pilot, lambda: prompt.text == "Second")
        await pilot.press("up")
        assert prompt.text == "First"
        await pilot.press("up")
        assert prompt.text == "First"
        await pilot.press("down", "down")
        await pilot.pause()
        assert prompt.text == "draft"


async def test_commands_are_completed_and_done(path):
    async with app_with(FakeEngine(), path).run_test(notifications=True) as pilot:
        await say(pilot, "Hi")
        await pilot.press(*"/ren")
        await until(pilot, lambda: "Rename this conversation" in text_of(pilot))
        await pilot.press("tab", *"A better title", "enter")
        await until(pilot, lambda: "“A better title”" in text_of(pilot))
        store = await pilot.app.screen.session.store()
        assert [chat.title for chat in await store.chats()] == ["A better title"]


@pytest.mark.parametrize("typed", ["/rename A better title", "/rename  Ren"])
async def test_keys_that_come_at_once_are_not_completed_by_what_was_offered_before(path, typed):
    async with app_with(FakeEngine(), path).run_test(notifications=True) as pilot:
        await say(pilot, "Hi")
        box = pilot.app.screen.prompt
        await pilot.press(*typed[:4])
        await until(pilot, lambda: "Rename this conversation" in text_of(pilot))
        for key in typed[4:]:
            box._forward_event(events.Key(key, key))
        box._forward_event(events.Key("enter", "\r"))
        await until(pilot, lambda: f"“{typed[8:].strip()}”" in text_of(pilot))


async def test_a_mistyped_command_says_what_was_meant_and_stays(path):
    engine = FakeEngine()
    async with app_with(engine, path).run_test(notifications=True) as pilot:
        await pilot.press(*"/expotr", "enter")
        await until(pilot, lambda: "No such command" in text_of(pilot))
        assert pilot.app.screen.prompt.text.strip() == "/expotr"
        assert not engine.requests


@pytest.mark.parametrize(("typed", "sent"), [("/usr/bin is what?", "/usr/bin is what?"), ("//new", "/new")])
async def test_what_only_looks_like_a_command_is_sent(path, typed, sent):
    engine = FakeEngine()
    async with app_with(engine, path).run_test() as pilot:
        await say(pilot, typed)
        await until(pilot, lambda: engine.requests != [])
        assert engine.requests[0].messages[0].content == sent


async def test_parameters_are_set_for_this_chat_alone(path):
    engine = FakeEngine()
    async with app_with(engine, path).run_test(notifications=True) as pilot:
        for command in ("/set temperature 0.3", "/system Be brief.", "/set top_k 7"):
            pilot.app.screen.prompt.insert(command)
            await pilot.press("escape", "enter")
            await until(pilot, lambda: pilot.app.screen.prompt.text == "")
        await until(pilot, lambda: "top_k is 7" in text_of(pilot))
        await say(pilot, "Hi")
        request = engine.requests[0]
        assert (request.sampling.temperature, request.sampling.top_k) == (0.3, 7)
        assert [message.content for message in request.messages] == ["Be brief.", "Hi"]
        await pilot.press("ctrl+n")
        await say(pilot, "Hi")
        request = engine.requests[1]
        assert (request.sampling.temperature, request.sampling.top_k) == (0.8, 40)
        assert [message.content for message in request.messages] == ["Hi"]


async def test_what_makes_no_sense_is_told_and_stays(path):
    async with app_with(FakeEngine(), path).run_test(notifications=True) as pilot:
        for command, told in (
            ("/set temperature 9", "temperature"),
            ("/set tmeperature 1", "No such parameter"),
            ("/think maybe", "on, off or auto"),
            ("/preset none", "No such preset"),
            ("/rename", "TITLE"),
        ):
            pilot.app.screen.prompt.fill(command)
            await pilot.press("escape", "enter")
            await until(pilot, lambda told=told: told in text_of(pilot))
            pilot.app.clear_notifications()
            prompt = pilot.app.screen.prompt
            await until(pilot, lambda of=prompt, was=command: of.text.strip() == was)


async def test_a_preset_is_taken(path):
    preset = Preset(system="You write haiku.", sampling=SamplingDefaults(temperature=1.5))
    engine = FakeEngine()
    app = app_with(engine, path, settings=Settings(presets={"poet": preset}))
    async with app.run_test(notifications=True) as pilot:
        await until(pilot, lambda: "it is." in text_of(pilot))
        await pilot.press(*"/preset p")
        await until(pilot, lambda: "You write haiku." in text_of(pilot))
        await pilot.press("enter")
        await until(pilot, lambda: "The preset “poet” is applied" in text_of(pilot))
        await say(pilot, "Go")
        assert engine.requests[0].sampling.temperature == 1.5
        assert engine.requests[0].messages[0].content == "You write haiku."


async def test_a_file_is_completed_and_sent_along(path, folder):
    engine = FakeEngine()
    async with app_with(engine, path).run_test() as pilot:
        await pilot.press(*"Sum up @no")
        await until(pilot, lambda: "› notes.txt" in text_of(pilot))
        await pilot.press("tab", *"please")
        assert pilot.app.screen.prompt.text == "Sum up @notes.txt please"
        await pilot.press("enter")
        await until(pilot, lambda: "▤ notes.txt" in text_of(pilot) and engine.requests != [])
        sent = engine.requests[0].messages[0].content
        assert "milk\neggs" in sent
        assert sent.endswith("Sum up @notes.txt please")


async def test_folders_are_gone_into_and_hidden_files_stay_hidden(path, folder):
    async with app_with(FakeEngine(), path).run_test() as pilot:
        await pilot.press("@")
        await until(pilot, lambda: "› deep/" in text_of(pilot))
        assert ".hidden" not in text_of(pilot)
        await pilot.press("tab")
        await until(pilot, lambda: "› more.txt" in text_of(pilot))
        await pilot.press("tab")
        assert pilot.app.screen.prompt.text == "@deep/more.txt "


async def test_names_with_spaces_are_quoted(path, folder):
    (folder / "my list.txt").write_text("bread")
    engine = FakeEngine()
    async with app_with(engine, path).run_test() as pilot:
        await pilot.press(*"Sum up @my")
        await until(pilot, lambda: "› my list.txt" in text_of(pilot))
        await pilot.press("tab", "enter")
        await until(pilot, lambda: engine.requests != [])
        assert "bread" in engine.requests[0].messages[0].content


async def test_a_question_about_a_file_that_is_not_there_stays(path, folder):
    engine = FakeEngine()
    async with app_with(engine, path).run_test() as pilot:
        prompt = pilot.app.screen.prompt
        prompt.fill("Sum up @notes.txt and @gone.txt")  # while the app starts
        await pilot.press("enter")
        await until(pilot, lambda: "No such file: gone.txt." in text_of(pilot))
        await until(pilot, lambda: prompt.text == "Sum up @notes.txt and @gone.txt")
        await until(pilot, lambda: "it is." in text_of(pilot))
        assert prompt.text == "Sum up @notes.txt and @gone.txt"
        assert not engine.requests


async def test_a_folder_is_sent_as_the_list_of_its_files(path, folder):
    engine = FakeEngine()
    async with app_with(engine, path).run_test() as pilot:
        pilot.app.screen.prompt.fill("What is in @deep?")
        await pilot.press("enter")
        await until(pilot, lambda: "▤ deep/" in text_of(pilot) and engine.requests != [])
        assert "more.txt  5 bytes" in engine.requests[0].messages[0].content


async def test_a_file_is_found_by_letters_of_its_path(path, folder):
    async with app_with(FakeEngine(), path).run_test() as pilot:
        await pilot.press(*"Sum up @dmo")
        await until(pilot, lambda: "› deep/more.txt" in text_of(pilot) and "1 of 1" in text_of(pilot))
        await pilot.press("tab")
        assert pilot.app.screen.prompt.text == "Sum up @deep/more.txt "


async def test_the_path_of_attach_is_completed_and_a_wrong_one_stays(path, folder):
    async with app_with(FakeEngine(), path).run_test(notifications=True) as pilot:
        prompt = pilot.app.screen.prompt
        await pilot.press(*"/attach no")
        await until(pilot, lambda: "› notes.txt" in text_of(pilot))
        await pilot.press("enter")
        await until(pilot, lambda: "▤ notes.txt ~3 tokens" in text_of(pilot))
        prompt.fill("/attach gone.txt")
        await pilot.press("enter")
        await until(pilot, lambda: "No such file: gone.txt." in text_of(pilot))
        await until(pilot, lambda: prompt.text == "/attach gone.txt")


async def test_several_dropped_files_are_a_chip_each_and_once(path, folder):
    both = f"{folder / 'notes.txt'} {folder / 'deep' / 'more.txt'}"
    async with app_with(FakeEngine(), path).run_test() as pilot:
        prompt = pilot.app.screen.prompt
        for _ in range(2):
            prompt.post_message(events.Paste(both))
            await until(pilot, lambda: "▤ notes.txt" in text_of(pilot) and "▤ more.txt" in text_of(pilot))
        assert len(pilot.app.screen.pane.attachments) == 2


async def test_an_address_is_no_file_and_a_program_no_text(path, folder):
    engine = FakeEngine()
    async with app_with(engine, path).run_test(notifications=True) as pilot:
        await say(pilot, "Write to me@example.org and @nobody")
        await until(pilot, lambda: engine.requests != [])
        assert engine.requests[0].messages[0].content == "Write to me@example.org and @nobody"
        pilot.app.screen.prompt.fill("What is @program.bin")
        await pilot.press("escape", "enter")
        await until(pilot, lambda: "program.bin is not a text file" in text_of(pilot))
        assert pilot.app.screen.prompt.text == "What is @program.bin"


async def test_a_long_paste_becomes_a_chip_and_a_dropped_file_too(path, folder):
    engine = FakeEngine()
    async with app_with(engine, path).run_test() as pilot:
        prompt = pilot.app.screen.prompt
        prompt.post_message(events.Paste("line\n" * 40))
        await until(pilot, lambda: "▤ pasted text ~50 tokens" in text_of(pilot))
        prompt.post_message(events.Paste(f"'{folder / 'notes.txt'}' "))
        await until(pilot, lambda: "▤ notes.txt ~3 tokens" in text_of(pilot))
        assert prompt.text == ""
        await pilot.press("backspace")
        await until(pilot, lambda: "notes.txt" not in text_of(pilot))
        await say(pilot, "What is this?")
        await until(pilot, lambda: engine.requests != [])
        sent = engine.requests[0].messages[0].content
        assert sent.count("line\n") >= 40
        assert "milk" not in sent


async def test_chips_are_clicked_away_and_those_without_room_are_counted(path):
    async with app_with(FakeEngine(), path).run_test(size=(60, 30)) as pilot:
        pane = pilot.app.screen.pane
        for name in ("one.txt", "two.txt", "three.txt"):
            pane.attach(Attachment(name, "milk and honey\n"))
        await until(pilot, lambda: "│ ▤ one.txt ~4 tokens ✕ │ and 2 more" in text_of(pilot))
        await pilot.click(Chips, offset=(2, 1))
        await until(pilot, lambda: "▤ two.txt" in text_of(pilot))
        assert [attached.name for attached in pane.attachments] == ["two.txt", "three.txt"]


async def test_what_a_long_prompt_takes_is_told(path, folder):
    (folder / "long.txt").write_text("word " * 2000)
    async with app_with(FakeEngine(), path).run_test() as pilot:
        prompt = pilot.app.screen.prompt
        prompt.fill("Sum up @long.txt ")
        await until(pilot, lambda: "~2,505 tokens to read" in text_of(pilot))
        prompt.fill("Sum up")
        await until(pilot, lambda: "to read" not in text_of(pilot))


async def test_a_chat_that_another_model_has_answered_is_read_anew(path):
    engine = FakeEngine()
    async with app_with(engine, path).run_test() as pilot:
        await say(pilot, "Hi")
        screen = pilot.app.screen
        assert screen.controller.unread_tokens == 0
        screen.run_command("model", "other")
        await until(pilot, lambda: "other it is." in text_of(pilot) or screen.session.model == "other")
        assert screen.controller.unread_tokens == screen.controller.shown.used > 0


async def test_a_saved_prompt_is_filled_in_before_it_is_sent(path):
    engine = FakeEngine()
    saved = Settings(prompts={"tr": "Translate to {language}: {text}"})
    async with app_with(engine, path, settings=saved).run_test(notifications=True) as pilot:
        await until(pilot, lambda: "it is." in text_of(pilot))
        prompt = pilot.app.screen.prompt
        await pilot.press(*"/prompt tr", "enter")
        await until(pilot, lambda: prompt.selected_text == "{language}")
        await pilot.press(*"French", "enter")
        await until(pilot, lambda: "{text} is not filled in" in text_of(pilot))
        assert prompt.selected_text == "{text}"
        assert not engine.requests
        await pilot.press("home", "tab", *"Hi {text}")
        assert prompt.text == "Translate to French: Hi {text}"
        await pilot.press("enter", "enter")
        await until(pilot, lambda: engine.requests != [])
        assert engine.requests[0].messages[0].content == "Translate to French: Hi {text}"


async def test_braces_of_the_users_own_are_no_variables(path):
    engine = FakeEngine()
    async with app_with(engine, path, settings=Settings(prompts={"tr": "To {language}"})).run_test() as pilot:
        await say(pilot, "What is f'{name}'?")
        assert engine.requests[0].messages[0].content == "What is f'{name}'?"


async def test_what_was_typed_outlives_the_app(path):
    async with app_with(FakeEngine(), path).run_test() as pilot:
        await until(pilot, lambda: "it is." in text_of(pilot))
        await pilot.press(*"half a thou")
        await asyncio.sleep(1.2)
        await pilot.pause()
        store = await pilot.app.screen.session.store()
        assert "half a thou" in await store.unsent(None)
    async with app_with(FakeEngine(), path).run_test() as pilot:
        await until(pilot, lambda: pilot.app.screen.prompt.text == "half a thou")
        await say(pilot, "ght")
    async with app_with(FakeEngine(), path).run_test() as pilot:
        await until(pilot, lambda: "it is." in text_of(pilot))
        assert pilot.app.screen.prompt.text == ""
