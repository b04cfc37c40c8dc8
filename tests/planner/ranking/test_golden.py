"""What would be chosen from 4 to 64 GB, held against a table: a change of judgement shows as its diff."""

import pytest

from tests.planner import golden

MACHINES = [(gigabytes, kind) for gigabytes in golden.SIZES for kind in golden.KINDS]
SEVENTH = slice(3, None, 7)
"""Of the machines: another size and kind each, and quick enough for every merge."""


@pytest.mark.slow
@pytest.mark.parametrize("of", [SEVENTH, pytest.param(slice(None), marks=pytest.mark.soak)])
def test_the_table_is_what_is_chosen(of):
    """After a change that is meant: python -m tests.planner.golden > tests/planner/golden.txt."""
    assert [golden.row(*machine) for machine in MACHINES[of]] == golden.kept()[of]


def test_nothing_in_it_is_foolish():
    """Every choice is quick enough to be read, loses little and has room for a conversation."""
    rows = golden.kept()
    assert len(rows) == len(golden.SIZES) * len(golden.KINDS)
    for _, _, _, quant, context, _, speed, _, verdict in rows:
        assert verdict == "fits"
        assert quant in ("Q4_K_S", "Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0", "MXFP4")
        assert int(context.split()[0]) >= 8192
        assert float(speed) >= 10
