"""Which quantization of a model, and which model: every available file rated for this machine.

Formulas, scaled by file sizes, decide which files are planned; llama.cpp's dry run decides whether they fit,
and `scoring.py` which is best.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import msgspec

from edgechat.base.errors import BackendMissing, DoesNotFit, HubError, ModelFileError
from edgechat.device.profile import DeviceProfile
from edgechat.models.formats.header import Format, ModelHeader
from edgechat.models.formats.quants import type_of
from edgechat.native.params import CacheType
from edgechat.planner.drafting import AUTO, drafting
from edgechat.planner.estimate.speed import predict
from edgechat.planner.machine import Machine
from edgechat.planner.model_on_machine import ModelOnMachine, model_on_machine
from edgechat.planner.placement.backends import runnable, weighs_mlx, without_mlx
from edgechat.planner.placement.budget import SPARE
from edgechat.planner.placement.load_config import LoadConfig
from edgechat.planner.plan_model import plan_variant, threads_for, types
from edgechat.planner.ranking.candidates import Variant, everything
from edgechat.planner.ranking.ranked_file import (
    RankedFile,
    Verdict,
    alternative,
    rival,
    verdict_of,
    weighed,
    why,
    worth_of,
)
from edgechat.planner.request import DEFAULT_REQUEST, ENOUGH, PlanRequest

_NEAR = 0.01
"""Nats by which a guess may be too optimistic."""
_MAX_PLANS = 4
"""Maximum number of files that are planned if only a short context fits."""
_MAX_REMOTE_HEADERS = 3
"""Headers of a hub repository that are read: each costs some megabytes of download."""
_EASY_TO_READ = 5 * 2**30
"""Size in bytes of an ideal sample: neither split, nor of an unusual quantization."""
_GUESSED: tuple[tuple[int, CacheType], ...] = (
    (ENOUGH, "f16"),
    (ENOUGH, "q8_0"),
    (4096, "q8_0"),
    (2048, "q8_0"),
)
"""Contexts to guess with; the last one may barely fit."""


def rate(variant: Variant, machine: Machine, request: PlanRequest) -> RankedFile:
    """Return a file with its plan and its worth. Raises HubError, and ModelFileError where it is damaged."""
    header = variant.header()
    try:
        plan = plan_variant(variant, machine, request, nearest=False)
    except DoesNotFit as error:
        return RankedFile(variant, Verdict.TOO_LARGE, -math.inf, why_not=error.message)
    assert plan.predicted is not None
    # A context that llama.cpp rounded up counts as requested; one limited by training does not.
    context = min(plan.context, header.context_length or plan.context)
    verdict = verdict_of(variant, header, plan.quant, context, plan.predicted, request)
    worth = worth_of(variant, plan.quant, context, plan.cache_type, plan.predicted)
    return RankedFile(variant, verdict, worth, plan)


def best_of(variants: Sequence[Variant], machine: Machine, request: PlanRequest) -> RankedFile | None:
    """Return the best file of one model, planning few of them; None where no header can be read."""
    candidates = (_best_of(files, machine, request) for files in _by_format(variants))
    options = [option for option in candidates if option is not None]
    best = max(options, key=lambda option: option.rank, default=None)
    return weighed(best, options) if best is not None else None


def _best_of(variants: Sequence[Variant], machine: Machine, request: PlanRequest) -> RankedFile | None:
    """Return the same of files of one format."""
    options: list[RankedFile] = []
    for variant, guess in likeliest(variants, machine, request):
        large = guess[0] is Verdict.TOO_LARGE
        best = max(options, key=lambda option: option.rank, default=None)
        if best is not None and (large or (best.verdict, best.worth + _NEAR) >= guess):
            plan = best.plan
            # Where only a short context fits, a file that is hardly smaller may be worth far more.
            cramped = plan is not None and request.context is None and plan.context < ENOUGH
            if large or not cramped or len(options) >= _MAX_PLANS:
                break
        # The formulas are exact for the models of the catalogue except for the compute buffers.
        with contextlib.suppress(ModelFileError):
            options.append(rate(variant, machine.without_dry_run if large else machine, request))
    return max(options, key=lambda option: option.rank, default=None)


def rated(files: Sequence[Variant], machine: Machine, request: PlanRequest) -> list[RankedFile]:
    """Rate the files of one model; of a repository only the likeliest, as reading a header is a download.

    Raises HubError or ModelFileError if no header can be read.
    """
    readable = [file for file in files if file.path is not None or file.entry is not None]
    remote = [file for file in files if file.path is None and file.entry is None]
    readable += [file for file, _ in likeliest(remote, machine, request)[:_MAX_REMOTE_HEADERS]]
    options: list[RankedFile] = []
    failure: HubError | ModelFileError | None = None
    for file in readable:
        try:
            options.append(rate(file, machine, request))
        except (HubError, ModelFileError) as error:
            failure = failure or error
    if not options:
        raise failure or _unreadable(files)
    return options


def _unreadable(files: Sequence[Variant]) -> ModelFileError:
    """Return the error for files of which none can be read, with what is wrong with one of them."""
    why = ""
    try:
        min(files, key=lambda file: abs(file.size - _EASY_TO_READ)).header()
    except ModelFileError as error:
        why = f" {error.message}"
    return ModelFileError(
        f"edgechat cannot read any of the {len(files)} models of this repository.{why}",
        hint="Choose another repository, or a model of the catalogue: edgechat plan",
    )


def first_that_fits(machine: Machine, request: PlanRequest) -> RankedFile | None:
    """Return the best model of the catalogue that fits; None where none does."""
    models = everything(mlx=weighs_mlx(machine.profile, request))
    for files in runnable_models(models, machine.profile, request):
        best = best_of(files, machine, request)
        if best is not None and best.verdict is Verdict.FITS:
            return best
    return None


def runnable_models(
    models: Sequence[Sequence[Variant]], profile: DeviceProfile, request: PlanRequest
) -> list[list[Variant]]:
    """Return the files that may be chosen of each model that has any. Raises BackendMissing."""
    if request.backend == "mlx" and not profile.mlx:
        raise without_mlx("MLX is not available.")
    result: list[list[Variant]] = []
    for files in models:
        with contextlib.suppress(BackendMissing):
            result.append(runnable(files, profile, request))
    return result


def choose(options: Iterable[RankedFile], request: PlanRequest = DEFAULT_REQUEST) -> RankedFile | None:
    """Return the best option that fits, the first of equals, with the next best as its alternatives."""
    ranked = sorted(options, key=lambda option: option.rank, reverse=True)
    if not ranked or ranked[0].plan is None:
        return None
    first = ranked[0]
    assert first.plan is not None
    near, other = ranked[1:5], rival(first, ranked)
    if other is not None and other not in near:
        near[-1] = other
    others = tuple(alternative(option, first, request) for option in near)
    plan = msgspec.structs.replace(first.plan, alternatives=others)
    first = weighed(replace(first, plan=plan), near)
    assert first.plan is not None
    if len(ranked) > 1:
        plan = msgspec.structs.replace(first.plan, reasons=(why(first, request), *first.plan.reasons))
    return replace(first, plan=plan)


def likeliest(
    variants: Sequence[Variant], machine: Machine, request: PlanRequest
) -> list[tuple[Variant, tuple[Verdict, float]]]:
    """Return the files of one model with their likely ranks by one header of each format, best first."""
    guesses: list[tuple[Variant, tuple[Verdict, float]]] = []
    for files in _by_format(variants):
        sample, header = next(samples(files), (None, None))
        if sample is None or header is None:
            continue
        how = drafting(header, request.draft or AUTO)
        profile = machine.profile
        threads, _ = threads_for(header, profile, request)
        model = model_on_machine(
            sample.model, header, profile, None, machine.history, threads=threads, drafting=how
        )
        guesses += [(file, _guess(file, model, file.size / max(1, sample.size), request)) for file in files]
    return sorted(guesses, key=lambda guess: guess[1], reverse=True)


def _by_format(variants: Iterable[Variant]) -> list[list[Variant]]:
    by_format: dict[Format, list[Variant]] = {}
    for variant in variants:
        by_format.setdefault(variant.format, []).append(variant)
    return list(by_format.values())


def samples(variants: Sequence[Variant]) -> Iterator[tuple[Variant, ModelHeader]]:
    """Yield the readable files of one model with their headers, those that are easy to read first."""
    for sample in sorted(variants, key=lambda file: abs(file.size - _EASY_TO_READ)):
        with contextlib.suppress(ModelFileError):
            yield sample, sample.header()


def _guess(
    variant: Variant, sample: ModelOnMachine, factor: float, request: PlanRequest
) -> tuple[Verdict, float]:
    """Return the likely rank of a file, by formula; factor: its size over the sample's."""
    shape = sample.shape.scaled(factor, type_of(variant.quant))
    model = replace(sample, shape=shape)
    load = _guessed(model, request)
    if load is None:
        return Verdict.TOO_LARGE, -variant.size
    predicted = predict(load.forecast, model.correction(load))
    quant, context = variant.quant, min(load.context, model.header.context_length or load.context)
    verdict = verdict_of(variant, model.header, quant, context, predicted, request)
    return verdict, worth_of(variant, quant, context, load.params.cache_type, predicted)


def _guessed(model: ModelOnMachine, request: PlanRequest) -> LoadConfig | None:
    """Return approximately the load that `plan_model.plan` would choose; None if none fits."""
    trained = model.header.context_length or ENOUGH
    allowed = types(model, request)
    if request.context is not None:
        steps = [(min(request.context, trained), cache_type) for cache_type in allowed]
    else:
        steps = [(min(context, trained), kind) for context, kind in _GUESSED if kind in allowed]
        steps = steps or [(min(context, trained), allowed[0]) for context, _ in _GUESSED]
    for number, (context, cache_type) in enumerate(steps, 1):
        load = model.load(context, cache_type)
        sure = request.context is not None or number == len(steps)
        if model.fits(load, 0.0 if sure else SPARE):
            return load
    return None
