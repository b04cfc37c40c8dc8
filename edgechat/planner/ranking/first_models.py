"""The models to begin with: one that is here within a minute, a balanced one, and the best."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from edgechat.models.catalogue import CatalogueEntry
from edgechat.models.formats.header import Format
from edgechat.models.local.resolve import entry_of
from edgechat.models.shipped import mlx_header_of, shipped_size
from edgechat.planner.listing import ModelRow
from edgechat.planner.ranking.ranked_file import RankedFile, Verdict

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
