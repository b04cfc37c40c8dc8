"""Which models are measured, and against what: the names on the command line become files with plans."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from edgechat.base.errors import BadRequest, DoesNotFit, ModelNotFound
from edgechat.base.text import mebibytes
from edgechat.device import mlx
from edgechat.models.formats.quants import canonical
from edgechat.models.local.inventory import LocalModel, inventory
from edgechat.models.local.locations import Place
from edgechat.models.local.resolve import find_models
from edgechat.models.local.stores import FoundModel, found_at
from edgechat.models.quality import kl_divergence
from edgechat.native.params import CacheType
from edgechat.planner.estimate.budget import RAM
from edgechat.planner.plan import LoadPlan
from edgechat.planner.prepare import prepare
from edgechat.planner.request import FORMATS, PlanRequest

_ROOM = 256
"""Cells of the cache beyond a chunk."""
_CALL = 512
"""Tokens of a call: llama-perplexity's own n_ubatch."""
_LOGITS = 512 << 20
"""Bytes that the logits of half a call take, which no plan has in it."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model file with a type of KV cache, and how it is loaded."""

    model: LocalModel
    plan: LoadPlan
    name: str
    """What tells its file from the others': 'Q4_K_M'."""

    @property
    def title(self) -> str:
        """What to call the model, whatever its quantization."""
        if self.model.entry is not None:
            return self.model.entry.name
        quant = re.escape(self.model.quant or "")
        return re.sub(f"[-_.:]{quant}$", "", self.model.name, flags=re.IGNORECASE) or self.model.name

    @property
    def label(self) -> str:
        """What to call it: 'Q4_K_M', 'Q4_K_M, KV in q8_0'."""
        cache = self.plan.cache_type
        return self.name if cache == "f16" else f"{self.name}, KV in {cache}"


@dataclass(frozen=True, slots=True)
class Selection:
    """What is measured; the base is not among the others."""

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
    """Return the models that the names mean, the base chosen by `against`, else the most exact one.

    Raises ModelNotFound, BadRequest, and what `prepare` raises.
    """
    models = _models(names, request)
    base = None
    if not has_base_file:
        base = _most_exact([*models, *_siblings(models[0])]) if against is None else _named(against, models)
    if against is None and base is not None and [base] == models and not cache_types:
        base = None  # there is nothing to compare it with

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
            f"{models[0].name} is to be compared with itself.", hint="Name another file with --against."
        )
    return Selection(planned(base, "f16") if base is not None else None, tuple(others))


def _models(names: Sequence[str], request: PlanRequest) -> list[LocalModel]:
    wanted = FORMATS[request.backend] if request.backend else None
    found = {model.path: model for name in names for model in find_models(name)}
    models = [model for model in _usable(found.values()) if wanted in (None, model.found.format)]
    if not models:
        raise ModelNotFound(f"{names[0]} is not on this machine for {request.backend}.")
    return sorted(models, key=lambda model: -model.size)


def _usable(models: Iterable[LocalModel]) -> list[LocalModel]:
    """Leave out MLX models where MLX is missing, unless there is nothing else: then that is said."""
    found = list(models)
    usable = [model for model in found if model.found.format != "mlx" or not mlx.missing()]
    return usable or found


def _siblings(model: LocalModel) -> list[LocalModel]:
    """Return the files of the same model on this machine, as far as their names tell."""
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
    """Return the model whose quantization loses the least by published figures."""

    def loss(model: LocalModel) -> float:
        if canonical(model.quant or "") in ("F32", "F16", "BF16"):
            return 0.0
        figure = kl_divergence(model.quant)
        return figure.value if figure else math.inf

    return min(models, key=lambda model: (loss(model), -model.size))


def _named(against: str, models: Sequence[LocalModel]) -> LocalModel:
    """Return the base of that quantization or name."""
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
            f"There is no {against} of {name} on this machine, and no model of that name.",
            hint=f"Here of {name}: {here}." if here else error.hint,
        ) from error


def _plan(model: LocalModel, request: PlanRequest, n_ctx: int, cache_type: CacheType) -> LoadPlan:
    """Return how a model is loaded to be scored: one sequence, and rows of logits for half of a chunk."""
    wish = msgspec.structs.replace(
        request, context=n_ctx + _ROOM, cache_type=cache_type, draft="none", vision=False
    )
    plan = prepare(str(model.path), wish)
    if plan.context < n_ctx:
        raise BadRequest(
            f"{model.name} was trained on {plan.context} tokens, and a chunk has {n_ctx}.",
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
    """Return the models that are loaded together, each time the base with as many as fit beside it.

    Raises DoesNotFit where not even one does.
    """
    base = [selection.base] if selection.base is not None else []
    together: list[list[Candidate]] = []
    for one in selection.others:
        if base and together and (anyway or not _excess([*together[-1], one])):
            together[-1].append(one)
            continue
        if base and not anyway and (excess := _excess([*base, one])):
            raise DoesNotFit(
                f"{base[0].label} and {one.label} do not fit together: {mebibytes(excess)} are missing.",
                hint="Measure with a base file instead, one after the other: --save-base FILE, then "
                "--base-file FILE. Or force it: --load-anyway.",
            )
        together.append([*base, one])
    return together


def _excess(models: Sequence[Candidate]) -> int:
    """Return the bytes by which models are larger together than the memory of a device."""
    needed: dict[str, int] = {}
    budgets: dict[str, int] = {}
    for one in models:
        for memory in one.plan.memory:
            needed[memory.name] = needed.get(memory.name, 0) + memory.total_bytes
            budgets[memory.name] = memory.budget_bytes
    logits = len(models) * _LOGITS
    return max(0, *(needed[name] + (name == RAM) * logits - budgets[name] for name in needed))
