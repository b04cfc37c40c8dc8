"""How a reply is to be generated."""

from __future__ import annotations

import msgspec

from edgechat.engine.types import Overflow, Sampling


class GenerationOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a reply is to be generated; the fields of a ChatRequest."""

    sampling: Sampling = Sampling()
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    think: bool | None = None
    overflow: Overflow = "window"
