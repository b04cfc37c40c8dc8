"""Which cases of a grid of parameters show each pair of values."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import combinations

import pytest


def pairs(cases: Sequence[Sequence[Hashable]]) -> set[int]:
    """Return the numbers of cases that have every pair of values that any case has, chosen greedily.

    What only some values of the parameters break, two of them nearly always do (Kuhn, Wallace and Gallo:
    Software fault interactions and implications for software testing, 2004).
    """
    pairs_of = [set(combinations(enumerate(case), 2)) for case in cases]
    missing = set().union(*pairs_of)
    chosen = set()
    while missing:
        best = max(range(len(cases)), key=lambda number: len(pairs_of[number] & missing))
        missing -= pairs_of[best]
        chosen.add(best)
    return chosen


def leave_to_soak(items: Sequence[pytest.Item]) -> None:
    """Of tests marked `pairs`, mark the cases as `soak` that no pair of values needs."""
    grids: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("pairs") and hasattr(item, "callspec"):
            grids.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for grid in grids.values():
        # pytest numbers cases, not values; these are the same objects in all cases.
        cases = [tuple(map(id, item.callspec.params.values())) for item in grid]
        if len(cases[0]) > 2:
            chosen = pairs(cases)
            for number, item in enumerate(grid):
                if number not in chosen:
                    item.add_marker("soak")
