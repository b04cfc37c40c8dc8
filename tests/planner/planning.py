"""Plans from headers alone, without files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgechat.models.formats.header import ModelHeader
from edgechat.planner.candidates import Variant
from edgechat.planner.estimate.calibration import Calibration
from edgechat.planner.machine import Machine
from edgechat.planner.placement.model_on_machine import Measure
from edgechat.planner.placement.plan_model import plan_variant
from edgechat.planner.request import DEFAULT_REQUEST


@dataclass(frozen=True)
class DraftCandidate:
    """A small model to draft for another one. requested: whether memory is reserved for it."""

    name: str
    header: ModelHeader
    measure: Measure | None = None
    path: str = ""
    requested: bool = False


def plan(
    name,
    header,
    profile,
    request=DEFAULT_REQUEST,
    measure=None,
    history=None,
    *,
    draft=None,
    projector=None,
    **options,
):
    """Return the plan for a header; `measure` replaces the dry run."""

    class Measuring(Machine):
        def measuring(self, asked):
            return measure if asked is header else draft.measure

    machine = Measuring(profile, history=history or Calibration())
    model = variant(name, header, projector=lambda: (projector, ""))
    if draft is None:
        return plan_variant(model, machine, request, **options)
    small = variant(draft.name, draft.header, path=Path(draft.path) if draft.path else None)
    return plan_variant(model, machine, request, draft=small, reserves=draft.requested, **options)


def variant(name, header, **fields):
    """Return a variant that only has a header."""
    return Variant(name, None, 0, lambda: header, format=header.format, **fields)
