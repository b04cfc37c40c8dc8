"""What earlier loads taught: where it counts, where not, and a file in which anything may stand."""

import json
import math
import multiprocessing
import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgechat.base import paths
from edgechat.planner.estimate import calibration
from edgechat.planner.estimate.calibration import Calibration, Correction, RunConditions, RunRecord
from edgechat.planner.machine import Machine
from edgechat.planner.ranking.ranking import best_of, choose
from edgechat.planner.request import DEFAULT_REQUEST
from tests.planner import golden

HERE = RunConditions("a processor, 4 threads", "llama-cpp-python 1", "CPU", "llama", "Q4_K", "a model")


def elsewhere(**changes):
    return msgspec.structs.replace(HERE, **changes)


def learn(where, **took):
    Calibration.read().with_run(where, **took).write()


def kept():
    return paths.cache_dir() / "learned.json"


def often(where, n=3, **took):
    for _ in range(n):
        learn(where, **took)


def after(*factors, **changes):
    """Return what so many runs taught."""
    found = Calibration()
    for factor in factors:
        found = found.with_run(elsewhere(**changes), decode=factor)
    return found


def test_runs_correct_the_next_one_at_the_same_place():
    often(HERE, decode=1.5, prefill=3.0, beyond=10_000_000)
    found = Calibration.read()
    correction = found.correction(HERE)
    assert (correction.decode, correction.prefill) == (pytest.approx(1.5), pytest.approx(3.0))
    assert correction.basis == "corrected by measurements of a model Q4_K on this machine"
    assert found.beyond(HERE) == 10_000_000
    assert found.knows(HERE)


def test_one_run_or_two_say_nothing():
    learn(HERE, decode=10.0)
    learn(HERE, decode=10.0)
    assert Calibration.read().correction(HERE) == Correction()
    assert not Calibration.read().knows(HERE)


@given(
    st.lists(st.floats(0.97, 1.03), max_size=20),
    st.lists(st.floats(-4, 4), max_size=1),
    st.integers(0, 20),
)
def test_one_odd_run_among_any_changes_nothing(usual, odd, at):
    """Ten times slower, or quicker: the speed that is predicted stays within what the others were."""
    with_it = [*usual[:at], *(2**x for x in odd), *usual[at:]]
    found = after(*with_it).correction(HERE).decode
    assert 0.97 <= found <= 1.03


def test_what_is_slow_always_is_believed():
    assert after(10.0, 9.8, 10.3).correction(HERE).decode == pytest.approx(10, rel=0.1)


def test_a_busy_evening_that_went_unnoticed_is_outlived():
    """A third of the runs, or less, does not decide."""
    slow = (1.0, 1.02, 6.0, 1.01, 9.0, 1.0, 5.0, 0.99, 1.0)
    assert after(*slow).correction(HERE).decode == pytest.approx(1.0, rel=0.05)


def test_old_runs_give_way_to_new_ones_and_are_forgotten():
    day = 86400.0
    old = after(*[4.0] * 6)
    now = Calibration(old._runs.values(), now=time.time() + 240 * day)
    assert now.correction(HERE) == Correction()
    for _ in range(3):
        now = now.with_run(HERE, decode=1.1)
    assert now.correction(HERE).decode == pytest.approx(1.1)
    back = Calibration(old._runs.values(), now=time.time() - 1000 * day)
    assert back.correction(HERE).decode == pytest.approx(4.0), "a clock that was put back"


def test_runs_that_tell_little_need_many():
    few, many = Calibration(), Calibration()
    for number in range(12):
        few = few.with_run(HERE, decode=2.0, weight=0.25) if number < 5 else few
        many = many.with_run(HERE, decode=2.0, weight=0.25)
    assert few.correction(HERE) == Correction()
    assert many.correction(HERE).decode == pytest.approx(2.0)


def test_others_serve_only_where_nothing_nearer_is_known():
    often(elsewhere(architecture="qwen3", model="b"), decode=5.0)
    assert Calibration.read().correction(HERE) == Correction(), (
        "one model alone tells nothing of another kind"
    )
    often(elsewhere(architecture="gemma3", model="c"), decode=3.0)
    found = Calibration.read().correction(HERE)
    assert found.decode == pytest.approx(3.0), "what they have in common"
    assert "other models" in found.basis
    often(elsewhere(model="larger"), decode=4.0)
    found = Calibration.read().correction(HERE)
    assert found.decode == pytest.approx(4.0)
    assert "llama models" in found.basis
    often(elsewhere(quant="Q8_0"), decode=2.5)
    assert Calibration.read().correction(HERE).decode == pytest.approx(2.5)
    often(HERE, decode=2.0)
    often(elsewhere(quant="Q8_0"), decode=2.6)
    assert Calibration.read().correction(HERE).decode == pytest.approx(2.0)


def test_models_that_disagree_say_nothing_of_others():
    often(elsewhere(architecture="qwen3", model="b"), decode=5.0)
    often(elsewhere(architecture="gemma3", model="c"), decode=0.5)
    assert Calibration.read().correction(HERE).decode == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("odd", [10.0, 20.0])
def test_no_run_flips_a_recommendation(odd):
    """Of any model, whatever was known before: a run ten times slower leaves the choice as it is."""
    profile = golden.profile(32)
    machine = Machine(profile)

    def chosen(history):
        options = [
            best_of(files, Machine(profile, history=history), DEFAULT_REQUEST) for files in golden.models()
        ]
        best = choose(one for one in options if one is not None)
        assert best is not None
        return best.variant.model, best.quant

    first = chosen(Calibration())
    made = [best_of(files, machine, DEFAULT_REQUEST) for files in golden.models()]
    plans = [one.plan for one in made if one is not None and one.plan is not None]
    where = next(plan.where for plan in plans if plan.model_name == first[0])
    assert where is not None
    for before in (0, 2, 5):
        history = Calibration()
        for _ in range(before):
            history = history.with_run(where, decode=1.0, prefill=1.0)
        assert chosen(history.with_run(where, decode=odd, prefill=odd)) == first


@pytest.mark.parametrize("change", ["machine", "build", "backend"])
def test_another_machine_never_counts(change):
    often(elsewhere(**{change: "another"}), decode=9.0, prefill=9.0, beyond=1 << 30)
    assert Calibration.read().correction(HERE) == Correction()
    assert Calibration.read().beyond(HERE) == 0


def test_decode_and_prefill_come_from_where_each_was_seen():
    often(HERE, decode=2.0)
    often(elsewhere(quant="Q8_0"), prefill=3.0)
    found = Calibration.read().correction(HERE)
    assert (found.decode, found.prefill) == (pytest.approx(2.0), pytest.approx(3.0))


@given(st.lists(st.floats(), max_size=12))
def test_absurd_factors_are_left_out(factors):
    found = Calibration()
    for factor in factors:
        found = found.with_run(HERE, decode=factor, prefill=factor)
    correction = found.correction(HERE)
    sound = [factor for factor in factors[-16:] if 1e-3 < factor < 1e3]
    assert 1e-3 < correction.decode < 1e3
    if len(sound) >= 3:
        assert min(sound) <= correction.decode * (1 + 1e-9)
        assert correction.decode <= max(sound) * (1 + 1e-9)
    else:
        assert correction == Correction()


def test_memory_beyond_the_plan_is_bounded():
    learn(HERE, beyond=1 << 60)
    assert Calibration.read().beyond(HERE) == 0
    learn(HERE, beyond=5)
    learn(HERE, beyond=3)
    assert Calibration.read().beyond(HERE) == 5


RUNS = (
    '{"format": 2, "runs": [{"where": {"machine": "a", "build": "b", "backend": "c", "architecture": "d", '
    '"quant": "e", "model": "f"}, %s}]}'
)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]]",
        "{",
        "[" * 100_000,
        '["' + "x" * 10**6 + '"]',
        "\xff\xfe",
        '[{"where": 1}]',
        '[{"where": {"machine": "a"}}]',
        '{"format": 1, "runs": []}',
        RUNS % '"decode": ["fast"]',
        RUNS % '"decode": [1.5, 1.5]',
        RUNS % '"decode": [[1e999, 1]]',
        RUNS % '"decode": [[null, 1]]',
        RUNS % '"decode": [[1]]',
        RUNS % '"when": "now"',
        RUNS % f'"beyond": [{10**400}]',
        RUNS % '"beyond": [1.5]',
    ],
)
def test_a_damaged_file_is_learnt_anew(text):
    kept().write_text(text, encoding="latin-1")
    assert Calibration.read().correction(HERE) == Correction()
    often(HERE, decode=2.0)
    assert Calibration.read().correction(HERE).decode == pytest.approx(2.0)


def test_a_file_that_is_far_too_large_is_not_read():
    with kept().open("wb") as stream:
        stream.truncate(1 << 40)  # more than there is memory
    assert Calibration.read().correction(HERE) == Correction()
    often(HERE, decode=2.0)
    assert Calibration.read().correction(HERE).decode == pytest.approx(2.0)
    assert kept().stat().st_size < 10_000


def test_a_folder_that_cannot_be_written_is_no_trouble(home, monkeypatch):
    file = home.with_name("file")
    file.write_text("")
    monkeypatch.setenv("EDGECHAT_HOME", str(file))
    learn(HERE, decode=2.0)
    assert Calibration.read().correction(HERE) == Correction()


def test_its_size_is_bounded():
    for number in range(calibration._MAX_HISTORIES + 20):
        learn(elsewhere(architecture=f"model-{number}"), decode=1.0, prefill=1.0, beyond=1)
    for _ in range(30):
        learn(HERE, decode=1.0, prefill=1.0, beyond=1)
    table = json.loads(kept().read_bytes())["runs"]
    assert len(table) == calibration._MAX_HISTORIES
    assert kept().stat().st_size < calibration._MAX_FILE_BYTES / 5
    assert max(len(one["decode"]) for one in table) == 16
    assert table[-1]["where"]["architecture"] == "llama"
    assert [path.name for path in kept().parent.iterdir()] == ["learned.json"]


def _learn_often(name, n):
    for number in range(n):
        learn(elsewhere(architecture=f"{name}-{number}"), decode=2.0)


@pytest.mark.slow
def test_two_writers_at_once_never_break_the_file():
    """Each puts a whole file in the place of the other's: runs of the other may be lost, no more."""
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_learn_often, args=(name, 20)) for name in ("a", "b")]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        if kept().exists():
            assert isinstance(json.loads(kept().read_bytes()), dict)
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    found = {one["where"]["architecture"] for one in json.loads(kept().read_bytes())["runs"]}
    assert found & {"a-19", "b-19"}, "whoever wrote last has its last run in the file"
    assert [path.name for path in kept().parent.iterdir()] == ["learned.json"]


def test_nothing_but_numbers_reaches_a_plan():
    odd = tuple(RunRecord(factor, 0.0) for factor in (math.nan, math.inf, -1.0, 0.0))
    sound = (RunRecord(2.0, 0.0, math.nan), RunRecord(2.0, 0.0, -5.0), *[RunRecord(2.0, 0.0, 1e9)] * 3)
    runs = calibration.RunHistory(where=HERE, decode=odd + sound, prefill=odd)
    found = Calibration([runs], now=0.0).correction(HERE)
    assert found.decode == pytest.approx(2.0)
    assert found.prefill == 1.0
