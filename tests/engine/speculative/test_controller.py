"""How much is drafted, in simulated decoding: nearly the best where it pays, next to nothing where not."""

import math
import random
from collections.abc import Callable
from operator import attrgetter

import pytest

from edgechat.engine.scheduling.draft_sources import MOST
from edgechat.engine.speculative.acceptance import Acceptance, AcceptanceCounts, class_of_match
from edgechat.engine.speculative.controller import Controller, DraftOffer, Rounds
from edgechat.engine.speculative.step_cost import LARGEST, Shape, StepCost, expected_shape
from edgechat.planner.estimate.speed import Forecast

pytestmark = [pytest.mark.slow, pytest.mark.pairs]

Curve = Callable[[int], float]
PLAIN = 0.02
"""Seconds of a step of one token."""
FIRST_PURSE = 8.0
NAME = attrgetter("__name__")


def linear(slope):
    def line(n):
        return 1 + slope * (n - 1)

    line.__name__ = f"linear-{slope}"
    return line


def stairs(n):
    """As kernels have it that compute up to four, eight, sixteen rows at once."""
    return 1.0 if n <= 4 else 1.6 if n <= 8 else 2.5 if n <= 16 else 5.0


class Run:
    """Decoding with one stream, in units of a plain step."""

    def __init__(self, curve, chance, source, *, round_cost=0.08, noise=0.0, seed=1, controller=None):
        self.controller = controller or Controller(StepCost(), round_cost)
        self.curve, self.chance, self.source = curve, chance, source
        self.round_cost, self.noise = round_cost if source != "ngram" else 0.0, noise
        self.random = random.Random(seed)
        self.made = self.spent = 0.0
        self.lengths = []

    def steps(self, n):
        for _ in range(n):
            self.step()
        return self

    def step(self):
        controller, length, rounds = self.controller, 0, 0
        classes = [5] * MOST[self.source]
        if controller.begin(1, 100):
            known = self.source == "ngram"
            chances = controller.chances(classes, "ngram") if known else controller.prospects(self.source)
            choice = controller.choose([[DraftOffer(self.source, chances)]], len(classes))[0]
            length = choice.length if choice else 0
            if choice and not known:
                rounds = 1
                while rounds < len(classes):
                    chances = controller.chances(classes[:rounds], self.source)
                    if not controller.is_worth_drafting(self.source, chances, 0, len(classes)):
                        break
                    rounds += 1
                length = controller.worth_verifying(controller.chances(classes[:rounds], self.source), 0)
        stood = 0
        while stood < length and self.random.random() < self.chance:
            stood += 1
        if length:
            controller.acceptance[self.source].observe(classes[:length], stood)
        cost = self.curve(1 + length) * math.exp(self.random.gauss(0, self.noise))
        drafting = rounds * self.round_cost
        of_source = {self.source: Rounds(rounds, PLAIN * drafting)} if rounds else {}
        controller.observe(1 + length, 1 + stood, PLAIN * cost, rounds=of_source)
        self.made += 1 + stood
        self.spent += cost + drafting
        self.lengths.append(length)

    @property
    def best(self):
        """Tokens per plain step of whoever knows everything, and always drafts the same length."""
        expected = [sum(self.chance**n for n in range(k + 1)) for k in range(MOST[self.source] + 1)]
        return max(made / (self.curve(1 + k) + k * self.round_cost) for k, made in enumerate(expected))


@pytest.mark.parametrize("source", ["model", "mtp", "ngram"])
@pytest.mark.parametrize("curve", [linear(0.02), linear(0.5), linear(1.0), stairs], ids=NAME)
@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize("seed", range(3))
def test_a_useless_draft_costs_next_to_nothing(source, curve, noise, seed):
    run = Run(curve, 0.0, source, noise=noise, seed=seed).steps(2000)
    plain = 1.03 if not noise else 1.04  # the noise itself takes half a percent on average
    assert run.spent <= plain * run.made + FIRST_PURSE


@pytest.mark.parametrize("source", ["model", "mtp", "ngram"])
def test_drafts_that_begin_to_fail_do_not_cost_much_more(source):
    """What was won before may be lost again up to a full purse, and no more."""
    run = Run(linear(0.1), 0.95, source).steps(1000)
    run.chance = run.made = run.spent = 0.0
    run.steps(2000)
    assert run.spent <= 1.03 * run.made + 3 * FIRST_PURSE


@pytest.mark.parametrize("chance", [1.0, 0.9, 0.7])
@pytest.mark.parametrize("curve", [linear(0.02), linear(0.1), linear(0.3), stairs], ids=NAME)
@pytest.mark.parametrize("source", ["model", "mtp", "ngram"])
def test_a_good_draft_is_nearly_as_long_as_is_best(source, curve, chance):
    run = Run(curve, chance, source).steps(500)
    run.made = run.spent = 0.0
    run.steps(3000)
    # Of stairs it sees the next step only once it has tried it.
    assert run.made / run.spent >= (0.9 if curve is stairs and chance < 1 else 0.95) * run.best


@pytest.mark.parametrize("chance", [0.1, 0.3, 0.5])
@pytest.mark.parametrize("slope", [0.02, 0.3, 1.0])
@pytest.mark.parametrize("source", ["model", "mtp", "ngram"])
def test_it_never_loses(source, slope, chance):
    run = Run(linear(slope), chance, source, noise=0.05).steps(3000)
    assert run.made / run.spent >= 0.96


def test_with_an_empty_purse_nothing_is_drafted():
    controller = Controller(StepCost())
    controller.purse = 0.0
    assert not controller.begin(1, 100)


def test_no_more_is_chosen_than_there_is_room_for():
    controller = Controller(StepCost((1.0,) * LARGEST))
    rng = random.Random(1)
    for _ in range(200):
        n = rng.randrange(1, 6)
        offers = [
            [DraftOffer(source, [rng.random() for _ in range(MOST[source])]) for source in ("model", "ngram")]
            if rng.random() < 0.8
            else []
            for _ in range(n)
        ]
        controller.begin(n, rng.randrange(1, 5000))
        most = rng.randrange(0, 30)
        chosen = controller.choose(offers, most)
        assert len(chosen) == n
        assert sum(one.length for one in chosen if one) <= most
        assert all(one is None or 0 < one.length <= MOST[one.source] for one in chosen)
        assert all(offer or one is None for offer, one in zip(offers, chosen, strict=True))


@pytest.mark.parametrize("curve", [linear(0.05), linear(0.6), stairs], ids=NAME)
def test_the_shape_of_the_cost_is_learnt_while_the_machine_changes(curve):
    cost, rng = StepCost(), random.Random(1)
    for step in range(3000):
        n = rng.choice((1, 1, 2, 3, 5, 8))
        slower = 1 + 0.5 * math.sin(step / 300)
        cost.observe(n, PLAIN * curve(n) * slower)
    for n in (1, 2, 3, 5, 8):
        assert cost.ratio(n) == pytest.approx(curve(n), rel=0.08)
    assert cost.seconds(1) == pytest.approx(PLAIN * slower, rel=0.1)


def test_one_step_that_hangs_teaches_nothing_about_the_shape():
    cost = StepCost()
    for n in [1, 4] * 100:
        cost.observe(n, PLAIN * (1.5 if n == 4 else 1))
    before = cost.ratio(4)
    cost.observe(4, 100 * PLAIN)
    assert cost.ratio(4) == pytest.approx(before, rel=0.02)


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_a_step_that_took_no_time_is_not_looked_at(seconds):
    cost = StepCost()
    cost.observe(1, seconds)
    cost.observe(LARGEST + 1, 1.0)
    assert cost.level == 0


@pytest.mark.parametrize("source", ["model", "mtp", "ngram"])
def test_chances_are_learnt_by_class_and_position(source):
    rates, rng = Acceptance(source), random.Random(1)
    for _ in range(800):
        classes = [rng.choice((1, 6)) for _ in range(4)]
        stood = 0
        while stood < 4 and rng.random() < (0.9 if classes[stood] == 6 else 0.2):
            stood += 1
        rates.observe(classes, stood)
    assert rates.of_class(6) == pytest.approx(0.9, abs=0.1)
    assert rates.of_class(1) == pytest.approx(0.2, abs=0.12)
    assert all(0 <= rates.at_position(at) <= rates.at_position(at, optimistic=True) < 1 for at in range(40))


BROKEN = [math.nan, math.inf, -math.inf, -1.0, 0.0, 1e300]


@pytest.mark.parametrize("tried", BROKEN)
@pytest.mark.parametrize("stood", BROKEN)
def test_counts_that_are_none_are_not_taken(tried, stood):
    rates = Acceptance("model")
    by_class, by_position = len(rates.by_class.tried), len(rates.by_position.tried)
    rates.start_with(
        AcceptanceCounts([tried] * by_class, [stood] * by_class),
        AcceptanceCounts([tried] * by_position, [stood] * by_position),
    )
    assert all(0 <= rates.of_class(number, optimistic=True) < 1 for number in range(by_class))
    assert all(0 <= rates.at_position(at) < 1 for at in range(by_position))


@pytest.mark.parametrize("ratio", [*BROKEN, 1e9])
@pytest.mark.parametrize("doubt", [0.0, *BROKEN])
def test_costs_that_are_none_are_not_taken(ratio, doubt):
    for broken in ((ratio,) * LARGEST, (1.0, *(ratio,) * (LARGEST - 1)), (1.0,) * LARGEST):
        cost = StepCost()
        cost.start_with({0: Shape(broken, (doubt,) * LARGEST), 99: Shape((), ())})
        for n in range(1, LARGEST):
            cost.observe(n, PLAIN)
        assert all(0 < cost.least_ratio(n) <= cost.ratio(n) < 1000 for n in range(1, 2 * LARGEST))


def test_a_change_of_the_machine_is_not_taken_for_one_of_the_shape():
    """Always the same length, which alone tells nothing of C(1), and the machine becomes half as fast."""
    cost = StepCost()
    for _ in range(20):
        cost.observe(1, PLAIN)
        cost.observe(4, 1.5 * PLAIN)
    for _ in range(60):
        cost.observe(4, 3 * PLAIN)
    assert cost.ratio(4) == pytest.approx(1.5, rel=0.03)
    assert cost.level == pytest.approx(2 * PLAIN, rel=0.05)


def test_a_wrong_guess_of_the_shape_is_corrected_by_one_plain_step():
    cost = StepCost(tuple(map(linear(0.02), range(1, LARGEST + 1))))
    cost.observe(1, PLAIN)
    for _ in range(40):
        cost.observe(2, 2 * PLAIN)
    cost.observe(1, PLAIN)
    assert cost.ratio(2) > 1.8


def test_the_shape_is_expected_as_the_probe_measured_it():
    calls = (0.010, 0.012, 0.018, 0.030, 0.040, 0.100, 0.700)
    forecast = Forecast(decode=0.010, decode_depth=0.0, prefill=0.0014, prefill_depth=0.0, calls=calls)
    cost = StepCost(expected_shape(forecast))
    for n, ratio in ((1, 1.0), (2, 1.2), (3, 1.5), (4, 1.8), (8, 3.0), (16, 4.0), (32, 6.0)):
        assert cost.ratio(n) == pytest.approx(ratio)


def test_what_has_matched_for_long_is_tried_where_few_tokens_never_pay():
    """Where few rows cost as much as so many calls, nothing was ever drafted, and nothing learnt."""
    acceptance = Acceptance("ngram")
    short, long = (acceptance.of_class(class_of_match(length)) for length in (4, 24))
    assert short < 0.6
    assert sum(long**n for n in range(1, MOST["ngram"])) > 9


# By hand: with costs and chances that are known and stay.


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
    controller.acceptance = {source: Rates(*positions, hoped=hoped) for source in MOST}
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
    controller.observe(3, 2, 9.0, rounds={"model": Rounds(2, 0.4)}, deciding=0.3)
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
