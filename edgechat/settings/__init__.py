"""settings.toml: the user's settings. Every field is optional.

    model = "qwen3-4b"
    context = 8192

    [sampling]
    temperature = 0.7

An option on the command line wins over it; where both are silent edgechat chooses by itself.

`fields` has what may be said, and is the one place that explains it: the settings screen shows its words.
`reading` checks a file, `writing` changes it and leaves alone what it is not asked to change.
"""

from __future__ import annotations

from edgechat.settings.fields import Backend, Preset, SamplingDefaults, Settings
from edgechat.settings.reading import checked, checked_value, load, read_toml, settings_file
from edgechat.settings.words import Documented, documented
from edgechat.settings.writing import change, save

__all__ = [
    "Backend",
    "Documented",
    "Preset",
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
