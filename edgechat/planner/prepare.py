"""From what a user typed to a LoadPlan: find the model, read its header, examine the machine, choose."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import msgspec

from edgechat import settings
from edgechat.base.errors import ModelFileError
from edgechat.base.text import one_line
from edgechat.device.survey import survey
from edgechat.models.local.resolve import resolve
from edgechat.planner.draft_plan import with_draft
from edgechat.planner.estimate.calibration import Calibration
from edgechat.planner.estimate.dry_run import DryRun
from edgechat.planner.machine import Machine, MachineDescription, current_profile
from edgechat.planner.placement.backends import runnable
from edgechat.planner.placement.embedding import check
from edgechat.planner.placement.engines.engine_plan import engine_plan, llama_server_plan
from edgechat.planner.placement.engines.programs import PROGRAMS, effective, split_engine
from edgechat.planner.placement.residents import beside, without_loads
from edgechat.planner.plan import LoadPlan
from edgechat.planner.plan_model import plan_variant
from edgechat.planner.ranking.candidates import Variant, variants
from edgechat.planner.ranking.ranking import choose, rate
from edgechat.planner.request import DEFAULT_REQUEST, PlanRequest, with_settings, without_effect


def prepare(
    model: str,
    request: PlanRequest = DEFAULT_REQUEST,
    *,
    may_embed: bool = False,
    staying: Sequence[LoadPlan] = (),
    leaving: Sequence[LoadPlan] = (),
    described: MachineDescription = MachineDescription(),  # noqa: B008  (it is frozen)
    must_run: bool = True,
) -> LoadPlan:
    """Return how to load `model`, a path or a name of the catalogue, on this machine now.

    The request takes precedence over settings.toml. may_embed: accept embedding models. staying: plans of
    models that stay loaded beside it. leaving: plans of models that are unloaded first.
    described, must_run: of what another program runs, see `engine_plan`.
    Raises ModelNotFound, ModelFileError, BackendMissing, EngineMissing, DoesNotFit, SettingsError,
    OptionWithoutEffect, or NotADraft for a requested draft model that cannot draft.
    """
    engine, name = split_engine(model)
    config = settings.load()
    if engine is not None:
        notes = without_effect(
            request, config, effective(engine), one_line(model, 100), PROGRAMS[engine].label
        )
        if engine == "llama-server":
            own = msgspec.structs.replace(request, draft="none", backend="llama.cpp", adapters=(), workers=())
            local = prepare(name, own, staying=staying, leaving=leaving, described=described)
            plan = llama_server_plan(local, config, must_run=must_run)
        else:
            profile = described.over(without_loads(beside(survey().profile, staying), leaving))
            request = with_settings(request, config)
            plan = engine_plan(engine, name, request, config, profile, must_run=must_run)
        return msgspec.structs.replace(plan, notes=(*plan.notes, *notes))
    entry = resolve(model).entry
    insists = request.draft is not None
    request = with_settings(request, config)
    with DryRun() as dry:  # starts while the headers are read
        known = variants(model, offline=True, local=True)
        for file in known:
            with contextlib.suppress(ModelFileError):  # it may not be chosen at all
                file.header()
        current = current_profile(dry, request.workers or ())
        profile = described.over(without_loads(beside(current, staying), leaving))
        machine = Machine(profile, history=Calibration.read(), dry=dry)
        files = runnable(known, machine.profile, request)
        for file in files:
            check(file.model, file.header(), may_embed=may_embed)
        machine = machine.timed_for(file.header() for file in files)
        plan, variant = _best(files, machine, request)
        plan = with_draft(plan, variant, machine, request, insists=insists)
    recommended = entry.sampling_for if entry else lambda _: plan.defaults.sampling
    description = entry.description if entry else ""
    return msgspec.structs.replace(
        plan,
        sampling=config.sampling.over(recommended(None)),
        thinking_sampling=config.sampling.over(recommended(True)),
        answering_sampling=config.sampling.over(recommended(False)),
        reasons=tuple(filter(None, (description, *plan.reasons))),
    )


def _best(files: Sequence[Variant], machine: Machine, request: PlanRequest) -> tuple[LoadPlan, Variant]:
    """Return the plan for the best of the files, and that file. Raises DoesNotFit."""
    if len(files) > 1:
        chosen = choose((rate(file, machine, request) for file in files), request)
        if chosen is not None and chosen.plan is not None:
            return chosen.plan, chosen.variant
    return plan_variant(files[0], machine, request), files[0]
