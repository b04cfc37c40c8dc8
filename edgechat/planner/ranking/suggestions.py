"""Suggestions: models to begin with, to see images with, to continue with, and to search documents with."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from edgechat.planner.estimate.calibration import Calibration
from edgechat.planner.estimate.dry_run import DryRun
from edgechat.planner.listing import ModelRow, glances
from edgechat.planner.machine import Machine, beside, current_profile
from edgechat.planner.placement.plan_model import plan_variant
from edgechat.planner.plan import LoadPlan
from edgechat.planner.ranking.ranking import RankedFile, SurveyOverview, Verdict
from edgechat.planner.request import PlanRequest

ASSUMED_RATE = 100e6 / 8
"""Bytes per second of a download where nothing was measured: 100 Mbit/s."""
FIRST_TOKEN = 30.0
"""Seconds to the first token of a prompt of 1,000 tokens, beyond which nothing is recommended."""
_FAST, _BALANCED = 60.0, 300.0
"""Seconds within which a model of that role is downloaded, if there is one."""
_DECENT = 2
"""The least published quality (6 to 1) of a model that is recommended."""
_BILLION, _PER_DOUBLING = 2.1, 0.6
"""The quality of a model with a billion parameters, and what twice as many add: least squares of the
catalogue's 37 models for chat. It stands in for quality that is not published."""


class Role(Enum):
    """What speaks for a model; the values are for users."""

    FAST = "Fast"
    BALANCED = "Balanced"
    BEST = "Best"


@dataclass(frozen=True, slots=True)
class FirstModel:
    """A model to begin with."""

    roles: tuple[Role, ...]
    file: RankedFile
    """It has a plan."""
    download: int
    """Bytes to download, its draft model included; 0 if it is on this machine."""
    is_recommended: bool = False
    """Whether it is usable and quick; at most one is."""


def first_models(options: Iterable[RankedFile], rate: float = ASSUMED_RATE) -> tuple[FirstModel, ...]:
    """Choose up to three models, from the one that answers soonest to the best.

    options: one file of each model. rate: of downloads, in bytes per second. *Best* is the best option;
    *Balanced* the best decent one that reads a prompt quickly and is downloaded soon, and recommended; *Fast*
    the best of these that is downloaded within a minute, or of poorer ones if there is no decent one. Where
    none is downloaded in time, the first one counts.
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
    """Return what the models on this machine are compared by: the first to begin with is the greatest.

    option: as it was compared with this machine. Before that it counts as fitting if it fits into RAM.
    """
    entry, n_params = row.model.entry, max(1, row.glance.n_params)
    sized = _BILLION + _PER_DOUBLING * math.log2(n_params / 1e9)
    quality = float(entry.quality) if entry is not None and entry.quality is not None else sized
    if option is None or option.plan is None:
        fits = row.fits and (option is None or option.verdict is not Verdict.TOO_LARGE)
        return Verdict.FITS if fits else Verdict.TOO_LARGE, False, quality, 0.0
    return option.verdict, is_quick(option), quality, option.predicted.decode_tps


def is_quick(option: RankedFile) -> bool:
    """Return whether a file is fluent here and soon begins to answer a prompt of 1,000 tokens."""
    return option.verdict is Verdict.FITS and option.predicted.ttft_ms <= 1000 * FIRST_TOKEN


def download_bytes(option: RankedFile) -> int:
    """Return what a pull downloads: the model, and its draft model if that may be of use."""
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
    """A model that fits, and can answer instead."""

    name: str
    is_here: bool
    """Whether it is on this machine; if not, it would be downloaded."""
    what: str = "sees images"
    """What speaks for it."""

    @property
    def sentence(self) -> str:
        """What to tell about it."""
        where = "and is on this machine" if self.is_here else "and can be downloaded"
        return f"{one_line(self.name, 60)} {self.what}, {where}."


def seeing_model(
    inventory: Callable[[], Sequence[ModelRow]], overview: Callable[[Sequence[ModelRow]], SurveyOverview]
) -> StandIn | None:
    """Return the local model that was used last, or else the best of the catalogue; None if none fits.

    inventory, overview: see `edgechat.tui.models.library`; the second one, which may take seconds, is called
    only where the first one is not enough.
    """
    rows = inventory()
    seeing = [row for row in rows if "vision" in row.glance.modalities and not row.glance.damage]
    for row in seeing:
        if row.fits:
            return StandIn(row.model.chat_name, is_here=True)
    rated = overview(rows)
    for row in seeing:  # perhaps it fits on a GPU
        option = rated.local.get(row.model.path)
        if option is not None and option.verdict is not Verdict.TOO_LARGE:
            return StandIn(row.model.chat_name, is_here=True)
    for option in rated.found.options:
        entry = option.variant.entry
        if entry is not None and entry.vision and option.verdict is not Verdict.TOO_LARGE:
            return StandIn(entry.name, is_here=False)
    return None


def local_model(rows: Sequence[ModelRow]) -> StandIn | None:
    """Return the local model that was used last and fits, the guide only where there is no other; or None.

    rows: of this machine, most recently used first.
    """
    fitting = [row.model for row in rows if row.fits and not row.glance.damage and row.glance.kind == "chat"]
    fitting.sort(key=lambda model: model.place is Place.SHIPPED)
    return StandIn(fitting[0].chat_name, is_here=True, what="fits") if fitting else None


EMBEDDING = PlanRequest(context=512, draft="none", vision=False, adapters=())
"""How a model is loaded for documents: a passage is a paragraph or two.

llama.cpp reserves logits for every token of a call: with 262,144 tokens in the vocabulary, a MiB for each.
"""


def recommended_embedder(staying: Sequence[LoadPlan] = ()) -> Variant | None:
    """Return the first embedding model of the catalogue that fits here; None if none does.

    staying: plans of models that stay loaded beside it. Takes as long as planning a model.
    """
    entries = [entry for entry in catalogue() if entry.embedding is not None]
    with DryRun() as dry:
        profile = beside(current_profile(dry), staying)
        machine = Machine(profile, history=Calibration.read(), dry=dry)
        for entry in entries:
            variant = recommended(entry)
            if variant is not None:
                with contextlib.suppress(DoesNotFit):
                    plan_variant(variant, machine, EMBEDDING, nearest=False)
                    return variant
    return None


def installed_embedder(named: str | None = None) -> LocalModel | None:
    """Return the embedding model of this machine that comes first; None if there is none.

    The catalogue's come first, in its order and in the recommended quantization. named: what
    `embedding_model` in settings.toml says instead. Raises ModelNotFound or ModelFileError for that.
    """
    if named is not None:
        return _named(named, "embedding")
    return next(_embedders(inventory().models), None)


def named_reranker(named: str) -> LocalModel:
    """Return the reranking model that settings.toml names. Raises ModelNotFound or ModelFileError."""
    return _named(named, "reranking")


def _named(name: str, kind: ModelKind) -> LocalModel:
    model = min(find_models(name), key=_place)
    header = read_model(model.path)
    if header.kind != kind:
        raise ModelFileError(
            f"settings.toml names {model.name} as {kind}_model, but it is no {kind} model.",
            hint="Name another one there, or none.",
        )
    check(model.name, header, may_embed=True)
    return model


def prefixes_of(model: LocalModel) -> EmbeddingPrefixes:
    """Return what the makers of a model put before texts; nothing if the catalogue does not know it.

    Copies of a model that the catalogue has from elsewhere are known by their own or their file's name.
    """
    entry = model.entry or _namesake(model)
    return entry.embedding if entry is not None and entry.embedding is not None else EmbeddingPrefixes()


def _embedders(models: Sequence[LocalModel]) -> Iterator[LocalModel]:
    summaries = zip(models, glances(models), strict=True)
    yield from sorted((model for model, glance in summaries if glance.kind == "embedding"), key=_place)


def _place(model: LocalModel) -> tuple[int, bool, int]:
    """Return what models are sorted by: the order of the catalogue, others by size."""
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
