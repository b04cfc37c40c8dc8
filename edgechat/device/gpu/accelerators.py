"""The accelerators, merged from several sources, with their available memory.

ggml lists what this build of llama.cpp can compute on; the driver (NVML), the kernel (sysfs) and torch tell
of cards that it cannot, and what other programs have taken. What a source says of a card is a GpuReading;
cards are matched by PCI address, or by maker if a source has no address.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from edgechat.device.memory import Memory
from edgechat.native.devices import NativeDevice

Vendor = Literal["nvidia", "amd", "intel", "apple", "other"]
Source = Literal["ggml", "nvml", "kernel", "torch"]

_SAME = 0.1
"""Sources that differ by less than this share in a card's total speak of the same memory."""
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


class GpuReading(msgspec.Struct, frozen=True, kw_only=True):
    """What one source reports about one card."""

    source: Source
    vendor: Vendor
    name: str = ""
    pci: str | None = None
    """'0000:c1:00.0', lower case."""
    total: int = 0
    """Bytes; 0 where the source does not know."""
    free: int = 0
    shares_ram: bool | None = None
    """None where the source does not know."""
    set_aside: int = 0
    """Bytes of `free` that the firmware has taken from the RAM for this card that shares it."""
    device: str | None = None
    """llama.cpp's name of it; only ggml knows."""


@dataclass(frozen=True, slots=True)
class Accelerator:
    """A GPU, or something like it."""

    name: str
    vendor: Vendor
    devices: tuple[str, ...]
    """llama.cpp's names of it, the best one first: 'CUDA0', 'Vulkan0'; empty: this build cannot use it."""
    total: int
    """The most that a program can allocate, in bytes; 0 if unknown."""
    free: int
    """Bytes that may be taken now; never more than `total`, nor than the RAM has where it is shared."""
    shares_ram: bool
    """Whether it computes in the machine's own memory, which must then be charged once for both."""
    own: int
    """Bytes of `free` that no RAM has to be given for: all of them, unless it shares the RAM."""
    pci: str | None
    sources: tuple[Source, ...]

    @property
    def usable(self) -> bool:
        """Whether this build of llama.cpp can compute on it."""
        return bool(self.devices)

    @property
    def is_apples(self) -> bool:
        """Whether it is the one inside an Apple processor, on which MLX computes too."""
        return self.vendor == "apple" and self.shares_ram


def sightings_of(devices: Iterable[NativeDevice]) -> list[GpuReading]:
    """Return ggml's devices that hold layers, without those that only look like a GPU."""
    wanted = [device for device in devices if device.kind in ("gpu", "igpu") and not _is_software(device)]
    return [_sighting(device) for device in wanted]


def _sighting(device: NativeDevice) -> GpuReading:
    words = device.description.lower()
    by_word = next((vendor for word, vendor in _WORDS if word in words), None)
    vendor = by_word or _BACKENDS.get(device.backend, "other")
    return GpuReading(
        source="ggml",
        vendor=vendor,
        name=device.description or device.name,
        pci=device.device_id,
        total=device.total,
        free=device.free,
        # Metal calls every card a GPU; only AMD's, in Macs with Intel processors, have memory of their own.
        shares_ram=device.kind == "igpu" or (device.backend == "MTL" and vendor != "amd"),
        device=device.name,
    )


def _is_software(device: NativeDevice) -> bool:
    """Say whether a Vulkan device is the processor in disguise, slower than the processor itself."""
    return any(name in device.description.lower() for name in _SOFTWARE)


def merge(sightings: Sequence[GpuReading], memory: Memory) -> tuple[Accelerator, ...]:
    """Return each card once; where sources contradict each other the one listed first is believed.

    sightings: of the most trusted source first. memory: what the RAM has, for cards that share it.
    """
    cards: list[list[GpuReading]] = []
    for sighting in sightings:
        card = _card_of(sighting, cards)
        if card is None:
            cards.append([sighting])
        else:
            card.append(sighting)
    return tuple(_accelerator(card, memory) for card in cards)


def _card_of(sighting: GpuReading, cards: list[list[GpuReading]]) -> list[GpuReading] | None:
    """Return the card that this source sees here, if it is known already: by address, else by maker."""
    for card in cards:
        if sighting.pci and sighting.pci in _addresses(card):
            return card
    for card in cards:
        told_apart = sighting.pci and _addresses(card)
        if card[0].vendor == sighting.vendor and not told_apart and not _seen_by(sighting, card):
            return card
    return None


def _addresses(card: list[GpuReading]) -> set[str]:
    return {seen.pci for seen in card if seen.pci}


def _seen_by(sighting: GpuReading, card: list[GpuReading]) -> bool:
    """Say whether this source, or this backend of ggml, has spoken of the card: then it means another one."""
    return any(seen.source == sighting.source and _family(seen) == _family(sighting) for seen in card)


def _family(sighting: GpuReading) -> str:
    return (sighting.device or "").rstrip("0123456789")


def _accelerator(card: list[GpuReading], memory: Memory) -> Accelerator:
    knowing = [seen for seen in card if seen.total > 0]
    total = knowing[0].total if knowing else 0
    # A source may mean something else: NVML the whole card where we have a slice of it, a heap and not all
    # heaps. But where they mean the same, the smallest figure knows of a program that the others overlook.
    same = [seen for seen in knowing if abs(seen.total - total) <= _SAME * total]
    free = min([total, *(max(0, seen.free) for seen in same)])
    shares = next((seen.shares_ram for seen in card if seen.shares_ram is not None), False)
    own = free
    if shares:
        own = min(free, max(seen.set_aside for seen in card))
        total = min(total, memory.total + own)
        free = min(free, own + memory.available)
    return Accelerator(
        name=next((seen.name for seen in card if seen.name), card[0].vendor),
        vendor=card[0].vendor,
        devices=tuple(seen.device for seen in card if seen.device),
        total=total,
        free=free,
        shares_ram=shares,
        own=own,
        pci=next((seen.pci for seen in card if seen.pci), None),
        sources=tuple(dict.fromkeys(seen.source for seen in card)),
    )
