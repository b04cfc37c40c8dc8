"""DeviceProfile: this machine's hardware as a single value."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from edgechat.device.accelerators import Accelerator
from edgechat.device.cpu import Cpu, read_cpu
from edgechat.device.load import Disturbance, slowed_now
from edgechat.device.memory import Memory, read_memory
from edgechat.device.mlx import missing
from edgechat.device.speed import DeviceSpeed, cached_speed


@dataclass(frozen=True, slots=True)
class DeviceProfile:
    """What the planner knows about a machine."""

    cpu: Cpu
    memory: Memory
    speed: DeviceSpeed | None = None
    """The CPU's speed; None until it has been measured once (`edgechat device`)."""
    accelerators: tuple[Accelerator, ...] = ()
    """Filled by `edgechat.device.survey`; empty after a quick `probe`."""
    rpc: tuple[str, ...] = ()
    """RPC servers whose devices are included."""
    refused: str = ""
    """Why the servers in settings.toml are not included, as a sentence; empty if they are."""
    mlx: bool = False
    """Whether MLX is installed."""
    card_speeds: Mapping[str, DeviceSpeed] = field(default_factory=dict)
    """Speeds of the accelerators that have been measured, keyed by llama.cpp's name."""
    slowed: tuple[Disturbance, ...] = ()
    """What is slowing the machine down right now. Plans ignore this."""

    @property
    def free(self) -> int:
        """Total bytes available on all devices. Memory that several devices share is counted once."""
        return self.memory.available + sum(card.own for card in self.accelerators if card.usable)

    @property
    def mlx_card(self) -> Accelerator | None:
        """The accelerator that MLX uses; None if MLX runs on the CPU or is not installed."""
        return next((card for card in self.accelerators if self.mlx and card.is_apples), None)


def probe() -> DeviceProfile:
    """Examine this machine without starting child processes, in a few milliseconds.

    The result depends on how much memory other programs are using.
    """
    cpu = read_cpu()
    return DeviceProfile(cpu, read_memory(), cached_speed(cpu), mlx=not missing(), slowed=slowed_now())


def disk_free(path: Path) -> int | None:
    """Return how many bytes are free on the disk that holds `path`, which need not exist; None if unknown."""
    for folder in (path, *path.parents):
        if os.path.isdir(folder):
            try:
                return shutil.disk_usage(folder).free
            except OSError:
                return None
    return None
