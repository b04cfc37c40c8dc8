"""The memory that a load may use on each device: what is free now, less a margin.

A card that shares the machine's memory has a limit of its own, but what it holds is also charged to RAM. Swap
never counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from edgechat.base.text import mebibytes
from edgechat.device.accelerators import Accelerator
from edgechat.device.memory import Memory
from edgechat.device.profile import DeviceProfile
from edgechat.models.formats.header import Format
from edgechat.native.params import Breakdown

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
