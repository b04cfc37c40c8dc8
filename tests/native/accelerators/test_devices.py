import sys

import pytest

from edgechat.base.process import spawn
from edgechat.base.process.ask import ChildFailed
from edgechat.native.accelerators.devices import features_of, read_inventory


def test_this_build():
    found = read_inventory(60)
    assert "CPU" in found.build.backends
    assert found.build.mmap
    assert found.build.rpc == ("RPC" in found.build.backends)
    assert "REPACK" in found.build.features or found.build.features
    (cpu,) = [device for device in found.devices if device.kind == "cpu"]
    assert cpu.total > 0
    assert cpu.description


def test_the_front_end_does_not_load_llama_cpp():
    import subprocess

    code = "import sys, edgechat.native.accelerators.devices; print('llama_cpp' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"


def test_features_are_those_of_the_cpu_backend():
    line = "CUDA : ARCHS = 890 | USE_GRAPHS = 1 | CPU : SSE3 = 1 | AVX2 = 0 | OPENMP = 1 | REPACK = 1 | "
    assert features_of(line) == ("SSE3", "OPENMP", "REPACK")
    assert features_of("MTL : EMBED_LIBRARY = 1 | CPU : NEON = 1 | SVE_CNT = 16 |") == ("NEON", "SVE_CNT")
    assert features_of("") == ()


def test_an_answer_that_is_none(monkeypatch):
    code = "from edgechat.base.process.ask import answer; answer(lambda _: b'\\xc0')"
    monkeypatch.setattr(spawn, "command", lambda _role: [sys.executable, "-c", code])
    with pytest.raises(ChildFailed, match="an invalid answer"):
        read_inventory(30)
