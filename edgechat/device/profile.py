"""The DeviceProfile: what this machine is, as one value."""

from __future__ import annotations

from dataclasses import dataclass

from edgechat.device.cpu import Cpu, read_cpu
from edgechat.device.memory import Memory, read_memory


@dataclass(frozen=True, slots=True)
class DeviceProfile:
    """What a plan needs to know of a machine."""

    cpu: Cpu
    memory: Memory


def probe() -> DeviceProfile:
    """Look at this machine now; memory that others take or give back changes the answer."""
    return DeviceProfile(read_cpu(), read_memory())
