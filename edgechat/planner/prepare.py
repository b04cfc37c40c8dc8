"""The planner's entry points: from a model name to a LoadPlan, or to a survey of all matching files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from edgechat import settings
from edgechat.base.errors import BackendMissing, ModelFileError
from edgechat.base.text import one_line
from edgechat.device.survey import survey
from edgechat.models.formats.header import ModelHeader
from edgechat.models.local.inventory import LocalModel
from edgechat.models.local.resolve import resolve
from edgechat.planner.candidates import Variant, check, everything, of_local, runnable, variants, weighs_mlx
from edgechat.planner.estimate.dry_run import DryRun
from edgechat.planner.estimate.rates import COMMON
from edgechat.planner.machine import (
    Machine,
    MachineDescription,
    beside,
    current_profile,
    in_words,
    machine_for,
    without_loads,
)
from edgechat.planner.placement.engine_plan import engine_plan, llama_server_plan
from edgechat.planner.placement.plan_model import plan_variant, with_draft
from edgechat.planner.placement.programs import PROGRAMS, effective, split_engine
from edgechat.planner.plan import LoadPlan
from edgechat.planner.ranking.ranking import (
    RankedFile,
    SurveyFindings,
    SurveyOverview,
    best_of,
    choose,
    first_that_fits,
    rate,
    rated,
    runnable_models,
    samples,
)
from edgechat.planner.request import DEFAULT_REQUEST, PlanRequest, with_settings, without_effect
from edgechat.settings import Settings


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
    """Return how to load `model`, given as a path or a catalogue name, on this machine as it is now.

    The request takes precedence over settings.toml. may_embed: accept embedding models. staying: plans of
    models that stay loaded alongside it. leaving: plans of models that are unloaded first. described: changes
    to the machine. must_run: see `engine_plan`.

    Raises ModelNotFound, ModelFileError, BackendMissing, EngineMissing, DoesNotFit, SettingsError or
    OptionWithoutEffect; also NotADraft if a requested draft model cannot draft.
    """
    engine, name = split_engine(model)
    config = settings.load()
    if engine is None:
        return _prepared(model, request, config, may_embed, staying, leaving, described)
    label = PROGRAMS[engine].label
    notes = without_effect(request, config, effective(engine), one_line(model, 100), label)
    if engine == "llama-server":
        own = msgspec.structs.replace(request, draft="none", backend="llama.cpp", adapters=(), workers=())
        local = _prepared(name, own, config, False, staying, leaving, described)
        plan = llama_server_plan(local, config, must_run=must_run)
    else:
        profile = described.over(without_loads(beside(survey().profile, staying), leaving))
        request = with_settings(request, config)
        plan = engine_plan(engine, name, request, config, profile, must_run=must_run)
    return msgspec.structs.replace(plan, notes=(*plan.notes, *notes))


def _prepared(
    model: str,
    request: PlanRequest,
    config: Settings,
    may_embed: bool,
    staying: Sequence[LoadPlan],
    leaving: Sequence[LoadPlan],
    described: MachineDescription,
) -> LoadPlan:
    """Return the plan for a model that edgechat itself loads; see `prepare`."""
    entry = resolve(model).entry
    insists = request.draft is not None
    request = with_settings(request, config)
    with DryRun() as dry:  # the process starts while the headers are read
        known = variants(model, offline=True, local=True)
        for file in known:
            with contextlib.suppress(ModelFileError):  # this file may not be the one that is chosen
                file.header()
        workers = request.workers or ()
        machine = machine_for(dry, described, workers=workers, types=None, staying=staying, leaving=leaving)
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
    """Return the plan for the best file, together with that file. Raises DoesNotFit."""
    if len(files) > 1:
        chosen = choose((rate(file, machine, request) for file in files), request)
        if chosen is not None and chosen.plan is not None:
            return chosen.plan, chosen.variant
    return plan_variant(files[0], machine, request), files[0]


_SURE = 5
"""Number of top-ranked models that get a dry run. For the others, memory is estimated."""


def one_model(
    name: str, request: PlanRequest, described: MachineDescription, *, offline: bool, insists: bool = True
) -> SurveyFindings:
    """Rate every file of a model for a machine. insists: see `with_draft`.

    Raises ModelNotFound, ModelFileError, BackendMissing, HubError or SettingsError; for a requested draft
    model, also NotADraft or DoesNotFit.
    """
    with DryRun() as dry:  # the process starts while the files are found
        files = variants(name, offline=offline)
        machine = machine_for(dry, described, workers=request.workers or ())
        files = runnable(files, machine.profile, request)
        machine = machine.timed_for(_headers(files))
        options = rated(files, machine, request)
        chosen = choose(options, request)
        if chosen is not None and chosen.plan is not None:
            variant = chosen.variant
            plan = with_draft(chosen.plan, variant, machine, request, insists=insists, elsewhere=True)
            chosen = replace(chosen, plan=plan)
        instead = None if chosen else first_that_fits(machine, request)
    options.sort(key=lambda option: option.variant.size, reverse=True)
    unread = len(files) - len(options)
    return SurveyFindings(name, in_words(machine.profile), tuple(options), chosen, instead, unread)


def _headers(files: Sequence[Variant]) -> Iterator[ModelHeader]:
    for file in files:
        with contextlib.suppress(ModelFileError, OSError):  # reported when the file is rated
            yield file.header()


def all_models(request: PlanRequest, described: MachineDescription) -> SurveyFindings:
    """Rate the best file of every catalogue model for a machine, without using the network.

    Raises BackendMissing.
    """
    with _catalogue_on(described, request) as (models, machine):
        options = _ranked(models, machine, request)
    return SurveyFindings(None, in_words(machine.profile), tuple(options), choose(options, request))


def overview(local: Sequence[LocalModel], request: PlanRequest) -> SurveyOverview:
    """Rate the catalogue and these local models for this machine, without using the network."""
    with _catalogue_on(MachineDescription(), request) as (models, machine):
        options = _ranked(models, machine, request)
        here: dict[Path, RankedFile] = {}
        for model in local:
            with contextlib.suppress(ModelFileError, BackendMissing, OSError):
                (variant,) = runnable([of_local(model)], machine.profile, request)
                here[model.path] = rate(variant, machine.without_dry_run, request)
    findings = SurveyFindings(None, in_words(machine.profile), tuple(options), choose(options, request))
    return SurveyOverview(machine.profile, findings, here, machine.history)


@contextlib.contextmanager
def _catalogue_on(
    described: MachineDescription, request: PlanRequest
) -> Iterator[tuple[list[list[Variant]], Machine]]:
    with DryRun() as dry:
        models = everything(mlx=weighs_mlx(current_profile(), request))
        for files in models:  # read the headers while the dry run starts
            next(samples(files), None)
        machine = machine_for(dry, described, workers=request.workers or (), types=COMMON)
        yield runnable_models(models, machine.profile, request), machine


def _ranked(models: Sequence[Sequence[Variant]], machine: Machine, request: PlanRequest) -> list[RankedFile]:
    """Return the best file of each model, best first; models that rank equally stay in catalogue order."""
    best = {
        number: option
        for number, files in enumerate(models)
        if (option := best_of(files, machine.without_dry_run, request)) is not None
    }
    sure: set[int] = set()
    while True:
        order = sorted(best, key=lambda number: best[number].rank, reverse=True)
        doubtful = next((number for number in order[:_SURE] if number not in sure), None)
        if doubtful is None:
            return [best[number] for number in order]
        best[doubtful] = best_of(models[doubtful], machine, request) or best[doubtful]
        sure.add(doubtful)
