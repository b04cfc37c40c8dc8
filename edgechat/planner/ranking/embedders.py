"""Which models search documents: of those on this machine, and of the catalogue for a download."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from edgechat.base.errors import DoesNotFit, ModelFileError
from edgechat.models.catalogue import CatalogueEntry, EmbeddingPrefixes, catalogue
from edgechat.models.formats.header import ModelKind
from edgechat.models.formats.mlx.contents import read_model
from edgechat.models.formats.quants import canonical
from edgechat.models.local.inventory import LocalModel, inventory
from edgechat.models.local.resolve import find_models
from edgechat.planner.estimate.calibration import Calibration
from edgechat.planner.estimate.dry_run import DryRun
from edgechat.planner.listing import glances
from edgechat.planner.machine import Machine, current_profile
from edgechat.planner.placement.embedding import check
from edgechat.planner.placement.residents import beside
from edgechat.planner.plan import LoadPlan
from edgechat.planner.plan_model import plan_variant
from edgechat.planner.ranking.candidates import Variant, recommended
from edgechat.planner.request import PlanRequest

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
