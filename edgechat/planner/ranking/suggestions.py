"""Suggests models: some to start or continue with, one that can see images, and one for document search."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from edgechat.base.errors import DoesNotFit, ModelFileError
from edgechat.base.text import one_line
from edgechat.models.catalogue import CatalogueEntry, EmbeddingPrefixes, catalogue
from edgechat.models.formats.header import Format, ModelKind
from edgechat.models.formats.mlx.contents import read_model
from edgechat.models.formats.quants import canonical
from edgechat.models.local.inventory import LocalModel, inventory
from edgechat.models.local.locations import Place
from edgechat.models.local.resolve import entry_of, find_models
from edgechat.models.shipped import mlx_header_of, shipped_size
from edgechat.planner.candidates import Variant, check, recommended
from edgechat.planner.estimate.dry_run import DryRun
from edgechat.planner.listing import ModelRow, glances
from edgechat.planner.machine import machine_for
from edgechat.planner.placement.plan_model import plan_variant
from edgechat.planner.ranking.ranking import RankedFile, SurveyOverview, Verdict
from edgechat.planner.request import PlanRequest

ASSUMED_RATE = 100e6 / 8
"""Assumed download speed, in bytes per second: 100 Mbit/s."""
FIRST_TOKEN = 30.0
"""Longest time to first token for a recommended model with a 1,000-token prompt, in seconds."""
_FAST, _BALANCED = 60.0, 300.0
"""Longest acceptable download times for the fast and the balanced model, in seconds."""
_DECENT = 2
"""Lowest published quality (1 to 6) that a recommended model may have."""
_BILLION, _PER_DOUBLING = 2.1, 0.6
"""Assumed quality if none is published: for a model with a billion parameters, and the gain per doubling. A
least-squares fit over the 37 chat models in the catalogue.
"""


class Role(Enum):
    """The role of a suggested model. The values are shown to users."""

    FAST = "Fast"
    BALANCED = "Balanced"
    BEST = "Best"


@dataclass(frozen=True, slots=True)
class FirstModel:
    """A model suggested as the first one to use."""

    roles: tuple[Role, ...]
    file: RankedFile
    """The model's file, which always has a plan."""
    download: int
    """How many bytes to download, including a draft model; 0 if the model is on this machine."""
    is_recommended: bool = False
    """Whether it is both usable and quick. True for at most one model."""


def first_models(options: Iterable[RankedFile], rate: float = ASSUMED_RATE) -> tuple[FirstModel, ...]:
    """Suggest up to three models, ranging from the one that answers soonest to the best.

    options: one file for each model. rate: download speed in bytes per second.

    *Best* is the best option. *Balanced*, the recommended one, is the best decent option that reads prompts
    quickly and downloads within five minutes. *Fast* is the best decent option that downloads within a
    minute; if there are no decent options, others are considered. If nothing downloads in time, the smallest
    download is chosen.
    """
    planned = [option for option in options if option.plan is not None]
    if not planned:
        return ()
    sizes = {id(option): download_bytes(option) for option in planned}
    quick = [option for option in planned if is_quick(option)]
    decent = [option for option in quick if _quality(option) >= _DECENT]

    def best_within(seconds: float, among: Sequence[RankedFile]) -> RankedFile:
        limit = max(seconds * rate, min(sizes[id(option)] for option in among))
        return _best([option for option in among if sizes[id(option)] <= limit])

    chosen: list[tuple[Role, RankedFile]] = []
    if quick:
        chosen.append((Role.FAST, best_within(_FAST, decent or quick)))
    if decent:
        chosen.append((Role.BALANCED, best_within(_BALANCED, decent)))
    chosen.append((Role.BEST, _best(planned)))
    by_file: dict[int, list[Role]] = {}
    for role, option in chosen:
        by_file.setdefault(id(option), []).append(role)
    files = {id(option): option for _, option in chosen}
    return tuple(
        FirstModel(tuple(roles), files[key], sizes[key], is_recommended=Role.BALANCED in roles)
        for key, roles in by_file.items()
    )


def standing(row: ModelRow, option: RankedFile | None) -> tuple[Verdict, bool, float, float]:
    """Return a local model's sort key, which is greatest for the best model to start with.

    option: its rating on this machine. Without a rating, the model counts as fitting if it fits in RAM.
    """
    entry, n_params = row.model.entry, max(1, row.glance.n_params)
    sized = _BILLION + _PER_DOUBLING * math.log2(n_params / 1e9)
    quality = float(entry.quality) if entry is not None and entry.quality is not None else sized
    if option is None or option.plan is None:
        fits = row.fits and (option is None or option.verdict is not Verdict.TOO_LARGE)
        return Verdict.FITS if fits else Verdict.TOO_LARGE, False, quality, 0.0
    return option.verdict, is_quick(option), quality, option.predicted.decode_tps


def is_quick(option: RankedFile) -> bool:
    """Return whether a file is fast enough and starts answering a 1,000-token prompt soon enough."""
    return option.verdict is Verdict.FITS and option.predicted.ttft_ms <= 1000 * FIRST_TOKEN


def download_bytes(option: RankedFile) -> int:
    """Return how many bytes to download for the model, including its draft model if that may help."""
    variant, plan = option.variant, option.plan
    if variant.path is not None:
        return 0
    draft = entry_of(variant.entry.draft) if variant.entry is not None and variant.entry.draft else None
    drafts = plan is not None and plan.ngrams and plan.head is None
    return variant.size + (_size_of(draft, variant.format) if draft is not None and drafts else 0)


def _size_of(entry: CatalogueEntry, format: Format) -> int:
    if format == "gguf":
        return shipped_size(entry, entry.quant or "") or 0
    headers = (mlx_header_of(entry, label) for label in entry.mlx)
    return next((header.file_size for header in headers if header is not None), 0)


def _best(options: Sequence[RankedFile]) -> RankedFile:
    return max(options, key=lambda option: option.rank)


def _quality(option: RankedFile) -> int:
    entry = option.variant.entry
    return entry.quality or 0 if entry is not None else 0


@dataclass(frozen=True, slots=True)
class StandIn:
    """A model that fits and can answer in place of the current one."""

    name: str
    is_here: bool
    """Whether it is on this machine; otherwise it has to be downloaded."""
    what: str = "sees images"
    """What it can do, in words."""

    @property
    def sentence(self) -> str:
        """The suggestion as a sentence for users."""
        where = "and is on this machine" if self.is_here else "and can be downloaded"
        return f"{one_line(self.name, 60)} {self.what}, {where}."


def seeing_model(
    inventory: Callable[[], Sequence[ModelRow]], overview: Callable[[Sequence[ModelRow]], SurveyOverview]
) -> StandIn | None:
    """Return a model that can see: the most recently used one on this machine, or else the catalogue's best.

    Returns None if none fits. inventory, overview: see `edgechat.tui.models.library`. `overview` may take
    seconds, so it is called only if no model in `inventory` fits.
    """
    rows = inventory()
    seeing = [row for row in rows if "vision" in row.glance.modalities and not row.glance.damage]
    for row in seeing:
        if row.fits:
            return StandIn(row.model.chat_name, is_here=True)
    rated = overview(rows)
    for row in seeing:  # it may still fit on a GPU
        option = rated.local.get(row.model.path)
        if option is not None and option.verdict is not Verdict.TOO_LARGE:
            return StandIn(row.model.chat_name, is_here=True)
    for option in rated.found.options:
        entry = option.variant.entry
        if entry is not None and entry.vision and option.verdict is not Verdict.TOO_LARGE:
            return StandIn(entry.name, is_here=False)
    return None


def local_model(rows: Sequence[ModelRow]) -> StandIn | None:
    """Return the most recently used local chat model that fits, or None. The shipped guide model comes last.

    rows: local models, most recently used first.
    """
    fitting = [row.model for row in rows if row.fits and not row.glance.damage and row.glance.kind == "chat"]
    fitting.sort(key=lambda model: model.place is Place.SHIPPED)
    return StandIn(fitting[0].chat_name, is_here=True, what="fits") if fitting else None


EMBEDDING = PlanRequest(context=512, draft="none", vision=False, adapters=())
"""The request used to plan embedding models. A passage is a paragraph or two long.

llama.cpp reserves logits for every token in a call: 1 MiB per token if the vocabulary has 262,144 tokens.
"""


def recommended_embedder() -> Variant | None:
    """Return the first embedding model in the catalogue that fits here, or None.

    This takes as long as planning a model.
    """
    entries = [entry for entry in catalogue() if entry.embedding is not None]
    with DryRun() as dry:
        machine = machine_for(dry, types=None)
        for entry in entries:
            variant = recommended(entry)
            if variant is not None:
                with contextlib.suppress(DoesNotFit):
                    plan_variant(variant, machine, EMBEDDING, nearest=False)
                    return variant
    return None


def installed_embedder(named: str | None = None) -> LocalModel | None:
    """Return the first embedding model on this machine, or None if there is none.

    Catalogue models come first, in catalogue order and starting with the recommended quantization.
    Raises ModelNotFound or ModelFileError if `named` is missing or damaged.

    named: `embedding_model` in settings.toml.
    """
    if named is not None:
        return _named(named, "embedding")
    models = inventory().models
    summaries = zip(models, glances(models), strict=True)
    return min((model for model, glance in summaries if glance.kind == "embedding"), key=_place, default=None)


def named_reranker(named: str) -> LocalModel:
    """Return the reranking model that settings.toml names. Raises ModelNotFound or ModelFileError."""
    return _named(named, "reranking")


def _named(name: str, kind: ModelKind) -> LocalModel:
    model = min(find_models(name), key=_place)
    header = read_model(model.path)
    if header.kind != kind:
        raise ModelFileError(
            f"settings.toml names {model.name} as {kind}_model, but it cannot be used for {kind}.",
            hint="Choose another model there, or remove the setting.",
        )
    check(model.name, header, may_embed=True)
    return model


def prefixes_of(model: LocalModel) -> EmbeddingPrefixes:
    """Return the prefixes that a model expects before its input; empty for unknown models.

    Copies of catalogue models from other sources are recognized by model name or file name.
    """
    entry = model.entry or _namesake(model)
    return entry.embedding if entry is not None and entry.embedding is not None else EmbeddingPrefixes()


def _place(model: LocalModel) -> tuple[int, bool, int]:
    """Return the key for sorting models: catalogue order, then the recommended quantization, then size."""
    entry = model.entry
    known = [entry.name for entry in catalogue() if entry.kind != "chat"]
    if entry is None or entry.name not in known:
        return len(known), False, model.size
    return known.index(entry.name), model.quant != canonical(entry.quant or ""), model.size


def _namesake(model: LocalModel) -> CatalogueEntry | None:
    with contextlib.suppress(ModelFileError):
        title = read_model(model.path).name or ""
        names = [_letters(name) for name in (title, model.found.label, model.name)]
        for entry in catalogue():
            own = [_letters(name) for name in entry.names]
            if entry.embedding is not None and any(one in name for one in own for name in names):
                return entry
    return None


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name.casefold()))
