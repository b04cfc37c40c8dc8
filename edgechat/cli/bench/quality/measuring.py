"""The front end's side of a measurement: what is missing is scored, and all of it becomes a report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path

from filelock import FileLock, Timeout

from edgechat import settings
from edgechat.base import paths
from edgechat.base.errors import BadRequest
from edgechat.cli.bench.asking import ask
from edgechat.cli.bench.quality.base_file import BaseFile, remove_unfinished, scored
from edgechat.cli.bench.quality.divergence import TextFigures, summary
from edgechat.cli.bench.quality.score_file import ScoreFile, drop_oldest, score_path
from edgechat.cli.bench.quality.selection import Candidate, groups, select
from edgechat.cli.bench.quality.task import QualityTask, Scored, ScoredModel, ScoringAnswer
from edgechat.cli.bench.quality.text import read_text, shipped_text
from edgechat.models import quality
from edgechat.models.local.fingerprint import fingerprint_of
from edgechat.models.quality import QualityClass, quality_class
from edgechat.native.params import CacheType
from edgechat.planner.candidates import of_local, runnable
from edgechat.planner.estimate.calibration import Calibration, build
from edgechat.planner.estimate.dry_run import DryRun
from edgechat.planner.machine import Machine, current_profile
from edgechat.planner.ranking.ranking import choose, rate
from edgechat.planner.request import PlanRequest, with_settings

_CORRECTS = 1000
"""Scored tokens from which a measurement corrects what plans say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityRequest:
    """What a user wants to be measured, and how."""

    names: tuple[str, ...]
    plan: PlanRequest
    n_ctx: int
    n_chunks: int
    """0: all."""
    against: str | None = None
    text: Path | None = None
    """None: the one that ships."""
    cache_types: tuple[CacheType, ...] = ()
    base_file: Path | None = None
    save_base: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredModel:
    """What was measured of one model file with one type of KV cache."""

    model: Candidate
    figures: TextFigures
    tokens_per_second: float
    is_base: bool
    is_chosen: bool = False
    """Whether this machine would run this one of those that were quality."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityReport:
    """Everything that was measured: the base first, then from large to small."""

    title: str
    """What the models have in common."""
    models: tuple[MeasuredModel, ...]
    n_ctx: int
    n_chunks: int
    base: str | None
    """What the others were compared with."""


def measure_quality(request: QualityRequest, tell: Callable[[str], None]) -> QualityReport:
    """Measure, reporting progress to `tell`. Raises EdgechatError."""
    try:
        with FileLock(paths.cache_dir() / "quality.lock", timeout=0):
            return _measure(request, tell)
    except Timeout:
        raise BadRequest(
            "Another measurement of quality is running.", hint="Two at once would falsify each other's speed."
        ) from None


def _measure(request: QualityRequest, tell: Callable[[str], None]) -> QualityReport:
    tell("inspecting this machine and the headers of the models")
    base_file = BaseFile(request.base_file) if request.base_file else None
    n_ctx = base_file.n_ctx if base_file is not None else request.n_ctx
    selection = select(
        request.names,
        request.plan,
        n_ctx=n_ctx,
        against=request.against,
        cache_types=request.cache_types,
        has_base_file=base_file is not None,
    )
    base = selection.base
    text = (
        _text_hash(request.text or shipped_text())
        if request.base_file is None
        else _file_hash(request.base_file)
    )
    depends = [str(n_ctx).encode(), text]
    of_base = [_identity(base)] if base is not None else []

    def scored_model(one: Candidate) -> ScoredModel:
        of = of_base if one is not base else []
        return ScoredModel(one.label, one.plan, str(score_path(*depends, _identity(one), *of)))

    n_chunks = _score_missing(
        request,
        n_ctx,
        [[*map(scored_model, group)] for group in groups(selection, anyway=request.plan.anyway)],
        has_base=base is not None,
        tell=tell,
    )
    drop_oldest()
    compared = base is not None or base_file is not None
    measured_models = []
    for one in [*filter(None, [base]), *selection.others]:
        file = ScoreFile(Path(scored_model(one).scores), scored(n_ctx))
        figures = summary(file.scores(n_chunks), compared=compared and one is not base)
        measured_models.append(
            MeasuredModel(
                model=one,
                figures=figures,
                tokens_per_second=file.tokens_per_second,
                is_base=one is base,
            )
        )
    if base is not None:
        _correct_plans(base, measured_models)
    chosen = _chosen([one.model for one in measured_models], request.plan)
    return QualityReport(
        title=", ".join(dict.fromkeys(one.title for one in selection.others)),
        models=tuple(
            replace(one, is_chosen=chosen == (one.model.plan.model_path, one.model.plan.cache_type))
            for one in measured_models
        ),
        n_ctx=n_ctx,
        n_chunks=n_chunks,
        base=base.label if base is not None else request.base_file.name if request.base_file else None,
    )


def _score_missing(
    request: QualityRequest,
    n_ctx: int,
    together: Sequence[Sequence[ScoredModel]],
    *,
    has_base: bool,
    tell: Callable[[str], None],
) -> int:
    """Score what is not kept, one group of models after the other; return the number of chunks."""
    n_chunks = 0
    for models in together:
        saves = request.save_base is not None and not n_chunks
        if not saves and request.n_chunks and _are_kept(models, n_ctx, request.n_chunks):
            n_chunks = request.n_chunks
            continue
        task = QualityTask(
            text=str(request.text or shipped_text()),
            n_ctx=n_ctx,
            n_chunks=request.n_chunks,
            models=tuple(models),
            has_base=has_base,
            base_file=str(request.base_file or ""),
            save_base=str(request.save_base) if saves else "",
        )
        hint = "Measure fewer models at once, or give a smaller --ctx."
        try:
            answer: Scored = ask("quality", task, ScoringAnswer, tell, hint)
        finally:
            if saves and request.save_base is not None:
                remove_unfinished(request.save_base)
        n_chunks = answer.n_chunks
    return n_chunks


def _are_kept(models: Sequence[ScoredModel], n_ctx: int, n_chunks: int) -> bool:
    return all(ScoreFile(Path(one.scores), scored(n_ctx)).n_chunks >= n_chunks for one in models)


def _identity(one: Candidate) -> bytes:
    """Return what the predictions of a model depend on."""
    plan = one.plan
    return fingerprint_of(
        plan.model_path, f"{build(one.model.found.format)} {plan.cache_type} {plan.devices}"
    )


def _text_hash(path: Path) -> bytes:
    return blake2b(read_text(path).encode()).digest()


def _file_hash(path: Path) -> bytes:
    """Return a hash of a base file's size and both its ends."""
    with path.open("rb") as file:
        size = path.stat().st_size
        start = file.read(1 << 20)
        file.seek(max(0, size - (1 << 20)))
        return blake2b(str(size).encode() + start + file.read()).digest()


def _correct_plans(base: Candidate, models: Sequence[MeasuredModel]) -> None:
    """Note what was measured for later plans, where the base is as good as the unquantized model."""
    if quality_class(base.plan.quant) is not QualityClass.REFERENCE:
        return
    for one in models:
        loss, plan, n_tokens = one.figures.divergence, one.model.plan, one.figures.n_tokens
        if loss is not None and plan.cache_type == "f16" and n_tokens >= _CORRECTS:
            quality.keep(Path(plan.model_path), loss.mean.value, loss.mean.error, base.name, n_tokens)


def _chosen(models: Sequence[Candidate], request: PlanRequest) -> tuple[str, str] | None:
    """Return the file and the cache type that this machine would run, where there is a choice that fits."""
    files = [of_local(one.model) for one in models if one.plan.cache_type == "f16"]
    if len(files) < 2:
        return None
    request = with_settings(request, settings.load())
    with DryRun() as dry:
        machine = Machine(current_profile(dry), history=Calibration.read(), dry=dry)
        files = runnable(files, machine.profile, request)
        machine = machine.timed_for(file.header() for file in files)
        first = choose((rate(file, machine, request) for file in files), request)
    return (first.plan.model_path, first.plan.cache_type) if first is not None and first.plan else None
