"""Quality measurement: selects models and a base, scores what is not cached, and builds the report."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path

import msgspec
from filelock import FileLock, Timeout

from edgechat import settings
from edgechat.base import paths
from edgechat.base.errors import BadRequest, DoesNotFit, ModelNotFound
from edgechat.base.text import mebibytes
from edgechat.bench.divergence import TextFigures, summary
from edgechat.bench.process import ask
from edgechat.bench.quality_files import (
    BaseFile,
    QualityTask,
    Scored,
    ScoredModel,
    ScoreFile,
    ScoringAnswer,
    drop_oldest,
    read_text,
    remove_unfinished,
    score_path,
    scored,
    shipped_text,
)
from edgechat.device import mlx
from edgechat.models import quality
from edgechat.models.formats.quants import canonical
from edgechat.models.local.inventory import LocalModel, inventory
from edgechat.models.local.locations import Place
from edgechat.models.local.resolve import find_models
from edgechat.models.local.stores import FoundModel, fingerprint_of, found_at
from edgechat.models.quality import QualityClass, kl_divergence, quality_class
from edgechat.native.params import CacheType
from edgechat.planner.candidates import of_local, runnable
from edgechat.planner.estimate.budget import RAM
from edgechat.planner.estimate.calibration import Calibration, build
from edgechat.planner.estimate.dry_run import DryRun
from edgechat.planner.machine import Machine, current_profile
from edgechat.planner.plan import LoadPlan
from edgechat.planner.prepare import prepare
from edgechat.planner.ranking.ranking import choose, rate
from edgechat.planner.request import FORMATS, PlanRequest, with_settings

_CORRECTS = 1000
"""Minimum number of tokens that a measurement must cover to correct later plans."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityRequest:
    """Options for a quality measurement."""

    names: tuple[str, ...]
    plan: PlanRequest
    n_ctx: int
    n_chunks: int
    """Number of chunks to score; 0 means the whole text."""
    against: str | None = None
    text: Path | None = None
    """Path to the text to score, or None for the text shipped with edgechat."""
    cache_types: tuple[CacheType, ...] = ()
    base_file: Path | None = None
    save_base: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredModel:
    """The results for one model file, with a given type of KV cache."""

    model: Candidate
    figures: TextFigures
    tokens_per_second: float
    is_base: bool
    is_chosen: bool = False
    """Whether the planner would choose this model over the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityReport:
    """All results. The base comes first, followed by the others from largest to smallest."""

    title: str
    """The name that all of the models share."""
    models: tuple[MeasuredModel, ...]
    n_ctx: int
    n_chunks: int
    base: str | None
    """The label of the model or file that the others are compared with."""


def measure_quality(request: QualityRequest, tell: Callable[[str], None]) -> QualityReport:
    """Run the measurement as requested, passing progress reports to `tell`. Raises EdgechatError."""
    try:
        with FileLock(paths.cache_dir() / "quality.lock", timeout=0):
            return _measure(request, tell)
    except Timeout:
        raise BadRequest(
            "Another quality measurement is running.", hint="Two at once would distort each other's speed."
        ) from None


def _measure(request: QualityRequest, tell: Callable[[str], None]) -> QualityReport:
    tell("inspecting this machine and the models' headers")
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
        blake2b(read_text(request.text or shipped_text()).encode()).digest()
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
    """Score what is not cached yet, one group of models at a time, and return the number of chunks."""
    n_chunks = 0
    for models in together:
        saves = request.save_base is not None and not n_chunks
        files = (ScoreFile(Path(one.scores), scored(n_ctx)) for one in models)
        if not saves and request.n_chunks and all(file.n_chunks >= request.n_chunks for file in files):
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


def _identity(one: Candidate) -> bytes:
    """Return a key made from everything that affects a model's predictions."""
    plan = one.plan
    return fingerprint_of(
        plan.model_path, f"{build(one.model.found.format)} {plan.cache_type} {plan.devices}"
    )


def _file_hash(path: Path) -> bytes:
    """Return a hash of a base file's size, its first megabyte and its last megabyte."""
    with path.open("rb") as file:
        size = path.stat().st_size
        start = file.read(1 << 20)
        file.seek(max(0, size - (1 << 20)))
        return blake2b(str(size).encode() + start + file.read()).digest()


def _correct_plans(base: Candidate, models: Sequence[MeasuredModel]) -> None:
    """Record the losses for later plans, if the base is as good as an unquantized model."""
    if quality_class(base.plan.quant) is not QualityClass.REFERENCE:
        return
    for one in models:
        loss, plan, n_tokens = one.figures.divergence, one.model.plan, one.figures.n_tokens
        if loss is not None and plan.cache_type == "f16" and n_tokens >= _CORRECTS:
            quality.keep(Path(plan.model_path), loss.mean.value, loss.mean.error, base.name, n_tokens)


def _chosen(models: Sequence[Candidate], request: PlanRequest) -> tuple[str, str] | None:
    """Return the file and cache type that the planner would choose, or None if it has no choice."""
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


_ROOM = 256
"""Number of spare cells in the KV cache, in addition to one chunk."""
_CALL = 512
"""Number of tokens per call, as in llama-perplexity (n_ubatch)."""
_LOGITS = 512 << 20
"""Number of bytes needed for the logits of half a call, in addition to the planned memory."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model file combined with a type of KV cache, and the plan for loading it."""

    model: LocalModel
    plan: LoadPlan
    name: str
    """What sets this file apart from others of the same model, such as 'Q4_K_M'."""

    @property
    def title(self) -> str:
        """The model's name, without its quantization."""
        if self.model.entry is not None:
            return self.model.entry.name
        quant = re.escape(self.model.quant or "")
        return re.sub(f"[-_.:]{quant}$", "", self.model.name, flags=re.IGNORECASE) or self.model.name

    @property
    def label(self) -> str:
        """The name used in reports, such as 'Q4_K_M' or 'Q4_K_M, KV in q8_0'."""
        cache = self.plan.cache_type
        return self.name if cache == "f16" else f"{self.name}, KV in {cache}"


@dataclass(frozen=True, slots=True)
class Selection:
    """The models to measure; `others` does not include the base."""

    base: Candidate | None
    others: tuple[Candidate, ...]


def select(
    names: Sequence[str],
    request: PlanRequest,
    *,
    n_ctx: int,
    against: str | None,
    cache_types: Sequence[CacheType],
    has_base_file: bool,
) -> Selection:
    """Find the models to measure and their base: the one named by `against`, or else the most accurate one.

    Raises ModelNotFound, BadRequest, and anything that `prepare` raises.
    """
    models = _models(names, request)
    base = None
    if not has_base_file:
        base = _most_exact([*models, *_siblings(models[0])]) if against is None else _named(against, models)
    if against is None and base is not None and [base] == models and not cache_types:
        base = None  # there is nothing else to compare

    files = {model.path: model.quant for model in (*models, *filter(None, [base]))}
    quants = Counter(files.values())

    def planned(model: LocalModel, cache: CacheType) -> Candidate:
        name = model.quant if model.quant and quants[model.quant] == 1 else model.name
        return Candidate(model, _plan(model, request, n_ctx, cache), name)

    others = [
        planned(model, cache)
        for cache in ("f16", *dict.fromkeys(cache_types))
        for model in models
        if cache != "f16" or base is None or model.path != base.path
    ]
    if not others:
        raise BadRequest(
            f"{models[0].name} would be compared with itself.", hint="Name another file with --against."
        )
    return Selection(planned(base, "f16") if base is not None else None, tuple(others))


def _models(names: Sequence[str], request: PlanRequest) -> list[LocalModel]:
    wanted = FORMATS[request.backend] if request.backend else None
    found = {model.path: model for name in names for model in find_models(name)}
    models = [model for model in _usable(found.values()) if wanted in (None, model.found.format)]
    if not models:
        raise ModelNotFound(f"{names[0]} is not available for {request.backend} on this machine.")
    return sorted(models, key=lambda model: -model.size)


def _usable(models: Iterable[LocalModel]) -> list[LocalModel]:
    """Leave out MLX models if MLX is not installed.

    If there are no other models, keep them, so that the error mentions MLX.
    """
    found = list(models)
    usable = [model for model in found if model.found.format != "mlx" or not mlx.missing()]
    return usable or found


def _siblings(model: LocalModel) -> list[LocalModel]:
    """Return the local files that belong to the same model, judging by their names."""
    here = inventory()
    if model.entry is not None:
        return _usable(here.of(model.entry))
    if model.found.repo is not None:
        return _usable(other for other in here.models if other.found.repo == model.found.repo)
    if model.found.format == "mlx" or model.place is Place.OLLAMA:
        return []
    beside = (found_at(path) for path in sorted(model.path.parent.glob("*.gguf"))[:_CALL])
    stem = _stem(model.found)
    return [
        LocalModel(Path(found.label).name, str(found.path), found, None, found.quant)
        for found in beside
        if found is not None and _stem(found) == stem
    ]


def _stem(found: FoundModel) -> str:
    name = Path(found.label).name.casefold()
    return name.replace((found.quant or "").casefold(), "", 1)


def _most_exact(models: Iterable[LocalModel]) -> LocalModel:
    """Return the model with the lowest published loss."""

    def loss(model: LocalModel) -> float:
        if canonical(model.quant or "") in ("F32", "F16", "BF16"):
            return 0.0
        figure = kl_divergence(model.quant)
        return figure.value if figure else math.inf

    return min(models, key=lambda model: (loss(model), -model.size))


def _named(against: str, models: Sequence[LocalModel]) -> LocalModel:
    """Return the model that has this quantization or name."""
    siblings = [*models, *_siblings(models[0])]
    label = canonical(against)
    same = next((model for model in siblings if canonical(model.quant or "") == label), None)
    if same is not None:
        return same
    try:
        return _most_exact(find_models(against))
    except ModelNotFound as error:
        name = models[0].entry.name if models[0].entry else models[0].name
        here = ", ".join(dict.fromkeys(model.quant for model in siblings if model.quant))
        raise ModelNotFound(
            f"This machine has no {against} version of {name}, and no model named {against}.",
            hint=f"Versions of {name} here: {here}." if here else error.hint,
        ) from error


def _plan(model: LocalModel, request: PlanRequest, n_ctx: int, cache_type: CacheType) -> LoadPlan:
    """Plan a load for scoring: a single sequence, and room for the logits of half a chunk."""
    wish = msgspec.structs.replace(
        request, context=n_ctx + _ROOM, cache_type=cache_type, draft="none", vision=False
    )
    plan = prepare(str(model.path), wish)
    if plan.context < n_ctx:
        raise BadRequest(
            f"{model.name} has a context of {plan.context} tokens, but a chunk has {n_ctx}.",
            hint=f"Give a smaller --ctx: {plan.context // 2}.",
        )
    n_batch = min(n_ctx, _CALL)
    return msgspec.structs.replace(
        plan,
        n_batch=n_batch,
        n_ubatch=n_batch,
        n_seq_max=1,
        n_rs_seq=0,
        n_outputs_max=n_ctx - n_ctx // 2 if n_ctx <= n_batch else n_batch,
    )


def groups(selection: Selection, *, anyway: bool) -> list[list[Candidate]]:
    """Group the models that are loaded together: the base, and as many others as fit alongside it.

    Raises DoesNotFit if the base does not fit alongside one of the others.
    """
    base = [selection.base] if selection.base is not None else []
    together: list[list[Candidate]] = []
    for one in selection.others:
        if base and together and (anyway or not _excess([*together[-1], one])):
            together[-1].append(one)
            continue
        if base and not anyway and (excess := _excess([*base, one])):
            raise DoesNotFit(
                f"{base[0].label} and {one.label} do not fit into memory together: they need "
                f"{mebibytes(excess)} more.",
                hint="Measure with a base file instead, one after the other: --save-base FILE, then "
                "--base-file FILE. Or force it: --load-anyway.",
            )
        together.append([*base, one])
    return together


def _excess(models: Sequence[Candidate]) -> int:
    """Return the number of bytes by which the models, if loaded together, would exceed a device's memory."""
    needed: dict[str, int] = {}
    budgets: dict[str, int] = {}
    for one in models:
        for memory in one.plan.memory:
            needed[memory.name] = needed.get(memory.name, 0) + memory.total_bytes
            budgets[memory.name] = memory.budget_bytes
    logits = len(models) * _LOGITS
    return max(0, *(needed[name] + (name == RAM) * logits - budgets[name] for name in needed))
