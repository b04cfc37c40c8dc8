"""What the frozen program says of the machine and of models, and how it keeps them."""

import json
from pathlib import Path

import pytest

from edgechat.device.cpu import ESSENTIAL
from tests.frozen.program import X86, names
from tests.kit import NOT_PRINTABLE, tiny


@pytest.fixture(scope="module")
def model():
    return tiny("dense", mute=NOT_PRINTABLE)


def test_the_machine(program):
    found = program.found("device")
    assert found["failures"] == []
    assert found["speed"]["bandwidth"] > 1e8
    build = found["llama_cpp"]
    assert "CPU" in build["backends"]
    assert "CPU : " in build["system_info"]
    has = set(found["cpu"]["instruction_sets"])
    if not X86:
        has &= ESSENTIAL
    elif "AVX512" in has:
        has.discard("AVX_VNNI")  # there is a variant for it without AVX512 only
    assert has <= set(build["features"]), "the best variant for this processor was not taken"


def test_nothing_is_wrong(program):
    found = program("doctor", "--json")
    findings = json.loads(found.stdout)["findings"]
    grave = [one["what"] for one in findings if one["weight"] in ("broken", "slow")]
    # A card that another flavour would use is no fault of this one.
    assert [what for what in grave if "GPU" not in what and "NVIDIA" not in what] == []
    for no_help in ("pip ", "python", "CMAKE_ARGS", "--force-reinstall"):
        assert no_help not in found.stdout


def test_the_catalogue_is_planned(program):
    rows = program.said("plan", "--offline").splitlines()
    assert len(rows) > 10
    assert any(row.startswith("  smollm2-135m ") for row in rows)


def test_one_model_is_planned(program):
    plan = program.found("plan", "mistral-7b", "--offline", "--ram", "16GiB")
    assert plan["model"].startswith("mistral-7b")
    assert plan["exact"], "llama.cpp's allocator was not asked"


def test_the_guide_is_inside_and_sound(program):
    assert "guide" in names(program.found("list"))
    shown = program.found("show", "guide")
    assert Path(shown["files"][0]).is_relative_to(program.folder)
    assert program.said("verify", "guide").startswith("ok ")


def test_a_model_of_ones_own_is_taken_in(newcomer, model):
    own = newcomer.home / "Mein Modell ü.gguf"
    newcomer.home.mkdir()
    own.write_bytes(model.read_bytes())
    assert "edgechat run mine" in newcomer.said("import", own, "--name", "mine")
    assert {"guide", "mine"} <= set(names(newcomer.found("list")))
    assert newcomer.said("run", "mine", "Hi", "--max-tokens", "4", "--no-store").strip()
    newcomer.said("rm", "mine", "--yes")
    assert "mine" not in names(newcomer.found("list"))
    assert own.exists()


def test_it_measures_a_model(program):
    found = program.found("bench", "guide", "--rounds", "1", "--tokens", "8")
    assert found["depths"][0]["decode_tps"] > 1


def test_a_plot_that_cannot_be_drawn_is_told_of_at_once(program, tmp_path):
    said = program.complaint("bench", "guide", "--plot", tmp_path / "plot.png", seconds=60)
    assert "matplotlib" in said
    assert not (tmp_path / "plot.png").exists()


def test_the_inner_flag_is_no_trap(program):
    for words in (("--child",), ("--child", "nosuch")):
        run = program(*words)
        assert run.returncode != 0
        assert "Traceback" not in run.stderr
