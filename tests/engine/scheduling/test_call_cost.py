"""Chunk sizes derived from the cost of calls."""

import pytest

from edgechat.engine.scheduling.call_cost import CALL_LIMIT, LONE_LIMIT, STEPS, TILE, CallCost


def settle(seconds, calls=30, warm=True):
    """Prefill on a machine where a call of n tokens takes seconds(n)."""
    cost = CallCost()
    if warm:
        cost.observe(1, 0, seconds(1))
    sizes = []
    for _ in range(calls):
        size = min(cost.prompt_tokens(), 4096)
        cost.observe(0, size, seconds(size))
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
def test_chunks_stay_under_the_limit_and_use_it(name, warm):
    seconds = MACHINES[name]
    _, sizes = settle(seconds, warm=warm)
    assert all(seconds(size) <= max(CALL_LIMIT, STEPS * seconds(1)) for size in sizes[2:])
    assert sizes[-1] == 4096 or seconds(sizes[-1]) >= 0.5 * CALL_LIMIT


def test_where_one_token_takes_too_long_the_prompt_goes_on():
    _, sizes = settle(lambda n: 0.9 + 0.01 * n)
    assert sizes[-1] > 100  # at less than three times the cost of one
    assert 0.9 + 0.01 * sizes[-1] <= STEPS * 0.91


def test_calls_keep_their_size_where_another_takes_time():
    cost = CallCost()
    cost.expect(0.004, graph=0.3)
    cost.observe(1, 0, 0.05)
    sizes = [0]
    for number in range(40):
        sizes.append(cost.prompt_tokens())
        changed = 0.3 if sizes[-1] != sizes[-2] else 0.0
        cost.observe(0, sizes[-1], changed + 0.05 + (0.004 + 0.001 * (number % 2)) * (sizes[-1] - 1))
    assert 0.004 * sizes[-1] > 0.3
    assert 0.05 + 0.005 * sizes[-1] < STEPS * 0.35
    assert len(set(sizes[20:])) == 1


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("stall", [0.5, 3.0, 30.0])
def test_one_stalled_call_is_forgotten(name, stall):
    seconds = MACHINES[name]
    cost = CallCost()
    cost.observe(1, 0, seconds(1))
    cost.observe(0, 16, stall)
    sizes = []
    for _ in range(40):
        sizes.append(min(cost.prompt_tokens(), 4096))
        cost.observe(0, sizes[-1], seconds(sizes[-1]))
    assert sizes[-1] == 4096 or seconds(sizes[-1]) >= 0.5 * CALL_LIMIT


def test_deeper_calls_cost_more_and_chunks_shrink():
    cost, sizes = settle(lambda n: 0.004 * n)
    for _ in range(20):
        cost.observe(0, cost.prompt_tokens(), cost.prompt_tokens() * 0.008)
    assert cost.prompt_tokens() == pytest.approx(sizes[-1] / 2, rel=0.2)


def test_the_first_chunks_feel_their_way():
    _, sizes = settle(MACHINES["GPU"], calls=3)
    assert sizes == [16, 64, 256]


def few_rows(n):
    """Seconds of n rows on a processor: few of them cost more each than many (1.5B, Q4_K_M, two cores)."""
    return 0.033 + min(n - 1, 7) * 0.014 + max(n - 8, 0) * 0.009


@pytest.mark.parametrize("n_streams", [1, 3, 7])
def test_a_prompt_keeps_its_share_beside_streams(n_streams):
    """Two thirds of the time; and streams keep a third of their pace, or wait for a quarter of a second."""
    cost = CallCost()
    cost.observe(1, 0, few_rows(1))
    for _ in range(20):
        cost.observe(n_streams, 0, few_rows(n_streams))
    left, seconds, longest = 355, 0.0, 0.0
    while left > 0:
        size = min(cost.prompt_tokens(n_streams), left)
        call = few_rows(n_streams + size)
        cost.observe(n_streams, size, call)
        left, seconds, longest = left - size, seconds + call, max(longest, call)
    alone = few_rows(355)
    assert seconds <= 2 * alone
    assert longest <= max(CALL_LIMIT, STEPS * few_rows(n_streams))


def tiles(n):
    """Seconds of n rows at depth 5,000 with flash attention on a processor (0.5B, Q8_0, two cores)."""
    return 0.04 + n * (0.004 if n >= TILE else 0.0164)


@pytest.mark.parametrize("n_streams", [1, 3, 7])
def test_tiles_are_computed_where_fewer_rows_cost_more(n_streams):
    """A chunk of eight tokens and one of a tile both seemed to cost most for each token beyond it."""
    cost = CallCost()
    cost.observe(1, 0, tiles(1))
    cost.observe(0, 512, tiles(512))
    for _ in range(5):
        cost.observe(n_streams, 0, tiles(n_streams))
    limit, left, calls = max(CALL_LIMIT, STEPS * tiles(n_streams)), 1200, []
    while left > 0:
        size = 0 if cost.is_late(n_streams) else min(cost.prompt_tokens(n_streams, left), left)
        calls.append(tiles(n_streams + size))
        cost.observe(n_streams, size, calls[-1])
        left -= size
    assert sum(calls) < 3 * tiles(1200), "which takes seven times as long in chunks of eight"
    assert sum(calls) / len(calls) <= limit, "streams keep their pace on average"
    assert max(calls) <= 3 * limit


def test_less_than_a_tile_is_left_to_small_chunks():
    cost = CallCost()
    cost.observe(1, 0, tiles(1))
    cost.observe(0, 512, tiles(512))
    cost.observe(1, 16, tiles(17))
    assert cost.prompt_tokens(1, TILE - 1) == TILE - 1
    assert cost.prompt_tokens(1, TILE - 2) < 16
    cost.observe(0, 512, 0.1)
    assert cost.prompt_tokens(1, TILE - 1) > TILE
    assert cost.prompt_tokens(1, TILE - 2) < 16, "even if a tile would be within the limit"


def test_a_tile_that_takes_much_too_long_is_not_computed():
    cost = CallCost()
    cost.observe(1, 0, 10 * tiles(1) / 4)
    cost.observe(0, 512, 10 * tiles(512))
    cost.observe(1, 4, 10 * tiles(5))
    assert cost.prompt_tokens(1, 1000) < 16


def test_what_few_streams_cost_does_not_make_prompts_dear():
    """They did: a token of a prompt beside seven streams, and the next call as small."""
    cost = CallCost()
    for _ in range(50):
        cost.observe(7, 0, 0.2)
    assert cost.token_seconds == 0
    assert cost.prompt_tokens(7) >= 16


@pytest.mark.parametrize("name", MACHINES)
def test_who_reads_alone_reads_in_large_calls(name):
    seconds, cost, sizes = MACHINES[name], CallCost(), []
    cost.observe(1, 0, seconds(1))
    for _ in range(10):
        sizes.append(min(cost.lone_tokens(), 512))
        cost.observe(0, sizes[-1], seconds(sizes[-1]))
    assert sizes[0] == 128
    assert sizes[1] == sizes[-1]
    assert sizes[-1] == 512 or seconds(sizes[-1] + 256) > LONE_LIMIT
    assert all(seconds(size) <= 1.1 * LONE_LIMIT or size == 128 for size in sizes)


@pytest.mark.parametrize(("seconds", "size"), [(0.01, 768), (0.03, 256), (0.045, 192), (0.2, 128)])
def test_large_calls_are_of_whole_tiles(seconds, size):
    """Others are slower for each token: 0.7 of full speed for 96 tokens deep in a prompt."""
    cost = CallCost()
    cost.observe(0, 128, 128 * seconds)
    assert cost.lone_tokens() == size


def test_the_first_large_call_is_as_large_as_predictions_allow():
    cost = CallCost()
    cost.expect(0.01)
    assert cost.lone_tokens() == 768
    cost.observe(0, 128, 128 * 0.03)
    assert cost.lone_tokens() == 256, "what calls have taken counts for more"


def test_what_an_interruption_wastes_is_made_up_for_in_calls_that_cannot_be():
    cost = CallCost()
    assert cost.may_interrupt
    cost.note_interruption(1.0)
    done = 0
    while not cost.may_interrupt:
        cost.observe(0, 16, 0.24)
        done += 1
    assert done == 5
