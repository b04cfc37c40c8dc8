"""The size of a chunk follows from what calls cost."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from edgechat.engine.cost import CALL_LIMIT, STEPS, CallCost


def settle(seconds: Callable[[int], float], calls: int = 30, warm: bool = True) -> tuple[CallCost, list[int]]:
    """Prefill on a machine where a call of n tokens takes seconds(n)."""
    cost = CallCost()
    if warm:
        cost.observe(1, seconds(1))
    sizes = []
    for _ in range(calls):
        size = min(cost.tokens_within_limit(), 4096)
        cost.observe(size, seconds(size))
        sizes.append(size)
    return cost, sizes


MACHINES = {
    "memory-bound": lambda n: 0.150 + 0.002 * n,
    "compute-bound": lambda n: 0.004 * n,
    "2 cores, 1B": lambda n: 0.015 + 0.004 * (n - 1),
    "slow laptop, 7B": lambda n: 0.100 + 0.03 * (n - 1),
    "GPU": lambda n: 0.01 + 0.00005 * n,
}


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("warm", [True, False])
def test_chunks_stay_under_the_limit_and_use_it(name: str, warm: bool) -> None:
    seconds = MACHINES[name]
    _, sizes = settle(seconds, warm=warm)
    assert all(seconds(size) <= max(CALL_LIMIT, STEPS * seconds(1)) for size in sizes[2:])
    assert sizes[-1] == 4096 or seconds(sizes[-1]) >= 0.5 * CALL_LIMIT


def test_where_one_token_takes_too_long_the_prompt_goes_on() -> None:
    _, sizes = settle(lambda n: 0.9 + 0.01 * n)
    assert sizes[-1] > 100  # at less than three times the cost of one
    assert 0.9 + 0.01 * sizes[-1] <= STEPS * 0.91


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("stall", [0.5, 3.0, 30.0])
def test_one_stalled_call_is_forgotten(name: str, stall: float) -> None:
    seconds = MACHINES[name]
    cost = CallCost()
    cost.observe(1, seconds(1))
    cost.observe(16, stall)
    sizes = []
    for _ in range(40):
        sizes.append(min(cost.tokens_within_limit(), 4096))
        cost.observe(sizes[-1], seconds(sizes[-1]))
    assert sizes[-1] == 4096 or seconds(sizes[-1]) >= 0.5 * CALL_LIMIT


def test_deeper_calls_cost_more_and_chunks_shrink() -> None:
    cost, sizes = settle(lambda n: 0.004 * n)
    for _ in range(20):
        cost.observe(cost.tokens_within_limit(), cost.tokens_within_limit() * 0.008)
    assert cost.tokens_within_limit() == pytest.approx(sizes[-1] / 2, rel=0.2)


def test_the_first_chunks_feel_their_way() -> None:
    _, sizes = settle(MACHINES["GPU"], calls=3)
    assert sizes == [16, 64, 256]
