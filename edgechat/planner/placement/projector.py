"""Where a projector lies: on a card or in RAM, in the same budget as the layers of its model.

On a card a picture is encoded ten times faster or more; but layers that have to leave it for that make every
token slower. So it lies there if all layers fit beside it, and else wherever a question about a picture is
answered sooner (`ModelOnMachine` compares).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from edgechat.device.mlx import missing_vision
from edgechat.device.speed import ROWS, DeviceSpeed
from edgechat.models.formats.header import Modality, ModelHeader, modalities
from edgechat.models.formats.projector import ProjectorHeader, read_for, tower_of
from edgechat.models.formats.quants import GgmlType
from edgechat.planner.placement import projector_memory
from edgechat.planner.placement.budget import RAM, Budget, Needs, together
from edgechat.planner.placement.projector_memory import Picture

TOWER = "its vision tower"
"""What the plan of an MLX model calls what it sees with."""
ANSWER = 256
"""Tokens of the answer to the question about a picture by which places are compared."""


class ProjectorPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How the file is loaded that makes pictures or sound readable for a model."""

    path: str
    """Empty where it is not on this machine."""
    name: str
    """Of the file."""
    vision: bool
    audio: bool
    device: str = ""
    """llama.cpp's name of the accelerator that it is on; empty: the processor computes it."""
    image_tokens: int = 0
    """Tokens of the context that a picture takes at most: larger ones must be made smaller."""
    image_batch: int = 0
    """Tokens of a picture that one call must compute together, and which n_ubatch has room for; 0: any part
    will do."""
    file_bytes: int = 0
    weights_bytes: int = 0
    compute_bytes: int = 0
    """With the largest picture; until one comes, less."""
    host_bytes: int = 0
    """Of RAM, for the picture itself, wherever it is encoded."""

    @property
    def modalities(self) -> tuple[Modality, ...]:
        """What it makes readable."""
        return modalities(vision=self.vision, audio=self.audio)

    @property
    def total_bytes(self) -> int:
        """What it takes altogether."""
        return self.weights_bytes + self.compute_bytes + self.host_bytes

    @property
    def needs(self) -> dict[str, Needs]:
        """What it takes of each memory."""
        there = Needs(projector=self.weights_bytes + self.compute_bytes)
        return together({RAM: Needs(projector=self.host_bytes)}, {self.device or RAM: there})

    def unused_bytes(self, memory: str) -> int:
        """Return what it may not have taken yet of one memory, because no picture came."""
        return self.host_bytes * (memory == RAM) + self.compute_bytes * (memory == (self.device or RAM))


def header_beside(model: ModelHeader, path: Path | None) -> tuple[ProjectorHeader | None, str]:
    """Return the header of what makes pictures or sound readable for a model, or None and why there is none.

    path: the projector beside a GGUF file. An MLX model has a tower in its own folder.
    """
    if model.format != "mlx":
        return read_for(model, path) if path is not None else (None, "")
    tower, problem = tower_of(model)
    problem = problem or (missing_vision() if tower is not None else "")
    return (None, problem) if problem else (tower, "")


@dataclass(frozen=True, slots=True)
class ProjectorFile:
    """A projector that fits a model."""

    name: str
    header: ProjectorHeader
    path: str = ""

    def picture(self, width: int, context: int) -> Picture:
        """Return the largest picture for a model with embeddings of this width and so much context."""
        return projector_memory.largest_picture(self.header, width, context)

    def plan(self, picture: Picture, width: int, device: str) -> ProjectorPlan:
        """Return how it is loaded on a device; '': in RAM."""
        return ProjectorPlan(
            path=self.path,
            name=self.name,
            vision=self.header.vision is not None,
            audio=self.header.audio is not None,
            device=device,
            image_tokens=picture.tokens,
            image_batch=picture.whole,
            file_bytes=self.header.header.file_size,
            weights_bytes=projector_memory.weights_bytes(self.header),
            compute_bytes=projector_memory.compute_bytes(self.header, picture, on_cpu=not device),
            host_bytes=projector_memory.host_bytes(picture, width),
        )


def places(budget: Budget) -> Iterator[str]:
    """Yield the cards it may be on, the best first, and then '' for RAM. Pictures are not sent to servers."""
    for card in reversed(budget.cards):
        if not card.name.startswith("RPC"):
            yield card.name
    yield ""


def encoding_seconds(projector: ProjectorHeader, picture: Picture, speed: DeviceSpeed) -> float:
    """Return the seconds in which a device encodes a picture: its products, and its attention to itself.

    With a projector that only hears, half a minute of sound.
    """
    encoder, n, layers = projector.vision, picture.patches, "v.blk."
    if encoder is None:
        encoder, n, layers = projector.audio, projector_memory.MOST_HEARD, "a.blk."
    assert encoder is not None
    weights: Counter[GgmlType] = Counter()
    for tensor in projector.header.tensors:
        if tensor.name.startswith(layers):
            weights[tensor.type] += tensor.n_elements
    products = sum(count * speed.kernels[kind.name][-1] for kind, count in weights.items()) / ROWS[-1]
    return n * (products + 4 * n * encoder.embedding_length * encoder.n_layers * speed.attention[-1])


def why_there(device: str, card: str, moved: int) -> str:
    """Return why a projector lies where it does, as the end of a sentence.

    card: the one that it could lie on. moved: layers that it pushes off that, or would.
    """
    if device:
        less = f", although {moved} more layer{'s run' if moved > 1 else ' runs'} on the CPU" if moved else ""
        return f"where questions about pictures are answered sooner{less}"
    what = f"{moved} layer{'s' if moved > 1 else ''}" if moved else "experts"
    return f"as it would push {what} off {card}, and answers would take longer"
