"""Lays out blocks as lines of a given width, with wrapped tables and highlighted code."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from textual.content import Content, Span
from textual.style import Style

from edgechat.tui.markdown.blocks import COPY_CODE, Block, RenderedLine, Row

if TYPE_CHECKING:
    from pygments.lexer import Lexer


_NARROWEST = 8
_RULES = {1: "━", 2: "─"}
"""Rules below headings, keyed by heading level."""
_BAR, _FOLDED = "▏ ", "↪ "
"""Prefixes for a line of code, and for the continuation of a folded line."""
_COPY = "copy"


_BETWEEN = 2
"""Cells between adjacent columns."""


_WORD = 12
"""A column is at least as wide as its longest word, up to this many cells."""


def lines_of(block: Block, width: int) -> list[RenderedLine]:
    """Return a block's lines."""
    inner = max(_NARROWEST, width - len(block.first))
    match block.kind:
        case "code":
            return _code(block, inner)
        case "heading":
            body = _heading(block, inner)
        case "maths":
            body = _maths(block, inner)
        case "table":
            body = [RenderedLine(line.rstrip()) for line in table_lines(block.rows, block.aligns, inner)]
        case "rule":
            body = [RenderedLine.decoration(Content("─" * inner).stylize(".faint"))]
        case _:
            body = [RenderedLine(line) for line in block.content.wrap(inner)]
    body = body or [RenderedLine(Content(""))]
    return [_with_lead(line, block.rest if at else block.first) for at, line in enumerate(body)]


def unfilled(lines: Sequence[RenderedLine]) -> list[RenderedLine]:
    """Return lines without padding, and without code headings that do not name a language."""
    named = [
        line for line in lines if not line.code or line.content.plain[: -line.trail].rstrip()[-1:] != _BAR[0]
    ]
    return [
        line._replace(content=line.content[: len(line.content) - line.trail], trail=0) if line.trail else line
        for line in named
    ]


def _with_lead(line: RenderedLine, lead: str) -> RenderedLine:
    if not lead:
        return line
    return line._replace(
        content=Content.assemble((lead, ".marker"), line.content), lead=len(lead) + line.lead
    )


def _heading(block: Block, width: int) -> list[RenderedLine]:
    name = f".heading-{min(block.level, 5)}"
    body = block.content.stylize(name).wrap(width)
    lines = [RenderedLine(line) for line in body]
    if rule := _RULES.get(block.level):
        length = max(line.cell_length for line in body)
        lines.append(RenderedLine.decoration(Content(rule * length).stylize(name)))
    return lines


def _maths(block: Block, width: int) -> list[RenderedLine]:
    """Return a formula on several lines, on one line if that is too wide, or else as its source."""
    from edgechat.base.latex import convert

    room = width - 2
    if (lines := convert.displayed(block.formula)) is not None and all(
        Content(line).cell_length <= room for line in lines
    ):
        body = [Content(line) for line in lines]
    elif (line := convert.in_line(block.formula)) is not None:
        body = Content(line).wrap(room)
    else:
        source = block.content.stylize(".code").split("\n", allow_blank=True)
        return [RenderedLine(Content("  ") + part, 2) for line in source for part in line.fold(room)]
    return [RenderedLine(Content("  ") + line, 2) for line in body]


def _code(block: Block, width: int) -> list[RenderedLine]:
    source = block.content.plain
    language = block.language or ("diff" if _DIFF.match(source) else "")
    lines = [_code_heading(block, language, width)]
    name = language.split(" ")[0]
    for run in split_runs(source):
        lines += _code_run(run, name, width, block.rest)
    return lines


def _code_heading(block: Block, language: str, width: int) -> RenderedLine:
    """Return the heading of a code block: its language, and a "copy" label to click."""
    name = Content(language).truncate(max(0, width - len(_BAR) - len(_COPY) - 2), ellipsis=True)
    bar = Content.assemble((_BAR, ".faint"), name.stylize(".faint"))
    gap = width - bar.cell_length - len(_COPY) - 1
    copy = Content(_COPY).stylize(".action").stylize(Style.from_meta({COPY_CODE: True}))
    body = Content.assemble(bar, " " * gap, copy, " ").stylize(".code-block")
    return RenderedLine.decoration(
        Content.assemble((block.first, ".marker"), body), gap + len(_COPY) + 1, f"{block.content.plain}\n"
    )


@lru_cache(maxsize=256)
def _code_run(run: str, language: str, width: int, lead: str) -> list[RenderedLine]:
    # Cached, so that only the last run of growing code is highlighted and folded again.
    lines: list[RenderedLine] = []
    for line in highlighted(run, language):
        for at, part in enumerate(line.fold(width - 3) if line else [line]):
            body = Content.assemble((_FOLDED if at else _BAR, ".faint"), part)
            filling = max(0, width - body.cell_length)
            body = body.pad_right(filling).stylize(".code-block")
            content = Content.assemble((lead, ".marker"), body)
            lines.append(RenderedLine(content, len(lead) + 2, filling, "" if at else "\n"))
    return lines


def table_lines(rows: Sequence[Row], aligns: Sequence[str], width: int) -> list[Content]:
    """Return the lines of a table whose first row is its header."""
    columns = max((len(row) for row in rows), default=0)
    if not columns:
        return []
    full = [(*row, *[Content("")] * (columns - len(row))) for row in rows]
    widths = _column_widths(full, width - _BETWEEN * (columns - 1))
    if not widths:
        return _as_list(full, width)
    return _in_columns(full, [*aligns, *["left"] * (columns - len(aligns))], widths)


def _column_widths(rows: Sequence[Row], width: int) -> list[int]:
    """Return the column widths, narrowing the widest columns until all fit, or [] if they cannot fit."""
    columns = list(zip(*rows, strict=True))
    widths = [min(max(1, width), max(1, *(cell.cell_length for cell in column))) for column in columns]
    if sum(widths) <= width:
        return widths
    least = [min(wide, max(map(_longest_word, column))) for wide, column in zip(widths, columns, strict=True)]
    if sum(least) > width:
        return []
    while sum(widths) > width:
        spare = [wide - low for wide, low in zip(widths, least, strict=True)]
        widest = max((at for at in range(len(widths)) if spare[at]), key=widths.__getitem__)
        widths[widest] -= 1
    return widths


def _longest_word(cell: Content) -> int:
    return min(_WORD, max((Content(word).cell_length for word in cell.plain.split()), default=1))


def _in_columns(rows: Sequence[Row], aligns: Sequence[str], widths: Sequence[int]) -> list[Content]:
    between = Content(" " * _BETWEEN)
    rule = between.join(Content("─" * wide) for wide in widths).stylize(".faint")
    wrapped = [
        [cell.wrap(wide) or [Content("")] for cell, wide in zip(row, widths, strict=True)] for row in rows
    ]
    tall = any(len(cell) > 1 for row in wrapped[1:] for cell in row)
    lines: list[Content] = []
    for at, cells in enumerate(wrapped):
        if at == 1 or (at > 1 and tall):
            lines.append(rule)
        for y in range(max(map(len, cells))):
            parts = [
                _aligned(cell[y] if y < len(cell) else Content(""), wide, align)
                for cell, wide, align in zip(cells, widths, aligns, strict=True)
            ]
            line = between.join(parts)
            lines.append(line.stylize(".strong") if at == 0 else line)
    return lines if len(rows) > 1 else [*lines, rule]


def _aligned(content: Content, width: int, align: str) -> Content:
    room = max(0, width - content.cell_length)
    left = {"right": room, "center": room // 2}.get(align, 0)
    return content.pad(left, room - left)


def _as_list(rows: Sequence[Row], width: int) -> list[Content]:
    """Return each row as lines of the form `Header: value`."""
    header, *others = rows
    lines: list[Content] = []
    for row in others:
        if lines:
            lines.append(Content(""))
        for name, cell in zip(header, row, strict=True):
            label = name.stylize(".strong") + Content(": ") if name else Content("")
            first, *rest = (label + cell).wrap(width) or [Content("")]
            lines += [first, *rest]
    return lines or [line for name in header for line in name.stylize(".strong").wrap(width)]


# Code is highlighted in runs of lines, so that only the last run of a growing block must be redone.
_RUN_AT_LEAST = 24
_RUN_AT_MOST = 48

_STYLES = (
    ("Comment", ".code-comment"),
    ("Keyword", ".code-keyword"),
    ("Operator.Word", ".code-keyword"),
    ("Literal.String", ".code-string"),
    ("Literal.Number", ".code-number"),
    ("Name.Function", ".code-name"),
    ("Name.Class", ".code-name"),
    ("Name.Tag", ".code-name"),
    ("Name.Decorator", ".code-name"),
    ("Name.Builtin", ".code-builtin"),
    ("Generic.Deleted", ".code-deleted"),
    ("Generic.Inserted", ".code-inserted"),
    ("Generic.Subheading", ".code-name"),
    ("Generic.Heading", ".strong"),
)
_DIFF = re.compile(r"(?:diff --git |Index: .*\n|--- .*\n\+\+\+ |@@ -\d+(?:,\d+)? \+\d+(?:,\d+)? @@)")


def split_runs(source: str) -> list[str]:
    """Split source code into runs of lines that are highlighted independently.

    A run ends where code at the left margin follows a blank line; such a place is rarely inside a string.
    """
    lines = source.expandtabs(4).split("\n")
    pieces: list[str] = []
    start = 0
    for at in range(1, len(lines)):
        length = at - start
        paragraph = not lines[at - 1].strip() and lines[at][:1].strip()
        if length >= _RUN_AT_MOST or (length >= _RUN_AT_LEAST and paragraph):
            pieces.append("\n".join(lines[start:at]))
            start = at
    pieces.append("\n".join(lines[start:]))
    return pieces


def highlighted(run: str, language: str) -> list[Content]:
    """Return a run's lines, with spans for the colours unless the language is unknown."""
    lexer = _lexer(language.lower()) if language else None
    if lexer is None:
        return [Content(line) for line in run.split("\n")]
    at = 0
    spans: list[Span] = []
    for token_type, text in lexer.get_tokens(run):
        if (style := _style(token_type)) and text.strip():
            spans.append(Span(at, min(at + len(text), len(run)), style))
        at += len(text)
    return list(Content(run, spans).split(allow_blank=True))


@lru_cache(maxsize=256)
def _style(token_type: Any) -> str:
    from pygments.token import string_to_tokentype

    return next((style for name, style in _STYLES if token_type in string_to_tokentype(name)), "")


@lru_cache(maxsize=64)
def _lexer(language: str) -> Lexer | None:
    """Return the lexer for a language, if Pygments itself includes one.

    Pygments' own lookup also searches every installed package for plugins, which takes 50 ms for a
    name that a model made up.
    """
    from pygments.lexers import LEXERS, get_lexer_by_name

    if not any(language in aliases for _, _, aliases, _, _ in LEXERS.values()):
        return None
    return get_lexer_by_name(language, stripnl=False)
