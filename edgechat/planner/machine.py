"""The machine that is planned for: this one as it is now, or another that someone describes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace

from edgechat import settings
from edgechat.base.errors import DryRunFailed
from edgechat.base.process.ask import ChildFailed
from edgechat.base.text import mebibytes
from edgechat.device.bandwidth import MemorySpeed, measure_speed
from edgechat.device.gpu import amdgpu
from edgechat.device.gpu.accelerators import Accelerator, merge, sightings_of
from edgechat.device.gpu.mac import mac_sightings, metal
from edgechat.device.load import Disturbance
from edgechat.device.memory import Memory
from edgechat.device.profile import DeviceProfile, probe
from edgechat.models.formats.header import ModelHeader
from edgechat.native.buffers import Breakdown
from edgechat.native.params import LoadParams
from edgechat.planner.estimate.calibration import Calibration
from edgechat.planner.estimate.dry_run import DryRun
from edgechat.planner.estimate.rates import rate_of_processor

SIMULATED = "GPU0"
"""The name of a card that is not here."""
_SYSTEM, _SYSTEM_SHARE = 2 * 2**30, 0.2
"""What a system with a browser open takes: so many bytes, or half where there is less, and this share."""
_SCREEN_SHARE = 0.08
_SLOWED: dict[Disturbance, str] = {
    "busy": "This machine is busy: while other programs run, answers will be slower than predicted.",
    "battery": "This machine runs on battery power, on which answers may be slower than predicted.",
}


def look(dry: DryRun | None = None) -> DeviceProfile:
    """Return this machine as it is now; with all its accelerators where a dry run can be asked for them."""
    profile = probe()
    # What only MLX computes on is seen without llama.cpp.
    alone = replace(profile, accelerators=merge(mac_sightings(), profile.memory))
    if dry is None:
        return alone
    servers, refused = settings.load().rpc, ""
    try:
        try:
            devices = dry.inventory(servers).devices
        except DryRunFailed as error:
            if not servers:
                raise
            # One that has gone takes nothing from what is in this machine.
            devices, servers, refused = dry.inventory().devices, (), error.message
    except DryRunFailed:  # then it cannot load anything on them either
        return alone
    sightings = [*sightings_of(devices), *amdgpu.sightings(), *mac_sightings()]
    return replace(profile, accelerators=merge(sightings, profile.memory), rpc=servers, refused=refused)


@dataclass(frozen=True, slots=True)
class MachineDescription:
    """Another machine, as far as it is described; None leaves what is here."""

    ram: int | None = None
    """Bytes that it has; what its system and its programs usually take is left to them."""
    vram: int | None = None
    """Bytes of a card of its own; 0: it has none."""
    bandwidth: float | None = None
    """Bytes that its memory gives in a second."""
    runs_mlx: bool = False
    """What is described is a Mac with Apple Silicon and MLX, whose GPU shares this memory."""

    def over(self, profile: DeviceProfile) -> DeviceProfile:
        """Return this machine changed so."""
        if self != MachineDescription():  # what another one does now nobody knows
            profile = replace(profile, slowed=())
        if self.ram is not None:
            taken = max(min(_SYSTEM, self.ram // 2), int(_SYSTEM_SHARE * self.ram))
            profile = replace(profile, memory=Memory(self.ram, self.ram - taken))
        if self.runs_mlx and (self.ram, self.bandwidth) != (None, None):
            gpu = metal(profile.memory.total, "a hypothetical Mac")
            profile = replace(profile, accelerators=merge([gpu], profile.memory), mlx=True)
        elif self.vram is not None:
            free = int(self.vram * (1 - _SCREEN_SHARE))
            card = Accelerator(
                name="a hypothetical GPU",
                vendor="other",
                devices=(SIMULATED,),
                total=self.vram,
                free=free,
                shares_ram=False,
                own=free,
                pci=None,
                sources=(),
            )
            profile = replace(profile, accelerators=(card,) if self.vram else ())
        if self.bandwidth is not None:
            compute = rate_of_processor(profile.speed).compute
            speed = MemorySpeed(bandwidth=self.bandwidth, compute=compute, threads=len(profile.cpu.usable))
            profile = replace(profile, speed=speed)
        return profile


class Machine:
    """A profile, what was learnt on it, and llama.cpp's word on what loads take there.

    rate(variant, Machine(profile), request)
    """

    def __init__(
        self, profile: DeviceProfile, *, history: Calibration | None = None, dry: DryRun | None = None
    ) -> None:
        self.profile = profile
        self.history = history if history is not None else Calibration()
        self._dry = dry
        self._shown: ModelHeader | None = None

    @property
    def unasked(self) -> Machine:
        """The same, for which everything is estimated."""
        return Machine(self.profile, history=self.history)

    def measuring(self, header: ModelHeader) -> Callable[[LoadParams], Breakdown] | None:
        """Return who says what loads of this model take: nobody, where there is no dry run, or of MLX."""
        dry = self._dry
        if dry is None or header.format == "mlx":
            return None

        def measure(params: LoadParams) -> Breakdown:
            if SIMULATED in params.devices:
                raise DryRunFailed("that accelerator is not in this machine.")
            if self._shown is not header:  # a model and its draft are asked about in turns
                dry.show(header)
                self._shown = header
            return dry.ask(params)

        return measure


def machine_for(described: MachineDescription, dry: DryRun) -> Machine:
    """Return this machine as it is now, changed as described; its speed is measured if it never was."""
    profile = look(dry)
    if profile.speed is None and described.bandwidth is None:
        with contextlib.suppress(ChildFailed):  # `edgechat doctor` says why; it is guessed then
            profile = replace(profile, speed=measure_speed(profile.cpu, profile.memory))
    # What this machine's memory was seen to do is not what another's does.
    history = Calibration.read() if described.bandwidth is None else Calibration()
    return Machine(described.over(profile), history=history, dry=dry)


def in_words(profile: DeviceProfile) -> str:
    """Return what a plan is made for, in a line or two."""
    speed = f"{rate_of_processor(profile.speed).bandwidth / 1e9:.0f} GB/s"
    text = f"{mebibytes(profile.memory.total)} of RAM, {mebibytes(profile.memory.available)} free, {speed}"
    for card in profile.accelerators:
        if card.usable or card == profile.mlx_card:
            shared = " shared with the CPU" if card.shares_ram else ""
            text += f"\n{card.name}: {mebibytes(card.total)}, {mebibytes(card.free)} free{shared}"
    return "\n".join((text, *(_SLOWED[disturbance] for disturbance in profile.slowed)))
