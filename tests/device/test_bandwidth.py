from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from edgechat.base import paths
from edgechat.base.process import spawn
from edgechat.base.process.ask import ChildFailed
from edgechat.device.bandwidth import MemorySpeed, cached_speed, measure_speed
from edgechat.device.cpu import Core, Cpu, read_cpu
from edgechat.device.memory import Memory, read_memory

GIB = 2**30
RAM = Memory(4 * GIB, GIB)


def cpu(name: str = "A processor", cores: int = 2) -> Cpu:
    return Cpu(name, tuple(Core((number,)) for number in range(cores)), frozenset(range(cores)))


def answering(monkeypatch: pytest.MonkeyPatch, speed: MemorySpeed) -> None:
    answer = msgspec.msgpack.encode(speed)
    code = f"from edgechat.base.process.ask import answer; answer(lambda _: {answer!r})"
    monkeypatch.setattr(spawn, "command", lambda _role: [sys.executable, "-c", code])


@pytest.mark.slow
def test_this_machine_is_measured_and_remembered() -> None:
    assert cached_speed(read_cpu()) is None
    speed = measure_speed(read_cpu(), read_memory())
    assert speed.bandwidth > 1e8
    assert speed.compute > 1e8
    assert cached_speed(read_cpu()) == speed


def test_another_processor_is_measured_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, MemorySpeed(bandwidth=1e10, compute=1e11, threads=2))
    measure_speed(cpu(), RAM)
    measure_speed(cpu(cores=4), RAM)
    assert cached_speed(cpu()) is not None
    assert cached_speed(cpu(cores=4)) is not None
    assert cached_speed(cpu(cores=8)) is None
    assert cached_speed(cpu("Another one")) is None


@pytest.mark.parametrize("text", ["", "[]", '{"a": 1}', "\0", '{"a": {"bandwidth": "x"}}'])
def test_a_damaged_cache_is_only_measured_anew(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    answering(monkeypatch, MemorySpeed(bandwidth=1e10, compute=1e11, threads=2))
    (paths.cache_dir() / "speed.json").write_text(text)
    assert cached_speed(cpu()) is None
    measure_speed(cpu(), RAM)
    assert cached_speed(cpu()) is not None


def test_figures_that_make_no_sense_are_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, MemorySpeed(bandwidth=0.0, compute=1e11, threads=2))
    measure_speed(cpu(), RAM)
    assert cached_speed(cpu()) is None


def test_a_cache_folder_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answering(monkeypatch, MemorySpeed(bandwidth=1e10, compute=1e11, threads=2))
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EDGECHAT_HOME", str(tmp_path / "file"))
    assert cached_speed(cpu()) is None
    assert measure_speed(cpu(), RAM).bandwidth == 1e10


def test_a_child_that_crashes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spawn, "command", lambda _role: [sys.executable, "-c", "import os; os.abort()"])
    with pytest.raises(ChildFailed):
        measure_speed(cpu(), RAM)
    assert cached_speed(cpu()) is None


def test_a_disturbed_measurement_does_not_spoil_a_better_one(monkeypatch: pytest.MonkeyPatch) -> None:
    good = MemorySpeed(bandwidth=2e10, compute=1e11, threads=2)
    answering(monkeypatch, MemorySpeed(bandwidth=1e10, compute=3e11, threads=2, disturbed=True))
    speed = measure_speed(cpu(), RAM, before=good)
    assert (speed.bandwidth, speed.compute, speed.disturbed) == (2e10, 3e11, True)
    assert measure_speed(cpu(), RAM).bandwidth == 1e10
