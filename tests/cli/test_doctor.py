"""`edgechat doctor`: as a program in a home that is damaged, and its findings about other machines."""

import json
import os
import platform
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from edgechat.base import paths
from edgechat.chat.storage.store import store_path
from edgechat.cli import findings
from edgechat.cli.findings import Weight, machine_findings
from edgechat.device.accelerators import Accelerator
from edgechat.device.cpu import Core, Cpu
from edgechat.device.memory import Memory
from edgechat.device.profile import DeviceProfile
from edgechat.device.survey import Failure, Survey
from edgechat.models.remote.measured import EngineStart, note_start
from edgechat.native.accelerators.devices import Build
from edgechat.planner.estimate.rates import guessed
from tests.cli.running import edgechat

GIB = 2**30
FEATURES = ("AVX", "F16C", "FMA", "AVX2")
BUILD = Build("0.3.36", "0.25.3", ("RPC", "CPU"), FEATURES, True, True, True, True, "")
CPU = Cpu("A processor", tuple(Core((n,)) for n in range(8)), frozenset(range(8)))
PROFILE = DeviceProfile(CPU, Memory(16 * GIB, 9 * GIB))
HEALTHY = Survey(PROFILE, FEATURES, BUILD)


def found_in(survey, **disks):
    return list(machine_findings(survey, {Path(name): free for name, free in disks.items()}))


def with_card(vendor, *, shares=False, build=BUILD, **fields):
    card = Accelerator(f"The {vendor} card", vendor, (), 8 * GIB, 7 * GIB, shares, 0, None, ("kernel",))
    card = replace(card, **fields)
    return replace(HEALTHY, profile=replace(PROFILE, accelerators=(card,)), build=build)


def test_attention_that_was_not_measured_is_told():
    failed = msgspec.structs.replace(
        guessed(5e10, 4e11), unmeasured={"14/2 heads of 64": "did not respond within 30 seconds"}
    )
    (note,) = found_in(replace(HEALTHY, profile=replace(PROFILE, speed=failed)))
    assert note.weight is Weight.NOTE
    assert "14/2 heads of 64" in note.what
    assert "30 seconds" in note.what
    assert "flash attention" in note.why
    assert "edgechat device --refresh" in note.fix


def test_mlx_is_missed_on_a_mac_only():
    """With a llama.cpp that knows Metal nothing is wrong; MLX would be one more way."""
    metal = with_card("apple", shares=True, devices=("MTL0",))
    (note,) = found_in(metal)
    assert (note.weight, note.what.startswith("MLX is not used on this Mac.")) == (Weight.NOTE, True)
    assert "mlx-lm" in note.fix
    assert found_in(replace(metal, profile=replace(metal.profile, mlx=True))) == []
    assert found_in(HEALTHY) == []


# As a program


@pytest.mark.slow
def test_what_is_damaged_is_said_with_its_remedy():
    paths.config_dir().joinpath("settings.toml").write_text("contxt = 3\n")
    store_path().write_text("no database" * 100)
    run = edgechat("doctor")
    assert (run.returncode, run.stderr) == (1, "")
    assert "Did you mean context?" in run.stdout
    assert "is damaged" in run.stdout
    assert "\x1b" not in run.stdout
    run = edgechat("doctor", "--json")
    assert run.returncode == 1
    said = json.loads(run.stdout)
    assert said["wrong"] >= 2
    assert [one["weight"] for one in said["findings"]][:2] == ["broken", "broken"]
    weights = [Weight[one["weight"].upper()] for one in said["findings"]]
    assert weights == sorted(weights, reverse=True)
    assert store_path().read_text() == "no database" * 100


@pytest.mark.slow
def test_a_fresh_home_has_nothing_broken():
    said = json.loads(edgechat("doctor", "--json").stdout)
    assert not [one for one in said["findings"] if one["weight"] == "broken"]
    assert not store_path().exists()


@pytest.mark.slow
def test_a_home_that_cannot_be_made_is_said_once(tmp_path):
    (tmp_path / "file").write_text("")
    run = edgechat("doctor", EDGECHAT_HOME=str(tmp_path / "file"))
    assert run.returncode == 1
    assert run.stdout.count("cannot create its folder") == 1


def test_a_model_of_the_settings_that_is_gone():
    paths.config_dir().joinpath("settings.toml").write_text('model = "/nowhere/model.gguf"\n')
    (finding,) = findings.own_findings()
    assert "/nowhere/model.gguf" in finding.what


def test_a_guide_that_is_missing(monkeypatch, tmp_path):
    shipped = paths.shipped
    monkeypatch.setattr(paths, "shipped", lambda name: tmp_path if name == "guide.gguf" else shipped(name))
    (finding,) = findings.own_findings()
    assert finding.weight is Weight.BROKEN
    assert "guide.gguf is missing" in finding.what


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_is_read_only():
    paths.log_dir().chmod(0o500)
    (finding,) = findings.own_findings()
    assert "is not writable" in finding.what


def test_a_folder_that_nothing_can_be_written_to(monkeypatch):
    monkeypatch.setattr(paths, "log_dir", lambda: Path("/proc") if Path("/proc").exists() else Path("/dev"))
    (finding,) = findings.own_findings()
    assert finding.weight is Weight.BROKEN
    assert "is not writable" in finding.what


# Other machines


def test_nothing_is_wrong_with_a_healthy_machine():
    assert found_in(HEALTHY, models=100 * GIB) == []


@pytest.mark.parametrize(
    ("vendor", "backend", "option"),
    [
        ("nvidia", "CUDA", "-DGGML_CUDA=ON -DGGML_RPC=ON"),
        ("amd", "Vulkan", "-DGGML_VULKAN=ON -DGGML_RPC=ON"),
        ("intel", "Vulkan", "-DGGML_VULKAN=ON -DGGML_RPC=ON"),
        ("apple", "Metal", "-DGGML_METAL=ON -DGGML_RPC=ON"),
    ],
)
def test_a_build_without_the_backend_of_a_card(vendor, backend, option):
    (finding,) = found_in(with_card(vendor))
    assert finding.weight is Weight.SLOW
    assert f"has no {backend}, although the machine has a" in finding.what
    assert f"The {vendor} card (8.0 GiB)" in finding.what
    if sys.platform != "win32":
        assert f'CMAKE_ARGS="{option}" \\\n' in finding.fix
    assert "llama-cpp-python==0.3.36" in finding.fix
    assert sys.executable in finding.fix


def test_rocm_where_it_is_installed(monkeypatch):
    monkeypatch.setattr(findings.shutil, "which", lambda tool: f"/usr/bin/{tool}")
    (finding,) = found_in(with_card("amd"))
    assert "-DGGML_HIP=ON" in finding.fix
    assert "Install" not in finding.fix


def test_graphics_inside_a_processor_are_only_a_note():
    (finding,) = found_in(with_card("intel", shares=True))
    assert finding.weight is Weight.NOTE
    finding, _ = found_in(with_card("apple", shares=True))  # and MLX is not here either
    assert finding.weight is Weight.SLOW


def test_a_card_that_the_build_should_see_but_does_not(monkeypatch):
    for name in findings._HIDING:
        monkeypatch.delenv(name, raising=False)
    cuda = replace_struct(BUILD, backends=("CUDA", "CPU"))
    (finding,) = found_in(with_card("nvidia", build=cuda))
    assert "does not detect" in finding.what
    assert "nvidia-smi" in finding.fix
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    (finding,) = found_in(with_card("nvidia", build=cuda))
    assert finding.weight is Weight.NOTE
    assert "CUDA_VISIBLE_DEVICES is set to '-1'" in finding.why


def test_a_card_that_is_used_is_no_finding():
    assert found_in(with_card("nvidia", devices=("CUDA0",))) == []


def replace_struct(build, **fields):
    import msgspec

    return msgspec.structs.replace(build, **fields)


@pytest.mark.parametrize(("features", "weight"), [(("AVX",), Weight.SLOW), (FEATURES, Weight.NOTE)])
def test_a_build_that_leaves_the_processor_unused(features, weight):
    build = replace_struct(BUILD, features=features)
    (finding,) = found_in(replace(HEALTHY, build=build, instruction_sets=(*FEATURES, "AVX512")))
    assert finding.weight is weight
    assert ("AVX2" in finding.what) == (weight is Weight.SLOW)


def test_no_rpc_is_a_note():
    (finding,) = found_in(replace(HEALTHY, build=replace_struct(BUILD, rpc=False, backends=("CPU",))))
    assert finding.weight is Weight.NOTE
    assert "-DGGML_RPC=ON" in finding.fix


@pytest.mark.parametrize(
    ("memory", "whats"),
    [
        (Memory(16 * GIB, GIB), ["Little memory is free"]),
        (Memory(2 * GIB, GIB), []),
        (Memory(64 * GIB, 3 * GIB, "the control group /a", 4 * GIB), ["The control group /a allows 4.0 GiB"]),
        (Memory(64 * GIB, GIB, "the control group /a", 2 * GIB), ["The control group /a allows 2.0 GiB"]),
        (Memory(64 * GIB, 30 * GIB, "the control group /a", 40 * GIB), []),
        (
            Memory(64 * GIB, GIB // 2, "the limit set by ulimit -v", 2 * GIB),
            ["The limit set by ulimit -v allows 2.0 GiB", "Little memory is free"],
        ),
    ],
)
def test_memory(memory, whats):
    found = found_in(replace(HEALTHY, profile=replace(PROFILE, memory=memory)))
    assert all(one.weight is Weight.TIGHT for one in found)
    assert [one.what.startswith(what) for one, what in zip(found, whats, strict=True)] == [True] * len(whats)


@pytest.mark.parametrize(("quota", "weight"), [(2.0, Weight.TIGHT), (6.0, Weight.NOTE), (8.0, None)])
def test_a_quota(quota, weight):
    found = found_in(replace(HEALTHY, profile=replace(PROFILE, cpu=replace(CPU, quota=quota))))
    assert [one.weight for one in found] == ([] if weight is None else [weight])


def test_disks():
    found = found_in(HEALTHY, full=GIB, some=5 * GIB, empty=50 * GIB)
    assert [one.weight for one in found] == [Weight.TIGHT, Weight.NOTE]


@pytest.mark.parametrize(
    ("source", "why", "weight", "said"),
    [
        ("llama.cpp", "ended with SIGILL", Weight.BROKEN, "built for another CPU"),
        ("llama.cpp", "did not respond within 20 seconds", Weight.BROKEN, "no model can be loaded"),
        ("nvml", "says: Driver/library version mismatch", Weight.SLOW, "driver updates"),
        ("torch", "ended with SIGSEGV", Weight.NOTE, "does not need torch"),
        ("speed", "ended with SIGSEGV", Weight.NOTE, "less accurate"),
    ],
)
def test_sources_that_failed(source, why, weight, said):
    (finding,) = found_in(replace(HEALTHY, build=None, failures=(Failure(source, why),)))
    assert finding.weight is weight
    assert why in finding.what
    assert said in finding.why
    assert finding.fix


def test_an_environment_without_pip(monkeypatch):
    monkeypatch.setattr(findings.importlib.util, "find_spec", lambda _name: None)
    assert f"uv pip install --python {sys.executable}" in findings.install_llama("0.3.36", "-DGGML_CUDA=ON")


def test_a_packaged_program_has_other_remedies(monkeypatch):
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    assert "pip" not in findings.install_llama()
    assert findings.rebuild("nvidia", BUILD)[1].endswith("the archive whose name ends in -cuda.")
    assert findings.rebuild("amd", BUILD)[1].endswith("the archive whose name ends in -vulkan.")
    assert findings.rebuild("apple", BUILD)[0] == "Metal"
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert findings.rebuild("nvidia", BUILD)[1].startswith("No archive for this system includes CUDA;")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    # The one for CUDA has its module also where the driver is too old for it.
    (unseen,) = found_in(with_card("nvidia", build=msgspec.structs.replace(BUILD, unloaded=("CUDA",))))
    assert "built with CUDA" in unseen.what
    assert "too old" in unseen.why
    # Its llama.cpp is the best of several for this processor, so only what is grave can be helped.
    assert found_in(replace(HEALTHY, instruction_sets=(*FEATURES, "AVX_VNNI"))) == []
    (slow,) = found_in(replace(HEALTHY, instruction_sets=(*FEATURES, "NEON")))
    assert slow.weight is Weight.SLOW


def test_a_failed_trial_of_amx_is_a_note():
    (finding,) = found_in(replace(HEALTHY, amx="ended with SIGSEGV"))
    assert finding.weight is Weight.NOTE
    assert "its trial ended with SIGSEGV." in finding.what
    assert "GCC 13" in finding.fix


def test_a_program_that_was_not_ready_is_told_with_its_log():
    note_start("vllm:m", EngineStart(54.2))
    assert not list(findings.own_findings())
    note_start(
        "vllm:m", EngineStart(failure="ended before it was ready (exit code 1)", log="/logs/engine-1.log")
    )
    (finding,) = findings.own_findings()
    assert finding.what == "The engine program for vllm:m ended before it was ready (exit code 1)."
    assert "/logs/engine-1.log" in finding.fix
    note_start("vllm:m", EngineStart(20.0))
    assert not list(findings.own_findings())
