"""How much is drafted, in simulated decoding: nearly the best where it pays, next to nothing where not."""

import math
import random
from collections.abc import Callable
from operator import attrgetter

import pytest

from edgechat.device.speed import ROWS
from edgechat.engine.speculative.controller import Controller, DraftOffer, Rounds
from edgechat.engine.speculative.estimates import (
    LARGEST,
    Acceptance,
    AcceptanceCounts,
    Shape,
    StepCost,
    class_of_match,
    expected_shapes,
)
from edgechat.engine.types import LONGEST_DRAFT
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
        classes = [5] * LONGEST_DRAFT[self.source]
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
        expected = [sum(self.chance**n for n in range(k + 1)) for k in range(LONGEST_DRAFT[self.source] + 1)]
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
    controller = Controller(StepCost([(1.0,) * LARGEST] * 8))
    rng = random.Random(1)
    for _ in range(200):
        n = rng.randrange(1, 6)
        offers = [
            [
                DraftOffer(source, [rng.random() for _ in range(LONGEST_DRAFT[source])])
                for source in ("model", "ngram")
            ]
            if rng.random() < 0.8
            else []
            for _ in range(n)
        ]
        controller.begin(n, rng.randrange(1, 5000))
        most = rng.randrange(0, 30)
        chosen = controller.choose(offers, most)
        assert len(chosen) == n
        assert sum(one.length for one in chosen if one) <= most
        assert all(one is None or 0 < one.length <= LONGEST_DRAFT[one.source] for one in chosen)
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
    cost = StepCost([tuple(map(linear(0.02), range(1, LARGEST + 1)))])
    cost.observe(1, PLAIN)
    for _ in range(40):
        cost.observe(2, 2 * PLAIN)
    cost.observe(1, PLAIN)
    assert cost.ratio(2) > 1.8


def test_the_shape_is_expected_as_the_probe_measured_it():
    calls = (0.010, 0.012, 0.018, 0.030, 0.040, 0.100, 0.700)
    forecast = Forecast(decode=0.010, decode_depth=0.0, prefill=0.0014, prefill_depth=0.0, calls=calls)
    cost = StepCost(expected_shapes(forecast))
    for n, ratio in ((1, 1.0), (2, 1.2), (3, 1.5), (4, 1.8), (8, 3.0), (16, 4.0), (32, 6.0)):
        assert cost.ratio(n) == pytest.approx(ratio)


def test_deeper_in_the_cache_rows_cost_what_attention_lets_expect():
    """Each has its own look back, so what is learnt at one depth is only half of what another takes."""
    calls = (0.010, 0.011, 0.013, 0.017, 0.025, 0.073, 0.521)
    deeper = tuple(rows * 1e-5 for rows in ROWS)
    forecast = Forecast(
        decode=0.010, decode_depth=1e-5, prefill=0.001, prefill_depth=0.0, calls=calls, calls_depth=deeper
    )
    cost = StepCost(expected_shapes(forecast))
    for _ in range(20):
        cost.observe(1, 0.010)
        cost.observe(8, 0.034)  # twice what was expected
    assert cost.ratio(8) == pytest.approx(3.4, rel=0.05)
    cost.at_depth(3000)
    expected = (0.017 + 8 * 0.03072) / (0.010 + 0.03072) / 1.7
    assert cost.ratio(8) == pytest.approx(3.4 * expected, rel=0.05)


def test_what_has_matched_for_long_is_tried_where_few_tokens_never_pay():
    """Where few rows cost as much as so many calls, nothing was ever drafted, and nothing learnt."""
    acceptance = Acceptance("ngram")
    short, long = (acceptance.of_class(class_of_match(length)) for length in (4, 24))
    assert short < 0.6
    assert sum(long**n for n in range(1, LONGEST_DRAFT["ngram"])) > 9
