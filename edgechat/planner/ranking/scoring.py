"""What a file is worth on this machine: a verdict, and within a verdict one number.

The number is in nats: the loss of the quantization (its Kullback-Leibler divergence, published or measured on
this machine), and the cost of slow answers and short contexts in the same unit. Between models, a class of
published quality counts more than the quantization.
"""

from __future__ import annotations

import math
from enum import IntEnum
from pathlib import Path

from edgechat.models.catalogue import catalogue
from edgechat.models.formats.header import ModelHeader
from edgechat.models.quality import QualityClass, loss_of_file, quality_class, worth_offering
from edgechat.planner.estimate.speed import Prediction
from edgechat.planner.ranking.candidates import Variant
from edgechat.planner.request import ENOUGH, READABLE, PlanRequest

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
