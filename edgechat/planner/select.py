"""Which quantization of a model, and which model: every file that there is held against this machine.

One number decides, in nats: what the quantization loses (the Kullback-Leibler divergence that was published),
and what a slow answer or a short context costs a reader, put into the same unit. Between models a class of
published quality weighs more than either. Formulas, scaled by the sizes of the files, decide what is looked
at; llama.cpp's allocator decides whether it fits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

import msgspec

from edgechat.errors import DoesNotFit, ModelFileError
from edgechat.models.header import GgufHeader
from edgechat.models.quality import QualityClass, kl_divergence, quality_class, worth_offering
from edgechat.planner.choose import ENOUGH, plan
from edgechat.planner.chooser import Chooser, chooser
from edgechat.planner.machine import Machine
from edgechat.planner.plan import Alternative, Divergence, LoadPlan
from edgechat.planner.speed import Prediction, predict
from edgechat.planner.variants import Variant
from edgechat.planner.wishes import READABLE, Wishes
from edgechat.text import mebibytes

FLUENT = 20.0
"""Tokens a second: more is hardly felt."""
PROMPT_PATIENCE = 4000.0
"""Milliseconds to the first token that nobody minds."""
_PER_HALVING, _PER_DOUBLING, _PER_SHORTENING = 0.05, 0.03, 0.05
"""Nats: for half of the fluent speed, twice the patience, half of the usual context."""
_EIGHT_BITS = 0.001
_PER_CLASS = 0.25
"""Nats between two neighbouring classes of published quality, from which models are chosen."""
_EASY_TO_READ = 5 * 2**30
"""Bytes of a file that is taken for a sample: neither split, nor of some odd quantization."""
_UNKNOWN = 0.05
"""Divergence of a quantization that nobody has measured: worse than Q4_K_M."""


class Verdict(IntEnum):
    """The better is the greater."""

    TOO_LARGE = 0
    POOR = 1
    SLOW = 2
    FITS = 3

    @property
    def label(self) -> str:
        """The word that people read."""
        return {0: "too large", 1: "loses much", 2: "slow", 3: "fits"}[self.value]


@dataclass(frozen=True, slots=True)
class Option:
    """A file held against this machine."""

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


def planned(
    variant: Variant, header: GgufHeader, machine: Machine, wishes: Wishes, *, nearest: bool = True
) -> LoadPlan:
    """Return the plan for a file, with what its quantization loses; see `choose.plan`."""
    made = plan(
        variant.model,
        header,
        machine.profile,
        wishes,
        machine.measuring(header),
        machine.history,
        path=str(variant.path or ""),
        nearest=nearest,
    )
    quant = variant.quant or made.quant
    figure = kl_divergence(_base(quant)) if quant else None
    return msgspec.structs.replace(
        made,
        quant=quant,
        file_bytes=header.file_size or variant.size,
        kl_divergence=Divergence(value=figure.value, source=figure.source) if figure else None,
    )


def rate(variant: Variant, machine: Machine, wishes: Wishes, header: GgufHeader | None = None) -> Option:
    """Return a file with its plan and its worth. Raises HubError, and ModelFileError where it is damaged."""
    header = header or variant.header()
    try:
        made = planned(variant, header, machine, wishes, nearest=False)
    except DoesNotFit as error:
        return Option(variant, Verdict.TOO_LARGE, -math.inf, why_not=error.message)
    assert made.predicted is not None
    worth = _worth(variant, made.predicted, made.context, made.quant)
    worth -= _EIGHT_BITS * (made.cache_type != "f16")
    return Option(variant, _verdict(header, made.quant, made.predicted, wishes), worth, made)


def best_of(variants: Sequence[Variant], machine: Machine, wishes: Wishes) -> Option | None:
    """Return the best file of one model, planning few of them; None where no header can be read."""
    found: list[Option] = []
    for variant, guess in likeliest(variants, machine, wishes):
        # The formulas are exact for the models of the catalogue, but for what they compute with.
        asked = machine if guess > Verdict.TOO_LARGE else machine.unasked
        try:
            found.append(rate(variant, asked, wishes))
        except ModelFileError:
            continue
        if guess is Verdict.TOO_LARGE or found[-1].verdict >= guess:
            break
    return max(found, key=lambda one: one.rank, default=None)


def choose(options: Iterable[Option]) -> Option | None:
    """Return the best option that fits, with the nearest others as its plan's alternatives."""
    ranked = sorted(options, key=lambda one: one.rank, reverse=True)
    if not ranked or ranked[0].plan is None:
        return None
    first = ranked[0]
    assert first.plan is not None
    others = tuple(_alternative(one, first) for one in ranked[1:5])
    made = msgspec.structs.replace(first.plan, alternatives=others)
    if len(ranked) > 1:
        made = msgspec.structs.replace(made, reasons=(_why(first), *made.reasons))
    return replace(first, plan=made)


def likeliest(variants: Sequence[Variant], machine: Machine, wishes: Wishes) -> list[tuple[Variant, Verdict]]:
    """Return the files of one model with their likely verdicts, the likeliest choice first.

    Judged by one of their headers and by their sizes.
    """
    for sample in sorted(variants, key=lambda one: abs(one.size - _EASY_TO_READ)):
        try:
            header = sample.header()
        except ModelFileError:
            continue
        on = chooser(sample.model, header, machine.profile, None, machine.history, threads=1)
        guesses = {id(one): _guess(one, on, one.size / max(1, sample.size), wishes) for one in variants}
        ordered = sorted(variants, key=lambda one: guesses[id(one)], reverse=True)
        return [(one, guesses[id(one)][0]) for one in ordered]
    return []


def _guess(variant: Variant, sample: Chooser, factor: float, wishes: Wishes) -> tuple[Verdict, float]:
    """Return the rank that a file seems to deserve, by formula; factor: its size over the sample's."""
    loader = replace(sample.loader, shape=sample.loader.shape.scaled(factor))
    on, header = replace(sample, loader=loader), sample.header
    trained = header.context_length or ENOUGH
    context = min(wishes.context or ENOUGH, trained)
    load = loader.load(context, wishes.cache_type or "f16")
    if not on.fits(load):
        load = loader.load(min(2048, trained), wishes.cache_type or "q8_0")
    if not on.fits(load):
        return Verdict.TOO_LARGE, -variant.size
    predicted = predict(load.forecast, on.correction(load))
    verdict = _verdict(header, variant.quant, predicted, wishes)
    return verdict, _worth(variant, predicted, load.context, variant.quant)


def _verdict(header: GgufHeader, quant: str | None, predicted: Prediction, wishes: Wishes) -> Verdict:
    floor = wishes.quality or QualityClass.GOOD
    known = quality_class(_base(quant)) if quant else None
    if known is not None and known < floor:
        return Verdict.POOR
    if quant and wishes.quality is None and not worth_offering(header, _base(quant)):
        return Verdict.POOR
    return Verdict.SLOW if predicted.decode_tps < (wishes.min_tps or READABLE) else Verdict.FITS


def _worth(variant: Variant, predicted: Prediction, context: int, quant: str | None) -> float:
    figure = kl_divergence(_base(quant)) if quant else None
    worth = -(figure.value if figure else _UNKNOWN)
    worth -= _PER_HALVING * max(0.0, math.log2(FLUENT / predicted.decode_tps))
    worth -= _PER_DOUBLING * max(0.0, math.log2(predicted.ttft_ms / PROMPT_PATIENCE))
    worth -= _PER_SHORTENING * max(0.0, math.log2(ENOUGH / context))
    quality = variant.entry.quality if variant.entry else None
    return worth + _PER_CLASS * (quality or 0)


def _base(quant: str) -> str:
    """Return the label whose figures are the nearest, for a mixture of one uploader's own."""
    return quant.removeprefix("UD-").replace("_XL", "_M")


def _alternative(option: Option, first: Option) -> Alternative:
    made = option.plan
    return Alternative(
        model=option.variant.model,
        quant=option.variant.quant or (made.quant if made else None),
        context=made.context if made else 0,
        decode_tps=made.predicted.decode_tps if made and made.predicted else 0.0,
        why_not=_why_not(option, first),
    )


def _why_not(option: Option, first: Option) -> str:
    made, chosen = option.plan, first.plan
    if made is None or chosen is None or made.predicted is None or chosen.predicted is None:
        return option.why_not
    if option.verdict is Verdict.POOR:
        return "It loses much of the model's quality."
    if option.verdict is Verdict.SLOW:
        return f"It would write {made.predicted.decode_tps:.2g} tokens a second, slower than people read."
    one, other = option.variant.entry, first.variant.entry
    if one and other and (one.quality or 0) < (other.quality or 0):
        return "Its published quality is lower."
    faster = made.predicted.decode_tps / chosen.predicted.decode_tps
    loss = (made.kl_divergence.value if made.kl_divergence else _UNKNOWN) - (
        chosen.kl_divergence.value if chosen.kl_divergence else _UNKNOWN
    )
    if faster < 1:
        return f"{1 / faster:.2g} times slower, for {'a loss' if loss >= 0 else 'a gain in quality'} of " + (
            f"{abs(loss):.2g} nats that hardly anybody notices."
        )
    return f"{faster:.2g} times faster, but {'it loses more' if loss > 0 else 'its context is shorter'}."


def _why(first: Option) -> str:
    made = first.plan
    assert made is not None
    name = f"{made.quant or 'This file'} ({mebibytes(made.file_bytes)})"
    if first.verdict is Verdict.FITS:
        loss = f", which loses {made.kl_divergence.value:.2g} nats" if made.kl_divergence else ""
        return f"{name}{loss}: the best balance of quality and speed that fits here."
    if first.verdict is Verdict.SLOW:
        return f"{name}: all that fit are slow here; this one is the best of them."
    return f"{name}: nothing better fits, although it loses much."
