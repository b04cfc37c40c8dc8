"""The allocation of types: within the budget, and as good as trying everything."""

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from edgechat.quantize.mixtures import TensorOption, allocate, least_bytes

choices = st.lists(
    st.builds(TensorOption, st.just("Q4_K"), st.integers(1, 400), st.floats(0, 1, allow_subnormal=False)),
    min_size=1,
    max_size=5,
)
tables = st.dictionaries(st.text("abc", min_size=1), choices, min_size=1, max_size=4)


@given(tables, st.integers(0, 500))
def test_an_allocation_keeps_to_its_budget_and_is_nearly_optimal(table, spare):
    budget = least_bytes(table) + spare
    chosen = allocate(table, budget)
    assert chosen.keys() == table.keys()
    assert all(option in table[name] for name, option in chosen.items())
    assert sum(option.n_bytes for option in chosen.values()) <= budget
    best = min(
        sum(option.loss for option in every)
        for every in product(*table.values())
        if sum(option.n_bytes for option in every) <= budget
    )
    loss = sum(option.loss for option in chosen.values())
    # The bound of the greedy method: less than what one tensor may lose away from the best.
    assert loss <= best + max(option.loss for options in table.values() for option in options) + 1e-6


def test_bytes_go_where_they_save_most():
    table = {
        "sensitive": [TensorOption("Q4_K", 4, 1.0), TensorOption("Q8_0", 8, 0.1)],
        "dull": [TensorOption("Q4_K", 4, 0.1), TensorOption("Q8_0", 8, 0.01)],
    }
    types = {name: option.type for name, option in allocate(table, 12).items()}
    assert types == {"sensitive": "Q8_0", "dull": "Q4_K"}


def test_a_type_that_costs_more_and_loses_more_is_never_taken():
    table = {
        "one": [TensorOption("Q4_K", 4, 0.2), TensorOption("Q4_1", 5, 0.3), TensorOption("Q8_0", 8, 0.1)]
    }
    assert {allocate(table, budget)["one"].type for budget in range(4, 10)} == {"Q4_K", "Q8_0"}


@given(tables)
def test_the_least_size_is_the_least_that_can_be_had(table):
    chosen = allocate(table, least_bytes(table))
    assert sum(option.n_bytes for option in chosen.values()) == least_bytes(table)


def test_no_byte_is_spent_on_nothing():
    table = {"one": [TensorOption("Q5_0", 5, 1e-8), TensorOption("F16", 16, 0.0)]}
    assert allocate(table, 100)["one"].type == "Q5_0"
