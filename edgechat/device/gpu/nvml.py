"""NVIDIA's cards by NVML, the driver's own library: no CUDA context, so asking costs no memory on the card.

Called inside a child (`edgechat.device.gpu.sources`): the library is the driver's, and may hang with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Callable
from typing import Any

import pynvml

from edgechat.device.gpu.accelerators import GpuReading

_WSL = "/usr/lib/wsl/lib/libnvidia-ml.so.1"
"""Where Windows lends its driver to Linux, which its loader does not search by itself."""
_MAX_CARDS = 64


def sightings() -> list[GpuReading]:
    """Return the cards that the driver knows, none where there is no NVIDIA driver.

    Raises pynvml.NVMLError, with the driver's own words, where it knows itself to be broken.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            ctypes.CDLL(_WSL)  # the loader finds by its name what is loaded already
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError_LibraryNotFound:
        return []
    try:
        cards = (_card(index) for index in range(min(pynvml.nvmlDeviceGetCount(), _MAX_CARDS)))
        return [card for card in cards if card is not None]
    finally:
        pynvml.nvmlShutdown()


def _card(index: int) -> GpuReading | None:
    """Return a card; None where we may not look at it. What it does not tell stays unknown."""
    handle = _ask(pynvml.nvmlDeviceGetHandleByIndex, index)
    if handle is None:
        return None
    pci = _ask(pynvml.nvmlDeviceGetPciInfo, handle)
    # A chip that shares the RAM (Jetson, GB10) has no memory of its own to tell of.
    memory = _ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
    return GpuReading(
        source="nvml",
        vendor="nvidia",
        name=_ask(pynvml.nvmlDeviceGetName, handle) or "",
        pci=f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0" if pci is not None else None,
        total=memory.total if memory is not None else 0,
        free=memory.free if memory is not None else 0,
        shares_ram=None if memory is not None else True,
    )


def _ask(query: Callable[..., Any], argument: Any) -> Any:
    """Return what the driver says; None if it does not."""
    try:
        return query(argument)
    except (pynvml.NVMLError, UnicodeDecodeError):
        return None
