"""Children from the zygote are as real as those from nothing, and its crash ends the run."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from edgechat.base.process import spawn
from tests import zygote
from tests.cli.running import edgechat

pytestmark = pytest.mark.skipif(not zygote.AVAILABLE, reason="it needs a clone that only Linux has")

ROOT = Path(__file__).parents[1]
CRASHED = """
import os, signal, subprocess, sys
from tests import zygote

COMMAND = [sys.executable, "-m", "edgechat", "--version"]

def test_before():
    assert subprocess.run(COMMAND).returncode == 0

def test_its_crash():
    os.kill(zygote.ours._process.pid, signal.SIGKILL)
    subprocess.run(COMMAND)

def test_after():
    print("ran all the same")
"""


@pytest.mark.parametrize("n_forked", [1, pytest.param(0, marks=pytest.mark.fresh)])
def test_a_child_is_what_was_asked_for(tmp_path, n_forked):
    before, umask = zygote.ours.started, os.umask(0o027)
    try:
        child = subprocess.Popen(spawn.command("engine"), **spawn.options(subprocess.DEVNULL), cwd=tmp_path)
    finally:
        os.umask(umask)
    with child:
        assert zygote.ours.started - before == n_forked
        shown = psutil.Process(child.pid)
        assert (shown.ppid(), shown.cwd()) == (os.getpid(), str(tmp_path))
        while not shown.cmdline():  # in the midst of its exec
            pass
        assert shown.cmdline() == spawn.command("engine")
        assert os.getsid(child.pid) == child.pid
        assert "Umask:\t0027" in Path(f"/proc/{child.pid}/status").read_text()
        child.send_signal(signal.SIGSTOP)
        assert os.WIFSTOPPED(os.waitpid(child.pid, os.WUNTRACED)[1])
        child.kill()
        assert child.wait() == -signal.SIGKILL


@pytest.mark.parametrize("n_forked", [1, pytest.param(0, marks=pytest.mark.fresh)])
def test_a_command_has_its_streams_variables_and_exit_code(tmp_path, n_forked):
    before = zygote.ours.started
    found = edgechat("chats", "--json", EDGECHAT_HOME=str(tmp_path / "elsewhere"))
    assert (found.returncode, found.stdout.strip(), found.stderr) == (0, "[]", "")
    wrong = edgechat("chat")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "No such command 'chat'" in wrong.stderr
    assert zygote.ours.started - before == 2 * n_forked


@pytest.mark.parametrize(
    ("command", "options"),
    [
        (["-c", "print('edgechat')"], {}),
        (["-P", "-m", "edgechat", spawn.ROLE_FLAG, "page"], {"stdin": subprocess.DEVNULL}),
        (["-m", "edgechat", "--version"], {"env": {**os.environ, "PYTHONHASHSEED": "7"}}),
        (["-m", "edgechat", "--version"], {"preexec_fn": lambda: None}),
        (["-X", "importtime", "-m", "edgechat", "--version"], {}),
    ],
    ids=["another program", "a light child", "a variable of Python's", "an option", "an option of Python's"],
)
def test_what_could_tell_the_difference_starts_from_nothing(command, options):
    before = zygote.ours.started
    done = subprocess.run([sys.executable, *command], capture_output=True, check=False, **options)
    assert done.returncode == 0, done.stderr
    assert zygote.ours.started == before


@pytest.mark.slow
@pytest.mark.parametrize("processes", [[], ["-n", "1"]])
def test_its_crash_ends_the_run(tmp_path, processes):
    path = tmp_path / "test_crashed.py"
    path.write_text(CRASHED)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.zygote", "--rootdir", tmp_path, "-v", *processes, path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode != 0
    assert "1 failed, 1 passed" in run.stdout
    assert "The zygote of the tests (tests/zygote.py) ended with -9" in run.stdout
