"""`edgechat device`: as a program on this machine, and what it would say of others."""

import json
from dataclasses import replace

import msgspec
import pytest

from edgechat.cli.commands import device
from edgechat.cli.terminal_io import sheet
from edgechat.device.accelerators import Accelerator
from edgechat.device.cpu import Core, Cpu
from edgechat.device.memory import Memory
from edgechat.device.profile import DeviceProfile
from edgechat.device.survey import Failure, Survey
from edgechat.native.accelerators.devices import Build
from edgechat.planner.estimate.rates import guessed
from tests.cli.running import edgechat
from tests.planner.macs import mac

pytestmark = pytest.mark.slow

GIB = 2**30


@pytest.mark.usefixtures("measured")
def test_this_machine_for_people():
    run = edgechat("device")
    assert (run.returncode, run.stderr) == (0, "")
    labels = [line.split()[0] for line in run.stdout.splitlines() if not line.startswith(" ")]
    assert labels == ["Processor", "Memory", "Graphics", "Speed", "Threads", "Disk", "llama.cpp", "MLX"]
    assert all(len(line) < 80 for line in run.stdout.splitlines() if "pytest" not in line)
    assert "\x1b" not in run.stdout


@pytest.mark.alone
@pytest.mark.usefixtures("measured")
def test_this_machine_for_programs():
    run = edgechat("device", "--json")
    assert (run.returncode, run.stderr) == (0, "")
    found = json.loads(run.stdout)
    fields = {
        "cpu",
        "memory",
        "accelerators",
        "free",
        "speed",
        "card_speeds",
        "disk",
        "llama_cpp",
        "mlx",
        "backend",
        "failures",
    }
    assert set(found) == fields
    assert all(f"\n    {field} " in (device.__doc__ or "") for field in fields)
    assert found["cpu"]["threads"] >= 1
    assert 0 < found["memory"]["available"] <= found["memory"]["total"]
    assert found["speed"]["bandwidth"] > 1e8
    assert "CPU" in found["llama_cpp"]["backends"]
    assert found["disk"]["free"] > 0
    again = json.loads(edgechat("device", "--json").stdout)
    if not found["speed"]["disturbed"]:
        assert again["speed"] == found["speed"]
    anew = json.loads(edgechat("device", "--json", "--refresh").stdout)
    assert anew["speed"]["measured"] > again["speed"]["measured"]


CPU = Cpu("A laptop's", tuple(Core((n,), fast=n < 4) for n in range(8)), frozenset(range(8)), 2.5)
BUILD = Build("0.3.36", "0.25.3 (0c1e570)", ("CUDA", "CPU"), ("AVX", "AVX2"), True, False, True, True, "")


def card(name, devices, total, *, shares=False):
    return Accelerator(name, "nvidia", devices, total, total // 2, shares, 0, None, ("ggml",))


def test_another_machine(monkeypatch, capsys):
    profile = DeviceProfile(
        CPU,
        Memory(16 * GIB, 3 * GIB, "the control group /sys/fs/cgroup", 4 * GIB),
        msgspec.structs.replace(guessed(5.1e10, 4e11, 4), measured=1.0),
        (
            card("NVIDIA GeForce RTX 4060", ("CUDA0",), 8 * GIB),
            card("Intel(R) UHD Graphics", (), 0, shares=True),
        ),
    )
    found = Survey(profile, ("AVX", "AVX2"), BUILD, (Failure("nvml", "ended with SIGSEGV"),))
    monkeypatch.setattr(device, "survey", lambda _measure: found)
    device.device.callback(json=False, refresh=False)
    said = capsys.readouterr().out
    for line in (
        "           8 cores (4 fast, 4 efficient), one thread each; a control group",
        "           limits CPU time to 2.5 CPUs",
        "Memory     16.0 GiB, 3.0 GiB free now",
        "           limited to 4.0 GiB by the control group /sys/fs/cgroup",
        "Graphics   NVIDIA GeForce RTX 4060: 8.0 GiB, 4.0 GiB free (CUDA0)",
        "Intel(R) UHD Graphics: memory unknown, shared with the CPU",
        "Speed      51 GB/s from memory; in Q4_K 220 GFLOP/s for one token, 720 for many",
        "Failed     nvml ended with SIGSEGV",
    ):
        assert line in said
    assert all(len(line) < 80 for line in said.splitlines() if "pytest" not in line)
    device.device.callback(json=True, refresh=False)
    (failure,) = json.loads(capsys.readouterr().out)["failures"]
    assert failure == {"source": "nvml", "why": "ended with SIGSEGV"}


@pytest.mark.parametrize(
    ("profile", "line", "on", "backend"),
    [
        (mac(16), "on the GPU", "Apple M9", "either"),
        (replace(mac(16), accelerators=()), "on the CPU", "CPU", "llama.cpp"),
        (mac(16, mlx=False), "Without MLX, all models run on llama.cpp.", None, "llama.cpp"),
    ],
)
def test_which_backend_computes(profile, line, on, backend, monkeypatch, capsys):
    monkeypatch.setattr(device, "survey", lambda _measure: Survey(profile, (), BUILD))
    device.device.callback(json=False, refresh=False)
    said = " ".join(capsys.readouterr().out.split())
    assert line in said
    assert ("(MTL0, MLX)" in said) == (on == "Apple M9")
    device.device.callback(json=True, refresh=False)
    found = json.loads(capsys.readouterr().out)
    assert (found["mlx"]["device"], found["backend"]) == (on, backend)
    assert (found["mlx"]["version"] is None) == (on is None)


def test_a_machine_that_tells_nothing(monkeypatch, capsys, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EDGECHAT_HOME", str(tmp_path / "file"))
    found = Survey(DeviceProfile(Cpu("", (Core((0,)),), frozenset({0})), Memory(GIB, GIB)), (), None)
    monkeypatch.setattr(device, "survey", lambda _measure: found)
    device.device.callback(json=False, refresh=False)
    assert "not available" in capsys.readouterr().out
    device.device.callback(json=True, refresh=False)
    assert json.loads(capsys.readouterr().out)["disk"] is None


def test_a_sheet_wraps_words_and_leaves_commands_whole():
    text = "word " * 30 + "\n  command" + " --option" * 20 + "\nof a stranger: \x1b[31mred"
    lines = sheet([("Label", text)]).split("\n")
    assert lines[0].startswith("Label      word word")
    assert all(line.startswith(" " * 11) for line in lines[1:])
    assert " " * 11 + "command" + " --option" * 20 in lines
    assert lines[-1] == " " * 11 + "of a stranger: [31mred"
    path = "/a-folder" * 20
    assert path in sheet([("Label", f"It is {path} indeed.")])
    assert sheet([("Label", "x")], bold=True) == "\x1b[1mLabel\x1b[0m      x"
