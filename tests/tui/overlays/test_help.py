"""The help screen shows the bindings as they are, and every binding says what it does."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from typing import ClassVar

import pytest
from textual.app import App
from textual.binding import Binding, BindingType
from textual.dom import DOMNode
from textual.screen import Screen
from textual.widgets import Input, Static

import edgechat.tui
from edgechat.tui import theme
from edgechat.tui.app import EdgechatApp, parts
from edgechat.tui.chat.screen import ChatScreen
from edgechat.tui.overlays.help import _TASK_OF, _TASKS, HelpScreen, bindings_of, key_names, sections
from edgechat.tui.settings.screen import SettingsScreen
from tests.tui.driving import driven


class Base(Static):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+j,shift+enter", "newline", "New line"),
        ("x", "cross", "Cross out"),
        Binding("pageup", "page", "A page up", show=False),
        Binding("ctrl+c", "nothing"),
    ]


class Derived(Base):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("x", "cross", "Cross it"),
        ("question_mark", "ask", "Ask"),
    ]


COMMANDS = [("new", "", "Begin a new chat"), ("model", "NAME", "Go on with [another] model\x1b[2J\nat once")]


class Sample(App[None]):
    CSS = theme.STYLES
    ENABLE_COMMAND_PALETTE = False

    def __init__(self):
        super().__init__(ansi_color=True)
        self.animation_level = "none"
        theme.apply(self, "terminal")

    def on_mount(self):
        sections = [("Here", bindings_of(Derived)), ("Help", bindings_of(HelpScreen)), ("Empty", [])]
        self.push_screen(HelpScreen(sections, COMMANDS))


def test_bindings_are_read_from_the_classes():
    found = [(one.key, one.action, one.description) for one in bindings_of(Derived, Base)]
    assert found == [
        ("x", "cross", "Cross it"),
        ("question_mark", "ask", "Ask"),
        ("ctrl+j,shift+enter", "newline", "New line"),
        ("pageup", "page", "A page up"),
        ("ctrl+c", "nothing", ""),
    ]


def test_textuals_own_bindings_are_left_out():
    assert bindings_of(Input, App) == []


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("ctrl+j,shift+enter", "Ctrl+J, Shift+Enter"),
        ("pageup", "Page Up"),
        ("f1", "F1"),
        ("q", "q"),
        ("G", "G"),
        ("slash", "/"),
        ("ctrl+shift+delete", "Ctrl+Shift+Delete"),
        ("ctrl+pagedown", "Ctrl+Page Down"),
        ("left_square_bracket", "Left square bracket"),
    ],
)
def test_keys_are_named_as_on_the_keyboard(key, words):
    assert key_names(Binding(key, "x")) == words


def own_nodes():
    for module in pkgutil.walk_packages(edgechat.tui.__path__, "edgechat.tui."):
        for _, one in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            if issubclass(one, DOMNode) and one.__module__.startswith("edgechat."):
                yield one


def test_every_binding_says_what_it_does():
    found = {one: bindings_of(one) for one in own_nodes()}
    assert found
    silent = {(one.__name__, b.key) for one, bindings in found.items() for b in bindings if not b.description}
    assert silent == set()


def test_every_key_is_listed_by_what_it_is_for():
    listed = sections(parts(), Screen())
    titles = [title for title, _ in listed]
    tasks = ["Writing", "Reading", "Conversations", "Models", "The app"]
    assert [title for title in titles if title in tasks] == tasks
    assert all(title.partition(" — ")[0] in tasks for title in titles)
    pairs = {(binding.description, title) for title, bindings in listed for binding in bindings}
    descriptions = {description for description, _ in pairs}
    for _, classes in parts():
        assert {binding.description for binding in bindings_of(*classes)} <= descriptions
    assert pairs >= {
        ("Send", "Writing"),
        ("Stop", "Writing"),
        ("Copy code", "Reading — the turns: Tab in the prompt, or a click"),
        ("New chat", "Conversations"),
        ("Engine", "Models"),
        ("Quit", "The app"),
    }
    names = {name for places in _TASKS.values() for name in places}
    assert names == {title.partition(":")[0] for title, _ in parts()}
    actions = {binding.action.partition("(")[0] for binding in bindings_of(EdgechatApp, ChatScreen)}
    assert set(_TASK_OF) <= actions


def test_the_keys_of_another_screen_come_first():
    (title, bindings), *_ = sections(parts(), SettingsScreen())
    assert title == "The settings"
    assert "Filter" in [binding.description for binding in bindings]


@pytest.mark.slow
@pytest.mark.parametrize("size", [(60, 24), (100, 30), (160, 40)])
async def test_it_shows_keys_and_commands(size):
    async with driven(Sample(), size=size) as pilot:
        await pilot.pause()
        pilot.shows("Ctrl+J, Shift+Enter", "New line", "A page up", hidden=("nothing", "Empty"))
        await pilot.press("end")
        await pilot.pause()
        text = " ".join(pilot.text.replace("│", "").split())
        assert "/model NAME Go on with [another] model[2J at once" in text
        assert "\x1b" not in text


@pytest.mark.slow
async def test_it_is_searched():
    async with driven(Sample(), size=(60, 24)) as pilot:
        await pilot.press("slash", *"page", shown="A page up", hidden=("New line", "/new"))
        await pilot.press("space", *"zzz", shown="No key or command matches.")
        await pilot.press("escape", shown="New line")
        assert isinstance(pilot.app.screen, HelpScreen)


@pytest.mark.slow
@pytest.mark.parametrize("key", ["escape", "q", "f1"])
async def test_it_is_closed(key):
    async with driven(Sample()) as pilot:
        await pilot.pause()
        assert isinstance(pilot.app.screen, HelpScreen)
        await pilot.press(key, until=lambda: not isinstance(pilot.app.screen, HelpScreen))


@pytest.mark.slow
async def test_q_can_be_searched_for():
    async with driven(Sample()) as pilot:
        await pilot.press("slash", "q")
        await pilot.pause()
        assert isinstance(pilot.app.screen, HelpScreen)
        assert pilot.app.screen.query_one(Input).value == "q"


@pytest.mark.slow
async def test_it_scrolls_by_keys():
    async with driven(Sample(), size=(60, 16)) as pilot:
        await pilot.pause()
        listed = pilot.app.screen.query_one("#help-list")
        for key, moved in (
            ("down", 1),
            ("j", 2),
            ("up", 1),
            ("k", 0),
            ("end", listed.max_scroll_y),
            ("home", 0),
        ):
            await pilot.press(key)
            await pilot.pause()
            assert listed.scroll_y == moved, key
        await pilot.press("pagedown")
        await pilot.pause()
        assert listed.scroll_y > 2
