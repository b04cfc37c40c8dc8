"""AMX is asked for in a process of its own each time: once granted, it is granted for good."""

import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from edgechat.base.process.ask import ChildFailed
from edgechat.native import amx, amx_trial, ggml

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="AMX is Intel's, and refused by Linux"
)

_ASK = """
import ctypes, faulthandler, sys
from edgechat.native import amx
libc = ctypes.CDLL(None)
def ask():  # arch_prctl(ARCH_REQ_XCOMP_PERM, the tiles' data)
    return libc.syscall(158, 0x1023, 18) == 0
def stack():
    found = amx._SignalStack()
    assert libc.sigaltstack(None, ctypes.byref(found)) == 0
    return found.start, found.size
faulthandler.enable()  # as workers do: it has a signal stack of its own, which has to stay
before = stack()
with amx.refused():
    assert stack() != before
    inside = ask()
assert stack() == before
print(inside, ask())
"""


def _asked(script):
    command = [sys.executable, "-P", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_signal_stack_is_put_back():
    assert len(_asked(_ASK)) == 2


def test_amx_is_refused():
    inside, outside = _asked(_ASK)
    assert inside == "False"
    if " amx_tile" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("this processor has no AMX")
    assert outside == "True"


_HELD = """
from edgechat.native import amx, ggml, logs
logs.install()
ggml.start()
import ctypes
held = ctypes.c_ulong()
ctypes.CDLL(None).syscall(158, 0x1022, ctypes.byref(held))
laid_out = amx.NAME in map(ggml.buffer_type_name, ggml.weight_layouts())
print(held.value >> 18 & 1, int(laid_out), int(amx.is_used()))
"""


def test_llama_cpp_is_without_it_where_it_is_forbidden(home):
    assert _asked(_HELD)[-3:] == ["0", "0", "0"]
    assert not (home / "cache" / "amx.json").exists()


def test_it_is_used_where_its_products_are_right(home, monkeypatch):
    monkeypatch.delenv(amx.VARIABLE)
    held, laid_out, used = _asked(_HELD)[-3:]
    assert held == laid_out == used
    if " amx_int8" in Path("/proc/cpuinfo").read_text():
        outcome = amx._stored()
        assert (used == "1") is (outcome.failure == "")
        assert _asked(_HELD)[-3:] == [held, laid_out, used]
        assert amx._stored() == outcome


@pytest.fixture
def trials(monkeypatch):
    """Let every processor have AMX, and count what is asked of the child: a text, or how it fails."""
    outcomes, asked = [], []

    def ask(role, *, limit):
        asked.append(role)
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome.encode()

    monkeypatch.setattr(amx, "_may_be_there", lambda: True)
    monkeypatch.setattr(amx, "ask", ask)
    return outcomes, asked


def test_a_build_is_tried_once(trials, tmp_path):
    outcomes, asked = trials
    library = tmp_path / "libggml-cpu.so"
    library.write_bytes(b"one")
    outcomes += [ChildFailed("ended with SIGSEGV (some line)"), ""]
    assert not amx.is_used()
    assert amx.failure() == ""
    for _ in range(2):
        assert not amx.computes_right(tmp_path)
    assert amx.failure() == "ended with SIGSEGV"
    assert not amx.is_used()
    library.write_bytes(b"another")
    for _ in range(2):
        assert amx.computes_right(tmp_path)
    assert amx.is_used()
    assert amx.failure() == ""
    assert asked == ["amx", "amx"]


def test_an_outcome_that_cannot_be_read_or_written_is_tried_again(trials, tmp_path, home):
    outcomes, asked = trials
    (home / "cache").mkdir(parents=True)
    (home / "cache" / "amx.json").write_text("[")
    outcomes += ["", ""]
    assert amx.computes_right(tmp_path)
    (home / "cache" / "amx.json").unlink()
    (home / "cache" / "amx.json").mkdir()
    assert amx.computes_right(tmp_path)
    assert len(asked) == 2


def test_the_trial_compares_products(monkeypatch):
    ggml.start()
    layouts = set(map(ggml.buffer_type_name, ggml.weight_layouts()))
    if "CPU_REPACK" not in layouts:
        pytest.skip("this processor has no other layout of weights")
    assert amx_trial._failure().startswith("found that this build of llama.cpp lacks it")
    monkeypatch.setattr(amx, "NAME", "CPU_REPACK")  # which has such products, too
    monkeypatch.setattr(amx_trial, "_TYPES", {"Q4_0": 2})
    assert amx_trial._failure() == ""
    product = amx_trial._product

    def wrong(kind, weights, given, layout):
        found = product(kind, weights, given, layout)
        return found if layout == ggml.cpu_buffers() else np.where(np.arange(96) == 95, 0, found)

    monkeypatch.setattr(amx_trial, "_product", wrong)
    assert amx_trial._failure() == "gives wrong products for Q4_0"
