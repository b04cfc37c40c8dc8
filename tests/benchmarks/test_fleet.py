"""The simulation of many people: closed forms, conservation of tokens, determinism."""

import statistics
from dataclasses import replace

import pytest

from benchmarks.fleet import AGENT, CHAT, CPU, SPARK, crowd, most
from benchmarks.fleet_simulation import WHOLE, Costs, Fleet, Link, Once, Person, Policy, poisson

pytestmark = pytest.mark.slow

FLAT = Costs(
    "flat", "of this test", ((1, 0.02), (8, 0.04)), cell_seconds=0, token_seconds=0.001, pair_seconds=0,
    cells=100_000, cell_bytes=1000,
)  # fmt: skip


def test_one_stream_is_plain_arithmetic():
    """300 tokens of a prompt in one call, then nine calls, over ever more cells."""
    costs = replace(FLAT, cell_seconds=1e-6, pair_seconds=1e-7)
    report = Fleet(costs, [Once(0, 5.0, 300, 10)]).simulate(100)
    reading = 0.02 + 0.001 * 299 + 1e-7 * 300 * 150
    writing = [0.02 + 1e-6 * (300 + at) for at in range(9)]
    assert report.first == [pytest.approx(reading)]
    assert report.per_token == [pytest.approx(sum(writing) / 9)]
    assert sum(report.weights) == 9
    assert (report.written, report.prefilled, report.preempted) == (10, 300, 0)
    assert report.busy * 100 == pytest.approx(reading + sum(writing))


def test_two_streams_share_their_calls():
    costs = replace(FLAT, token_seconds=0.0001)
    report = Fleet(costs, [Once(at, 0.0, 1, 101) for at in range(2)]).simulate(100)
    c2 = costs.streams(2)
    assert c2 == pytest.approx(0.02 + 0.02 / 7)
    assert report.gap(0.5) == pytest.approx(c2)
    assert report.per_token[0] == pytest.approx(c2, rel=0.02)


@pytest.mark.parametrize("utilisation", [0.3, 0.6, 0.8])
def test_a_queue_of_equal_prompts_waits_as_m_d_1_does(utilisation):
    """Pollaczek-Khinchine: the mean wait is u / (2 (1 - u)) of a service."""
    costs = replace(FLAT, slots=1)
    service = costs.call(0, 0, ((0, 200),))
    people = poisson(utilisation / service, 12_000 * service, 200, 1, seed=4)
    report = Fleet(costs, people).simulate(20_000 * service)
    assert len(report.first) == len(people)
    wait = statistics.fmean(report.first) / service - 1
    assert wait == pytest.approx(utilisation / (2 * (1 - utilisation)), rel=0.08)


@pytest.mark.parametrize("policy", [Policy(), WHOLE])
@pytest.mark.parametrize("n_prefill", [0, 1])
def test_no_token_is_lost_or_made_up(policy, n_prefill):
    people = poisson(3, 200, 300, 40, seed=5)
    fleet = Fleet(FLAT, people, n=2, router="least", policy=policy, n_prefill=n_prefill)
    report = fleet.simulate(2000)
    assert len(report.first) == len(people)
    assert report.written == 40 * len(people)
    assert sum(report.weights) == 39 * len(people)
    assert report.prefilled == 300 * len(people) == report.new
    assert report.sent == (300 * len(people) * FLAT.cell_bytes if n_prefill else 0)
    assert all(machine.load == 0 for machine in fleet.machines)


@pytest.mark.parametrize("router", ["random", "least", "affinity"])
def test_prompts_are_cached_or_computed(router):
    report = crowd(SPARK, AGENT, 12, n=3, router=router)
    assert report.cached + report.computed > 0
    assert report.computed >= report.new  # what nobody has seen cannot be cached
    assert report.preempted == 0


def test_a_full_cache_evicts_and_preempts_and_still_answers():
    """Three replies of 400 tokens that fit one at a time only grow into each other."""
    costs = replace(FLAT, cells=1100)
    fleet = Fleet(costs, [Once(at, 0.01 * at, 100, 400) for at in range(3)])
    report = fleet.simulate(1000)
    assert report.preempted > 0
    assert (len(report.first), report.written) == (3, 1200)
    machine = fleet.machines[0]
    assert machine.free >= 0
    assert machine.free == costs.cells - sum(machine.idle.values())
    roomy = Fleet(FLAT, [Once(at, 0.01 * at, 100, 400) for at in range(3)]).simulate(1000)
    assert report.prefilled > roomy.prefilled == 300


def test_what_never_fits_is_an_error():
    with pytest.raises(ValueError, match="does not fit"):
        Fleet(replace(FLAT, cells=50), [Once(0, 0.0, 100, 10)]).simulate(10)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("habit", [CHAT, AGENT], ids=lambda habit: habit.name)
def test_affinity_never_computes_more_than_random(habit, seed):
    def computed(router):
        people = [Person(number, habit, seed) for number in range(12)]
        report = Fleet(SPARK, people, n=4, router=router, system=habit.system, seed=seed).simulate(1800)
        return report.computed / len(report.first)

    assert computed("affinity") <= computed("random")


def test_affinity_without_load_computes_only_what_is_new():
    """... and the last token of each reply, which is drawn but not computed when it ends."""
    people = [Person(number, CHAT, 7) for number in range(4)]
    report = Fleet(SPARK, people, n=4, system=CHAT.system).simulate(6000)
    assert report.new <= report.computed <= report.new + len(report.first)


def test_a_conversation_moves_when_its_machine_is_busy():
    """Where the others have less to do, it is computed again; with patience it stays."""
    stays, moves = (crowd(SPARK, CHAT, 60, n=4, patience=patience) for patience in (1000, 0))
    assert stays.computed <= stays.new + len(stays.first)
    assert moves.computed > 1.2 * moves.new


def test_streams_go_on_beside_a_long_prompt_in_chunks_only():
    """A prompt of 8,000 tokens beside a stream: whole, it stands still for eight seconds."""
    people = [Once(0, 0.0, 10, 600), Once(1, 1.0, 8000, 2)]
    chunked = Fleet(FLAT, people).simulate(100)
    people = [Once(0, 0.0, 10, 600), Once(1, 1.0, 8000, 2)]
    whole = Fleet(FLAT, people, policy=WHOLE).simulate(100)
    assert max(chunked.gaps) <= 0.25
    assert max(whole.gaps) == pytest.approx(8.0, rel=0.01)
    assert max(whole.first) < max(chunked.first)  # what the prompt pays for it


def test_the_link_delays_the_second_token():
    """1 MB over 8 Mbit/s takes a second."""
    report = Fleet(
        FLAT, [Once(0, 0.0, 1000, 3)], n=2, n_prefill=1, link=Link(8e6, 0.5), policy=WHOLE
    ).simulate(100)  # fmt: skip
    assert sorted(report.gaps) == [pytest.approx(0.02), pytest.approx(1.0 + 0.5 + 0.02)]
    assert report.first == [pytest.approx(0.02 + 0.999)]


def test_equal_seeds_give_equal_reports():
    first, second = (crowd(CPU, CHAT, 6, n=2, router="random") for _ in range(2))
    assert first == second
    assert crowd(CPU, CHAT, 6, n=2, router="random", seed=1) != first


def test_more_people_wait_longer():
    few, many = (crowd(SPARK, CHAT, n) for n in (10, 80))
    assert few.first_token(0.95) < many.first_token(0.95)
    assert few.gap(0.95) <= many.gap(0.95)
    assert few.busy < many.busy <= 1


def test_costs_are_interpolated_and_checked():
    assert [FLAT.streams(n) for n in (1, 8)] == [0.02, 0.04]
    assert FLAT.streams(4) < 0.03 < FLAT.streams(5)
    assert FLAT.streams(15) == pytest.approx(0.06)
    with pytest.raises(ValueError, match="positive"):
        replace(FLAT, steps=((8, 0.04), (1, 0.02)))


@pytest.mark.parametrize("limit", [0, 1, 7, 25, 999])
def test_most_finds_the_largest_number(limit):
    found = most(lambda n: n <= limit)
    assert limit - max(1, limit // 30) < found <= limit or found == limit
