"""Blocks become lines of a given width."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from textual.content import Content

from edgechat.tui.markdown.blocks import Block, RenderedLine, Row
from edgechat.tui.markdown.code import highlighted, split_runs

_NARROWEST = 8
_BETWEEN_COLUMNS = 2


def lines_of(block: Block, width: int) -> list[RenderedLine]:
    """Return the lines of one block."""
    inner = max(_NARROWEST, width - len(block.first))
    match block.kind:
        case "heading":
            body = block.content.stylize(".heading").wrap(inner)
        case "code":
            return _code(block, inner)
        case "table":
            body = _table(block.rows, inner)
        case "rule":
            body = [Content("─" * min(inner, 24)).stylize(".faint")]
        case _:
            body = block.content.wrap(inner)
    return [
        _with_lead(line, block.rest if at else block.first) for at, line in enumerate(body or [Content("")])
    ]


def _with_lead(line: Content, lead: str) -> RenderedLine:
    return RenderedLine(Content.assemble((lead, ".marker"), line), len(lead)) if lead else RenderedLine(line)


def _code(block: Block, width: int) -> list[RenderedLine]:
    lines: list[RenderedLine] = []
    for run in split_runs(block.content.plain):
        lines += _code_run(run, block.language, width, block.rest if lines else block.first, block.rest)
    return lines


@lru_cache(maxsize=256)
def _code_run(run: str, language: str, width: int, first: str, rest: str) -> list[RenderedLine]:
    # Kept, so that of a long piece of code only the last run is highlighted and folded again.
    lines: list[RenderedLine] = []
    for line in highlighted(run, language):
        for part in line.fold(width - 2) if line else [line]:
            lead = rest if lines else first
            bar = Content.assemble((lead, ".marker"), ("▏ ", ".faint"), part)
            lines.append(RenderedLine(bar, len(lead) + 2))
    return lines


def _table(rows: tuple[Row, ...], width: int) -> list[Content]:
    columns = max((len(row) for row in rows), default=0)
    if not columns:
        return []
    rows = tuple((*row, *[Content("")] * (columns - len(row))) for row in rows)
    widths = _column_widths(rows, width - _BETWEEN_COLUMNS * (columns - 1))
    lines: list[Content] = []
    for at, row in enumerate(rows):
        cells = [cell.wrap(wide) for cell, wide in zip(row, widths, strict=True)]
        for y in range(max(map(len, cells))):
            parts = [cell[y] if y < len(cell) else Content("") for cell in cells]
            joined = Content(" " * _BETWEEN_COLUMNS).join(
                part.pad_right(wide - part.cell_length) for part, wide in zip(parts, widths, strict=True)
            )
            lines.append(joined.stylize(".strong") if at == 0 else joined)
        if at == 0:
            rule = (" " * _BETWEEN_COLUMNS).join("─" * wide for wide in widths)
            lines.append(Content(rule).stylize(".faint"))
    return lines


def _column_widths(rows: Sequence[Row], width: int) -> list[int]:
    """Return what each column wants, the widest ones cut back until all fit."""
    widths = [max(1, *(cell.cell_length for cell in column)) for column in zip(*rows, strict=True)]
    while sum(widths) > width:
        widest = max(range(len(widths)), key=widths.__getitem__)
        if widths[widest] <= _NARROWEST // 2:
            break
        widths[widest] -= 1
    return widths
