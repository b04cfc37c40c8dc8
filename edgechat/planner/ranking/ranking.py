"""Ranking: rates every available file on this machine, chooses the best, and explains why in sentences.

Formulas, scaled by file size, decide which files are planned. llama.cpp's dry run decides whether they fit.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path

import msgspec

from edgechat.base.errors import BackendMissing, DoesNotFit, HubError, ModelFileError
from edgechat.base.text import figure, mebibytes, seconds
from edgechat.device.profile import DeviceProfile
from edgechat.models.catalogue import catalogue
from edgechat.models.formats.header import Format, ModelHeader
from edgechat.models.formats.quants import type_of
from edgechat.models.quality import QualityClass, loss_of_file, quality_class, worth_offering
from edgechat.native.params import CacheType
from edgechat.planner.candidates import Variant, everything, runnable, weighs_mlx, without_mlx
from edgechat.planner.estimate.budget import SPARE
from edgechat.planner.estimate.calibration import Calibration
from edgechat.planner.estimate.speed import Prediction, predict
from edgechat.planner.machine import Machine
from edgechat.planner.placement.drafting import AUTO, draft_costs
from edgechat.planner.placement.model_on_machine import LoadConfig, ModelOnMachine, model_on_machine
from edgechat.planner.placement.plan_model import plan_variant, threads_for, types
from edgechat.planner.plan import LABELS, Alternative, LoadPlan
from edgechat.planner.request import DEFAULT_REQUEST, ENOUGH, READABLE, PlanRequest

FLUENT = 20.0
"""Speed in tokens per second above which users hardly notice any improvement."""
PROMPT_PATIENCE = 4000.0
"""Acceptable time to first token, in milliseconds."""
THINKING = 2.0
"""Factor by which a model that thinks before answering must be faster, as half of its output is thinking."""
_PER_HALVING, _PER_DOUBLING = 0.05, 0.03
"""Penalties in nats for each halving of the fluent speed, and for each doubling of the acceptable time."""
_PER_SHORTENING = 0.15
"""Penalty in nats for each halving of the context. At 2048 tokens (one long answer), it exceeds
`_PER_CLASS`.
"""
_EIGHT_BITS = 0.001
_PER_CLASS = 0.25
"""Difference between neighboring classes of published quality, in nats."""
_IN_CLASS = 0.5
"""Difference between the first and the last model in a class, as a fraction of `_PER_CLASS`."""
_UNKNOWN = 0.05
"""Divergence in nats assumed for unmeasured quantizations, worse than Q4_K_M's."""
_NEAR = 0.01
"""Margin in nats by which a guess may be too optimistic."""
_MAX_PLANS = 4
"""Maximum number of files to plan when only a short context fits."""
_MAX_REMOTE_HEADERS = 3
"""Maximum number of headers to read from a hub repository, as each is a download of several megabytes."""
_EASY_TO_READ = 5 * 2**30
"""Ideal size of a sample in bytes. Files of this size are neither split nor quantized in unusual ways."""
_GUESSED: tuple[tuple[int, CacheType], ...] = (
    (ENOUGH, "f16"),
    (ENOUGH, "q8_0"),
    (4096, "q8_0"),
    (2048, "q8_0"),
)
"""Contexts and cache types to use for guesses. The last combination may only just fit."""
_FELT = 1.05
"""Speeds count as equal if they differ by less than this factor."""
_SEEN = 0.002
"""Smallest loss that users notice, in nats."""


class Verdict(IntEnum):
    """The verdict on a file; higher is better."""

    TOO_LARGE = 0
    SHORT = 1
    POOR = 2
    SLOW = 3
    FITS = 4

    @property
    def label(self) -> str:
        """The verdict as shown to users."""
        return ("too large", "short", "too lossy", "slow", "fits")[self.value]


@dataclass(frozen=True, slots=True)
class RankedFile:
    """A file and its rating on this machine."""

    variant: Variant
    verdict: Verdict
    worth: float
    """The value of the file in nats; higher is better."""
    plan: LoadPlan | None = None
    """The plan for the file; None if it does not fit."""
    why_not: str = ""
    """Why the file does not fit."""

    @property
    def rank(self) -> tuple[Verdict, float]:
        """The key by which options are sorted."""
        return self.verdict, self.worth

    @property
    def quant(self) -> str | None:
        """The quantization in the file's name, or else in its header."""
        return self.variant.quant or (self.plan.quant if self.plan else None)

    @property
    def predicted(self) -> Prediction:
        """The predicted speed, available only if the file fits."""
        assert self.plan is not None
        assert self.plan.predicted is not None
        return self.plan.predicted


@dataclass(frozen=True, slots=True)
class SurveyFindings:
    """The ratings of a model's files, or of the models in the catalogue."""

    name: str | None
    """The name of the model, or None for the whole catalogue."""
    machine: str
    """The machine in words."""
    options: tuple[RankedFile, ...]
    """Either a model's files, largest first, or one file for each model, best first. Never empty."""
    chosen: RankedFile | None
    """The best option, with its alternatives; None if nothing fits."""
    instead: RankedFile | None = None
    """The best catalogue model that fits, if none of the options does."""
    unread: int = 0
    """Number of files in a hub repository that were skipped because they seemed worse."""


@dataclass(frozen=True, slots=True)
class SurveyOverview:
    """The catalogue and the local models, rated on this machine."""

    profile: DeviceProfile
    found: SurveyFindings
    """The findings for the whole catalogue."""
    local: Mapping[Path, RankedFile]
    """Local files, keyed by path, excluding those that cannot be read or run here."""
    history: Calibration

    def has_measured(self, option: RankedFile) -> bool:
        """Return whether loads of this model and quantization have been measured on this machine."""
        plan = option.plan
        return plan is not None and plan.where is not None and self.history.knows(plan.where)


def rate(variant: Variant, machine: Machine, request: PlanRequest) -> RankedFile:
    """Plan and rate a file. Raises HubError, or ModelFileError if the file is damaged."""
    header = variant.header()
    try:
        plan = plan_variant(variant, machine, request, nearest=False)
    except DoesNotFit as error:
        return RankedFile(variant, Verdict.TOO_LARGE, -math.inf, why_not=error.message)
    assert plan.predicted is not None
    # A context rounded up by llama.cpp counts as the requested one; one limited by training does not.
    context = min(plan.context, header.context_length or plan.context)
    verdict = verdict_of(variant, header, plan.quant, context, plan.predicted, request)
    worth = worth_of(variant, plan.quant, context, plan.cache_type, plan.predicted)
    return RankedFile(variant, verdict, worth, plan)


def best_of(variants: Sequence[Variant], machine: Machine, request: PlanRequest) -> RankedFile | None:
    """Return a model's best file after planning only a few of its files; None if no header can be read."""
    candidates = (_best_of(files, machine, request) for files in _by_format(variants))
    options = [option for option in candidates if option is not None]
    best = max(options, key=lambda option: option.rank, default=None)
    return weighed(best, options) if best is not None else None


def _best_of(variants: Sequence[Variant], machine: Machine, request: PlanRequest) -> RankedFile | None:
    """Return the best file in one format."""
    options: list[RankedFile] = []
    for variant, guess in likeliest(variants, machine, request):
        large = guess[0] is Verdict.TOO_LARGE
        best = max(options, key=lambda option: option.rank, default=None)
        if best is not None and (large or (best.verdict, best.worth + _NEAR) >= guess):
            plan = best.plan
            # If only a short context fits, a slightly smaller file may be worth far more.
            cramped = plan is not None and request.context is None and plan.context < ENOUGH
            if large or not cramped or len(options) >= _MAX_PLANS:
                break
        # For catalogue models, the formulas are exact except for compute buffers.
        with contextlib.suppress(ModelFileError):
            options.append(rate(variant, machine.without_dry_run if large else machine, request))
    return max(options, key=lambda option: option.rank, default=None)


def rated(files: Sequence[Variant], machine: Machine, request: PlanRequest) -> list[RankedFile]:
    """Rate a model's files. In a hub repository, rate only the likeliest, as each header must be downloaded.

    Raises HubError, or ModelFileError if no header can be read.
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
    """Return the error for a model with no readable files, explaining why one of them cannot be read."""
    why = ""
    try:
        min(files, key=lambda file: abs(file.size - _EASY_TO_READ)).header()
    except ModelFileError as error:
        why = f" {error.message}"
    return ModelFileError(
        f"edgechat cannot read any of the {len(files)} models in this repository.{why}",
        hint="Choose another repository, or a model from the catalogue: edgechat plan",
    )


def first_that_fits(machine: Machine, request: PlanRequest) -> RankedFile | None:
    """Return the best catalogue model that fits, or None if none does."""
    models = everything(mlx=weighs_mlx(machine.profile, request))
    for files in runnable_models(models, machine.profile, request):
        best = best_of(files, machine, request)
        if best is not None and best.verdict is Verdict.FITS:
            return best
    return None


def runnable_models(
    models: Sequence[Sequence[Variant]], profile: DeviceProfile, request: PlanRequest
) -> list[list[Variant]]:
    """Return each model's files that can run here, omitting models that have none. Raises BackendMissing."""
    if request.backend == "mlx" and not profile.mlx:
        raise without_mlx("MLX is not available.")
    result: list[list[Variant]] = []
    for files in models:
        with contextlib.suppress(BackendMissing):
            result.append(runnable(files, profile, request))
    return result


def choose(options: Iterable[RankedFile], request: PlanRequest = DEFAULT_REQUEST) -> RankedFile | None:
    """Return the best option that fits, with the runners-up as its alternatives. In a tie, the first wins."""
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
    """Return a model's files with guessed ranks, best first, after reading one header per format."""
    guesses: list[tuple[Variant, tuple[Verdict, float]]] = []
    for files in _by_format(variants):
        sample, header = next(samples(files), (None, None))
        if sample is None or header is None:
            continue
        how = draft_costs(header, request.draft or AUTO)
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
    """Yield a model's readable files and their headers, starting with the easiest to read."""
    for sample in sorted(variants, key=lambda file: abs(file.size - _EASY_TO_READ)):
        with contextlib.suppress(ModelFileError):
            yield sample, sample.header()


def _guess(
    variant: Variant, sample: ModelOnMachine, factor: float, request: PlanRequest
) -> tuple[Verdict, float]:
    """Return the guessed rank of a file. factor: its size relative to the sample's."""
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
    """Return roughly the load that `plan_variant` would choose, or None if none fits."""
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


def verdict_of(
    variant: Variant,
    header: ModelHeader,
    quant: str | None,
    context: int,
    predicted: Prediction,
    request: PlanRequest,
) -> Verdict:
    """Return the verdict on a file that fits."""
    if request.context is not None and context < request.context:
        return Verdict.SHORT
    known = quality_class(quant)
    # Most MLX models have plain 4-bit weights, so anyone who asks for MLX accepts them.
    usual = QualityClass.REDUCED if "mlx" in (request.backend, request.prefers) else QualityClass.GOOD
    if known is not None and known < (request.quality or usual):
        return Verdict.POOR
    if request.quality is None and not worth_offering(header, quant):
        return Verdict.POOR
    least = READABLE * _waiting(variant) if request.min_tps is None else request.min_tps
    return Verdict.SLOW if predicted.decode_tps < least else Verdict.FITS


def worth_of(
    variant: Variant, quant: str | None, context: int, cache_type: str, predicted: Prediction
) -> float:
    """Return the value of a file that fits, in nats; higher is better."""
    fluent = FLUENT * _waiting(variant)
    worth = -loss_of(quant, variant.path)
    worth -= _PER_HALVING * max(0.0, math.log2(fluent / predicted.decode_tps))
    worth -= _PER_DOUBLING * max(0.0, math.log2(predicted.ttft_ms / PROMPT_PATIENCE))
    worth -= _PER_SHORTENING * max(0.0, math.log2(ENOUGH / context))
    worth -= _EIGHT_BITS * (cache_type != "f16")
    return worth + _PER_CLASS * score(variant)


def score(variant: Variant) -> float:
    """Return the published quality class plus the model's position within it; 0 if unknown."""
    entry = variant.entry
    if entry is None or entry.quality is None:
        return 0.0
    equals = [model.name for model in catalogue() if model.quality == entry.quality]
    place = equals.index(entry.name) if entry.name in equals else len(equals)
    return entry.quality + _IN_CLASS * (1 - place / max(1, len(equals)))


def loss_of(quant: str | None, path: Path | None = None) -> float:
    """Return the known or assumed loss of a quantization, or of the file at `path`, in nats."""
    figure = loss_of_file(quant, path)
    return figure.value if figure else _UNKNOWN


def thinks(variant: Variant) -> bool:
    """Return whether a model thinks before answering by default."""
    return variant.entry is not None and variant.entry.thinking in ("always", "default-on")


def _waiting(variant: Variant) -> float:
    return THINKING if thinks(variant) else 1.0


def alternative(option: RankedFile, first: RankedFile, request: PlanRequest) -> Alternative:
    """Describe an option that was not chosen, and explain why it was not."""
    plan = option.plan
    return Alternative(
        model=option.variant.model,
        quant=option.quant,
        context=plan.context if plan else 0,
        decode_tps=option.predicted.decode_tps if plan else 0.0,
        why_not=why_not(option, first, request),
        backend=option.variant.backend,
    )


def rival(first: RankedFile, others: Iterable[RankedFile]) -> RankedFile | None:
    """Return the best option for the same model with another backend, or None."""
    same = (option for option in others if option.variant.model == first.variant.model)
    rivals = (option for option in same if option.variant.format != first.variant.format)
    return max(rivals, key=lambda option: option.rank, default=None)


def weighed(first: RankedFile, others: Iterable[RankedFile]) -> RankedFile:
    """Return the chosen option, adding the reason for its backend if there was a choice."""
    other = rival(first, others)
    if other is None or first.plan is None:
        return first
    label, other_label = (LABELS[option.variant.backend] for option in (first, other))
    best = f", for which {other.quant} would be the best choice" if other.quant else ""
    # Compare speeds even if the other option is ruled out, as speed is why most users choose MLX.
    why_not_it = _compared(other, first) if other.plan is not None else other.why_not
    reason = f"{label} rather than {other_label}{best}. {why_not_it}"
    return replace(first, plan=msgspec.structs.replace(first.plan, reasons=(reason, *first.plan.reasons)))


def why_not(option: RankedFile, first: RankedFile, request: PlanRequest) -> str:
    """Return a sentence that explains why an option was not chosen."""
    if option.plan is None:
        return option.why_not
    if option.verdict < first.verdict:
        return _unfit(option, option.plan, request)
    return _compared(option, first)


def _compared(option: RankedFile, first: RankedFile) -> str:
    """Return the pros and cons of an option that would fit."""
    differences = list(_differences(option, first))
    cons = [text for text, better in differences if not better]
    pros = [text for text, better in differences if better]
    if not cons:
        text = f"{pros[0]}, which makes little difference" if pros else "about as good"
    else:
        text = ", and ".join(cons[:2]) + (f", but {pros[0]}" if pros else "")
    return f"{text[0].upper()}{text[1:]}."


def _unfit(option: RankedFile, plan: LoadPlan, request: PlanRequest) -> str:
    if option.verdict is Verdict.SHORT:
        return f"It was trained on at most {plan.context} tokens."
    if option.verdict is Verdict.POOR:
        known = quality_class(option.quant)
        if known is not None and request.quality is not None:
            return f"Its quality is {known.label}, not {request.quality.label} as requested."
        if known is not None and known >= QualityClass.GOOD:
            return "It is hardly smaller than Q4_K_M, which loses less quality."
        return (
            f"It loses much of the model's quality ({loss_of(option.quant, option.variant.path):.2g} nats)."
        )
    speed = f"{figure(option.predicted.decode_tps)} tokens/s"
    if request.min_tps is not None:
        return f"It would generate {speed}, not {figure(request.min_tps)} as requested."
    if thinks(option.variant):
        return (
            f"It would generate {speed}, and it thinks before answering, so answers would take a long time."
        )
    return f"It would generate {speed}, which is slower than reading speed."


def _differences(option: RankedFile, first: RankedFile) -> Iterator[tuple[str, bool]]:
    """Yield the noticeable differences, each with whether it favors the option."""
    plan, chosen = option.plan, first.plan
    assert plan is not None
    assert chosen is not None
    quality, other_quality = (
        entry.quality if entry else None for entry in (option.variant.entry, first.variant.entry)
    )
    if quality and other_quality and quality != other_quality:
        yield f"its published quality is {quality} of 6, not {other_quality}", quality > other_quality
    elif (own_score := score(option.variant)) != (other_score := score(first.variant)):
        how = "higher" if own_score > other_score else "lower"
        yield f"its published scores are a little {how}", own_score > other_score
    if plan.context != chosen.context:
        how = "longer" if plan.context > chosen.context else "shorter"
        yield f"its context is {how} ({plan.context} tokens, not {chosen.context})", how == "longer"
    new, old = option.predicted, first.predicted
    if not 1 / _FELT < new.decode_tps / old.decode_tps < _FELT:
        faster = new.decode_tps > old.decode_tps
        speeds = f"{figure(new.decode_tps)} tokens/s, not {figure(old.decode_tps)}"
        yield f"it is {'faster' if faster else 'slower'} ({speeds})", faster
    lost = loss_of(option.quant, option.variant.path)
    less = loss_of(first.quant, first.variant.path)
    if abs(lost - less) > _SEEN:
        how = "less" if lost < less else "more"
        yield f"its quantization loses {how} ({lost:.2g} nats, not {less:.2g})", lost < less
    if not 1 / _FELT < new.ttft_ms / old.ttft_ms < _FELT:
        sooner = new.ttft_ms < old.ttft_ms
        times = f"{seconds(new.ttft_ms / 1000)}, not {seconds(old.ttft_ms / 1000)}"
        yield f"it answers {'sooner' if sooner else 'later'} ({times})", sooner


def why(first: RankedFile, request: PlanRequest) -> str:
    """Return a sentence that explains why an option was chosen."""
    plan = first.plan
    assert plan is not None
    known = quality_class(plan.quant)
    quality = f", {known.label} quality" if known else ""
    loss = f" (a loss of {plan.kl_divergence.value:.2g} nats)" if plan.kl_divergence else ""
    what = f"{plan.quant or 'This file'}, {mebibytes(plan.file_bytes)}{quality}{loss}"
    return f"{what}: {_because(first, request)}."


def _because(first: RankedFile, request: PlanRequest) -> str:
    if first.verdict is Verdict.FITS:
        return "the best balance of quality and speed that fits here"
    if first.verdict is Verdict.SHORT:
        return f"no model that fits was trained on {request.context} tokens"
    if first.verdict is Verdict.POOR and request.quality is not None:
        return f"nothing that fits has {request.quality.label} quality, as requested"
    if first.verdict is Verdict.POOR:
        better = (
            f"nothing better for {LABELS[request.backend]} fits" if request.backend else "nothing better fits"
        )
        return f"{better}, although it loses a lot of quality"
    if request.min_tps is not None:
        return f"nothing that fits generates {figure(request.min_tps)} tokens/s; this is the best choice"
    return "all that fit are slow here; this is the best of them"
