"""Choosers over the chat: the command palette and the model switcher."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple, Protocol, cast

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.command import (
    CommandInput,
    CommandList,
    CommandPalette,
    DiscoveryHit,
    Hit,
    Hits,
    Provider,
)
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.fuzzy import FuzzySearch
from textual.widgets import LoadingIndicator, OptionList, Static

from edgechat.base.text import one_line
from edgechat.chat.commands import commands_of
from edgechat.tui.theme import THEMES
from edgechat.tui.widgets.dialogs import AppDialog
from edgechat.tui.widgets.fields import LineField
from edgechat.tui.widgets.lists import CursorLine, KeyedList, ListLine

_WIDTH = 80
"""The greatest width of the palette, in cells; its style sheet has the same number."""
_BESIDE = 7
"""Cells of its width that are no text: borders, padding, scroll bar."""


class Entry(NamedTuple):
    """An entry of the palette."""

    name: str
    about: str
    """What is typed instead."""
    run: Callable[[], object]
    key: str = ""
    """The key that does the same; empty if there is none."""


class PaletteTarget(Protocol):
    """The screen that runs the commands."""

    @property
    def presets(self) -> list[str]:
        """The names of the presets."""

    @property
    def saved_prompts(self) -> list[str]:
        """The names of the saved prompts."""

    def run_command(self, name: str, argument: str = "") -> None:
        """Run a slash command."""

    def replace_prompt(self, text: str) -> None:
        """Put the beginning of a command into the prompt."""

    def key_of(self, command: str) -> str:
        """Return the key that does the same as a slash command; empty if there is none."""


class CommandProvider(Provider):
    """The commands of the prompt box, the themes, the presets and the saved prompts."""

    async def discover(self) -> Hits:
        for entry in self._entries():
            text = self._with_key(Content(entry.name), entry.key)
            yield DiscoveryHit(text, entry.run, text=entry.name, help=_plain(entry.about))

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for entry in self._entries():
            score = max(matcher.match(entry.name), 0.8 * matcher.match(entry.about))
            if score > 0:
                text = self._with_key(matcher.highlight(entry.name), entry.key)
                yield Hit(score, text, entry.run, text=entry.name, help=_plain(entry.about))

    def _with_key(self, name: Content, key: str) -> Content:
        """Return a name, with its key at the right edge if there is room."""
        gap = min(_WIDTH, self.app.size.width) - _BESIDE - name.cell_length - len(key)
        return Content.assemble(name, " " * gap, (key, "not bold dim")) if key and gap > 1 else name

    def _entries(self) -> Iterator[Entry]:
        chat = cast("PaletteTarget", self.screen)
        for command in commands_of("app"):
            if command.argument:
                run = partial(chat.replace_prompt, f"/{command.name} ")
            else:
                run = partial(chat.run_command, command.name)
            yield Entry(command.description, command.usage, run, chat.key_of(command.name))
        for name in THEMES:
            yield Entry(f"Colours: {name}", f"/theme {name}", partial(chat.run_command, "theme", name))
        for name in chat.presets:
            shown = one_line(name, 40)
            yield Entry(f"Preset: {shown}", f"/preset {shown}", partial(chat.run_command, "preset", name))
        for name in chat.saved_prompts:
            shown = one_line(name, 40)
            yield Entry(f"Prompt: {shown}", f"/prompt {shown}", partial(chat.run_command, "prompt", name))


class PaletteList(CommandList, CursorLine, can_focus=False):  # Textual inherits CSS from the first base
    """The entries; the keys go to the field above them."""


class Palette(CommandPalette):
    """Textual's, in a frame."""

    DEFAULT_CSS = """
    Palette {
        & > Vertical { margin-top: 2; width: 80; max-width: 100%; background: transparent; }
        #--input {
            border: round $primary; background: $surface;
            border-title-color: $primary; border-title-style: bold;
            &.--list-visible { border-bottom: none; }
        }
        CommandInput, CommandInput:focus { border: none; padding: 0 2; height: 1; background: $surface; }
        CommandList, CommandList.--visible, CommandList.--populating {
            border: round $primary; border-top: none; background: $surface; padding: 0;
            max-height: 60vh; scrollbar-size-vertical: 1; scrollbar-background: $surface;
        }
        CommandList > .option-list--option-highlighted {
            color: $block-cursor-foreground;
            background: $block-cursor-background;
            text-style: $block-cursor-text-style;
        }
        Toast { display: none; }
    }
    """

    def compose(self) -> ComposeResult:
        with Vertical(id="--container"):
            with Horizontal(id="--input") as field:
                field.border_title = "Commands"
                yield CommandInput(placeholder=self._placeholder, select_on_focus=False)
            with Vertical(id="--results"):
                yield PaletteList()
                yield LoadingIndicator()


def _plain(text: str) -> str:
    """Return markup that shows a text as it is; Textual's own `escape` leaves [WORDS] alone."""
    return text.replace("[", "\\[")


@dataclass(frozen=True, slots=True)
class ModelName:
    """A model that can be named."""

    name: str
    note: str = ""
    """A few words about it."""
    is_here: bool = True
    """Whether it is on this machine; if not, it would be downloaded."""


class ModelSwitcher(AppDialog[ModelName | None]):
    """Results in the model to chat with, or to download."""

    DEFAULT_CSS = """
    ModelSwitcher {
        align: center top;
        background: $background;
        & > .frame { width: 76; max-height: 90%; margin-top: 2; background: $background; }
        & LineField, & LineField:focus { height: 1; border: none; padding: 0; background: $background; }
        & KeyedList, & KeyedList:focus { max-height: 16; margin-top: 1; }
        & #none { height: auto; margin-top: 1; }
    }
    """
    AUTO_FOCUS = "LineField"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,f5", "dismiss", "Back", show=False),
        Binding("down", "move('cursor_down')", "Down", show=False, priority=True),
        Binding("up", "move('cursor_up')", "Up", show=False, priority=True),
        Binding("pagedown", "move('page_down')", "Page down", show=False, priority=True),
        Binding("pageup", "move('page_up')", "Page up", show=False, priority=True),
    ]

    def __init__(self, models: Sequence[ModelName], current: str | None, title: str = "") -> None:
        """models: those that were used last first. current: the name of the one that answers now.

        title: what the model is for, instead of the name of the present one.
        """
        super().__init__()
        self._models, self._current, self._title = models, current, title
        self._search = FuzzySearch()

    def compose(self) -> ComposeResult:
        with Vertical(classes="frame") as box:
            yield LineField(placeholder="a model's name, or a part of it")
            yield KeyedList(id="models")
            yield Static("No model matches. Ctrl+O lists all, and finds others on the hub.", id="none")
        current = f"{one_line(self._current, 50)} answers now" if self._current else "No model is loaded yet"
        box.border_title = Content(self._title or current)
        box.border_subtitle = "Enter chooses · Esc closes"

    def on_mount(self) -> None:
        self._show()

    def on_resize(self, _: events.Resize) -> None:
        self.call_after_refresh(self._show)

    @property
    def _list(self) -> KeyedList:
        return self.query_one(KeyedList)

    @on(LineField.Changed)
    def _show(self) -> None:
        models = self._matching()
        self._list.show_lines([ListLine(self._line(model), model.name) for model in models])
        others = (model.name for model in models if model.name != self._current)
        self._list.go_to(next(others, self._current or ""))
        self._list.display = bool(models)
        self.query_one("#none").display = not models

    def _matching(self) -> list[ModelName]:
        """Return the models that match what is typed, best first; of equals the one listed first."""
        query = self.query_one(LineField).value.strip()
        if not query:
            return list(self._models)
        scores = {model.name: self._search.match(query, model.name)[0] for model in self._models}
        matching = [model for model in self._models if scores[model.name] > 0]
        return sorted(matching, key=lambda model: -scores[model.name])

    def _line(self, model: ModelName) -> Content:
        width = max(30, self._list.size.width - 1)
        name = one_line(model.name, 40)
        mark = "● " if model.name == self._current else "  " if model.is_here else "↓ "
        note = one_line(model.note, max(1, width - len(name) - 5))
        return Content.assemble((mark, "$primary"), name, (f"   {note}", "dim"))

    def action_move(self, how: str) -> None:
        getattr(self._list, f"action_{how}")()

    @on(LineField.Submitted)
    @on(OptionList.OptionSelected)
    def _choose(self) -> None:
        key = self._list.key
        if key is not None and self._list.display:
            self.dismiss(next(model for model in self._models if model.name == key))
