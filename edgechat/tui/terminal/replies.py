"""What a terminal answers in strings: its name (XTVERSION), and what has become of an image.

Textual's parser would take them for keys that are typed.
"""

from __future__ import annotations

from time import monotonic

from textual.message import Message

_STARTS = ("\x1bP>|", "\x1b_G")
_ENDS = ("\x1b\\", "\a")
_MOST_LETTERS = 512
_START_SECONDS = 0.05
"""For the rest of a start: Alt+Shift+P sends what it begins with."""
_REPLY_SECONDS = 1.0
"""For the next letter; a reply that stops in its middle is dropped."""


class TerminalReply(Message):
    """A string of the terminal, with its start and without its end: '\\x1b_Gi=7;OK'."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text


class ReplyReader:
    """Takes replies out of what a terminal sends, letter by letter.

    ESC is passed on at once, since it may be a key of its own: when a reply begins (`is_inside`), whoever
    reads the keys has to forget it.
    """

    def __init__(self) -> None:
        self._held = ""
        """The letters of a reply, or of what may become one, ESC included."""
        self._at = 0.0
        """When the last of them came."""

    @property
    def is_inside(self) -> bool:
        """Whether a reply has begun."""
        return self._held.startswith(_STARTS)

    def feed(self, letter: str) -> str | TerminalReply:
        """Return the letters that belong to no reply, or a reply that is complete."""
        before, self._held, self._at = self._held, self._held + letter, monotonic()
        if before.startswith(_STARTS):
            return self._go_on(letter)
        if len(self._held) > 1 and any(start.startswith(self._held) for start in _STARTS):
            return ""
        self._held = "\x1b" if letter == "\x1b" else ""
        return before[1:] + letter

    def _go_on(self, letter: str) -> str | TerminalReply:
        if self._held.endswith(_ENDS):
            text, self._held = self._held, ""
            return TerminalReply(text.removesuffix("\a").removesuffix("\x1b\\"))
        if self._held[-2] == "\x1b" != letter:  # something else has begun
            self._held = "\x1b"
            return f"\x1b{self.feed(letter)}"
        if len(self._held) > _MOST_LETTERS:
            self._held = ""
        return ""

    def tick(self) -> str:
        """Return what has been held for too long, and is no reply."""
        waited = monotonic() - self._at
        if self.is_inside:
            self._held = self._held if waited < _REPLY_SECONDS else ""
            return ""
        if len(self._held) < 2 or waited < _START_SECONDS:
            return ""
        text, self._held = self._held[1:], ""
        return text
