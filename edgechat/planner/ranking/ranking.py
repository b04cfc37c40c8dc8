"""Which quantization of a model, and which model: every file that there is held against this machine.

Formulas, scaled by the sizes of the files, decide what is looked at; llama.cpp's allocator decides whether it
fits, and `scoring.py` which one is the best.
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
from edgechat.planner.ranking.ranked_file import RankedFile, alternative, rival, weighed, why
from edgechat.planner.ranking.scoring import Verdict, verdict_of, worth_of
from edgechat.planner.request import DEFAULT_REQUEST, ENOUGH, PlanRequest

_NEAR = 0.01
"""Nats by which a guess may be too good."""
_LOOKS = 4
"""Files that are planned at most where only a short context fits."""
_REMOTE_LOOKS = 3
"""Headers of a hub repository that are read: each costs some megabytes of download."""
_EASY_TO_READ = 5 * 2**30
"""Bytes of a file that is taken for a sample: neither split, nor of some odd quantization."""
_GUESSED: tuple[tuple[int, CacheType], ...] = (
    (ENOUGH, "f16"),
    (ENOUGH, "q8_0"),
    (4096, "q8_0"),
    (2048, "q8_0"),
)
"""Contexts by which a file is guessed at; the last one may fit only just."""


def rate(variant: Variant, machine: Machine, request: PlanRequest) -> RankedFile:
    """Return a file with its plan and its worth. Raises HubError, and ModelFileError where it is damaged."""
    header = variant.header()
    try:
        made = plan_variant(variant, machine, request, nearest=False)
    except DoesNotFit as error:
        return RankedFile(variant, Verdict.TOO_LARGE, -math.inf, why_not=error.message)
    assert made.predicted is not None
    # A context that llama.cpp rounded is what was asked for; one that training cut is not.
    context = min(made.context, header.context_length or made.context)
    verdict = verdict_of(variant, header, made.quant, context, made.predicted, request)
    worth = worth_of(variant, made.quant, context, made.cache_type, made.predicted)
    return RankedFile(variant, verdict, worth, made)


def best_of(variants: Sequence[Variant], machine: Machine, request: PlanRequest) -> RankedFile | None:
    """Return the best file of one model, planning few of them; None where no header can be read."""
    found = [one for files in _by_format(variants) if (one := _best_of(files, machine, request)) is not None]
    best = max(found, key=lambda one: one.rank, default=None)
    return weighed(best, found) if best is not None else None


def _best_of(variants: Sequence[Variant], machine: Machine, request: PlanRequest) -> RankedFile | None:
    """Return the same of files of one format."""
    found: list[RankedFile] = []
    for variant, guess in likeliest(variants, machine, request):
        large = guess[0] is Verdict.TOO_LARGE
        best = max(found, key=lambda one: one.rank, default=None)
        if best is not None and (large or (best.verdict, best.worth + _NEAR) >= guess):
            made = best.plan
            # Where only a short context fits, a file that is hardly smaller may be worth far more.
            cramped = made is not None and request.context is None and made.context < ENOUGH
            if large or not cramped or len(found) >= _LOOKS:
                break
        # The formulas are exact for the models of the catalogue, but for what they compute with.
        with contextlib.suppress(ModelFileError):
            found.append(rate(variant, machine.unasked if large else machine, request))
    return max(found, key=lambda one: one.rank, default=None)


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
            f"edgechat cannot read any of the {len(files)} models of this repository.",
            hint="Choose another repository, or a model of the catalogue: edgechat plan",
        )
    return options


def first_that_fits(machine: Machine, request: PlanRequest) -> RankedFile | None:
    """Return the best model of the catalogue that fits; None where none does."""
    models = everything(mlx=weighs_mlx(machine.profile, request))
    for files in runnable_models(models, machine.profile, request):
        found = best_of(files, machine, request)
        if found is not None and found.verdict is Verdict.FITS:
            return found
    return None


def runnable_models(
    models: Sequence[Sequence[Variant]], profile: DeviceProfile, request: PlanRequest
) -> list[list[Variant]]:
    """Return the files that may be chosen of each model of which there is one. Raises BackendMissing."""
    if request.backend == "mlx" and not profile.mlx:
        raise without_mlx("MLX is not available.")
    found: list[list[Variant]] = []
    for files in models:
        with contextlib.suppress(BackendMissing):
            found.append(runnable(files, profile, request))
    return found


def choose(options: Iterable[RankedFile], request: PlanRequest = DEFAULT_REQUEST) -> RankedFile | None:
    """Return the best option that fits, with the nearest others as its plan's alternatives.

    Of equals the first one given.
    """
    ranked = sorted(options, key=lambda one: one.rank, reverse=True)
    if not ranked or ranked[0].plan is None:
        return None
    first = ranked[0]
    assert first.plan is not None
    near, other = ranked[1:5], rival(first, ranked)
    if other is not None and other not in near:
        near[-1] = other
    others = tuple(alternative(one, first, request) for one in near)
    made = msgspec.structs.replace(first.plan, alternatives=others)
    first = weighed(replace(first, plan=made), near)
    assert first.plan is not None
    if len(ranked) > 1:
        made = msgspec.structs.replace(first.plan, reasons=(why(first, request), *first.plan.reasons))
    return replace(first, plan=made)


def likeliest(
    variants: Sequence[Variant], machine: Machine, request: PlanRequest
) -> list[tuple[Variant, tuple[Verdict, float]]]:
    """Return the files of one model with their likely ranks, the likeliest choice first.

    Judged by one header of each format, and by their sizes.
    """
    found = [one for files in _by_format(variants) for one in _likeliest(files, machine, request)]
    return sorted(found, key=lambda one: one[1], reverse=True)


def _by_format(variants: Iterable[Variant]) -> list[list[Variant]]:
    found: dict[Format, list[Variant]] = {}
    for one in variants:
        found.setdefault(one.format, []).append(one)
    return list(found.values())


def _likeliest(
    variants: Sequence[Variant], machine: Machine, request: PlanRequest
) -> list[tuple[Variant, tuple[Verdict, float]]]:
    """Return the same for files of one format."""
    for sample, header in samples(variants):
        how = drafting(header, request.draft or AUTO)
        threads, _ = threads_for(header, machine.profile, request)
        on = model_on_machine(
            sample.model, header, machine.profile, None, machine.history, threads=threads, drafting=how
        )
        guesses = {id(one): _guess(one, on, one.size / max(1, sample.size), request) for one in variants}
        ordered = sorted(variants, key=lambda one: guesses[id(one)], reverse=True)
        return [(one, guesses[id(one)]) for one in ordered]
    return []


def samples(variants: Sequence[Variant]) -> Iterator[tuple[Variant, ModelHeader]]:
    """Yield the files of one model that can be read with their headers, those that are easy to read first."""
    for sample in sorted(variants, key=lambda one: abs(one.size - _EASY_TO_READ)):
        with contextlib.suppress(ModelFileError):
            yield sample, sample.header()


def _guess(
    variant: Variant, sample: ModelOnMachine, factor: float, request: PlanRequest
) -> tuple[Verdict, float]:
    """Return the rank that a file seems to deserve, by formula; factor: its size over the sample's."""
    shape = sample.shape.scaled(factor, type_of(variant.quant))
    on = replace(sample, shape=shape)
    load = _guessed(on, request)
    if load is None:
        return Verdict.TOO_LARGE, -variant.size
    predicted = predict(load.forecast, on.correction(load))
    quant, context = variant.quant, min(load.context, on.header.context_length or load.context)
    verdict = verdict_of(variant, on.header, quant, context, predicted, request)
    return verdict, worth_of(variant, quant, context, load.params.cache_type, predicted)


def _guessed(on: ModelOnMachine, request: PlanRequest) -> LoadConfig | None:
    """Return about the load that `plan_model.plan` would choose, by formula; None where none fits."""
    trained = on.header.context_length or ENOUGH
    allowed = types(on, request)
    if request.context is not None:
        steps = [(min(request.context, trained), cache_type) for cache_type in allowed]
    else:
        steps = [(min(context, trained), kind) for context, kind in _GUESSED if kind in allowed]
        steps = steps or [(min(context, trained), allowed[0]) for context, _ in _GUESSED]
    for number, (context, cache_type) in enumerate(steps, 1):
        load = on.load(context, cache_type)
        sure = request.context is not None or number == len(steps)
        if on.fits(load, 0.0 if sure else SPARE):
            return load
    return None
