"""Every file of a model, or every model of the catalogue, held against a machine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from edgechat.device.bandwidth import measure_speed
from edgechat.device.load import Disturbance
from edgechat.device.profile import DeviceProfile
from edgechat.errors import BackendMissing, HubError, ModelFileError
from edgechat.models.local.inventory import LocalModel
from edgechat.planner.draft_plan import with_draft
from edgechat.planner.estimate.calibration import Calibration
from edgechat.planner.estimate.dry_run import DryRun
from edgechat.planner.estimate.rates import rate_of_processor
from edgechat.planner.machine import Machine, MachineDescription, look
from edgechat.planner.placement.backends import runnable, weighs_mlx, without_mlx
from edgechat.planner.ranking.candidates import Variant, everything, of_local, variants
from edgechat.planner.ranking.option import RankedFile
from edgechat.planner.ranking.ranking import best_of, choose, likeliest, rate, samples
from edgechat.planner.ranking.scoring import Verdict
from edgechat.planner.request import PlanRequest
from edgechat.process.ask import ChildFailed
from edgechat.text import mebibytes

_SLOWED: dict[Disturbance, str] = {
    "busy": "This machine is busy now: answers come slower than is said here while other programs compute.",
    "battery": "It runs on battery now, on which many machines are slower than is said here.",
}
_SURE = 5
"""Models of the catalogue, the best ones, for which llama.cpp is asked; what others take is estimated."""
_REMOTE_LOOKS = 3
"""Headers of a hub repository that are read: each costs some megabytes of download."""


@dataclass(frozen=True, slots=True)
class SurveyFindings:
    """What was found out."""

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
    """Hold every file of a model against a machine. insists: see `beside.with_draft`.

    Raises ModelNotFound, ModelFileError, BackendMissing, HubError, SettingsError; for a draft that is asked
    for by name also NotADraft and DoesNotFit.
    """
    with DryRun() as dry:  # starts while the files are looked for
        files = variants(name, offline=offline)
        with _machine(measured(look(dry), described), described, dry) as machine:
            files = runnable(files, machine.profile, request)
            options = rated(files, machine, request)
            chosen = _with_draft(choose(options, request), machine, request, insists=insists)
            instead = None if chosen else first_that_fits(machine, request)
    options.sort(key=lambda one: one.variant.size, reverse=True)
    unread = len(files) - len(options)
    return SurveyFindings(name, in_words(machine.profile), tuple(options), chosen, instead, unread)


def _with_draft(
    chosen: RankedFile | None, machine: Machine, request: PlanRequest, *, insists: bool
) -> RankedFile | None:
    if chosen is None or chosen.plan is None:
        return chosen
    one = chosen.variant
    made = with_draft(chosen.plan, one, one.header(), machine, request, insists=insists, elsewhere=True)
    return replace(chosen, plan=made)


def all_models(request: PlanRequest, described: MachineDescription) -> SurveyFindings:
    """Hold the best file of every model of the catalogue against a machine; the network is not asked.

    Raises BackendMissing.
    """
    with _catalogue_on(described, request) as (models, machine):
        options = _ranked(models, machine, request)
    return SurveyFindings(None, in_words(machine.profile), tuple(options), choose(options, request))


@dataclass(frozen=True, slots=True)
class SurveyOverview:
    """The catalogue and the models that are here, held against this machine."""

    profile: DeviceProfile
    found: SurveyFindings
    """Of the whole catalogue."""
    local: Mapping[Path, RankedFile]
    """Of the files that are here, by path; those that cannot be read, or computed here, are left out."""
    history: Calibration

    def has_measured(self, option: RankedFile) -> bool:
        """Say whether loads of such a model in such a quantization were measured on this machine."""
        made = option.plan
        return made is not None and made.where is not None and self.history.knows(made.where)


def overview(local: Sequence[LocalModel], request: PlanRequest) -> SurveyOverview:
    """Hold the catalogue and these models against this machine; the network is not asked."""
    with _catalogue_on(MachineDescription(), request) as (models, machine):
        options = _ranked(models, machine, request)
        here: dict[Path, RankedFile] = {}
        for one in local:
            with contextlib.suppress(ModelFileError, BackendMissing, OSError):
                (variant,) = runnable([of_local(one)], machine.profile, request)
                here[one.path] = rate(variant, machine.unasked, request)
    found = SurveyFindings(None, in_words(machine.profile), tuple(options), choose(options, request))
    return SurveyOverview(machine.profile, found, here, machine.history)


@contextlib.contextmanager
def _catalogue_on(
    described: MachineDescription, request: PlanRequest
) -> Iterator[tuple[list[list[Variant]], Machine]]:
    with DryRun() as dry:
        models = everything(mlx=weighs_mlx(look(), request))
        for files in models:  # read while the process starts
            next(samples(files), None)
        machine = _machine(measured(look(dry), described), described, dry)
        yield _runnable(models, machine.profile, request), machine


def _runnable(
    models: Sequence[Sequence[Variant]], profile: DeviceProfile, request: PlanRequest
) -> list[list[Variant]]:
    """Return the files that may be chosen of each model of which there is one. Raises BackendMissing."""
    if request.backend == "mlx" and not profile.mlx:
        raise without_mlx("MLX cannot be used here.")
    found: list[list[Variant]] = []
    for files in models:
        with contextlib.suppress(BackendMissing):
            found.append(runnable(files, profile, request))
    return found


def _ranked(models: Sequence[Sequence[Variant]], machine: Machine, request: PlanRequest) -> list[RankedFile]:
    """Return the best file of each model, best first; of equals the one that the catalogue names first."""
    found = {
        number: one
        for number, files in enumerate(models)
        if (one := best_of(files, machine.unasked, request)) is not None
    }
    sure: set[int] = set()
    while True:
        order = sorted(found, key=lambda number: found[number].rank, reverse=True)
        doubtful = next((number for number in order[:_SURE] if number not in sure), None)
        if doubtful is None:
            return [found[number] for number in order]
        found[doubtful] = best_of(models[doubtful], machine, request) or found[doubtful]
        sure.add(doubtful)


def _machine(profile: DeviceProfile, described: MachineDescription, dry: DryRun) -> Machine:
    # What this machine's memory was seen to do is not what another's does.
    return Machine(
        profile, history=Calibration.read() if described.bandwidth is None else Calibration(), dry=dry
    )


def rated(files: Sequence[Variant], machine: Machine, request: PlanRequest) -> list[RankedFile]:
    """Hold files of one model against a machine; of a repository's only the likeliest, for headers are large.

    Raises HubError or ModelFileError where no header can be read.
    """
    # By what they are and not by `in`: a repository may list ten thousand.
    looked = [one for one in files if one.path is not None or one.entry is not None]
    remote = [one for one in files if one.path is None and one.entry is None]
    if remote:
        looked += [one for one, _ in likeliest(remote, machine, request)[:_REMOTE_LOOKS]]
    options: list[RankedFile] = []
    failure: HubError | ModelFileError | None = None
    for one in looked:
        try:
            options.append(rate(one, machine, request))
        except (HubError, ModelFileError) as error:
            failure = failure or error
    if not options:
        raise failure or ModelFileError(
            f"None of the {len(files)} models of this repository is one that edgechat can read.",
            hint="Choose another repository, or a model of the catalogue: edgechat plan",
        )
    return options


def first_that_fits(machine: Machine, request: PlanRequest) -> RankedFile | None:
    """Return the best model of the catalogue that fits; None where none does."""
    models = everything(mlx=weighs_mlx(machine.profile, request))
    for files in _runnable(models, machine.profile, request):
        found = best_of(files, machine, request)
        if found is not None and found.verdict is Verdict.FITS:
            return found
    return None


def measured(profile: DeviceProfile, described: MachineDescription) -> DeviceProfile:
    """Return the machine that is planned for, the speed of this one measured if it never was."""
    if profile.speed is None and described.bandwidth is None:
        with contextlib.suppress(ChildFailed):  # `edgechat doctor` says why; it is guessed then
            profile = replace(profile, speed=measure_speed(profile.cpu, profile.memory))
    return described.over(profile)


def in_words(profile: DeviceProfile) -> str:
    """Return what a plan is made for, in a line or two."""
    speed = f"{rate_of_processor(profile.speed).bandwidth / 1e9:.0f} GB/s"
    text = f"{mebibytes(profile.memory.total)} of RAM, {mebibytes(profile.memory.available)} free, {speed}"
    for card in profile.accelerators:
        if card.usable or card == profile.mlx_card:
            shared = " shared with the processor" if card.shares_ram else ""
            text += f"\n{card.name}: {mebibytes(card.total)}, {mebibytes(card.free)} free{shared}"
    return "\n".join((text, *(_SLOWED[one] for one in profile.slowed)))
