"""From what a person typed to a LoadPlan: find the model, read its header, look at the machine, choose."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import msgspec

from edgechat import settings
from edgechat.base.errors import ModelFileError
from edgechat.models.local.resolve import resolve
from edgechat.planner.draft_plan import with_draft
from edgechat.planner.estimate.calibration import Calibration
from edgechat.planner.estimate.dry_run import DryRun
from edgechat.planner.machine import Machine, look
from edgechat.planner.placement.backends import runnable
from edgechat.planner.placement.embedding import check
from edgechat.planner.placement.residents import beside, without
from edgechat.planner.plan import LoadPlan
from edgechat.planner.plan_model import plan_variant
from edgechat.planner.ranking.candidates import Variant, variants
from edgechat.planner.ranking.ranking import choose, rate
from edgechat.planner.request import DEFAULT_REQUEST, PlanRequest, with_settings
from edgechat.settings import SamplingDefaults


def prepare(
    model: str,
    request: PlanRequest = DEFAULT_REQUEST,
    *,
    may_embed: bool = False,
    staying: Sequence[LoadPlan] = (),
    leaving: Sequence[LoadPlan] = (),
) -> LoadPlan:
    """Return how to load `model`, a path or a name of the catalogue, on this machine now.

    A wish wins over settings.toml, and that over our own choice. may_embed: also a model that was not made
    for chat but for embeddings. staying: loads of ours beside which it is to fit. leaving: loads of ours that
    are ended before. Raises ModelNotFound, ModelFileError, BackendMissing, DoesNotFit, SettingsError, or
    NotADraft for a model that was wished for and cannot draft.
    """
    found = resolve(model)
    given = settings.load()
    wanted, insists = with_settings(request, given), request.draft is not None
    with DryRun() as dry:  # starts while the headers are read
        known = variants(model, offline=True, local=True)
        for one in known:
            with contextlib.suppress(ModelFileError):  # of one that may not even be wanted
                one.header()
        profile = without(beside(look(dry), staying), leaving)
        machine = Machine(profile, history=Calibration.read(), dry=dry)
        files = runnable(known, machine.profile, wanted)
        for one in files:
            check(one.model, one.header(), may_embed=may_embed)
        made, variant = _best(files, machine, wanted)
        made = with_draft(made, variant, machine, wanted, insists=insists)
    entry = found.entry
    makers = entry.sampling_for if entry else lambda _: SamplingDefaults()
    about = entry.description if entry else ""
    reasons = tuple(reason for reason in (about, *made.reasons) if reason)
    return msgspec.structs.replace(
        made,
        sampling=given.sampling.over(makers(None)),
        thinking_sampling=given.sampling.over(makers(True)),
        answering_sampling=given.sampling.over(makers(False)),
        reasons=reasons,
    )


def _best(files: Sequence[Variant], machine: Machine, request: PlanRequest) -> tuple[LoadPlan, Variant]:
    """Return the plan for the best of the files that are here, and that file. Raises DoesNotFit."""
    if len(files) > 1:
        chosen = choose((rate(one, machine, request) for one in files), request)
        if chosen is not None and chosen.plan is not None:
            return chosen.plan, chosen.variant
    return plan_variant(files[0], machine, request), files[0]
