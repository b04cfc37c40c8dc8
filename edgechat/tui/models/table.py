"""Lines of the models screen in as many columns as fit; names are shortened first."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from rich.cells import cell_len, set_cell_size
from textual.content import Content

from edgechat.base.text import ago, figure, mebibytes, one_line
from edgechat.models.remote.model import KINDS
from edgechat.planner.ranking.ranking import RankedFile
from edgechat.tui.models.items import BEST, ModelGroup, ModelItem, speed
from edgechat.tui.models.pull import Pull, PullState

_WITHOUT_QUANT = (ModelGroup.HUB, ModelGroup.HOSTED)
NOW, BROKEN = "●", "!"
_NAME = 16
"""The least width of a name, in cells."""
_BAR = 12

_COLORS = {
    "fits": "$success",
    "ready": "$success",
    "no answer": "$warning",
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
    """The least width of a line that has this column, in cells."""
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
        """Those that fit."""
        return tuple(column for column in _COLUMNS if self.width >= column.least)

    @cached_property
    def name_width(self) -> int:
        """The width of the name, without the mark before it, in cells."""
        return max(_NAME, self.width - 2 - sum(column.width + 2 for column in self.columns))

    def heading(self) -> Content:
        titles = (_cell(column.title, column) for column in self.columns)
        return Content("  " + "  ".join((_padded("NAME", self.name_width), *titles))).stylize("dim")

    def line(self, item: ModelItem) -> Content:
        name = _padded(item.name, self.name_width)
        if item.pull is not None:
            return Content.assemble(self._mark(item), name, "  ", self._progress(item.pull))
        parts: list[Content | tuple[str, str]] = [self._mark(item), (name, "bold" if item.is_best else "")]
        for column in self.columns:
            has_color = column.title == "VERDICT" and not item.is_too_large
            style = _COLORS.get(item.verdict, "") if has_color else ""
            parts += [("  ", ""), (_cell(self._text(item, column), column), style)]
        line = Content.assemble(*parts)
        return line.stylize("dim") if item.is_too_large else line

    def _mark(self, item: ModelItem) -> Content:
        if item.hosted is not None and self.current == item.name:
            return Content.styled(f"{NOW} ", "$primary")
        if item.row is not None and self.current in (item.name, item.row.model.full_name):
            return Content.styled(f"{NOW} ", "$primary")
        if item.damage or (item.pull is not None and item.pull.state is PullState.FAILED):
            return Content.styled(f"{BROKEN} ", "$error")
        return Content.styled(f"{BEST} ", "$accent") if item.is_best else Content("  ")

    def _text(self, item: ModelItem, column: Column) -> str:
        match column.title:
            case "QUANT":
                return item.quant or "" if item.group in _WITHOUT_QUANT else item.quant or "?"
            case "SIZE":
                return mebibytes(item.size) if item.size else ""
            case "VERDICT":
                return item.verdict or ("" if item.group is ModelGroup.HUB else "…")
            case "TOK/S":
                return speed(item.speed, is_measured=item.is_measured)
            case "QUALITY":
                quality = item.entry.quality if item.entry is not None else None
                return f"{quality} of 6" if quality else ""
            case _:
                return _where(item)

    def _progress(self, pull: Pull) -> Content:
        """Return the progress of a pull: a bar if its size is known, and text."""
        room = self.width - self.name_width - 4
        parts: list[Content | tuple[str, str]] = []
        is_downloading = pull.state in (PullState.DOWNLOADING, PullState.STOPPING)
        if pull.progress is not None and is_downloading and room >= _BAR + 2 + len(pull.line):
            done = int(pull.progress.share * _BAR)
            parts += [("━" * done, "$primary"), ("─" * (_BAR - done), "dim"), ("  ", "")]
            room -= _BAR + 2
        style = {PullState.FAILED: "$error", PullState.STOPPED: "$warning"}.get(pull.state, "")
        return Content.assemble(*parts, (one_line(pull.line, max(1, room)), style))


def quant_lines(options: Sequence[RankedFile], width: int, best: str | None) -> tuple[Content, list[Content]]:
    """Return the heading and the lines of the quantizations of one model; NOW marks the local ones."""
    rows = [("QUANT", "SIZE", "TOK/S", "LOSS", "VERDICT")]
    for option in options:
        plan = option.plan
        loss = figure(plan.kl_divergence.value, 2) if plan is not None and plan.kl_divergence else ""
        tps = speed(option.predicted.decode_tps) if plan is not None else ""
        rows.append((option.quant or "?", mebibytes(option.variant.size), tps, loss, option.verdict.label))
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    heading, *texts = [_joined(row, widths) for row in rows]
    lines: list[Content] = []
    for text, option in zip(texts, options, strict=True):
        mark = NOW if option.variant.path is not None else BEST if option.quant == best else " "
        style = "dim" if option.plan is None else "bold" if option.quant == best else ""
        lines.append(Content.styled(_cut(f"{mark} {text}", width).rstrip(), style))
    return Content.styled(f"  {heading}", "dim"), lines


def _where(item: ModelItem) -> str:
    if item.hosted is not None:
        return KINDS[item.hosted.model.kind]
    row = item.row
    if row is None:
        return ""
    if row.use is not None:
        return "loaded" if item.is_loaded else ago(time.time() - row.use.when)
    return row.model.where


def _cell(text: str, column: Column) -> str:
    text = one_line(text, column.width)
    return text.rjust(column.width) if column.right else _padded(text, column.width)


def _padded(text: str, width: int) -> str:
    """Return text that is exactly `width` cells wide."""
    return _cut(one_line(text, 300), width)


def _cut(text: str, width: int) -> str:
    if cell_len(text) > width:
        text = set_cell_size(text, max(0, width - 1)).rstrip() + "…"
    return set_cell_size(text, width)


def _joined(row: Iterable[str], widths: Sequence[int]) -> str:
    (first, first_width), *middle, (last, last_width) = zip(row, widths, strict=True)
    numbers = (text.rjust(width) for text, width in middle)
    return "  ".join((first.ljust(first_width), *numbers, last.ljust(last_width)))
