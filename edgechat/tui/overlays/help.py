"""Help screen: the keys for every part of the app, and the slash commands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from rich.table import Table
from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Static

from edgechat.base.text import one_line
from edgechat.chat.commands import commands_of
from edgechat.tui.widgets.dialogs import AppScreen, ScreenScroll
from edgechat.tui.widgets.fields import LineField
from edgechat.tui.widgets.key_bar import KeyBar

Part = tuple[str, tuple[type, ...]]
"""A part of the app, and the classes that define its keys."""
Section = tuple[str, Sequence[Binding]]
"""A title, and the key bindings listed under it."""
Command = tuple[str, str, str]
"""A slash command: its name without the slash, its argument or '', and its description."""

_NAMES = {
    "pageup": "Page Up",
    "pagedown": "Page Down",
    "escape": "Esc",
    "slash": "/",
    "question_mark": "?",
    "up": "↑",
    "down": "↓",
    "left": "←",
    "right": "→",
    "enter": "Enter",
    "space": "Space",
}
_KEYS_WIDTH = 22
_APP = "The app"
_TASKS = {
    "Writing": (
        "The prompt",
        "System prompt and parameters",
        "The tools",
        "A call of a tool",
        "The documents",
    ),
    "Reading": ("The chat", "The turns", "A passage of a document"),
    "Conversations": ("The conversations",),
    "Models": ("The models", "The first run", "The engine room"),
    _APP: ("Everywhere", "The settings"),
}
"""Tasks, each with the parts of the app whose keys it includes; `_TASK_OF` lists exceptions."""
_TASK_OF = {
    **dict.fromkeys(
        (
            "restore_prompt",
            "take_back",
            "stop",
            "retry",
            "switch_thinking",
            "parameters",
            "tools",
            "stop_reading",
        ),
        "Writing",
    ),
    **dict.fromkeys(("scroll",), "Reading"),
    **dict.fromkeys(("new_chat", "conversations", "search", "undo_delete"), "Conversations"),
    **dict.fromkeys(("models", "switch_model", "engine_room"), "Models"),
}
"""Tasks keyed by action, for actions in shared parts that do not belong to their part's task."""
_SHARED = ("Everywhere", "The chat", "The prompt")
"""Parts whose keys are listed directly under a task, without the part's name."""


def bindings_of(*classes: type) -> list[Binding]:
    """Return the bindings of widgets, screens and apps as declared, without splitting their keys.

    Includes hidden bindings and those inherited from classes outside Textual, without duplicates.
    """
    bindings: dict[tuple[str, str], Binding] = {}
    for widget_class in classes:
        for base in widget_class.__mro__:
            if not base.__module__.startswith("textual."):
                for binding in vars(base).get("BINDINGS", ()):
                    if isinstance(binding, tuple):
                        binding = Binding(*binding)
                    bindings.setdefault((binding.key, binding.action), binding)
    return list(bindings.values())


def sections(parts: Sequence[Part], screen: Screen[object]) -> list[Section]:
    """Return the keys grouped by task, after the current screen's own unless that screen is the chat."""
    keys: dict[str, list[Binding]] = {task: [] for task in _TASKS}
    places: dict[str, list[Section]] = {task: [] for task in _TASKS}
    here: list[Section] = []
    for title, classes in parts:
        bindings = _without_ranges(bindings_of(*classes))
        task = next((task for task, places in _TASKS.items() if title.partition(":")[0] in places), _APP)
        if title in _SHARED:
            for binding in bindings:
                action = binding.action.removeprefix("screen.").partition("(")[0]
                keys[_TASK_OF.get(action, task)].append(binding)
        elif isinstance(screen, classes):
            here.append((title, bindings))
        else:
            places[task].append((f"{task} — {title[0].lower()}{title[1:]}", bindings))
    return here + [section for task in _TASKS for section in ((task, _once(keys[task])), *places[task])]


def _once(bindings: Iterable[Binding]) -> list[Binding]:
    """Return the bindings, keeping only one for each combination of key and description."""
    return list({(binding.key, binding.description): binding for binding in bindings}.values())


def _without_ranges(bindings: list[Binding]) -> list[Binding]:
    """Return the bindings except those covered by an earlier binding's displayed key, such as '1-9'."""
    listed: list[Binding] = []
    for binding in bindings:
        last = listed[-1] if listed else None
        if last is None or binding.show or not (last.key_display and last.description == binding.description):
            listed.append(binding)
    return listed


def commands() -> list[Command]:
    """Return the app's slash commands."""
    return [(command.name, command.argument, command.description) for command in commands_of("app")]


def key_names(binding: Binding) -> str:
    """Return a binding's keys as labelled on a keyboard, such as 'Ctrl+J, Shift+Enter'."""
    if binding.key_display:
        return binding.key_display
    return ", ".join(_key(key.strip()) for key in binding.key.split(","))


def _key(key: str) -> str:
    *modifiers, key = key.split("+")
    name = _NAMES.get(key) or (key.upper() if len(key) == 1 and modifiers else key)
    if len(name) > 1 and name.isascii() and name.islower():
        name = name.replace("_", " ").capitalize()
    return "+".join([*(modifier.capitalize() for modifier in modifiers), name])


class _HelpSection(Static):
    """The keys or commands under a heading, filtered by the search."""

    DEFAULT_CSS = """
    _HelpSection {
        height: auto; padding: 0 1; margin: 0 1;
        border: round $border-blurred; border-title-color: $primary; border-title-style: bold;
    }
    """

    def __init__(self, title: str, rows: Sequence[tuple[str, str]]) -> None:
        super().__init__()
        self._title = title
        self._rows = rows
        self.border_title = Content(title)

    def filter(self, words: Sequence[str]) -> bool:
        """Show the rows that, with the heading, contain all words; return whether there are any."""
        rows = [
            (keys, description)
            for keys, description in self._rows
            if all(word in f"{self._title} {keys} {description}".lower() for word in words)
        ]
        self.display = bool(rows)
        # Rich's table indents wrapped descriptions to its second column.
        table = Table.grid(padding=(0, 2), expand=True)
        table.add_column(width=_KEYS_WIDTH)
        table.add_column(ratio=1)
        for keys, description in rows:
            table.add_row(Text(keys, "bold"), Text(description))
        self.update(table)
        return bool(rows)


class HelpScreen(AppScreen[None]):
    """A searchable list of keys and commands. Escape, F1, or q outside the search field closes it."""

    DEFAULT_CSS = """
    HelpScreen {
        #help-head { height: 1; padding: 0 2; text-style: bold; color: $primary; }
        #help-search, #help-search:focus {
            height: 3; border: round $border-blurred; background: $background; padding: 0 1; margin: 0 1;
            background-tint: transparent;
        }
        #help-search:focus { border: round $primary; }
        #help-none { height: auto; padding: 0 2; display: none; }
        #help-list { height: 1fr; scrollbar-size-vertical: 1; }
    }
    """
    AUTO_FOCUS = ""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "back", "Close"),
        Binding("q,f1", "dismiss", "Close", show=False),
        Binding("slash,ctrl+f", "search", "Search"),
        Binding("up,k", "scroll('up')", "A line up", show=False),
        Binding("down,j", "scroll('down')", "A line down", show=False),
        Binding("pageup,b", "scroll('page_up')", "A page up", show=False),
        Binding("pagedown,space", "scroll('page_down')", "A page down", show=False),
        Binding("home,g", "scroll('home')", "To the top", show=False),
        Binding("end,G", "scroll('end')", "To the end", show=False),
    ]

    def __init__(self, sections: Sequence[Section], commands: Sequence[Command] = ()) -> None:
        """sections: in display order; keys without a description are left out."""
        super().__init__()
        self._sections = sections
        self._commands = commands

    def compose(self) -> ComposeResult:
        yield Static("Keys and commands", id="help-head")
        yield LineField(placeholder="Search: a key, a command, or what it does", id="help-search")
        with ScreenScroll(id="help-list"):
            yield Static("No key or command matches.", id="help-none")
            yield from self._compose_sections()
        yield KeyBar(id="keys")

    def _compose_sections(self) -> Iterable[Widget]:
        for title, bindings in self._sections:
            rows = [
                (key_names(binding), one_line(binding.description))
                for binding in bindings
                if binding.description
            ]
            if rows:
                yield _HelpSection(title, rows)
        if self._commands:
            rows = [
                (one_line(f"/{name} {argument}"), one_line(text)) for name, argument, text in self._commands
            ]
            yield _HelpSection("Commands, typed instead of a question", rows)

    def on_mount(self) -> None:
        self._filter("")

    @on(LineField.Changed)
    def _searched(self, event: LineField.Changed) -> None:
        self._filter(event.value)

    def _filter(self, text: str) -> None:
        words = text.lower().split()
        matches = [section.filter(words) for section in self.query(_HelpSection)]
        self.query_one("#help-none").display = not any(matches)
        self.query_one(ScreenScroll).scroll_home(animate=False)

    @on(LineField.Submitted)
    def _leave_search(self) -> None:
        self.set_focus(None)

    def action_search(self) -> None:
        self.query_one(LineField).focus()

    def action_back(self) -> None:
        """Clear the search, or close the screen if there is none."""
        field = self.query_one(LineField)
        if field.value or field.has_focus:
            field.value = ""
            self.set_focus(None)
        else:
            self.dismiss()

    def action_scroll(self, where: str) -> None:
        getattr(self.query_one(ScreenScroll), f"scroll_{where}")(animate=False)
