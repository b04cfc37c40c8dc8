"""Machine: what a model is planned for, either this machine in its current state or a hypothetical one."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from edgechat import settings
from edgechat.base.errors import DryRunFailed, WorkerRefused
from edgechat.base.process.ask import ChildFailed
from edgechat.base.text import mebibytes
from edgechat.device.accelerators import Accelerator, ggml_readings, merge
from edgechat.device.gpu_readings import kernel_readings, mac_readings, metal
from edgechat.device.load import Disturbance
from edgechat.device.memory import Memory
from edgechat.device.profile import DeviceProfile, probe
from edgechat.device.remote.workers import LostWorker, Tunnel, accelerators, connect
from edgechat.device.speed import AttentionShape, DeviceSpeed, cached_speed
from edgechat.models.formats.header import ModelHeader
from edgechat.models.formats.quants import GgmlType
from edgechat.native import amx
from edgechat.native.accelerators.devices import Build
from edgechat.native.params import Breakdown, LoadParams
from edgechat.planner.estimate.budget import RAM
from edgechat.planner.estimate.calibration import Calibration
from edgechat.planner.estimate.dry_run import DryRun
from edgechat.planner.estimate.rates import COMMON, measure_attention, measure_speed, rate_of_processor
from edgechat.planner.estimate.shape import shape_of
from edgechat.planner.plan import DeviceMemory, LoadPlan

SIMULATED = "GPU0"
"""Device name for a hypothetical card."""
_SYSTEM, _SYSTEM_SHARE = 2 * 2**30, 0.2
"""Memory taken by the system and a browser: the larger of this many bytes (at most half of RAM) and this
fraction of RAM.
"""
_SCREEN_SHARE = 0.08
_AGAIN = 3600.0
"""Seconds after which a disturbed measurement is repeated."""
_CARD_NEEDS = 1 << 30
"""Number of bytes that must be free on a card to measure it."""
LARGE = 64 << 20
"""Size of weights, in bytes, below which a model is fast anyway."""
_MEASURING = threading.RLock()
"""Held while measuring, so that measurements for the first screen and for a chosen model do not overlap."""
_WORTH_MEASURING = 0.02
"""A weight type is measured if it makes up at least this fraction of a model's weights."""
_SLOWED: dict[Disturbance, str] = {
    "busy": "This machine is busy: while other programs run, answers will be slower than predicted.",
    "battery": "This machine is running on battery power, so answers may be slower than predicted.",
}


def current_profile(dry: DryRun | None = None, workers: Sequence[str] = ()) -> DeviceProfile:
    """Return the profile of this machine as it is now. With `dry`, include llama.cpp's accelerators.

    workers: addresses of machines that lend their devices; edgechat connects to them if necessary. Raises
    WorkerRefused if that fails, unless the worker comes from settings.toml.
    """
    profile = probe()
    # MLX finds its GPU without llama.cpp.
    alone = replace(profile, accelerators=merge(mac_readings(), profile.memory))
    if dry is None:
        return alone
    config = settings.load()
    servers, refused = config.rpc, ""
    try:
        try:
            found = dry.inventory(servers)
        except DryRunFailed as error:
            if not servers:
                raise
            # The machine's own devices still work without the RPC servers.
            without = "The model is loaded without the RPC servers that settings.toml names."
            found, servers, refused = dry.inventory(), (), f"{error.message} {without}"
    except DryRunFailed:  # in that case nothing can be loaded on accelerators either
        return alone
    devices = found.devices
    readings = [*ggml_readings(devices), *kernel_readings(), *mac_readings()]
    cards = merge(readings, profile.memory)
    measured = {
        card.devices[0]: speed
        for card in cards
        if card.usable and (speed := cached_speed(profile.cpu, _key(card))) is not None
    }
    profile = replace(profile, accelerators=cards, card_speeds=measured, rpc=servers, refused=refused)
    n_servers = sum(device.backend == "RPC" for device in devices)
    return _with_workers(profile, found.build, workers, n_servers, may_miss=config.workers)


def _with_workers(
    profile: DeviceProfile, build: Build, addresses: Sequence[str], n: int, *, may_miss: Collection[str]
) -> DeviceProfile:
    """Return the profile with the workers' devices added; see `current_profile`.

    n: number of RPC devices that come before the workers' devices.
    """
    cards, speeds = list(profile.accelerators), dict(profile.card_speeds)
    servers, refused = list(profile.rpc), [profile.refused]
    for address in dict.fromkeys(addresses):
        try:
            tunnel = connect(address)
            if isinstance(tunnel, LostWorker):
                refused.append(f"{tunnel.why} The model is loaded without it.")
                continue
            check_build(tunnel, build)
        except WorkerRefused as error:
            if address not in may_miss:
                raise
            refused.append(f"{error.message} The model is loaded without this worker.")
            continue
        for card, lent in zip(accelerators(tunnel, n), tunnel.offer.devices, strict=True):
            cards.append(card)
            # Unmeasured devices are assumed to be slow.
            speeds[card.devices[0]] = msgspec.structs.replace(rate_of_processor(lent.speed), link=tunnel.link)
        n += len(tunnel.offer.devices)
        servers.append(tunnel.address)
    return replace(
        profile,
        accelerators=tuple(cards),
        card_speeds=speeds,
        rpc=tuple(servers),
        refused=" ".join(filter(None, refused)),
    )


def check_build(tunnel: Tunnel, build: Build) -> None:
    """Raise WorkerRefused if a worker has a different llama.cpp version, which RPC does not check."""
    there = tunnel.offer
    if (there.llama_cpp, there.ggml) != (build.version, build.ggml):
        raise WorkerRefused(
            f"{tunnel.host.address} has a different version of llama.cpp from this machine: llama-cpp-python "
            f"{there.llama_cpp}, ggml {there.ggml}, instead of {build.version}, {build.ggml}.",
            hint="Install the same edgechat on both: pip install --upgrade edgechat",
        )


@dataclass(frozen=True, slots=True)
class MachineDescription:
    """A hypothetical machine. Fields that are None are taken from this machine."""

    ram: int | None = None
    """RAM in bytes, including what the system and other programs usually take."""
    vram: int | None = None
    """Memory of a discrete GPU, in bytes; 0 for no GPU."""
    bandwidth: float | None = None
    """Memory bandwidth in bytes per second."""
    runs_mlx: bool = False
    """Whether it is an Apple Silicon Mac with MLX, whose GPU shares the memory."""

    def over(self, profile: DeviceProfile) -> DeviceProfile:
        """Return the profile with the described changes applied."""
        if self != MachineDescription():  # nobody knows how busy a hypothetical machine is
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
            rate = rate_of_processor(profile.speed)
            speed = msgspec.structs.replace(rate, bandwidth=self.bandwidth, measured=0.0)
            profile = replace(profile, speed=speed)
        return profile


@dataclass(frozen=True, slots=True)
class Machine:
    """A device profile, a calibration for predictions, and llama.cpp's dry run.

    Example: `rate(variant, Machine(profile), request)`.
    """

    profile: DeviceProfile
    history: Calibration = field(default_factory=Calibration)
    dry: DryRun | None = None

    @property
    def without_dry_run(self) -> Machine:
        """The same machine without a dry run, so that all sizes are estimated."""
        return replace(self, dry=None)

    def timed_for(self, headers: Iterable[ModelHeader]) -> Machine:
        """Return the machine with its speeds for the weight types and attention of these models.

        Missing speeds are measured, unless all models are smaller than `LARGE`.
        """
        speed = self.profile.speed
        if self.dry is None or (speed is not None and not speed.measured):  # a hypothetical machine
            return self
        types: set[GgmlType] = set()
        shapes: dict[AttentionShape, None] = {}
        for header in headers:
            if header.format != "gguf" or header.weights_bytes < LARGE:
                continue
            sizes: Counter[GgmlType] = Counter()
            for tensor in header.tensors:
                sizes[tensor.type] += tensor.n_elements
            types |= {kind for kind, n in sizes.items() if n > _WORTH_MEASURING * sizes.total()}
            if not header.makes_embeddings and (heads := shape_of(header).heads) is not None:
                shapes[heads] = None
        if not types:
            return self
        try:
            with _MEASURING:  # measure everything at once, as someone is waiting for this model
                profile = with_attention(with_speeds(self.profile, types), shapes)
        except ChildFailed:
            return self
        return replace(self, profile=profile)

    def measuring(self, header: ModelHeader) -> Callable[[LoadParams], Breakdown] | None:
        """Return a function that performs dry runs of this model, or None if dry runs are not possible."""
        dry = self.dry
        if dry is None or header.format == "mlx":
            return None

        def measure(params: LoadParams) -> Breakdown:
            if SIMULATED in params.devices:
                raise DryRunFailed("that accelerator is not in this machine.")
            dry.show(header)  # the dry run may have been switched to another model, such as a draft model
            return dry.ask(params)

        return measure


def machine_for(
    dry: DryRun,
    described: MachineDescription = MachineDescription(),
    *,
    workers: Sequence[str] = (),
    types: Collection[GgmlType] | None = (),
    staying: Iterable[LoadPlan] = (),
    leaving: Iterable[LoadPlan] = (),
) -> Machine:
    """Return this machine as it is now, with the described changes. Measure its speed if it is unknown.

    workers: see `current_profile`. types: weight types whose kernels are measured; None to measure nothing.
    staying: plans of models that stay loaded. leaving: plans of models that are unloaded first.
    """
    profile = current_profile(dry, workers)
    if described.bandwidth is None and types is not None:
        with contextlib.suppress(ChildFailed):  # then the speed is guessed, and `edgechat doctor` says why
            profile = with_speeds(profile, types)
    profile = described.over(without_loads(beside(profile, staying), leaving))
    # Measurements with this machine's memory bandwidth do not apply to another bandwidth.
    return Machine(profile, Calibration.read() if described.bandwidth is None else Calibration(), dry)


def with_speeds(
    profile: DeviceProfile, types: Collection[GgmlType] = COMMON, *, refresh: bool = False
) -> DeviceProfile:
    """Return the profile with the speeds of the CPU and all cards, measuring them if necessary.

    types: weight types whose kernels are measured. refresh: measure everything again. Raises ChildFailed.
    """
    with _MEASURING:
        speed = None if refresh else profile.speed
        if not refresh and _is_due(speed, types):
            speed = cached_speed(profile.cpu) or speed  # another thread may have measured it in the meantime
        if _is_due(speed, types):
            speed = measure_speed(profile.cpu, profile.memory, types=types, before=speed)
        cards = {
            name: known
            for name, known in profile.card_speeds.items()
            if not refresh or known.link is not None
        }
        for card in profile.accelerators:
            if not card.usable or card.free < _CARD_NEEDS:
                continue
            device = card.devices[0]
            if device.startswith("RPC") or device == SIMULATED:
                continue  # skip it: measuring would time the network, or the card does not exist
            known = cards.get(device)
            if known is None or _missing(known, types):
                cards[device] = measure_speed(
                    profile.cpu,
                    profile.memory,
                    types=types,
                    before=known,
                    device=device,
                    key=_key(card),
                    rpc=profile.rpc,
                )
    return replace(profile, speed=speed, card_speeds=cards)


def with_attention(profile: DeviceProfile, shapes: Iterable[AttentionShape]) -> DeviceProfile:
    """Return the profile with the CPU's speed for these attention shapes, measuring it if necessary.

    A measurement that failed before is not repeated.
    """
    speed = profile.speed
    assert speed is not None
    for shape in shapes:
        if speed.lacks(shape):
            with _MEASURING:
                speed = cached_speed(profile.cpu) or speed  # as in `with_speeds`
                if speed.lacks(shape):
                    speed = measure_attention(profile.cpu, profile.memory, shape, speed)
    return replace(profile, speed=speed)


def _is_due(speed: DeviceSpeed | None, types: Collection[GgmlType]) -> bool:
    if speed is None or _missing(speed, types):
        return True
    return speed.disturbed and time.time() - speed.measured > _AGAIN


def _missing(speed: DeviceSpeed, types: Collection[GgmlType]) -> bool:
    return any(kind.name not in speed.kernels for kind in types)


def _key(card: Accelerator) -> str:
    return f"{card.devices[0]}, {card.name}, {mebibytes(card.total)}"


def in_words(profile: DeviceProfile) -> str:
    """Return a description of the machine in one or more lines."""
    speed = f"{rate_of_processor(profile.speed).bandwidth / 1e9:.0f} GB/s"
    text = f"{mebibytes(profile.memory.total)} of RAM, {mebibytes(profile.memory.available)} free, {speed}"
    for card in profile.accelerators:
        if card.usable or card == profile.mlx_card:
            shared = " shared with the CPU" if card.shares_ram else ""
            text += f"\n{card.name}: {mebibytes(card.total)}, {mebibytes(card.free)} free{shared}"
    return "\n".join((text, *(_SLOWED[disturbance] for disturbance in profile.slowed)))


_COPIED = ("_REPACK", amx.NAME)
"""Suffixes in the names of buffers that copy weights instead of mapping the file."""


def beside(profile: DeviceProfile, staying: Iterable[LoadPlan]) -> DeviceProfile:
    """Return the machine without the memory that counts as free but is needed by models that stay loaded.

    Mapped weights count as free (see `device.memory`), but are read for every token.
    """
    taken = sum(mapped_bytes(plan) for plan in staying)
    return replace(profile, memory=_less(profile.memory, taken))


def without_loads(profile: DeviceProfile, leaving: Iterable[LoadPlan]) -> DeviceProfile:
    """Return the machine as it would be after unloading these models."""
    memory, cards = profile.memory, profile.accelerators
    for plan in leaving:
        for part in plan.memory:
            # Memory for checkpoints, pictures and adapters may not be allocated yet.
            unused = part.checkpoint_bytes + part.adapter_bytes
            unused += plan.projector.unused_bytes(part.name) if plan.projector is not None else 0
            if part.name == RAM:
                memory = _less(memory, mapped_bytes(plan) + unused - part.total_bytes)
            else:
                cards = tuple(_freed(card, part, part.total_bytes - unused) for card in cards)
    return replace(profile, memory=memory, accelerators=cards)


def mapped_bytes(plan: LoadPlan) -> int:
    """Return how many bytes of RAM, according to the plan, hold weights mapped from the model's file."""
    in_ram = next((entry.weights_bytes for entry in plan.memory if entry.name == RAM), 0)
    copied = sum(entry.weights for entry in plan.buffers if entry.is_host and entry.name.endswith(_COPIED))
    return max(0, in_ram - copied)


def is_lesser(plan: LoadPlan, other: LoadPlan) -> bool:
    """Return whether a plan is worse than another, or uses different weights.

    Worse means a shorter context, fewer layers on accelerators, a different cache type, or no projector.
    """
    return (
        (plan.projector is None and other.projector is not None)
        or plan.context < other.context
        or plan.gpu_layers < other.gpu_layers
        or (plan.quant, plan.model_path) != (other.quant, other.model_path)
        or plan.cache_type != other.cache_type
    )


def _less(memory: Memory, taken: int) -> Memory:
    most = memory.total if memory.limit is None else min(memory.total, memory.limit)
    return replace(memory, available=min(max(0, memory.available - taken), most))


def _freed(card: Accelerator, memory: DeviceMemory, n_bytes: int) -> Accelerator:
    if memory.name not in card.devices:
        return card
    free, own = card.free + n_bytes, card.own + n_bytes
    return replace(
        card,
        free=min(card.total or free, free),
        own=card.own if card.shares_ram else min(card.total or own, own),
    )
