"""Command palette: every command, plus the themes, presets and saved prompts to choose from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple, Protocol, cast

from textual.app import ComposeResult
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
from textual.widgets import LoadingIndicator

from edgechat.base.text import one_line
from edgechat.chat.commands import commands_of
from edgechat.chat.session import ChatSession
from edgechat.tui.theme import THEMES
from edgechat.tui.widgets.lists import CursorLine

_WIDTH = 80
"""Maximum width of the palette in cells; it matches the style sheet."""
_BESIDE = 7
"""Number of cells across the palette that borders, padding and the scroll bar take up."""


class Entry(NamedTuple):
    """An entry of the palette."""

    name: str
    about: str
    """How to type the command."""
    run: Callable[[], object]
    key: str = ""
    """The key that does the same; empty if there is none."""


class PaletteTarget(Protocol):
    """The chat screen, which runs commands."""

    @property
    def session(self) -> ChatSession: ...

    def run_command(self, name: str, argument: str = "") -> None: ...

    def replace_prompt(self, text: str) -> None: ...

    def key_of(self, command: str) -> str: ...


class CommandProvider(Provider):
    """The prompt's slash commands, the themes, the presets and the saved prompts."""

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
        """Return a name with its key at the right edge, if there is room."""
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
        settings = chat.session.settings
        for name in THEMES:
            yield Entry(f"Colours: {name}", f"/theme {name}", partial(chat.run_command, "theme", name))
        for name in settings.presets:
            shown = one_line(name, 40)
            yield Entry(f"Preset: {shown}", f"/preset {shown}", partial(chat.run_command, "preset", name))
        for name in settings.prompts:
            shown = one_line(name, 40)
            yield Entry(f"Prompt: {shown}", f"/prompt {shown}", partial(chat.run_command, "prompt", name))


class PaletteList(CommandList, CursorLine, can_focus=False):
    """The entries; keys go to the field above them.

    CommandList comes first because Textual inherits CSS from the first base class.
    """


class Palette(CommandPalette):
    """Textual's command palette in a frame."""

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
                yield CommandInput(placeholder="Search for commands…", select_on_focus=False)
            with Vertical(id="--results"):
                yield PaletteList()
                yield LoadingIndicator()


def _plain(text: str) -> str:
    """Escape markup, including [WORDS] in capitals, which Textual's `escape` leaves alone."""
    return text.replace("[", "\\[")
