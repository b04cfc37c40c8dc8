"""What earlier loads taught: where it counts, where not, and a file in which anything may stand."""

from __future__ import annotations

import json
import math
import multiprocessing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgechat import paths
from edgechat.planner import learned
from edgechat.planner.learned import Learned, Where, learn
from edgechat.planner.speed import Correction

HERE = Where("a processor, 4 threads", "llama-cpp-python 1", "CPU", "llama", "Q4_K")


def elsewhere(**changes: str) -> Where:
    return msgspec.structs.replace(HERE, **changes)


def kept() -> Path:
    return paths.cache_dir() / "learned.json"


def test_a_run_corrects_the_next_one_at_the_same_place() -> None:
    learn(HERE, decode=1.5, prefill=3.0, beyond=10_000_000)
    found = Learned.read()
    assert found.correction(HERE) == Correction(
        1.5, 3.0, "corrected by what llama models in Q4_K did on this machine"
    )
    assert found.beyond(HERE) == 10_000_000


def test_others_serve_only_where_nothing_nearer_is_known() -> None:
    learn(elsewhere(architecture="qwen3"), decode=5.0)
    assert Learned.read().correction(HERE).decode == 5.0
    assert "qwen3 models" in Learned.read().correction(HERE).basis
    learn(elsewhere(quant="Q8_0"), decode=4.0)
    learn(elsewhere(architecture="gemma3"), decode=6.0)
    assert Learned.read().correction(HERE).decode == 4.0
    learn(HERE, decode=2.0)
    learn(elsewhere(architecture="gemma3"), decode=7.0)
    assert Learned.read().correction(HERE).decode == 2.0


@pytest.mark.parametrize("change", ["machine", "build", "backend"])
def test_another_machine_never_counts(change: str) -> None:
    learn(elsewhere(**{change: "another"}), decode=9.0, prefill=9.0, beyond=1 << 30)
    assert Learned.read().correction(HERE) == Correction()
    assert Learned.read().beyond(HERE) == 0


def test_decode_and_prefill_come_from_where_each_was_seen() -> None:
    learn(HERE, decode=2.0)
    learn(elsewhere(quant="Q8_0"), prefill=3.0)
    found = Learned.read().correction(HERE)
    assert (found.decode, found.prefill) == (2.0, 3.0)


def test_one_bad_run_does_not_decide() -> None:
    for factor in (2.0, 2.1, 50.0, 2.0, 1.9):
        learn(HERE, decode=factor)
    assert Learned.read().correction(HERE).decode == 2.0


@given(st.lists(st.floats(), max_size=12))
def test_absurd_factors_are_left_out(factors: list[float]) -> None:
    found = Learned()
    for factor in factors:
        found = found.with_run(HERE, decode=factor, prefill=factor)
    correction = found.correction(HERE)
    sound = [factor for factor in factors[-8:] if 1e-3 < factor < 1e3]
    assert 1e-3 < correction.decode < 1e3
    if sound:
        assert min(sound) <= correction.decode <= max(sound)
    else:
        assert correction == Correction()


def test_memory_beyond_the_plan_is_bounded() -> None:
    learn(HERE, beyond=1 << 60)
    assert Learned.read().beyond(HERE) == 0
    learn(HERE, beyond=5)
    learn(HERE, beyond=3)
    assert Learned.read().beyond(HERE) == 5


RUNS = '[{"where": {"machine": "a", "build": "b", "backend": "c", "architecture": "d", "quant": "e"}, %s}]'


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
        RUNS % '"decode": ["fast"]',
        RUNS % '"decode": [1e999]',
        RUNS % '"decode": [null]',
        RUNS % '"when": "now"',
        RUNS % f'"beyond": [{10**400}]',
        RUNS % '"beyond": [1.5]',
    ],
)
def test_a_damaged_file_is_learnt_anew(text: str) -> None:
    kept().write_text(text, encoding="latin-1")
    assert Learned.read().correction(HERE) == Correction()
    learn(HERE, decode=2.0)
    assert Learned.read().correction(HERE).decode == 2.0


def test_a_file_that_is_far_too_large_is_not_read() -> None:
    with kept().open("wb") as stream:
        stream.truncate(1 << 40)  # more than there is memory
    assert Learned.read().correction(HERE) == Correction()
    learn(HERE, decode=2.0)
    assert Learned.read().correction(HERE).decode == 2.0
    assert kept().stat().st_size < 10_000


def test_a_folder_that_cannot_be_written_is_no_trouble(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = home.with_name("file")
    file.write_text("")
    monkeypatch.setenv("EDGECHAT_HOME", str(file))
    learn(HERE, decode=2.0)
    assert Learned.read().correction(HERE) == Correction()


def test_its_size_is_bounded() -> None:
    for number in range(learned._PLACES + 20):
        learn(elsewhere(architecture=f"model-{number}"), decode=1.0, prefill=1.0, beyond=1)
    for _ in range(30):
        learn(HERE, decode=1.0, prefill=1.0, beyond=1)
    table: list[dict[str, Any]] = json.loads(kept().read_bytes())
    assert len(table) == learned._PLACES
    assert kept().stat().st_size < learned._MOST_READ / 5
    assert max(len(one["decode"]) for one in table) == 8
    assert table[-1]["where"]["architecture"] == "llama"
    assert [path.name for path in kept().parent.iterdir()] == ["learned.json"]


def _learn_often(name: str, n: int) -> None:
    for number in range(n):
        learn(elsewhere(architecture=f"{name}-{number}"), decode=2.0)


def test_two_writers_at_once_never_break_the_file() -> None:
    """Each puts a whole file in the place of the other's: a run may be lost, no more."""
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_learn_often, args=(name, 20)) for name in ("a", "b")]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        if kept().exists():
            assert isinstance(json.loads(kept().read_bytes()), list)
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    found = {one["where"]["architecture"] for one in json.loads(kept().read_bytes())}
    assert len(found) >= 20
    assert [path.name for path in kept().parent.iterdir()] == ["learned.json"]


def test_nothing_but_numbers_reaches_a_plan() -> None:
    runs = learned.Runs(where=HERE, decode=(math.nan, math.inf, -1.0, 0.0, 2.0), prefill=(math.nan,))
    assert Learned([runs]).correction(HERE).decode == 2.0
    assert Learned([runs]).correction(HERE).prefill == 1.0
