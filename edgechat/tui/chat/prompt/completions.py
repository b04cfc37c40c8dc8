"""The list of completions above the prompt box: commands, their arguments, files."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from textual import events
from textual.app import RenderResult
from textual.content import Content
from textual.message import Message
from textual.widget import Widget

from edgechat.base.text import is_text, one_line
from edgechat.chat.commands import commands_of

_SHOWN = 8
_MOST_FILES = 500
_PATH = re.compile(r"(?:^|(?<=\s))@(\S*)$")


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A completion of what is typed."""

    text: str
    """Replaces what was typed from the character `start` on."""
    start: int
    label: str
    about: str = ""
    more: bool = False
    """Whether its own completions follow: it is a folder."""


class Completions(Widget):
    """A list with a current choice, as high as it has choices; hidden without any."""

    DEFAULT_CSS = """
    Completions { height: auto; max-height: 8; display: none; padding: 0 2; }
    Completions.-open { display: block; }
    """

    class Clicked(Message):
        """A choice was clicked."""

    def __init__(self) -> None:
        super().__init__()
        self.choices: Sequence[Suggestion] = ()
        self.typed = ""
        """The text before the cursor that they are for."""
        self.index = 0

    @property
    def is_open(self) -> bool:
        return bool(self.choices)

    @property
    def choice(self) -> Suggestion | None:
        return self.choices[self.index] if self.choices else None

    def show(self, choices: Sequence[Suggestion], typed: str) -> None:
        """Offer these for what is typed; none closes the list."""
        self.typed = typed
        if tuple(choices) != tuple(self.choices):
            self.choices, self.index = tuple(choices), 0
            self.set_class(self.is_open, "-open")
            self.refresh(layout=True)

    def move(self, by: int) -> None:
        if self.choices:
            self.index = (self.index + by) % len(self.choices)
            self.refresh()

    @property
    def _top(self) -> int:
        return max(0, min(self.index - _SHOWN // 2, len(self.choices) - _SHOWN))

    def get_content_height(self, container: object, viewport: object, width: int) -> int:
        return min(_SHOWN, len(self.choices))

    def render(self) -> RenderResult:
        shown = self.choices[self._top : self._top + _SHOWN]
        width = max((len(suggestion.label) for suggestion in self.choices), default=0)
        lines = []
        for index, suggestion in enumerate(shown, self._top):
            is_current = index == self.index
            mark = ("› ", "bold $accent") if is_current else "  "
            label = (suggestion.label.ljust(min(width, 34)), "bold" if is_current else "")
            room = max(0, self.size.width - min(width, 34) - 4)
            about = one_line(suggestion.about, room) if room > 8 else ""
            lines.append(Content.assemble(mark, label, ("  " + about, "dim")))
        return Content("\n").join(lines)

    def on_click(self, event: events.Click) -> None:
        number = self._top + event.y
        if number < len(self.choices):
            self.index = number
            self.post_message(self.Clicked())


def command_suggestions(text: str, arguments: Callable[[str], Sequence[tuple[str, str]]]) -> list[Suggestion]:
    """Return the completions of a command.

    arguments: from a command's name to its possible arguments, each with a short description.
    """
    if not text.startswith("/") or "\n" in text:
        return []
    name, space, rest = text[1:].partition(" ")
    if not space:
        return [
            Suggestion(
                f"/{command.name}" + " " * bool(command.argument), 0, command.usage, command.description
            )
            for command in commands_of("app")
            if command.name.startswith(name.lower())
        ]
    start = len(name) + 2
    matches = [(value, about) for value, about in arguments(name) if rest.lower() in value.lower()]
    if any(value.strip().lower() == rest.strip().lower() for value, _ in matches):
        return []  # Enter sends what was typed, not an argument that begins like it
    matches.sort(key=lambda match: not match[0].lower().startswith(rest.lower()))
    return [Suggestion(value, start, one_line(value, 34), about) for value, about in matches]


def path_at_end(before: str) -> str | None:
    """Return the path that is being typed after an @ at the end of a text."""
    match = _PATH.search(before)
    return match[1] if match else None


def file_suggestions(typed: str, start: int) -> list[Suggestion]:
    """Return the files and folders that a path may name. Reads a folder: not for the event loop."""
    folder, name = os.path.split(typed)
    suggestions: list[Suggestion] = []
    try:
        with os.scandir(Path(folder).expanduser() if folder else ".") as entries:
            for _, entry in zip(range(_MOST_FILES), entries, strict=False):
                if not is_text(entry.name):
                    continue
                if entry.name.lower().startswith(name.lower()) and name[:1] in (".", entry.name[:1], ""):
                    suggestions.append(_file(entry, folder, start))
    except (OSError, RuntimeError, ValueError):  # no such folder, no such user's home, a NUL
        return []
    visible = [
        suggestion
        for suggestion in suggestions
        if name.startswith(".") or not suggestion.label.startswith(".")
    ]
    return sorted(visible, key=lambda suggestion: (not suggestion.more, suggestion.label.casefold()))


def _file(entry: os.DirEntry[str], folder: str, start: int) -> Suggestion:
    try:
        is_folder = entry.is_dir()
    except OSError:
        is_folder = False
    path = os.path.join(folder, entry.name)
    label = one_line(entry.name, 60)
    if is_folder:
        return Suggestion(f"@{path}/", start, label + "/", more=True)
    return Suggestion(f'@"{path}" ' if " " in path else f"@{path} ", start, label)
