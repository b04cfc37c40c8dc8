"""A real sshd, with workers of unequal memory that know their speed already."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from edgechat.device.cpu import read_cpu
from edgechat.device.remote import workers
from edgechat.device.speed import DeviceSpeed, store_speed
from edgechat.planner.estimate.rates import guessed
from edgechat.planner.placement.lending import KEY
from tests.remote.sshd import Sshd
from tests.rpc_server import skip_without_rpc


@pytest.fixture
def sshd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sshd]:
    skip_without_rpc()
    folder = tmp_path / "ssh"
    folder.mkdir()
    with Sshd(folder) as server:
        monkeypatch.setenv("PATH", f"{server.programs}{os.pathsep}{os.environ['PATH']}")
        yield server
        workers.close()


def measured(bandwidth: float, compute: float) -> DeviceSpeed:
    return msgspec.structs.replace(guessed(bandwidth, compute), measured=time.time())


@pytest.fixture(autouse=True)
def known_speed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Say that workers are fast and this machine is slow: measuring takes seconds, and noise would decide."""
    cpu = read_cpu()
    store_speed(measured(2e9, 2e11), cpu)
    store_speed(measured(1e12, 1e14), cpu, KEY + cpu.name)
    make = Sshd.worker

    def worker(self: Sshd, name: str, **options: object) -> str:
        address = make(self, name, **options)  # type: ignore[arg-type]
        home = os.environ.get("EDGECHAT_HOME", "")
        monkeypatch.setenv("EDGECHAT_HOME", str(self.home(name)))
        store_speed(measured(1e12, 1e14), cpu, KEY + cpu.name)
        monkeypatch.setenv("EDGECHAT_HOME", home)
        return address

    monkeypatch.setattr(Sshd, "worker", worker)
