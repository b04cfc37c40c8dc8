"""What a person asks for instead of leaving the choice to the planner."""

from __future__ import annotations

import msgspec

from edgechat.errors import DoesNotFit, SettingsError
from edgechat.models.formats.header import ModelHeader
from edgechat.models.quality import QualityClass
from edgechat.native.params import CacheType
from edgechat.planner.estimate.footprint import footprint_of
from edgechat.settings import Backend

READABLE = 5.0
"""Tokens a second, some 230 words a minute: less is slower than people read."""


class PlanRequest(msgspec.Struct, frozen=True, kw_only=True):
    """None leaves the choice."""

    context: int | None = None
    """Tokens."""
    cache_type: CacheType | None = None
    threads: int | None = None
    min_tps: float | None = None
    """Tokens a second, below which a quantization or a model is not chosen."""
    quality: QualityClass | None = None
    """The least quality of a quantization; None: good, or worse where nothing else fits."""
    draft: str | None = None
    """Who drafts for it: 'auto' (as None), 'none', 'ngram', or the name or path of a model."""
    anyway: bool = False
    """Load although it does not seem to fit."""
    backend: Backend | None = None
    """What is to compute the model: nothing else may."""
    prefers: Backend | None = None
    """The same where there is a choice: what settings.toml says."""


DEFAULT_REQUEST = PlanRequest()


def checked(request: PlanRequest, header: ModelHeader) -> tuple[PlanRequest, tuple[str, ...]]:
    """Return the wishes as far as this model can grant them, and a sentence about each that it cannot.

    Raises SettingsError for wishes without sense, DoesNotFit for a cache that the model cannot have.
    """
    for name in ("context", "threads"):
        value = getattr(request, name)
        if value is not None and value < 1:
            raise SettingsError(f"{name} = {value} makes no sense.", hint=f"Ask for {name} = 1 or more.")
    if request.cache_type not in (None, "f16") and not may_quantize(header):
        why = footprint_of(header.format).whole_cache(header)
        raise DoesNotFit(f"There is no cache in {request.cache_type}: {why}.", hint="Leave the cache at f16.")
    trained = header.context_length
    if request.context is None or not trained or request.context <= trained:
        return request, ()
    note = (
        f"A context of {request.context} tokens was asked for; this model was trained on no more than "
        f"{trained}, so it gets that."
    )
    return msgspec.structs.replace(request, context=trained), (note,)


def may_quantize(header: ModelHeader) -> bool:
    """Say whether a cache of fewer bits can hold this model's keys and values."""
    return not footprint_of(header.format).whole_cache(header)
