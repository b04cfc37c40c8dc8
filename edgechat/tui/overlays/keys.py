"""The keys of every part of the app and its commands, read from where they are bound."""

from __future__ import annotations

from collections.abc import Sequence

from textual.binding import Binding
from textual.screen import Screen

from edgechat.chat.commands import commands_of
from edgechat.tui.overlays.help import Command, bindings_of

Part = tuple[str, tuple[type, ...]]
"""A part of the app, and the classes whose keys work there."""


def sections(parts: Sequence[Part], screen: Screen[object]) -> list[tuple[str, Sequence[Binding]]]:
    """Return the keys of each part of the app, those of the screen that is shown first."""
    ordered = sorted(parts, key=lambda part: not isinstance(screen, part[1]))
    return [(title, _told(bindings_of(*classes))) for title, classes in ordered]


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
