"""Budget: the memory that a load may take on each device, and layouts: which layers lie where.

The budget is what is free now, less a margin. A card that shares the machine's memory has its own limit, but
what it holds is charged to RAM too. Swap never counts.

Cards are filled from the last layer backwards, the best card first: llama.cpp offloads the last layers, and
with them the output. For mixtures of experts two ways are tried: as many whole layers on the cards as fit, or
all layers with the experts of some in RAM. Experts are most of the bytes, and few of them are read for a
token.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from edgechat.base.text import mebibytes
from edgechat.device.accelerators import Accelerator
from edgechat.device.memory import Memory
from edgechat.device.profile import DeviceProfile
from edgechat.models.formats.header import Format
from edgechat.native.params import Breakdown
from edgechat.planner.estimate.shape import ModelShape, PlacedPart

RAM = "RAM"
MLX = "MLX"
"""The GPU of an Apple processor when MLX uses it."""
SPARE = 0.1
"""Share of the free RAM that is left to other programs unless more context is requested."""
_CARD_MARGIN = 512 * 2**20
_CARD_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Needs:
    """What a load takes of one memory, in bytes."""

    weights: int = 0
    cache: int = 0
    compute: int = 0
    program: int = 0
    """Of the process around the model."""
    checkpoints: int = 0
    projector: int = 0
    """Everything that makes pictures and sound readable."""
    adapters: int = 0
    """Of LoRA adapters."""

    @property
    def total(self) -> int:
        """Everything together."""
        model = self.weights + self.cache + self.compute
        return model + self.program + self.checkpoints + self.projector + self.adapters

    def __add__(self, other: Needs) -> Needs:
        return Needs(
            self.weights + other.weights,
            self.cache + other.cache,
            self.compute + other.compute,
            self.program + other.program,
            self.checkpoints + other.checkpoints,
            self.projector + other.projector,
            self.adapters + other.adapters,
        )


@dataclass(frozen=True, slots=True)
class Extras:
    """What a load takes besides weights, in bytes."""

    cache: Sequence[int]
    """Of each layer."""
    compute: int
    """On each device."""
    output: int
    """Rows of logits, in RAM."""
    program: int
    drafting: int = 0
    """To compute drafts of the model's own layers, on the device of the output."""


@dataclass(frozen=True, slots=True)
class Card:
    """An accelerator whose memory a load may take."""

    name: str
    """llama.cpp's name of it, or 'MLX'."""
    accelerator: Accelerator
    taken: int = 0
    """Bytes that another load of the same process takes."""

    @property
    def budget(self) -> int:
        """Bytes that may be taken: the free ones less a margin for drivers and screens."""
        free = self.accelerator.free
        return max(0, free - min(_CARD_MARGIN, int(_CARD_SHARE * free)) - self.taken)

    @property
    def own(self) -> int:
        """Bytes that are left of its own memory, which is not part of RAM."""
        return max(0, self.accelerator.own - self.taken)


@dataclass(frozen=True, slots=True)
class Budget:
    """All memory that a load may take."""

    memory: Memory
    cards: tuple[Card, ...] = ()
    """The best one last: it gets the last layers and the output."""

    @classmethod
    def of(cls, profile: DeviceProfile, format: Format = "gguf") -> Budget:
        """Return the budget of a machine as it is now; each format has its own cards."""
        if format == "mlx":
            card = profile.mlx_card
            return cls(profile.memory, (Card(MLX, card),) if card is not None else ())
        usable = [gpu for gpu in profile.accelerators if gpu.usable and gpu.free > 0]
        # This machine's before others', own memory before shared, then the larger: the one filled first
        # stands last.
        usable.sort(key=lambda gpu: (not gpu.worker, not gpu.shares_ram, gpu.free))
        return cls(profile.memory, tuple(Card(gpu.devices[0], gpu) for gpu in usable))

    @property
    def without_workers(self) -> Budget:
        """The memory of this machine alone."""
        return replace(self, cards=tuple(card for card in self.cards if not card.accelerator.worker))

    @property
    def ram(self) -> int:
        """Bytes of RAM that are free."""
        return self.memory.available

    @property
    def in_words(self) -> str:
        """'7.9 GiB are free', and under which limit."""
        limit = f" under {self.memory.bound}" if self.memory.bound else ""
        return f"{mebibytes(self.ram)} are free{limit}"

    def less(self, needs: dict[str, Needs]) -> Budget:
        """Return the budget that a load with these needs leaves."""
        left = max(0, self.memory.available - self.charged(needs))
        cards = (
            replace(card, taken=card.taken + needs[card.name].total) if card.name in needs else card
            for card in self.cards
        )
        return Budget(replace(self.memory, available=left), tuple(cards))

    def charged(self, needs: dict[str, Needs]) -> int:
        """Return the bytes of RAM that a load takes, including what is on cards that share it."""
        sharing = (card for card in self.cards if card.accelerator.shares_ram and card.name in needs)
        shared = sum(max(0, needs[card.name].total - card.own) for card in sharing)
        return needs.get(RAM, Needs()).total + shared

    def over(self, needs: dict[str, Needs]) -> dict[str, int]:
        """Return the bytes by which the budgets of cards are exceeded."""
        beyond = {
            card.name: needs[card.name].total - card.budget for card in self.cards if card.name in needs
        }
        return {name: n for name, n in beyond.items() if n > 0}

    def fits(self, needs: dict[str, Needs], *, spare: float = 0.0) -> bool:
        """Return whether a load fits on every device, with a share of the RAM left over."""
        return not self.over(needs) and self.charged(needs) <= self.ram * (1 - spare)


def together(first: Mapping[str, Needs], second: Mapping[str, Needs]) -> dict[str, Needs]:
    """Return the sum of two loads' needs."""
    return {name: first.get(name, Needs()) + second.get(name, Needs()) for name in {**first, **second}}


def needs_of(breakdown: Breakdown, program: int) -> dict[str, Needs]:
    """Return llama.cpp's breakdown by memory; the process around the model is in RAM."""
    needs = {RAM: Needs(compute=breakdown.output, program=program)}
    for buffer in breakdown.buffers:
        name = RAM if buffer.is_host else buffer.device
        more = Needs(buffer.weights, buffer.cache, buffer.compute)
        needs[name] = needs.get(name, Needs()) + more
    return needs


@dataclass(frozen=True, slots=True)
class Layout:
    """Layers on devices; see `LoadParams` for what the fields mean."""

    devices: tuple[str, ...] = ()
    split: tuple[int, ...] = ()
    experts_in_ram: int = 0

    @property
    def n(self) -> int:
        """Layers on cards, the output among them."""
        return sum(self.split)

    @property
    def reach(self) -> tuple[int, int]:
        """The sort key of layouts: the more of the model is on cards, the greater."""
        return self.n, -self.experts_in_ram

    def devices_of(self, n_parts: int) -> list[str | None]:
        """Return the device of each part, the output's last; None is the processor."""
        devices: list[str | None] = [None] * (n_parts - self.n)
        for name, count in zip(self.devices, self.split, strict=True):
            devices += [name] * count
        return devices

    def changed(self, device: str, more: int) -> Layout:
        """Return the layout with more layers on a card, or fewer; a card without any is left out."""
        counts = dict(zip(self.devices, self.split, strict=True))
        counts[device] += more
        remaining = {name: count for name, count in counts.items() if count > 0}
        return Layout(tuple(remaining), tuple(remaining.values()), self.experts_in_ram if remaining else 0)

    def placed(self, shape: ModelShape) -> list[PlacedPart]:
        """Return the parts with their devices."""
        devices = self.devices_of(len(shape.parts))
        return [
            PlacedPart(part, device, experts_in_ram=layer < self.experts_in_ram)
            for layer, (part, device) in enumerate(zip(shape.parts, devices, strict=True))
        ]


def layouts(shape: ModelShape, extras: Extras, budget: Budget) -> Iterator[Layout]:
    """Yield the possible layouts, the simplest first and the CPU alone last."""
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
        # The fewest layers whose experts have to stay in RAM.
        counts = range(1, n)
        first = bisect_left(
            counts, True, key=lambda k: _filled(shape, extras, budget, k).n == len(shape.parts)
        )
        routed = _filled(shape, extras, budget, first + 1)
        if routed.n:
            yield routed
    yield Layout()


def _filled(shape: ModelShape, extras: Extras, budget: Budget, experts_in_ram: int) -> Layout:
    """Return the layout that fills the cards from the last part backwards."""
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
    """Return the layout with as many layers in this machine as fit, and the rest on workers.

    None if no worker is needed, or that is not enough.
    """
    here = _filled(shape, extras, budget.without_workers, 0)
    sizes = part_bytes(shape, extras)
    n_left = len(sizes) - here.n
    alone = estimated(shape, extras, Layout())[RAM].total - sum(sizes)
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
    """Return what a layout takes of each memory, by formula."""
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
    needs[device_names[-1]] += Needs(compute=extras.drafting)
    needs[RAM] += Needs(compute=extras.output, program=extras.program)
    return needs


def part_bytes(shape: ModelShape, extras: Extras, experts_in_ram: int = 0) -> list[int]:
    """Return the bytes of each part on the card that holds it."""
    return [
        part.weights + cache + (0 if layer < experts_in_ram else part.experts)
        for layer, (part, cache) in enumerate(zip(shape.parts, (*extras.cache, 0), strict=True))
    ]


def with_less(layout: Layout, over: Mapping[str, int], shape: ModelShape, extras: Extras) -> Layout:
    """Return a layout with more experts or layers in RAM; over: bytes by which each card is overfull."""
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
    """Return a layout with more on a card; room: free bytes of each. None if nothing more fits."""
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
