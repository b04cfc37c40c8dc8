"""Markdown tokens become blocks: flat, each knowing what stands before its lines.

Textual's own Markdown widget makes a widget of every paragraph and list item, and makes a growing list anew
with each word: 100 ms for 24 items. Blocks are plain data, and one widget shows them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from textual.content import Content, Span

if TYPE_CHECKING:
    from markdown_it.token import Token

BULLETS = ("•", "◦", "▪")
_STYLES = {"strong_open": ".strong", "em_open": ".em", "s_open": ".strike", "link_open": ".link"}

NOTHING = Content("")

Row = tuple[Content, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """A paragraph, heading, piece of code, table or rule, with its place in lists and quotes."""

    kind: Literal["text", "heading", "code", "table", "rule"]
    content: Content = NOTHING
    """The text; of code, the plain source."""
    first: str = ""
    """Stands before the first line: the bullet or number of a list item, the bar of a quote."""
    rest: str = ""
    """Stands before the other lines, as wide as `first`."""
    gap: bool = True
    """Whether an empty line separates it from what is above."""
    language: str = ""
    rows: tuple[Row, ...] = ()
    """Of a table; the first one is the header."""


class BlockBuilder:
    """Turns a run of tokens into blocks."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self._leads: list[tuple[str, str]] = []
        self._numbers: list[int | None] = []
        self._list_begins = False
        self._rows: list[list[Content]] = []

    def build(self, tokens: Sequence[Token]) -> list[Block]:
        """Return the blocks of `tokens`, which must be whole top-level blocks."""
        inline_kind: Literal["text", "heading"] = "text"
        tight = False
        for token in tokens:
            match token.type:
                case "heading_open":
                    inline_kind = "heading"
                case "paragraph_open":
                    inline_kind, tight = "text", token.hidden
                case "inline" if self._rows:
                    self._rows[-1].append(inline_content(token))
                case "inline":
                    self._add(Block(inline_kind, inline_content(token)), tight=tight)
                    tight = False
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

    def _nest(self, token: Token) -> None:
        match token.type:
            case "bullet_list_open" | "ordered_list_open":
                self._list_begins = not self._numbers
                ordered = token.type == "ordered_list_open"
                self._numbers.append(int(token.attrs.get("start", 1)) if ordered else None)
            case "bullet_list_close" | "ordered_list_close":
                self._numbers.pop()
            case "list_item_open":
                self._leads.append(self._item_lead())
            case "blockquote_open":
                self._leads.append(("▎ ", "▎ "))
            case "list_item_close" | "blockquote_close":
                self._leads.pop()

    def _item_lead(self) -> tuple[str, str]:
        number = self._numbers[-1]
        if number is None:
            depth = sum(1 for one in self._numbers if one is None) - 1
            mark = f"{BULLETS[depth % len(BULLETS)]} "
        else:
            mark = f"{number:>2}. "
            self._numbers[-1] = number + 1
        return mark, " " * len(mark)

    def _add(self, block: Block, *, tight: bool = False) -> None:
        first = "".join(lead[0] for lead in self._leads)
        rest = "".join(lead[1] for lead in self._leads)
        gap = self._list_begins or not tight
        self._list_begins = False
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
            # A model's line break is kept: what it wrote as a verse or a list of lines stays one.
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
