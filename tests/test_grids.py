from itertools import combinations, product

import pytest

from tests.grids import covering


@pytest.mark.parametrize("sizes", [(1,), (4,), (3, 3), (2, 3, 4), (5, 1, 2, 3)])
def test_every_pair_of_values_is_there_and_few_cases_are(sizes):
    cases = list(product(*map(range, sizes)))
    chosen = [cases[number] for number in covering(cases)]
    for one, other in combinations(range(len(sizes)), 2):
        shown = {(case[one], case[other]) for case in chosen}
        assert shown == set(product(range(sizes[one]), range(sizes[other])))
    largest = sorted(sizes)[-2:]
    assert len(chosen) <= 1.5 * largest[0] * largest[-1]


def test_every_value_is_there_once():
    cases = list(product(range(3), range(5)))
    chosen = [cases[number] for number in covering(cases, 1)]
    assert (len(chosen), {one for one, _ in chosen}, {one for _, one in chosen}) == (
        5,
        {*range(3)},
        {*range(5)},
    )


def test_only_what_is_there_is_asked_for():
    """Of stacked parameters some cases may be missing."""
    cases = [case for case in product(range(3), repeat=3) if sum(case) != 3]
    chosen = {cases[number] for number in covering(cases)}
    wanted = {pair for case in cases for pair in combinations(enumerate(case), 2)}
    assert wanted == {pair for case in chosen for pair in combinations(enumerate(case), 2)}
