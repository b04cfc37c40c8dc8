"""Markdown documents: parses text, which may still be growing, into blocks with citations and links."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from textual.content import Content, Span
from textual.style import Style

from edgechat.base.text import one_line, printable
from edgechat.tui.markdown.blocks import EMPTY, Block, RenderedLine
from edgechat.tui.markdown.layout import lines_of, unfilled

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token


_LONGEST = 2000
"""Maximum length of a link target, close to the limit set by terminals (2083 in VTE)."""


_CLICKABLE = re.compile(r"(?:https?://|mailto:)[!-~]+", re.IGNORECASE)


_SCHEME = re.compile(r"(?:https?://|mailto:)", re.IGNORECASE)


BULLETS = ("•", "◦", "▪")
CHECKBOXES = {"[ ]": "☐ ", "[x]": "☑ ", "[X]": "☑ "}
_STYLES = {"strong_open": ".strong", "em_open": ".em", "s_open": ".strike", "link_open": ".link"}


CITED = "passage"
"""Key in a style's metadata for the number of the cited passage."""
_NUMBER = re.compile(r"\[?\d+\]?")


@dataclass(frozen=True, slots=True)
class Sources:
    """The passages that a text may cite, and those of its quotations that were not found in any passage."""

    passages: Collection[int] = ()
    """Passage numbers to turn into links; other numbers stay plain text."""
    unfounded: Sequence[str] = ()
    """Quotations to mark because they were not found in any passage."""


NO_SOURCES = Sources()


@dataclass(frozen=True, slots=True)
class ListContinuation:
    """How a list that was split between two items continues."""

    number: int | None
    """Number of the next item, or None in a bulleted list."""
    gap: bool
    """Whether a blank line precedes the next item."""


class BlockBuilder:
    """Turns a run of tokens into blocks; `lines` is the source that the tokens refer to.

    A run may end between two items of a top-level list. The rest of the list is then parsed and built
    separately, using the `continuation` of the first part.
    """

    def __init__(
        self,
        lines: Sequence[str],
        continuation: ListContinuation | None = None,
        sources: Sources = NO_SOURCES,
    ) -> None:
        self.blocks: list[Block] = []
        self._sources = sources
        self._lines = lines
        self._continuation = continuation
        self._leads: list[tuple[str, str]] = []
        self._numbers: list[int | None] = []
        self._starts_list = False
        self._rows: list[list[Content]] = []
        self._aligns: list[str] = []

    def build(self, tokens: Sequence[Token]) -> list[Block]:
        level = 0
        for token in tokens:
            match token.type:
                case "heading_open":
                    level = int(token.tag[1:])
                case "paragraph_open":
                    level = 0
                case "inline" if self._rows:
                    self._rows[-1].append(inline_content(token, self._sources))
                case "inline":
                    content = self._without_checkbox(inline_content(token, self._sources), token)
                    kind: Literal["heading", "text"] = "heading" if level else "text"
                    self._add(Block(kind, content, gap=self._gap_before(token), level=level))
                case "fence" | "code_block":
                    code = Content(token.content.rstrip("\n"))
                    self._add(Block("code", code, language=one_line(token.info)))
                case "math_block":
                    gap = self._gap_before(token)
                    self._add(Block("maths", Content(token.markup), gap=gap, formula=token.content))
                case "hr":
                    self._add(Block("rule"))
                case _ if token.tag in ("table", "thead", "tbody", "tr", "th", "td"):
                    self._build_table(token)
                case _:
                    self._nest(token)
        return self.blocks

    def _build_table(self, token: Token) -> None:
        match token.type:
            case "tr_open":
                self._rows.append([])
            case "th_open":
                self._aligns.append(str(token.attrs.get("style", "")).removeprefix("text-align:") or "left")
            case "table_close":
                rows = tuple(tuple(row) for row in self._rows)
                self._add(Block("table", rows=rows, aligns=tuple(self._aligns)))
                self._rows, self._aligns = [], []

    def _without_checkbox(self, content: Content, token: Token) -> Content:
        """Return a list item's text without its checkbox, which is moved to the marker."""
        box = CHECKBOXES.get(content.plain[:3])
        begins_item = bool(self._numbers and self._leads) and self._leads[-1][0] != self._leads[-1][1]
        if box is None or not begins_item or content.plain[3:4] not in ("", " "):
            return content
        if token.children and token.children[0].type != "text":  # a link's text, not a checkbox
            return content
        mark = self._leads[-1][0]
        mark = mark + box if self._numbers[-1] is not None else mark[:-2] + box
        self._leads[-1] = (mark, " " * len(mark))
        return content[4:]

    def continuation_at(self, token: Token) -> ListContinuation | None:
        """Return how the list continues at `token`, or None outside a list."""
        return ListContinuation(self._numbers[0], self._gap_before(token)) if self._numbers else None

    def _gap_before(self, token: Token) -> bool:
        # Based on blank lines in the source, because a later item may make the list loose in CommonMark.
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
                    self._add(Block("text", gap=False))  # an item without text still shows its marker
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
        # A marker is written only once, before the first block in its item.
        self._leads = [(after, after) for _, after in self._leads]
        self.blocks.append(replace(block, first=first, rest=rest, gap=gap))


def inline_content(token: Token, sources: Sources = NO_SOURCES) -> Content:
    """Return an inline token's text, with spans named after their meaning, such as '.strong'."""
    text: list[str] = []
    spans: list[Span] = []
    opened: list[tuple[int, int, str, str]] = []
    at = 0

    def write(piece: str, style: str = "") -> None:
        nonlocal at
        piece = printable(piece)  # an entity may stand for any character
        if style:
            spans.append(Span(at, at + len(piece), style))
        text.append(piece)
        at += len(piece)

    for child in token.children or ():
        if child.type == "code_inline":
            write(child.content, ".code")
        elif child.type == "math_inline":
            write(*_formula(child))
        elif child.type == "math_unfinished":
            write(child.markup, ".unfinished")
        elif child.type == "footnote":
            write(child.content, ".marker")
        elif child.type == "citation":
            spans += _citation_links(child.content, at, sources.passages)
            write(child.content)
        elif child.type in ("softbreak", "hardbreak"):
            # Line breaks are kept, because models use them for verses and lists.
            write("\n")
        elif child.type == "image":
            write(f"{child.content} ({child.attrs.get('src', '')})", ".link")
        elif child.type.endswith("_open"):
            href = printable(str(child.attrs.get("href", "")))
            opened.append((at, len(text), _STYLES.get(child.type, ""), href))
        elif child.type.endswith("_close"):
            start, first, style, href = opened.pop()
            spans.append(Span(start, at, style))
            if href and not shows("".join(text[first:]), href):
                write(f" ({href})", ".faint")
            if clickable(href):
                spans.append(Span(start, at, Style(link=href)))
        else:
            write(child.content)
    plain = "".join(text)
    for quotation in sources.unfounded:
        if (start := plain.find(quotation)) >= 0:
            spans.append(Span(start, start + len(quotation), ".unfounded"))
    return Content(plain, spans)


def _citation_links(text: str, at: int, passages: Collection[int]) -> list[Span]:
    """Return the link spans for the numbers in a citation that starts at `at`.

    If there is only one number, its link includes the brackets.
    """
    spans: list[Span] = []
    for match in _NUMBER.finditer(text):
        number = int(match[0].strip("[]"))
        if number in passages:
            start, end = at + match.start(), at + match.end()
            click = {"@click": f"screen.passage({number})", CITED: number}
            spans += [Span(start, end, ".citation"), Span(start, end, Style.from_meta(click))]
    return spans


def _formula(token: Token) -> tuple[str, str]:
    """Return a formula as Unicode, or its source if it cannot be converted, together with a style."""
    from edgechat.base.latex.convert import in_line

    text = in_line(token.content)
    return (token.markup, ".code") if text is None else (text, ".maths")


def clickable(target: str) -> bool:
    """Return whether a terminal may open a target: a web or email address in plain ASCII."""
    return len(target) <= _LONGEST and _CLICKABLE.fullmatch(target) is not None


def shows(text: str, target: str) -> bool:
    """Return whether a link's text equals its target, ignoring the scheme."""
    return _bare(text) == _bare(target)


def _bare(address: str) -> str:
    return _SCHEME.sub("", address, count=1).rstrip("/")


class Document:
    """The blocks of a text, with the lines they were wrapped into at the most recently requested width."""

    def __init__(self, text: str = "", *, filled: bool = True, sources: Sources = NO_SOURCES) -> None:
        """filled: whether code has a full-width background and a "copy" label to click."""
        self._filled = filled
        self._sources = sources
        self._final: list[Block] = []
        self._open: list[Block] = []
        self.tail = ""
        """The source of the blocks that further text may change."""
        self._continuation: ListContinuation | None = None
        """Set while the tail continues a list whose first items are final."""
        self._width = 0
        self._lines: list[RenderedLine] = []
        """Lines of the final blocks."""
        self._laid_out = 0
        """Number of final blocks that have been laid out."""
        if text:
            self.append(text)

    def append(self, text: str) -> None:
        self.tail += text
        if "\n" in text:
            self._finish_blocks()
        builder = BlockBuilder(self.tail.split("\n"), self._continuation, self._sources)
        self._open = builder.build(_parser().parse(self.tail))

    def _finish_blocks(self) -> None:
        """Move everything that is final out of the tail: all but the last block or list item."""
        # Only whole lines: a '-' may become '-5', which does not start an item.
        whole = self.tail[: self.tail.rindex("\n") + 1]
        tokens = _parser().parse(whole)
        begin = _last_start(tokens)
        line = (tokens[begin].map or [0])[0] if tokens else 0
        if line:
            builder = BlockBuilder(whole.split("\n"), self._continuation, self._sources)
            self._final += builder.build(tokens[:begin])
            self._continuation = builder.continuation_at(tokens[begin])
            self.tail = "\n".join(self.tail.split("\n")[line:])

    def lines(self, width: int) -> list[RenderedLine]:
        """Return all lines at a width. The lines of final blocks are the same objects as before."""
        lines = list(self.final_lines(width))
        for block in self._open:
            self._extend(lines, block, width)
        return lines

    def final_lines(self, width: int) -> list[RenderedLine]:
        """Return the lines of the blocks that further text cannot change."""
        if width != self._width:
            self._width, self._lines, self._laid_out = width, [], 0
        for block in self._final[self._laid_out :]:
            self._extend(self._lines, block, width)
        self._laid_out = len(self._final)
        return self._lines

    @property
    def open_kind(self) -> str:
        """The kind of the block that further text may extend, or '' if there is none."""
        return self._open[-1].kind if self._open else ""

    def lines_of_tail(self, tail: str, width: int) -> list[RenderedLine]:
        """Return the lines that would follow the final ones if the tail were `tail`."""
        seed = self.final_lines(width)[-1:]
        lines = list(seed)
        for block in BlockBuilder(tail.split("\n"), self._continuation).build(_parser().parse(tail)):
            self._extend(lines, block, width)
        return lines[len(seed) :]

    def _extend(self, lines: list[RenderedLine], block: Block, width: int) -> None:
        if lines and block.gap:
            lines.append(EMPTY)
        lines += lines_of(block, width) if self._filled else unfilled(lines_of(block, width))


def _last_start(tokens: Sequence[Token]) -> int:
    """Return the index of the first token that may change: the start of the last top-level block or item."""
    before, begin, in_list = 0, 0, False
    for at, token in enumerate(tokens):
        if token.level == 0 and token.nesting >= 0:
            before, begin, in_list = begin, at, token.type in ("bullet_list_open", "ordered_list_open")
        elif token.level == 1 and in_list and token.type == "list_item_open" and at > begin + 1:
            begin = at
    # An unfinished formula may turn out to be prose that belongs to the block before it.
    is_unfinished = bool(tokens) and tokens[begin].type == "math_block" and not tokens[begin].content
    return before if is_unfinished else begin


@lru_cache(maxsize=1)
def _parser() -> MarkdownIt:
    """Return the parser: CommonMark, tables, strikethrough and maths; HTML is shown as text."""
    from markdown_it import MarkdownIt  # 40 ms; needed only once there is text

    from edgechat.tui.markdown import syntax

    # The parser drops anything nested deeper, but nobody nests fifty lists.
    parser = MarkdownIt("commonmark", {"html": False, "maxNesting": 100}).enable(["table", "strikethrough"])
    # Reference links are shown as written: their definitions may arrive much later.
    return syntax.enable(parser.disable("reference"))
