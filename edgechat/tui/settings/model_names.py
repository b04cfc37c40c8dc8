"""The settings that name a model: a name that nothing has is not written."""

from __future__ import annotations

from typing import Any

from edgechat.models.local.resolve import entry_of, resolve
from edgechat.models.remote.model import split_remote
from edgechat.planner.placement.drafting import AUTO, MTP, NGRAM, NONE
from edgechat.planner.placement.programs import split_engine
from edgechat.settings import Settings

_NAMES = (("model",), ("draft",), ("embedding_model",), ("reranking_model",))


def check_name(path: tuple[str, ...], value: Any, known: Settings) -> None:
    """Raise ModelNotFound for the name of a model that is neither here nor in the catalogue. Blocks.

    Raises ModelFileError for the path of something else. Of other programs and servers, none is asked.
    """
    if path not in _NAMES or value is None or value in (AUTO, NONE, NGRAM, MTP):
        return
    elsewhere = split_engine(value)[0] is not None or split_remote(value, known.remotes) is not None
    if not elsewhere and entry_of(value) is None:
        resolve(value)
