"""The list of completions above the prompt box: commands, their arguments, files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from textual import events
from textual.app import RenderResult
from textual.content import Content
from textual.message import Message
from textual.widget import Widget

from edgechat.base.text import one_line
from edgechat.chat.commands import commands_of

_SHOWN = 8


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
    """A list with a current choice, as high as it has choices; hidden without any.

    Its frame says which choice that is, and what the keys do.
    """

    DEFAULT_CSS = """
    Completions {
        height: auto; max-height: 10; display: none; padding: 0 1;
        border: round $border-blurred; border-subtitle-color: $foreground; border-subtitle-style: dim;
    }
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
            self._show_position()
            self.refresh(layout=True)

    def move(self, by: int) -> None:
        if self.choices:
            self.index = (self.index + by) % len(self.choices)
            self._show_position()
            self.refresh()

    def _show_position(self) -> None:
        position = f"{self.index + 1} of {len(self.choices)}"
        self.border_subtitle = f"{position} · ↑↓ choose · Tab takes it · Esc closes"

    @property
    def _shown(self) -> int:
        return self.content_size.height or _SHOWN

    @property
    def _top(self) -> int:
        return max(0, min(self.index - self._shown // 2, len(self.choices) - self._shown))

    def get_content_height(self, container: object, viewport: object, width: int) -> int:
        return min(_SHOWN, len(self.choices))

    def render(self) -> RenderResult:
        shown = self.choices[self._top : self._top + self._shown]
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
        offset = event.get_content_offset(self)
        if offset is not None and self._top + offset.y < len(self.choices):
            self.index = self._top + offset.y
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
