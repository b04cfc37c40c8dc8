"""Memory that runs out for real, under a control group of this test's own: the next step down is loaded."""

import contextlib
import json
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from edgechat.device.memory import oom_kills
from tests.kit import DENSE, NOT_PRINTABLE, Spec, build

pytestmark = pytest.mark.slow

MIB = 2**20
GROUPS = Path("/sys/fs/cgroup/memory")
"""Version 1, which is writable where this runs as root in a virtual machine."""


@pytest.fixture
def group():
    folder = GROUPS / f"edgechat-test-{uuid.uuid4().hex[:8]}"
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("no memory control group can be made here")
    try:
        if not (folder / "memory.limit_in_bytes").exists() or oom_kills() is None:
            pytest.skip("no memory control group of version 1 here")
        yield folder
    finally:
        for _ in range(50):
            with contextlib.suppress(OSError):
                folder.rmdir()
                break
            time.sleep(0.1)


@pytest.fixture(scope="module")
def model():
    """A token of its context takes 8 KiB of cache, all of its weights 10 MiB."""
    shape = DENSE.sized(
        n_layers=8, n_embd=256, n_ff=512, n_heads=8, n_kv_heads=8, head_dim=32, context_length=1 << 17
    )
    return build(Spec(shape=shape, weights="F16", name="pressure", mute=NOT_PRINTABLE))


def run(group, limit, model, scenario):
    """Return what the program says that has only `limit` bytes of memory."""
    (group / "memory.limit_in_bytes").write_text(str(limit))
    inside = f'echo $$ > {group / "cgroup.procs"} && exec "$@"'
    done = subprocess.run(
        ["sh", "-c", inside, "sh", sys.executable, "-m", "tests.planner.pressure", str(model), scenario],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        cwd=Path(__file__).parents[3],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_memory_that_another_program_took_since_the_plan(group, model):
    before = oom_kills()
    found = run(group, 640 * MIB, model, "taken")
    assert found["budget"][0] < 640 * MIB
    assert found["told"][0].startswith("Prompts are read")
    assert (found["n_ubatch"], found["exact"]) == (128, True)
    assert found["cache_type"] == "q8_0"
    assert len(found["told"]) < 6
    assert found["finished"] == "length"
    assert len(found["said"]) > 3
    assert oom_kills() == before


def test_a_worker_that_linux_kills_comes_back_smaller(group, model):
    before = oom_kills()
    found = run(group, 500 * MIB, model, "killed")
    assert oom_kills() != before
    assert found["told"]
    assert found["context"] < 65536 or found["cache_type"] == "q8_0"
    assert found["exact"]
    assert found["finished"] == "length"


def test_who_insists_is_told_how_it_ended(group, model):
    found = run(group, 500 * MIB, model, "anyway")
    assert found["error"] == "EngineCrashed"
    assert "memory ran out" in found["message"]
    assert found["told"] == []
