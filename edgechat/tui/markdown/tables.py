"""Tables that fit a width: cells are wrapped; where that leaves too little room, rows become lists."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content

Row = Sequence[Content]

_BETWEEN = 2
"""Cells between two columns."""
_WORD = 12
"""A column may be narrower than a word that is longer than this."""


def table_lines(rows: Sequence[Row], aligns: Sequence[str], width: int) -> list[Content]:
    """Return the lines of a table, the first row of which is its header."""
    columns = max((len(row) for row in rows), default=0)
    if not columns:
        return []
    full = [(*row, *[Content("")] * (columns - len(row))) for row in rows]
    widths = _column_widths(full, width - _BETWEEN * (columns - 1))
    if not widths:
        return _as_list(full, width)
    return _in_columns(full, [*aligns, *["left"] * (columns - len(aligns))], widths)


def _column_widths(rows: Sequence[Row], width: int) -> list[int]:
    """Return what each column wants, the widest ones cut back until all fit; nothing if they cannot."""
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
    """Return each row as lines `Header: value`."""
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
