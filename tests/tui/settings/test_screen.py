"""The settings screen: what is chosen is in the file, and what is wrong is told where it was typed."""

import asyncio

import pytest
from textual.app import App
from textual.widgets import Input, TextArea

from edgechat import settings
from edgechat.settings import Preset, SamplingDefaults, Settings, documented
from edgechat.tui import theme
from edgechat.tui.settings.entries import entries
from edgechat.tui.settings.row import SettingRow
from edgechat.tui.settings.screen import GroupHeading, NewPreset, SettingsScreen
from tests.tui.driving import text_of, until

pytestmark = pytest.mark.slow


class Sample(App[None]):
    """An app that does with `Changed` what edgechat does."""

    CSS = theme.STYLES
    ENABLE_COMMAND_PALETTE = False

    def __init__(self):
        super().__init__(ansi_color=True)
        self.changes = []
        self.animation_level = "none"
        theme.apply(self, "terminal")

    def on_mount(self):
        self.push_screen(SettingsScreen())

    def on_settings_screen_changed(self, event):
        self.changes.append(event.path)
        theme.apply(self, event.settings.theme)


@pytest.fixture(autouse=True)
def online(monkeypatch):
    for name in ("EDGECHAT_OFFLINE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)


def write(text):
    path = settings.settings_file()
    path.write_text(text)
    return path


def row(pilot, *path):
    return next(one for one in pilot.app.screen.query(SettingRow) if one.entry.path == path)


async def at(pilot, *path):
    """Go to a setting."""
    found = row(pilot, *path)
    found.focus()
    await pilot.pause()
    return found


async def saved(pilot, expected):
    await until(pilot, lambda: settings.load() == expected and not pilot.app.workers._workers)
    await pilot.pause()


def shown(one):
    """Return the value as the row shows it."""
    return str(one.query_one(".row--value").render())


def fault(one):
    found = one.query_one(".row--fault")
    return str(found.render()) if found.display else ""


def test_every_setting_is_listed():
    listed = [".".join(one.path) for one in entries(Settings())]
    assert sorted(listed) == sorted(
        one.name for one in documented() if one.name not in ("presets", "prompts", "remotes", "engines")
    )
    (prompt,) = [one for one in entries(Settings(prompts={"tr": "To {it}"})) if one.path[0] == "prompts"]
    assert (prompt.path, prompt.heading, prompt.editor) == (("prompts", "tr"), "Prompts", "text")
    assert (prompt.parse("To {her}"), prompt.parse(" ")) == ("To {her}", None)
    of_preset = [one for one in entries(Settings(presets={"a.b": Preset()})) if one.path[0] == "presets"]
    assert {one.path[2] for one in of_preset} == set(Preset.__struct_fields__)
    assert {one.path[3] for one in of_preset if one.path[2] == "sampling"} == set(
        SamplingDefaults.__struct_fields__
    )


@pytest.mark.parametrize("size", [(60, 24), (100, 30), (160, 40)])
async def test_the_screen_shows_values_defaults_and_the_file(size):
    write("context = 8192\n")
    async with Sample().run_test(size=size) as pilot:
        await pilot.pause()
        text = text_of(pilot)
        assert "settings.toml" in "".join(text.split())
        assert "context             8192" in text.replace("  ", "  ")
        assert shown(row(pilot, "context")) == "8192"
        assert "default: the one used last" in shown(row(pilot, "model"))
        assert "Applies when a model is loaded next." in row(pilot, "context").entry.description
        assert "Change" in text
        for one in pilot.app.screen.query(SettingRow):
            assert one.region.right <= size[0]


async def test_a_switch_is_written_at_once_and_reset_by_a_key():
    path = write("# mine\nsettle = true # always\n")
    async with Sample().run_test() as pilot:
        one = await at(pilot, "settle")
        await pilot.press("enter")
        await saved(pilot, Settings(settle=False))
        assert path.read_text() == "# mine\nsettle = false # always\n"
        assert shown(one) == "‹ off ›"
        await pilot.press("delete")
        await saved(pilot, Settings())
        assert shown(one) == "‹ default: on ›"
        assert path.read_text() == "# mine\n"
        assert pilot.app.changes == [("settle",), ("settle",)]


async def test_a_choice_goes_through_all_there_are_and_the_theme_counts_at_once():
    async with Sample().run_test() as pilot:
        await at(pilot, "theme")
        for name in ("dark", "light", "high-contrast", "terminal"):
            await pilot.press("right")
            await saved(pilot, Settings(theme=name))
            await until(pilot, lambda name=name: pilot.app.theme == name)
        await pilot.press("left")
        await saved(pilot, Settings(theme="high-contrast"))


async def test_what_may_be_left_open_can_be():
    async with Sample().run_test() as pilot:
        await at(pilot, "think")
        for value in (True, False, None, True):
            await pilot.press("space")
            await saved(pilot, Settings(think=value))


async def test_a_number_is_checked_as_it_is_typed():
    async with Sample().run_test() as pilot:
        one = await at(pilot, "threads")
        await pilot.press("enter", *"600")
        await pilot.pause()
        assert fault(one) == "! Allowed: a whole number, 1 to 512."
        await pilot.press("enter")
        await pilot.pause()
        assert not settings.settings_file().exists()
        assert one.editor is not None
        await pilot.press("backspace")
        await pilot.pause()
        assert fault(one) == ""
        await pilot.press("enter")
        await saved(pilot, Settings(threads=60))
        assert one.editor is None
        assert one.has_focus
        assert shown(one) == "60"


@pytest.mark.parametrize("typed", ["x", "nan", "inf", "-1", "1e9999"])
async def test_numbers_that_are_none(typed):
    async with Sample().run_test() as pilot:
        one = await at(pilot, "sampling", "temperature")
        await pilot.press("enter")
        one.query_one(Input).value = typed
        await pilot.press("enter")
        await pilot.pause()
        assert fault(one) == "! Allowed: a number, 0 to 5."
        await pilot.press("escape")
        await pilot.pause()
        assert (one.editor, fault(one)) == (None, "")
        assert not settings.settings_file().exists()


async def test_escape_gives_up_and_going_on_saves():
    write('model = "guide"\n')
    async with Sample().run_test() as pilot:
        one = await at(pilot, "model")
        await pilot.press("enter", *"-2", "escape")
        await pilot.pause()
        assert shown(one) == "guide"
        await pilot.press("enter", *"-2", "down")
        await saved(pilot, Settings(model="guide-2"))
        await until(pilot, lambda: one.editor is None)
        assert row(pilot, "context").has_focus


async def test_nothing_typed_is_the_default():
    write('model = "a"\n')
    async with Sample().run_test() as pilot:
        await at(pilot, "model")
        await pilot.press("enter", "backspace", "enter")
        await saved(pilot, Settings())


async def test_the_name_of_a_model_is_completed():
    async with Sample().run_test() as pilot:
        one = await at(pilot, "model")
        await pilot.press("enter", *"qwen3-4")
        await until(pilot, lambda: one.query_one(Input)._suggestion == "qwen3-4b")
        await pilot.press("right", "enter")
        await saved(pilot, Settings(model="qwen3-4b"))


async def test_a_system_prompt_has_lines():
    async with Sample().run_test() as pilot:
        one = await at(pilot, "system")
        await pilot.press("enter", *"one", "enter", *"two")
        assert one.query_one(TextArea).text == "one\ntwo"
        await pilot.press("ctrl+s")
        await saved(pilot, Settings(system="one\ntwo"))
        assert shown(one) == "one two"


async def test_a_list():
    async with Sample().run_test() as pilot:
        one = await at(pilot, "rpc")
        await pilot.press("enter")
        one.query_one(Input).value = "127.0.0.1:1, 127.0.0.1:2"
        await pilot.press("enter")
        await saved(pilot, Settings(rpc=("127.0.0.1:1", "127.0.0.1:2")))
        assert shown(one) == "127.0.0.1:1, 127.0.0.1:2"


async def test_presets_are_made_changed_and_deleted():
    async with Sample().run_test(size=(100, 40)) as pilot:
        await pilot.press("end", *"coder", "enter")
        await saved(pilot, Settings(presets={"coder": Preset()}))
        heading = pilot.app.screen.focused
        assert isinstance(heading, GroupHeading)
        await pilot.press("down", "down", "enter")
        await saved(pilot, Settings(presets={"coder": Preset(think=True)}))
        await pilot.press("down", "enter", *"0.5", "enter")
        expected = Preset(think=True, sampling=SamplingDefaults(temperature=0.5))
        await saved(pilot, Settings(presets={"coder": expected}))
        heading.focus()
        await pilot.press("delete")
        await pilot.pause()
        assert "again" in text_of(pilot)
        assert settings.load().presets
        await pilot.press("delete")
        await saved(pilot, Settings())
        assert not any(one.preset for one in pilot.app.screen.query(GroupHeading))


@pytest.mark.parametrize(("name", "said"), [("", "1 to 40"), ("a" * 41, "1 to 40"), ("old", "of that name")])
async def test_names_that_no_preset_may_have(name, said):
    path = write("[presets.old]\n")
    async with Sample().run_test() as pilot:
        field = pilot.app.screen.query_one(NewPreset)
        field.focus()
        field.value = name
        await pilot.press("enter")
        await pilot.pause()
        assert said in str(field.border_subtitle)
        assert path.read_text() == "[presets.old]\n"


async def test_the_filter():
    async with Sample().run_test(size=(60, 24)) as pilot:
        await pilot.press("slash", *"battery")
        await pilot.pause()
        assert [one.entry.path for one in pilot.app.screen.query(SettingRow) if one.display] == [
            ("settle_on_battery",)
        ]
        assert "Machine" in text_of(pilot)
        assert "Sampling" not in text_of(pilot)
        await pilot.press("enter", "enter")
        await saved(pilot, Settings(settle_on_battery=False))
        await pilot.press("slash", *"xyz")
        await pilot.pause()
        assert "No setting matches." in text_of(pilot)
        await pilot.press("escape")
        await pilot.pause()
        assert row(pilot, "model").display
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(pilot.app.screen, SettingsScreen))


async def test_up_and_down_go_everywhere():
    async with Sample().run_test(size=(60, 24)) as pilot:
        await until(pilot, lambda: row(pilot, "model").has_focus)
        n = len(pilot.app.screen.query(SettingRow))
        for _ in range(n):
            await pilot.press("down")
        assert isinstance(pilot.app.screen.focused, NewPreset)
        for _ in range(n):
            await pilot.press("up")
        assert row(pilot, "model").has_focus
        await pilot.press("up")
        assert pilot.app.screen.focused is pilot.app.screen.query_one("#settings-filter")
        await pilot.press("down", "pagedown", "pagedown")
        focused = pilot.app.screen.focused
        assert isinstance(focused, SettingRow)
        assert focused.entry.path != ("model",)
        await pilot.press("home")
        assert row(pilot, "model").has_focus


async def test_a_double_click_changes():
    async with Sample().run_test(size=(100, 40)) as pilot:
        await pilot.click(row(pilot, "context"))
        assert row(pilot, "context").has_focus
        await pilot.click(row(pilot, "context"), times=2)
        await pilot.pause()
        assert row(pilot, "context").editor is not None


async def test_the_environment_wins_and_is_named(monkeypatch):
    monkeypatch.setenv("EDGECHAT_OFFLINE", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    async with Sample().run_test() as pilot:
        await pilot.pause()
        assert shown(row(pilot, "offline")) == "default: off  now on, because of EDGECHAT_OFFLINE"
        assert "NO_COLOR" in shown(row(pilot, "theme"))


async def test_a_broken_file_is_told_of_and_left_alone():
    path = write("context = \n")
    async with Sample().run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: "cannot be read" in " ".join(text_of(pilot).split()))
        one = await at(pilot, "settle")
        await pilot.press("enter")
        await until(pilot, lambda: "cannot be read" in fault(one))
        assert path.read_text() == "context = \n"


async def test_a_wrong_value_can_be_put_right_here():
    write("threads = 0\n")
    async with Sample().run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: "threads" in text_of(pilot))
        assert "threads = 0 is not valid" in " ".join(text_of(pilot).split())
        one = await at(pilot, "threads")
        await pilot.press("enter", "backspace", "4", "enter")
        await saved(pilot, Settings(threads=4))
        assert "is not valid" not in text_of(pilot)
        assert shown(one) == "4"


async def test_what_another_program_writes_is_kept_and_shown():
    async with Sample().run_test() as pilot:
        one = await at(pilot, "settle")
        await asyncio.to_thread(settings.change, "threads", 3)
        await pilot.press("enter")
        await saved(pilot, Settings(settle=False, threads=3))
        assert one.has_focus
        await until(pilot, lambda: shown(row(pilot, "threads")) == "3")


async def test_nothing_of_the_file_reaches_the_terminal_raw():
    write('model = "a\\u001b[2J[bold]"\n[presets."x[red]"]\nsystem = "\\u001b]0;x\\u0007"\n')
    async with Sample().run_test(size=(160, 80)) as pilot:
        await pilot.pause()
        text = text_of(pilot)
        assert "a[2J[bold]" in text
        assert "\x1b" not in text
        await pilot.press("end")
        await pilot.pause()
        assert "Preset x[red]" in text_of(pilot)
        await at(pilot, "presets", "x[red]", "system")
        await pilot.press("enter")
        await pilot.pause()
        assert "\x1b" not in text_of(pilot)


def test_a_key_that_comes_after_the_screen_was_left_changes_nothing():
    for entry in entries(Settings()):
        row = SettingRow(entry, None)  # in no screen any more
        if entry.editor != "choice":
            row.action_edit()
            assert row.editor is None
