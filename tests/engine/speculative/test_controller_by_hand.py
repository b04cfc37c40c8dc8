"""How much is drafted, by hand: with costs and chances that are known and stay."""

import pytest

from edgechat.engine.speculative.controller import Controller, DraftOffer, Rounds
from edgechat.engine.speculative.estimates import StepCost
from edgechat.engine.types import LONGEST_DRAFT


def linear(slope):
    return lambda n: 1 + slope * (n - 1)


class Known(StepCost):
    """A curve, and a level of one second; lower estimates are 0.8 of it."""

    def __init__(self, curve=None, *, ratios=None, level=1.0):
        super().__init__()
        self._curve = curve or (lambda n: ratios[n - 1])
        self._level, self.depths, self.steps = level, [], []

    @property
    def level(self):
        return self._level

    def ratio(self, n):
        return self._curve(n)

    def least_ratio(self, n):
        return 0.8 * self._curve(n)

    def at_depth(self, tokens):
        self.depths.append(tokens)

    def observe(self, n, seconds):
        self.steps.append((n, seconds))


class Rates:
    """Chances of a tenth for each class, and by position."""

    def __init__(self, *positions, hoped=0.99):
        self.positions, self.hoped, self.fadings = positions, hoped, []

    def of_class(self, index, *, optimistic=False):
        return self.hoped if optimistic else index / 10

    def at_position(self, position, *, optimistic=False):
        return self.hoped if optimistic else self.positions[min(position, len(self.positions) - 1)]

    def fade(self, factor):
        self.fadings.append(factor)


def known(*positions, curve=None, ratios=None, n=1, round_cost=0.1, level=1.0, hoped=0.99):
    """Return a controller in its second step, of n streams."""
    cost = Known(curve or (None if ratios else linear(0.5)), ratios=ratios, level=level)
    controller = Controller(cost, round_cost)
    controller.acceptance = {source: Rates(*positions, hoped=hoped) for source in LONGEST_DRAFT}
    for _ in range(2):
        controller.begin(n, 100)
    return controller


@pytest.mark.parametrize(
    ("purse", "steps"), [(6.0, [1, 49, 97]), (8.0, [1, 13, 25]), (3.0, []), (3.1, [1, 49])]
)
def test_it_explores_now_and_then_with_something_in_the_purse(purse, steps):
    controller = Controller(Known(linear(0.5)))
    explored = []
    for step in range(1, max(steps, default=100) + 1):
        controller.purse = purse
        assert controller.begin(1, 7)
        explored += [step] if controller.optimistic else []
    assert explored == steps
    assert set(controller.cost.depths) == {7}


@pytest.mark.parametrize(
    ("won", "n_tokens", "may"), [(-1.9, 0, True), (-2.0, 0, False), (-2.9, 100, True), (-3.1, 100, False)]
)
def test_a_reply_may_lose_a_few_steps_and_one_in_a_hundred(won, n_tokens, may):
    assert known().may_lose(won, n_tokens) is may


def test_a_plain_step_is_due_after_so_many_others():
    controller = known()
    for n in range(64):
        assert controller.begin(1, 100), n
        controller.observe(2, 2, 1.0)
    assert not controller.begin(1, 100)
    controller.observe(1, 1, 1.0)
    assert controller.begin(1, 100)


def test_what_was_learnt_fades():
    controller = known()
    for _ in range(1, 512):
        controller.begin(1, 100)
    assert controller.acceptance["model"].fadings == controller.acceptance["ngram"].fadings == [0.9, 0.9]


def test_chances_are_those_of_the_source_as_this_step_judges_them():
    controller = known(0.9, 0.8, 0.7)
    assert controller.chances([9, 2], "model") == [0.9, 0.2]
    assert controller.prospects("model") == [0.9, 0.8, *[0.7] * 6]
    assert controller.prospects("ngram", 13) == [0.7, 0.7]
    controller.optimistic = True
    assert controller.chances([9, 2], "model") == [0.99, 0.99]
    assert controller.prospects("model", 6) == [0.99, 0.99]


def stepped(n):
    """Four rows cost as much as one, and each further four as much again."""
    return 0.6 * ((n - 1) // 4) + 1


@pytest.mark.parametrize(
    ("chances", "n_beside", "how", "n"),
    [
        ([], 0, {}, 0),
        ([0.9, 0.8, 0.4], 0, {}, 2),  # worth 0.4, 0.62 and 0.41
        ([0.4], 0, {}, 0),
        ([0.5], 0, {"curve": stepped}, 1),
        ([0.5], 3, {"curve": stepped}, 0),
        ([0.7, 0.9], 0, {"n": 2}, 1),  # a token is worth 0.75 of C(1): 0.03 and less than nothing
        ([0.66], 0, {"n": 2}, 0),
    ],
)
def test_as_many_are_verified_as_are_worth_it(chances, n_beside, how, n):
    assert known(**how).worth_verifying(chances, n_beside) == n


def test_the_faster_it_goes_the_more_time_is_worth():
    controller = known()
    controller._made, controller._spent = 1.0, 2.0  # slower than plain decoding, which is always there
    assert controller.worth_verifying([0.6], 0) == 1
    controller._made = 2.5
    assert controller.worth_verifying([0.6], 0) == 0


def test_a_step_that_explores_takes_costs_for_lower():
    controller = known()
    assert controller.worth_verifying([0.4], 0) == 0
    controller.optimistic = True  # 0.8 x 1.5 are 1.2
    assert controller.worth_verifying([0.4], 0) == 1
    assert controller.worth_verifying([0.1], 0) == 0


LATER = {"ratios": [1.0, 1.8, 1.8, 1.8, *[9.0] * 30]}


@pytest.mark.parametrize(
    ("ahead", "chances", "longest", "how", "is_worth"),
    [
        (0.9, [], 8, {}, True),
        (0.9, [], 0, {}, False),
        (0.59, [], 8, {}, False),  # 0.09, and it costs 0.1
        (0.61, [], 8, {}, True),
        (0.75, [], 8, {"round_cost": 0.25}, False),  # as much as it costs
        (0.7, [], 8, LATER, True),  # two together are
        (0.7, [], 1, LATER, False),
        (0.7, [], 8, LATER | {"round_cost": 0.3}, False),
        (0.9, [0.9, 0.2], 8, {}, False),
        (0.9, [0.9, 0.9], 8, {}, True),
        (0.9, [0.9, 0.9], 2, {}, False),
    ],
)
def test_another_token_is_drafted_if_it_is_worth_its_price(ahead, chances, longest, how, is_worth):
    assert known(ahead, **how).is_worth_drafting("model", chances, 0, longest) is is_worth


def test_what_is_ahead_of_a_draft_is_what_lies_behind_its_tokens():
    controller = known(0.9, 0.9, 0.1)
    assert controller.is_worth_drafting("model", [0.9], 0, 8)
    assert not controller.is_worth_drafting("model", [0.9, 0.9], 0, 8)
    dear_first = {"ratios": [1.0, 1.5, 2.0, 2.0, *[9.0] * 30]}
    assert not known(0.9, 0.9, 0.1, **dear_first).is_worth_adding("model", [0.9, 0.5], 0, 8)


def test_drafts_are_taken_for_a_tenth_of_a_step_where_nothing_is_known():
    assert Controller(StepCost()).round_costs == {"model": 0.1, "mtp": 0.1, "eagle3": 0.1}


def test_what_others_draft_counts():
    controller = known(0.5, curve=stepped)
    assert controller.is_worth_drafting("model", [], 0, 1)
    assert not controller.is_worth_drafting("model", [], 3, 1)
    assert controller.is_worth_adding("model", [0.5], 0, 1)
    assert not controller.is_worth_adding("model", [0.5], 3, 1)


@pytest.mark.parametrize(
    ("ahead", "chances", "longest", "how", "is_worth"),
    [
        (0.9, [0.9, 0.6], 8, {}, True),  # 0.44 for 0.4, and the token costs nothing any more
        (0.9, [0.9, 0.5], 8, {}, False),
        (0.9, [0.9, 0.5], 8, {"ratios": [1.0, 1.5, 2.0, 2.0, *[9.0] * 30]}, True),
        (0.9, [0.9, 0.5], 2, {"ratios": [1.0, 1.5, 2.0, 2.0, *[9.0] * 30]}, False),
        (0.9, [0.9, 0.5], 8, {"ratios": [1.0, 1.5, 2.0, 2.0, *[9.0] * 30], "round_cost": 0.4}, False),
        (0.1, [0.51], 8, {"round_cost": 5.0}, True),
        (0.1, [0.49], 8, {}, False),
    ],
)
def test_a_token_is_added_if_it_is_worth_its_place(ahead, chances, longest, how, is_worth):
    assert known(ahead, **how).is_worth_adding("model", chances, 0, longest) is is_worth


def lengths(controller, *offers, most=9):
    chosen = controller.choose(
        [[DraftOffer(source, chances) for source, chances in one] for one in offers], most
    )
    return [(one.source, one.length) if one else None for one in chosen]


@pytest.mark.parametrize(
    ("offers", "most", "expected"),
    [
        # With two streams a token is worth 0.65 of C(1), and a row costs 0.3 of it.
        ([[("ngram", [0.9, 0.8])], [("ngram", [0.5])]], 9, [("ngram", 2), ("ngram", 1)]),
        ([[("ngram", [0.9, 0.8])], [("ngram", [0.45])]], 9, [("ngram", 2), None]),
        ([[("ngram", [0.9, 0.8])], [("ngram", [0.5])]], 2, [("ngram", 2), None]),
        ([[("ngram", [0.9, 0.8])], [("ngram", [0.95])]], 1, [None, ("ngram", 1)]),
        ([[("ngram", [0.9, 0.8])], [("ngram", [0.95])]], 0, [None, None]),
        ([[], [("ngram", [0.9])]], 9, [None, ("ngram", 1)]),
        # A round of the model serves both streams: it pays for two, and not for one.
        ([[("model", [0.9])], [("model", [0.9])]], 9, [("model", 1), ("model", 1)]),
        ([[("model", [0.9])], []], 9, [None, None]),
        ([[("model", [0.95, 0.9])], [("model", [0.9])]], 9, [("model", 1), ("model", 1)]),
        ([[("model", [0.1])], [("ngram", [0.9])]], 9, [None, ("ngram", 1)]),
        ([[("model", [0.9])], [("mtp", [0.9])]], 9, [None, None]),
        ([[("model", [0.99]), ("ngram", [0.6])], []], 9, [("ngram", 1), None]),
        ([[("model", [0.99] * 8), ("ngram", [0.6])], []], 9, [("model", 7), None]),
    ],
)
def test_the_batch_takes_the_likeliest_tokens_of_all_streams(offers, most, expected):
    controller = known(curve=linear(0.3), n=2, round_cost=0.3)
    assert lengths(controller, *offers, most=most) == expected


def test_a_draft_must_be_better_than_none_by_a_margin_and_by_the_deciding():
    controller = known()
    assert lengths(controller, [("ngram", [0.519])]) == [None]
    assert lengths(controller, [("ngram", [0.521])]) == [("ngram", 1)]
    controller.observe(1, 1, 1.0, deciding=0.3)
    assert lengths(controller, [("ngram", [0.549])]) == [None]
    assert lengths(controller, [("ngram", [0.551])]) == [("ngram", 1)]


def gain(chance, ratio, price, longest):
    """Return what drafting is likely to win: the definition, in the plainest way."""
    return (
        max(sum(chance**at for at in range(n + 1)) / (ratio(1 + n) + n * price) for n in range(longest + 1))
        - 1
    )


def test_what_a_source_is_likely_to_win():
    controller = known(0.9, hoped=0.95)
    curve = linear(0.5)
    assert controller.expected_gain("model") == pytest.approx(gain(0.9, curve, 0.1, 8))
    assert controller.expected_gain("ngram") == pytest.approx(gain(0.9, curve, 0.0, 15))
    hoped = controller.expected_gain("model", optimistic=True)
    assert hoped == pytest.approx(gain(0.95, lambda n: 0.8 * curve(n), 0.1, 8))
    assert known(0.1).expected_gain("model") == 0.0


def test_the_draft_model_reads_what_it_is_likely_to_win_back_and_else_a_little():
    controller = known(0.9, hoped=0.95)
    sure, hoped = (controller.expected_gain("model", optimistic=one) for one in (False, True))
    enough = 1.5 * 100 / sure
    assert controller.reading_budget(100, enough * 1.001, 7) == 7
    assert [controller.reading_budget(100, enough * 0.999, 7) for _ in range(3)] == [7, 5, 0]
    assert controller.reading_budget(100, enough * 1.001, 50) == 50  # which is not out of the fund
    for _ in range(400):  # each step adds a quarter of a percent
        controller.observe(1, 1, 1.0)
    assert controller.reading_budget(100, enough * 0.999, 7) == pytest.approx(1.0)
    other = known(0.9, hoped=0.95)
    assert other.reading_budget(100, 1.5 * 100 / hoped * 0.999, 7) == 0
    assert other.reading_budget(100, 1.5 * 100 / hoped * 1.001, 7) == 7
    other.purse = 3.0
    assert other.reading_budget(100, enough * 0.999, 7) == 0
    other.purse = 3.1
    assert other.reading_budget(100, enough * 0.999, 7) == 5
    other.observe(1, 1, 1.0)
    assert [other.reading_budget(100, enough * 0.999, 99) for _ in range(2)] == [pytest.approx(0.0025), 0]
    other.begin(2, 100)
    other.observe(2, 2, 1.0)  # which takes half as long again
    assert other.reading_budget(100, enough * 0.999, 99) == pytest.approx(0.00375)


def test_the_account_of_a_step():
    controller = known()
    taken = controller.observe(3, 2, 9.0, rounds={"model": Rounds(2, 0.4)}, deciding=0.3)
    assert taken == pytest.approx(1 + 2 * 0.11 + 0.03)
    assert controller.cost.steps == [(3, 9.0)]
    assert controller.round_costs == pytest.approx({"model": 0.11, "mtp": 0.1, "eagle3": 0.1})
    spent = 2 + 2 * 0.11 + 0.03
    assert controller.purse == pytest.approx(6.005 + 2 - spent)
    assert controller.speedup == pytest.approx((0.97 + 2) / (0.97 + spent))
    controller.observe(1, 1, 9.0)
    assert controller.purse == pytest.approx(6.01 + 2 - spent)
    assert controller.speedup == pytest.approx((0.97 * 2.97 + 1) / (0.97 * (0.97 + spent) + 1))


def test_the_account_of_several_streams():
    controller = known(n=2)
    controller.observe(2, 2, 9.0)  # nothing was drafted
    assert (controller.purse, controller.speedup) == pytest.approx((6.0075, 1.0))
    controller.observe(3, 3, 9.0)
    assert controller.purse == pytest.approx(6.015 + 3 * 1.5 / 2 - 2)
    before = controller.purse
    controller.observe(2, 2, 9.0, rounds={"mtp": Rounds(1, 0.1), "model": Rounds()})  # drafted for nothing
    assert controller.purse == pytest.approx(before + 0.0075 - 0.1)
    assert controller.round_costs["model"] == 0.1


def test_what_cannot_be_is_bounded():
    controller = known()
    controller.observe(2, 1, 9.0, rounds={"model": Rounds(1, 1e9)}, deciding=1e9)
    assert controller.round_costs["model"] == pytest.approx(0.1 + 0.1 * 9.9)
    assert controller.purse == pytest.approx(6.005 + 1 - (1.5 + 1.09 + 1.0))
    for _ in range(10):
        controller.observe(2, 9, 9.0)
    assert controller.purse == 8.0
    controller.observe(1, 1, 9.0)
    assert controller.purse == 8.0
    unseen = known(level=0.0)
    unseen.observe(2, 2, 9.0, rounds={"model": Rounds(1, 1.0)}, deciding=1.0)
    assert (unseen.round_costs["model"], unseen.purse) == pytest.approx((0.1, 6.005 + 2 - 1.6))


def test_a_step_that_was_not_decided_on_leaves_the_price_of_deciding():
    controller = known(level=2.0)
    controller.observe(1, 1, 9.0, deciding=0.6)
    controller.observe_undecided(3, 9.0)
    assert controller.cost.steps[-1] == (3, 9.0)
    controller.begin(1, 100)
    assert lengths(controller, [("ngram", [0.549])]) == [None]
    assert lengths(controller, [("ngram", [0.551])]) == [("ngram", 1)]
    controller.observe_undecided(2, 9.0)
    assert controller.speedup == pytest.approx(1.0)
