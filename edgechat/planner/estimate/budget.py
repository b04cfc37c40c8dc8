"""Budget: how much memory a load may take on each device. Layouts: which layers go where.

The budget is the memory that is free now, minus a margin. A card that shares the machine's memory has its own
limit, but everything stored on it also counts as RAM. Swap never counts.

Cards are filled from the last layer backwards, best card first: llama.cpp offloads the last layers, along
with the output. For mixtures of experts, two layouts are tried: as many whole layers on the cards as fit, or
all layers on the cards with some of their experts in RAM. Experts make up most of a model, but each token
uses only a few of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from edgechat.base.text import mebibytes
from edgechat.device.accelerators import Accelerator
from edgechat.device.memory import Memory
from edgechat.device.profile import DeviceProfile
from edgechat.models.formats.header import Format
from edgechat.native.params import Breakdown
from edgechat.planner.estimate.shape import ModelShape, PlacedPart

RAM = "RAM"
MLX = "MLX"
"""Name of an Apple GPU that MLX uses."""
SPARE = 0.1
"""Fraction of free RAM to leave for other programs, unless the user requests more context."""
_CARD_MARGIN = 512 * 2**20
_CARD_SHARE = 0.1


class Needs(msgspec.Struct, frozen=True):
    """What a load needs in one kind of memory, in bytes."""

    weights_bytes: int = 0
    cache_bytes: int = 0
    compute_bytes: int = 0
    program_bytes: int = 0
    """Memory for the process itself, always in RAM."""
    checkpoint_bytes: int = 0
    """Memory for checkpoints, always in RAM."""
    projector_bytes: int = 0
    """Weights and buffers of the projector. In RAM, this includes the picture itself."""
    adapter_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """The sum of all fields."""
        model = self.weights_bytes + self.cache_bytes + self.compute_bytes
        beside = self.projector_bytes + self.adapter_bytes
        return model + self.program_bytes + self.checkpoint_bytes + beside

    def __add__(self, other: Needs) -> Needs:
        return Needs(
            self.weights_bytes + other.weights_bytes,
            self.cache_bytes + other.cache_bytes,
            self.compute_bytes + other.compute_bytes,
            self.program_bytes + other.program_bytes,
            self.checkpoint_bytes + other.checkpoint_bytes,
            self.projector_bytes + other.projector_bytes,
            self.adapter_bytes + other.adapter_bytes,
        )


@dataclass(frozen=True, slots=True)
class Extras:
    """What a load needs in addition to its weights, in bytes."""

    cache: Sequence[int]
    """Size of each layer's cache."""
    compute: int
    """Size of the compute buffer on each device."""
    output: int
    """Size of the rows of logits, always in RAM."""
    program: int
    drafting: int = 0
    """Memory for drafting with the model's own layers, on the same device as the output."""


@dataclass(frozen=True, slots=True)
class Card:
    """An accelerator that a load may use."""

    name: str
    """llama.cpp's name for it, or 'MLX'."""
    accelerator: Accelerator
    taken: int = 0
    """Bytes taken by another load in the same process."""

    @property
    def budget(self) -> int:
        """Bytes that a load may take: free memory minus a margin for drivers and displays."""
        free = self.accelerator.free
        return max(0, free - min(_CARD_MARGIN, int(_CARD_SHARE * free)) - self.taken)

    @property
    def own(self) -> int:
        """The device's own free memory, separate from RAM, in bytes."""
        return max(0, self.accelerator.own - self.taken)


@dataclass(frozen=True, slots=True)
class Budget:
    """All the memory that a load may use."""

    memory: Memory
    cards: tuple[Card, ...] = ()
    """The cards, best last: the best card gets the last layers and the output."""

    @classmethod
    def of(cls, profile: DeviceProfile, format: Format = "gguf") -> Budget:
        """Return a machine's budget. The format determines which cards are included."""
        if format == "mlx":
            card = profile.mlx_card
            return cls(profile.memory, (Card(MLX, card),) if card is not None else ())
        usable = [gpu for gpu in profile.accelerators if gpu.usable and gpu.free > 0]
        # The best card is filled first and comes last. Local cards rank above remote ones, then cards with
        # their own memory above those that share RAM, then cards with more free memory above the rest.
        usable.sort(key=lambda gpu: (not gpu.worker, not gpu.shares_ram, gpu.free))
        return cls(profile.memory, tuple(Card(gpu.devices[0], gpu) for gpu in usable))

    @property
    def without_workers(self) -> Budget:
        """The budget without the workers' cards."""
        return replace(self, cards=tuple(card for card in self.cards if not card.accelerator.worker))

    @property
    def ram(self) -> int:
        """Free RAM in bytes."""
        return self.memory.available

    @property
    def in_words(self) -> str:
        """The free memory in words, such as '7.9 GiB are free', and the limit if there is one."""
        limit = f" under {self.memory.bound}" if self.memory.bound else ""
        return f"{mebibytes(self.ram)} are free{limit}"

    def less(self, needs: Mapping[str, Needs]) -> Budget:
        """Return the budget that remains after a load with these needs."""
        left = max(0, self.memory.available - self.charged(needs))
        cards = (
            replace(card, taken=card.taken + needs[card.name].total_bytes) if card.name in needs else card
            for card in self.cards
        )
        return Budget(replace(self.memory, available=left), tuple(cards))

    def charged(self, needs: Mapping[str, Needs]) -> int:
        """Return how many bytes of RAM a load takes, including what it stores on cards that share RAM."""
        sharing = (card for card in self.cards if card.accelerator.shares_ram and card.name in needs)
        shared = sum(max(0, needs[card.name].total_bytes - card.own) for card in sharing)
        return needs.get(RAM, Needs()).total_bytes + shared

    def over(self, needs: Mapping[str, Needs]) -> dict[str, int]:
        """Return how far each card is over its budget, in bytes. Cards within their budget are omitted."""
        beyond = {
            card.name: needs[card.name].total_bytes - card.budget for card in self.cards if card.name in needs
        }
        return {name: n for name, n in beyond.items() if n > 0}

    def fits(self, needs: Mapping[str, Needs], *, spare: float = 0.0) -> bool:
        """Return whether a load fits on every device. spare: fraction of free RAM to leave unused."""
        return not self.over(needs) and self.charged(needs) <= self.ram * (1 - spare)


def together(first: Mapping[str, Needs], second: Mapping[str, Needs]) -> dict[str, Needs]:
    """Return what two loads need together."""
    return {name: first.get(name, Needs()) + second.get(name, Needs()) for name in {**first, **second}}


def needs_of(breakdown: Breakdown, program: int) -> dict[str, Needs]:
    """Return the needs in each kind of memory, taken from llama.cpp's breakdown.

    program: bytes for the process itself.
    """
    needs = {RAM: Needs(compute_bytes=breakdown.output, program_bytes=program)}
    for buffer in breakdown.buffers:
        name = RAM if buffer.is_host else buffer.device
        more = Needs(buffer.weights, buffer.cache, buffer.compute)
        needs[name] = needs.get(name, Needs()) + more
    return needs


@dataclass(frozen=True, slots=True)
class Layout:
    """How layers are distributed among devices; see `LoadParams`."""

    devices: tuple[str, ...] = ()
    split: tuple[int, ...] = ()
    experts_in_ram: int = 0

    @property
    def n(self) -> int:
        """The number of layers on cards, counting the output."""
        return sum(self.split)

    @property
    def reach(self) -> tuple[int, int]:
        """A sort key that increases with the part of the model that is on cards."""
        return self.n, -self.experts_in_ram

    def devices_of(self, n_parts: int) -> list[str | None]:
        """Return the device of each part, with the output last. None means the CPU."""
        devices: list[str | None] = [None] * (n_parts - self.n)
        for name, count in zip(self.devices, self.split, strict=True):
            devices += [name] * count
        return devices

    def changed(self, device: str, more: int) -> Layout:
        """Return the layout with `more` layers added to a card (removed if negative), without empty cards."""
        counts = dict(zip(self.devices, self.split, strict=True))
        counts[device] += more
        remaining = {name: count for name, count in counts.items() if count > 0}
        return Layout(tuple(remaining), tuple(remaining.values()), self.experts_in_ram if remaining else 0)

    def placed(self, shape: ModelShape) -> list[PlacedPart]:
        """Return all parts, each with its device."""
        devices = self.devices_of(len(shape.parts))
        return [
            PlacedPart(part, device, experts_in_ram=layer < self.experts_in_ram)
            for layer, (part, device) in enumerate(zip(shape.parts, devices, strict=True))
        ]


def layouts(shape: ModelShape, extras: Extras, budget: Budget) -> Iterator[Layout]:
    """Yield the layouts to consider, simplest first and the CPU-only one last."""
    whole = _filled(shape, extras, budget, 0)
    if whole.n:
        yield whole
    here = budget.without_workers
    if len(here.cards) < len(budget.cards):
        least = _with_least_workers(shape, extras, budget)
        if least is not None:
            yield least
        yield from layouts(shape, extras, here)
        return
    n = len(shape.layers)
    if budget.cards and shape.has_experts and whole.n < len(shape.parts):
        # Find the smallest number of layers whose experts must stay in RAM.
        counts = range(1, n)
        first = bisect_left(
            counts, True, key=lambda k: _filled(shape, extras, budget, k).n == len(shape.parts)
        )
        routed = _filled(shape, extras, budget, first + 1)
        if routed.n:
            yield routed
    yield Layout()


def _filled(shape: ModelShape, extras: Extras, budget: Budget, experts_in_ram: int) -> Layout:
    """Return the layout that fills the cards, starting from the last part."""
    sizes = part_bytes(shape, extras, experts_in_ram)
    counts: dict[str, int] = {}
    left = len(sizes)
    for card in reversed(budget.cards):
        room = card.budget - extras.compute - (extras.drafting if left == len(sizes) else 0)
        begun = left
        while left and sizes[left - 1] <= room:
            room -= sizes[left - 1]
            left -= 1
        if begun > left:
            counts[card.name] = begun - left
    ordered = [card.name for card in budget.cards if card.name in counts]
    layout = Layout(tuple(ordered), tuple(counts[name] for name in ordered))
    return replace(layout, experts_in_ram=max(0, experts_in_ram - left) and experts_in_ram)


def _with_least_workers(shape: ModelShape, extras: Extras, budget: Budget) -> Layout | None:
    """Return the layout with as many layers as possible on this machine, and the rest on workers.

    Returns None if no worker is needed, or if the layout does not fit.
    """
    here = _filled(shape, extras, budget.without_workers, 0)
    sizes = part_bytes(shape, extras)
    n_left = len(sizes) - here.n
    alone = estimated(shape, extras, Layout())[RAM].total_bytes - sum(sizes)
    room = int(budget.ram * (1 - SPARE)) - alone
    n_ram = 0
    while n_ram < n_left and sizes[n_ram] <= room:
        room -= sizes[n_ram]
        n_ram += 1
    counts: dict[str, int] = {}
    for card in reversed(budget.cards):
        if not card.accelerator.worker:
            continue
        room = card.budget - extras.compute
        begun = n_left
        while n_left > n_ram and sizes[n_left - 1] <= room:
            room -= sizes[n_left - 1]
            n_left -= 1
        if begun > n_left:
            counts[card.name] = begun - n_left
    if not counts or n_left > n_ram:
        return None
    counts |= dict(zip(here.devices, here.split, strict=True))
    ordered = [card.name for card in budget.cards if card.name in counts]
    return Layout(tuple(ordered), tuple(counts[name] for name in ordered))


def estimated(shape: ModelShape, extras: Extras, layout: Layout) -> dict[str, Needs]:
    """Return a formula-based estimate of what a layout needs in each kind of memory."""
    device_names = [device or RAM for device in layout.devices_of(len(shape.parts))]
    names = (RAM, *layout.devices)
    weights, caches = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
    weights[RAM] = shape.embedding - (shape.tied if device_names[-1] == RAM else 0)
    for layer, (part, cache, device) in enumerate(
        zip(shape.parts, (*extras.cache, 0), device_names, strict=True)
    ):
        weights[device] += part.weights
        weights[RAM if layer < layout.experts_in_ram else device] += part.experts
        caches[device] += cache
    needs = {name: Needs(weights[name], caches[name], extras.compute) for name in names}
    needs[device_names[-1]] += Needs(compute_bytes=extras.drafting)
    needs[RAM] += Needs(compute_bytes=extras.output, program_bytes=extras.program)
    return needs


def part_bytes(shape: ModelShape, extras: Extras, experts_in_ram: int = 0) -> list[int]:
    """Return how many bytes each part takes on its card."""
    return [
        part.weights + cache + (0 if layer < experts_in_ram else part.experts)
        for layer, (part, cache) in enumerate(zip(shape.parts, (*extras.cache, 0), strict=True))
    ]


def with_less(layout: Layout, over: Mapping[str, int], shape: ModelShape, extras: Extras) -> Layout:
    """Return a layout with more experts or layers in RAM. over: excess bytes on each card."""
    on_device = layout.devices_of(len(shape.parts))
    left = dict(over)
    while layout.experts_in_ram and layout.experts_in_ram < len(shape.layers):
        layer = layout.experts_in_ram
        name = on_device[layer] or RAM
        if left.get(name, 0) <= 0:
            break
        layout = replace(layout, experts_in_ram=layer + 1)
        left[name] -= shape.layers[layer].experts
    size = max(part_bytes(shape, extras, layout.experts_in_ram))
    for name, n_bytes in left.items():
        if name in layout.devices and n_bytes > 0:
            layout = layout.changed(name, -n_bytes // max(1, size))
    return layout


def with_more(layout: Layout, room: Mapping[str, int], shape: ModelShape, extras: Extras) -> Layout | None:
    """Return a layout with more of the model on a card, or None if no more fits.

    room: free bytes on each card.
    """
    n_parts = len(shape.parts)
    if not room:
        return None
    if layout.n == n_parts:
        left, on_device = dict(room), layout.devices_of(n_parts)
        experts = layout.experts_in_ram
        while experts and left[on_device[experts - 1] or RAM] >= shape.parts[experts - 1].experts:
            experts -= 1
            left[on_device[experts] or RAM] -= shape.parts[experts].experts
        return replace(layout, experts_in_ram=experts) if experts < layout.experts_in_ram else None
    size = part_bytes(shape, extras, layout.experts_in_ram)[n_parts - layout.n - 1]
    return next((layout.changed(name, 1) for name, n_bytes in room.items() if n_bytes >= size), None)
