"""A child that is asked: answers in order, and an end in bounded time whatever it does."""

import os
import subprocess
import sys
import time
from collections.abc import Callable

import psutil
import pytest

from edgechat.base.process import child
from edgechat.base.process.child import Child, ChildLost, resident_bytes

ECHO = "from edgechat.base.process import child, spawn; child.serve(spawn.adopt_pipe(), {})"
Start = Callable[[str], Child]
QUIET = {"seconds": 5.0, "memory": 2**30}


@pytest.fixture
def start(monkeypatch):
    made = []

    def start(answer):
        command = [sys.executable, "-c", ECHO.format(answer)]
        monkeypatch.setattr("edgechat.base.process.spawn.command", lambda role: command)
        made.append(Child("test"))
        return made[-1]

    yield start
    for one in made:
        one.close()


def lost(one, question=b"x", **limits):
    with pytest.raises(ChildLost) as caught:
        one.ask(question, **QUIET | limits)
    assert not psutil.pid_exists(one.pid)
    return str(caught.value)


def test_many_answers(start):
    one = start("bytes.upper")
    assert [one.ask(bytes([97 + n]), **QUIET) for n in range(5)] == [b"A", b"B", b"C", b"D", b"E"]
    large = b"a" * 2**22
    assert one.ask(large, **QUIET) == large.upper()


def test_its_prints_do_not_reach_the_pipe(start):
    one = start("lambda q: print('hello', flush=True) or q")
    assert one.ask(b"x", **QUIET) == b"x"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "what"),
    [
        ("lambda q: __import__('os').abort()", "died"),
        ("lambda q: 1 / 0", "died"),
        ("lambda q: __import__('time').sleep(600)", "still running"),
        ("lambda q: [globals().update(x=bytearray(2**28)), __import__('time').sleep(600)]", "of memory"),
    ],
)
def test_odd_ends(start, answer, what):
    assert what in lost(start(answer), seconds=2.0, memory=2**27)


@pytest.mark.slow
def test_a_child_that_never_gets_ready(monkeypatch):
    monkeypatch.setattr(child, "START_LIMIT", 0.5)
    silent = [sys.executable, "-c", "input(); input()"]
    monkeypatch.setattr("edgechat.base.process.spawn.command", lambda role: silent)
    assert "still running" in lost(Child("test"))


def test_asked_after_its_end(start):
    one = start("bytes.upper")
    one.ask(b"x", **QUIET)
    one.close()
    assert lost(one)


@pytest.mark.slow
def test_an_orphan_ends_over_its_question(monkeypatch):
    """At once: its parent may be a worker whose place the next one takes."""
    code = "from edgechat.base.process import child, spawn; import time\n"
    code += "child.serve(spawn.adopt_pipe(), lambda q: time.sleep(600), seconds=600)"
    parent = (
        "import sys, threading, time\nfrom edgechat.base.process import spawn\n"
        "from edgechat.base.process.child import Child\n"
        f"spawn.command = lambda role: [sys.executable, '-c', {code!r}]\n"
        "one = Child('x')\n"
        "threading.Thread(target=one.ask, args=(b'x',), kwargs=dict(seconds=600, memory=2**40)).start()\n"
        "print(one.pid, flush=True); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    time.sleep(0.5)
    process.kill()
    process.wait()
    process.stdout.close()
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.05)


@pytest.mark.slow
def test_an_answer_that_takes_longer_than_it_may_ends_the_process(monkeypatch):
    code = "from edgechat.base.process import child, spawn; import time\n"
    code += "child.serve(spawn.adopt_pipe(), lambda q: time.sleep(600), seconds=1)"
    monkeypatch.setattr("edgechat.base.process.spawn.command", lambda role: [sys.executable, "-c", code])
    assert lost(Child("test"), seconds=30) == "died"


def test_resident_bytes():
    assert resident_bytes(os.getpid()) == pytest.approx(psutil.Process().memory_info().rss, rel=0.2)
    gone = subprocess.Popen([sys.executable, "-c", "pass"])
    gone.wait()
    assert resident_bytes(gone.pid) == 0
