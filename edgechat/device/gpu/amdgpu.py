"""The graphics cards that the Linux kernel knows, by /sys; of AMD's it also knows the memory.

A card is listed here though no driver for computing is installed: that is what `edgechat doctor` is after.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from edgechat.device.cgroup import read_number, read_text
from edgechat.device.gpu.accelerators import GpuReading, Vendor

_VENDORS: dict[str, Vendor] = {"0x10de": "nvidia", "0x1002": "amd", "0x8086": "intel"}
_NAMES = {"nvidia": "NVIDIA GPU", "amd": "AMD GPU", "intel": "Intel GPU"}
# PCI classes: VGA, 3D and other display controllers; accelerators without a display (AMD Instinct).
_CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")
# Servers' chips are full of Intel accelerators that are none for us.
_ACCELERATOR = "0x1200"


def sightings(root: Path = Path("/")) -> list[GpuReading]:
    """Return the cards of NVIDIA, AMD and Intel on the PCI bus, in the order of their addresses.

    root: where /sys is looked for.
    """
    try:
        folders = sorted((root / "sys/bus/pci/devices").iterdir())
    except OSError:
        return []
    return [card for folder in folders for card in _card(folder)]


def _card(folder: Path) -> Iterator[GpuReading]:
    vendor = _VENDORS.get(read_text(folder / "vendor").strip())
    kind = read_text(folder / "class").strip()[:6]
    if vendor is None or kind not in _CLASSES or (vendor == "intel" and kind == _ACCELERATOR):
        return
    pci = folder.name.lower()
    name = read_text(folder / "product_name").strip() or _NAMES[vendor]
    card = GpuReading(source="kernel", vendor=vendor, name=name, pci=pci)
    replace = msgspec.structs.replace
    if vendor == "intel":
        # Intel's processors have their own graphics on the first bus; a card is behind a bridge.
        card = replace(card, shares_ram=pci[5:7] == "00")
    elif vendor == "amd":
        total, free = _pool(folder, "vram")
        card = replace(card, total=total, free=free, shares_ram=False)
        if _is_apu(folder):
            # What the firmware set aside is not in MemTotal; the GTT is RAM like any other.
            gtt, gtt_free = _pool(folder, "gtt")
            card = replace(card, total=total + gtt, free=free + gtt_free, shares_ram=True, set_aside=free)
    yield card


def _pool(folder: Path, name: str) -> tuple[int, int]:
    """Return total and free bytes of 'vram' or 'gtt'."""
    total = read_number(folder / f"mem_info_{name}_total") or 0
    used = read_number(folder / f"mem_info_{name}_used") or 0
    return total, max(0, total - used)


def _is_apu(folder: Path) -> bool:
    """Say whether the card is part of a processor, by the version of its metrics.

    The kernel's struct metrics_table_header is size (2 bytes), format, content; formats 2 and 3 are for
    processors (kgd_pp_interface.h). Cards before Vega 12 and processors before Renoir have no such file.
    """
    try:
        with (folder / "gpu_metrics").open("rb") as file:
            header = file.read(4)
    except OSError:
        return False
    return len(header) == 4 and header[2] in (2, 3)
