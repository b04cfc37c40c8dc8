"""Fixtures and settings for all tests: a separate home, so that users' chats are safe, and devices."""

import gc
import os
from collections import Counter
from functools import cache

import msgspec
import pytest
from hypothesis import settings

from edgechat.base.process import spawn
from edgechat.device.cpu import choose_threads, read_cpu
from edgechat.device.speed import store_speed
from edgechat.models.catalogue import catalogue
from edgechat.models.shipped import shipped_header, shipped_quants
from edgechat.native import amx
from edgechat.planner.estimate.rates import guessed
from edgechat.planner.estimate.shape import shape_of
from tests import disks, grids
from tests.hub import Hub
from tests.rpc_server import RpcServer
from tests.scripted import PROGRAM
from tests.terminal import needs_tmux

pytest_plugins = ["tests.zygote"]

os.environ[amx.VARIABLE] = "0"  # results, and the memory of weights, must not depend on AMX

# How long an example takes depends on the machine; pytest's own timeout ends what hangs.
# Examples are the same each time, since a merge check must not fail by chance. The soak tries new ones.
settings.register_profile("edgechat", deadline=None, derandomize=True)
settings.register_profile("soak", deadline=None, max_examples=2_000)
settings.load_profile("edgechat")  # --hypothesis-profile overrides this


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark tests that wait for a terminal's screen as slow; leave most of each grid to the soak."""
    for item in items:
        if needs_tmux.mark in item.iter_markers("skipif"):
            item.add_marker("slow")
    grids.leave_to_soak(items)
    _mark_further_cases(items)
    _longest_first(items)


def _mark_further_cases(items):
    """Mark all cases of a test as `further`, except the first that is neither slow nor in the soak."""
    begun = set()
    for item in items:
        test = item.nodeid.partition("[")[0]
        if test in begun:
            item.add_marker("further")
        elif not (item.get_closest_marker("soak") or item.get_closest_marker("slow")):
            begun.add(test)


def _longest_first(items):
    """Sort files by rough duration, so that no process starts a long file last."""
    seconds = Counter()
    for item in items:
        if not item.get_closest_marker("soak"):
            is_terminal = needs_tmux.mark in item.iter_markers("skipif")
            seconds[item.path] += 3 if is_terminal else 0.5 if item.get_closest_marker("slow") else 0.05
    items.sort(key=lambda item: -seconds[item.path])


@pytest.hookimpl(trylast=True)
def pytest_collection_finish():
    """Collect garbage rarely, as edgechat does: among the collected tests, it took a fifth of the time."""
    gc.freeze()
    gc.set_threshold(50_000)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """Keep settings, chats and logs inside the test's folder, for child processes too."""
    monkeypatch.setenv("EDGECHAT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def scripted_workers(monkeypatch):
    """Let workers started by this process load the scripted models from tests/scripted."""
    monkeypatch.setattr(spawn, "PROGRAM", PROGRAM)


@pytest.fixture
def measured(home):
    """Store a measurement of the machine; in a new home, measuring takes six seconds on all cores."""
    cpu = read_cpu()
    speed = guessed(2e10, 2e11, choose_threads(cpu)[0])
    left_out = dict.fromkeys(_shapes_of_attention(), "plans are to be the same on every machine")
    store_speed(msgspec.structs.replace(speed, measured=1.0, unmeasured=left_out), cpu)


@cache
def _shapes_of_attention():
    """Return the names of the attention shapes in the catalogue's models."""
    headers = [shipped_header(entry, quant) for entry in catalogue() for quant in shipped_quants(entry)[:1]]
    return tuple({str(shape_of(header).heads) for header in headers})


HUB_VARIABLES = (
    "EDGECHAT_OFFLINE",
    "HF_HUB_OFFLINE",
    "TRANSFORMERS_OFFLINE",
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
)


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """Start a hub, and direct edgechat to it."""
    for name in HUB_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "no-token"))
    with Hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


@pytest.fixture
def impatient(monkeypatch):
    """Wait for a silent hub for one second instead of eight."""
    monkeypatch.setattr("edgechat.models.hub.client.IDLE", 1.0)
    monkeypatch.setattr("edgechat.models.hub.client.SPARE", 0.3)


@pytest.fixture
def hf_cache(tmp_path, monkeypatch):
    """Put huggingface_hub's cache inside the test's folder, without creating it."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hf-hub"))
    monkeypatch.delenv("HF_HUB_DISABLE_SYMLINKS", raising=False)
    return tmp_path / "hf-hub"


@pytest.fixture
def no_waits(monkeypatch):
    """Let downloads retry immediately."""
    monkeypatch.setattr("edgechat.models.hub.download.WAITS", (0.01,) * 7)


@pytest.fixture
def small_disk(tmp_path, monkeypatch):
    """Put huggingface_hub's cache on a disk of 2 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    monkeypatch.setenv("HF_HUB_CACHE", str(disk / "cache"))
    with disks.small_disk(disk, "size=2m"):
        yield disk


@pytest.fixture(scope="session")
def servers():
    """Start two devices, RPC0 and RPC1, with different amounts of memory.

    They serve all tests that load models in their own process, which can only ever know one list of servers.
    """
    with RpcServer(memory=48 << 20) as large, RpcServer(memory=16 << 20) as small:
        yield large, small
