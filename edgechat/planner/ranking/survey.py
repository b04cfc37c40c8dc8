"""Every file of a model, or every model of the catalogue, rated for a machine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from edgechat.base.errors import BackendMissing, ModelFileError
from edgechat.device.profile import DeviceProfile
from edgechat.models.formats.header import ModelHeader
from edgechat.models.local.inventory import LocalModel
from edgechat.planner.draft_plan import with_draft
from edgechat.planner.estimate.calibration import Calibration
from edgechat.planner.estimate.dry_run import DryRun
from edgechat.planner.estimate.kernel_probe import COMMON
from edgechat.planner.machine import Machine, MachineDescription, current_profile, in_words, machine_for
from edgechat.planner.placement.backends import runnable, weighs_mlx
from edgechat.planner.ranking.candidates import Variant, everything, of_local, variants
from edgechat.planner.ranking.ranked_file import RankedFile
from edgechat.planner.ranking.ranking import (
    best_of,
    choose,
    first_that_fits,
    rate,
    rated,
    runnable_models,
    samples,
)
from edgechat.planner.request import PlanRequest

_SURE = 5
"""Number of the best models of the catalogue that get a dry run; what others take is estimated."""


@dataclass(frozen=True, slots=True)
class SurveyFindings:
    """The result of a survey."""

    name: str | None
    """Of the model that was asked about; None for the whole catalogue."""
    machine: str
    """In words."""
    options: tuple[RankedFile, ...]
    """Files from large to small, or one of each model, best first; never empty."""
    chosen: RankedFile | None
    """With its alternatives; None where nothing fits."""
    instead: RankedFile | None = None
    """The best of the catalogue that fits, where nothing does that was asked about."""
    unread: int = 0
    """Files of a repository on the hub that were not looked at: they seemed to be the worse choice."""


def one_model(
    name: str, request: PlanRequest, described: MachineDescription, *, offline: bool, insists: bool = True
) -> SurveyFindings:
    """Rate every file of a model for a machine. insists: see `draft_plan.with_draft`.

    Raises ModelNotFound, ModelFileError, BackendMissing, HubError, SettingsError; for a requested draft model
    also NotADraft and DoesNotFit.
    """
    with DryRun() as dry:  # starts while the files are looked for
        files = variants(name, offline=offline)
        machine = machine_for(described, dry, request.workers or ())
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
        with contextlib.suppress(ModelFileError, OSError):  # it is reported where it is rated
            yield file.header()


def all_models(request: PlanRequest, described: MachineDescription) -> SurveyFindings:
    """Rate the best file of every model of the catalogue for a machine, without using the network.

    Raises BackendMissing.
    """
    with _catalogue_on(described, request) as (models, machine):
        options = _ranked(models, machine, request)
    return SurveyFindings(None, in_words(machine.profile), tuple(options), choose(options, request))


@dataclass(frozen=True, slots=True)
class SurveyOverview:
    """The catalogue and the local models, rated for this machine."""

    profile: DeviceProfile
    found: SurveyFindings
    """Of the whole catalogue."""
    local: Mapping[Path, RankedFile]
    """Of the files that are here, by path; those that cannot be read, or computed here, are left out."""
    history: Calibration

    def has_measured(self, option: RankedFile) -> bool:
        """Return whether loads of such a model in such a quantization were measured on this machine."""
        plan = option.plan
        return plan is not None and plan.where is not None and self.history.knows(plan.where)


def overview(local: Sequence[LocalModel], request: PlanRequest) -> SurveyOverview:
    """Rate the catalogue and these models for this machine, without using the network."""
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
        for files in models:  # read while the process starts
            next(samples(files), None)
        machine = machine_for(described, dry, request.workers or (), COMMON)
        yield runnable_models(models, machine.profile, request), machine


def _ranked(models: Sequence[Sequence[Variant]], machine: Machine, request: PlanRequest) -> list[RankedFile]:
    """Return the best file of each model, best first; of equals the one that the catalogue names first."""
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
