"""The command palette: every command, and what can be chosen for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol, cast

from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.content import Content

from edgechat.base.text import one_line
from edgechat.chat.commands import commands_of
from edgechat.tui.theme import THEMES

Entry = tuple[str, str, Callable[[], object]]
"""The text, a short description, and what it does."""


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


class CommandProvider(Provider):
    """The commands of the prompt box, the themes, the presets and the saved prompts."""

    async def discover(self) -> Hits:
        for name, about, run in self._entries():
            yield DiscoveryHit(Content(name), run, text=name, help=_plain(about))

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for name, about, run in self._entries():
            score = max(matcher.match(name), 0.8 * matcher.match(about))
            if score > 0:
                yield Hit(score, matcher.highlight(name), run, help=_plain(about))

    def _entries(self) -> Iterator[Entry]:
        chat = cast("PaletteTarget", self.screen)
        for command in commands_of("app"):
            if command.argument:
                run = partial(chat.replace_prompt, f"/{command.name} ")
            else:
                run = partial(chat.run_command, command.name)
            yield command.description, command.usage, run
        for name in THEMES:
            yield f"Colours: {name}", f"/theme {name}", partial(chat.run_command, "theme", name)
        for name in chat.presets:
            shown = one_line(name, 40)
            yield f"Preset: {shown}", f"/preset {shown}", partial(chat.run_command, "preset", name)
        for name in chat.saved_prompts:
            shown = one_line(name, 40)
            yield f"Prompt: {shown}", f"/prompt {shown}", partial(chat.run_command, "prompt", name)


def _plain(text: str) -> str:
    """Return markup that shows a text as it is; Textual's own `escape` leaves [WORDS] alone."""
    return text.replace("[", "\\[")
