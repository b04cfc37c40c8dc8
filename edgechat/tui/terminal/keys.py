"""The keys of every part of the app and its commands, read from where they are bound."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.binding import Binding
from textual.screen import Screen

from edgechat.chat.commands import commands_of
from edgechat.tui.overlays.help import Command, bindings_of

if TYPE_CHECKING:
    from collections.abc import Sequence


def parts() -> list[tuple[str, tuple[type, ...]]]:
    """Return the parts of the app, each with the classes whose keys work there."""
    from edgechat.tui.app import EdgechatApp
    from edgechat.tui.chat.parameters import ParametersScreen
    from edgechat.tui.chat.prompt.box import PromptBox
    from edgechat.tui.chat.screen import ChatScreen
    from edgechat.tui.conversations.listing import ChatList
    from edgechat.tui.conversations.sidebar import SearchField
    from edgechat.tui.engine_room.room import EngineRoom
    from edgechat.tui.models.first_run import FirstRun
    from edgechat.tui.models.screen import ModelsScreen
    from edgechat.tui.settings.screen import SettingsScreen
    from edgechat.tui.transcript.transcript import Transcript

    return [
        ("Everywhere", (EdgechatApp,)),
        ("The prompt", (PromptBox,)),
        ("The chat", (ChatScreen,)),
        ("The turns: Tab in the prompt, or a click", (Transcript,)),
        ("The conversations", (ChatList, SearchField)),
        ("The engine room", (EngineRoom,)),
        ("The models", (ModelsScreen,)),
        ("The first run", (FirstRun,)),
        ("The settings", (SettingsScreen,)),
        ("System prompt and parameters", (ParametersScreen,)),
    ]


def sections(screen: Screen[object]) -> list[tuple[str, Sequence[Binding]]]:
    """Return the keys of each part, those of the screen that is shown first."""
    found = [(title, classes) for title, classes in parts()]
    found.sort(key=lambda part: not isinstance(screen, part[1]))
    return [(title, _told(bindings_of(*classes))) for title, classes in found]


def _told(bindings: list[Binding]) -> list[Binding]:
    """Return the bindings without those that another one's keys tell of already: '1-9'."""
    found: list[Binding] = []
    for binding in bindings:
        last = found[-1] if found else None
        if last is None or binding.show or not (last.key_display and last.description == binding.description):
            found.append(binding)
    return found


def commands() -> list[Command]:
    """Return the commands of the prompt."""
    return [(one.name, one.argument, one.description) for one in commands_of("app")]
