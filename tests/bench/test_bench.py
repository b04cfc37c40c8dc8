"""`edgechat bench` on real models: what it measures, draws and says when it cannot."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from edgechat.base.errors import EngineCrashed, LoadFailed, NotDrawn
from edgechat.bench.speed import CEILING, PLAIN, BenchTask, measure
from edgechat.cli import plots
from edgechat.cli.commands.bench import _speeds
from edgechat.planner.plan import DraftPlan, LoadPlan
from tests.cli.running import EDGECHAT, complaint, edgechat
from tests.kit import NOT_PRINTABLE, pair, tiny
from tests.kit.corrupt import truncated
from tests.kit.heads import with_head

pytestmark = pytest.mark.slow


def benches(parent):
    """Return the processes that measure for this one."""
    found = []
    for child in psutil.Process(parent).children():
        with contextlib.suppress(psutil.Error):  # it may end while it is looked at
            if child.cmdline()[-1:] == ["bench"]:
                found.append(child)
    return found


@pytest.fixture(scope="module")
def report():
    target, draft = pair(0.1, mute=NOT_PRINTABLE)
    fields = {"context": 4096, "threads": 1, "n_outputs_max": 20}
    plan = LoadPlan(
        model_path=str(target),
        model_name="target",
        ngrams=True,
        draft=DraftPlan(model_path=str(draft), model_name="small", **fields),
        **fields,
    )
    told = []
    found = measure(BenchTask(plan, rounds=2, tokens=24), told.append)
    assert "loading the model" in told
    return found


def test_every_way_is_measured_in_every_task(report):
    assert report.drafters == ("small", "n-grams")
    names = [CEILING, PLAIN, "small", "n-grams", "both"]
    assert [(way.task, way.name) for way in report.ways] == [
        (task, name) for task in ("prose", "editing") for name in names
    ]
    assert all(len(way.rates) == 2 and way.rate > 0 for way in report.ways)


def test_plain_decoding_has_no_drafts(report):
    drafted = {name: sum(way.drafted for way in report.ways if way.name == name) for name in (PLAIN, CEILING)}
    assert drafted == {PLAIN: 0, CEILING: 0}
    # Whether drafts pay on a model that takes half a millisecond is the machine's affair.
    assert all(way.drafted >= way.accepted >= 0 for way in report.ways)


def test_speeds_come_by_depth_and_costs_by_rows(report):
    assert [one.depth for one in report.depths] == [0, 1024]
    assert all(one.prompt_tps > one.decode_tps > 0 for one in report.depths)
    assert list(report.curve_ms) == [1, 2, 3, 4, 5, 6, 8, 12, 16]
    assert all(ms > 0 for ms in report.curve_ms.values())
    assert report.draft_ms is not None
    assert report.ttft_ms > 0
    assert report.prompt_tokens > 512


def test_both_kinds_of_attention_are_measured(report):
    assert report.attention == "flash"
    assert [one.depth for one in report.other_depths] == [one.depth for one in report.depths]
    assert all(one.prompt_tps > one.decode_tps > 0 for one in report.other_depths)
    columns = {len(row) for row in _speeds(report)}
    assert columns == {5}
    assert "plain attention" in _speeds(report)[0][3]


def test_a_plot_is_a_picture(report, tmp_path):
    plots.draw(report, "a model", tmp_path / "bench.png")
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")


def test_a_plot_that_cannot_be_written_is_refused_before_anything_is_measured(tmp_path):
    with pytest.raises(NotDrawn, match=r"must end in \.png"):
        plots.check(tmp_path / "bench.pdf")
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(NotDrawn, match="it is a folder"):
        plots.check(tmp_path / "folder.png")
    with pytest.raises(NotDrawn):
        plots.check(tmp_path / "nowhere" / "bench.png")


def test_a_missing_matplotlib_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(NotDrawn) as caught:
        plots.check(tmp_path / "bench.png")
    assert "edgechat[plot]" in str(caught.value.hint)


@pytest.mark.parametrize("kind", ["windowed", "hybrid", "moe"])
def test_models_whose_state_cannot_be_cut_are_measured_too(kind):
    path = tiny(kind, mute=NOT_PRINTABLE)
    plan = LoadPlan(
        model_path=str(path),
        model_name=kind,
        context=2048,
        threads=1,
        n_outputs_max=20,
        n_rs_seq=8 * (kind == "hybrid"),
        ngrams=True,
    )
    found = measure(BenchTask(plan, rounds=1, tokens=16), lambda _text: None)
    assert found.drafters == ("n-grams",)
    assert {way.name for way in found.ways} == {CEILING, PLAIN, "n-grams"}


def test_drafting_layers_of_the_model_are_measured_alone_and_with_n_grams():
    path = with_head("qwen35")
    fields = {"context": 2048, "threads": 1, "n_outputs_max": 20, "n_rs_seq": 3}
    plan = LoadPlan(model_path=str(path), model_name="a", mtp=True, ngrams=True, **fields)
    found = measure(BenchTask(plan, rounds=1, tokens=16), lambda _text: None)
    own = "its own layers (MTP)"
    assert found.drafters == (own, "n-grams")
    assert {way.name for way in found.ways} == {CEILING, PLAIN, own, "n-grams", "both"}
    assert found.draft_ms is not None


def test_a_model_that_does_not_load_is_an_error_for_people(tmp_path):
    broken = truncated(tiny("dense"), tmp_path / "broken.gguf", keep=-3000)
    plan = LoadPlan(model_path=str(broken), model_name="broken", context=1024)
    with pytest.raises(LoadFailed):
        measure(BenchTask(plan), lambda _text: None)


def test_a_process_that_dies_is_told_with_its_last_words():
    plan = LoadPlan(model_path=str(tiny("dense")), model_name="dense", context=1024)

    def kill(text):
        for child in benches(os.getpid()):
            child.kill()

    with pytest.raises(EngineCrashed):
        measure(BenchTask(plan), kill)


def test_the_command_prints_one_object():
    run = edgechat("bench", tiny("dense", mute=NOT_PRINTABLE), "--json", "--rounds", "1", "--tokens", "8")
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    plain = [way for way in found["ways"] if way["name"] == "plain"]
    assert len(plain) == 2
    assert all(way["of_plain"] is None and way["tps"] > 0 for way in plain)
    assert found["memory"]["planned_bytes"] > 0
    assert found["cost"]["ms"]["1"] > 0


def test_the_command_prints_a_sheet(tmp_path):
    picture = tmp_path / "b.png"
    run = edgechat("bench", "guide", "--rounds", "1", "--tokens", "8", "--plot", picture)
    assert run.returncode == 0, run.stderr
    assert "First token" in run.stdout
    assert "bare loop" in run.stdout
    assert all(len(line) < 100 for line in run.stdout.splitlines())
    assert picture.exists()


def test_a_model_that_is_not_there_is_named():
    assert "nosuch" in complaint(edgechat("bench", "nosuch"))


def test_ctrl_c_leaves_no_process_behind():
    command = [*EDGECHAT, "bench", "guide", "--rounds", "100"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    children = []
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and not children:
        children = benches(process.pid)
        time.sleep(0.05)
    assert children
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 130
    _, alive = psutil.wait_procs(children, timeout=5)
    assert not alive
