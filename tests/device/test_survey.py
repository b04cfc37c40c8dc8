import os
import socket
import sys
from functools import partial
from pathlib import Path

import pytest

from edgechat import settings
from edgechat.base.process import spawn
from edgechat.device import survey as module
from edgechat.device.profile import disk_free, probe
from edgechat.device.survey import survey
from edgechat.models.formats.quants import GgmlType
from edgechat.native.accelerators import devices
from edgechat.planner.machine import with_speeds


@pytest.mark.slow
@pytest.mark.usefixtures("measured")  # tests/cli/test_device.py has it measured anew
def test_this_machine():
    found = survey(partial(with_speeds, types=(GgmlType.Q4_K,)))
    assert found.failures == ()
    assert found.build is not None
    assert found.instruction_sets
    assert found.profile.speed is not None
    assert found.profile.free >= found.profile.memory.available
    assert probe().speed == found.profile.speed


def test_children_that_crash_are_findings(monkeypatch):
    monkeypatch.setattr(spawn, "command", lambda _role: [sys.executable, "-c", "import os; os._exit(7)"])
    found = survey(with_speeds)
    assert found.build is None
    assert {failure.source for failure in found.failures} == {"llama.cpp", "nvml", "speed"}
    assert all(failure.why == "ended with exit code 7" for failure in found.failures)
    assert found.instruction_sets or not os.path.exists("/proc/cpuinfo")


@pytest.mark.slow
def test_a_child_that_hangs_is_a_finding(monkeypatch):
    sleeping = [sys.executable, "-c", "import time; time.sleep(600)"]
    monkeypatch.setattr(spawn, "command", lambda _role: sleeping)
    monkeypatch.setattr(module, "read_inventory", lambda rpc=(): devices.read_inventory(0.3, rpc))
    monkeypatch.setitem(module.__dict__, "read_source", lambda _source: ())
    found = survey()
    assert [(one.source, one.why) for one in found.failures] == [
        ("llama.cpp", "did not respond within 0.3 seconds")
    ]


@pytest.mark.slow
def test_a_server_that_does_not_answer_is_a_finding():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    settings.change("rpc", (f"127.0.0.1:{port}",))
    found = survey()
    assert found.build is not None
    (failure,) = found.failures
    assert (failure.source, f"No llama.cpp server answers at 127.0.0.1:{port}" in failure.why) == (
        "rpc",
        True,
    )


def test_the_free_space_of_a_folder_that_is_not_there_yet(tmp_path):
    assert disk_free(tmp_path / "a" / "b") == pytest.approx(disk_free(tmp_path), rel=0.1)
    assert disk_free(Path("nowhere/at/all")) == pytest.approx(disk_free(Path()), rel=0.1)
