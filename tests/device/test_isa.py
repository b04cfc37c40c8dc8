import platform
from pathlib import Path

import pytest

from edgechat.device.cpu import mac_instruction_sets, read_instruction_sets
from tests.device import trees


def test_x86_and_arm(tmp_path):
    flags = "fpu sse4_2 avx f16c fma bmi2 avx2 avx512f avx512cd avx512vl avx512dq sse3"
    root = trees.lay(tmp_path / "x86", {"proc/cpuinfo": f"processor\t: 0\nflags\t\t: {flags}\n"})
    assert read_instruction_sets(root) == ("AVX", "F16C", "FMA", "BMI2", "AVX2")
    features = "fp asimd asimdhp asimddp sve i8mm"
    root = trees.lay(tmp_path / "arm", {"proc/cpuinfo": f"processor\t: 0\nFeatures\t: {features}\n"})
    assert read_instruction_sets(root) == ("NEON", "FP16_VA", "DOTPROD", "MATMUL_INT8", "SVE")


def test_mac():
    answer = (
        "hw.optional.neon: 1\nhw.optional.AdvSIMD: 1\nhw.optional.arm.FEAT_DotProd: 1\n"
        "hw.optional.arm.FEAT_I8MM: 0\n"
    )
    assert mac_instruction_sets(answer) == ("NEON", "DOTPROD")
    assert mac_instruction_sets("") == ()


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="it tells them elsewhere, or not at all")
def test_this_machine():
    assert {"AVX", "NEON"} & set(read_instruction_sets()), platform.machine()
