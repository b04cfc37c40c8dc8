"""The command palette: every command, and what can be chosen for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, cast

from textual.command import DiscoveryHit, Hit, Hits, Provider

from edgechat.chat.commands import commands_of
from edgechat.text import one_line
from edgechat.tui.theme import THEMES

if TYPE_CHECKING:
    from edgechat.tui.app import EdgechatApp

Found = tuple[str, str, Callable[[], object]]
"""What is shown, a word about it, what it does."""


class CommandProvider(Provider):
    """The commands of the prompt box, the themes and the presets."""

    async def discover(self) -> Hits:
        """Yield what there is before anything is typed."""
        for name, about, run in self._all():
            yield DiscoveryHit(name, run, help=about)

    async def search(self, query: str) -> Hits:
        """Yield what may be meant."""
        matcher = self.matcher(query)
        for name, about, run in self._all():
            score = max(matcher.match(name), 0.8 * matcher.match(about))
            if score > 0:
                yield Hit(score, matcher.highlight(name), run, help=about)

    def _all(self) -> Iterator[Found]:
        app = cast("EdgechatApp", self.app)
        chat = app.chat
        for command in commands_of("app"):
            run = self._begin(command.name) if command.argument else self._obey(command.name)
            yield command.description, command.usage, run
        for name in THEMES:
            yield f"Colours: {name}", f"/theme {name}", self._obey("theme", name)
        for name in chat.session.settings.presets:
            shown = one_line(name, 40)
            yield f"Preset: {shown}", f"/preset {shown}", self._obey("preset", name)

    def _begin(self, name: str) -> Callable[[], object]:
        """Return what puts the beginning of a command into the prompt."""
        chat = cast("EdgechatApp", self.app).chat

        return lambda: chat.borrow_prompt(f"/{name} ")

    def _obey(self, name: str, argument: str = "") -> Callable[[], object]:
        from edgechat.tui.chat.command_handlers import obey

        chat = cast("EdgechatApp", self.app).chat
        return lambda: chat.tries(obey(chat, name, argument))
