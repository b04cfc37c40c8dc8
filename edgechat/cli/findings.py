"""Findings: what keeps models from running well on this machine, and how to fix it.

Each layer checks its own files, and this module collects the results.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from edgechat import settings
from edgechat.base import paths
from edgechat.base.errors import EdgechatError, FolderError
from edgechat.base.process.spawn import frozen
from edgechat.base.text import mebibytes, one_line
from edgechat.chat.storage.store import Store, store_path
from edgechat.device.accelerators import Accelerator, Vendor
from edgechat.device.cpu import ESSENTIAL, Cpu, choose_threads
from edgechat.device.memory import Memory
from edgechat.device.mlx import missing
from edgechat.device.profile import DeviceProfile, disk_free
from edgechat.device.speed import DeviceSpeed
from edgechat.device.survey import Failure, Survey, survey
from edgechat.models.catalogue import catalogue
from edgechat.models.formats.gguf import read_model
from edgechat.models.local.inventory import inventory
from edgechat.models.local.locations import hub_cache, own_folder
from edgechat.models.local.resolve import resolve
from edgechat.models.remote.measured import engine_starts
from edgechat.native.accelerators.devices import Build

_GUIDE = "guide"
_MOST_NOTES = 8

GIB = 2**30
_LITTLE_MEMORY = 3 * GIB // 2
_LITTLE_DISK, _SOME_DISK = 2 * GIB, 10 * GIB
_NAMES: dict[Vendor, str] = {"nvidia": "NVIDIA", "amd": "AMD", "intel": "Intel", "apple": "Apple"}
_HIDING = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GGML_VK_VISIBLE_DEVICES")


class Weight(IntEnum):
    """Severity of a finding. Anything above NOTE counts as a problem."""

    NOTE = 0
    TIGHT = 1
    SLOW = 2
    BROKEN = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that was found, why it matters, and how to fix it."""

    weight: Weight
    what: str
    why: str
    fix: str
    """Instructions, in which lines that start with two spaces are commands."""


def all_findings() -> Iterator[Finding]:
    """Yield problems with edgechat's own files and with this machine."""
    yield from own_findings()
    yield from machine_findings(survey(), _disks())


def own_findings() -> Iterator[Finding]:
    """Yield problems with edgechat's own folders and files."""
    yield from _folders()
    yield from _unreadable_folders()
    yield from _failed_starts()
    reported: set[str] = set()
    for check, why in (
        (settings.load, "Commands fail, and the app opens without a model."),
        (catalogue, "Models cannot be found by name."),
        (lambda: read_model(resolve(_GUIDE).path), "The guide is the model that needs no download."),
        (_check_model, "edgechat opens with this model."),
        (_check_chats, "Conversations cannot be read or stored."),
    ):
        try:
            check()
        except FolderError:
            continue  # `_folders` reports it
        except EdgechatError as error:
            if error.message not in reported:
                yield Finding(Weight.BROKEN, error.message, why, error.hint or "")
            reported.add(error.message)


def _folders() -> Iterator[Finding]:
    """Yield a finding for each folder that is not writable. If one cannot even be created, stop there."""
    kinds: tuple[tuple[Callable[[], Path], str], ...] = (
        (paths.config_dir, "Settings are read from this folder."),
        (paths.data_dir, "Conversations and models are stored in this folder."),
        (paths.log_dir, "The engine process writes its log there, and does not start without it."),
        (paths.cache_dir, "Measurements are stored in this folder."),
    )
    for folder, why in kinds:
        try:
            path = folder()
        except FolderError as error:
            yield Finding(Weight.BROKEN, error.message, why, error.hint or "")
            return  # creating the others would fail in the same way
        try:
            path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=path):
                pass
        except OSError as error:
            grave = folder in (paths.data_dir, paths.log_dir)
            what = f"{path} is not writable: {error.strerror}."
            fix = f"Make it writable, or set EDGECHAT_HOME to another folder:\n  chmod u+rwx '{path}'"
            yield Finding(Weight.BROKEN if grave else Weight.NOTE, what, why, fix)


def _unreadable_folders() -> Iterator[Finding]:
    """Yield a note for each folder of models that cannot be read."""
    try:
        skipped = inventory().skipped
    except EdgechatError:
        return  # reported by the check of the catalogue
    for path, reason in list(skipped.items())[:_MOST_NOTES]:
        what = f"The models in {one_line(str(path), 300)} cannot be read: {reason}."
        fix = "To use them, give your user permission to read the folder."
        yield Finding(Weight.NOTE, what, "`edgechat list` does not show them.", fix)


def _failed_starts() -> Iterator[Finding]:
    """Yield a note for each model whose engine failed the last time it was started."""
    for name, start in list(engine_starts().items())[-_MOST_NOTES:]:
        if start.failure:
            what = f"The engine program for {one_line(name, 300)} {one_line(start.failure, 300)}."
            why = "This happened the last time it was started."
            yield Finding(Weight.NOTE, what, why, f"Read its log: {start.log}")


def _check_model() -> None:
    """Check that the model named in settings.toml is on this machine."""
    try:
        model = settings.load().model
    except EdgechatError:
        return
    if model is not None and model != _GUIDE:
        read_model(resolve(model).path)


def _check_chats() -> None:
    async def check() -> None:
        store = await Store.open_to_read(store_path())
        try:
            await store.check()
        finally:
            await store.close()

    if store_path().exists():
        asyncio.run(check())


def _disks() -> dict[Path, int]:
    """Return the free disk space for each folder of models, in bytes, counting each disk only once."""
    free: dict[Path, int] = {}
    folders = [hub_cache()]
    with suppress(FolderError):
        folders.insert(0, own_folder())
    for folder in folders:
        n_bytes = disk_free(folder)
        if n_bytes is not None and n_bytes not in free.values():
            free[folder] = n_bytes
    return free


def machine_findings(survey: Survey, disks: dict[Path, int]) -> Iterator[Finding]:
    """Yield findings about this machine and its llama.cpp. disks: free bytes, keyed by models folder."""
    for failure in survey.failures:
        yield _failure(failure)
    if survey.build is not None:
        yield from _unused(survey.profile.accelerators, survey.build)
        yield from _mlx(survey.profile)
        yield from _kernels(survey.instruction_sets, survey.build)
        yield from _amx(survey.amx, survey.build)
        yield from _rpc(survey.build)
    if survey.profile.speed is not None:
        yield from _attention(survey.profile.speed)
    yield from _memory(survey.profile.memory)
    yield from _quota(survey.profile.cpu)
    for folder, free in disks.items():
        yield from _disk(folder, free)


def _failure(failure: Failure) -> Finding:
    match failure.source:
        case "llama.cpp":
            why = "Without llama.cpp, no model can be loaded."
            if "SIGILL" in failure.why:
                why = "It was built for another CPU. " + why
            what = f"llama.cpp does not work: its process {failure.why}."
            return Finding(Weight.BROKEN, what, why, install_llama())
        case "rpc":
            why = "Models are loaded without the RPC servers that settings.toml names."
            fix = "Start the servers, or remove them from `rpc` in settings.toml."
            return Finding(Weight.SLOW, failure.why, why, fix)
        case "nvml":
            why = "llama.cpp may not be able to use the card either. This happens after driver updates."
            fix = "Restart the machine; then this command should list the card:\n  nvidia-smi"
            return Finding(Weight.SLOW, f"The NVIDIA driver does not respond: it {failure.why}.", why, fix)
        case "torch":
            what = f"torch is installed, but does not work: it {failure.why}."
            missing_size = "Only the size of the GPU's memory is missing"
            why = f"{missing_size}; edgechat does not need torch for anything else."
            return Finding(Weight.NOTE, what, why, f"  {sys.executable} -c 'import torch'")
        case "speed":
            why = "Without it, speed predictions are less accurate."
            what = f"The speed of the CPU could not be measured: the measurement {failure.why}."
            return Finding(Weight.NOTE, what, why, "  edgechat device --refresh")


def _unused(cards: tuple[Accelerator, ...], build: Build) -> Iterator[Finding]:
    """Yield a finding for each GPU vendor whose cards llama.cpp does not use."""
    for vendor, maker in _NAMES.items():
        unused = [card for card in cards if card.vendor == vendor and not card.usable]
        if not unused:
            continue
        names = ", ".join(dict.fromkeys(_described(card) for card in unused))
        built = [name for name in DRIVERS[vendor] if name in (*build.backends, *build.unloaded)]
        # A GPU inside an Intel or AMD processor shares its memory, and is seldom faster than the CPU.
        integrated = vendor in ("intel", "amd") and all(card.shares_ram for card in unused)
        weight = Weight.NOTE if integrated else Weight.SLOW
        if built:
            yield _unseen(vendor, names, built, weight)
        else:
            yield _not_built(vendor, maker, names, build, weight)


def _described(card: Accelerator) -> str:
    return f"{card.name} ({mebibytes(card.total)})" if card.total else card.name


def _not_built(vendor: Vendor, maker: str, names: str, build: Build, weight: Weight) -> Finding:
    backend, fix = rebuild(vendor, build)
    article = "an" if maker[0] in "AIN" else "a"
    if weight is Weight.NOTE:
        why = "It shares the CPU's memory, so answers are hardly faster; long prompts are read faster."
    else:
        why = "Models run only on the CPU, which is several times slower."
    what = (
        f"This build of llama.cpp has no {backend}, although the machine has {article} {maker} GPU: {names}."
    )
    return Finding(weight, what, why, fix)


def _unseen(vendor: Vendor, names: str, built: list[str], weight: Weight) -> Finding:
    hiding = [name for name in _HIDING if name in os.environ]
    what = f"llama.cpp was built with {' and '.join(built)}, but does not detect this GPU: {names}."
    if hiding:
        why = f"{hiding[0]} is set to {os.environ[hiding[0]]!r}, which hides GPUs from programs."
        return Finding(Weight.NOTE, what, why, f"  unset {hiding[0]}")
    why = "The driver is missing or too old for this build, or the container has no access to the GPU."
    checks = {"nvidia": "nvidia-smi", "amd": "rocminfo", "intel": "vulkaninfo --summary"}
    command = checks.get(vendor, "system_profiler SPDisplaysDataType")
    return Finding(weight, what, why, f"Check whether the driver lists it:\n  {command}")


def _mlx(profile: DeviceProfile) -> Iterator[Finding]:
    """Yield a note if MLX would be able to use the GPU but is not installed."""
    if profile.mlx or not any(card.is_apples for card in profile.accelerators):
        return
    why = "MLX models require it; edgechat would use the better of MLX and llama.cpp for each model."
    fix = install("mlx-lm", archive="Macs with Apple Silicon")
    yield Finding(Weight.NOTE, f"MLX is not used on this Mac. {missing()}", why, fix)


def _kernels(instruction_sets: tuple[str, ...], build: Build) -> Iterator[Finding]:
    missing = [name for name in instruction_sets if name not in build.features]
    if not missing or not build.features:
        return
    grave = [name for name in missing if name in ESSENTIAL]
    if frozen() and not grave:
        return  # the packaged program has already picked its best build
    listed = ", ".join(grave or missing)
    what = f"This build of llama.cpp does not use these instruction sets of the CPU: {listed}."
    why = "Models run at half speed or less." if grave else "Prompts are read somewhat more slowly."
    yield Finding(Weight.SLOW if grave else Weight.NOTE, what, why, rebuild(None, build)[1])


def _amx(failure: str, build: Build) -> Iterator[Finding]:
    """Yield a note if the matrix unit of a server CPU is not used."""
    if failure and not frozen():
        what = f"AMX, the matrix unit of this processor, is not used: its trial {failure}."
        why = "Prompts would be read up to 1.7 times as fast."
        fix = "Compile llama.cpp with GCC 13 or newer, or with Clang:\n" + rebuild(None, build)[1]
        yield Finding(Weight.NOTE, what, why, fix)


def _attention(speed: DeviceSpeed) -> Iterator[Finding]:
    """Yield a note for each attention shape whose speed could not be measured."""
    for heads, why in speed.unmeasured.items():
        yield Finding(
            Weight.NOTE,
            f"The speed of attention with {heads} could not be measured: the measurement {why}.",
            "Models with such heads use flash attention, although plain attention may be faster.",
            "To measure it with the next plan for such a model:\n  edgechat device --refresh",
        )


def _rpc(build: Build) -> Iterator[Finding]:
    if not build.rpc:
        why = "Only edgechat's tests and RPC servers need it."
        fix = "No action is needed. To install it:\n" + rebuild(None, build, also="RPC")[1]
        yield Finding(Weight.NOTE, "This build of llama.cpp has no RPC.", why, fix)


def _memory(memory: Memory) -> Iterator[Finding]:
    if memory.bound is not None and memory.limit is not None and memory.limit < memory.total // 2:
        limit, total = mebibytes(memory.limit), mebibytes(memory.total)
        fix = "Raise the limit where it was set: `docker run --memory` or MemoryMax= in the systemd unit."
        if "ulimit" in memory.bound:
            fix = f"  {memory.bound.removeprefix('the limit set by ')} unlimited"
        what = f"{memory.bound[0].upper()}{memory.bound[1:]} allows {limit} of the machine's {total}."
        yield Finding(Weight.TIGHT, what, "Models must fit within this limit.", fix)
    most = memory.total if memory.limit is None else min(memory.limit, memory.total)
    if memory.available < min(_LITTLE_MEMORY, most // 3):
        what = f"Little memory is free: {mebibytes(memory.available)} of {mebibytes(most)}."
        fix = "Close the programs that use the most memory; to list them:\n  ps aux --sort=-rss | head"
        if sys.platform != "linux":
            fix = "Close the programs that use the most memory."
        yield Finding(Weight.TIGHT, what, "Only the smallest models fit.", fix)


def _quota(cpu: Cpu) -> Iterator[Finding]:
    cores = sum(core.fast for core in cpu.usable) or len(cpu.usable)
    threads = choose_threads(cpu)[0]
    if cpu.quota is None or threads >= cores:
        return
    what = f"A control group limits CPU time to {cpu.quota:g} CPUs; the machine has {cores} cores."
    why = f"Models run with {threads} thread{'s' * (threads > 1)} instead of {cores}."
    fix = "Raise the limit where it was set: `docker run --cpus` or CPUQuota= in the systemd unit."
    yield Finding(Weight.TIGHT if 2 * threads <= cores else Weight.NOTE, what, why, fix)


def _disk(folder: Path, free: int) -> Iterator[Finding]:
    if free >= _SOME_DISK:
        return
    little = free < _LITTLE_DISK
    what = f"{'Little' if little else 'Some'} disk space is left for models: {mebibytes(free)} in {folder}."
    why = "A small model takes 0.5 to 2.5 GiB; one with 8 billion parameters, 5 GiB."
    fix = f"Free some space; to see what is stored there:\n  du -sh {folder}"
    yield Finding(Weight.TIGHT if little else Weight.NOTE, what, why, fix)


# Remedies: commands that install what is missing, suited to this installation and shell.

DRIVERS: dict[Vendor, tuple[str, ...]] = {
    "nvidia": ("CUDA", "Vulkan"),
    "amd": ("ROCm", "Vulkan"),
    "intel": ("SYCL", "Vulkan"),
    "apple": ("MTL",),
}
"""The ggml backends that support each vendor's GPUs."""
_OPTIONS = {
    "CUDA": "GGML_CUDA",
    "ROCm": "GGML_HIP",
    "Vulkan": "GGML_VULKAN",
    "SYCL": "GGML_SYCL",
    "MTL": "GGML_METAL",
    "RPC": "GGML_RPC",
}
_TOOLKITS = {
    "CUDA": ("nvcc", "the CUDA toolkit"),
    "ROCm": ("hipcc", "ROCm"),
    "Vulkan": ("glslc", "the Vulkan SDK"),
    "MTL": ("xcrun", "Xcode's command line tools (xcode-select --install)"),
}
_ARCHIVES = {"CUDA": "cuda", "Vulkan": "vulkan"}
"""Backends that come in archives of their own, for x86-64 only. All archives for Macs include Metal."""
_PACKAGE = "llama-cpp-python"


def rebuild(vendor: Vendor | None, build: Build, *, also: str | None = None) -> tuple[str, str]:
    """Return the backend to build for a vendor's GPUs ('' if vendor is None), and how to build it."""
    backend = _backend_for(vendor) if vendor else ""
    shown = {"MTL": "Metal"}.get(backend, backend)
    if frozen():
        return shown, _other_download(backend)
    backends = [name for name in _OPTIONS if name in build.backends or name in (backend, also)]
    options = " ".join(f"-D{_OPTIONS[name]}=ON" for name in backends)
    fix = install_llama(build.version, options)
    tool, toolkit = _TOOLKITS.get(backend, ("", ""))
    if tool and shutil.which(tool) is None:
        fix = f"First install {toolkit} ({tool} was not found); then:\n{fix}"
    return shown, fix


def install_llama(version: str | None = None, options: str = "") -> str:
    """Return the command that rebuilds llama-cpp-python, on lines indented by two spaces."""
    if frozen():
        return _other_download("")
    package = f"{_PACKAGE}=={version}" if version else _PACKAGE
    if importlib.util.find_spec("pip") is not None:
        command = [f"{sys.executable} -m pip install", "--force-reinstall --no-cache-dir --no-deps"]
        command.append(f"--no-binary {_PACKAGE} {package}")
    else:  # environments created by uv have no pip
        command = [f"uv pip install --python {sys.executable}", f"--no-cache --reinstall-package {_PACKAGE}"]
        command.append(f"--no-binary-package {_PACKAGE} {package}")
    if sys.platform == "win32":
        setting = f'  $env:CMAKE_ARGS="{options}"\n' if options else ""
        return f"{setting}  {' '.join(command)}"
    return "  " + " \\\n    ".join([f'CMAKE_ARGS="{options}"', *command] if options else command)


def install(package: str, *, archive: str) -> str:
    """Return the command that installs a package, on a line indented by two spaces.

    archive: which archive to download instead, if this is the packaged program.
    """
    if frozen():
        return f"Download edgechat again: the archive for {archive}."
    if importlib.util.find_spec("pip") is not None:
        return f"  {sys.executable} -m pip install {package}"
    return f"  uv pip install --python {sys.executable} {package}"


def _other_download(backend: str) -> str:
    """Return which archive to download instead, as instructions for users of the packaged program."""
    if backend not in _ARCHIVES:
        return "Download edgechat again: the archive for this system and CPU."
    if sys.platform == "darwin" or platform.machine().lower() not in ("x86_64", "amd64"):
        return (
            f"No archive for this system includes {backend}; edgechat installed with pip can be built with "
            "it."
        )
    return f"Download edgechat again: the archive whose name ends in -{_ARCHIVES[backend]}."


def _backend_for(vendor: Vendor) -> str:
    """Return the best backend for a vendor's GPUs that can be built with the tools installed here."""
    if vendor == "amd" and (frozen() or shutil.which("hipcc") is None):
        return "Vulkan"  # works without ROCm, which supports few cards
    return {"nvidia": "CUDA", "amd": "ROCm", "apple": "MTL"}.get(vendor, "Vulkan")
