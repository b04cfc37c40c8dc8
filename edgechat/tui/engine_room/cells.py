"""The cells of a cache as characters, each of them one cell or several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from textual.content import Content

from edgechat.engine.snapshot import KINDS, CacheMap, Kind, Run

MARKS: dict[Kind | None, tuple[str, str]] = {
    "pinned": ("█", ".pinned"),
    "own": ("▓", ".own"),
    "shared": ("▒", ".shared"),
    "kept": ("░", ".kept"),
    None: ("·", ".faint"),
}
"""The character and the style of each kind; None is what is free."""


def cells_of(runs: Sequence[Run], cells: int, most: int) -> tuple[list[Kind | None], int]:
    """Return what is drawn for each character, `most` at the most, and how many cells that is each.

    A character is what most of its cells are; a kind that nowhere is the most has one character all the same.
    """
    unit = 1
    while -(-cells // unit) > most:
        unit *= 2
    amounts: list[dict[Kind, int]] = [{} for _ in range(-(-cells // unit))]
    at = 0
    for run in runs:
        stop = min(at + run.length, cells)
        while at < stop:
            step = min(stop, (at // unit + 1) * unit)
            held = amounts[at // unit]
            held[run.kind] = held.get(run.kind, 0) + step - at
            at = step
    drawn: list[Kind | None] = [_main(held, unit) for held in amounts]
    for kind in KINDS:
        if kind not in drawn and any(kind in held for held in amounts):
            _put(kind, drawn, amounts)
    return drawn, unit


def _put(kind: Kind, drawn: list[Kind | None], amounts: Sequence[dict[Kind, int]]) -> None:
    """Give a kind a character: that with most of it, or one beside it, but nobody's only one."""
    most = max(range(len(drawn)), key=lambda at: amounts[at].get(kind, 0))
    counts = Counter(drawn)
    spare = [at for at, held in enumerate(drawn) if held is None or counts[held] > 1]
    if spare:
        drawn[min(spare, key=lambda at: (abs(at - most), at))] = kind


def _main(held: dict[Kind, int], unit: int) -> Kind | None:
    kind = max(held, key=lambda one: held[one], default=None)
    return kind if kind is not None and 2 * sum(held.values()) >= unit else None


def drawing(cache: CacheMap, width: int, most_lines: int) -> tuple[list[Content], int]:
    """Return the lines of a map, and the cells of each character."""
    drawn, unit = cells_of(cache.runs, cache.cells, width * most_lines)
    rows = [drawn[at : at + width] for at in range(0, len(drawn), width)]
    return [_line(row) for row in rows], unit


def _line(row: Sequence[Kind | None]) -> Content:
    parts = []
    for kind, group in groupby(row):
        mark, style = MARKS[kind]
        parts.append((mark * len(list(group)), style))
    return Content.assemble(*parts)
