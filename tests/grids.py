"""Selects cases from a grid of parameters that cover each value, or each pair of values."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import combinations

import pytest

STRENGTHS = {"values": 1, "pairs": 2}
"""By marker: the number of parameters whose value combinations are all covered."""


def covering(cases: Sequence[Sequence[Hashable]], strength: int = 2) -> set[int]:
    """Return the numbers of cases that cover all combinations of `strength` values, chosen greedily.

    Two parameters are nearly always enough to trigger a failure (Kuhn, Wallace and Gallo: Software fault
    interactions and implications for software testing, 2004).
    """
    shown_by = [set(combinations(enumerate(case), strength)) for case in cases]
    missing = set().union(*shown_by)
    chosen = set()
    while missing:
        best = max(range(len(cases)), key=lambda number: len(shown_by[number] & missing))
        missing -= shown_by[best]
        chosen.add(best)
    return chosen


def leave_to_soak(items: Sequence[pytest.Item]) -> None:
    """Mark the grid cases that a test's marker does not require as `soak`."""
    grids: dict[tuple[str, int], list[pytest.Item]] = {}
    for item in items:
        is_skipped = any(mark.args[:1] == (True,) for mark in item.iter_markers("skipif"))
        if not hasattr(item, "callspec") or is_skipped or item.get_closest_marker("soak"):
            continue  # these cover nothing
        for mark, strength in STRENGTHS.items():
            if item.get_closest_marker(mark) and len(item.callspec.params) > strength:
                grids.setdefault((item.nodeid.partition("[")[0], strength), []).append(item)
    for (_, strength), grid in grids.items():
        # pytest numbers cases, not values; but equal values are the same object in all cases.
        chosen = covering([tuple(map(id, item.callspec.params.values())) for item in grid], strength)
        for number, item in enumerate(grid):
            if number not in chosen:
                item.add_marker("soak")
