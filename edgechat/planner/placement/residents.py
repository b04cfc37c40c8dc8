"""Several models at once: the memory for one more, if others stay loaded or are unloaded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from edgechat.device.accelerators import Accelerator
from edgechat.device.memory import Memory
from edgechat.device.profile import DeviceProfile
from edgechat.native import amx
from edgechat.planner.placement.budget import RAM
from edgechat.planner.plan import DeviceMemory, LoadPlan

_COPIED = ("_REPACK", amx.NAME)
"""Suffixes of the names of buffers whose weights are not pages of the file."""


def beside(profile: DeviceProfile, staying: Iterable[LoadPlan]) -> DeviceProfile:
    """Return the machine without the memory that loads which stay need although it counts as free.

    Mapped weights count as free (see `device.memory`), but are read for every token.
    """
    taken = sum(mapped_bytes(plan) for plan in staying)
    return replace(profile, memory=_less(profile.memory, taken))


def without_loads(profile: DeviceProfile, leaving: Iterable[LoadPlan]) -> DeviceProfile:
    """Return the machine as it would be after these loads are unloaded."""
    memory, cards = profile.memory, profile.accelerators
    for plan in leaving:
        for part in plan.memory:
            # Checkpoints may not have been taken yet, nor memory for pictures and adapters.
            unused = part.checkpoint_bytes + part.adapter_bytes
            unused += plan.projector.unused_bytes(part.name) if plan.projector is not None else 0
            if part.name == RAM:
                memory = _less(memory, mapped_bytes(plan) + unused - part.total_bytes)
            else:
                cards = tuple(_freed(card, part, part.total_bytes - unused) for card in cards)
    return replace(profile, memory=memory, accelerators=cards)


def mapped_bytes(plan: LoadPlan) -> int:
    """Return the bytes of RAM that hold weights as pages of the model's file, according to the plan."""
    in_ram = next((entry.weights_bytes for entry in plan.memory if entry.name == RAM), 0)
    copied = sum(entry.weights for entry in plan.buffers if entry.is_host and entry.name.endswith(_COPIED))
    return max(0, in_ram - copied)


def is_lesser(plan: LoadPlan, other: LoadPlan) -> bool:
    """Return whether a plan has a shorter context, fewer layers on accelerators, or other weights.

    Or if it reads text alone, and the other one does not.
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
