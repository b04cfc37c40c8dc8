"""What all tests share: a home of their own, so that no chat or log is the user's, and devices."""

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

os.environ[amx.VARIABLE] = "0"  # so that every machine computes the same, and weights take what files do

# How long an example takes is the machine's affair; pytest's own timeout ends what hangs.
# The same examples each time: what guards a merge must not fail by chance. The soak looks for new ones.
settings.register_profile("edgechat", deadline=None, derandomize=True)
settings.register_profile("soak", deadline=None, max_examples=2_000)
settings.load_profile("edgechat")  # which --hypothesis-profile replaces


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Count what drives a terminal as slow, for it waits for a screen; leave most of a grid to the soak."""
    for item in items:
        if needs_tmux.mark in item.iter_markers("skipif"):
            item.add_marker("slow")
    grids.leave_to_soak(items)
    _mark_further_cases(items)
    _longest_first(items)


def _mark_further_cases(items):
    """Mark all cases of a test but the first that neither is in the soak nor slow."""
    begun = set()
    for item in items:
        test = item.nodeid.partition("[")[0]
        if test in begun:
            item.add_marker("further")
        elif not (item.get_closest_marker("soak") or item.get_closest_marker("slow")):
            begun.add(test)


def _longest_first(items):
    """Sort by what a file takes, roughly: one process with a long file must not be the last to begin it."""
    seconds = Counter()
    for item in items:
        if not item.get_closest_marker("soak"):
            is_terminal = needs_tmux.mark in item.iter_markers("skipif")
            seconds[item.path] += 3 if is_terminal else 0.5 if item.get_closest_marker("slow") else 0.05
    items.sort(key=lambda item: -seconds[item.path])


@pytest.hookimpl(trylast=True)
def pytest_collection_finish():
    """Spare the garbage collector ten thousand tests: to look through them took it a tenth of the time."""
    gc.freeze()


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """Keep settings, chats and logs inside the test's folder; child processes inherit it."""
    monkeypatch.setenv("EDGECHAT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def scripted_workers(monkeypatch):
    """Let workers that this process starts know the models of tests/scripted."""
    monkeypatch.setattr(spawn, "PROGRAM", PROGRAM)


@pytest.fixture
def measured(home):
    """Let the machine be measured already, which takes a program in a new home six seconds of every core."""
    cpu = read_cpu()
    speed = guessed(2e10, 2e11, choose_threads(cpu)[0])
    left_out = dict.fromkeys(_shapes_of_attention(), "plans are to be the same on every machine")
    store_speed(msgspec.structs.replace(speed, measured=1.0, unmeasured=left_out), cpu)


@cache
def _shapes_of_attention():
    """Return the names of those that the catalogue's models have."""
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
    """Start a hub, and let edgechat ask it."""
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
    """Wait for one second of silence from the hub, not eight: for tests of hubs that fall silent."""
    monkeypatch.setattr("edgechat.models.hub.client.IDLE", 1.0)
    monkeypatch.setattr("edgechat.models.hub.client.SPARE", 0.3)


@pytest.fixture
def hf_cache(tmp_path, monkeypatch):
    """Keep huggingface_hub's cache inside the test's folder; nothing is made yet."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hf-hub"))
    monkeypatch.delenv("HF_HUB_DISABLE_SYMLINKS", raising=False)
    return tmp_path / "hf-hub"


@pytest.fixture
def no_waits(monkeypatch):
    """Let a download try again at once."""
    monkeypatch.setattr("edgechat.models.hub.download.WAITS", (0.01,) * 7)


@pytest.fixture
def small_disk(tmp_path, monkeypatch):
    """Put huggingface_hub's cache onto a disk of 2 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    monkeypatch.setenv("HF_HUB_CACHE", str(disk / "cache"))
    with disks.small_disk(disk, "size=2m"):
        yield disk


@pytest.fixture(scope="session")
def servers():
    """Two devices, RPC0 and RPC1, of unequal memory.

    For all tests that load models in their own process: it knows one list of servers in its life.
    """
    with RpcServer(memory=48 << 20) as large, RpcServer(memory=16 << 20) as small:
        yield large, small
