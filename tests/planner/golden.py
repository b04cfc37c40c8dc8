"""What edgechat would choose on machines from 4 to 64 GB: a table to read and to compare with.

python -m tests.planner.golden > tests/planner/golden.txt
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

from edgechat.base.text import figure, seconds
from edgechat.device.accelerators import Accelerator, Vendor
from edgechat.device.cpu import Core, Cpu
from edgechat.device.memory import Memory
from edgechat.device.profile import DeviceProfile
from edgechat.planner.candidates import Variant, everything
from edgechat.planner.estimate.rates import guessed
from edgechat.planner.machine import Machine, MachineDescription
from edgechat.planner.ranking.ranking import RankedFile, best_of, choose
from edgechat.planner.request import DEFAULT_REQUEST, PlanRequest

FILE = Path(__file__).with_name("golden.txt")
GB = 2**30
SIZES = (4, 8, 16, 32, 64)
KINDS = ("CPU 50 GB/s", "GPU 8 GB", "GPU 24 GB", "unified 100 GB/s", "unified 400 GB/s")
_CPU = Cpu("eight cores", tuple(Core((n,)) for n in range(8)), frozenset(range(8)))


def profile(gigabytes: float, kind: str = "CPU 50 GB/s", *, bandwidth: float = 50e9) -> DeviceProfile:
    """Return a machine with that much RAM, part of which its system and programs use."""
    if kind.startswith("unified"):
        bandwidth = float(kind.split()[1]) * 1e9
    speed = guessed(bandwidth, compute=4e11, threads=8)
    bare = DeviceProfile(_CPU, Memory(0, 0), speed)
    found = MachineDescription(ram=int(gigabytes * GB)).over(bare)
    if kind.startswith("GPU"):
        return replace(found, accelerators=(card("nvidia", int(kind.split()[1]) * GB),))
    if kind.startswith("unified"):  # macOS lets a program use three quarters of that memory
        total = found.memory.total * 3 // 4
        chip = card("apple", total, shares_ram=True)
        return replace(found, accelerators=(replace(chip, free=min(total, found.memory.available)),))
    return found


def card(vendor: Vendor, total: int, *, shares_ram: bool = False) -> Accelerator:
    """Return a card, part of whose memory the display uses."""
    free = total * 92 // 100
    name = "MTL0" if shares_ram else "CUDA0"
    return Accelerator(name, vendor, (name,), total, free, shares_ram, 0 if shares_ram else free, None, ())


@cache
def models() -> tuple[tuple[Variant, ...], ...]:
    """Return the catalogue's files; each header is read only once."""
    return tuple(tuple(replace(one, header=cache(one.header)) for one in files) for files in everything())


def options(machine: DeviceProfile, request: PlanRequest = DEFAULT_REQUEST) -> list[RankedFile]:
    """Return the best file of each model, estimated by formula."""
    found = [best_of(files, Machine(machine), request) for files in models()]
    return [one for one in found if one is not None]


def row(gigabytes: int, kind: str) -> tuple[str, ...]:
    """Return the table's row for a machine."""
    chosen = choose(options(profile(gigabytes, kind)))
    assert chosen is not None
    made = chosen.plan
    assert made is not None
    cache_type = "" if made.cache_type == "f16" else f" {made.cache_type}"
    experts = f", experts of {made.experts_in_ram} in RAM" if made.experts_in_ram else ""
    return (
        f"{gigabytes} GB",
        kind,
        made.model_name,
        made.quant or "?",
        f"{made.context}{cache_type}",
        f"{made.gpu_layers} of {made.n_layers + 1}{experts}" if made.gpu_layers else "none",
        figure(chosen.predicted.decode_tps, 2),
        seconds(chosen.predicted.ttft_ms / 1000),
        chosen.verdict.label,
    )


def kept() -> list[tuple[str, ...]]:
    """Return the rows in the file, without the heading."""
    lines = FILE.read_text(encoding="utf-8").splitlines()[1:]
    return [tuple(re.split(r"  +", line)) for line in lines]


def table() -> str:
    """Return the table as text."""
    cells = [("RAM", "MACHINE", "MODEL", "QUANT", "CONTEXT", "ON GPU", "TOKENS/S", "FIRST", "VERDICT")]
    cells += [row(gigabytes, kind) for gigabytes in SIZES for kind in KINDS]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells)
    return "\n".join(line.rstrip() for line in lines) + "\n"


if __name__ == "__main__":
    print(table(), end="")
