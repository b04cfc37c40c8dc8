"""The GPU inside an Apple processor, for MLX and builds without Metal; with it ggml's figures come first."""

from __future__ import annotations

import platform
import re

from edgechat.device.cpu import sysctl
from edgechat.device.gpu.accelerators import GpuReading

_LARGE = 36 * 2**30


def mac_sightings() -> list[GpuReading]:
    """Return the GPU of this Mac; nothing elsewhere, and on Macs with Intel processors."""
    if platform.system() != "Darwin" or platform.machine() != "arm64":
        return []
    answer = sysctl("machdep.cpu.brand_string", "hw.memsize", "iogpu.wired_limit_mb")
    return [mac_gpu(answer)] if answer else []


def mac_gpu(answer: str) -> GpuReading:
    """Return the GPU from what `sysctl` printed.

    Metal may keep a share of the RAM in use: two thirds of it, three quarters above 36 GiB, or what someone
    has set iogpu.wired_limit_mb to.
    """
    facts = dict(re.findall(r"^([\w.]+): (.+)$", answer, re.MULTILINE))
    ram = int(facts.get("hw.memsize", "0"))
    set_mib = int(facts.get("iogpu.wired_limit_mb", "0"))
    return metal(ram, facts.get("machdep.cpu.brand_string", "Apple GPU"), set_mib * 2**20)


def metal(ram: int, name: str, limit: int = 0) -> GpuReading:
    """Return the GPU of a Mac with so much RAM; limit: bytes that someone has set for it, or 0."""
    total = limit or (ram * 2 // 3 if ram <= _LARGE else ram * 3 // 4)
    return GpuReading(source="kernel", vendor="apple", name=name, total=total, free=total, shares_ram=True)
