"""`edgechat worker`: lends this machine's devices to another machine, and reports their memory and speed.

All output, including errors, is meant for the program that started it over ssh.
"""

from __future__ import annotations

import contextlib
import sys
from dataclasses import replace
from typing import Any, NoReturn

import msgspec

from edgechat import __version__
from edgechat.base import logs
from edgechat.base.errors import EdgechatError, ServerRefused
from edgechat.base.process import spawn
from edgechat.base.process.ask import ChildFailed
from edgechat.device.accelerators import Accelerator, ggml_readings, merge
from edgechat.device.profile import DeviceProfile, probe
from edgechat.device.remote.messages import CPU, MOST_BYTES, LentDevice, Offer, WorkerRefusal
from edgechat.device.speed import DeviceSpeed, best_threads, cached_speed
from edgechat.native.accelerators.devices import read_inventory
from edgechat.planner.estimate.rates import measure_speed

_NEEDED = 1 << 29
"""Number of bytes that must be free on a device to measure it."""
KEY = "lent by RPC: "
"""Key prefix for the stored speeds of lent devices, as llama.cpp's RPC server uses different kernels."""


def run(*, port: int, memory: int | None) -> NoReturn:
    """Lend devices until standard input is closed. memory: limit in bytes for each device."""
    from edgechat.device.remote import lending

    if sys.stdin is not None and sys.stdin.isatty():
        print(
            "This command is started over ssh by another machine: edgechat run MODEL --with ssh://HOST",
            file=sys.stderr,
        )
    pipes = spawn.adopt_pipe()
    logs.to_stderr()
    try:
        lent = offer(port=port, memory=memory)
    except (EdgechatError, ChildFailed) as error:
        refusal = WorkerRefusal(
            f"llama.cpp does not work on that machine: its process {error}.",
            "On that machine, run: edgechat doctor",
        )
        if isinstance(error, EdgechatError):
            refusal = WorkerRefusal(error.message, error.hint or "")
        lending.send(pipes[1], refusal)
        raise SystemExit(1) from error
    lending.serve(lent, pipes)


def offer(*, port: int = 0, memory: int | None = None) -> Offer:
    """Return the devices that this machine lends. Measuring unknown speeds takes a few seconds.

    memory: limit in bytes for each device. Raises ServerRefused or ChildFailed.
    """
    found = read_inventory()
    if not found.build.rpc:
        raise ServerRefused(
            "llama.cpp was built without RPC on that machine.",
            hint="On that machine, rebuild it: CMAKE_ARGS=-DGGML_RPC=ON pip install --force-reinstall "
            "--no-binary llama-cpp-python llama-cpp-python",
        )
    profile = probe()
    cards = [card for card in merge(ggml_readings(found.devices), profile.memory) if card.usable]
    profile = replace(profile, accelerators=tuple(cards))
    lent = [_lent(card, memory) for card in cards]
    if not any(card.shares_ram for card in cards):
        most = profile.memory.limit or profile.memory.total
        total = most if memory is None else min(memory, most)
        lent.append(
            LentDevice(
                name=CPU,
                description=profile.cpu.name,
                total=total,
                free=min(total, profile.memory.available),
            )
        )
    plain = Offer(
        edgechat=__version__,
        llama_cpp=found.build.version,
        ggml=found.build.ggml,
        port=0,
        cpu=profile.cpu.name,
        threads=best_threads(profile.cpu, profile.speed)[0],
        devices=tuple(lent),
    )
    return msgspec.structs.replace(plain, port=port, devices=_with_speeds(plain, profile))


def _lent(card: Accelerator, memory: int | None) -> LentDevice:
    total = card.total if memory is None else min(memory, card.total)
    return LentDevice(name=card.devices[0], description=card.name, total=total, free=min(total, card.free))


def _with_speeds(plain: Offer, profile: DeviceProfile) -> tuple[LentDevice, ...]:
    """Return the devices with their speeds. Speeds that are not stored are measured in a child process."""
    speeds = [cached_speed(profile.cpu, KEY + device.description) for device in plain.devices]
    if any(speed is None for speed in speeds):
        speeds = _measured(plain, profile, speeds)
    return tuple(
        msgspec.structs.replace(device, speed=speed)
        for device, speed in zip(plain.devices, speeds, strict=True)
    )


def _measured(
    plain: Offer, profile: DeviceProfile, speeds: list[DeviceSpeed | None]
) -> list[DeviceSpeed | None]:
    import subprocess  # takes 18 ms, too slow for `edgechat --version`

    try:
        server: Any = subprocess.Popen(spawn.command("lend"), **spawn.options(subprocess.DEVNULL))
    except OSError as error:
        raise ChildFailed(f"could not be started: {error.strerror or error}") from error
    with server:
        try:
            server.stdin.write(msgspec.json.encode(plain) + b"\n")
            server.stdin.flush()
            ready = msgspec.json.decode(server.stdout.readline(MOST_BYTES), type=Offer)
            for number, device in enumerate(plain.devices):
                if speeds[number] is None and min(device.free, profile.memory.available) > _NEEDED:
                    with contextlib.suppress(ChildFailed):  # falls back to a guessed speed
                        speeds[number] = measure_speed(
                            profile.cpu,
                            profile.memory,
                            device=f"RPC{number}",
                            is_processor=device.name == CPU,
                            key=KEY + device.description,
                            rpc=(f"127.0.0.1:{ready.port}",),
                        )
        except (OSError, msgspec.DecodeError) as error:
            raise ChildFailed("did not start llama.cpp's RPC server") from error
        finally:
            server.kill()
    return speeds
