"""Which cases of a grid of parameters show each value, or each pair of values."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import combinations

import pytest

STRENGTHS = {"values": 1, "pairs": 2}
"""By the mark of a test: of how many parameters all combinations of values are shown."""


def covering(cases: Sequence[Sequence[Hashable]], strength: int = 2) -> set[int]:
    """Return the numbers of cases that show every combination of `strength` values of any case; greedily.

    What only some values of the parameters break, two of them nearly always do (Kuhn, Wallace and Gallo:
    Software fault interactions and implications for software testing, 2004).
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
    """Mark cases of grids as `soak` that what their test's mark asks for does not need."""
    grids: dict[tuple[str, int], list[pytest.Item]] = {}
    for item in items:
        is_skipped = any(mark.args[:1] == (True,) for mark in item.iter_markers("skipif"))
        if not hasattr(item, "callspec") or is_skipped or item.get_closest_marker("soak"):
            continue  # none of these shows anything
        for mark, strength in STRENGTHS.items():
            if item.get_closest_marker(mark) and len(item.callspec.params) > strength:
                grids.setdefault((item.nodeid.partition("[")[0], strength), []).append(item)
    for (_, strength), grid in grids.items():
        # pytest numbers cases, not values; these are the same objects in all cases.
        chosen = covering([tuple(map(id, item.callspec.params.values())) for item in grid], strength)
        for number, item in enumerate(grid):
            if number not in chosen:
                item.add_marker("soak")
