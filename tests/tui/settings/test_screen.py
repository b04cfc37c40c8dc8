"""The settings screen: what is chosen is in the file, and what is wrong is told where it was typed."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from textual.app import App
from textual.widgets import Input, TextArea

from edgechat import settings
from edgechat.settings import Preset, SamplingDefaults, Settings, documented
from edgechat.tui import theme
from edgechat.tui.settings.rows import SettingRow, entries
from edgechat.tui.settings.screen import GroupHeading, NewPreset, SettingsScreen
from tests.tui.driving import driven

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


@asynccontextmanager
async def opened(*path, file="", size=(80, 24)):
    """Open the screen over a settings file, and go to a setting, if one is named."""
    if file:
        settings.settings_file().write_text(file)
    async with driven(Sample(), size=size) as pilot:
        await pilot.pause()
        yield pilot, await at(pilot, *path) if path else None


def written():
    return settings.settings_file().read_text() if settings.settings_file().exists() else None


def row(pilot, *path):
    return next(one for one in pilot.app.screen.query(SettingRow) if one.entry.path == path)


async def at(pilot, *path):
    """Go to a setting."""
    found = row(pilot, *path)
    found.focus()
    await pilot.pause()
    return found


async def saved(pilot, expected):
    await pilot.until(lambda: settings.load() == expected and not pilot.app.workers._workers)
    await pilot.pause()


async def press(pilot, *keys):
    await pilot.press(*keys)
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
    async with opened(file="context = 8192\n", size=size) as (pilot, _):
        assert "settings.toml" in "".join(pilot.text.split())
        pilot.shows("context             8192", "Change")
        assert shown(row(pilot, "context")) == "8192"
        assert "default: the one used last" in shown(row(pilot, "model"))
        assert "Applies the next time a model is loaded." in row(pilot, "context").entry.description
        assert all(one.region.right <= size[0] for one in pilot.app.screen.query(SettingRow))


async def test_a_switch_is_written_at_once_and_reset_by_a_key():
    async with opened("settle", file="# mine\nsettle = true # always\n") as (pilot, one):
        await pilot.press("enter")
        await saved(pilot, Settings(settle=False))
        assert (written(), shown(one)) == ("# mine\nsettle = false # always\n", "‹ off ›")
        await pilot.press("delete")
        await saved(pilot, Settings())
        assert (written(), shown(one)) == ("# mine\n", "‹ default: on ›")
        assert pilot.app.changes == [("settle",), ("settle",)]


async def test_a_choice_goes_through_all_there_are_and_the_theme_counts_at_once():
    async with opened("theme") as (pilot, _):
        for name in ("dark", "light", "high-contrast", "terminal"):
            await pilot.press("right")
            await saved(pilot, Settings(theme=name))
            await pilot.until(lambda name=name: pilot.app.theme == name)
        await pilot.press("left")
        await saved(pilot, Settings(theme="high-contrast"))
        await at(pilot, "think")  # which may be left open
        for value in (True, False, None, True):
            await pilot.press("space")
            await saved(pilot, Settings(theme="high-contrast", think=value))


async def test_a_number_is_checked_as_it_is_typed():
    async with opened("threads") as (pilot, one):
        await press(pilot, "enter", *"600")
        assert fault(one) == "! Allowed: a whole number, 1 to 512."
        await press(pilot, "enter")
        assert written() is None
        assert one.editor is not None
        await press(pilot, "backspace")
        assert fault(one) == ""
        await pilot.press("enter")
        await saved(pilot, Settings(threads=60))
        assert (one.editor, one.has_focus, shown(one)) == (None, True, "60")


async def test_numbers_that_are_none():
    async with opened("sampling", "temperature") as (pilot, one):
        for typed in ("x", "nan", "inf", "-1", "1e9999"):
            await pilot.press("enter")
            one.query_one(Input).value = typed
            await press(pilot, "enter")
            assert fault(one) == "! Allowed: a number, 0 to 5.", typed
            await press(pilot, "escape")
            assert (one.editor, fault(one), written()) == (None, "", None)


async def test_escape_gives_up_and_going_on_saves():
    async with opened("model", file='model = "guide"\n') as (pilot, one):
        await press(pilot, "enter", *"-draft", "escape")
        assert shown(one) == "guide"
        await pilot.press("enter", *"-draft", "down")
        await saved(pilot, Settings(model="guide-draft"))
        await pilot.until(lambda: one.editor is None)
        assert row(pilot, "context").has_focus


@pytest.mark.parametrize("name", ["model", "draft", "embedding_model", "reranking_model"])
async def test_a_model_that_is_nowhere_is_not_written(name):
    async with opened(name) as (pilot, one):
        await pilot.press("enter", *"guied", "enter")
        await pilot.until(lambda: "no model with that name" in fault(one))
        assert written() is None


async def complete(pilot, one):
    await pilot.until(lambda: one.query_one(Input)._suggestion == "qwen3-4b")
    await pilot.press("right", "enter")


RPC = ("127.0.0.1:1", "127.0.0.1:2")


async def save_lines(pilot, one):
    assert one.query_one(TextArea).text == "one\ntwo"
    await pilot.press("ctrl+s")


@pytest.mark.parametrize(
    ("path", "file", "keys", "then", "expected", "value"),
    [
        ("model", 'model = "a"\n', ["backspace", "enter"], None, Settings(), "default: the one used last"),
        ("model", "", [*"qwen3-4"], complete, Settings(model="qwen3-4b"), "qwen3-4b"),
        ("system", "", [*"one", "enter", *"two"], save_lines, Settings(system="one\ntwo"), "one two"),
        ("rpc", "", [*",".join(RPC), "enter"], None, Settings(rpc=RPC), ", ".join(RPC)),
    ],
    ids=["nothing typed is the default", "the name of a model is completed", "lines", "a list"],
)
async def test_what_is_typed_is_saved_and_shown(path, file, keys, then, expected, value):
    async with opened(path, file=file) as (pilot, one):
        await pilot.press("enter", *keys)
        if then is not None:
            await then(pilot, one)
        await saved(pilot, expected)
        assert value in shown(one)


async def test_presets_are_made_changed_and_deleted():
    async with opened(size=(100, 40)) as (pilot, _):
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
        await pilot.press("delete", shown="again")
        assert settings.load().presets
        await pilot.press("delete")
        await saved(pilot, Settings())
        assert not any(one.preset for one in pilot.app.screen.query(GroupHeading))


async def test_names_that_no_preset_may_have():
    async with opened(file="[presets.old]\n") as (pilot, _):
        field = pilot.app.screen.query_one(NewPreset)
        field.focus()
        for name, said in (("", "1 to 40"), ("old", "with that name"), ("a" * 41, "1 to 40")):
            field.value = name
            await press(pilot, "enter")
            assert said in str(field.border_subtitle)
            assert written() == "[presets.old]\n"


async def test_the_filter():
    async with opened(size=(60, 24)) as (pilot, _):
        await press(pilot, "slash", *"battery")
        listed = [one.entry.path for one in pilot.app.screen.query(SettingRow) if one.display]
        assert listed == [("settle_on_battery",)]
        pilot.shows("Machine", hidden="Sampling")
        await pilot.press("enter", "enter")
        await saved(pilot, Settings(settle_on_battery=False))
        await pilot.press("slash", *"xyz", shown="No setting matches.")
        await press(pilot, "escape")
        assert row(pilot, "model").display
        await pilot.press("escape", until=lambda: not isinstance(pilot.app.screen, SettingsScreen))


async def test_up_and_down_go_everywhere():
    async with opened(size=(60, 24)) as (pilot, _):
        await pilot.until(lambda: row(pilot, "model").has_focus)
        n, screen = len(pilot.app.screen.query(SettingRow)), pilot.app.screen
        for action, there in (("down", screen.query_one(NewPreset)), ("up", row(pilot, "model"))):
            await pilot.press(*[action] * n)
            assert screen.focused is there
        await pilot.press("up")
        assert screen.focused is screen.query_one("#settings-filter")
        await pilot.press("down", "pagedown", "pagedown")
        assert isinstance(screen.focused, SettingRow)
        assert screen.focused.entry.path != ("model",)
        await pilot.press("home")
        assert row(pilot, "model").has_focus


async def test_a_double_click_changes():
    async with opened(size=(100, 40)) as (pilot, _):
        await pilot.click(row(pilot, "context"))
        assert row(pilot, "context").has_focus
        await pilot.click(row(pilot, "context"), times=2)
        await pilot.pause()
        assert row(pilot, "context").editor is not None


async def test_the_environment_wins_and_is_named(monkeypatch):
    monkeypatch.setenv("EDGECHAT_OFFLINE", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    async with opened() as (pilot, _):
        assert shown(row(pilot, "offline")) == "default: off  now on, because of EDGECHAT_OFFLINE"
        assert "NO_COLOR" in shown(row(pilot, "theme"))


async def test_a_broken_file_is_told_of_and_left_alone():
    async with opened("settle", file="context = \n", size=(100, 30)) as (pilot, one):
        await pilot.until(lambda: "cannot be read" in " ".join(pilot.text.split()))
        await pilot.press("enter", until=lambda: "cannot be read" in fault(one))
        assert written() == "context = \n"


async def test_a_wrong_value_can_be_put_right_here():
    async with opened("threads", file="threads = 0\n", size=(100, 30)) as (pilot, one):
        await pilot.see("threads")
        assert "threads = 0 is not valid" in " ".join(pilot.text.split())
        await pilot.press("enter", "backspace", "4", "enter")
        await saved(pilot, Settings(threads=4))
        pilot.shows(hidden="is not valid")
        assert shown(one) == "4"


async def test_what_another_program_writes_is_kept_and_shown():
    async with opened("settle") as (pilot, one):
        await asyncio.to_thread(settings.change, "threads", 3)
        await pilot.press("enter")
        await saved(pilot, Settings(settle=False, threads=3))
        assert one.has_focus
        await pilot.until(lambda: shown(row(pilot, "threads")) == "3")


async def test_nothing_of_the_file_reaches_the_terminal_raw():
    file = 'model = "a\\u001b[2J[bold]"\n[presets."x[red]"]\nsystem = "\\u001b]0;x\\u0007"\n'
    async with opened(file=file, size=(160, 80)) as (pilot, _):
        pilot.shows("a[2J[bold]", hidden="\x1b")
        await pilot.press("end", shown="Preset x[red]")
        await at(pilot, "presets", "x[red]", "system")
        await pilot.press("enter", hidden="\x1b")


def test_a_key_that_comes_after_the_screen_was_left_changes_nothing():
    for entry in entries(Settings()):
        row = SettingRow(entry, None)  # in no screen any more
        if entry.editor != "choice":
            row.action_edit()
            assert row.editor is None
