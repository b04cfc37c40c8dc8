"""Blocks become lines of a given width."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from textual.content import Content
from textual.style import Style

from edgechat.tui.markdown.blocks import COPY_CODE, Block, RenderedLine
from edgechat.tui.markdown.code import highlighted, language_of, split_runs
from edgechat.tui.markdown.tables import table_lines

_NARROWEST = 8
_RULES = {1: "━", 2: "─"}
"""What underlines headings, by their level."""
_BAR, _FOLDED = "▏ ", "↪ "
"""Stand before a line of code, and before the rest of one that was too long."""
_COPY = "copy"


def lines_of(block: Block, width: int) -> list[RenderedLine]:
    """Return the lines of one block."""
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
    """Return lines without filling, and without headings of code that name no language."""
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
    """Return a formula set on lines of its own; in one line if that is too wide; else as it was written."""
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
    language = language_of(source, block.language)
    lines = [_code_heading(block, language, width)]
    name = language.split(" ")[0]
    for run in split_runs(source):
        lines += _code_run(run, name, width, block.rest)
    return lines


def _code_heading(block: Block, language: str, width: int) -> RenderedLine:
    """Return the line that names the language; a click at its end copies the code."""
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
    # Kept, so that of a long piece of code only the last run is highlighted and folded again.
    lines: list[RenderedLine] = []
    for line in highlighted(run, language):
        for at, part in enumerate(line.fold(width - 3) if line else [line]):
            body = Content.assemble((_FOLDED if at else _BAR, ".faint"), part)
            filling = max(0, width - body.cell_length)
            body = body.pad_right(filling).stylize(".code-block")
            content = Content.assemble((lead, ".marker"), body)
            lines.append(RenderedLine(content, len(lead) + 2, filling, "" if at else "\n"))
    return lines
