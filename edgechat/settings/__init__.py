"""settings.toml: the user's settings. Every field is optional.

model = "qwen3-4b"
context = 8192

[sampling]
temperature = 0.7

Command-line options take precedence. edgechat chooses values for settings that are set in neither place.

`fields` defines the settings and their descriptions, `reading` checks a file, `writing` changes it while
preserving its layout, and `documentation` describes the settings for the settings screen.
"""

from __future__ import annotations

from edgechat.settings.documentation import Documented, documented
from edgechat.settings.fields import (
    AttentionWish,
    Backend,
    EngineName,
    EngineProgram,
    Preset,
    RemoteKind,
    RemoteServer,
    RuntimeQuant,
    SamplingDefaults,
    Settings,
)
from edgechat.settings.reading import checked, checked_value, load, read_toml, settings_file
from edgechat.settings.writing import change, save

__all__ = [
    "AttentionWish",
    "Backend",
    "Documented",
    "EngineName",
    "EngineProgram",
    "Preset",
    "RemoteKind",
    "RemoteServer",
    "RuntimeQuant",
    "SamplingDefaults",
    "Settings",
    "change",
    "checked",
    "checked_value",
    "documented",
    "load",
    "read_toml",
    "save",
    "settings_file",
]
