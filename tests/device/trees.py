"""Fake /sys and /proc trees, modelled on real machines."""

from __future__ import annotations

from pathlib import Path

Tree = dict[str, str]

V2_MOUNT = "34 24 0:29 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"


def lay(root: Path, *trees: Tree) -> Path:
    """Write files under `root`, given as path to text; return `root`."""
    for tree in trees:
        for name, text in tree.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return root


def topology(cores: list[str], name: str = "A processor") -> Tree:
    """Return the tree of a machine with these cores, each a list of logical processors ('0,8')."""
    numbers = sorted(int(cpu) for core in cores for cpu in core.split(","))
    tree = {
        "sys/devices/system/cpu/online": f"0-{numbers[-1]}\n" if numbers[-1] else "0\n",
        "proc/cpuinfo": "".join(f"processor\t: {cpu}\nmodel name\t: {name}\n\n" for cpu in numbers),
    }
    for core in cores:
        for cpu in core.split(","):
            tree[f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"] = f"{core}\n"
    return tree


def vm() -> Tree:
    """Return a virtual machine with two processors, each its own core."""
    return topology(["0", "1"], "Intel(R) Xeon(R) Processor")


def desktop() -> Tree:
    """Return a desktop with 8 cores and 16 threads, numbered as by AMD: 0 and 8 share a core."""
    return topology([f"{core},{core + 8}" for core in range(8)], "AMD Ryzen 7 5800X 8-Core Processor")


def hybrid() -> Tree:
    """Return an Intel laptop: 6 performance cores with two threads each, then 8 efficiency cores."""
    fast = [f"{cpu},{cpu + 1}" for cpu in range(0, 12, 2)]
    kinds = {"sys/devices/cpu_core/cpus": "0-11\n", "sys/devices/cpu_atom/cpus": "12-19\n"}
    return (
        topology(fast + [str(cpu) for cpu in range(12, 20)], "13th Gen Intel(R) Core(TM) i7-13700H") | kinds
    )


def arm(capacities: list[int]) -> Tree:
    """Return an ARM board: one thread per core, core types by capacity, and the name from the device tree."""
    tree = topology([str(cpu) for cpu in range(len(capacities))])
    tree["proc/cpuinfo"] = "processor\t: 0\nBogoMIPS\t: 48.00\nCPU implementer\t: 0x41\n"
    tree["proc/device-tree/model"] = "Radxa ROCK 5B\0"
    for cpu, capacity in enumerate(capacities):
        tree[f"sys/devices/system/cpu/cpu{cpu}/cpu_capacity"] = f"{capacity}\n"
    return tree


def cgroup2(path: str, files: dict[str, dict[str, str]], mount: str = V2_MOUNT) -> Tree:
    """Return the tree of a process in v2 group `path`; `files`: by folder in /sys/fs/cgroup."""
    tree = {"proc/self/cgroup": f"0::{path}\n", "proc/self/mountinfo": mount}
    for folder, texts in files.items():
        tree |= {f"sys/fs/cgroup{folder}/{name}": text for name, text in texts.items()}
    return tree


def meminfo(total_mib: int, available_mib: int) -> Tree:
    """Return /proc/meminfo for a machine that also has swap."""
    text = (
        f"MemTotal:       {total_mib * 1024} kB\nMemFree:        1024 kB\n"
        f"MemAvailable:   {available_mib * 1024} kB\n"
        "SwapTotal:      67108864 kB\nSwapFree:       67108864 kB\n"
    )
    return {"proc/meminfo": text}
