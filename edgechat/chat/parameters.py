"""The parameters of a conversation, as they are typed: `/set NAME VALUE`, `/think on|off|auto`."""

from __future__ import annotations

import msgspec

from edgechat.chat.records import ChatSettings
from edgechat.engine.types import ModelInfo
from edgechat.errors import SettingsError, SwitchUnknown
from edgechat.settings import Preset, SamplingDefaults, checked
from edgechat.text import one_line

THINK = {"on": True, "off": False, "auto": None}


def with_thinking(settings: ChatSettings, think: bool | None, model: ModelInfo | None) -> ChatSettings:
    """Return settings with another thinking switch; None leaves it to the model.

    model: the one that is loaded. Raises SwitchUnknown if it has no such switch.
    """
    if think is not None and model is not None and not model.can_switch_thinking:
        raise SwitchUnknown(f"{one_line(model.name, 60)} has no switch for thinking.")
    return msgspec.structs.replace(settings, think=think)


def thinking(text: str) -> bool | None:
    """Return the value of a thinking switch. Raises SettingsError."""
    if text.lower() not in THINK:
        raise SettingsError(f"Use on, off or auto, not {one_line(text, 40)!r}.")
    return THINK[text.lower()]


def with_parameter(settings: ChatSettings, argument: str) -> tuple[ChatSettings, str]:
    """Return settings with a sampling parameter set as in `temperature 0.3`, and a sentence that says so.

    No value, or `default`, removes it. Raises SettingsError.
    """
    name, _, value = argument.partition(" ")
    value = value.strip()
    fields = SamplingDefaults.__struct_fields__
    if name not in fields:
        raise SettingsError(
            f"No such parameter: {one_line(name, 40)!r}.", hint=f"Parameters: {', '.join(fields)}."
        )
    given = settings.sampling.given()
    if value in ("", "default"):
        given.pop(name, None)
    else:
        given[name] = number(value)
    sampling = checked(given, SamplingDefaults, "/set")
    told = f"{name} is {one_line(value, 40) or 'the default'} in this conversation."
    return msgspec.structs.replace(settings, sampling=sampling), told


def number(text: str) -> float | int:
    """Return the number that was typed. Raises SettingsError."""
    text = text.strip().replace(",", ".")
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        raise SettingsError(f"{one_line(text, 40)!r} is not a number.") from None


def preset_named(presets: dict[str, Preset], name: str) -> Preset:
    """Return a preset. Raises SettingsError."""
    if name not in presets:
        known = ", ".join(presets) or "none yet; to save one: /save-preset NAME"
        raise SettingsError(f"No such preset: {one_line(name, 40)!r}.", hint=f"Presets: {known}.")
    return presets[name]
