"""Prompt box: the text field for questions and commands."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import events, on
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets.text_area import Document, Location, Selection

from edgechat.base.text import printable
from edgechat.chat.attachments import is_long, may_be_path
from edgechat.tui.chat.prompt.above import Completions
from edgechat.tui.widgets.fields import Area

_NEWLINE = ("ctrl+j", "shift+enter", "alt+enter")
_COMPLETING = ("up", "down", "tab", "enter", "escape")


_VARIABLE = re.compile(r"\{[^\W\d][\w -]{0,39}\}")


Span = tuple[int, int]
"""Start and end of a variable in the text, including its braces."""


class PromptBox(Area):
    """Text box that grows to at most eight lines. Enter sends; Shift+Enter and Ctrl+J start a new line.

    Up in the first line and Down in the last one step through earlier questions. In an empty box, Up takes
    back a waiting question. While `completions` is open, Up, Down, Tab, Enter and Escape apply to it.
    """

    DEFAULT_CSS = """
    PromptBox, PromptBox:focus {
        height: auto;
        max-height: 10;
        border: round $primary;
        padding: 0 1;
        scrollbar-size-vertical: 1;
        background: $background;
        & .text-area--cursor-line { background: $background; }
        & .text-area--placeholder { text-style: dim; }
    }
    PromptBox:blur { border: round $border-blurred; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "send", "Send"),
        Binding(",".join(_NEWLINE), "newline", "New line"),
        Binding("tab", "complete", "Turns"),
        Binding("ctrl+v", "paste", "Paste an image, or what was copied here", show=False),
        Binding("f6", "editor", "Edit in $VISUAL or $EDITOR", show=False),
        # Keys of the transcript, which is not focused while the user types.
        Binding("pageup", "screen.scroll('page_up')", "Page up", show=False),
        Binding("pagedown", "screen.scroll('page_down')", "Page down", show=False),
    ]

    @dataclass
    class Submitted(Message):
        """The user pressed Enter."""

        text: str

    @dataclass
    class Pasted(Message):
        """A paste that may become an attachment. Later keys are held back until `release` is called."""

        text: str
        release: Callable[[], None]

    @dataclass
    class WantsClipboard(Message):
        """A request for the image on the system clipboard.

        or_text: whether to use the text copied in the app if there is no image.
        """

        or_text: bool

    class WantsHistory(Message):
        """A request for the history."""

    class TakesBack(Message):
        """A request to take back a waiting question, sent when Up is pressed in an empty box."""

    class WantsTurns(Message):
        """A request to focus the turns."""

    class WantsEditor(Message):
        """A request to edit the text in $EDITOR."""

    @dataclass
    class Unfilled(Message):
        """A variable in a saved prompt has not been filled in. Pressing Enter again sends the text anyway."""

        variable: str

    class BackspaceInEmpty(Message):
        """Backspace was pressed in an empty box."""

    class ClearUndone(Message):
        """The text removed by `clear_draft` has been restored."""

    def __init__(
        self, completions: Completions, complete: Callable[[], None], *, id: str | None = None
    ) -> None:
        """complete: a function that updates `completions` for the text before the cursor."""
        super().__init__(id=id, placeholder="Ask something, or / for commands", highlight_cursor_line=False)
        self._completions = completions
        self._complete = complete
        self._history: Sequence[str] = ()
        self._history_index = -1
        self._unsent = ""
        self.is_cleared = False
        """Whether undo would restore the text removed by `clear_draft`."""
        self.variables: Callable[[], Collection[str]] = lambda: ()
        """Function that returns the {variables} in the saved prompts."""
        self._unfilled = ""
        """Text that was not sent because of an unfilled variable."""
        self.has_waiting = False
        """Whether questions are waiting; Up in an empty box takes the last one back."""

    def replay(self, early: list[events.Key | events.Paste]) -> None:
        """Handle the keys and pastes that arrived before the box was focused."""
        for event in early:
            # An Enter typed before the app took over the terminal arrives as Ctrl+J.
            enter = isinstance(event, events.Key) and event.key == "ctrl+j"
            self._forward_event(events.Key("enter", "\r") if enter else event)

    def fill(self, text: str) -> None:
        """Replace the text, and move the cursor to the end."""
        self.text = text
        self.is_cleared = False
        self.move_cursor(self.document.end)

    @property
    def unsent(self) -> str:
        """The text that the user typed, not counting an earlier question shown from the history."""
        if self._history_index < 0:
            return self.text
        own = "" if self.text == self._history[self._history_index] else self.text
        return "\n".join(part for part in (self._unsent, own) if part)

    def clear_draft(self) -> None:
        """Remove the text typed by the user; undo restores it."""
        if self._history_index >= 0:
            self.fill(self.unsent)
            self._history_index = -1
        self.history.checkpoint()
        self.clear()
        self.history.checkpoint()
        self.is_cleared = True

    def action_undo(self) -> None:
        was_empty = not self.text
        super().action_undo()
        if self.is_cleared and was_empty:
            self.is_cleared = False
            self.post_message(self.ClearUndone())

    def replace_text(self, text: str) -> None:
        """Replace the text; undo restores the previous text."""
        self.history.checkpoint()
        self.replace(text, (0, 0), self.document.end)
        self.history.checkpoint()
        self.move_cursor(self.document.end)

    def quote(self, text: str) -> None:
        quoted = "\n".join(f"> {line}".rstrip() for line in text.strip().split("\n"))
        self.fill(f"{self.text.rstrip()}\n\n{quoted}\n\n".lstrip("\n"))

    def remember(self, asked: Sequence[str]) -> None:
        """Set the history, newest question first, and show its first entry."""
        self._history, self._history_index = asked, -1
        self._step_history(1)

    @on(events.Key)
    def _take_key(self, event: events.Key) -> None:
        # Bindings run later, so fast typing would overtake them.
        if event.key in _COMPLETING and self._has_completions() and self._complete_by_key(event.key):
            pass
        elif event.key == "enter":
            self.action_send()
        elif event.key in _NEWLINE:
            self.action_newline()
        elif event.key == "tab":
            self.action_complete()
        elif event.key == "up" and self.has_waiting and not self.text:
            self.post_message(self.TakesBack())
        elif event.key == "up" and self.cursor_at_first_line and not self.selected_text:
            self._step_history(1)
        elif event.key == "down" and self._history_index >= 0 and self.cursor_at_last_line:
            self._step_history(-1)
        elif event.key == "backspace" and not self.text:
            self.post_message(self.BackspaceInEmpty())
        else:
            return
        event.stop()
        event.prevent_default()

    def _has_completions(self) -> bool:
        """Return whether there are completions for the text before the cursor, updating outdated ones."""
        if self._completions.typed != self.text_before:
            self._complete()
        return self._completions.is_open and self._completions.typed == self.text_before

    def _complete_by_key(self, key: str) -> bool:
        """Handle a key for the completion list; return False if the list does not use it."""
        choice = self._completions.choice
        assert choice is not None
        typed = self.text_before[choice.start :]
        match key:
            case "up" | "down":
                self._completions.move(-1 if key == "up" else 1)
            case "tab":
                self.accept()
            case "enter" if choice.text.rstrip() != typed.rstrip() and not choice.more:
                # A command that takes no argument is sent right away.
                is_complete = not choice.text.endswith(" ")
                self.accept()
                if is_complete and self.text.startswith("/"):
                    self.action_send()
            case "escape":
                self._completions.show((), self.text_before)
            case _:
                return False
        return True

    def accept(self) -> None:
        """Replace the typed text with the chosen completion."""
        choice = self._completions.choice
        if choice is not None:
            row, column = self.cursor_location
            before = self.text_before
            start = column - (len(before) - choice.start)
            self._type(choice.text, (row, max(0, start)), (row, column))

    @property
    def text_before(self) -> str:
        return self.get_text_range((0, 0), self.cursor_location)

    def action_send(self) -> None:
        """Submit the text unless it is empty, and clear the box.

        Text with an unfilled variable is submitted only on the second attempt.
        """
        self._history_index = -1
        if self.text != self._unfilled and self.select_variable((0, 0)):
            self._unfilled = self.text
            self.post_message(self.Unfilled(self.selected_text))
        elif self.text.strip():
            self.is_cleared = False
            self.post_message(self.Submitted(self.text))
            self.clear()

    def action_newline(self) -> None:
        self._type("\n", *self.selection)

    def action_complete(self) -> None:
        """Accept a completion, select the next variable in a saved prompt, or go to the turns."""
        if self._has_completions():
            self.accept()
        elif not self.select_variable(max(self.selection)):
            self.post_message(self.WantsTurns())

    def select_variable(self, after: Location) -> bool:
        """Select the next variable in a saved prompt; return whether there is one."""
        text, document = self.text, self.document
        if "{" not in text:
            return False
        assert isinstance(document, Document)
        span = next_variable(text, self.variables(), document.get_index_from_location(after))
        if span is not None:
            start, end = map(document.get_location_from_index, span)
            self.selection = Selection(start, end)
        return span is not None

    def action_editor(self) -> None:
        self.post_message(self.WantsEditor())

    def _step_history(self, by: int) -> None:
        """Show an earlier (1) or later (-1) question; going past the latest restores the user's own text."""
        if self._history_index < 0 and by > 0 and not self._history:
            self.post_message(self.WantsHistory())
            return
        index = min(self._history_index + by, len(self._history) - 1)
        if self._history_index < 0:
            self._unsent = self.text
        self._history_index = index
        self.fill(self._history[index] if index >= 0 else self._unsent)
        if by > 0:
            self.move_cursor((0, 0))

    def forget_history(self) -> None:
        """Discard the history; it is requested again when needed."""
        self._history, self._history_index = (), -1

    @on(events.Paste)
    def _take_paste(self, event: events.Paste) -> None:
        # Some terminals send \r for line ends, which `printable` would remove.
        text = printable(event.text.replace("\r\n", "\n").replace("\r", "\n"))
        event.prevent_default()
        event.stop()
        if not text:  # some terminals paste nothing when the clipboard holds an image
            self.post_message(self.WantsClipboard(or_text=False))
        elif is_long(text) or may_be_path(text):
            self.post_message(self.Pasted(text, self.app.keys.hold()))  # type: ignore[attr-defined]
        else:  # immediately, so that the next key cannot overtake it
            self.insert_paste(text)

    def action_paste(self) -> None:
        """Paste from the clipboard. Terminals that paste by themselves do not send this key."""
        self.post_message(self.WantsClipboard(or_text=True))

    def paste_copied(self) -> None:
        """Insert the text last copied in the app."""
        super().action_paste()

    def insert_paste(self, text: str) -> None:
        self._type(text, *self.selection)
        self.focus()

    def _type(self, text: str, start: Location, end: Location) -> None:
        """Replace part of the text, and put the cursor after it."""
        self.move_cursor(self.replace(text, start, end, maintain_selection_offset=False).end_location)


def variables_in(texts: Iterable[str]) -> frozenset[str]:
    """Return the variables in saved prompts, with their braces."""
    return frozenset(name for text in texts for name in _VARIABLE.findall(text))


def next_variable(text: str, names: Collection[str], start: int) -> Span | None:
    """Return the first of these variables at or after `start`, wrapping around, or None if none occur."""
    spans = [match.span() for match in _VARIABLE.finditer(text) if match[0] in names]
    return next((span for span in spans if span[0] >= start), spans[0] if spans else None)
