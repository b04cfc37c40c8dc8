"""The DeviceProfile: what this machine is, as one value."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from edgechat.device.bandwidth import MemorySpeed, cached_speed
from edgechat.device.cpu import Cpu, read_cpu
from edgechat.device.gpu.accelerators import Accelerator
from edgechat.device.load import Disturbance, slowed_now
from edgechat.device.memory import Memory, read_memory
from edgechat.device.mlx import missing


@dataclass(frozen=True, slots=True)
class DeviceProfile:
    """What a plan needs to know of a machine."""

    cpu: Cpu
    memory: Memory
    speed: MemorySpeed | None = None
    """None until it has been measured once (`edgechat device`)."""
    accelerators: tuple[Accelerator, ...] = ()
    """Empty in a quick look: see `edgechat.device.survey`."""
    rpc: tuple[str, ...] = ()
    """Servers whose devices are among them."""
    refused: str = ""
    """Why those of settings.toml are not, in a sentence; empty where none are missing."""
    mlx: bool = False
    """Whether MLX is installed."""
    slowed: tuple[Disturbance, ...] = ()
    """What slows it down now: a state, which no plan depends on."""

    @property
    def free(self) -> int:
        """Bytes that may be taken on everything together; memory that is shared counts once."""
        return self.memory.available + sum(one.own for one in self.accelerators if one.usable)

    @property
    def mlx_card(self) -> Accelerator | None:
        """What MLX computes on; None: the processor, where it is installed."""
        return next((one for one in self.accelerators if self.mlx and one.is_apples), None)


def probe() -> DeviceProfile:
    """Look at this machine now, without starting anything: some milliseconds.

    Memory that others take or give back changes the answer.
    """
    cpu = read_cpu()
    return DeviceProfile(cpu, read_memory(), cached_speed(cpu), mlx=not missing(), slowed=slowed_now())


def disk_free(path: Path) -> int | None:
    """Return the bytes that we may write where `path` is or would be; None where nobody knows."""
    for folder in (path, *path.parents):
        if os.path.isdir(folder):
            try:
                return shutil.disk_usage(folder).free
            except OSError:
                return None
    return None
