"""Markdown for plain terminal output: each piece is written as soon as further text cannot change it.

Nothing is overwritten, so the output is correct at any width, after a resize, and in a log.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from rich.color import ColorSystem
from textual.color import Color
from textual.content import Content
from textual.style import Style

from edgechat.tui.markdown.blocks import RenderedLine
from edgechat.tui.markdown.document import Document

_CLOSERS = {
    "*": ("*", "**"),
    "_": ("_", "__"),
    "`": ("`", "``"),
    "~": ("~~",),
    "$": ("$", "$$"),
    "\\": ("\\)", "\\]"),
    "[": ("]", "](z)", "(z)"),
    "(": (")",),
    "<": (">",),
    "&": (";",),
}
"""Possible endings of a piece of markup, keyed by the character that opens it."""
_NOT_YET = ("table", "maths")
"""Kinds of blocks in which any line may change until the block ends."""


class MarkdownStream:
    """Turns growing Markdown text into lines to write.

    `take` and `finish` return pieces to be written with newlines between them; the first piece
    continues the last line written. A new width takes effect at the next block.
    """

    def __init__(self) -> None:
        self._document = Document(filled=False)
        self._width = 0
        self._start = 0
        """Number of lines that have been written and can no longer change."""
        self._sent = [""]
        """The lines written after those, the last of which may still grow."""

    @property
    def waits_for(self) -> str:
        """The kind of the current block if it is written only when complete ("table" or "maths"), else ''."""
        kind = self._document.open_kind
        return kind if kind in _NOT_YET else ""

    @property
    def at_line_start(self) -> bool:
        """Whether the last line written is complete."""
        return not self._sent[-1]

    def append(self, text: str) -> None:
        self._document.append(text)

    def take(self, width: int) -> list[Content]:
        """Return the pieces that can be written now."""
        self._width = self._width or width
        pieces = [Content("")]
        final = self._document.final_lines(self._width)
        if len(final) >= self._start + len(self._sent):
            pieces = self._write(final, len(final), 0)
        self._forget(len(final))
        if self._sent == [""] and width != self._width:
            self._width = width
            self._start = len(self._document.final_lines(width))
        lines = self._document.lines(self._width)
        final = self._document.final_lines(self._width)
        line, column = self._settled(lines[len(final) :])
        first, *others = self._write(lines, len(final) + line, column)
        return [*pieces[:-1], pieces[-1] + first, *others]

    def finish(self, width: int) -> list[Content]:
        self._width = self._width or width
        lines = self._document.lines(self._width)
        return self._write(lines, len(lines), 0)

    def _write(self, lines: Sequence[RenderedLine], line: int, column: int) -> list[Content]:
        """Return the text from the end of the output up to `column` in `line`."""
        pieces = [] if self._agrees(lines) else self._start_again()
        at = self._start + len(self._sent) - 1
        for number in range(at, line):
            content = lines[number].content
            pieces.append(content[len(self._sent[-1]) :])
            self._sent[-1:] = [content.plain, ""]
        at = self._start + len(self._sent) - 1
        if at == line and column > len(self._sent[-1]):
            content = lines[line].content[:column]
            pieces.append(content[len(self._sent[-1]) :])
            self._sent[-1] = content.plain
        else:
            pieces.append(Content(""))
        return pieces

    def _agrees(self, lines: Sequence[RenderedLine]) -> bool:
        """Return whether these lines start with the text written so far."""
        *complete, last = self._sent
        now = [line.content.plain for line in lines[self._start : self._start + len(self._sent)]]
        return now[: len(complete)] == complete and "".join(now[len(complete) :]).startswith(last)

    def _start_again(self) -> list[Content]:
        """Begin to write the unfinished block again below, since it turned out to be something else."""
        pieces = [] if self.at_line_start else [Content("")]
        self._sent = [""]
        return pieces

    def _forget(self, final: int) -> None:
        count = max(0, min(len(self._sent) - 1, final - self._start))
        self._start += count
        self._sent = self._sent[count:]

    def _settled(self, lines: Sequence[RenderedLine]) -> tuple[int, int]:
        """Return the line and column up to which all possible continuations agree."""
        if self.waits_for:
            return 0, 0
        agreed, column = _before_unfinished(lines)
        for ending in self._endings(self._document.tail):
            other = self._document.lines_of_tail(ending, self._width)
            for at, line in enumerate(lines[: agreed + 1]):
                if at < len(other) and line.content.plain == other[at].content.plain:
                    continue
                same = _shared(line, other[at]) if at < len(other) else 0
                agreed, column = at, min(column, same) if at == agreed else same
                break
        return agreed, column

    def _endings(self, tail: str) -> Iterator[str]:
        """Yield continuations of the text, one for each construct that its end may turn into."""
        yield f"{tail}z"
        yield f"{tail}\nz"
        if self._document.open_kind == "code":
            return
        shorter = tail.rstrip()
        for sign, closers in _CLOSERS.items():
            if sign in tail:
                yield from (shorter + closer for closer in closers)
        if "|" in shorter:
            lines = shorter.split("\n")
            for above in (lines, lines[:-1], [*lines[:-1], f"{lines[-1]}z|"]):  # the | may start a row
                row = above[-1] if above else ""
                cells = row.strip("> |").count("|") + 1 if above else 0
                inside = row[: len(row) - len(row.lstrip("> "))]  # prefix of a quote or list item
                yield "\n".join([*above, f"{inside}{'|-' * cells}|", ""])


def _before_unfinished(lines: Sequence[RenderedLine]) -> tuple[int, int]:
    """Return the line and column where an unfinished formula starts, or where the lines end."""
    for at, line in enumerate(lines):
        starts = [span.start for span in line.content.spans if span.style == ".unfinished"]
        if starts:
            column = len(line.content.plain[: min(starts)].rstrip())
            return at, column if column > line.lead else 0
    return len(lines), 0


def _shared(line: RenderedLine, other: RenderedLine) -> int:
    """Return the length of two lines' common prefix, in characters, cut at a word boundary.

    It is 0 if only their markers match.
    """
    ours, theirs = line.content.plain, other.content.plain
    length = next(
        (at for at, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b),
        min(len(ours), len(theirs)),
    )
    if (ours[length : length + 1] or " ") != " " or (theirs[length : length + 1] or " ") != " ":
        length = max(0, ours.rfind(" ", 0, length))
    return length if length > min(line.lead, other.lead) else 0


# The terminal's own colours, as in the "terminal" theme.
STYLES = {
    ".strong": Style(bold=True),
    ".em": Style(italic=True),
    ".strike": Style(strike=True),
    ".code": Style(foreground=Color.parse("ansi_cyan")),
    ".link": Style(underline=True),
    ".maths": Style(italic=True),
    ".unfinished": Style(foreground=Color.parse("ansi_cyan")),
    ".heading-1": Style(foreground=Color.parse("ansi_blue"), bold=True),
    ".heading-2": Style(foreground=Color.parse("ansi_blue"), bold=True),
    ".heading-3": Style(foreground=Color.parse("ansi_cyan"), bold=True),
    ".heading-4": Style(bold=True),
    ".heading-5": Style(bold=True, italic=True),
    ".marker": Style(foreground=Color.parse("ansi_blue")),
    ".faint": Style(dim=True),
    ".code-comment": Style(dim=True, italic=True),
    ".code-keyword": Style(foreground=Color.parse("ansi_magenta")),
    ".code-string": Style(foreground=Color.parse("ansi_green")),
    ".code-number": Style(foreground=Color.parse("ansi_yellow")),
    ".code-name": Style(foreground=Color.parse("ansi_blue")),
    ".code-builtin": Style(foreground=Color.parse("ansi_cyan")),
    ".code-deleted": Style(foreground=Color.parse("ansi_red")),
    ".code-inserted": Style(foreground=Color.parse("ansi_green")),
}
"""Styles keyed by span name. Others, such as the background of code, exist only in the app."""


def as_escapes(pieces: Iterable[Content]) -> str:
    """Return the pieces' text joined by newlines, without colours if NO_COLOR is set."""
    colourless = bool(os.environ.get("NO_COLOR"))
    return "\n".join("".join(_escaped(piece, colourless)) for piece in pieces)


def _escaped(piece: Content, colourless: bool) -> Iterator[str]:
    for text, style in piece.render(Style.null(), end="", parse_style=_style):
        shown = style.without_color if colourless else style
        yield shown.rich_style.render(text, color_system=ColorSystem.STANDARD)


@lru_cache(maxsize=64)
def _style(name: str | Style) -> Style:
    return STYLES.get(name, Style.null()) if isinstance(name, str) else name
