"""What is beside and over the chat: conversations, engine room, help, palette, parameters."""

from pathlib import Path

import msgspec
import pytest
from textual import events
from textual.widgets import Input

from edgechat import settings as settings_module
from edgechat.settings import Preset, SamplingDefaults
from edgechat.tui.app import EdgechatApp
from edgechat.tui.overlays.help import HelpScreen
from tests.fakes import MODEL, FakeEngine
from tests.tui.driving import hold
from tests.tui.models.test_screen import world

pytestmark = pytest.mark.slow


# Conversations.


@pytest.mark.parametrize("width", [60, 100, 160])
async def test_conversations_are_chosen_and_left_by_keys(scene, path, width):
    await hold(path, "Who?", "What?")
    async with scene.loaded(size=(width, 30)) as pilot:
        if width < 120:
            pilot.shows(hidden="What?")
        await pilot.press("ctrl+b", see=("What?", "r Rename"))
        assert ("Ask something" in pilot.text) == (width >= 90)
        await pilot.press("escape", until=lambda: pilot.app.focused is pilot.prompt)
        pilot.shows("Ask something")
        await pilot.press("ctrl+b", "down", "enter", see="To Who?")
        assert pilot.app.focused is pilot.prompt


async def test_conversations_are_renamed_pinned_deleted_and_exported_by_keys(scene, path, tmp_path):
    first, second = await hold(path, "Who?", "What?")
    async with scene.loaded(size=(100, 30), notifications=True) as pilot:
        store = await pilot.chat.session.store()
        await pilot.press("ctrl+b", see="Today")
        await pilot.press("r", until=lambda: type(pilot.app.focused).__name__ == "TitleField")
        await pilot.press("ctrl+u", *"Named", "enter", see="Named")
        await pilot.press("p", see="Pinned")
        found = [(one.chat.title, one.chat.pinned) for one in await store.headlines()]
        assert found == [("Named", True), ("Who?", False)]
        await pilot.press("x", until=(tmp_path / "named.md").exists)
        await pilot.press("d", see="Delete “Named”?", shown="It stays in the trash for 30 days.")
        await pilot.press("enter")  # the answer that changes nothing comes first
        await pilot.gone("for 30 days")
        assert len(await store.headlines()) == 2
        await pilot.press("delete", see="for 30 days")
        await pilot.press("y", see="Ctrl+Z undoes this")
        assert [one.chat.id for one in await store.headlines()] == [first]
        await pilot.press("ctrl+z", see="To What?")
        assert {one.chat.id for one in await store.headlines()} == {first, second}


async def test_everything_that_was_said_is_searched(scene, path):
    await hold(path, "Who bakes bread?", "What is rust?")
    async with scene.loaded(size=(100, 30)) as pilot:
        await pilot.press("ctrl+f", *"bakes", see=("found", "Who bakes bread?"), hidden="rust")
        await pilot.press("enter", see="▌ Who bakes bread?")
        assert pilot.transcript.current
        assert pilot.app.focused is pilot.prompt
        await pilot.press("ctrl+f", *'"odd* -AND')
        await pilot.pause()
        await pilot.until(lambda: "found" in pilot.text.lower() or "Nothing" in pilot.text)


async def test_the_list_shows_what_is_begun_and_what_is_being_written(scene):
    async with scene.loaded(["One ", 30.0], size=(160, 30)) as pilot:
        await pilot.press("ctrl+b", "escape")
        await pilot.ask("Count to ten", until=lambda: pilot.text.count("Count to ten") == 2)


# The engine room.


@pytest.mark.parametrize("width", [60, 100, 160])
async def test_the_engine_room_opens_beside_the_chat_or_in_its_place(scene, width):
    async with scene.loaded(size=(width, 30), say="Hi") as pilot:
        await pilot.press("ctrl+g", see=("Speed", "25.0 t/s"))
        assert ("Ask something" in pilot.text) == (width >= 130)
        if width < 130:
            await pilot.press("escape")
        else:
            await pilot.press("ctrl+g")
        await pilot.gone("25.0 t/s")
        assert pilot.app.focused is pilot.prompt


async def test_a_narrower_terminal_does_not_hide_everything(scene):
    async with scene.loaded(size=(160, 30)) as pilot:
        await pilot.press("ctrl+b", "ctrl+g")
        for width in (100, 60, 160, 40):
            await pilot.resize_terminal(width, 30)
            await pilot.pause()
            assert pilot.text.strip()
            pilot.shows("Help")
        await pilot.press("escape", "escape", "escape", see="Ask something")


# Help and palette.


async def test_help_shows_every_part_and_closes_by_its_key(scene):
    async with scene.loaded(size=(100, 200)) as pilot:
        await pilot.press("f1", until=lambda: isinstance(pilot.app.screen, HelpScreen))
        shown = pilot.text
        for words in ("Writing", "Reading", "Conversations", "Models", "The app", "/system", "Bring back"):
            assert words in shown
        assert shown.index("New chat") > shown.index("Conversations") > shown.index("Reading")
        await pilot.press("f1", until=lambda: pilot.in_chat)


async def test_a_theme_is_taken_by_name_and_at_the_start(scene):
    async with scene.loaded(notifications=True, theme="light") as pilot:
        assert pilot.app.theme == "light"
        await pilot.command("/theme pink", see="No such theme: 'pink'")
        await pilot.command("/theme high-contrast", until=lambda: pilot.app.theme == "high-contrast")
        await pilot.until(lambda: settings_module.load().theme == "high-contrast")


async def test_a_theme_that_cannot_be_kept_is_shown_and_the_error_too(scene):
    async with scene.loaded(notifications=True) as pilot:
        settings_module.settings_file().parent.mkdir(parents=True, exist_ok=True)
        settings_module.settings_file().write_text("theme = [")
        await pilot.command("/theme dark")
        await pilot.until(lambda: any("settings.toml" in one.message for one in pilot.app._notifications))
        assert pilot.app.theme == "dark"


async def test_the_palette_shows_the_keys_of_commands_and_does_what_they_do(scene):
    async with scene.loaded(size=(100, 60)) as pilot:
        await pilot.press("ctrl+p", see="Start a new conversation")
        lines = pilot.text.split("\n")
        for name, key in (("Start a new conversation", "Ctrl+N"), ("Search all conversations", "Ctrl+F")):
            assert any(name in line and key in line for line in lines), name
        assert not any("Rename" in line and "Ctrl" in line for line in lines)
        await pilot.press(*"engine room", gone="Rename")
        assert any("engine room" in line and "Ctrl+G" in line for line in pilot.text.split("\n"))
        await pilot.press("escape", until=lambda: pilot.in_chat)
        await pilot.press("ctrl+p", until=lambda: isinstance(pilot.app.focused, Input))
        pilot.app.post_message(events.Paste("colours dark"))
        await pilot.see("/theme dark")
        await pilot.press("enter", until=lambda: pilot.app.theme == "dark")
        await pilot.press("ctrl+p", *"rename this", see="/rename TITLE")
        await pilot.press("enter", until=lambda: pilot.prompt.text == "/rename ")


# Messages beside the chat.


async def test_messages_go_with_their_cause_and_stay_off_the_palette(scene, path):
    (first,) = await hold(path, "Who?")
    async with scene.loaded(size=(100, 30), notifications=True) as pilot:
        for end in ("a question", "another conversation", "a model"):
            pilot.chat.show_message("Mind the gap.", seconds=60)
            await pilot.see("Mind the gap.")
            await pilot.press("ctrl+p", see="Start a new conversation")
            assert not any(toast.display for toast in pilot.app.screen.query("Toast"))
            await pilot.press("escape")
            await pilot.until(lambda: pilot.app.screen is pilot.chat and "Mind the gap." in pilot.text)
            match end:
                case "a question":
                    await pilot.say("Hi")
                case "another conversation":
                    await pilot.controller.open(first)
                case _:
                    await pilot.controller.switch_model("other")
            await pilot.gone("Mind the gap.")


# How a conversation is held.


async def test_parameters_are_changed_in_a_form_and_saved_as_a_preset(scene):
    async with scene.loaded(size=(100, 40), notifications=True) as pilot:
        await pilot.press("f4", see="frequency penalty")
        await pilot.press(*"Be brief.", "tab", *"9", "ctrl+s", see=("temperature", "5"))
        assert pilot.app.screen is not pilot.chat
        await pilot.press("backspace", *"0.2", "tab", *"5")
        for _ in range(6):
            await pilot.press("tab")
        await pilot.press(*"terse", "ctrl+s", until=lambda: pilot.in_chat)
        await pilot.until(lambda: "terse" in pilot.chat.session.settings.presets)
        preset = settings_module.load().presets["terse"]
        assert preset == Preset(system="Be brief.", sampling=SamplingDefaults(temperature=0.2, top_k=5))
        await pilot.say("Hi")
        request = pilot.engine.requests[0]
        assert (request.sampling.temperature, request.sampling.top_k) == (0.2, 5)
        assert request.messages[0].content == "Be brief."
        await pilot.press("f4", see=("Be brief.", "0.2"))
        await pilot.press("escape", until=lambda: pilot.in_chat)


async def test_thinking_is_switched_by_a_key_where_the_model_can(scene):
    engine = FakeEngine()
    engine.model = msgspec.structs.replace(MODEL, can_switch_thinking=True)
    async with scene.loaded(engine, size=(100, 30), notifications=True) as pilot:
        for wanted, shown in ((True, "thinking on"), (False, "thinking off"), (None, "")):
            await pilot.press("f3", see=shown)
            await pilot.say("Hi")
            assert engine.requests[-1].think is wanted
        pilot.shows(hidden="thinking o")
        engine.model = MODEL
        await pilot.press("f3", see="thinking cannot be switched")


async def test_settings_open_and_count_at_once(scene):
    async with scene.loaded(size=(100, 40)) as pilot:
        await pilot.press("f2", until=lambda: "settings.toml" in "".join(pilot.text.split()))
        await pilot.press("slash", *"theme", "enter", see="terminal")
        await pilot.press("enter", until=lambda: pilot.app.theme != "terminal")
        await pilot.press("escape", "escape", until=lambda: pilot.in_chat)
        assert settings_module.load().theme == pilot.app.theme


# Models.


async def test_the_first_run_and_the_models_screen_in_the_app(scene):
    fake = world(Path("/models"))
    async with scene(size=(100, 40), library=fake.library()) as pilot:
        await pilot.see("Welcome to edgechat")
        await pilot.see("small-1b")
        await pilot.press("1", see="small-1b it is.")
        await pilot.say("Hi")
        assert isinstance(pilot.app, EdgechatApp)
        assert pilot.chat.session.model == "small-1b"
    async with scene.loaded(size=(100, 40), library=fake.library()) as pilot:
        assert pilot.chat.session.model == "small-1b"
        await pilot.press("ctrl+o", see=("On this machine", "ollama"))
        await pilot.press("escape", until=lambda: pilot.in_chat)
