"""The help screen: the keys as they are bound and the slash commands as they are known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from rich.table import Table
from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Static

from edgechat.base.text import one_line
from edgechat.tui.terminal.resizing import StaleResizeFilter
from edgechat.tui.widgets.key_bar import KeyBar
from edgechat.tui.widgets.line_field import LineField

Section = tuple[str, Sequence[Binding]]
"""What keys belong to, and the keys."""
Command = tuple[str, str, str]
"""A slash command: its name without the slash, its argument or nothing, what it does."""

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


def bindings_of(*classes: type) -> list[Binding]:
    """Return the bindings of widgets, screens and apps, as they were written: several keys may be in one.

    The hidden ones too, and those of bases that are not Textual's own; each once.
    """
    found: dict[tuple[str, str], Binding] = {}
    for one in classes:
        for base in one.__mro__:
            if not base.__module__.startswith("textual."):
                for binding in vars(base).get("BINDINGS", ()):
                    if isinstance(binding, tuple):
                        binding = Binding(*binding)
                    found.setdefault((binding.key, binding.action), binding)
    return list(found.values())


def keys_in_words(binding: Binding) -> str:
    """Return the keys of a binding as they stand on a keyboard: 'Ctrl+J, Shift+Enter'."""
    if binding.key_display:
        return binding.key_display
    return ", ".join(_key(key.strip()) for key in binding.key.split(","))


def _key(key: str) -> str:
    *held, last = key.split("+")
    shown = _NAMES.get(last) or (last.upper() if len(last) == 1 and held else last)
    if len(shown) > 1 and shown.isascii() and shown.islower():
        shown = shown.replace("_", " ").capitalize()
    return "+".join([*(one.capitalize() for one in held), shown])


class _Lines(Static):
    """Keys or commands under one heading, of which the filter leaves some."""

    DEFAULT_CSS = """
    _Lines { height: auto; padding: 0 1; margin-top: 1; }
    """

    def __init__(self, title: str, rows: Sequence[tuple[str, str]]) -> None:
        super().__init__()
        self._title = title
        self._rows = rows

    def leave(self, words: Iterable[str]) -> bool:
        """Show the rows that have all the words, or whose heading has; say whether there are any."""
        words = list(words)
        rows = [
            row
            for row in self._rows
            if all(word in f"{self._title} {' '.join(row)}".lower() for word in words)
        ]
        self.display = bool(rows)
        # A table of Rich's: it breaks long descriptions where its second column begins.
        table = Table.grid(padding=(0, 2), expand=True)
        table.add_column(width=_KEYS_WIDTH)
        table.add_column(ratio=1)
        for keys, description in rows:
            table.add_row(Text(keys, "bold"), Text(description))
        titled = Table.grid(expand=True)
        titled.add_column()
        titled.add_row(Text(self._title, "bold underline"))
        titled.add_row(table)
        self.update(titled)
        return bool(rows)


class _Scroll(VerticalScroll, can_focus=False, inherit_bindings=False):
    """Moved by the screen's keys."""


class HelpScreen(StaleResizeFilter, Screen[None]):
    """Keys and commands, to be scrolled and searched. Closed by Escape, q (outside the search) and F1."""

    DEFAULT_CSS = """
    HelpScreen {
        #help-head { height: 1; padding: 0 1; text-style: bold; }
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
        Binding("pageup,b", "page('up')", "A page up", show=False),
        Binding("pagedown,space", "page('down')", "A page down", show=False),
        Binding("home,g", "scroll('home')", "To the top", show=False),
        Binding("end,G", "scroll('end')", "To the end", show=False),
    ]

    def __init__(self, sections: Sequence[Section], commands: Sequence[Command] = ()) -> None:
        """sections: what keys there are, in the order of showing; those without a description are not."""
        super().__init__()
        self._sections = sections
        self._commands = commands

    def compose(self) -> ComposeResult:
        yield Static("Keys and commands", id="help-head")
        yield LineField(placeholder="Search: a key, a command, or what it does", id="help-search")
        with _Scroll(id="help-list"):
            yield Static("No key or command matches.", id="help-none")
            yield from self._lines()
        yield KeyBar(id="keys")

    def _lines(self) -> Iterable[Widget]:
        for title, bindings in self._sections:
            rows = [(keys_in_words(one), one_line(one.description)) for one in bindings if one.description]
            if rows:
                yield _Lines(title, rows)
        if self._commands:
            # Their names and words may come from elsewhere one day; a line each is all they get.
            rows = [
                (one_line(f"/{name} {argument}"), one_line(does)) for name, argument, does in self._commands
            ]
            yield _Lines("Commands, typed instead of a question", rows)

    def on_mount(self) -> None:
        self._leave("")

    @on(LineField.Changed)
    def _searched(self, event: LineField.Changed) -> None:
        self._leave(event.value)

    def _leave(self, text: str) -> None:
        words = text.lower().split()
        found = [one.leave(words) for one in self.query(_Lines)]
        self.query_one("#help-none").display = not any(found)
        self.query_one(_Scroll).scroll_home(animate=False)

    @on(LineField.Submitted)
    def _read(self) -> None:
        self.set_focus(None)

    def action_search(self) -> None:
        self.query_one(LineField).focus()

    def action_back(self) -> None:
        """Take the search away, else close."""
        field = self.query_one(LineField)
        if field.value or field.has_focus:
            field.value = ""
            self.set_focus(None)
        else:
            self.dismiss()

    def action_scroll(self, where: str) -> None:
        getattr(self.query_one(_Scroll), f"scroll_{where}")(animate=False)

    def action_page(self, where: str) -> None:
        getattr(self.query_one(_Scroll), f"scroll_page_{where}")(animate=False)
