"""Documentation of the settings, generated from their fields."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from operator import attrgetter
from types import UnionType
from typing import Any, Literal, Union

import msgspec
from msgspec import Meta

from edgechat.settings.fields import (
    AppliesFrom,
    EngineProgram,
    Group,
    Preset,
    RemoteServer,
    SamplingDefaults,
    Settings,
)
from edgechat.settings.reading import stripped

_TABLES = {Preset: "presets", RemoteServer: "remotes", EngineProgram: "engines"}
_HUGE = 10**6
"""Limits above this are not shown."""


class Documented(msgspec.Struct, frozen=True):
    """Documentation of one setting."""

    name: str
    """The setting's name in the file and in calls to `save`: 'context', 'sampling.temperature'."""
    kind: str
    """A description of the allowed values, such as 'a whole number, 1 to 512'."""
    default: str
    doc: str
    group: Group
    applies_from: AppliesFrom
    type: Any
    """The setting's type, for `checked_value`."""

    @property
    def optional(self) -> bool:
        """Whether the setting can be None, which lets edgechat choose a value."""
        return type(None) in typing.get_args(stripped(self.type))

    def value(self, settings: Settings) -> Any:
        """Return the value of this setting in `settings`."""
        return attrgetter(self.name)(settings)


def documented() -> tuple[Documented, ...]:
    """Return the documentation of all settings, in field order. A table such as `presets` counts as one."""
    return tuple(_fields(Settings, ""))


def _fields(kind: type[msgspec.Struct], prefix: str) -> Iterator[Documented]:
    for field in msgspec.structs.fields(kind):
        if field.type is SamplingDefaults:
            yield from _fields(SamplingDefaults, f"{field.name}.")
            continue
        # The Meta with `extra` is the documentation; the others set limits.
        about = [meta for meta in _metas(field.type) if meta.extra][-1]
        extra = about.extra or {}
        default = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
        yield Documented(
            name=prefix + field.name,
            kind=describe_type(field.type),
            default=extra["unset"] if default is None else format_value(default),
            doc=about.description or "",
            group=extra["group"],
            applies_from=extra["applies_from"],
            type=field.type,
        )


def _metas(kind: Any) -> list[Meta]:
    return [meta for meta in getattr(kind, "__metadata__", ()) if isinstance(meta, Meta)]


def format_value(value: Any) -> str:
    """Return a value as text, such as 'on', '10' or 'none'."""
    match value:
        case bool():
            return "on" if value else "off"
        case float() | int():
            return f"{value:g}" if abs(value) < 1e6 else str(value)
        case tuple() | dict():
            return ", ".join(value) or "none"
    return str(value)


def describe_type(kind: Any) -> str:
    """Return a description of the values that a type allows."""
    plain, limits = stripped(kind), _limits(kind)
    origin, parts = typing.get_origin(plain), typing.get_args(plain)
    if origin in (Union, UnionType):
        return " or ".join(describe_type(part) for part in parts if part is not type(None))
    if origin is Literal:
        return ", ".join(map(str, parts[:-1])) + f" or {parts[-1]}"
    if origin is tuple:
        return "a list of strings"
    if origin is dict and parts[1] in _TABLES:
        return f"tables [{_TABLES[parts[1]]}.NAME]"
    if origin is dict:
        return "a table of strings"
    if plain is bool:
        return "on or off"
    if plain in (int, float):
        number = "a whole number" if plain is int else "a number"
        return f"{number}, {limits}" if limits else number
    return "text"


def _limits(kind: Any) -> str:
    metas = _metas(kind)
    low = next((meta.ge for meta in metas if meta.ge is not None), None)
    above = next((meta.gt for meta in metas if meta.gt is not None), None)
    high = next((meta.le for meta in metas if meta.le is not None), None)
    top = "" if high is None or high >= _HUGE else f"{high:g}"
    if above is not None:
        return f"above {above:g}" + (f", at most {top}" if top else "")
    if low is not None:
        return f"{low:g} to {top}" if top else f"{low:g} or more"
    return f"at most {top}" if top else ""
