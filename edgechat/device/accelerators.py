"""Accelerators with their available memory, merged from several sources.

ggml lists the devices on which this build of llama.cpp can compute. The driver (NVML), the kernel (sysfs) and
torch also know about cards that this build cannot use, and about memory used by other programs. Each source
reports a card as a GpuReading. Readings are matched by PCI address, or by vendor if the address is missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from edgechat.device.memory import Memory
from edgechat.native.accelerators.devices import NativeDevice

Vendor = Literal["nvidia", "amd", "intel", "apple", "other"]
Source = Literal["ggml", "nvml", "kernel", "torch"]

_SAME = 0.1
"""Fraction by which two totals can differ and still describe the same memory."""
_BACKENDS: dict[str, Vendor] = {"CUDA": "nvidia", "ROCm": "amd", "MTL": "apple"}
_WORDS: tuple[tuple[str, Vendor], ...] = (
    ("nvidia", "nvidia"),
    ("geforce", "nvidia"),
    ("quadro", "nvidia"),
    ("tesla", "nvidia"),
    ("radeon", "amd"),
    ("amd", "amd"),
    ("intel", "intel"),
    ("apple", "apple"),
)
_SOFTWARE = ("llvmpipe", "swiftshader", "lavapipe")
"""Vulkan drivers that compute on the CPU, where they are slower than the CPU backend."""


class GpuReading(msgspec.Struct, frozen=True, kw_only=True):
    """A source's report on one card."""

    source: Source
    vendor: Vendor
    name: str = ""
    pci: str | None = None
    """The PCI address in lower case, such as '0000:c1:00.0'."""
    total: int = 0
    """Size of its memory in bytes, or 0 if the source does not know it."""
    free: int = 0
    shares_ram: bool | None = None
    """Whether its memory is part of RAM, or None if the source does not know."""
    set_aside: int = 0
    """How many bytes of `free` the firmware has reserved for this card in RAM."""
    device: str | None = None
    """llama.cpp's name for the card, which only ggml knows."""


@dataclass(frozen=True, slots=True)
class Accelerator:
    """A GPU or similar device."""

    name: str
    vendor: Vendor
    devices: tuple[str, ...]
    """llama.cpp's names for the device, best first: 'CUDA0', 'Vulkan0'. Empty if this build cannot use it."""
    total: int
    """Maximum number of bytes that a program can allocate, or 0 if unknown."""
    free: int
    """Bytes that can be allocated now: at most `total` and, for shared memory, at most the available RAM."""
    shares_ram: bool
    """Whether its memory is part of RAM, which must then be counted only once."""
    own: int
    """Bytes of `free` that are not part of RAM: all of them, unless the device shares RAM."""
    pci: str | None
    sources: tuple[Source, ...]
    worker: str = ""
    """Address of the worker that lends the device; empty for a device in this machine."""

    @property
    def usable(self) -> bool:
        """Whether this build of llama.cpp can compute on it."""
        return bool(self.devices)

    @property
    def is_apples(self) -> bool:
        """Whether it is the GPU in an Apple processor, which MLX can also use."""
        return self.vendor == "apple" and self.shares_ram


def ggml_readings(devices: Iterable[NativeDevice]) -> list[GpuReading]:
    """Return ggml's devices that can hold layers, except Vulkan drivers that compute on the CPU."""
    readings: list[GpuReading] = []
    for device in devices:
        description = device.description.lower()
        is_software = any(name in description for name in _SOFTWARE)
        if is_software or device.kind not in ("gpu", "igpu"):
            continue
        by_word = next((vendor for word, vendor in _WORDS if word in description), None)
        vendor = by_word or _BACKENDS.get(device.backend, "other")
        reading = GpuReading(
            source="ggml",
            vendor=vendor,
            name=device.description or device.name,
            pci=device.device_id,
            total=device.total,
            free=device.free,
            # Metal lists every card as a GPU, but only AMD cards, in Macs with Intel CPUs, have dedicated
            # memory.
            shares_ram=device.kind == "igpu" or (device.backend == "MTL" and vendor != "amd"),
            device=device.name,
        )
        readings.append(reading)
    return readings


def merge(readings: Sequence[GpuReading], memory: Memory) -> tuple[Accelerator, ...]:
    """Merge the readings for each card. If sources disagree, the first one wins.

    readings: the most trusted source first. memory: the RAM, for cards that share it.
    """
    cards: list[list[GpuReading]] = []
    for reading in readings:
        card = _card_of(reading, cards)
        if card is None:
            cards.append([reading])
        else:
            card.append(reading)
    return tuple(_accelerator(card, memory) for card in cards)


def _card_of(reading: GpuReading, cards: list[list[GpuReading]]) -> list[GpuReading] | None:
    """Return the known card that a reading belongs to, or None for a new card.

    The card is matched by its address or, failing that, by its vendor.
    """
    for card in cards:
        if reading.pci and any(known.pci == reading.pci for known in card):
            return card
    for card in cards:
        told_apart = reading.pci and any(known.pci for known in card)
        # If the source (or ggml's backend) has already listed this card, the reading is about another one.
        listed = any(_listed_by(known) == _listed_by(reading) for known in card)
        if card[0].vendor == reading.vendor and not told_apart and not listed:
            return card
    return None


def _listed_by(reading: GpuReading) -> tuple[Source, str]:
    return reading.source, (reading.device or "").rstrip("0123456789")


def _accelerator(card: list[GpuReading], memory: Memory) -> Accelerator:
    knowing = [reading for reading in card if reading.total > 0]
    total = knowing[0].total if knowing else 0
    # Totals can mean different things: the whole card or a slice of it, one heap or all heaps. Among sources
    # whose totals agree, the smallest free figure is right: it accounts for a program that the others
    # overlook.
    same = [reading for reading in knowing if abs(reading.total - total) <= _SAME * total]
    free = min([total, *(max(0, reading.free) for reading in same)])
    shares = next((reading.shares_ram for reading in card if reading.shares_ram is not None), False)
    own = free
    if shares:
        own = min(free, max(reading.set_aside for reading in card))
        total = min(total, memory.total + own)
        free = min(free, own + memory.available)
    return Accelerator(
        name=next((reading.name for reading in card if reading.name), card[0].vendor),
        vendor=card[0].vendor,
        devices=tuple(reading.device for reading in card if reading.device),
        total=total,
        free=free,
        shares_ram=shares,
        own=own,
        pci=next((reading.pci for reading in card if reading.pci), None),
        sources=tuple(dict.fromkeys(reading.source for reading in card)),
    )
