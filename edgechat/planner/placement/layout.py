"""Which layers are on which device: cards are filled from the last layer backwards, the best card first.

llama.cpp offloads the last layers, and with them the output. Two ways are tried for mixtures of experts: as
many whole layers on the cards as fit, or all layers with the experts of some in RAM. Experts are most of the
bytes, and few of them are read for a token.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from edgechat.planner.estimate.shape import ModelShape, PlacedPart
from edgechat.planner.placement.budget import MLX, RAM, SPARE, Budget, Extras, Needs


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


def whole_layouts(shape: ModelShape, _extras: Extras, budget: Budget) -> Iterator[Layout]:
    """Yield MLX's only layout: all layers on the GPU, or on the CPU if there is none."""
    yield Layout((MLX,), (len(shape.parts),)) if budget.cards else Layout()


def whole_needs(shape: ModelShape, extras: Extras, layout: Layout) -> dict[str, Needs]:
    """Return what a load by MLX takes of each memory. No matrix is stored twice."""
    weights = sum(part.weights + part.experts for part in shape.parts) + shape.embedding - shape.tied
    model = Needs(weights, sum(extras.cache), extras.compute)
    program = Needs(program=extras.program)
    return {RAM: program, MLX: model} if layout.n else {RAM: model + program}
