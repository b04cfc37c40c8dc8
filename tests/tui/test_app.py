"""What is beside and over the chat: conversations, engine room, help, palette, parameters."""

from pathlib import Path

import msgspec
import pytest
from textual import events
from textual.widgets import Input

from edgechat import settings as settings_module
from edgechat.settings import Preset, SamplingDefaults, Settings
from edgechat.tui.app import EdgechatApp
from edgechat.tui.overlays.help import HelpScreen
from tests.fakes import MODEL, FakeEngine
from tests.tui.chat.test_stored_conversations import held
from tests.tui.driving import app_with, ask, say, text_of, until
from tests.tui.models.test_screen import world

pytestmark = pytest.mark.slow


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EDGECHAT_HOME", str(tmp_path / "home"))
    return tmp_path / "chats.db"


async def started(pilot):
    await until(pilot, lambda: "it is." in text_of(pilot) and "Loading" not in text_of(pilot))
    assert isinstance(pilot.app, EdgechatApp)
    return pilot.app


# Conversations.


@pytest.mark.parametrize("width", [60, 100, 160])
async def test_conversations_are_chosen_and_left_by_keys(path, width):
    await held(path, "Who?", "What?")
    async with app_with(FakeEngine(), path).run_test(size=(width, 30)) as pilot:
        app = await started(pilot)
        if width < 120:
            assert "What?" not in text_of(pilot)
        await pilot.press("ctrl+b")
        await until(pilot, lambda: "What?" in text_of(pilot) and "r Rename" in text_of(pilot))
        assert ("Ask something" in text_of(pilot)) == (width >= 90)
        await pilot.press("escape")
        await until(pilot, lambda: app.focused is app.chat.prompt)
        assert "Ask something" in text_of(pilot)
        await pilot.press("ctrl+b", "down", "enter")
        await until(pilot, lambda: "To Who?" in text_of(pilot))
        assert app.focused is app.chat.prompt


async def test_conversations_are_renamed_pinned_deleted_and_exported_by_keys(path, tmp_path):
    first, second = await held(path, "Who?", "What?")
    async with app_with(FakeEngine(), path).run_test(size=(100, 30), notifications=True) as pilot:
        app = await started(pilot)
        store = await app.session.store()
        await pilot.press("ctrl+b")
        await until(pilot, lambda: "Today" in text_of(pilot))
        await pilot.press("r")
        await until(pilot, lambda: type(app.focused).__name__ == "TitleField")
        await pilot.press("ctrl+u", *"Named", "enter")
        await until(pilot, lambda: "Named" in text_of(pilot))
        await pilot.press("p")
        await until(pilot, lambda: "Pinned" in text_of(pilot))
        assert [(one.chat.title, one.chat.pinned) for one in await store.headlines()] == [
            ("Named", True),
            ("Who?", False),
        ]
        await pilot.press("x")
        await until(pilot, (tmp_path / "named.md").exists)
        await pilot.press("d")
        await until(pilot, lambda: "Delete “Named”?" in text_of(pilot))
        assert "It stays in the trash for 30 days." in text_of(pilot)
        await pilot.press("enter")  # the answer that changes nothing comes first
        await until(pilot, lambda: "for 30 days" not in text_of(pilot))
        assert len(await store.headlines()) == 2
        await pilot.press("delete")
        await until(pilot, lambda: "for 30 days" in text_of(pilot))
        await pilot.press("y")
        await until(pilot, lambda: "Ctrl+Z undoes this" in text_of(pilot))
        assert [one.chat.id for one in await store.headlines()] == [first]
        await pilot.press("ctrl+z")
        await until(pilot, lambda: "To What?" in text_of(pilot))
        assert {one.chat.id for one in await store.headlines()} == {first, second}


async def test_everything_that_was_said_is_searched(path):
    await held(path, "Who bakes bread?", "What is rust?")
    async with app_with(FakeEngine(), path).run_test(size=(100, 30)) as pilot:
        app = await started(pilot)
        await pilot.press("ctrl+f", *"bakes")
        await until(pilot, lambda: "found" in text_of(pilot) and "Who bakes bread?" in text_of(pilot))
        assert "rust" not in text_of(pilot)
        await pilot.press("enter")
        await until(pilot, lambda: "▌ Who bakes bread?" in text_of(pilot))
        assert app.chat.transcript.current
        assert app.focused is app.chat.prompt
        await pilot.press("ctrl+f", *'"odd* -AND')
        await pilot.pause()
        await until(pilot, lambda: "found" in text_of(pilot).lower() or "Nothing" in text_of(pilot))


async def test_the_list_shows_what_is_begun_and_what_is_being_written(path):
    async with app_with(FakeEngine(["One ", 30.0]), path).run_test(size=(160, 30)) as pilot:
        await started(pilot)
        await pilot.press("ctrl+b", "escape")
        await ask(pilot, "Count to ten")
        await until(pilot, lambda: text_of(pilot).count("Count to ten") == 2)


# The engine room.


@pytest.mark.parametrize("width", [60, 100, 160])
async def test_the_engine_room_opens_beside_the_chat_or_in_its_place(path, width):
    async with app_with(FakeEngine(), path).run_test(size=(width, 30)) as pilot:
        app = await started(pilot)
        await say(pilot, "Hi")
        await pilot.press("ctrl+g")
        await until(pilot, lambda: "Speed" in text_of(pilot) and "25.0 t/s" in text_of(pilot))
        assert ("Ask something" in text_of(pilot)) == (width >= 130)
        if width < 130:
            await pilot.press("escape")
        else:
            await pilot.press("ctrl+g")
        await until(pilot, lambda: "25.0 t/s" not in text_of(pilot))
        assert app.focused is app.chat.prompt


async def test_a_narrower_terminal_does_not_hide_everything(path):
    async with app_with(FakeEngine(), path).run_test(size=(160, 30)) as pilot:
        await started(pilot)
        await pilot.press("ctrl+b", "ctrl+g")
        for width in (100, 60, 160, 40):
            await pilot.resize_terminal(width, 30)
            await pilot.pause()
            assert text_of(pilot).strip()
            assert "Help" in text_of(pilot)
        await pilot.press("escape", "escape", "escape")
        await until(pilot, lambda: "Ask something" in text_of(pilot))


# Help and palette.


async def test_help_shows_every_part_and_closes_by_its_key(path):
    async with app_with(FakeEngine(), path).run_test(size=(100, 200)) as pilot:
        app = await started(pilot)
        await pilot.press("f1")
        await until(pilot, lambda: isinstance(app.screen, HelpScreen))
        shown = text_of(pilot)
        for words in ("Writing", "Reading", "Conversations", "Models", "The app", "/system", "Bring back"):
            assert words in shown
        assert shown.index("New chat") > shown.index("Conversations") > shown.index("Reading")
        await pilot.press("f1")
        await until(pilot, lambda: app.screen is app.chat)


async def test_the_palette_does_what_commands_do(path):
    async with app_with(FakeEngine(), path).run_test(size=(100, 30)) as pilot:
        app = await started(pilot)
        await pilot.press("ctrl+p")
        await until(pilot, lambda: "Start a new conversation" in text_of(pilot))
        await pilot.press(*"colours dark")
        await until(pilot, lambda: "/theme dark" in text_of(pilot))
        await pilot.press("enter")
        await until(pilot, lambda: app.theme == "dark")
        await pilot.press("ctrl+p", *"rename this")
        await until(pilot, lambda: "/rename TITLE" in text_of(pilot))
        await pilot.press("enter")
        await until(pilot, lambda: app.chat.prompt.text == "/rename ")


async def test_text_is_pasted_into_the_palette(path):
    async with app_with(FakeEngine(), path).run_test(size=(100, 30)) as pilot:
        app = await started(pilot)
        await pilot.press("ctrl+p")
        await until(pilot, lambda: isinstance(app.focused, Input))
        app.post_message(events.Paste("colours dark"))
        await until(pilot, lambda: "/theme dark" in text_of(pilot))


async def test_a_theme_is_taken_by_name_and_at_the_start(path):
    app = app_with(FakeEngine(), path, theme="light")
    async with app.run_test(notifications=True) as pilot:
        await started(pilot)
        assert app.theme == "light"
        app.chat.prompt.fill("/theme pink")
        await pilot.press("escape", "enter")
        await until(pilot, lambda: "No such theme: 'pink'" in text_of(pilot))
        app.chat.prompt.fill("/theme high-contrast")
        await pilot.press("escape", "enter")
        await until(pilot, lambda: app.theme == "high-contrast")
        await until(pilot, lambda: settings_module.load().theme == "high-contrast")


async def test_a_theme_that_cannot_be_kept_is_shown_and_the_error_too(path):
    app = app_with(FakeEngine(), path)
    async with app.run_test(notifications=True) as pilot:
        await started(pilot)
        settings_module.settings_file().parent.mkdir(parents=True, exist_ok=True)
        settings_module.settings_file().write_text("theme = [")
        app.chat.prompt.fill("/theme dark")
        await pilot.press("escape", "enter")
        await until(pilot, lambda: any("settings.toml" in one.message for one in app._notifications))
        assert app.theme == "dark"


async def test_the_palette_shows_the_keys_of_commands(path):
    async with app_with(FakeEngine(), path).run_test(size=(100, 60)) as pilot:
        await started(pilot)
        await pilot.press("ctrl+p")
        await until(pilot, lambda: "Start a new conversation" in text_of(pilot))
        lines = text_of(pilot).split("\n")
        for name, key in (("Start a new conversation", "Ctrl+N"), ("Search all conversations", "Ctrl+F")):
            assert any(name in line and key in line for line in lines), name
        assert not any("Rename" in line and "Ctrl" in line for line in lines)
        await pilot.press(*"engine room")
        await until(pilot, lambda: "Rename" not in text_of(pilot))
        assert any("engine room" in line and "Ctrl+G" in line for line in text_of(pilot).split("\n"))


# Messages beside the chat.


async def test_messages_go_with_their_cause_and_stay_off_the_palette(path):
    (first,) = await held(path, "Who?")
    async with app_with(FakeEngine(), path).run_test(size=(100, 30), notifications=True) as pilot:
        app = await started(pilot)
        for end in ("a question", "another conversation", "a model"):
            app.chat.show_message("Mind the gap.", seconds=60)
            await until(pilot, lambda: "Mind the gap." in text_of(pilot))
            await pilot.press("ctrl+p")
            await until(pilot, lambda: "Start a new conversation" in text_of(pilot))
            assert not any(toast.display for toast in app.screen.query("Toast"))
            await pilot.press("escape")
            await until(pilot, lambda: app.screen is app.chat and "Mind the gap." in text_of(pilot))
            match end:
                case "a question":
                    await say(pilot, "Hi")
                case "another conversation":
                    await app.chat.controller.open(first)
                case _:
                    await app.chat.controller.switch_model("other")
            await until(pilot, lambda: "Mind the gap." not in text_of(pilot))


# How a conversation is held.


async def test_parameters_are_changed_in_a_form_and_saved_as_a_preset(path):
    engine = FakeEngine()
    async with app_with(engine, path).run_test(size=(100, 40), notifications=True) as pilot:
        app = await started(pilot)
        await pilot.press("f4")
        await until(pilot, lambda: "frequency penalty" in text_of(pilot))
        await pilot.press(*"Be brief.", "tab", *"9")
        await pilot.press("ctrl+s")
        await until(pilot, lambda: "temperature" in text_of(pilot) and "5" in text_of(pilot))
        assert app.screen is not app.chat
        await pilot.press("backspace", *"0.2", "tab", *"5")
        for _ in range(6):
            await pilot.press("tab")
        await pilot.press(*"terse", "ctrl+s")
        await until(pilot, lambda: app.screen is app.chat)
        await until(pilot, lambda: "terse" in app.session.settings.presets)
        preset = settings_module.load().presets["terse"]
        assert preset == Preset(system="Be brief.", sampling=SamplingDefaults(temperature=0.2, top_k=5))
        await say(pilot, "Hi")
        request = engine.requests[0]
        assert (request.sampling.temperature, request.sampling.top_k) == (0.2, 5)
        assert request.messages[0].content == "Be brief."
        await pilot.press("f4")
        await until(pilot, lambda: "Be brief." in text_of(pilot) and "0.2" in text_of(pilot))
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is app.chat)


async def test_thinking_is_switched_by_a_key_where_the_model_can(path):
    engine = FakeEngine()
    engine.model = msgspec.structs.replace(MODEL, can_switch_thinking=True)
    async with app_with(engine, path).run_test(size=(100, 30), notifications=True) as pilot:
        await started(pilot)
        for wanted, shown in ((True, "thinking on"), (False, "thinking off"), (None, "")):
            await pilot.press("f3")
            await until(pilot, lambda shown=shown: shown in text_of(pilot))
            await say(pilot, "Hi")
            assert engine.requests[-1].think is wanted
        assert "thinking o" not in text_of(pilot)
        engine.model = MODEL
        await pilot.press("f3")
        await until(pilot, lambda: "thinking cannot be switched" in text_of(pilot))


async def test_what_the_settings_say_of_new_chats_is_heeded(path):
    said = Settings(system="Be kind.", think=False)
    engine = FakeEngine()
    async with app_with(engine, path, settings=said).run_test() as pilot:
        await started(pilot)
        await say(pilot, "Hi")
        assert engine.requests[0].messages[0].content == "Be kind."
        assert engine.requests[0].think is None  # this model has no such switch
        engine.model = msgspec.structs.replace(MODEL, can_switch_thinking=True)
        await pilot.press("ctrl+n")
        await say(pilot, "Hi")
        assert engine.requests[1].messages[0].content == "Be kind."
        assert engine.requests[1].think is False


async def test_settings_open_and_count_at_once(path):
    async with app_with(FakeEngine(), path).run_test(size=(100, 40)) as pilot:
        app = await started(pilot)
        await pilot.press("f2")
        await until(pilot, lambda: "settings.toml" in "".join(text_of(pilot).split()))
        await pilot.press("slash", *"theme", "enter")
        await until(pilot, lambda: "terminal" in text_of(pilot))
        await pilot.press("enter")
        await until(pilot, lambda: app.theme != "terminal")
        await pilot.press("escape", "escape")
        await until(pilot, lambda: app.screen is app.chat)
        assert settings_module.load().theme == app.theme


# Models.


async def test_the_first_run_and_the_models_screen_in_the_app(path):
    fake = world(Path("/models"))
    async with app_with(FakeEngine(), path, library=fake.library()).run_test(size=(100, 40)) as pilot:
        await until(pilot, lambda: "Welcome to edgechat" in text_of(pilot))
        await until(pilot, lambda: "small-1b" in text_of(pilot))
        await pilot.press("1")
        await until(pilot, lambda: "small-1b it is." in text_of(pilot))
        await say(pilot, "Hi")
        assert isinstance(pilot.app, EdgechatApp)
        assert pilot.app.session.model == "small-1b"
    async with app_with(FakeEngine(), path, library=fake.library()).run_test(size=(100, 40)) as pilot:
        app = await started(pilot)
        assert app.session.model == "small-1b"
        await pilot.press("ctrl+o")
        await until(pilot, lambda: "On this machine" in text_of(pilot) and "ollama" in text_of(pilot))
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is app.chat)
