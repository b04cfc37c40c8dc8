"""The list above the prompt box of what may be meant: commands, their arguments, files."""

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
    """One thing that may be meant."""

    text: str
    """What is put in place of what was typed, `start` characters into the text."""
    start: int
    label: str
    about: str = ""
    more: bool = False
    """Whether there is more to choose behind it: a folder."""


class Completions(Widget):
    """A list with a current choice; as high as it has choices, and gone without any."""

    DEFAULT_CSS = """
    Completions { height: auto; max-height: 8; display: none; padding: 0 2; }
    Completions.-open { display: block; }
    """

    class Taken(Message):
        """A choice was clicked."""

    def __init__(self) -> None:
        super().__init__()
        self.choices: Sequence[Suggestion] = ()
        self.typed = ""
        """What was typed when they were found."""
        self.at = 0

    @property
    def is_open(self) -> bool:
        return bool(self.choices)

    @property
    def choice(self) -> Suggestion | None:
        return self.choices[self.at] if self.choices else None

    def show(self, choices: Sequence[Suggestion], typed: str) -> None:
        """Offer these for what is typed; none closes the list."""
        self.typed = typed
        if tuple(choices) != tuple(self.choices):
            self.choices, self.at = tuple(choices), 0
            self.set_class(self.is_open, "-open")
            self.refresh(layout=True)

    def move(self, by: int) -> None:
        if self.choices:
            self.at = (self.at + by) % len(self.choices)
            self.refresh()

    @property
    def _top(self) -> int:
        return max(0, min(self.at - _SHOWN // 2, len(self.choices) - _SHOWN))

    def get_content_height(self, container: object, viewport: object, width: int) -> int:
        return min(_SHOWN, len(self.choices))

    def render(self) -> RenderResult:
        shown = self.choices[self._top : self._top + _SHOWN]
        width = max((len(one.label) for one in self.choices), default=0)
        lines = []
        for number, one in enumerate(shown, self._top):
            is_current = number == self.at
            mark = ("› ", "bold $accent") if is_current else "  "
            label = (one.label.ljust(min(width, 34)), "bold" if is_current else "")
            room = max(0, self.size.width - min(width, 34) - 4)
            about = one_line(one.about, room) if room > 8 else ""
            lines.append(Content.assemble(mark, label, ("  " + about, "dim")))
        return Content("\n").join(lines)

    def on_click(self, event: events.Click) -> None:
        number = self._top + event.y
        if number < len(self.choices):
            self.at = number
            self.post_message(self.Taken())


def of_commands(text: str, arguments: Callable[[str], Sequence[tuple[str, str]]]) -> list[Suggestion]:
    """Return what may be meant where a text begins as a command does.

    arguments: from a command's name to what may come after it, each with a word about it.
    """
    if not text.startswith("/") or "\n" in text:
        return []
    name, space, rest = text[1:].partition(" ")
    if not space:
        return [
            Suggestion(f"/{one.name}" + " " * bool(one.argument), 0, one.usage, one.description)
            for one in commands_of("app")
            if one.name.startswith(name.lower())
        ]
    start = len(name) + 2
    found = [(value, about) for value, about in arguments(name) if rest.lower() in value.lower()]
    if any(value.strip().lower() == rest.strip().lower() for value, _ in found):
        return []  # Enter is to take what was typed, not another one that begins like it
    found.sort(key=lambda one: not one[0].lower().startswith(rest.lower()))
    return [Suggestion(value, start, one_line(value, 34), about) for value, about in found]


def path_in(before: str) -> str | None:
    """Return the path that is being typed after an @ at the end of a text."""
    found = _PATH.search(before)
    return found[1] if found else None


def of_files(typed: str, start: int) -> list[Suggestion]:
    """Return the files and folders that a path may go on with. Reads a folder: not for the event loop."""
    folder, name = os.path.split(typed)
    found: list[Suggestion] = []
    try:
        with os.scandir(Path(folder).expanduser() if folder else ".") as entries:
            for _, entry in zip(range(_MOST_FILES), entries, strict=False):
                if not is_text(entry.name):
                    continue
                if entry.name.lower().startswith(name.lower()) and name[:1] in (".", entry.name[:1], ""):
                    found.append(_file(entry, folder, start))
    except (OSError, RuntimeError, ValueError):  # no such folder, no such user's home, a NUL
        return []
    shown = [one for one in found if name.startswith(".") or not one.label.startswith(".")]
    return sorted(shown, key=lambda one: (not one.more, one.label.casefold()))


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
