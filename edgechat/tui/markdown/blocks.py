"""From Markdown tokens to blocks: a flat list, each with the markers that precede its lines.

Textual's own Markdown widget makes a widget of every paragraph and list item, and rebuilds a growing list
with each word: 100 ms for 24 items. Blocks are plain data, and one widget shows them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from textual.content import Content, Span

if TYPE_CHECKING:
    from markdown_it.token import Token

BULLETS = ("•", "◦", "▪")
_STYLES = {"strong_open": ".strong", "em_open": ".em", "s_open": ".strike", "link_open": ".link"}

NOTHING = Content("")

Row = tuple[Content, ...]


class RenderedLine(NamedTuple):
    """A line on the screen; its first `lead` characters are markers, which are not copied."""

    content: Content
    lead: int = 0


EMPTY = RenderedLine(Content(""))


@dataclass(frozen=True, slots=True)
class Block:
    """A paragraph, heading, piece of code, table or rule, with its place in lists and quotes."""

    kind: Literal["text", "heading", "code", "table", "rule"]
    content: Content = NOTHING
    """The text; of code, the plain source."""
    first: str = ""
    """Precedes the first line: the bullet or number of a list item, the bar of a quote."""
    rest: str = ""
    """Precedes the other lines, as wide as `first`."""
    gap: bool = True
    """Whether an empty line separates it from what is above."""
    language: str = ""
    rows: tuple[Row, ...] = ()
    """Of a table; the first one is the header."""


@dataclass(frozen=True, slots=True)
class ListContinuation:
    """How a list goes on that was split between two items."""

    number: int | None
    """The next item's number; None in a list with bullets."""
    gap: bool
    """Whether an empty line stands before the next item."""


class BlockBuilder:
    """Turns a run of tokens into blocks; `lines` is the source they were parsed from.

    A run may end between two items of a top-level list; the rest of the list is then parsed and built
    separately, with the `continuation` of the first part.
    """

    def __init__(self, lines: Sequence[str], continuation: ListContinuation | None = None) -> None:
        self.blocks: list[Block] = []
        self._lines = lines
        self._continuation = continuation
        self._leads: list[tuple[str, str]] = []
        self._numbers: list[int | None] = []
        self._starts_list = False
        self._rows: list[list[Content]] = []

    def build(self, tokens: Sequence[Token]) -> list[Block]:
        inline_kind: Literal["text", "heading"] = "text"
        for token in tokens:
            match token.type:
                case "heading_open":
                    inline_kind = "heading"
                case "paragraph_open":
                    inline_kind = "text"
                case "inline" if self._rows:
                    self._rows[-1].append(inline_content(token))
                case "inline":
                    self._add(Block(inline_kind, inline_content(token), gap=self._gap_before(token)))
                case "fence" | "code_block":
                    language = token.info.split()[0] if token.info.split() else ""
                    self._add(Block("code", Content(token.content.rstrip("\n")), language=language))
                case "hr":
                    self._add(Block("rule"))
                case "tr_open":
                    self._rows.append([])
                case "table_close":
                    self._add(Block("table", rows=tuple(tuple(row) for row in self._rows)))
                    self._rows = []
                case _:
                    self._nest(token)
        return self.blocks

    def continuation_at(self, token: Token) -> ListContinuation | None:
        """Return how a list goes on at `token`; None outside of lists."""
        return ListContinuation(self._numbers[0], self._gap_before(token)) if self._numbers else None

    def _gap_before(self, token: Token) -> bool:
        # The empty lines of the source, not CommonMark's looseness, which a later item may change.
        line = token.map[0] if token.map else 0
        if not self._numbers:
            return True
        if line == 0:
            return self._continuation is None or self._continuation.gap
        return not self._lines[line - 1].strip()

    def _nest(self, token: Token) -> None:
        match token.type:
            case "bullet_list_open" | "ordered_list_open":
                self._begin_list(token)
            case "bullet_list_close" | "ordered_list_close":
                self._numbers.pop()
            case "list_item_open":
                self._leads.append(self._item_lead())
            case "blockquote_open":
                self._leads.append(("▎ ", "▎ "))
            case "list_item_close" | "blockquote_close":
                if self._leads[-1][0] != self._leads[-1][1]:
                    self._add(Block("text", gap=False))  # an item without text still has its marker
                self._leads.pop()

    def _begin_list(self, token: Token) -> None:
        continues = self._continuation is not None and not self._numbers and not self.blocks
        if not self._numbers:
            self._starts_list = not continues
        start = int(token.attrs.get("start", 1)) if token.type == "ordered_list_open" else None
        self._numbers.append(self._continuation.number if continues and self._continuation else start)

    def _item_lead(self) -> tuple[str, str]:
        number = self._numbers[-1]
        if number is None:
            depth = self._numbers.count(None) - 1
            mark = f"{BULLETS[depth % len(BULLETS)]} "
        else:
            mark = f"{number:>2}. "
            self._numbers[-1] = number + 1
        return mark, " " * len(mark)

    def _add(self, block: Block) -> None:
        first = "".join(lead[0] for lead in self._leads)
        rest = "".join(lead[1] for lead in self._leads)
        gap = self._starts_list or block.gap
        self._starts_list = False
        # A marker is written once, before the first block of its item.
        self._leads = [(after, after) for _, after in self._leads]
        self.blocks.append(Block(block.kind, block.content, first, rest, gap, block.language, block.rows))


def inline_content(token: Token) -> Content:
    """Return the text of an inline token, with spans named after what they mean ('.strong')."""
    text: list[str] = []
    spans: list[Span] = []
    opened: list[tuple[int, str, str]] = []
    at = 0

    def write(piece: str, style: str = "") -> None:
        nonlocal at
        if style:
            spans.append(Span(at, at + len(piece), style))
        text.append(piece)
        at += len(piece)

    for child in token.children or ():
        if child.type == "code_inline":
            write(child.content, ".code")
        elif child.type in ("softbreak", "hardbreak"):
            # A model's line breaks are kept: verses and lists of lines stay what they are.
            write("\n")
        elif child.type == "image":
            write(f"{child.content} ({child.attrs.get('src', '')})", ".link")
        elif child.type.endswith("_open"):
            opened.append((at, _STYLES.get(child.type, ""), str(child.attrs.get("href", ""))))
        elif child.type.endswith("_close"):
            start, style, href = opened.pop()
            spans.append(Span(start, at, style))
            if href and href != "".join(text)[start:]:
                write(f" ({href})", ".faint")
        else:
            write(child.content)
    return Content("".join(text), spans)
