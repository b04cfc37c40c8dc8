"""Which kind of attention takes less time for what a chat reads and writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from edgechat.device.speed import ATTENTION_ROWS, AttentionKind, AttentionShape, DeviceSpeed, attention_name
from edgechat.planner.estimate.speed import Forecast

KINDS: tuple[AttentionKind, ...] = get_args(AttentionKind)
DEPTH = 1000
"""Tokens after which a chat is when it is told how much faster one kind writes."""
_WORTH = 0.95
"""Share of the time that plain attention may take at most: it needs more memory."""
_VERIFIED = 0.25
"""Share of the calls of a reply that verify a draft, if there are any."""


@dataclass(frozen=True, slots=True)
class ChatUse:
    """What a chat computes."""

    read: int
    """Tokens of prompts that are not in the cache."""
    written: int
    depth: int
    """Tokens before them."""


USUAL = ChatUse(read=600, written=300, depth=2000)
"""A turn in the middle of a long chat, which is what takes people's time: an answer of some paragraphs to a
question with a piece of text. Twice as much is read as is written, so neither kind of call decides alone."""


def knows_both(speed: DeviceSpeed, heads: AttentionShape | None) -> bool:
    """Return whether both kinds were measured for these heads, with a cache in f16."""
    return heads is not None and all(attention_name(heads, "f16", kind) in speed.attentions for kind in KINDS)


def is_worth(plain: Forecast, flash: Forecast, *, drafts: bool) -> bool:
    """Return whether plain attention takes clearly less time. drafts: whether some calls verify one."""
    return _seconds(plain, drafts=drafts) < _WORTH * _seconds(flash, drafts=drafts)


def _seconds(forecast: Forecast, *, drafts: bool) -> float:
    """Return what the usual turn takes."""
    use, verified = USUAL, _VERIFIED if drafts else 0.0
    one = forecast.decoding(use.depth)
    several = one + forecast.call(ATTENTION_ROWS[1], use.depth) - forecast.call(1, use.depth)
    writing = use.written * ((1 - verified) * one + verified * several)
    return forecast.prefilling(use.read, use.depth) + writing
