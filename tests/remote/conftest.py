"""A real sshd, and workers with different amounts of memory that have already measured their speed."""

import os
import time

import msgspec
import pytest

from edgechat.device.cpu import read_cpu
from edgechat.device.remote import workers
from edgechat.device.speed import store_speed
from edgechat.planner.estimate.rates import guessed
from edgechat.planner.lending import KEY
from tests.remote.sshd import Sshd
from tests.rpc_server import skip_without_rpc


@pytest.fixture
def sshd(tmp_path, monkeypatch):
    skip_without_rpc()
    folder = tmp_path / "ssh"
    folder.mkdir()
    with Sshd(folder) as server:
        monkeypatch.setenv("PATH", f"{server.programs}{os.pathsep}{os.environ['PATH']}")
        yield server
        workers.close()


def measured(bandwidth, compute):
    return msgspec.structs.replace(guessed(bandwidth, compute), measured=time.time())


@pytest.fixture(autouse=True)
def known_speed(home, monkeypatch):
    """Make workers fast and this machine slow: measuring takes seconds, and noise could change the plan."""
    cpu = read_cpu()
    store_speed(measured(2e9, 2e11), cpu)
    store_speed(measured(1e12, 1e14), cpu, KEY + cpu.name)
    make = Sshd.worker

    def worker(self, name, **options):
        address = make(self, name, **options)
        home = os.environ.get("EDGECHAT_HOME", "")
        monkeypatch.setenv("EDGECHAT_HOME", str(self.home(name)))
        store_speed(measured(1e12, 1e14), cpu, KEY + cpu.name)
        monkeypatch.setenv("EDGECHAT_HOME", home)
        return address

    monkeypatch.setattr(Sshd, "worker", worker)
