"""What a controller learnt is there the next time; of a damaged file nothing is, and nobody notices."""

import json
import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgechat.base import paths
from edgechat.engine.speculative.controller import Controller, DraftHistory, DraftOffer, Rounds
from edgechat.engine.speculative.estimates import LARGEST, StepCost
from edgechat.engine.types import LONGEST_DRAFT
from edgechat.planner.plan import LoadPlan

PLAN = LoadPlan(model_path="m", model_name="m", context=100)


def path():
    return paths.cache_dir() / "speculation.json"


def experienced():
    controller = Controller(StepCost())
    for step in range(300):
        n = 1 + step % 8
        controller.begin(1, 100)
        controller.acceptance["ngram"].observe([3] * 4, 4)
        controller.acceptance["model"].observe([9] * 4, 1)
        rounds = {"model": Rounds(2, 0.02 * 0.3)}
        controller.observe(n, 1, 0.02 * (1 + 0.1 * (n - 1)), rounds=rounds)
    return controller


def taught(plan=PLAN):
    controller = Controller(StepCost())
    DraftHistory(plan).restore(controller)
    return controller


def is_new(controller):
    fresh = Controller(StepCost())
    return (
        [controller.cost.ratio(n) for n in range(1, 9)] == [fresh.cost.ratio(n) for n in range(1, 9)]
        and controller.round_costs == fresh.round_costs
        and all(controller.prospects(one) == fresh.prospects(one) for one in ("model", "ngram"))
    )


def check_sound(controller):
    """It can be worked with, and every number is one."""
    for depth in (1, 700, 100_000):
        controller.begin(1, depth)
        assert all(0 < controller.cost.ratio(n) < 1e6 for n in range(1, LARGEST + 1))
        assert all(0 < controller.cost.least_ratio(n) < 1e6 for n in range(1, LARGEST + 1))
    assert all(0 < cost <= 10 for cost in controller.round_costs.values())
    for source in ("model", "ngram"):
        bid = DraftOffer(source, controller.prospects(source))
        assert all(0 <= chance < 1 for chance in bid.chances)
        (choice,) = controller.choose([[bid]], 8)
        assert choice is None or 0 < choice.length <= 8
        assert math.isfinite(controller.expected_gain(source))
    for n in (1, 5, 1, 3):
        controller.observe(n, 1, 0.02, rounds={"model": Rounds(1, 0.002)})
    assert math.isfinite(controller.purse)


def test_what_was_learnt_is_there_the_next_time():
    old = experienced()
    DraftHistory(PLAN).save(old)
    new = taught()
    for n in (2, 5, 8):
        assert new.cost.ratio(n) == pytest.approx(old.cost.ratio(n))
        assert new.cost.least_ratio(n) < new.cost.ratio(n)
    assert new.round_costs == pytest.approx(old.round_costs)
    assert new.prospects("ngram")[0] > 0.8
    assert new.prospects("model")[3] < 0.6
    check_sound(new)


@pytest.mark.parametrize(
    "changes",
    [
        {"model_name": "n"},
        {"quant": "Q8_0"},
        {"cache_type": "q8_0"},
        {"threads": 7},
        {"flash_attention": False},
    ],
    ids=str,
)
def test_another_model_or_machine_learns_for_itself(changes):
    DraftHistory(PLAN).save(experienced())
    other = msgspec.structs.replace(PLAN, **changes)
    assert is_new(taught(other))
    DraftHistory(other).save(experienced())
    assert not is_new(taught(other))
    assert not is_new(taught()), "one lesson does not displace another"


@pytest.mark.slow
def test_only_so_many_places_are_remembered():
    for number in range(40):
        DraftHistory(msgspec.structs.replace(PLAN, model_name=f"m{number}")).save(experienced())
    assert len(json.loads(path().read_bytes())) == 32
    assert not is_new(taught(msgspec.structs.replace(PLAN, model_name="m39")))
    assert is_new(taught(msgspec.structs.replace(PLAN, model_name="m0")))


def test_it_is_not_written_at_every_step():
    lessons = DraftHistory(PLAN)
    lessons.save(experienced())
    path().unlink()
    lessons.save(experienced())
    assert not path().exists()


DAMAGED = [
    b"",
    b"null",
    b"{",
    b"[" * 100_000,
    b"\xff\xfe",
    b'[{"place": 1}]',
    b"[1e999]",
    b"[NaN]",
    b"\0" * 99,
]


@pytest.mark.parametrize("raw", DAMAGED)
def test_a_damaged_file_is_ignored_and_written_anew(raw):
    path().parent.mkdir(parents=True, exist_ok=True)
    path().write_bytes(raw)
    assert is_new(taught())
    DraftHistory(PLAN).save(experienced())
    assert not is_new(taught())


def test_a_folder_in_its_place_harms_nobody():
    path().mkdir(parents=True)
    DraftHistory(PLAN).save(experienced())
    assert is_new(taught())


numbers = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(-10, 10),
    st.sampled_from([0.0, -1.0, 1e-300, 1e300, 1e308, 0.1, 1000.0]),
)


def several(n):
    mixed = st.lists(st.sampled_from([0.0, 0.2, 1.0, 900.0, 1e300]), min_size=n, max_size=n)
    sound = st.lists(st.sampled_from([0.2, 1.0, 900.0]), min_size=n, max_size=n)
    return st.one_of(numbers.map(lambda one: [one] * n), st.lists(numbers, max_size=4), mixed, sound)


@st.composite
def lessons(draw):
    """A lesson of the right types and lengths, or nearly, with any numbers."""
    shape = {"ratio": [1.0, *draw(several(LARGEST - 1))], "doubt": draw(several(LARGEST))}
    counts = {
        source: {
            kind: {name: draw(several(n)) for name in ("tried", "stood")}
            for kind, n in (("by_class", n_classes), ("by_position", LONGEST_DRAFT[source]))
        }
        for source, n_classes in (("model", 11), ("ngram", 9))
    }
    depth = draw(st.sampled_from(["0", "1", "7", "8", "-1", "99999"]))
    return {
        "shapes": {depth: shape},
        "rates": counts,
        "round_costs": {source: draw(numbers) for source in LONGEST_DRAFT if draw(st.booleans())},
        "when": draw(numbers),
    }


@pytest.mark.slow
@given(lessons())
def test_whatever_the_file_says_the_numbers_stay_sound(lesson):
    DraftHistory(PLAN).save(experienced())
    place = json.loads(path().read_bytes())[-1]["place"]
    path().write_text(json.dumps([lesson | {"place": place}]))
    check_sound(taught())


@pytest.mark.slow
@given(st.recursive(st.none() | st.booleans() | numbers | st.text(max_size=5), st.lists, max_leaves=8))
def test_whatever_json_it_is(value):
    path().parent.mkdir(parents=True, exist_ok=True)
    path().write_text(json.dumps(value))
    check_sound(taught())
