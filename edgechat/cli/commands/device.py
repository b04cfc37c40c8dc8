"""`edgechat device`: the hardware of this machine, as text or as JSON.

With --json, one object is printed. Sizes are in bytes, speeds are per second, and unknown values are null:

    cpu           name, physical, performance, efficiency, logical, usable (cores), smt, quota (in CPUs),
                  threads and threads_why (how many threads a model would use, and why), instruction_sets
    memory        total, available, bound and limit (what limits memory below total, and to how much)
    accelerators  a list: name, vendor, devices (llama.cpp's names; empty if this build cannot use it), total,
                  free, shares_ram, own (how much of free is not RAM), pci, sources
    free          bytes free on all devices together, with shared memory counted once
    speed         bandwidth, kernels (keyed by weight type: seconds per weight for calls of 1, 2, 4, 8, 16, 64
                  and 512 tokens), attention (seconds per operation, for the same calls), attentions (for the
                  heads of models that were planned, two lists: seconds per layer for calls of 1, 8 and 512
                  tokens, and extra seconds for each token before them), unmeasured (heads for which that
                  failed, and why), call, layer (seconds), threads, trials (the numbers of threads compared,
                  each with the seconds taken by calls of 1 and of 64 tokens), disturbed, measured
                  (seconds since 1970)
    card_speeds   the same for accelerators, keyed by llama.cpp's names
    disk          path (where models are stored), free
    llama_cpp     version, ggml, backends, features, gpu_offload, rpc, mmap, mlock, system_info,
                  unloaded (backends that are installed but did not load)
    mlx           version (null if not installed), missing (why it cannot be used, or null), device (what
                  it runs on: the name of an accelerator, "CPU", or null)
    backend       the backend used here: "llama.cpp", or "either" if the better one is chosen for each model
    failures      a list of sources that could not be read: source, why
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from edgechat.base.errors import FolderError
from edgechat.base.text import ago, mebibytes
from edgechat.cli.declaring import Number, command, option
from edgechat.cli.terminal_io import StatusLine, print_json, sheet, styled
from edgechat.device.accelerators import Accelerator
from edgechat.device.cpu import Cpu
from edgechat.device.memory import Memory
from edgechat.device.mlx import missing, version
from edgechat.device.profile import DeviceProfile, disk_free
from edgechat.device.speed import ROWS, DeviceSpeed, best_threads
from edgechat.device.survey import Survey, survey
from edgechat.models.local.locations import own_folder
from edgechat.native.accelerators.devices import Build
from edgechat.planner.machine import with_speeds


@command("device", offline=True)
@option("--json", is_flag=True, help="Print one JSON object.")
@option("--refresh", is_flag=True, help="Measure the speed again instead of using the stored measurement.")
def device(json: bool, refresh: bool) -> None:
    """Show the hardware of this machine: CPU, memory, GPUs, speed, disk, and the llama.cpp build."""
    with StatusLine(sys.stderr) as status:
        status.show("inspecting this machine")
        machine = survey(partial(with_speeds, refresh=refresh))
    folder = models_folder()
    if json:
        print_json(msgspec.to_builtins(_object(machine, folder)))
    else:
        print(sheet(_rows(machine, folder), bold=styled(sys.stdout)))


@command(
    "worker",
    epilog="Prints one JSON object with the port and the devices, and serves until its standard input ends.",
)
@option(
    "--port",
    type=Number(int, min=0, max=65535),
    default=0,
    help="The port to listen on, on this machine only; 0: a free one.",
)
@option("--memory", help="The most memory to lend of each device: 8GiB. Default: all that is free.")
def worker(port: int, memory: str | None) -> None:
    """Lend this machine's memory to another one: `edgechat run MODEL --with ssh://HOST` there starts this."""
    from edgechat.cli.values import amount
    from edgechat.planner import lending

    lending.run(port=port, memory=amount("--memory", memory))


def models_folder() -> Path | None:
    """Return the folder in which edgechat stores models, or None if it cannot be created."""
    try:
        return own_folder()
    except FolderError:
        return None


def _object(machine: Survey, folder: Path | None) -> dict[str, Any]:
    profile = machine.profile
    threads, why = best_threads(profile.cpu, profile.speed)
    mlx_device = profile.mlx_card.name if profile.mlx_card is not None else "CPU"
    return {
        "cpu": {
            "name": profile.cpu.name,
            "physical": profile.cpu.physical,
            "performance": profile.cpu.physical - profile.cpu.efficiency,
            "efficiency": profile.cpu.efficiency,
            "logical": profile.cpu.logical,
            "usable": len(profile.cpu.usable),
            "smt": profile.cpu.smt,
            "quota": profile.cpu.quota,
            "threads": threads,
            "threads_why": why,
            "instruction_sets": machine.instruction_sets,
        },
        "memory": profile.memory,
        "accelerators": profile.accelerators,
        "free": profile.free,
        "speed": profile.speed,
        "card_speeds": profile.card_speeds,
        "disk": folder and {"path": str(folder), "free": disk_free(folder)},
        "llama_cpp": machine.build,
        "mlx": {
            "version": version() if profile.mlx else None,
            "missing": None if profile.mlx else missing(),
            "device": mlx_device if profile.mlx else None,
        },
        "backend": "either" if profile.mlx_card is not None else "llama.cpp",
        "failures": machine.failures,
    }


def _rows(machine: Survey, folder: Path | None) -> Iterator[tuple[str, str]]:
    profile = machine.profile
    yield "Processor", _cpu(profile.cpu, machine.instruction_sets)
    yield "Memory", _memory(profile.memory)
    cards = [_card(card, has_mlx=card == profile.mlx_card) for card in profile.accelerators]
    yield "Graphics", "\n".join(cards) or "no usable GPU"
    speeds = [f"{name}: {_figures(speed)}" for name, speed in profile.card_speeds.items()]
    yield "Speed", "\n".join([_speed(profile.speed), *speeds])
    yield "Threads", best_threads(profile.cpu, profile.speed)[1]
    if folder is not None and (free := disk_free(folder)) is not None:
        yield "Disk", f"{mebibytes(free)} free where models are stored\n  {folder}"
    yield "llama.cpp", _build(machine.build)
    yield "MLX", _mlx(profile)
    for failure in machine.failures:
        yield "Failed", f"{failure.source} {failure.why}"
    if machine.failures:
        yield "", "See `edgechat doctor`."


def _cpu(cpu: Cpu, instruction_sets: tuple[str, ...]) -> str:
    cores = f"{cpu.physical} core{'s' * (cpu.physical > 1)}"
    if cpu.efficiency:
        cores += f" ({cpu.physical - cpu.efficiency} fast, {cpu.efficiency} efficient)"
    cores += f", {cpu.logical} threads" if cpu.smt else ", one thread each"
    if len(cpu.usable) < cpu.physical:
        cores += f"; {len(cpu.usable)} available to edgechat"
    if cpu.quota is not None:
        cores += f"; a control group limits CPU time to {cpu.quota:g} CPUs"
    return "\n".join([cpu.name, cores, " ".join(instruction_sets)]).rstrip("\n")


def _memory(memory: Memory) -> str:
    text = f"{mebibytes(memory.total)}, {mebibytes(memory.available)} free now"
    if memory.bound is None or memory.limit is None:
        return text
    return f"{text}\nlimited to {mebibytes(memory.limit)} by {memory.bound}"


def _card(card: Accelerator, *, has_mlx: bool) -> str:
    memory = f"{mebibytes(card.total)}, {mebibytes(card.free)} free" if card.total else "memory unknown"
    if card.shares_ram:
        memory += ", shared with the CPU"
    use = ", ".join(card.devices) if card.usable else "this build of llama.cpp cannot use it"
    return f"{card.name}: {memory} ({use}{', MLX' if has_mlx else ''})"


def _speed(speed: DeviceSpeed | None) -> str:
    if speed is None:
        return "not measured"
    when = f"measured {ago(time.time() - speed.measured)} with {speed.threads} threads"
    busy = "; other programs were busy at the time" if speed.disturbed else ""
    return f"{_figures(speed)}\n{when}{busy}"


def _figures(speed: DeviceSpeed) -> str:
    """Return the bandwidth and, for the most common weight type, the arithmetic speed."""
    text = f"{speed.bandwidth / 1e9:.0f} GB/s from memory"
    if (kernel := speed.kernels.get("Q4_K")) is None:
        return text
    one, many = (2 * rows / seconds / 1e9 for rows, seconds in ((ROWS[0], kernel[0]), (ROWS[-1], kernel[-1])))
    return f"{text}; in Q4_K {one:.0f} GFLOP/s for one token, {many:.0f} for many"


def _mlx(profile: DeviceProfile) -> str:
    if not profile.mlx:
        return f"{missing()} Without MLX, all models run on llama.cpp."
    if profile.mlx_card is None:
        return f"{version()}, on the CPU\nonly for MLX models named explicitly: llama.cpp is much faster here"
    return (
        f"{version()}, on the GPU\nor llama.cpp, whichever suits the model better; `edgechat plan MODEL` "
        "gives the reasons"
    )


def _build(build: Build | None) -> str:
    if build is None:
        return "not available"
    offload = "" if build.gpu_offload else "; no GPU"
    return (
        f"llama-cpp-python {build.version}, ggml {build.ggml}\n"
        f"backends {', '.join(build.backends)}{offload}\n{' '.join(build.features)}"
    )
