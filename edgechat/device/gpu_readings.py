"""Sources of GPU readings: the Linux kernel, NVIDIA's driver, torch, and macOS.

The driver's library (NVML) may hang, and torch is large, so a child process queries both. NVML needs no CUDA
context, so a query takes no memory on the card. The kernel even lists cards without a compute driver, and
`edgechat doctor` reports them.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import platform
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from edgechat.base.process.ask import ChildFailed, answer, ask
from edgechat.base.process.spawn import frozen
from edgechat.device.accelerators import GpuReading, Vendor
from edgechat.device.cgroup import read_number, read_text
from edgechat.device.cpu import sysctl

TIME_LIMITS = {"nvml": 10.0, "torch": 30.0}
"""Time limits in seconds. Importing torch alone takes two to ten."""


class SourceAnswer(msgspec.Struct, frozen=True):
    """The child's answer: the readings, or an error."""

    readings: tuple[GpuReading, ...] = ()
    error: str | None = None


def read_source(source: Literal["nvml", "torch"]) -> tuple[GpuReading, ...]:
    """Ask a child for the readings from a source; () if the source is not installed. Raises ChildFailed."""
    if source == "torch" and not has_torch():
        return ()
    try:
        reply = ask("gpu", source.encode(), limit=TIME_LIMITS[source])
        result = msgspec.msgpack.decode(reply, type=SourceAnswer)
    except msgspec.DecodeError as error:
        raise ChildFailed(f"gave an invalid answer: {error}") from error
    if result.error is not None:
        raise ChildFailed(f"reported: {result.error}")
    return result.readings


def has_torch() -> bool:
    """Return True if torch is installed, without importing it."""
    return not frozen() and importlib.util.find_spec("torch") is not None


def main() -> None:
    """Send the readings from the source that the parent asked for."""
    answer(lambda request: msgspec.msgpack.encode(_look(request.decode())))


def _look(source: str) -> SourceAnswer:
    try:
        if source == "torch":
            return SourceAnswer(tuple(_torch_readings()))
        return SourceAnswer(tuple(_nvidia_readings()))
    except Exception as error:
        return SourceAnswer(error=str(error)[:500] or type(error).__name__)


def _torch_readings() -> list[GpuReading]:
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
    """Return a card's reading from torch.cuda or torch.xpu, which have the same interface."""
    about = module.get_device_properties(index)
    try:
        free, total = module.mem_get_info(index)
    except (AttributeError, RuntimeError):  # some Intel drivers do not report free memory
        free = total = about.total_memory
    bus = getattr(about, "pci_bus_id", None)
    pci = None
    if bus is not None:
        pci = f"{getattr(about, 'pci_domain_id', 0):04x}:{bus:02x}:{getattr(about, 'pci_device_id', 0):02x}.0"
    shares = bool(getattr(about, "is_integrated", False)) or None
    return GpuReading(
        source="torch", vendor=vendor, name=about.name, pci=pci, total=total, free=free, shares_ram=shares
    )


_VENDORS: dict[str, Vendor] = {"0x10de": "nvidia", "0x1002": "amd", "0x8086": "intel"}
_NAMES = {"nvidia": "NVIDIA GPU", "amd": "AMD GPU", "intel": "Intel GPU"}
# PCI classes: VGA, 3D and other display controllers, and accelerators without a display (AMD Instinct).
_CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")
# Intel's server chips contain many accelerators that are of no use here.
_ACCELERATOR = "0x1200"


def kernel_readings(root: Path = Path("/")) -> list[GpuReading]:
    """Return readings for the NVIDIA, AMD and Intel cards on the PCI bus, ordered by address.

    root: the folder that contains /sys.
    """
    try:
        folders = sorted((root / "sys/bus/pci/devices").iterdir())
    except OSError:
        return []
    return [card for folder in folders for card in _kernel_card(folder)]


def _kernel_card(folder: Path) -> Iterator[GpuReading]:
    vendor = _VENDORS.get(read_text(folder / "vendor").strip())
    kind = read_text(folder / "class").strip()[:6]
    if vendor is None or kind not in _CLASSES or (vendor == "intel" and kind == _ACCELERATOR):
        return
    pci = folder.name.lower()
    name = read_text(folder / "product_name").strip() or _NAMES[vendor]
    card = GpuReading(source="kernel", vendor=vendor, name=name, pci=pci)
    replace = msgspec.structs.replace
    if vendor == "intel":
        # Integrated Intel graphics are on the first bus; a separate card is behind a bridge.
        card = replace(card, shares_ram=pci[5:7] == "00")
    elif vendor == "amd":
        total, free = _pool(folder, "vram")
        card = replace(card, total=total, free=free, shares_ram=False)
        if _is_apu(folder):
            # MemTotal excludes the memory that the firmware has reserved. GTT memory is ordinary RAM.
            gtt, gtt_free = _pool(folder, "gtt")
            card = replace(card, total=total + gtt, free=free + gtt_free, shares_ram=True, set_aside=free)
    yield card


def _pool(folder: Path, name: str) -> tuple[int, int]:
    """Return the total and free bytes in the memory pool 'vram' or 'gtt'."""
    total = read_number(folder / f"mem_info_{name}_total") or 0
    used = read_number(folder / f"mem_info_{name}_used") or 0
    return total, max(0, total - used)


def _is_apu(folder: Path) -> bool:
    """Return True if the card is part of a processor, judging by the format of its metrics file.

    The kernel's struct metrics_table_header contains the size (2 bytes) and the format and content revisions.
    Formats 2 and 3 are for processors (kgd_pp_interface.h). Cards older than Vega 12 and processors older
    than Renoir have no such file.
    """
    try:
        with (folder / "gpu_metrics").open("rb") as file:
            header = file.read(4)
    except OSError:
        return False
    return len(header) == 4 and header[2] in (2, 3)


_WSL = "/usr/lib/wsl/lib/libnvidia-ml.so.1"
"""The Windows driver's library under WSL. The loader does not find it by itself."""
_MAX_CARDS = 64


def _nvidia_readings() -> list[GpuReading]:
    """Return readings for the cards that the driver lists; [] without an NVIDIA driver.

    Raises pynvml.NVMLError with the driver's message if the driver is broken.
    """
    import pynvml

    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            ctypes.CDLL(_WSL)  # once loaded, a library is found by its name
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError_LibraryNotFound:
        return []
    try:
        cards = (_nvidia_card(index) for index in range(min(pynvml.nvmlDeviceGetCount(), _MAX_CARDS)))
        return [card for card in cards if card is not None]
    finally:
        pynvml.nvmlShutdown()


def _nvidia_card(index: int) -> GpuReading | None:
    """Return a card's reading, or None if access fails. Values not reported by the driver stay unknown."""
    import pynvml

    handle = _ask(pynvml.nvmlDeviceGetHandleByIndex, index)
    if handle is None:
        return None
    pci = _ask(pynvml.nvmlDeviceGetPciInfo, handle)
    # A chip that shares the RAM (Jetson, GB10) reports no dedicated memory.
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
    """Return the driver's answer, or None if it fails."""
    import pynvml

    try:
        return query(argument)
    except (pynvml.NVMLError, UnicodeDecodeError):
        return None


_LARGE = 36 * 2**30


def mac_readings() -> list[GpuReading]:
    """Return this Mac's GPU; [] on other systems and on Macs with Intel processors."""
    if platform.system() != "Darwin" or platform.machine() != "arm64":
        return []
    answer = sysctl("machdep.cpu.brand_string", "hw.memsize", "iogpu.wired_limit_mb")
    return [mac_gpu(answer)] if answer else []


def mac_gpu(answer: str) -> GpuReading:
    """Parse sysctl's output into a Mac's GPU.

    Metal may use only part of the RAM: two thirds, or three quarters above 36 GiB, unless
    iogpu.wired_limit_mb is set.
    """
    facts = dict(re.findall(r"^([\w.]+): (.+)$", answer, re.MULTILINE))
    ram = int(facts.get("hw.memsize", "0"))
    set_mib = int(facts.get("iogpu.wired_limit_mb", "0"))
    return metal(ram, facts.get("machdep.cpu.brand_string", "Apple GPU"), set_mib * 2**20)


def metal(ram: int, name: str, limit: int = 0) -> GpuReading:
    """Return the GPU of a Mac with `ram` bytes of memory. limit: the configured limit in bytes, or 0."""
    total = limit or (ram * 2 // 3 if ram <= _LARGE else ram * 3 // 4)
    return GpuReading(source="kernel", vendor="apple", name=name, total=total, free=total, shares_ram=True)
