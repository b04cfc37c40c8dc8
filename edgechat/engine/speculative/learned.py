"""What a controller learnt, kept in the cache folder for the next time: per model, draft and machine.

Whatever is wrong with the file, it is only learnt anew; nothing is said where it cannot be written.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import msgspec

from edgechat.base import paths
from edgechat.base.errors import FolderError
from edgechat.engine.scheduling.draft_sources import Source
from edgechat.engine.speculative.acceptance import AcceptanceCounts
from edgechat.engine.speculative.controller import Controller
from edgechat.engine.speculative.step_cost import Shape
from edgechat.planner.plan import LoadPlan

_FILE = "speculation.json"
_PLACES = 32
_MOST_READ = 1 << 20  # bytes of the file: several times what we write
_MOST_ROUND_COST = 10.0
_PAUSE = 5.0  # seconds between two writes


class AcceptanceRates(msgspec.Struct, frozen=True):
    """How often the drafts of one source stand."""

    by_class: AcceptanceCounts
    by_position: AcceptanceCounts


class DraftRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What was learnt in one place."""

    place: str
    shapes: dict[int, Shape] = {}
    round_costs: dict[Source, float] = {}
    rates: dict[Source, AcceptanceRates] = {}
    when: float = 0.0
    """In seconds since 1970."""


class DraftHistory:
    """What was learnt with one model, draft and machine."""

    def __init__(self, plan: LoadPlan) -> None:
        machine = plan.where.machine if plan.where else f"{plan.threads} threads"
        draft = plan.draft
        self._place = " | ".join(
            (
                machine,
                plan.where.build if plan.where else "",
                f"{plan.model_name} {plan.quant} {plan.file_bytes} {plan.cache_type} {plan.attention}",
                " ".join(f"{name} {n}" for name, n in zip(plan.devices, plan.split, strict=False)) or "CPU",
                f"{draft.model_name} {draft.quant}" if draft else "no model drafts",
            )
        )
        self._written = 0.0

    def restore(self, controller: Controller) -> None:
        """Let a controller start with what was learnt before."""
        for record in _read():
            if record.place == self._place:
                controller.cost.start_with(record.shapes)
                for source, cost in record.round_costs.items():
                    if source in controller.round_costs and 0 < cost <= _MOST_ROUND_COST:
                        controller.round_costs[source] = cost
                for source, rates in record.rates.items():
                    controller.acceptance[source].start_with(rates.by_class, rates.by_position)

    def save(self, controller: Controller) -> None:
        """Write down what a controller knows, unless that was done just now. Takes a millisecond or two."""
        now = time.time()
        if abs(now - self._written) < _PAUSE:
            return
        self._written = now
        rates = {
            source: AcceptanceRates(record.by_class, record.by_position)
            for source, record in controller.acceptance.items()
        }
        own = DraftRecord(
            place=self._place,
            shapes=controller.cost.shapes,
            round_costs=controller.round_costs,
            rates=rates,
            when=now,
        )
        others = sorted(
            (record for record in _read() if record.place != self._place), key=lambda record: record.when
        )
        with contextlib.suppress(OSError, FolderError):
            paths.replace(_path(), msgspec.json.encode([*others[-_PLACES + 1 :], own]))


def _read() -> list[DraftRecord]:
    try:
        return msgspec.json.decode(paths.read_bytes(_path(), _MOST_READ), type=list[DraftRecord])
    except (OSError, FolderError, msgspec.MsgspecError, RecursionError):
        return []


def _path() -> Path:
    return paths.cache_dir() / _FILE
