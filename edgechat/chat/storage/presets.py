"""What a preset makes of a conversation."""

from __future__ import annotations

import msgspec

from edgechat.chat.records import ChatSettings
from edgechat.settings import Preset


def applied(preset: Preset, system: str | None, settings: ChatSettings) -> tuple[str | None, ChatSettings]:
    """Return the system prompt and the settings that hold then; what the preset leaves open stays."""
    found = msgspec.structs.replace(
        settings,
        think=settings.think if preset.think is None else preset.think,
        sampling=preset.sampling.over(settings.sampling),
    )
    return (system if preset.system is None else preset.system), found
