"""The pieces of a transcript: plain data that lives on while its widget comes and goes.

Everything that a stranger wrote (a model, a user's paste, a file name) becomes harmless for the terminal
here, because nothing reaches the transcript but as a piece.
"""

from __future__ import annotations

from typing import Literal

from textual import events
from textual.content import Content

from edgechat.base.text import one_line, printable
from edgechat.tui.markdown.blocks import RenderedLine
from edgechat.tui.markdown.document import Document
from edgechat.tui.transcript.sheet import Sheet

Tone = Literal["faint", "warning", "error"]


class Piece:
    """One thing in the transcript. `sheet` is its widget while it is near the screen."""

    def __init__(self, text: str = "") -> None:
        self.text = printable(text)
        self.sheet: Sheet | None = None
        self.turn = ""
        """The id of the turn that it shows, or a part of; empty where it is none's."""
        self.current = False
        """Whether keys go to its turn."""
        self.left = False
        """Whether the model is not sent its turn any more."""

    def new_sheet(self) -> Sheet:
        """Return a widget that shows the piece."""
        raise NotImplementedError

    def mount_sheet(self) -> Sheet:
        """Return the widget that shows the piece from now on."""
        self.sheet = self.new_sheet()
        self.mark()
        return self.sheet

    def mark(self, *, current: bool | None = None, left: bool | None = None) -> None:
        """Note what it is now, and show that."""
        self.current = self.current if current is None else current
        self.left = self.left if left is None else left
        if self.sheet is not None:
            self.sheet.set_class(self.current, "-current")
            self.sheet.set_class(self.left, "-left")

    def append(self, text: str) -> None:
        text = printable(text)
        self.text += text
        if self.sheet is not None:
            self._show(text)

    def estimate(self, width: int) -> int:
        """Guess how many lines the piece takes, the empty one above it included."""
        return 2 + self.text.count("\n") + len(self.text) // max(1, width)

    def _show(self, text: str) -> None:
        assert self.sheet is not None
        self.sheet.changed()


class UserPiece(Piece):
    """What the user said, as it was typed, below the names of what was attached to it."""

    def __init__(self, text: str, attached: tuple[str, ...] = ()) -> None:
        super().__init__(text)
        self.attached = tuple(one_line(name, 60) for name in attached)

    def new_sheet(self) -> Sheet:
        return UserSheet(self)


class ReplyPiece(Piece):
    """What the model said: Markdown, perhaps still growing."""

    def new_sheet(self) -> Sheet:
        return ReplySheet(self)

    def _show(self, text: str) -> None:
        if isinstance(self.sheet, ReplySheet):
            self.sheet.append(text)


class ThoughtPiece(Piece):
    """The reasoning before an answer, folded away until somebody wants to read it."""

    def __init__(self, text: str = "", *, tokens: int = 0, seconds: float | None = None) -> None:
        super().__init__(text)
        self.tokens = tokens
        self.seconds = seconds
        """How long it took; None while it goes on."""
        self.unfolded = False

    def new_sheet(self) -> Sheet:
        return ThoughtSheet(self)

    def toggle(self) -> None:
        self.unfolded = not self.unfolded
        if self.sheet is not None:
            self.sheet.changed()

    def finish(self, tokens: int, seconds: float) -> None:
        """Say what it took in the end."""
        self.tokens, self.seconds = tokens, seconds
        if self.sheet is not None:
            self.sheet.changed()

    def estimate(self, width: int) -> int:
        return super().estimate(width) + 1 if self.unfolded else 2

    @property
    def heading(self) -> str:
        """The line that is always seen."""
        parts = ["Thinking" if self.seconds is None else f"Thought for {_duration(self.seconds)}"]
        if self.tokens:
            parts.append("1 token" if self.tokens == 1 else f"{self.tokens:,} tokens")
        return f"{'▾' if self.unfolded else '▸'} {' · '.join(parts)}"


class WelcomePiece(Piece):
    """What an empty chat begins with."""

    def __init__(self) -> None:
        super().__init__("What you write stays on this machine.")

    def new_sheet(self) -> Sheet:
        return WelcomeSheet(self)


class CutPiece(Piece):
    """The line at which the window was cut: what stands above is not sent any more."""

    def new_sheet(self) -> Sheet:
        return CutSheet(self)


class NotePiece(Piece):
    """A line of our own: how a reply ended, or something to know."""

    def __init__(self, text: str, tone: Tone = "faint") -> None:
        super().__init__(text)
        self.tone: Tone = tone

    def new_sheet(self) -> Sheet:
        return NoteSheet(self)


class ProblemPiece(Piece):
    """An error: what happened, and what to do next."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = printable(hint or "")

    def new_sheet(self) -> Sheet:
        return ProblemSheet(self)


class UserSheet(Sheet):
    """The user's words behind a bar."""

    def __init__(self, piece: UserPiece) -> None:
        super().__init__()
        self._piece = piece

    def lay_out(self, width: int) -> list[RenderedLine]:
        lines: list[RenderedLine] = []
        if self._piece.attached:
            names = Content("  ".join(f"▤ {name}" for name in self._piece.attached)).stylize(".code")
            lines = _behind_bar(names, width, ".marker")
        if self._piece.text or not lines:
            lines += _behind_bar(Content(self._piece.text).stylize(".strong"), width, ".marker")
        return lines


class ReplySheet(Sheet):
    """The model's words as Markdown."""

    def __init__(self, piece: ReplyPiece) -> None:
        super().__init__()
        self._document = Document(piece.text)

    def append(self, text: str) -> None:
        self._document.append(text)
        self.changed()

    def lay_out(self, width: int) -> list[RenderedLine]:
        return self._document.lines(width)


class ThoughtSheet(Sheet):
    """A heading, and the thought below it when it is unfolded."""

    DEFAULT_CSS = """
    ThoughtSheet:hover { text-style: underline; }
    """

    def __init__(self, piece: ThoughtPiece) -> None:
        super().__init__()
        self._piece = piece

    def lay_out(self, width: int) -> list[RenderedLine]:
        lines = [RenderedLine(Content(self._piece.heading).stylize(".faint"))]
        if self._piece.unfolded:
            thought = Content(self._piece.text.strip()).stylize(".faint")
            lines += _behind_bar(thought, width, ".faint", bar="│ ")
        return lines

    def on_click(self, event: events.Click) -> None:
        event.stop()
        self._piece.toggle()


class WelcomeSheet(Sheet):
    """The name, and a line below it."""

    def __init__(self, piece: WelcomePiece) -> None:
        super().__init__()
        self._piece = piece

    def lay_out(self, width: int) -> list[RenderedLine]:
        words = Content(self._piece.text).stylize(".faint").wrap(width)
        return [RenderedLine(Content("edgechat").stylize(".heading")), *map(RenderedLine, words)]


class CutSheet(Sheet):
    """A broken line, and what it means."""

    def __init__(self, piece: CutPiece) -> None:
        super().__init__()
        self._piece = piece

    def lay_out(self, width: int) -> list[RenderedLine]:
        words = Content(self._piece.text).stylize(".faint").wrap(width)
        return [RenderedLine(Content("╌" * width).stylize(".warning")), *map(RenderedLine, words)]


class NoteSheet(Sheet):
    """A note, wrapped."""

    def __init__(self, piece: NotePiece) -> None:
        super().__init__()
        self._piece = piece

    def lay_out(self, width: int) -> list[RenderedLine]:
        return [
            RenderedLine(line)
            for line in Content(self._piece.text).stylize(f".{self._piece.tone}").wrap(width)
        ]


class ProblemSheet(Sheet):
    """The message in the colour of errors, the hint below it."""

    def __init__(self, piece: ProblemPiece) -> None:
        super().__init__()
        self._piece = piece

    def lay_out(self, width: int) -> list[RenderedLine]:
        lines = _behind_bar(Content(self._piece.text).stylize(".error"), width, ".error")
        if self._piece.hint:
            lines += _behind_bar(Content(self._piece.hint), width, ".error")
        return lines


def _duration(seconds: float) -> str:
    if seconds < 10:
        return f"{seconds:.1f} s"
    return f"{seconds:.0f} s" if seconds < 60 else f"{seconds // 60:.0f} min {seconds % 60:.0f} s"


def _behind_bar(content: Content, width: int, style: str, bar: str = "▌ ") -> list[RenderedLine]:
    wrapped = content.wrap(max(1, width - len(bar)))
    return [RenderedLine(Content.assemble((bar, style), line), len(bar)) for line in wrapped]
