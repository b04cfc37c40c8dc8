import subprocess
import sys
import textwrap
import time

import psutil
import pytest

from edgechat.base.process import ask, spawn

ECHO = "from edgechat.base.process.ask import answer; answer(lambda request: request[::-1])"


def become(monkeypatch, code):
    """Let every child run `code` instead of its role."""
    monkeypatch.setattr(spawn, "command", lambda _role: [sys.executable, "-c", code])


def test_an_answer(monkeypatch):
    become(monkeypatch, ECHO)
    assert ask.ask("any", b"abc", limit=30) == b"cba"
    assert ask.ask("any", limit=30) == b""
    assert len(ask.ask("any", b"x" * 10**6, limit=30)) == 10**6  # more than a pipe holds


def test_what_a_child_prints_is_no_part_of_the_answer(monkeypatch):
    become(monkeypatch, ECHO.replace("answer(lambda", "answer(lambda request: print('noise') or b'ok') #"))
    assert ask.ask("any", limit=30) == b"ok"


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import os; os.abort()", "ended with SIGABRT"),
        ("raise SystemExit(3)", "ended with exit code 3"),
        ("raise ValueError('no such driver')", "ended with exit code 1 (ValueError: no such driver)"),
        ("import os; os.write(1, b'junk')", "ended with exit code 0"),
        ("import os; os.write(1, b'\\xff' * 100)", "ended with exit code 0"),
        ("import sys; sys.stderr.write('\\x1b[2Jno\\n\\n'); sys.exit(1)", "ended with exit code 1 ([2Jno)"),
    ],
)
@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_child_that_dies(monkeypatch, code, why):
    become(monkeypatch, code)
    with pytest.raises(ask.ChildFailed) as failed:
        ask.ask("any", b"x" * 10**6, limit=30)
    assert str(failed.value) == why


@pytest.mark.slow
def test_a_child_that_hangs_is_killed_in_time(monkeypatch):
    become(monkeypatch, "import time; time.sleep(600)")
    with pytest.raises(ask.ChildFailed, match=r"did not respond within 0\.3 seconds"):
        ask.ask("any", limit=0.3)


@pytest.mark.slow
def test_an_answer_counts_though_the_child_hangs_on_its_way_out(monkeypatch):
    become(monkeypatch, "import os, time; os.write(1, b'\\2\\0\\0\\0ok'); time.sleep(600)")
    assert ask.ask("any", limit=2) == b"ok"


def test_a_program_that_is_not_there(monkeypatch):
    monkeypatch.setattr(spawn, "command", lambda _role: ["/nowhere/edgechat"])
    with pytest.raises(ask.ChildFailed, match="could not be started: No such file"):
        ask.ask("any", limit=1)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="there it ends after two minutes")
@pytest.mark.parametrize("work", ["time.sleep(0.01)", "PAUSE()"], ids=["in Python", "in native code"])
def test_a_child_ends_with_its_parent(tmp_path, work):
    child = f"""
        import ctypes, tempfile, time
        from edgechat.base.process.ask import answer
        PAUSE = ctypes.CDLL(None).pause
        def work(request):
            with tempfile.TemporaryDirectory(dir={str(tmp_path)!r}):
                while True:
                    {work}
        answer(work)
    """
    parent = f"""
        import sys
        from edgechat.base.process import ask, spawn
        spawn.command = lambda _role: [sys.executable, "-c", {textwrap.dedent(child)!r}]
        ask.ask("any", limit=600)
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(parent)])
    while not list(tmp_path.iterdir()):
        time.sleep(0.02)
    (measuring,) = psutil.Process(process.pid).children()
    process.kill()
    process.wait()
    measuring.wait(20)
    assert bool(list(tmp_path.iterdir())) == (work == "PAUSE()")  # what hangs cannot clean up
