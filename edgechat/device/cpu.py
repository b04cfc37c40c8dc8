"""The processor: its cores, which of them this process may use, its instruction sets, and thread counts.

On Linux, the data comes from /sys and /proc; on macOS, from sysctl. Elsewhere, psutil provides only the
number of cores.
"""

from __future__ import annotations

import math
import os
import platform
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from edgechat.device.cgroup import groups, read_number, read_text

_CPUS = "sys/devices/system/cpu"
# Small ARM cores have 0.2 to 0.5 of the capacity of the largest core; medium cores have at least 0.6.
_FAST_CAPACITY = 0.6


@dataclass(frozen=True, slots=True)
class Core:
    """A physical core, with the numbers of its logical processors (two with SMT)."""

    cpus: tuple[int, ...]
    fast: bool = True
    """Whether it is a performance core. If a chip has only one kind of core, all of them are."""


@dataclass(frozen=True, slots=True)
class Cpu:
    """The CPU, and the part of it that this process may use."""

    name: str
    cores: tuple[Core, ...]
    allowed: frozenset[int]
    """The logical CPUs in this process's affinity mask."""
    quota: float | None = None
    """The tightest CPU quota in any control group, in CPUs; None if there is no quota."""

    @property
    def logical(self) -> int:
        """Number of logical processors."""
        return sum(len(core.cpus) for core in self.cores)

    @property
    def physical(self) -> int:
        """Number of physical cores."""
        return len(self.cores)

    @property
    def efficiency(self) -> int:
        """Number of cores that are not performance cores."""
        return sum(not core.fast for core in self.cores)

    @property
    def smt(self) -> bool:
        """Whether any core runs two threads at once."""
        return self.logical > self.physical

    @property
    def usable(self) -> tuple[Core, ...]:
        """The cores that this process may run on."""
        return tuple(core for core in self.cores if not self.allowed.isdisjoint(core.cpus))


def choose_threads(cpu: Cpu) -> tuple[int, str]:
    """Return the best number of threads and the reason, as a sentence.

    This is one thread per performance core, as a second thread on a core would compete for its arithmetic
    units, and a slow core would make all others wait at the end of every layer.
    """
    fast = [core for core in cpu.usable if core.fast]
    chosen = fast or list(cpu.usable)
    count = max(1, len(chosen))
    quota = math.inf if cpu.quota is None else cpu.quota
    limited = quota < count
    if limited:
        count = max(1, int(quota))
    threads = "1 thread" if count == 1 else f"{count} threads"
    if limited:
        return count, f"{threads}: a control group limits CPU time to {quota:g} CPUs."
    kind = "core"
    if cpu.efficiency:
        kind = "performance core" if fast else "efficiency core"
    reasons = [f"{threads}: one for each {kind}"]
    if len(cpu.usable) < cpu.physical:
        reasons.append(f"this process is restricted to {len(cpu.usable)} of {cpu.physical} cores")
    if fast and len(fast) < len(cpu.usable):
        reasons.append("efficiency cores would slow down the others")
    if any(len(core.cpus) > 1 for core in chosen):
        reasons.append("a second thread per core gains nothing")
    return count, "; ".join(reasons) + "."


def thread_counts(cpu: Cpu) -> dict[int, str]:
    """Return the thread counts worth trying, most promising first, each with a description."""
    allowed = [len(cpu.allowed.intersection(core.cpus)) for core in cpu.usable]
    counts = (
        (choose_threads(cpu)[0], "one for each performance core" if cpu.efficiency else "one for each core"),
        (len(allowed), "one for each core"),
        (sum(allowed), "one for each hardware thread"),
    )
    most = sum(allowed) if cpu.quota is None else max(1, int(cpu.quota))
    named: dict[int, str] = {}
    for count, what in counts:
        if 0 < count <= most:
            named.setdefault(count, what)
    return named or {1: "one for each core"}


def read_cpu(root: Path = Path("/"), allowed: frozenset[int] | None = None) -> Cpu:
    """Return this machine's CPU.

    root: the folder that contains /proc and /sys. allowed: the logical processors that this process may use;
    None to ask the system.
    """
    listed = re.findall(r"^processor\s*: ([0-9]+)$", read_text(root / "proc/cpuinfo"), re.MULTILINE)
    online = parse_list(read_text(root / _CPUS / "online") or ",".join(listed))
    if not online and sys.platform == "darwin":
        keys = ("machdep.cpu.brand_string", "hw.logicalcpu", "hw.physicalcpu", "hw.perflevel0.physicalcpu")
        return mac_cpu(sysctl(*keys)) or _portable()
    if not online:
        return _portable()
    if allowed is None:
        allowed = frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else online
    # A container may number processors from 0, while the affinity mask uses the host's numbers.
    return Cpu(_name(root), _cores(root, online), (allowed & online) or online, _quota(root))


def parse_list(text: str) -> frozenset[int]:
    """Return the numbers in a list in the kernel's format ('0-3,8'); empty if malformed."""
    numbers: set[int] = set()
    for part in text.strip().split(","):
        match = re.fullmatch(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", part)
        if not match:
            return frozenset()
        first = int(match[1])
        numbers |= set(range(first, int(match[2] or first) + 1))
    return frozenset(numbers)


# Linux


def _cores(root: Path, online: frozenset[int]) -> tuple[Core, ...]:
    cores: set[tuple[int, ...]] = set()
    by_cpuinfo = _cores_by_cpuinfo(root)
    for cpu in online:
        topology = root / _CPUS / f"cpu{cpu}" / "topology"
        # core_cpus_list is the newer name of the same file.
        text = read_text(topology / "core_cpus_list") or read_text(topology / "thread_siblings_list")
        siblings = parse_list(text) or by_cpuinfo.get(cpu, frozenset())
        cores.add(tuple(sorted((siblings | {cpu}) & online)))
    slow = _slow(root, online)
    return tuple(Core(cpus, slow.isdisjoint(cpus)) for cpus in sorted(cores))


def _cores_by_cpuinfo(root: Path) -> dict[int, frozenset[int]]:
    """Map each logical processor to all logical processors on its core, using /proc/cpuinfo (x86 only)."""
    cores: dict[tuple[str, str], set[int]] = {}
    for block in read_text(root / "proc/cpuinfo").split("\n\n"):
        facts = dict(re.findall(r"^([^:\t]+?)\s*: ?(.*)$", block, re.MULTILINE))
        if "core id" in facts and facts.get("processor", "").isdigit():
            core = (facts.get("physical id", "0"), facts["core id"])
            cores.setdefault(core, set()).add(int(facts["processor"]))
    return {cpu: frozenset(cpus) for cpus in cores.values() for cpu in cpus}


def _slow(root: Path, online: frozenset[int]) -> frozenset[int]:
    """Return the logical processors that belong to efficiency cores."""
    if parse_list(read_text(root / "sys/devices/cpu_core/cpus")):  # an Intel hybrid
        return parse_list(read_text(root / "sys/devices/cpu_atom/cpus"))
    read = {cpu: read_number(root / _CPUS / f"cpu{cpu}" / "cpu_capacity") for cpu in online}
    capacities = {cpu: capacity for cpu, capacity in read.items() if capacity is not None}
    largest = max(capacities.values(), default=0)
    return frozenset(cpu for cpu, capacity in capacities.items() if capacity < _FAST_CAPACITY * largest)


def _quota(root: Path) -> float | None:
    quotas: list[float] = []
    for group in groups("cpu", root):
        if group.version == 2:
            quota, _, period = read_text(group.folder / "cpu.max").strip().partition(" ")
        else:
            quota = read_text(group.folder / "cpu.cfs_quota_us").strip()
            period = read_text(group.folder / "cpu.cfs_period_us").strip()
        if quota.isdigit() and period.isdigit() and int(quota) > 0 and int(period) > 0:
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def _name(root: Path) -> str:
    cpuinfo = read_text(root / "proc/cpuinfo")
    match = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    board = read_text(root / "proc/device-tree/model").strip("\0\n ")
    return " ".join((match[1] if match else board or platform.machine()).split())


# macOS


def sysctl(*keys: str) -> str:
    """Return sysctl's 'key: value' lines, omitting keys that this Mac lacks, or '' if it cannot be run."""
    import subprocess

    try:
        return subprocess.run(["/usr/sbin/sysctl", *keys], capture_output=True, text=True, timeout=5).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def mac_cpu(answer: str) -> Cpu | None:
    """Parse sysctl's output into a Mac's processor, or None if the number of cores is missing.

    On a Mac with two kinds of cores, the faster kind is called perflevel0. Macs have no affinity and no
    quota.
    """
    facts = dict(re.findall(r"^([\w.]+): (.+)$", answer, re.MULTILINE))
    numbers = {key: int(value) for key, value in facts.items() if value.isdigit()}
    physical, logical = numbers.get("hw.physicalcpu", 0), numbers.get("hw.logicalcpu", 0)
    if not physical:
        return None
    cores = _numbered(physical, max(physical, logical), numbers.get("hw.perflevel0.physicalcpu"))
    name = facts.get("machdep.cpu.brand_string", platform.machine())
    return Cpu(name, cores, frozenset(cpu for core in cores for cpu in core.cpus))


# Elsewhere


def _portable() -> Cpu:
    import psutil

    logical = psutil.cpu_count() or 1
    cores = _numbered(psutil.cpu_count(logical=False) or logical, logical)
    allowed = frozenset(range(logical))
    if sys.platform == "win32":
        allowed &= frozenset(psutil.Process().cpu_affinity())
    return Cpu(platform.processor() or platform.machine(), cores, allowed)


def _numbered(physical: int, logical: int, n_fast: int | None = None) -> tuple[Core, ...]:
    """Return cores numbered in order, for a system that reports only how many there are.

    If only some cores have a second thread, those are the performance cores. Windows numbers them first.
    """
    physical = min(physical, logical)
    each, doubled = divmod(logical, physical)
    if each > 1:
        doubled = 0
    threads = [each + (index < doubled) for index in range(physical)]
    fast = n_fast or doubled or physical
    starts = [sum(threads[:index]) for index in range(physical)]
    return tuple(
        Core(tuple(range(start, start + count)), index < fast)
        for index, (start, count) in enumerate(zip(starts, threads, strict=True))
    )


# Flags in /proc/cpuinfo, oldest first. AVX512 stands for the five extensions that llama.cpp requires
# together.
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
# PF_..._AVAILABLE in winnt.h, for IsProcessorFeaturePresent.
_WINDOWS = {39: "AVX", 40: "AVX2", 41: "AVX512", 43: "DOTPROD"}

ESSENTIAL = frozenset({"AVX", "AVX2", "F16C", "FMA", "NEON", "DOTPROD"})
"""Instruction sets that a build must use if the CPU has them, or else run at half the speed or less."""


def read_instruction_sets(root: Path = Path("/")) -> tuple[str, ...]:
    """Return the relevant instruction sets, oldest first; empty if unknown.

    root: the folder that contains /proc.
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
    """Parse the output of `sysctl hw.optional` into a Mac's instruction sets."""
    present = set(re.findall(r"^([\w.]+): 1$", answer, re.MULTILINE))
    return tuple(dict.fromkeys(name for key, name in _MAC.items() if key in present))
