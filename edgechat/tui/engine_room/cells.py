"""A map of the KV cache, in which each character stands for one cell or several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from textual.content import Content

from edgechat.engine.kv.snapshot import KINDS, CacheMap, Kind, Run

MARKS: dict[Kind | None, tuple[str, str]] = {
    "pinned": ("█", ".pinned"),
    "own": ("▓", ".own"),
    "shared": ("▒", ".shared"),
    "kept": ("░", ".kept"),
    None: ("·", ".faint"),
}
"""The character and the style of each kind; None stands for free cells."""


def scale_cells(runs: Sequence[Run], cells: int, limit: int) -> tuple[list[Kind | None], int]:
    """Return the kind that each character shows, and the number of cells per character.

    There are at most `limit` characters. Each shows the most frequent kind of its cells; a kind that is
    nowhere the most frequent one still gets one character.
    """
    unit = 1
    while -(-cells // unit) > limit:
        unit *= 2
    counters: list[Counter[Kind]] = [Counter() for _ in range(-(-cells // unit))]
    at = 0
    for run in runs:
        stop = min(at + run.length, cells)
        while at < stop:
            step = min(stop, (at // unit + 1) * unit)
            counters[at // unit][run.kind] += step - at
            at = step
    kinds: list[Kind | None] = [_main_kind(counter, unit) for counter in counters]
    for kind in KINDS:
        if kind not in kinds and any(kind in counter for counter in counters):
            _place(kind, kinds, counters)
    return kinds, unit


def _place(kind: Kind, kinds: list[Kind | None], counters: Sequence[Counter[Kind]]) -> None:
    """Give a kind the character closest to where it is most frequent that is not the only one of its kind."""
    best = max(range(len(kinds)), key=lambda at: counters[at][kind])
    counts = Counter(kinds)
    spare = [at for at, other in enumerate(kinds) if other is None or counts[other] > 1]
    if spare:
        kinds[min(spare, key=lambda at: (abs(at - best), at))] = kind


def _main_kind(counter: Counter[Kind], unit: int) -> Kind | None:
    kind = max(counter, key=lambda kind: counter[kind], default=None)
    return kind if 2 * sum(counter.values()) >= unit else None


def draw_map(cache: CacheMap, width: int, max_lines: int) -> tuple[list[Content], int]:
    """Return the lines of the map, and the number of cells per character."""
    kinds, unit = scale_cells(cache.runs, cache.cells, width * max_lines)
    return [_line(kinds[at : at + width]) for at in range(0, len(kinds), width)], unit


def _line(kinds: Sequence[Kind | None]) -> Content:
    parts = []
    for kind, group in groupby(kinds):
        mark, style = MARKS[kind]
        parts.append((mark * len(list(group)), style))
    return Content.assemble(*parts)
