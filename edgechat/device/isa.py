"""The instruction sets that decide how fast llama.cpp computes on a processor, by llama.cpp's names."""

from __future__ import annotations

import platform
import re
import sys
from pathlib import Path

from edgechat.device.cgroup import read_text
from edgechat.device.cpu import sysctl

# What /proc/cpuinfo calls them, in the order in which they came. AVX512 is what a compiler needs to be told
# all of: llama.cpp asks for these five together.
_X86 = {
    "AVX": {"avx"},
    "F16C": {"f16c"},
    "FMA": {"fma"},
    "BMI2": {"bmi2"},
    "AVX2": {"avx2"},
    "AVX_VNNI": {"avx_vnni"},
    "AVX512": {"avx512f", "avx512cd", "avx512vl", "avx512dq", "avx512bw"},
    "AVX512_VBMI": {"avx512vbmi"},
    "AVX512_VNNI": {"avx512_vnni"},
    "AVX512_BF16": {"avx512_bf16"},
}
_ARM = {
    "NEON": {"asimd"},
    "FP16_VA": {"asimdhp"},
    "DOTPROD": {"asimddp"},
    "MATMUL_INT8": {"i8mm"},
    "SVE": {"sve"},
    "SME": {"sme"},
}
_MAC = {
    "hw.optional.avx1_0": "AVX",
    "hw.optional.f16c": "F16C",
    "hw.optional.fma": "FMA",
    "hw.optional.bmi2": "BMI2",
    "hw.optional.avx2_0": "AVX2",
    "hw.optional.avx512f": "AVX512",
    "hw.optional.neon": "NEON",
    "hw.optional.AdvSIMD": "NEON",
    "hw.optional.arm.FEAT_FP16": "FP16_VA",
    "hw.optional.arm.FEAT_DotProd": "DOTPROD",
    "hw.optional.arm.FEAT_I8MM": "MATMUL_INT8",
    "hw.optional.arm.FEAT_SME": "SME",
}
# PF_..._AVAILABLE of winnt.h, for IsProcessorFeaturePresent.
_WINDOWS = {39: "AVX", 40: "AVX2", 41: "AVX512", 43: "DOTPROD"}

ESSENTIAL = frozenset({"AVX", "AVX2", "F16C", "FMA", "NEON", "DOTPROD"})
"""A build without one of these that the CPU supports runs at half the speed or less."""


def read_instruction_sets(root: Path = Path("/")) -> tuple[str, ...]:
    """Return the instruction sets that matter here, the oldest first; empty where nothing tells.

    root: where /proc is looked for.
    """
    cpuinfo = read_text(root / "proc/cpuinfo")
    match = re.search(r"^(?:flags|Features)\s*:(.*)$", cpuinfo, re.MULTILINE)
    if match:
        flags = set(match[1].split())
        return tuple(name for name, needed in (_X86 | _ARM).items() if needed <= flags)
    if sys.platform == "darwin":
        return mac_instruction_sets(sysctl("hw.optional"))
    if sys.platform == "win32":
        import ctypes

        present = ctypes.windll.kernel32.IsProcessorFeaturePresent
        arm = ("NEON",) if platform.machine() == "ARM64" else ()
        return arm + tuple(name for number, name in _WINDOWS.items() if present(number))
    return ()


def mac_instruction_sets(answer: str) -> tuple[str, ...]:
    """Return the instruction sets of a Mac from what `sysctl hw.optional` printed."""
    present = set(re.findall(r"^([\w.]+): 1$", answer, re.MULTILINE))
    return tuple(dict.fromkeys(name for key, name in _MAC.items() if key in present))
