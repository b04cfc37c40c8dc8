"""Which layers lie where: the cards are filled from the last layer backwards, the best card first.

llama.cpp offloads the last layers, and with the first of them what makes logits. Two ways are tried where a
model routes tokens to experts: whole layers on the cards as far as they fit, or all layers but with the
experts of some in RAM. Those are most of the bytes, and few of them are read for a token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from edgechat.planner.estimate.shape import Layer, ModelShape
from edgechat.planner.estimate.speed import PlacedPart
from edgechat.planner.placement.budget import RAM, Budget, Needs


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
        """What layouts of one model are compared by: the more of it is on cards, the greater."""
        return self.n, -self.experts_in_ram

    def devices_of(self, n_parts: int) -> list[str | None]:
        """Return the device of each part, the output's last; None is the processor."""
        on: list[str | None] = [None] * (n_parts - self.n)
        for name, count in zip(self.devices, self.split, strict=True):
            on += [name] * count
        return on

    def changed(self, device: str, more: int) -> Layout:
        """Return the layout with more layers on a card, or fewer; a card without any is left out."""
        counts = dict(zip(self.devices, self.split, strict=True))
        counts[device] += more
        kept = {name: count for name, count in counts.items() if count > 0}
        return Layout(tuple(kept), tuple(kept.values()), self.experts_in_ram if kept else 0)

    def placed(self, shape: ModelShape) -> list[PlacedPart]:
        """Return the parts with their devices."""
        on = self.devices_of(len(shape.parts))
        return [
            PlacedPart(part, device, experts_in_ram=layer < self.experts_in_ram)
            for layer, (part, device) in enumerate(zip(shape.parts, on, strict=True))
        ]


@dataclass(frozen=True, slots=True)
class Extras:
    """What every part takes besides its weights, in bytes: its cache, and on each device to compute with."""

    cache: Sequence[int]
    """Of each layer."""
    compute: int
    output: int
    """Rows of logits, in RAM."""
    program: int

    def parts(self, shape: ModelShape, experts_in_ram: int = 0) -> list[int]:
        """Return the bytes of each part on the card that holds it."""
        return [
            part.weights + cache + (0 if layer < experts_in_ram else part.experts)
            for layer, (part, cache) in enumerate(zip(shape.parts, (*self.cache, 0), strict=True))
        ]


def layouts(shape: ModelShape, extras: Extras, budget: Budget) -> Iterator[Layout]:
    """Yield the ways of placing the layers, the plainest first; the processor alone is one of them."""
    whole = _filled(shape, extras, budget, 0)
    if whole.n:
        yield whole
    n = len(shape.layers)
    if budget.cards and shape.has_experts and whole.n < len(shape.parts):
        few, many = 0, n
        while many - few > 1:  # the fewest layers whose experts have to stay in RAM
            middle = (few + many) // 2
            enough = _filled(shape, extras, budget, middle).n == len(shape.parts)
            few, many = (few, middle) if enough else (middle, many)
        routed = _filled(shape, extras, budget, many)
        if routed.n:
            yield routed
    yield Layout()


def _filled(shape: ModelShape, extras: Extras, budget: Budget, experts_in_ram: int) -> Layout:
    """Return the layout that fills the cards from the last part backwards."""
    sizes = extras.parts(shape, experts_in_ram)
    counts: dict[str, int] = {}
    left = len(sizes)
    for card in reversed(budget.cards):
        room = card.budget - extras.compute
        begun = left
        while left and sizes[left - 1] <= room:
            room -= sizes[left - 1]
            left -= 1
        if begun > left:
            counts[card.name] = begun - left
    ordered = [card.name for card in budget.cards if card.name in counts]
    on = Layout(tuple(ordered), tuple(counts[name] for name in ordered))
    return replace(on, experts_in_ram=max(0, experts_in_ram - left) and experts_in_ram)


def estimated(shape: ModelShape, extras: Extras, layout: Layout) -> dict[str, Needs]:
    """Return what a layout takes of each memory, by formula."""
    on = layout.devices_of(len(shape.parts))
    needs = {RAM: Needs(shape.embedding, 0, extras.output, extras.program)}
    for name in {RAM, *layout.devices}:
        needs[name] = needs.get(name, Needs()) + Needs(compute=extras.compute)
    for layer, (part, cache, device) in enumerate(zip(shape.parts, (*extras.cache, 0), on, strict=True)):
        experts = _experts(part, layer < layout.experts_in_ram)
        needs[device or RAM] += Needs(part.weights + part.experts - experts, cache)
        needs[RAM] += Needs(experts)
    if on[-1] is None:
        needs[RAM] += Needs(-shape.tied)
    return needs


def _experts(part: Layer, in_ram: bool) -> int:
    return part.experts if in_ram else 0
