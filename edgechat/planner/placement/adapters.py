"""What LoRA adapters take: each pair lies where the tensor lies that it changes.

llama.cpp computes them in the buffers that the model needs anyway.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec

from edgechat.base.errors import BadRequest, DiskError, ModelFileError
from edgechat.base.text import one_line
from edgechat.models.adapters.reading import EMBEDDING, AdapterUse, parse_scaled
from edgechat.models.formats.header import ModelHeader
from edgechat.planner.placement.budget import RAM, Needs

_EXPERTS = "_exps."


class AdapterPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A LoRA adapter that requests are computed with unless they say otherwise."""

    name: str
    path: str
    """As it was given: a GGUF file, or a folder that PEFT has saved."""
    scale: float
    rank: int
    """The largest of its ranks."""
    total_bytes: int
    parts: tuple[tuple[str, int | None, int], ...] = ()
    """Each changed tensor, its layer (None: of none), and the bytes that change it."""

    @property
    def use(self) -> AdapterUse:
        """What a request names."""
        return AdapterUse(self.path, self.scale)


def plan_adapters(
    texts: Sequence[str], usual: Sequence[str], header: ModelHeader
) -> tuple[tuple[AdapterPlan, ...], tuple[str, ...]]:
    """Return the adapters for a model, and a sentence about each that is left out.

    texts: those that were asked for, FILE or NAME:SCALE. usual: those for the models that they fit.
    Raises NotAnAdapter, ModelFileError or DiskError for one that was asked for.
    """
    found, notes = [_planned(text, header) for text in texts], []
    for text in usual:
        try:
            found.append(_planned(text, header))
        except (BadRequest, DiskError, ModelFileError) as error:
            notes.append(f"The adapter {one_line(text, 80)} is not applied. {error.message}")
    return tuple(found), tuple(notes)


def _planned(text: str, header: ModelHeader) -> AdapterPlan:
    # Imported here: plans without adapters need not pay for it.
    from edgechat.models.adapters.local import find_adapter
    from edgechat.models.adapters.peft import open_adapter

    name, scale = parse_scaled(text)
    found = find_adapter(name)
    adapter = open_adapter(found.path, header)
    return AdapterPlan(
        name=found.name,
        path=str(found.path),
        scale=scale,
        rank=adapter.rank,
        total_bytes=adapter.n_bytes,
        parts=tuple(adapter.parts()),
    )


def adapter_needs(
    adapters: Sequence[AdapterPlan], devices: Sequence[str], experts_in_ram: int
) -> dict[str, Needs]:
    """Return what adapters take of each memory.

    devices: of the model's layers, and of the output. experts_in_ram: layers whose experts are not there.
    """
    taken: defaultdict[str, int] = defaultdict(int)
    for adapter in adapters:
        for tensor, layer, n_bytes in adapter.parts:
            device = RAM if tensor == EMBEDDING else devices[-1]
            if layer is not None and layer < len(devices) - 1:
                device = RAM if _EXPERTS in tensor and layer < experts_in_ram else devices[layer]
            taken[device] += n_bytes
    return {name: Needs(adapters=n_bytes) for name, n_bytes in taken.items()}
