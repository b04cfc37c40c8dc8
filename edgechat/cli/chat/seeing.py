"""Hints at a model that could answer instead: one that sees, or one of this machine."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import suppress

from edgechat import settings
from edgechat.base.errors import EdgechatError
from edgechat.planner.listing import ModelRow, rows
from edgechat.planner.prepare import overview
from edgechat.planner.ranking.ranking import SurveyOverview
from edgechat.planner.ranking.suggestions import local_model, seeing_model
from edgechat.planner.request import PlanRequest, with_settings
from edgechat.settings import Backend


def seeing_hint(backend: Backend | None, *, in_conversation: bool) -> str | None:
    """Return what to do to ask a model that sees and fits; None if there is none."""

    def rated(listed: Sequence[ModelRow]) -> SurveyOverview:
        sound = [row.model for row in listed if not row.glance.damage]
        return overview(sound, with_settings(PlanRequest(backend=backend), settings.load()))

    with suppress(EdgechatError):  # of the search; the question's own is told
        seeing = seeing_model(rows, rated)
        if seeing is not None:
            name = shlex.quote(seeing.name)
            use = f"/model {seeing.name}" if in_conversation else f"edgechat run {name} …"
            return f"{seeing.sentence} {use if seeing.is_here else f'edgechat pull {name}'}"
    return None


def local_hint(*, in_conversation: bool) -> str | None:
    """Return how to go on with a model of this machine that fits; None if there is none."""
    with suppress(EdgechatError):
        found = local_model(rows())
        if found is not None:
            use = f"/model {found.name}" if in_conversation else f"edgechat run {shlex.quote(found.name)} …"
            return f"{found.sentence} {use}"
    return None
