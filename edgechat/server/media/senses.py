"""Which models take what is sent: refused with a reason, and the name of a model that could."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

from edgechat.base.errors import SettingsError
from edgechat.engine.types import Message, ModelInfo
from edgechat.models.catalogue import catalogue
from edgechat.server.pool.available_models import ModelCard
from edgechat.server.pool.models import ModelPool, ServedModel
from edgechat.server.protocol.media import SentImage, SentMedia
from edgechat.server.refusal import Refusal


def takes(model: ModelInfo, sent: SentMedia) -> bool:
    """Return whether a loaded model takes what was sent."""
    return model.sees if isinstance(sent, SentImage) else model.hears


async def refuse_untaken(
    sent: Sequence[tuple[Message, SentMedia]], served: ServedModel, models: ModelPool
) -> None:
    """Raise Refusal if a user shows or plays something to a model that does not take it."""
    for message, one in sent:
        if message.role == "tool" or takes(served.model, one):
            continue
        is_image = isinstance(one, SentImage)
        able = "see images" if is_image else "hear sounds"
        other = _other(await asyncio.to_thread(models.names), is_image=is_image)
        raise Refusal(f"{one.at}: {served.name} cannot {able}. {other}", param=one.at, code="invalid_value")


def _other(cards: Sequence[ModelCard], *, is_image: bool) -> str:
    """Return what to do instead: a model that is here, or one that could be."""
    does, modality = ("sees", "image") if is_image else ("hears", "audio")
    here = next((card.id for card in cards if (card.sees if is_image else card.hears)), None)
    if here is not None:
        return f"{here} does: name it as the model."
    listed = f"`input_modalities` in /v1/models say which model {does}: none here has {modality!r}."
    try:
        known = [one for one in catalogue() if (one.vision if is_image else one.audio)]
    except SettingsError:
        known = []
    # Models of less quality are smaller: this one fits nearly any machine.
    smallest = min(known, key=lambda one: one.quality or math.inf, default=None)
    return f"{listed} To download one: edgechat pull {smallest.name}" if smallest is not None else listed
