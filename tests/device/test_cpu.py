import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgechat.device.cpu import Core, Cpu, _numbered, choose_threads, mac_cpu, parse_list, read_cpu
from tests.device import trees

ALL = frozenset(range(1024))


@pytest.mark.parametrize(
    ("tree", "allowed", "counts", "threads"),
    [
        (trees.vm(), ALL, (2, 2, 0), 2),
        (trees.desktop(), ALL, (16, 8, 0), 8),
        (trees.desktop(), frozenset({1, 2, 9}), (16, 8, 0), 2),  # taskset: 1 and 9 are one core
        (trees.desktop(), frozenset({9, 10, 11}), (16, 8, 0), 3),
        (trees.hybrid(), ALL, (20, 14, 8), 6),
        (trees.hybrid(), frozenset({0, 1, 12, 13}), (20, 14, 8), 1),
        (trees.hybrid(), frozenset({12, 13, 14}), (20, 14, 8), 3),
        (trees.arm([530] * 4 + [1024] * 4), ALL, (8, 8, 4), 4),
        (trees.arm([325, 325, 325, 325, 810, 810, 810, 1024]), ALL, (8, 8, 4), 4),  # a middle kind
        (trees.arm([1024] * 4), ALL, (4, 4, 0), 4),
    ],
)
def test_machines(tmp_path, tree, allowed, counts, threads):
    cpu = read_cpu(trees.lay(tmp_path, tree), allowed)
    assert (cpu.logical, cpu.physical, cpu.efficiency) == counts
    assert choose_threads(cpu)[0] == threads


def test_names(tmp_path):
    assert read_cpu(trees.lay(tmp_path / "x86", trees.vm()), ALL).name == "Intel(R) Xeon(R) Processor"
    assert read_cpu(trees.lay(tmp_path / "arm", trees.arm([1024])), ALL).name == "Radxa ROCK 5B"


def test_reasons_say_what_was_left_out(tmp_path):
    _, reason = choose_threads(read_cpu(trees.lay(tmp_path, trees.hybrid()), frozenset(range(2, 20))))
    assert reason == (
        "5 threads: one for each performance core; this process is restricted to 13 of 14 cores; "
        "efficiency cores would slow down the others; a second thread per core gains nothing."
    )


@pytest.mark.parametrize(
    ("cpu_max", "quota", "threads"),
    [("150000 100000", 1.5, 1), ("50000 100000", 0.5, 1), ("400000 100000", 4.0, 4), ("max 100000", None, 8)],
)
def test_quota_of_a_container(tmp_path, cpu_max, quota, threads):
    group = trees.cgroup2("/", {"": {"cpu.max": f"{cpu_max}\n"}})
    cpu = read_cpu(trees.lay(tmp_path, trees.desktop(), group), ALL)
    assert cpu.quota == quota
    count, reason = choose_threads(cpu)
    assert count == threads
    assert ("control group" in reason) == (quota is not None)


def test_tightest_ancestor_sets_the_quota(tmp_path):
    files = {
        "/a": {"cpu.max": "300000 100000\n"},
        "/a/b": {"cpu.max": "max 100000\n"},
        "/a/b/c": {"cpu.max": "500000 100000\n"},
    }
    root = trees.lay(tmp_path, trees.desktop(), trees.cgroup2("/a/b/c", files))
    assert read_cpu(root, ALL).quota == 3.0


def test_quota_of_cgroup_v1(tmp_path):
    group = {
        "proc/self/cgroup": "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n",
        "proc/self/mountinfo": (
            "36 31 0:30 /docker/abc /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n"
        ),
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "250000\n",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
    }
    assert read_cpu(trees.lay(tmp_path, trees.desktop(), group), ALL).quota == 2.5
    trees.lay(tmp_path, {"sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n"})
    assert read_cpu(tmp_path, ALL).quota is None


def test_cpuinfo_tells_the_cores_where_topology_is_hidden(tmp_path):
    cpuinfo = "".join(
        f"processor\t: {cpu}\nmodel name\t: X\nphysical id\t: 0\ncore id\t\t: {cpu // 2}\n\n"
        for cpu in range(4)
    )
    quota = trees.cgroup2("/", {"": {"cpu.max": "150000 100000\n"}})
    cpu = read_cpu(trees.lay(tmp_path, {"proc/cpuinfo": cpuinfo}, quota), frozenset({2, 3}))
    assert (cpu.physical, len(cpu.usable), cpu.quota) == (2, 1, 1.5)


def test_numbers_that_a_container_made_up(tmp_path):
    cpu = read_cpu(trees.lay(tmp_path, trees.vm()), frozenset({37, 41}))
    assert choose_threads(cpu)[0] == 2


def test_offline_siblings_do_not_count(tmp_path):
    root = trees.lay(tmp_path, trees.desktop(), {"sys/devices/system/cpu/online": "0-7\n"})
    cpu = read_cpu(root, ALL)
    assert (cpu.logical, cpu.physical) == (8, 8)


def test_nothing_readable_falls_back_to_counting(tmp_path):
    cpu = read_cpu(tmp_path)
    assert cpu.physical >= 1
    assert choose_threads(cpu)[0] >= 1


MAC = """machdep.cpu.brand_string: Apple M4 Pro
hw.logicalcpu: 14
hw.physicalcpu: 14
hw.perflevel0.physicalcpu: 10
"""


def test_mac():
    cpu = mac_cpu(MAC)
    assert cpu is not None
    assert (cpu.name, cpu.logical, cpu.physical, cpu.efficiency) == ("Apple M4 Pro", 14, 14, 4)
    assert choose_threads(cpu)[0] == 10


def test_mac_with_intel():
    cpu = mac_cpu("machdep.cpu.brand_string: Intel(R) Core(TM) i7\nhw.logicalcpu: 12\nhw.physicalcpu: 6\n")
    assert cpu is not None
    assert (cpu.logical, cpu.physical, cpu.efficiency) == (12, 6, 0)
    assert choose_threads(cpu)[0] == 6


def test_mac_that_says_nothing():
    assert mac_cpu("sysctl: unknown oid\n") is None


def test_counts_alone_show_an_intel_hybrid():
    cores = _numbered(14, 20)
    assert [len(core.cpus) for core in cores] == [2] * 6 + [1] * 8
    assert [core.fast for core in cores] == [True] * 6 + [False] * 8


@given(physical=st.integers(1, 300), logical=st.integers(1, 600))
def test_numbered_cores_hold_every_processor_once(physical, logical):
    cores = _numbered(physical, logical)
    assert sum(len(core.cpus) for core in cores) <= logical
    assert len({cpu for core in cores for cpu in core.cpus}) == sum(len(core.cpus) for core in cores)
    assert any(core.fast for core in cores)


@given(st.frozensets(st.integers(0, 200), min_size=1))
def test_lists_of_processors_come_back(numbers):
    assert parse_list(",".join(str(number) for number in numbers) + "\n") == numbers


@pytest.mark.parametrize("text", ["", "\n", "a", "1-", "-1", "1,,2", "0-99999999999"])
def test_malformed_lists_are_empty(text):
    assert parse_list(text) == frozenset()


_cores = st.lists(st.tuples(st.integers(1, 2), st.booleans()), min_size=1, max_size=16)


@given(kinds=_cores, allowed=st.frozensets(st.integers(0, 31)), quota=st.none() | st.floats(0.1, 40))
def test_threads_stay_within_what_is_ours(kinds, allowed, quota):
    starts = [sum(count for count, _ in kinds[:index]) for index in range(len(kinds))]
    cores = tuple(
        Core(tuple(range(start, start + count)), fast)
        for start, (count, fast) in zip(starts, kinds, strict=True)
    )
    cpu = Cpu("x", cores, allowed, quota)
    threads, reason = choose_threads(cpu)
    assert 1 <= threads <= max(1, len(cpu.usable))
    assert quota is None or threads <= max(1, int(quota))
    assert reason.endswith(".")


def test_this_machine():
    cpu = read_cpu()
    assert cpu.name
    assert 1 <= choose_threads(cpu)[0] <= len(cpu.usable) <= cpu.physical <= cpu.logical


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")
def test_affinity_of_this_process():
    one = min(os.sched_getaffinity(0))
    code = (
        f"import os; os.sched_setaffinity(0, {{{one}}});"
        "from edgechat.device.cpu import *; print(choose_threads(read_cpu())[0])"
    )
    top = Path(__file__).parents[2]
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=top)
    assert answer.stdout.strip() == "1"
