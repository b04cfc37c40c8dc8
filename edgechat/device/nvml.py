"""NVIDIA's cards by NVML, the driver's own library: no CUDA context, so asking costs no memory on the card.

Called inside a child (`edgechat.device.sources`): the library is the driver's, and may hang with it.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

from edgechat.device.gpu import Sighting

_LIBRARIES = ("nvml.dll",) if sys.platform == "win32" else ("libnvidia-ml.so.1", "libnvidia-ml.so")
# Where Windows lends its driver to Linux, which its loader does not search by itself.
_WSL = "/usr/lib/wsl/lib/libnvidia-ml.so.1"


class NvmlFailed(Exception):
    """NVML is there and says no; the text is its own."""


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _PciInfo(ctypes.Structure):
    """nvmlPciInfo_t, of which the numbers are used: its texts have a format that has changed."""

    _fields_ = (
        ("bus_id_legacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("pci_device_id", ctypes.c_uint),
        ("pci_subsystem_id", ctypes.c_uint),
        ("bus_id", ctypes.c_char * 32),
    )


def load() -> Any | None:
    """Return the library, or None where there is no NVIDIA driver."""
    for name in (*_LIBRARIES, _WSL):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def sightings(library: Any) -> list[Sighting]:
    """Return the cards that the driver knows. Raises NvmlFailed where it knows itself to be broken."""
    _call(library, "nvmlInit_v2")
    try:
        count = ctypes.c_uint()
        _call(library, "nvmlDeviceGetCount_v2", ctypes.byref(count))
        found = (_card(library, index) for index in range(min(count.value, 64)))
        return [card for card in found if card is not None]
    finally:
        library.nvmlShutdown()


def _card(library: Any, index: int) -> Sighting | None:
    """Return a card; None where we may not look at it. What it does not tell stays unknown."""
    handle = ctypes.c_void_p()
    try:
        _call(library, "nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
    except NvmlFailed:
        return None
    name, pci, memory = ctypes.create_string_buffer(96), _PciInfo(), _Memory()
    has_name = _may(library, "nvmlDeviceGetName", handle, name, ctypes.c_uint(len(name)))
    has_pci = _may(library, "nvmlDeviceGetPciInfo_v3", handle, ctypes.byref(pci))
    # A chip that shares the RAM (Jetson, GB10) has no memory of its own to tell of.
    has_memory = _may(library, "nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
    return Sighting(
        source="nvml",
        vendor="nvidia",
        name=name.value.decode("utf-8", "replace") if has_name else "",
        pci=f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0" if has_pci else None,
        total=memory.total if has_memory else 0,
        free=memory.free if has_memory else 0,
        shares_ram=None if has_memory else True,
    )


def _may(library: Any, name: str, *args: Any) -> bool:
    try:
        _call(library, name, *args)
    except NvmlFailed:
        return False
    return True


def _call(library: Any, name: str, *args: Any) -> None:
    try:
        code = int(getattr(library, name)(*args))
    except AttributeError as error:
        raise NvmlFailed(f"this driver has no {name}") from error
    if code:
        raise NvmlFailed(_reason(library, code))


def _reason(library: Any, code: int) -> str:
    try:
        library.nvmlErrorString.restype = ctypes.c_char_p
        return str(library.nvmlErrorString(code).decode("utf-8", "replace"))
    except AttributeError:
        return f"code {code}"
