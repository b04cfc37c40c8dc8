"""A file rated for this machine, its score, and why it or another one was chosen: sentences with figures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path

import msgspec

from edgechat.base.text import figure, mebibytes, seconds
from edgechat.models.catalogue import catalogue
from edgechat.models.formats.header import ModelHeader
from edgechat.models.quality import QualityClass, loss_of_file, quality_class, worth_offering
from edgechat.planner.estimate.speed import Prediction
from edgechat.planner.plan import LABELS, Alternative, LoadPlan
from edgechat.planner.ranking.candidates import Variant
from edgechat.planner.request import ENOUGH, READABLE, PlanRequest

_FELT = 1.05
"""Speeds that differ by less than this factor are called the same."""
_SEEN = 0.002
"""Nats."""


@dataclass(frozen=True, slots=True)
class RankedFile:
    """A file rated for this machine."""

    variant: Variant
    verdict: Verdict
    worth: float
    """Nats; the greater the better."""
    plan: LoadPlan | None = None
    """None where it does not fit."""
    why_not: str = ""
    """Why it does not."""

    @property
    def rank(self) -> tuple[Verdict, float]:
        """What options are compared by."""
        return self.verdict, self.worth

    @property
    def quant(self) -> str | None:
        """The quantization, as the file's name says, or else its header."""
        return self.variant.quant or (self.plan.quant if self.plan else None)

    @property
    def predicted(self) -> Prediction:
        """The speed of one that fits."""
        assert self.plan is not None
        assert self.plan.predicted is not None
        return self.plan.predicted


def alternative(option: RankedFile, first: RankedFile, request: PlanRequest) -> Alternative:
    """Return an option that was not chosen, and why the first one was chosen instead."""
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
    """Return the best option for the same model with another backend; None if there is none."""
    same = (option for option in others if option.variant.model == first.variant.model)
    rivals = (option for option in same if option.variant.format != first.variant.format)
    return max(rivals, key=lambda option: option.rank, default=None)


def weighed(first: RankedFile, others: Iterable[RankedFile]) -> RankedFile:
    """Return the chosen option with the reason for its backend, if another one would be possible."""
    other = rival(first, others)
    if other is None or first.plan is None:
        return first
    label, other_label = (LABELS[option.variant.backend] for option in (first, other))
    best = f", for which {other.quant} would be the best choice" if other.quant else ""
    # Options that are ruled out are described with their speed, too: it is why most users choose MLX.
    why_not_it = _compared(other, first) if other.plan is not None else other.why_not
    reason = f"{label} rather than {other_label}{best}. {why_not_it}"
    return replace(first, plan=msgspec.structs.replace(first.plan, reasons=(reason, *first.plan.reasons)))


def why_not(option: RankedFile, first: RankedFile, request: PlanRequest) -> str:
    """Return why an option was not chosen, as a sentence."""
    if option.plan is None:
        return option.why_not
    if option.verdict < first.verdict:
        return _unfit(option, option.plan, request)
    return _compared(option, first)


def _compared(option: RankedFile, first: RankedFile) -> str:
    """Return the disadvantages and advantages of an option that fits."""
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
        return f"It would generate {speed}, and it thinks before answering, so answers would take long."
    return f"It would generate {speed}, which is slower than reading speed."


def _differences(option: RankedFile, first: RankedFile) -> Iterator[tuple[str, bool]]:
    """Yield what users would notice, and whether the option is the better one in that respect."""
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
    """Return why an option was chosen, as a sentence."""
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
        return f"{better}, although it loses much quality"
    if request.min_tps is not None:
        return f"nothing that fits generates {figure(request.min_tps)} tokens/s; this is the best choice"
    return "all that fit are slow here; this is the best of them"


FLUENT = 20.0
"""Tokens per second: more is hardly noticed."""
PROMPT_PATIENCE = 4000.0
"""Time to the first token that nobody minds, in milliseconds."""
THINKING = 2.0
"""A model that thinks before it answers generates so many times as much, and users wait for half of it."""
_PER_HALVING, _PER_DOUBLING = 0.05, 0.03
"""Nats: for half of the fluent speed, and for twice the patience."""
_PER_SHORTENING = 0.15
"""Nats for half of the usual context: 2048 tokens, which one long answer fills, cost more than a class."""
_EIGHT_BITS = 0.001
_PER_CLASS = 0.25
"""Nats between two neighbouring classes of published quality, from which models are chosen."""
_IN_CLASS = 0.5
"""Share of a class between its first and its last model in the catalogue."""
_UNKNOWN = 0.05
"""Assumed divergence of unmeasured quantizations: worse than Q4_K_M."""


class Verdict(IntEnum):
    """The better is the greater."""

    TOO_LARGE = 0
    SHORT = 1
    POOR = 2
    SLOW = 3
    FITS = 4

    @property
    def label(self) -> str:
        """The word that users read."""
        return ("too large", "short", "too lossy", "slow", "fits")[self.value]


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
    # Most MLX models have 4 plain bits, so a request for MLX accepts them.
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
    """Return the worth of a file that fits, in nats; the greater the better."""
    fluent = FLUENT * _waiting(variant)
    worth = -loss_of(quant, variant.path)
    worth -= _PER_HALVING * max(0.0, math.log2(fluent / predicted.decode_tps))
    worth -= _PER_DOUBLING * max(0.0, math.log2(predicted.ttft_ms / PROMPT_PATIENCE))
    worth -= _PER_SHORTENING * max(0.0, math.log2(ENOUGH / context))
    worth -= _EIGHT_BITS * (cache_type != "f16")
    return worth + _PER_CLASS * score(variant)


def score(variant: Variant) -> float:
    """Return the class of published quality plus the place within it; 0 if unknown."""
    entry = variant.entry
    if entry is None or entry.quality is None:
        return 0.0
    equals = [model.name for model in catalogue() if model.quality == entry.quality]
    place = equals.index(entry.name) if entry.name in equals else len(equals)
    return entry.quality + _IN_CLASS * (1 - place / max(1, len(equals)))


def loss_of(quant: str | None, path: Path | None = None) -> float:
    """Return the loss of a quantization in nats, or of the file at `path`; an assumption if it is unknown."""
    figure = loss_of_file(quant, path)
    return figure.value if figure else _UNKNOWN


def thinks(variant: Variant) -> bool:
    """Return whether a model thinks before it answers unless that is switched off."""
    return variant.entry is not None and variant.entry.thinking in ("always", "default-on")


def _waiting(variant: Variant) -> float:
    return THINKING if thinks(variant) else 1.0
