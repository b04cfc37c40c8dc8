"""The messages between the front end and the process that scores a text."""

from __future__ import annotations

import msgspec

from edgechat.bench.speed import BenchFailure, BenchProgress
from edgechat.planner.plan import LoadPlan


class ScoredModel(msgspec.Struct, frozen=True):
    """A model whose predictions are scored, and where its scores are kept."""

    label: str
    """What to call it in progress: 'Q4_K_M'."""
    plan: LoadPlan
    scores: str


class QualityTask(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """A request to score a text with models that are loaded together."""

    text: str
    """Path of the text."""
    n_ctx: int
    """Tokens of a chunk."""
    n_chunks: int
    """0: all."""
    models: tuple[ScoredModel, ...]
    has_base: bool = False
    """Whether the others are compared with the first one."""
    base_file: str = ""
    """Path of predictions to compare with; its tokens take the place of the text."""
    save_base: str = ""
    """Where to write the predictions of the first model."""


class Scored(msgspec.Struct, frozen=True, tag=True):
    """Everything is scored."""

    n_chunks: int


ScoringAnswer = Scored | BenchProgress | BenchFailure
