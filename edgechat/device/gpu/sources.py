"""The sources of sightings that run in a child: NVML, which is the driver's, and torch, which is large."""

from __future__ import annotations

import importlib.util
from typing import Any, Literal

import msgspec

from edgechat.base.process.ask import ChildFailed, answer, ask
from edgechat.base.process.spawn import frozen
from edgechat.device.gpu.accelerators import GpuReading, Vendor

TIME_LIMITS = {"nvml": 10.0, "torch": 30.0}
"""Seconds. Importing torch alone takes two to ten."""


class SourceAnswer(msgspec.Struct, frozen=True):
    """The child's answer: the cards, or what went wrong."""

    sightings: tuple[GpuReading, ...] = ()
    error: str | None = None


def read_source(source: Literal["nvml", "torch"]) -> tuple[GpuReading, ...]:
    """Ask a child for what a source sees; nothing where it is not installed. Raises ChildFailed."""
    if source == "torch" and not has_torch():
        return ()
    try:
        reply = ask("gpu", source.encode(), limit=TIME_LIMITS[source])
        result = msgspec.msgpack.decode(reply, type=SourceAnswer)
    except msgspec.DecodeError as error:
        raise ChildFailed(f"gave an invalid answer: {error}") from error
    if result.error is not None:
        raise ChildFailed(f"reported: {result.error}")
    return result.sightings


def has_torch() -> bool:
    """Say whether torch is installed, without importing it."""
    return not frozen() and importlib.util.find_spec("torch") is not None


def main() -> None:
    """Answer with what the source named in the request sees."""
    answer(lambda request: msgspec.msgpack.encode(_look(request.decode())))


def _look(source: str) -> SourceAnswer:
    try:
        if source == "torch":
            return SourceAnswer(tuple(_torch()))
        from edgechat.device.gpu import nvml

        return SourceAnswer(tuple(nvml.sightings()))
    except Exception as error:
        return SourceAnswer(error=str(error)[:500] or type(error).__name__)


def _torch() -> list[GpuReading]:
    import torch  # type: ignore[import-not-found,unused-ignore]

    module: Any = torch
    cards: list[GpuReading] = []
    if module.cuda.is_available():
        vendor: Vendor = "amd" if module.version.hip else "nvidia"
        cards += [_torch_card(module.cuda, index, vendor) for index in range(module.cuda.device_count())]
    if hasattr(module, "xpu") and module.xpu.is_available():
        cards += [_torch_card(module.xpu, index, "intel") for index in range(module.xpu.device_count())]
    if module.backends.mps.is_available():
        total = int(module.mps.recommended_max_memory())
        free = total - int(module.mps.driver_allocated_memory())
        cards.append(GpuReading(source="torch", vendor="apple", total=total, free=free, shares_ram=True))
    return cards


def _torch_card(module: Any, index: int, vendor: Vendor) -> GpuReading:
    """Return a card of torch.cuda or torch.xpu, which speak alike."""
    about = module.get_device_properties(index)
    try:
        free, total = module.mem_get_info(index)
    except (AttributeError, RuntimeError):  # some Intel drivers do not tell what is free
        free = total = about.total_memory
    bus = getattr(about, "pci_bus_id", None)
    pci = None
    if bus is not None:
        pci = f"{getattr(about, 'pci_domain_id', 0):04x}:{bus:02x}:{getattr(about, 'pci_device_id', 0):02x}.0"
    shares = bool(getattr(about, "is_integrated", False)) or None
    return GpuReading(
        source="torch", vendor=vendor, name=about.name, pci=pci, total=total, free=free, shares_ram=shares
    )
