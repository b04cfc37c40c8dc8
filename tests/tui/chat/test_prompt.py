"""What is typed: history, completion, attachments, commands, and drafts that outlive a crash."""

import asyncio

import pytest
from textual import events

from edgechat.chat.records import Attachment
from edgechat.settings import Preset, SamplingDefaults, Settings
from edgechat.tui.chat.prompt.above import Chips
from tests.fakes import FakeEngine

pytestmark = pytest.mark.slow


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


async def test_up_and_down_go_through_what_was_asked(scene):
    async with scene() as pilot:
        for text in ("First", "Second", "Second"):
            await pilot.say(text)
        await pilot.press(*"draft", "up", until=lambda: pilot.prompt.text == "Second")
        await pilot.press("up")
        assert pilot.prompt.text == "First"
        await pilot.press("up")
        assert pilot.prompt.text == "First"
        await pilot.press("down", "down")
        await pilot.pause()
        assert pilot.prompt.text == "draft"


async def test_commands_are_completed_and_done(scene):
    async with scene(notifications=True, say="Hi") as pilot:
        await pilot.press(*"/ren", see="Rename this conversation")
        await pilot.press("tab", *"A better title", "enter", see="“A better title”")
        store = await pilot.app.screen.session.store()
        assert [chat.title for chat in await store.chats()] == ["A better title"]


@pytest.mark.parametrize("typed", ["/rename A better title", "/rename  Ren"])
async def test_keys_that_come_at_once_are_not_completed_by_what_was_offered_before(scene, typed):
    async with scene(notifications=True, say="Hi") as pilot:
        await pilot.press(*typed[:4], see="Rename this conversation")
        for key in typed[4:]:
            pilot.prompt._forward_event(events.Key(key, key))
        pilot.prompt._forward_event(events.Key("enter", "\r"))
        await pilot.see(f"“{typed[8:].strip()}”")


async def test_a_mistyped_command_says_what_was_meant_and_stays(scene):
    async with scene(notifications=True) as pilot:
        await pilot.press(*"/expotr", "enter", see="No such command")
        assert pilot.prompt.text.strip() == "/expotr"
        assert not pilot.engine.requests


@pytest.mark.parametrize(("typed", "sent"), [("/usr/bin is what?", "/usr/bin is what?"), ("//new", "/new")])
async def test_what_only_looks_like_a_command_is_sent(scene, typed, sent):
    async with scene(say=typed) as pilot:
        await pilot.until(lambda: pilot.engine.requests != [])
        assert pilot.engine.requests[0].messages[0].content == sent


async def test_a_preset_is_taken(scene):
    preset = Preset(system="You write haiku.", sampling=SamplingDefaults(temperature=1.5))
    async with scene.loaded(notifications=True, settings=Settings(presets={"poet": preset})) as pilot:
        await pilot.press(*"/preset p", see="You write haiku.")
        await pilot.press("enter", see="The preset “poet” is applied")
        await pilot.say("Go")
        assert pilot.engine.requests[0].sampling.temperature == 1.5
        assert pilot.engine.requests[0].messages[0].content == "You write haiku."


async def test_a_file_is_completed_and_sent_along(scene, folder):
    async with scene() as pilot:
        await pilot.press(*"Sum up @no", see="› notes.txt")
        await pilot.press("tab", *"please")
        assert pilot.prompt.text == "Sum up @notes.txt please"
        await pilot.press("enter", until=lambda: "▤ notes.txt" in pilot.text and pilot.engine.requests != [])
        sent = pilot.engine.requests[0].messages[0].content
        assert "milk\neggs" in sent
        assert sent.endswith("Sum up @notes.txt please")


async def test_folders_are_gone_into_and_files_found_by_letters_of_their_paths(scene, folder):
    async with scene() as pilot:
        await pilot.press("@", see="› deep/", hidden=".hidden")
        await pilot.press("tab", see="› more.txt")
        await pilot.press("tab")
        assert pilot.prompt.text == "@deep/more.txt "
        pilot.prompt.clear()
        await pilot.press(*"Sum up @dmo", see=("› deep/more.txt", "1 of 1"))
        await pilot.press("tab")
        assert pilot.prompt.text == "Sum up @deep/more.txt "


async def test_names_with_spaces_are_quoted(scene, folder):
    (folder / "my list.txt").write_text("bread")
    async with scene() as pilot:
        await pilot.press(*"Sum up @my", see="› my list.txt")
        await pilot.press("tab", "enter", until=lambda: pilot.engine.requests != [])
        assert "bread" in pilot.engine.requests[0].messages[0].content


async def test_a_question_about_a_file_that_is_not_there_stays(scene, folder):
    async with scene() as pilot:
        pilot.prompt.fill("Sum up @notes.txt and @gone.txt")  # while the app starts
        await pilot.press("enter", see="No such file: gone.txt.")
        await pilot.until(lambda: pilot.prompt.text == "Sum up @notes.txt and @gone.txt")
        await pilot.see("it is.")
        assert pilot.prompt.text == "Sum up @notes.txt and @gone.txt"
        assert not pilot.engine.requests


async def test_a_folder_is_sent_as_the_list_of_its_files(scene, folder):
    async with scene() as pilot:
        pilot.prompt.fill("What is in @deep?")
        await pilot.press("enter", until=lambda: "▤ deep/" in pilot.text and pilot.engine.requests != [])
        assert "more.txt  5 bytes" in pilot.engine.requests[0].messages[0].content


async def test_the_path_of_attach_is_completed_and_a_wrong_one_stays(scene, folder):
    async with scene(notifications=True) as pilot:
        await pilot.press(*"/attach no", see="› notes.txt")
        await pilot.press("enter", see="▤ notes.txt ~3 tokens")
        pilot.prompt.fill("/attach gone.txt")
        await pilot.press("enter", see="No such file: gone.txt.")
        await pilot.until(lambda: pilot.prompt.text == "/attach gone.txt")


async def test_several_dropped_files_are_a_chip_each_and_once(scene, folder):
    both = f"{folder / 'notes.txt'} {folder / 'deep' / 'more.txt'}"
    async with scene() as pilot:
        for _ in range(2):
            pilot.prompt.post_message(events.Paste(both))
            await pilot.see("▤ notes.txt", "▤ more.txt")
        assert len(pilot.app.screen.pane.attachments) == 2


async def test_an_address_is_no_file_and_a_program_no_text(scene, folder):
    async with scene(notifications=True, say="Write to me@example.org and @nobody") as pilot:
        await pilot.until(lambda: pilot.engine.requests != [])
        assert pilot.engine.requests[0].messages[0].content == "Write to me@example.org and @nobody"
        await pilot.command("What is @program.bin", see="program.bin is not a text file")
        assert pilot.prompt.text == "What is @program.bin"


async def test_a_long_paste_becomes_a_chip_and_a_dropped_file_too(scene, folder):
    async with scene() as pilot:
        pilot.prompt.post_message(events.Paste("line\n" * 40))
        await pilot.see("▤ pasted text ~50 tokens")
        pilot.prompt.post_message(events.Paste(f"'{folder / 'notes.txt'}' "))
        await pilot.see("▤ notes.txt ~3 tokens")
        assert pilot.prompt.text == ""
        await pilot.press("backspace", gone="notes.txt")
        await pilot.say("What is this?", until=lambda: pilot.engine.requests != [])
        sent = pilot.engine.requests[0].messages[0].content
        assert sent.count("line\n") >= 40
        assert "milk" not in sent


async def test_chips_are_clicked_away_and_those_without_room_are_counted(scene):
    async with scene(size=(60, 30)) as pilot:
        pane = pilot.app.screen.pane
        for name in ("one.txt", "two.txt", "three.txt"):
            pane.attach(Attachment(name, "milk and honey\n"))
        await pilot.see("│ ▤ one.txt ~4 tokens ✕ │ and 2 more")
        await pilot.click(Chips, offset=(2, 1))
        await pilot.see("▤ two.txt")
        assert [attached.name for attached in pane.attachments] == ["two.txt", "three.txt"]


async def test_what_a_long_prompt_takes_is_told(scene, folder):
    (folder / "long.txt").write_text("word " * 2000)
    async with scene() as pilot:
        pilot.prompt.fill("Sum up @long.txt ")
        await pilot.see("~2,505 tokens to read")
        pilot.prompt.fill("Sum up")
        await pilot.gone("to read")


async def test_a_chat_that_another_model_has_answered_is_read_anew(scene):
    async with scene(say="Hi") as pilot:
        assert pilot.controller.unread_tokens == 0
        pilot.chat.run_command("model", "other")
        await pilot.until(lambda: "other it is." in pilot.text or pilot.chat.session.model == "other")
        assert pilot.controller.unread_tokens == pilot.controller.shown.used > 0


async def test_a_saved_prompt_is_filled_in_before_it_is_sent(scene):
    engine = FakeEngine()
    saved = Settings(prompts={"tr": "Translate to {language}: {text}"})
    async with scene.loaded(engine, notifications=True, settings=saved) as pilot:
        await pilot.press(*"/prompt tr", "enter", until=lambda: pilot.prompt.selected_text == "{language}")
        await pilot.press(*"French", "enter", see="{text} is not filled in")
        assert pilot.prompt.selected_text == "{text}"
        assert not engine.requests
        await pilot.press("home", "tab", *"Hi {text}")
        assert pilot.prompt.text == "Translate to French: Hi {text}"
        await pilot.press("enter", "enter", until=lambda: engine.requests != [])
        assert engine.requests[0].messages[0].content == "Translate to French: Hi {text}"


async def test_braces_of_the_users_own_are_no_variables(scene):
    async with scene(settings=Settings(prompts={"tr": "To {language}"}), say="What is f'{name}'?") as pilot:
        assert pilot.engine.requests[0].messages[0].content == "What is f'{name}'?"


async def test_what_was_typed_outlives_the_app(scene):
    async with scene.loaded() as pilot:
        await pilot.press(*"half a thou")
        await asyncio.sleep(1.2)
        await pilot.pause()
        store = await pilot.app.screen.session.store()
        assert "half a thou" in await store.unsent(None)
    async with scene() as pilot:
        await pilot.until(lambda: pilot.prompt.text == "half a thou")
        await pilot.say("ght")
    async with scene.loaded() as pilot:
        assert pilot.prompt.text == ""
