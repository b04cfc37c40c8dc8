"""From the settings to what the engine does with a chat between its replies."""

from __future__ import annotations

from edgechat.engine.types import CachePolicy
from edgechat.settings import Settings

_GIB = 2**30


def upkeep(said: Settings, *, lasting: bool, prewarm: bool = True) -> CachePolicy:
    """Return what the settings say of it.

    lasting: whether the store of the chats outlives the program; else nothing computed of them does either.
    prewarm: False computes nothing ahead of a next question, which will not come.
    """
    disk_bytes = None if said.state_gib is None else int(said.state_gib * _GIB)
    return CachePolicy(
        settle=said.settle and prewarm,
        settle_on_battery=said.settle_on_battery,
        disk_bytes=disk_bytes if lasting else 0,
    )
