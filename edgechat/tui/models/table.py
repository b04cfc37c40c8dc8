"""Lines of the models screen in columns, as many as there is room for; names give way first."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from rich.cells import cell_len, set_cell_size
from textual.content import Content

from edgechat.base.text import ago, figure, mebibytes, one_line
from edgechat.planner.ranking.ranked_file import RankedFile
from edgechat.tui.models.items import BEST, ModelGroup, ModelItem, speed
from edgechat.tui.models.pull import PullState

NOW, BROKEN = "●", "!"
_NAME = 16
"""Cells that a name has at least."""
_BAR = 12

_COLORS = {
    "fits": "$success",
    "in use": "$success",
    "slow": "$warning",
    "too lossy": "$warning",
    "damaged": "bold $error",
}


@dataclass(frozen=True, slots=True)
class Column:
    """A column after the name."""

    title: str
    width: int
    least: int
    """Cells that a line has at least where it is shown."""
    right: bool = False


_COLUMNS = (
    Column("QUANT", 7, 0),
    Column("SIZE", 8, 0, right=True),
    Column("VERDICT", 9, 0),
    Column("TOK/S", 5, 54, right=True),
    Column("QUALITY", 7, 70),
    Column("WHERE", 13, 86),
)


@dataclass(frozen=True)
class ColumnLayout:
    """The columns of lines that are `width` cells wide."""

    width: int
    current: str | None = None
    """The name of the model of the chat."""

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """Those that are shown."""
        return tuple(one for one in _COLUMNS if self.width >= one.least)

    @cached_property
    def name_width(self) -> int:
        """Cells of the name, the mark before it left out."""
        return max(_NAME, self.width - 2 - sum(one.width + 2 for one in self.columns))

    def heading(self) -> Content:
        """Return the titles."""
        titles = (_cell(one.title, one) for one in self.columns)
        return Content("  " + "  ".join((_padded("NAME", self.name_width), *titles))).stylize("dim")

    def line(self, item: ModelItem) -> Content:
        """Return an item."""
        name = _padded(item.name, self.name_width)
        if item.pull is not None:
            return Content.assemble(self._mark(item), name, "  ", self._way(item))
        cells = [(_cell(self._text(item, one), one), self._style(item, one)) for one in self.columns]
        parts: list[Content | tuple[str, str]] = [self._mark(item), (name, "bold" if item.is_best else "")]
        for text, style in cells:
            parts.append(("  ", ""))
            parts.append((text, style))
        found = Content.assemble(*parts)
        return found.stylize("dim") if item.is_too_large else found

    def _mark(self, item: ModelItem) -> Content:
        if item.row is not None and self.current in (item.name, item.row.model.full_name):
            return Content.styled(f"{NOW} ", "$primary")
        if item.damage:
            return Content.styled(f"{BROKEN} ", "$error")
        return Content.styled(f"{BEST} ", "$accent") if item.is_best else Content("  ")

    def _text(self, item: ModelItem, column: Column) -> str:
        match column.title:
            case "QUANT":
                return item.quant or "?" if item.group is not ModelGroup.HUB else ""
            case "SIZE":
                return mebibytes(item.size) if item.size else ""
            case "VERDICT":
                return item.verdict or ("" if item.group is ModelGroup.HUB else "…")
            case "TOK/S":
                return speed(item.speed, is_measured=item.is_measured)
            case "QUALITY":
                known = item.entry.quality if item.entry is not None else None
                return f"{known} of 6" if known else ""
            case _:
                return _where(item)

    def _style(self, item: ModelItem, column: Column) -> str:
        if column.title == "VERDICT" and not item.is_too_large:
            return _COLORS.get(item.verdict, "")
        return ""

    def _way(self, item: ModelItem) -> Content:
        """Return how a pull goes: a bar where its end is known, and words."""
        pull = item.pull
        assert pull is not None
        room = self.width - self.name_width - 4
        parts: list[Content | tuple[str, str]] = []
        coming = pull.state in (PullState.DOWNLOADING, PullState.STOPPING)
        if pull.standing is not None and coming and room >= _BAR + 2 + len(pull.line):
            done = int(pull.standing.share * _BAR)
            parts += [("━" * done, "$primary"), ("─" * (_BAR - done), "dim"), ("  ", "")]
            room -= _BAR + 2
        style = {PullState.FAILED: "$error", PullState.STOPPED: "$warning"}.get(pull.state, "")
        return Content.assemble(*parts, (one_line(pull.line, max(1, room)), style))


def quant_lines(options: Sequence[RankedFile], width: int, best: str | None) -> tuple[Content, list[Content]]:
    """Return the titles and the lines of the quantizations of one model; NOW marks those that are here."""
    rows = [("QUANT", "SIZE", "TOK/S", "LOSS", "VERDICT")]
    for one in options:
        made = one.plan
        loss = figure(made.kl_divergence.value, 2) if made is not None and made.kl_divergence else ""
        tps = speed(one.predicted.decode_tps) if made is not None else ""
        rows.append((one.quant or "?", mebibytes(one.variant.size), tps, loss, one.verdict.label))
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    lines = [_joined(row, widths) for row in rows]
    marked: list[Content] = []
    for text, one in zip(lines[1:], options, strict=True):
        mark = NOW if one.variant.path is not None else BEST if one.quant == best else " "
        style = "dim" if one.plan is None else "bold" if one.quant == best else ""
        marked.append(Content.styled(_cut(f"{mark} {text}", width).rstrip(), style))
    return Content.styled(f"  {lines[0]}", "dim"), marked


def _where(item: ModelItem) -> str:
    row = item.row
    if row is None:
        return ""
    if row.use is not None:
        return "loaded" if item.is_loaded else ago(time.time() - row.use.when)
    return row.model.place.value


def _cell(text: str, column: Column) -> str:
    text = one_line(text, column.width)
    return text.rjust(column.width) if column.right else _padded(text, column.width)


def _padded(text: str, width: int) -> str:
    """Return text in exactly so many cells, however wide its characters are."""
    return _cut(one_line(text, 300), width)


def _cut(text: str, width: int) -> str:
    if cell_len(text) > width:
        text = set_cell_size(text, max(0, width - 1)).rstrip() + "…"
    return set_cell_size(text, width)


def _joined(row: Iterable[str], widths: Sequence[int]) -> str:
    cells = list(zip(row, widths, strict=True))
    first, *middle, last = cells
    numbers = (text.rjust(width) for text, width in middle)
    return "  ".join((first[0].ljust(first[1]), *numbers, last[0].ljust(last[1])))
