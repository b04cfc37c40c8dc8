"""What a device does in a second: measured of the processor, guessed of an accelerator.

The processor is measured by `device/bandwidth.py`; real loads correct both (`calibration.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from edgechat.device.bandwidth import MemorySpeed
from edgechat.device.gpu.accelerators import Accelerator, Vendor

_UNMEASURED = (20e9, 100e9)
_READS = 30.0
"""A card reads all of its own memory about so many times a second: 8 GB at 260 GB/s, 24 GB at 770."""
_OPERATIONS: dict[Vendor, float] = {
    "nvidia": 2500.0,
    "amd": 1500.0,
    "intel": 800.0,
    "apple": 1500.0,
    "other": 1000.0,
}
"""Operations a second for each byte of its memory, by what llama.cpp reads of prompts on them."""
_SHARED: dict[Vendor, float] = {"nvidia": 4e12, "amd": 2e12, "intel": 1.2e12, "apple": 1e12, "other": 5e11}
"""Operations a second of a graphics unit in a processor."""
_APPLE = 19.0
"""Of Apple's, for each byte that the memory gives in a second (llama.cpp discussion 4167: M1 to M2 Ultra)."""
_SHARED_COMPUTE = 4.0
"""A graphics unit in the processor multiplies so many times faster than the processor itself."""
_ALONE = 2
"""Times its share of the bandwidth that a thread reads where the others rest."""


@dataclass(frozen=True, slots=True)
class DeviceRate:
    """What a device does in a second."""

    bandwidth: float
    """Bytes read from its memory."""
    compute: float
    """Floating-point operations, with whole matrices."""


def rate_of_processor(speed: MemorySpeed | None, threads: int | None = None) -> DeviceRate:
    """Return what was measured, or the rate of a slow laptop; threads: fewer than it was measured with.

    More gain nothing: it was measured with as many as compute best.
    """
    if speed is None:
        return DeviceRate(*_UNMEASURED)
    share = 1.0 if threads is None else min(1.0, threads / max(1, speed.threads))
    return DeviceRate(min(1.0, _ALONE * share) * speed.bandwidth, share * speed.compute)


def rate_of_card(card: Accelerator, processor: DeviceRate) -> DeviceRate:
    """Return what a card of this kind usually does."""
    if card.devices and card.devices[0].startswith("RPC"):
        return processor
    if not card.shares_ram:
        return DeviceRate(_READS * card.total, _OPERATIONS[card.vendor] * card.total)
    compute = max(_SHARED[card.vendor], _SHARED_COMPUTE * processor.compute)
    if card.vendor == "apple":
        compute = max(compute, _APPLE * processor.bandwidth)
    return DeviceRate(processor.bandwidth, compute)
