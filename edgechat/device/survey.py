"""Survey: examines this machine using all sources, in parallel child processes, in about half a second.

If a source fails, that is part of the result and not an error: `edgechat doctor` reports it.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from edgechat import settings
from edgechat.base.errors import FolderError, ServerRefused, SettingsError
from edgechat.base.process.ask import ChildFailed
from edgechat.device.accelerators import GpuReading, ggml_readings, merge
from edgechat.device.cpu import read_instruction_sets
from edgechat.device.gpu_readings import kernel_readings, mac_readings, read_source
from edgechat.device.profile import DeviceProfile, probe
from edgechat.native import amx
from edgechat.native.accelerators.devices import Build, DeviceInventory, read_inventory

_T = TypeVar("_T")
SurveySource = Literal["llama.cpp", "rpc", "nvml", "torch", "speed"]


@dataclass(frozen=True, slots=True)
class Failure:
    """A source that could not be read."""

    source: SurveySource
    why: str
    """The end of a sentence, such as 'ended with SIGSEGV'; for rpc, a whole sentence."""


@dataclass(frozen=True, slots=True)
class Survey:
    """The result of a full examination of this machine."""

    profile: DeviceProfile
    instruction_sets: tuple[str, ...]
    build: Build | None
    """The build of llama.cpp, or None if it did not work; in that case, `failures` says why."""
    failures: tuple[Failure, ...] = ()
    amx: str = ""
    """Why AMX is not used ('ended with SIGSEGV'); empty if it is used or not available."""


def survey(measure: Callable[[DeviceProfile], DeviceProfile] | None = None) -> Survey:
    """Examine this machine. measure: adds speeds to the profile, or raises ChildFailed."""
    failures: list[Failure] = []
    with ThreadPoolExecutor(2) as pool:
        driver = pool.submit(_query, failures, "nvml", lambda: read_source("nvml"))
        inventory = _query(failures, "llama.cpp", lambda: _inventory(failures))
        from_driver: tuple[GpuReading, ...] = driver.result() or ()
    # Probe only now that the children have freed their memory.
    profile = probe()
    readings = ggml_readings(inventory.devices) if inventory else []
    readings += [*from_driver, *kernel_readings(), *mac_readings()]
    if _is_unclear(readings):
        readings += _query(failures, "torch", lambda: read_source("torch")) or ()
    profile = replace(profile, accelerators=merge(readings, profile.memory))
    if measure is not None:
        found = profile
        profile = _query(failures, "speed", lambda: measure(found)) or profile
    instructions = read_instruction_sets() or (inventory.build.features if inventory else ())
    if amx.is_used():
        instructions += (amx.FEATURE,)
    build = inventory.build if inventory else None
    return Survey(profile, instructions, build, tuple(failures), amx.failure())


def _inventory(failures: list[Failure]) -> DeviceInventory:
    servers: tuple[str, ...] = ()
    with contextlib.suppress(SettingsError, FolderError):  # reported when a load is planned
        servers = settings.load().rpc
    try:
        return read_inventory(rpc=servers)
    except ServerRefused as refused:  # the devices in this machine still work
        failures.append(Failure("rpc", refused.message))
        return read_inventory()


def _query(failures: list[Failure], source: SurveySource, question: Callable[[], _T]) -> _T | None:
    try:
        return question()
    except ChildFailed as failed:
        failures.append(Failure(source, str(failed)))
        return None


def _is_unclear(readings: list[GpuReading]) -> bool:
    """Return True if a card's memory is still unknown, so that asking torch is worth a few seconds.

    On Windows, there may be a card that neither ggml nor NVML has found.
    """
    known = {reading.pci or reading.vendor for reading in readings if reading.total or reading.shares_ram}
    unknown = any((reading.pci or reading.vendor) not in known for reading in readings)
    return unknown or (sys.platform == "win32" and not readings)
