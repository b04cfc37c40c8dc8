"""AMX is asked for in a process of its own each time: once granted, it is granted for good."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_llama_cpp_is_without_it():
    script = (
        "from edgechat.native import ggml, logs; logs.install(); ggml.start(); import ctypes;"
        "held = ctypes.c_ulong(); ctypes.CDLL(None).syscall(158, 0x1022, ctypes.byref(held));"
        "print(held.value >> 18 & 1)"
    )
    assert _asked(script)[-1] == "0"
